"""The request for a new run: one frozen value, checked where it is made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopyard.checks import one_of, sequence
from hopyard.data.dataset import Dataset
from hopyard.driver.pickling import RunInputs
from hopyard.driver.runs.keywords import rule_of
from hopyard.errors import Inexact, SpecError
from hopyard.parallel import Parallel, gang_of, grouping
from hopyard.ports.engines import Engine
from hopyard.search.kinds import batch_of, examined, learns
from hopyard.spec import SECONDS, Encrypt, Objective, RunSpec
from hopyard.stopping import Hyperband
from hopyard.store.states import private
from hopyard.text import shown

log = logging.getLogger(__name__)

BETTER = {"max": {"acc", "accuracy", "auc", "f1", "precision", "recall"}, "min": {"loss", "error", "mae", "mse"}}
"""Which values of a metric are better, as a word of its name tells: "val_f1_score" has three."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """The request for a new run.

    Attributes:
        inputs: recipe, data, space, search and engine.
        spec: what decides results and schedule; its numbers of partitions are filled in once the data is prepared.
        store: where the user wants folders of States; None: inside the run directory.
        encrypt: whether States are encrypted on the network.
        directory: the run directory; None: a new one under `runs/`.
        parallel: as the user gave it; the run's number of workers and partitions decides what is left open in it.
        track: the trackers that followers bring the run to, each NAME or NAME=TARGET, also when it goes on; None: those
            that it has.
        follow: the same for this driver alone, as its environment asks for them.

    Raises:
        SpecError: something is not allowed.
    """

    inputs: RunInputs
    spec: RunSpec
    store: str | Path | None = None
    encrypt: Encrypt = "between hosts"
    directory: str | Path | None = None
    parallel: Parallel | None = None
    track: tuple[str, ...] | None = None
    follow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.inputs.data, Dataset):
            raise SpecError(
                "data must be a hy.Dataset, for example hy.Dataset.numpy(x, y) or "
                f"hy.Dataset.parquet(path, features=[…], label=…), got {type(self.inputs.data).__name__}"
            )
        check_shared(str(self.store or self.directory or ""), self.inputs.engine)
        check_workers(self.spec.members, self.inputs.engine)


def objectives_of(metric: Any, mode: Any) -> tuple[Objective, ...]:
    """Return the objectives that `metric=` and `mode=` mean: one, or a list of each.

    Raises:
        SpecError: they are no such lists.
    """
    metric, mode = sequence(metric), sequence(mode)
    if not isinstance(metric, list):
        return (Objective(metric, mode),)
    if not metric or not isinstance(mode, list) or len(mode) != len(metric):
        raise SpecError(
            f"metric = {shown(metric)} and mode = {shown(mode)}: a list of metrics needs a list of as many modes, "
            'for example metric=["val_loss", "seconds"], mode=["min", "min"]'
        )
    objectives = tuple([Objective(name, way) for name, way in zip(metric, mode, strict=True)])
    if len(dict.fromkeys(each.metric for each in objectives)) < len(objectives):
        raise SpecError(f"metric = {shown(metric)}: each metric must be there once")
    if len(objectives) > 1 and objectives[0].metric == SECONDS:
        raise SpecError(
            f"metric = {shown(metric)}: the first one decides which epoch of a trial counts and which trials stop, and "
            '"seconds" has no value for an epoch; name another one first'
        )
    return objectives


def run_spec(inputs: RunInputs, given: Mapping[str, Any]) -> RunSpec:
    """Check what decides results and schedule, before the data is read, which decides the numbers of partitions.

    Those of the keywords (`given`, checked) that are fields of the spec go there as they are.

    Raises:
        SpecError: something is not allowed.
        Inexact: exact=True, and what is searched depends on time.
    """
    objectives = () if given["metric"] is None else objectives_of(given["metric"], given["mode"])
    modes = [each.mode for each in objectives] or [one_of("mode", given["mode"] or "min", ("min", "max"))]
    total, repeated = examined(inputs.search, inputs.space, given["seed"], modes)
    if (most := given.get("max_trials")) is not None:
        total = most if total is None else min(total, most)
    fields = {name: value for name, value in given.items() if name in RunSpec.__struct_fields__} | {
        "stop": rule_of(given["stop"]),
        "metric": objectives[0].metric if objectives else None,
        "mode": modes[0],
        **grouping(given["parallel"]),
    }
    spec = RunSpec(
        partitions=1,
        validation=0,
        trials=total,
        batch=batch_of(inputs.search),
        also=tuple(objectives[1:]),
        gang=gang_of(given["parallel"], inputs.engine.workers),
        **fields,
    )
    for each in objectives:
        words = each.metric.lower().split("_")
        better = next((way for way, names in BETTER.items() if not names.isdisjoint(words)), each.mode)
        if better != each.mode:
            best = f"{each.mode}imum"
            log.warning('mode = "%s": of metric = %r the %s is taken for the best', each.mode, each.metric, best)
    _check_cohorts(spec, learns(inputs.search))
    if (reason := inexact(spec, learns(inputs.search), repeated)) and spec.exact is True:
        raise Inexact(f"exact=True: {reason}")
    if reason and spec.exact == "warn":
        log.warning("not exact: %s", reason)
    return spec


def inexact(spec: RunSpec, learning: bool, repeated: bool = True) -> str:
    """Return what makes the search depend on time, so that only a replay repeats it; "": nothing does.

    Args:
        spec: of the run.
        learning: whether what the search proposes depends on results.
        repeated: whether its sampler, made anew, proposes the same.
    """
    rule = spec.stop
    if not repeated:
        return (
            "the sampler of search= proposes something else each time that it is made, with equal seeds; let the "
            "function that makes it pass seed= on"
        )
    if rule is not None and not rule.sync:
        name = type(rule).__name__
        return f"what hy.{name}(…) decides depends on when results come in; hy.{name}(sync=True) waits for all"
    if learning and not spec.batch and not (rule is not None and rule.compares):
        return "what the search proposes depends on when results come in; give it batch=n, as in hy.TPE(64, batch=8)"
    if len(spec.objectives) > 1 and any(each.metric == SECONDS for each in spec.objectives):
        return 'the objective "seconds" differs from run to run; leave it out of metric='
    if spec.gang is not None and spec.gang.least:
        least = spec.gang.least
        return f"with min_workers={least} a gang goes on with fewer workers where no more can be had; leave it out"
    if spec.max_time is not None:
        return f"how far trials come in max_time={spec.max_time:g} seconds depends on the machine; leave it out"
    if spec.goal is not None:
        return f"how far the other trials are when one reaches goal={spec.goal:g} depends on time; leave it out"
    return ""


def _check_cohorts(spec: RunSpec, learning: bool) -> None:
    """Raise SpecError where trials are to wait for each other, and nobody knows how many there are; warn where there
    are too few for all brackets, and where all are proposed before the search has learned anything."""
    rule = spec.stop
    waits = rule is not None and rule.compares and rule.sync and not isinstance(rule, Hyperband)
    if waits and spec.trials is None and not spec.batch:
        raise SpecError(
            f"stop = hy.{type(rule).__name__}(sync=True) needs a search that knows how many trials it proposes; give "
            "max_trials= too"
        )
    if waits and learning and not spec.batch:
        log.warning(
            "stop = hy.%s(sync=True) lets all %d trials wait for each other, so the search proposes them all before it "
            "has a result to learn from; give it batch=n, as in hy.TPE(64, batch=8)",
            *(type(rule).__name__, spec.trials),
        )
    if isinstance(rule, Hyperband) and spec.trials is not None:
        brackets = rule.brackets(spec.epochs)
        needs = sum(count for count, _ in brackets)
        if spec.trials < needs:
            log.warning(
                "hy.Hyperband over %d epochs has %d brackets of %d trials in all, the search proposes %d: the last "
                "brackets stay empty",
                *(spec.epochs, len(brackets), needs, spec.trials),
            )


def check_workers(members: int, engine: Engine) -> None:
    """Raise SpecError where an engine has too few workers for one gang."""
    if engine.workers < members:
        raise SpecError(
            f"a gang of {members} workers needs an engine with as many: {engine.name!r} has {engine.workers}"
            + (", as its only worker is this process; give hy.Local(workers=…)" if engine.in_process else "")
        )


def check_background(wait: bool, engine: Engine) -> None:
    """Raise SpecError where a run in the background would seed the generators that the user's own code draws from."""
    if engine.in_process and not wait:
        raise SpecError(
            "wait = False: hy.Inline() trains in this process, whose random generators and settings belong to your "
            "code meanwhile: give engine=hy.Local(workers=1), or wait=True"
        )


def check_shared(store: str, engine: Engine) -> None:
    """Raise SpecError where each agent of this engine would have a store of its own."""
    if private(store) and not engine.in_process:
        raise SpecError(
            f"store = {store!r}: States there live in the memory of one process, and the workers of engine "
            f"{engine.name!r} are other processes: give a path or URL that all of them reach, or hy.Inline()"
        )
