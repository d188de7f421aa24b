"""Train again what a journal says, and compare every digest."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Durable, Resumed, Retried, Shrunk
from hopyard.core.runs.records import TrialRecord
from hopyard.driver.pickling import RunInputs
from hopyard.driver.runs.about import about_of
from hopyard.driver.runs.request import RunRequest
from hopyard.driver.runs.run import load
from hopyard.driver.runs.start import begin
from hopyard.engines.environment import with_environment
from hopyard.errors import PreflightError, RunFailed, SpecError
from hopyard.ports.engines import Engine
from hopyard.search.listed import Configs
from hopyard.spec import RunSpec, Timeouts
from hopyard.stopping import Lengths
from hopyard.store.journal import read
from hopyard.store.layout import Layout
from hopyard.system.scratch import scratch_folder
from hopyard.training.recipes import assigned


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay.

    Attributes:
        states: number of digests that were compared.
        different: one line for each that differs; empty when the run was repeated to the last bit.
    """

    states: int
    different: list[str]


def replay(directory: str | Path, *, engine: Engine | None = None, trust: bool = False) -> Replayed:
    """Train every trial of a run anew, in a folder that is thrown away, and compare the digests of all States that the
    run ever stored: those of every epoch's end, and those between that both stored.

    Args:
        directory: of the run, or its name under `runs/`.
        engine: another than the run was made with; the bits must not depend on it.
        trust: as for `resume`.

    Raises:
        RunDirectoryError: no run there, its data has changed, or another Python version wrote it.
        SpecError: the number of workers of a gang has changed.
    """
    run = load(directory, trust=trust)
    lines = read(Layout(run.directory).journal, CODEC)
    change = next((line for line in lines if isinstance(line, (Resumed, Shrunk)) and line.members), None)
    if change is not None:
        cause = "hy.resume(workers=…)" if isinstance(change, Resumed) else "min_workers= and the loss of a worker"
        raise SpecError(
            f"{run.directory}: {cause} has changed how many workers train together, so no run from the start gives its "
            "States: there is nothing to compare"
        )
    inputs, data = run._inputs, run._checked_data()
    with run._now() as (machine, _):
        spec, records = machine.spec, list(machine.trials.values())
    configs = Configs([record.config for record in records])
    recipe = assigned(inputs.recipe, {record.id: record.recipe for record in records if record.recipe})
    selected = engine or with_environment(inputs.engine, run.directory, about_of(Layout(run.directory)).backend)
    inputs = RunInputs(recipe, data, None, configs, selected)
    with scratch_folder("replay") as folder:
        repeated = folder / "run"
        replay_spec = msgspec.structs.replace(
            spec,
            trials=len(records),
            timeouts=Timeouts(),
            stop=_lengths(records, spec),
            batch=0,
            max_time=None,
            goal=None,
        )
        with contextlib.suppress(RunFailed, PreflightError):  # so did the run itself, perhaps
            begin(RunRequest(inputs, replay_spec, directory=repeated), resume=False, wait=True)
        new = load(repeated)
        before, after = _digests(run.directory), _digests(new.directory)
        both = sorted(before.keys() & after.keys())
        different = [
            f"trial {trial}, step {step} (epoch {(step - 1) // spec.partitions + 1}): digest "
            f"{after[trial, step][:16]}, the journal has {before[trial, step][:16]}"
            for trial, step in both
            if before[trial, step] != after[trial, step]
        ]
        for old, now in zip(records, new.trials, strict=True):
            if old.status == "completed" and now.status != "completed":
                different.append(f"trial {old.id} completed then, and now it {now.status}: {now.error}")
            elif old.status == "stopped" and now.status == "failed":
                different.append(f"trial {old.id} was stopped then, and now it failed: {now.error}")
    if not both:
        different.append("there was nothing to compare: no State of the run was stored again")
    return Replayed(len(both), different)


def _lengths(records: list[TrialRecord], spec: RunSpec) -> Lengths | None:
    """Return the rule that lets each trial train as far as it did; None: all go to the end of the run."""
    if spec.stop is None and spec.max_time is None and spec.goal is None:
        return None
    return Lengths(tuple([max(1, -(-record.reached // spec.partitions)) for record in records]))


def _digests(directory: Path) -> dict[tuple[int, int], str]:
    """Return (trial, step) → digest of every State that the run ever stored, except those of replaced recipes: a trial
    that began anew with another recipe is trained again with that one only."""
    digests: dict[tuple[int, int], str] = {}
    for line in read(Layout(directory).journal, CODEC):
        if isinstance(line, Durable):
            digests[line.ref.trial, line.ref.step] = line.digest
        elif isinstance(line, Retried) and line.recipe:
            digests = {key: digest for key, digest in digests.items() if key[0] != line.trial}
    return digests
