"""What the machine knows of each trial, epoch, State, slot and pool of slots. `Machine` and its board write it."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

import msgspec

from hopyard.spec import Array, Config, PackedSums, Ref, RunSpec, Status, better


class StateBook(msgspec.Struct, gc=False):
    """One State that its trial may still need. (A Struct, because one is made for each unit.)"""

    ref: Ref
    maker: int
    where: str
    digest: str = ""
    """Empty until it is durable."""
    bytes: int = 0
    sealed: int = 0
    """The last lease that was given out before it was durable."""
    parked: bool = False
    """Others cannot take it out of its maker's memory: no unit starts from it before it is durable."""


class EpochBook:
    """The sums of one epoch of one trial while they come in. A sum that is in stays: done again, it is the same."""

    __slots__ = ("folding", "left", "parked", "train", "validate")

    def __init__(self) -> None:
        self.train: dict[int, PackedSums] = {}
        self.validate: dict[int, PackedSums] = {}
        self.left: set[int] | None = None
        """Validation partitions to be given out; None while the State at the epoch's end is not there."""
        self.parked = False
        """The State at the epoch's end is parked (`StateBook.parked`)."""
        self.folding = False
        """All sums are in, and a fold unit was asked for."""

    def totals(self) -> tuple[dict[str, float], dict[str, tuple[Array, float]]]:
        """(metric → value, metric → (additive array, rows) that a fold unit must turn into a value).

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
    """The sums of all partitions, added in the order of their numbers: floating point cares about the order.

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


class TrialBook:
    """One trial: how far it is, what is left of it, what came out."""

    __slots__ = (
        "alone",
        "aside",
        "best",
        "check_seconds",
        "config",
        "digests",
        "ended",
        "epochs",
        "error",
        "fault",
        "fresh",
        "history",
        "id",
        "lease",
        "on_device",
        "patience",
        "reached",
        "recent",
        "recipe",
        "refuge",
        "remaining",
        "safe",
        "seconds",
        "stamp",
        "states",
        "status",
        "step",
        "strikes",
        "trace",
        "troubles",
        "unstored",
        "until",
        "waits_for",
    )

    def __init__(self, number: int, config: Config) -> None:
        self.id = number
        self.config = config
        self.status: Status = "waiting"
        self.ended = False
        """Completed or failed."""
        self.step = 0
        """Partitions finished, of the newest State; 0: a fresh build."""
        self.safe = 0
        """The step that recovery starts from: durable, and so is every epoch's end before it."""
        self.states: dict[int, StateBook] = {}
        """Step → State, in the order of steps."""
        self.digests: dict[int, str] = {}
        """Step → digest of every epoch's end that was ever durable: what is made again must be the same."""
        self.recent: dict[int, str] = {}
        """The same of steps between, from the safe one on: trials are many, and have many steps."""
        self.lease = 0
        """Of its training unit; 0: none."""
        self.aside: set[int] = set()
        """Leases of its other units: validations and folds."""
        self.stamp = 0
        """Counts the times it stopped waiting, so that old entries in queues can be told."""
        self.seconds = 0.0
        """Per training partition, smoothed; 0: not known."""
        self.check_seconds = 0.0
        """Per validation partition, smoothed; 0: not known."""
        self.remaining = 0.0
        """Seconds of training left, by the newest estimate."""
        self.epochs: dict[int, EpochBook] = {}
        self.history: dict[int, dict[str, float]] = {}
        """Epoch → metric → value, once all of it is in."""
        self.best: int | None = None
        """Epoch with the best value of the run's metric so far."""
        self.strikes: dict[tuple[str, str, int, int], int] = {}
        """(fault, kind of unit, epoch, first partition) → how often in a row."""
        self.reached = 0
        """The furthest step that it ever came to: what is done again up to there is no progress."""
        self.troubles = 0
        """Faults since the last progress, which make its waits longer."""
        self.until = 0.0
        """No unit of it is given out before this time; 0: it does not wait."""
        self.waits_for = ""
        """Why it waits: fault and error."""
        self.unstored = 0
        """Slots in a row that were replaced because they did not store a State of it, with none stored in between."""
        self.patience = 1.0
        """How many times `durable_timeout` its States may take."""
        self.alone = ""
        """"train" or "validate": the next unit of this kind runs while other slots of its device or host rest."""
        self.on_device = False
        """Whether it is the device's memory that it must not share; else the host's."""
        self.fresh = 0.0
        """Before this time, only a worker that has done nothing yet will do for that unit."""
        self.refuge = -1
        """The slot where that unit runs."""
        self.recipe = ""
        """Digest of the recipe that it is trained with, where that is not the run's first."""
        self.error = ""
        self.fault = ""
        self.trace = ""

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last epoch that is all in."""
        return self.history[max(self.history)] if self.history else {}

    def value(self, metric: str | None) -> float | None:
        """The best epoch's value of `metric`."""
        return self.history[self.best].get(metric) if metric and self.best is not None else None

    def good(self, metric: str | None) -> bool:
        """Whether it may be the best trial: an epoch has a finite value of `metric`; without a metric, any."""
        value = self.value(metric)
        return self.best is not None and (metric is None or (value is not None and math.isfinite(value)))

    def seal(self, step: int, digest: str, partitions: int) -> str:
        """A State of this digest is durable. Gives the digest that its step had before; if none, this one."""
        digests = self.recent if step % partitions else self.digests
        known = digests.get(step, digest)
        digests[step] = digest
        return known

    def forget(self) -> None:
        """The safe step has moved on: what lies before it is made again only if its State in the store is gone."""
        for step in [step for step in self.recent if step < self.safe]:
            del self.recent[step]

    def enter(self, epoch: int, values: dict[str, float], spec: RunSpec) -> None:
        """The metrics of an epoch are all in."""
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


class Pool:
    """What waits for the slots that hold the same partitions. Owner: `Board`."""

    __slots__ = ("checks", "heap", "holds", "idle", "slots")

    def __init__(self, holds: tuple[int, ...] | None) -> None:
        self.holds = None if holds is None else frozenset(holds)
        self.idle: dict[int, None] = {}
        self.slots = 0
        self.heap: list[tuple[float, int, int]] = []
        """(−remaining seconds, trial, stamp)."""
        self.checks: deque[tuple[int, int]] = deque()
        """(trial, epoch) with validation partitions to be given out."""

    def offer(self, trial: TrialBook) -> None:
        """The trial can train on a partition that this pool holds."""
        heappush(self.heap, (-trial.remaining, trial.id, trial.stamp))

    def longest(self, trials: dict[int, TrialBook]) -> TrialBook | None:
        """The waiting trial with the longest remaining time. It stays in the heap until it is dispatched."""
        heap = self.heap
        while heap:
            _, number, stamp = heap[0]
            trial = trials[number]
            if trial.stamp == stamp:
                return trial
            heappop(heap)
        return None

    def check(self, trials: dict[int, TrialBook]) -> tuple[TrialBook, int] | None:
        """The oldest validation with a partition that this pool holds."""
        checks = self.checks
        while checks:
            number, epoch = checks[0]
            trial = trials[number]
            if self.leftover(trial, epoch):
                return trial, epoch
            checks.popleft()
        return None

    def leftover(self, trial: TrialBook, epoch: int) -> list[int]:
        """The validation partitions of this epoch that are to be given out and that this pool holds, sorted."""
        book = trial.epochs.get(epoch)
        if trial.ended or trial.until or trial.alone == "validate" or book is None:
            return []
        return self.validates(book)

    def validates(self, book: EpochBook) -> list[int]:
        """The same, whatever else holds the trial up."""
        if not book.left or book.parked:
            return []
        return sorted(book.left if self.holds is None else book.left & self.holds)

    def serves(self, partition: int) -> bool:
        """Whether the pool's slots hold this partition."""
        return self.holds is None or partition in self.holds


class SlotBook:
    """One slot: where it is, what it does, which trial it has in memory."""

    __slots__ = (
        "away",
        "away_since",
        "busy",
        "device",
        "holds",
        "host",
        "id",
        "made",
        "pid",
        "pool",
        "since",
        "step",
        "trial",
        "used",
    )

    def __init__(self, number: int, host: str, pid: int, holds: tuple[int, ...] | None, device: str = "") -> None:
        self.id = number
        self.host = host
        self.pid = pid
        self.device = device
        self.holds = None if holds is None else tuple(sorted(holds))
        self.pool: Pool
        """Of the slots that hold the same; set when it comes to the board."""
        self.busy = 0
        """The lease it works on, also when that no longer stands; -1: it checks a trial; 0: idle."""
        self.since = 0.0
        """When it last came to rest."""
        self.trial = -1
        """The trial it has in memory."""
        self.step = -1
        """The step of the State that it has in memory."""
        self.used = False
        """Whether it was ever given a unit or a check."""
        self.away = ""
        """Why it cannot store States at present; empty: it can."""
        self.away_since = 0.0
        self.made: set[int] = set()
        """Trials of which it made a State: those that are not durable are lost with it."""
