"""Journals fold to the same state, for ever.

A change that makes this fail breaks the resume of every run that is on a disk somewhere. Add a new pair of files when
the format grows; never change an old one. (Until the first release they may be written anew: `python test_frozen.py`.)
`WORLDS` are of `faults.world`: slots lost and replaced, system and user failures, folds, drivers killed and
resumed, more epochs, searches with and without rules, gangs, hosts with homes. `journal-6` has what worlds lack: a gang
that shrinks, a driver that is interrupted, and every field of the first line; `journal-7` has workers that are too few
for a gang and are given back; `journal-8` what a recipe logged; `journal-9` a driver that goes on behind a lost end.
"""

import json
import math
from pathlib import Path
from typing import get_args

import pytest

from faults.worlds import drawn
from hopyard.core.runs.codec import decode, encode
from hopyard.core.runs.events import (
    DECISIONS,
    Done,
    Event,
    Finished,
    Histogram,
    Interrupted,
    Requested,
    Resumed,
    Shrunk,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.spec import Gang, Objective, Outer, Timeouts
from hopyard.stopping import Patience
from machines import Run
from snapshots import homes

HERE = Path(__file__).parent / "frozen"


def essentials(machine: Machine) -> dict:
    """What must never fold differently, as JSON has it."""
    return {
        "status": machine.status,
        "trials": {
            str(trial.id): {
                "config": trial.config,
                "status": trial.status,
                "fault": trial.fault,
                "error": trial.error,
                "step": trial.step,
                "safe": trial.durable_step,
                "best": trial.best,
                "history": {str(epoch): values for epoch, values in sorted(trial.history.items())},
                "states": {str(step): [str(s.ref), s.digest] for step, s in sorted(trial.states.items())},
                "digests": {str(step): digest for step, digest in sorted(trial.digests.items())},
                "recipe": trial.recipe,
                "seconds": trial.worker_seconds,
            }
            for trial in machine.trials.values()
        },
        "kept": sorted(str(ref) for ref in machine.kept()),
        "last lease": machine.leases.last,
        "slots": sorted(machine.slots),
        **({"homes": homes(machine.places)["homes"]} if machine.places.active else {}),
    }


def folded(path: Path) -> dict:
    """What a journal folds to where a driver ended."""
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    found = {}
    for count in range(1, len(lines) + 1):
        if count == len(lines) or isinstance(lines[count], (Resumed, Finished)):
            found[str(count)] = essentials(fold(lines[:count]))
    return found


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_journal_folds_to_the_same_state(path):
    assert json.loads(json.dumps(folded(path))) == json.loads(path.with_suffix(".json").read_text())


def test_they_have_every_kind_of_line():
    kinds = {json.loads(line)["type"] for path in HERE.glob("*.jsonl") for line in path.read_bytes().splitlines()}
    assert kinds == {kind.__name__ for kind in (*get_args(Event), *DECISIONS)}


# ------------------------------------------------------------------------------------------ how they were written

WORLDS = {
    "journal-1": (563, {}),
    "journal-2": (201, {}),
    "journal-3": (172, {"gangs": True}),
    "journal-4": (288, {"hosts": True}),
    "journal-5": (160, {"gangs": True}),
}
"""Name → seed of the world, and what it has."""


def of_world(seed: int, **kinds: bool) -> list[bytes]:
    world = drawn(seed, **kinds)
    world.start()
    for _ in range(60):
        if not world.ended:
            world.step()
    world.finish()
    return world.journal


def of_a_gang_that_shrinks() -> list[bytes]:
    gang = Gang(3, "parameters", 1, 4, 8, Outer(0.7, 0.9), "average", "bf16", least=2)
    times = Timeouts(heartbeat_timeout=9.0, unit_timeout=60.0)
    more = {"seed": 7, "exact": True, "max_time": 900.0, "goal": 0.25, "batch": 1, "timeouts": times}
    run = Run(
        slots=3, epochs=2, metric="loss", gang=gang, also=(Objective("seconds", "min"),), stop=Patience(2), **more
    )
    run.done(0, exchanged_bytes=7, others=((3, 4), (0, 5)))
    run.lost(2)
    run.give(Shrunk(at=1.0, members=2))
    run.give(Interrupted(at=2.0, reason="the user interrupted", stopped=True))
    run.give(Resumed(at=3.0, members=2, mark="m", directory="host:/runs/a", timeouts=Timeouts(), copies=0, workers=2))
    return [encode(line) for line in run.lines]


def of_workers_that_are_too_few() -> list[bytes]:
    run = Run(slots=2, gang=Gang(3))
    run.give(Requested(at=1.0, unplaced=1, starting=0))
    run.tick()
    run.tick()
    run.give(Requested(at=9.0, unplaced=2, starting=1))
    for slot in (2, 3, 4):
        run.at = 10.0
        run.join(slot)
    run.give(Interrupted(at=11.0, reason="the user interrupted"))
    return [encode(line) for line in run.lines]


def of_a_recipe_that_logs() -> list[bytes]:
    run = Run(slots=1, trials=1, epochs=1, metric="loss")
    histogram = Histogram(-1.0, 3.0, 12, 7.5, 31.0, -8185, (16361, 21), (3, 9), 1)
    run.done(0, logged={run.unit(0).partitions[0]: {"norm": 0.25, "weights": histogram}})
    run.done(0, logged={run.unit(0).partitions[0]: {"norm": math.nan, "weights": histogram}})
    return [encode(line) for line in run.lines]


def of_a_lost_end() -> list[bytes]:
    run = Run(slots=1, trials=1, epochs=2, metric="loss")
    lease = [run.unit(0).lease, run.done(0)][0]
    run.durable(0, 0, 1, lease)
    run.give(Resumed(at=run.at, skipped=1000, directory="s3://bucket/run"))
    run.join(1)
    run.done(1)
    return [encode(line) for line in run.lines]


def test_what_a_recipe_logged_is_read_as_it_was_meant():
    lines = [decode(line) for line in (HERE / "journal-8.jsonl").read_bytes().splitlines()]
    logged = [points for line in lines if isinstance(line, Done) for points in line.logged.values()]
    assert logged[0]["norm"] == 0.25 and math.isnan(logged[1]["norm"])
    for weights in (points["weights"] for points in logged):
        assert (weights.min, weights.max, weights.sum, weights.sum_squares) == (-1.0, 3.0, 7.5, 31.0)
        assert (weights.edges(), weights.counts, weights.count) == ([-1.125, 0.5, 3.25], (3, 9), 12)


def freeze(name: str, lines: list[bytes]) -> None:
    target = HERE / f"{name}.jsonl"
    target.write_bytes(b"".join(line + b"\n" for line in lines))
    target.with_suffix(".json").write_text(json.dumps(folded(target), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    for name, (seed, kinds) in WORLDS.items():
        freeze(name, of_world(seed, **kinds))
    freeze("journal-6", of_a_gang_that_shrinks())
    freeze("journal-7", of_workers_that_are_too_few())
    freeze("journal-8", of_a_recipe_that_logs())
    freeze("journal-9", of_a_lost_end())
