"""What the machine knows of each trial, epoch, State and slot. Comments name the module that changes each group of
fields; all other modules only read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from hopyard.spec import SECONDS, Array, Config, ModelInfo, Objective, PackedSums, Ref, RunSpec, Status, better


class StateRecord(msgspec.Struct, gc=False):
    """One State that its trial may still need. (A Struct, because one is made for each unit.)"""

    ref: Ref
    maker: int
    """The slot that made it."""
    memory_key: str
    """Its key in the maker's shared memory; empty: it is not there."""
    digest: str = ""
    """Digest of its bytes; empty until it is durable."""
    bytes: int = 0
    sealed: int = 0
    """The last lease that was given out before it was durable."""
    parked: bool = False
    """Others cannot take it out of its maker's memory: no unit starts from it before it is durable."""


class EpochRecord(msgspec.Struct, eq=False):
    """The sums of one epoch of one trial while they come in. A sum that is in stays, as a second one is equal."""

    train: dict[int, PackedSums] = {}
    validate: dict[int, PackedSums] = {}
    pending: set[int] | None = None
    """Validation partitions to be given out; None while the State at the epoch's end is not there."""
    parked: bool = False
    """The State at the epoch's end is parked (`StateRecord.parked`)."""
    folding: bool = False
    """All sums are in, and a fold unit was asked for."""

    def totals(self) -> tuple[dict[str, float], dict[str, tuple[Array, float]]]:
        """Return (metric → value, metric → (additive array, rows) that a fold unit must turn into a value).

        Raises:
            ValueError: a metric has another shape in one partition than in another.
        """
        values: dict[str, float] = {}
        arrays: dict[str, tuple[Array, float]] = {}
        for prefix, parts in (("", self.train), ("val_", self.validate)):
            for name, (total, rows) in add(parts).items():
                if isinstance(total, list):
                    arrays[prefix + name] = Array.of(total), rows
                else:
                    values[prefix + name] = total / rows if rows else math.nan
        return values, arrays


def add(parts: dict[int, PackedSums]) -> dict[str, tuple[float | list[float], float]]:
    """Return the sums of all partitions, added in the order of their numbers, as floating point needs one order.

    Raises:
        ValueError: a metric has another shape in one partition than in another.
    """
    totals: dict[str, tuple[float | list[float], float]] = {}
    for partition in sorted(parts):
        for name, (packed, rows) in parts[partition].items():
            values = packed.numbers() if isinstance(packed, Array) else packed
            before, count = totals.get(name, (None, 0.0))
            if before is None:
                totals[name] = values, rows
            elif isinstance(values, list) and isinstance(before, list) and len(values) == len(before):
                totals[name] = [a + b for a, b in zip(before, values, strict=True)], count + rows
            elif not isinstance(values, list) and not isinstance(before, list):
                totals[name] = before + values, count + rows
            else:
                raise ValueError(
                    f"metric {name}, partition {partition}: {_shape(values)}, but {_shape(before)} in an earlier one; "
                    "a metric's sums must have one shape"
                )
    return totals


def _shape(values: float | list[float]) -> str:
    return f"an array of {len(values)}" if isinstance(values, list) else "a number"


class TrialRecord(msgspec.Struct, eq=False):
    """One trial: how far it is, what remains to do, and its results."""

    id: int
    config: Config
    target: int
    """The step up to which it trains: the run's last one, unless the search looks at it before, or has stopped it."""
    recipe: str = ""
    """Digest of the recipe that it is trained with, where that is not the run's first."""
    model: ModelInfo | None = None
    """What its recipe gives, once a worker has reported it."""
    count: int = -1
    """As in Proposed."""
    attributes: dict[str, Any] = {}
    """As in Proposed."""
    offset: int = 0
    """Where in the rotation over the partitions it begins (`order.visit`)."""

    # its status: `lifecycle`
    status: Status = "waiting"
    ended: bool = False
    """Completed, stopped or failed."""
    storing: bool = False
    """It has failed, and States at the ends of its epochs are still on their way to the store."""
    earlier: TrialRecord | None = None
    """The attempt before, if the trial began anew; None once a State of this attempt is durable."""
    paused: bool = False
    """Whether it waits at its target for a decision of the search, though it may go there again for a lost State."""
    stopped: bool = False
    """Whether it ends at its target, by a decision of the search."""
    reason: str = ""
    """Why it waits, goes on or was stopped, by the search's newest decision."""
    fault: str = ""
    error: str = ""
    trace: str = ""

    # its units: `machine`, `lifecycle`
    step: int = 0
    """Partitions finished, of the newest State; 0: a fresh build."""
    lease: int = 0
    """Lease of its training unit; 0: none."""
    validation_leases: set[int] = set()
    """Leases of its validations and folds."""
    reached: int = 0
    """The furthest step that it ever came to: work that is done again up to there is no progress."""

    worker_seconds: float = 0.0
    """From each unit's dispatch to its end, times the workers that it took, of all units that ended well."""

    # its time: `scheduler`
    queue_version: int = 0
    """Counts the times it stopped waiting, by which entries of queues that are out of date are recognized."""
    seconds: float = 0.0
    """Seconds per training partition, smoothed; 0: not known."""
    check_seconds: float = 0.0
    """Seconds per validation partition, smoothed; 0: not known."""
    remaining: float = 0.0
    """Seconds of training that remain, by the newest estimate."""

    # its States: `retention`, `lifecycle`
    states: dict[int, StateRecord] = {}
    """Step → State, in the order of steps."""
    durable_step: int = 0
    """The step that recovery starts from: durable, and so is every epoch's end before it."""
    digests: dict[int, str] = {}
    """Step → digest of every epoch's end that was ever durable: a State that is made again must be the same."""
    step_digests: dict[int, str] = {}
    """The same for steps between, only from the durable one on, as trials are many and have many steps."""
    unstored: int = 0
    """Slots in a row that were replaced because they did not store a State of it, with none stored in between."""

    # its metrics: `epochs`
    epochs: dict[int, EpochRecord] = {}
    """Epochs whose sums are coming in."""
    history: dict[int, dict[str, float]] = {}
    """Epoch → metric → value, for epochs whose sums are all in."""
    best: int | None = None
    """Epoch with the best value of the run's metric so far."""

    # what failed: `faults`, `retries`
    strikes: dict[tuple[str, str, int, int], int] = {}
    """(fault, kind of unit, epoch, first partition) → number of times in a row."""
    troubles: int = 0
    """Faults since the last progress, which make its waits longer."""
    until: float = 0.0
    """No unit of it is given out before this time; 0: it does not wait."""
    waits_for: str = ""
    """Why it waits: fault and error."""
    isolated: Literal["", "train", "validate"] = ""
    """The next unit of this kind, which ran out of memory, runs while other slots of its host rest."""
    fresh: float = 0.0
    """Before this time, only a worker that has done nothing yet may take that unit."""
    refuge: int = -1
    """The slot where that unit runs."""

    @property
    def stored(self) -> TrialRecord:
        """The attempt that has the trial's models."""
        return self.earlier or self

    @property
    def durable(self) -> list[StateRecord]:
        """Its durable States, and those of the attempt before."""
        earlier = [] if self.earlier is None else self.earlier.durable
        return [*earlier, *(state for state in self.states.values() if state.digest)]

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the last epoch whose sums are all in."""
        return self.history[max(self.history)] if self.history else {}

    def value(self, metric: str | None) -> float | None:
        """Return the best epoch's value of `metric`."""
        return self.history[self.best].get(metric) if metric and self.best is not None else None

    def digest(self) -> str:
        """Return the digest of its last State; "" before the trial has ended, or where it failed."""
        if not self.ended or self.status == "failed":
            return ""
        return self.digests.get(self.target, "") or self.step_digests.get(self.target, "")

    def good(self, metric: str | None) -> bool:
        """Return whether it may be the best trial: an epoch has a finite value of `metric`; without a metric, any. A
        trial that began anew counts from its first durable State on, as its models are those of the attempt before
        until then."""
        if self.earlier is not None or self.best is None:
            return False
        value = self.value(metric)
        return metric is None or (value is not None and math.isfinite(value))

    def values(self, objectives: Sequence[Objective]) -> tuple[float, ...]:
        """Return the values of the run's objectives at its best epoch by the first of them; NaN: it is not there."""
        metrics = {} if self.best is None else self.history[self.best]
        if len(objectives) > 1:
            metrics = {**metrics, SECONDS: self.worker_seconds}
        return tuple([metrics.get(each.metric, math.nan) for each in objectives])

    def objectives(self, spec: RunSpec) -> tuple[float, ...]:
        """Return the values of the run's objectives; empty: one of them is not there, or not finite."""
        values = self.values(spec.objectives)
        return values if all(map(math.isfinite, values)) else ()

    def seal(self, step: int, digest: str, partitions: int) -> str:
        """Record a durable State's digest. Returns the digest that its step had before; if none, this one."""
        digests = self.step_digests if step % partitions else self.digests
        earlier = digests.get(step, digest)
        digests[step] = digest
        return earlier

    def forget(self) -> None:
        """Drop digests before the durable step, which has moved on: those States are made again only if the store loses
        the durable one."""
        for step in [step for step in self.step_digests if step < self.durable_step]:
            del self.step_digests[step]

    def add_epoch(self, epoch: int, values: dict[str, float], spec: RunSpec) -> None:
        """Add the metrics of an epoch, which are all in."""
        self.history[epoch] = values
        self.epochs.pop(epoch, None)
        best = self.best
        if best is None:
            self.best = epoch
        elif spec.metric is None:
            self.best = max(best, epoch)
        else:  # epochs may come in any order; of equals the earliest is the best
            new, old = values.get(spec.metric), self.history[best].get(spec.metric)
            if better(spec.mode, new, old) or (epoch < best and not better(spec.mode, old, new)):
                self.best = epoch


class SlotRecord(msgspec.Struct, eq=False):
    """One slot: where it is, what it does, which trial it has in memory. Changed by `machine` and `lifecycle`."""

    id: int
    host: str
    pid: int
    device: str
    idle_since: float
    """When it last became idle."""
    home: str | None = None
    """The host whose partitions it works on; None: a gang over several hosts works on all."""
    busy: int = 0
    """The lease that it works on, even if that no longer stands; -1: it checks a trial; 0: idle."""
    used: bool = False
    """Whether it ever had a unit or a check."""
    trial: int = -1
    """The trial it has in memory."""
    step: int = -1
    """The step of the State that it has in memory."""
    memory_only: set[int] = set()
    """Trials of which it made a State: States that are not durable are lost with it."""
    away: str = ""
    """Why it cannot store States at present; empty: it can."""
    away_since: float = 0.0

    # its gang: `gangs`
    trains: bool = True
    """Whether training units go to it: in a run with gangs, whether it is one."""
    members: tuple[int, ...] = ()
    """Its workers by rank, of which the first has its number; empty: it is one worker."""
    together: bool = False
    """Whether all members work on its present unit."""
    group: int = 0
    """The lease of the unit with which the members' process group began; 0: the next unit begins one."""

    @property
    def at_work(self) -> int:
        """Number of workers that work on its present unit."""
        return len(self.members) if self.together else 1
