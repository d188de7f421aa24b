"""Rules that look at the curve of one trial at the end of each epoch: median stopping, patience, the user's function,
and the lengths that a replay repeats. The trial waits for the decision at the epoch's end, so what it ends with does
not depend on how far it went meanwhile.

Source: Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, §3.2.2, for the median.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence

from hopyard.core.runs.records import TrialRecord
from hopyard.core.runs.rungs.rung import WORST, key
from hopyard.core.runs.rungs.standing import Standing, Verdict
from hopyard.spec import RunSpec
from hopyard.stopping import Median, Patience


def keys(spec: RunSpec, trial: TrialRecord, epochs: int) -> list[float]:
    """Return the keys (`rung.key`) of the trial's first epochs."""
    metric = spec.metric or ""
    return [key(spec.mode, trial.history[epoch].get(metric)) for epoch in range(epochs) if epoch in trial.history]


def best(spec: RunSpec, trial: TrialRecord, epochs: int) -> float:
    """Return the best key of the first epochs."""
    return min(keys(spec, trial, epochs), default=WORST)


def average(spec: RunSpec, trial: TrialRecord, epochs: int) -> float:
    """Return the mean key of the first epochs."""
    values = keys(spec, trial, epochs)
    return sum(values) / len(values) if values else WORST


def median(order: Sequence[tuple[float, int]], without: tuple[float, int] | None = None) -> float:
    """Return the median of sorted (key, trial): the mean of the two in the middle, where their number is even.
    `without`: an entry that is left out."""
    count, left_out = len(order) - (without is not None), len(order) if without is None else bisect_left(order, without)

    def key(number: int) -> float:
        return order[number + (number >= left_out)][0]

    return key(count // 2) if count % 2 else (key(count // 2 - 1) + key(count // 2)) / 2


def text(spec: RunSpec, value: float) -> str:
    """Return the metric's value that has this key."""
    return "not finite" if value == WORST else f"{value if spec.mode == 'min' else -value:.4g}"


Verdicts = Callable[[TrialRecord, int], tuple[bool, str]]
"""(trial, its epochs) → whether it goes on, and the reason."""


class EachEpoch:
    """Judge of rules that decide at the end of each epoch about one trial.

    Args:
        spec: the run's.
        first: the first epoch at the end of which something is decided, from 1; or a function from trial to that.
        verdict: what is decided; None: the driver decides, and says so (`Granted`, `Stopped`).
        ended: called once for each trial that ended without having failed.
    """

    def __init__(
        self,
        spec: RunSpec,
        first: int | Callable[[int], int],
        verdict: Verdicts | None,
        ended: Callable[[TrialRecord], None] | None = None,
    ) -> None:
        self._spec = spec
        self._first = first
        self._verdict = verdict
        self._on_end = ended
        self._counted: set[int] = set()

    def first(self, trial: int) -> int:
        """Return the end of the first epoch at which something is decided."""
        epoch = self._first if isinstance(self._first, int) else self._first(trial)
        return min(epoch, self._spec.epochs) * self._spec.partitions

    def proposed(self, trial: int) -> None:
        """Record nothing: each trial is looked at alone."""

    def report(self, trial: TrialRecord, step: int, value: float) -> None:
        """Record nothing: the trial's history has its values."""

    def granted(self, trial: int, step: int) -> None:
        """Record nothing: the trial's target says so."""

    def ended(self, trial: TrialRecord) -> None:
        """Let others be compared with it from now on."""
        if self._on_end is not None and trial.status != "failed" and trial.id not in self._counted:
            self._counted.add(trial.id)
            self._on_end(trial)

    def again(self, trial: TrialRecord, anew: bool) -> bool:
        """Record nothing: a trial that failed was not counted. One that failed where it awaited a decision awaits it
        no longer, and goes on to the next place."""
        if not anew and len(trial.history) * self._spec.partitions >= trial.target:
            trial.target = min(trial.target + self._spec.partitions, self._spec.steps)
        return False

    def decide(self, standing: Standing) -> Iterator[Verdict]:
        """Decide about the trials whose metrics are in."""
        spec = self._spec
        if self._verdict is None:
            return
        for number, step in list(standing.undecided.items()):
            goes_on, reason = self._verdict(standing.trials[number], step // spec.partitions)
            if goes_on:
                yield standing.grant(number, min(step + spec.partitions, spec.steps), reason)
            else:
                yield standing.stop(number, reason)

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return None: trials are proposed one by one."""
        return None

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return none."""
        return []


def median_of_the_ended(spec: RunSpec, rule: Median) -> EachEpoch:
    """Return the judge of asynchronous median stopping. O(log n) a report, and O(epochs · log n) when a trial ends."""
    averages: dict[int, list[tuple[float, int]]] = {}

    def ended(trial: TrialRecord) -> None:
        for epochs in range(rule.min_epochs, len(trial.history) + 1):
            insort(averages.setdefault(epochs, []), (average(spec, trial, epochs), trial.id))

    def verdict(trial: TrialRecord, epochs: int) -> tuple[bool, str]:
        others = averages.get(epochs, [])
        if len(others) < rule.min_trials:
            return True, f"epoch {epochs}: trials to compare with: {len(others)}, at least {rule.min_trials} are needed"
        value, middle = best(spec, trial, epochs), median(others)
        count = f"{len(others)} trial{'s' if len(others) != 1 else ''}"
        compared = f"best {text(spec, value)}, median of {count} {text(spec, middle)}"
        return value <= middle and value < WORST, f"epoch {epochs}: {compared}"

    return EachEpoch(spec, rule.min_epochs, verdict, ended)


def patience(spec: RunSpec, rule: Patience) -> EachEpoch:
    """Return the judge of `Patience`."""

    def verdict(trial: TrialRecord, epochs: int) -> tuple[bool, str]:
        top, since = WORST, 0
        for epoch, value in enumerate(keys(spec, trial, epochs), 1):
            if value < top - rule.min_delta:
                top, since = value, epoch
        reason = f"epoch {epochs}: the best {spec.metric} is {text(spec, top)}, of epoch {since}"
        if top == WORST:
            reason = f"epoch {epochs}: no finite {spec.metric} so far"
        return epochs - since < rule.epochs, reason

    return EachEpoch(spec, max(rule.min_epochs, rule.epochs + 1), verdict)


def lengths(spec: RunSpec, epochs: Sequence[int]) -> EachEpoch:
    """Return the judge that ends each trial after as many epochs."""
    return EachEpoch(spec, lambda trial: epochs[trial], lambda trial, epochs: (False, f"after {epochs} epochs, again"))
