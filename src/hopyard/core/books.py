"""What the machine knows of each trial, epoch, State and slot. Plain records; `Machine` alone writes in them."""

from __future__ import annotations

import math

from hopyard.spec import Config, Ref, RunSpec, Status, Sums, Values, better


class StateBook:
    """One State that its trial may still need."""

    __slots__ = ("bytes", "digest", "gone", "maker", "ref", "where")

    def __init__(self, ref: Ref, maker: int, where: str) -> None:
        self.ref = ref
        self.maker = maker
        self.where = where
        self.digest = ""
        """Empty until it is durable."""
        self.bytes = 0
        self.gone = False
        """Its maker is lost and it was not durable."""


class EpochBook:
    """The sums of one epoch of one trial while they come in."""

    __slots__ = ("folding", "left", "train", "validate")

    def __init__(self) -> None:
        self.train: dict[int, Sums] = {}
        self.validate: dict[int, Sums] = {}
        self.left: set[int] | None = None
        """Validation partitions to be given out; None while the epoch is still training."""
        self.folding = False

    def totals(self) -> tuple[dict[str, float], dict[str, tuple[list[float], float]]]:
        """(metric → value, metric → (additive array, rows) that a fold unit must turn into a value)."""
        values: dict[str, float] = {}
        arrays: dict[str, tuple[list[float], float]] = {}
        for prefix, parts in (("", self.train), ("val_", self.validate)):
            for name, (total, rows) in add(parts).items():
                if isinstance(total, list):
                    arrays[prefix + name] = total, rows
                else:
                    values[prefix + name] = total / rows if rows else math.nan
        return values, arrays


def add(parts: dict[int, Sums]) -> Sums:
    """The sums of all partitions, added in the order of their numbers: floating point cares about the order."""
    totals: dict[str, tuple[Values, float]] = {}
    for partition in sorted(parts):
        for name, (values, rows) in parts[partition].items():
            before = totals.get(name)
            if before is None:
                totals[name] = values, rows
            elif isinstance(values, list):
                assert isinstance(before[0], list)
                totals[name] = [a + b for a, b in zip(before[0], values, strict=True)], before[1] + rows
            else:
                assert not isinstance(before[0], list)
                totals[name] = before[0] + values, before[1] + rows
    return totals


class TrialBook:
    """One trial: how far it is, what is left of it, what came out."""

    __slots__ = (
        "best",
        "check_seconds",
        "config",
        "digests",
        "epochs",
        "error",
        "fault",
        "history",
        "id",
        "lease",
        "remaining",
        "safe",
        "seconds",
        "stamp",
        "states",
        "status",
        "step",
        "strikes",
        "trace",
    )

    def __init__(self, number: int, config: Config, steps: int) -> None:
        self.id = number
        self.config = config
        self.status: Status = "waiting"
        self.step = 0
        """Partitions finished, of the newest State; 0: a fresh build."""
        self.safe = 0
        """The step that recovery starts from: durable, and so is every epoch's end before it."""
        self.states: dict[int, StateBook] = {}
        self.digests: dict[int, str] = {}
        """Step → digest of every State that was ever durable: what is made again must be the same."""
        self.lease = 0
        """Of its training unit; 0: none."""
        self.stamp = 0
        """Counts changes of readiness, so that old entries in queues can be told."""
        self.seconds = 0.0
        """Per training partition, smoothed; 0: not known."""
        self.check_seconds = 0.0
        """Per validation partition, smoothed; 0: not known."""
        self.remaining = float(steps)
        """Seconds of training left, by the newest estimate."""
        self.epochs: dict[int, EpochBook] = {}
        self.history: dict[int, dict[str, float]] = {}
        """Epoch → metric → value, once all of it is in."""
        self.best: int | None = None
        """Epoch with the best value of the run's metric so far."""
        self.strikes: dict[tuple[str, int, int], int] = {}
        self.error = ""
        self.fault = ""
        self.trace = ""

    @property
    def ended(self) -> bool:
        """Completed or failed."""
        return self.status in ("completed", "failed")

    @property
    def metrics(self) -> dict[str, float]:
        """Of the last epoch that is all in."""
        return self.history[max(self.history)] if self.history else {}

    def value(self, metric: str | None) -> float | None:
        """The best epoch's value of `metric`."""
        return self.history[self.best].get(metric) if metric and self.best is not None else None

    def enter(self, epoch: int, values: dict[str, float], spec: RunSpec) -> None:
        """The metrics of an epoch are all in."""
        self.history[epoch] = values
        self.epochs.pop(epoch, None)
        if spec.metric is None:
            self.best = max(self.history)
        else:
            self.best = None
            for number in sorted(self.history):
                value = self.history[number].get(spec.metric)
                if self.best is None or better(spec.mode, value, self.history[self.best].get(spec.metric)):
                    self.best = number


class SlotBook:
    """One slot: where it is, what it does, which trial it has in memory."""

    __slots__ = ("busy", "holds", "host", "id", "owes", "pid", "step", "trial")

    def __init__(self, number: int, host: str, pid: int, holds: tuple[int, ...] | None) -> None:
        self.id = number
        self.host = host
        self.pid = pid
        self.holds = None if holds is None else tuple(sorted(holds))
        self.busy = 0
        """The lease it works on, also when that no longer stands; -1: it checks a trial; 0: idle."""
        self.trial = -1
        """The trial it has in memory."""
        self.step = -1
        """The step of the State that it has in memory."""
        self.owes: set[tuple[int, int]] = set()
        """(trial, step) of States that it made and that are not durable yet."""
