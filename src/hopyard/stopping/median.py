"""Median stopping."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from hopyard.checks import flag, whole
from hopyard.stopping.cohorts import Keep, Verdicts, batches
from hopyard.stopping.curves import EachEpoch, average, best, text
from hopyard.stopping.rung import WORST, Rung
from hopyard.stopping.standing import Course, Judge, StoppingRule, TrialView, set_checked


class Median(StoppingRule, frozen=True):
    """Stops a trial whose best value so far is worse than the median of the others' running averages.

    At the end of epoch e, a trial's best value is compared to the median, over the other trials, of the mean of their
    values in epochs 1 to e. The others are the trials that have ended and came that far; with `sync=True`, all trials
    of the run, which wait for each other at the end of each epoch (where the search has `batch=`, those of a batch wait
    for each other, and are compared with all of the earlier batches too).

    Args:
        min_epochs: the first epoch at the end of which a trial may be stopped.
        min_trials: a trial is compared to at least so many others; until there are as many, it goes on.
        sync: whether trials wait for each other, so that results do not depend on time.

    Source: Golovin et al., "Google Vizier: A Service for Black-Box Optimization", KDD 2017, §3.2.2. (There every
    reported value is a step; here each epoch is. There the others are trials that were completed; here trials that were
    stopped count too, up to the epoch to which they came.)
    """

    compares: ClassVar[bool] = True
    min_epochs: int = 1
    min_trials: int = 3
    sync: bool = False

    def __post_init__(self) -> None:
        set_checked(self, min_epochs=partial(whole, least=1), min_trials=partial(whole, least=1), sync=flag)

    def judge(self, course: Course) -> Judge:
        """Return what decides for it."""
        if not self.sync:
            return _of_the_ended(course, self)
        steps = [epoch * course.partitions for epoch in range(self.min_epochs, course.epochs)]
        return batches(course, steps, *_of_the_cohort(course, self.min_trials))


def _of_the_ended(course: Course, rule: Median) -> EachEpoch:
    """Return the judge of asynchronous median stopping. O(log n) a report, and O(epochs · log n) when a trial ends."""
    averages: dict[int, list[tuple[float, int]]] = {}

    def ended(trial: TrialView) -> None:
        for epochs in range(rule.min_epochs, len(trial.history) + 1):
            insort(averages.setdefault(epochs, []), (average(course, trial, epochs), trial.id))

    def verdict(trial: TrialView, epochs: int) -> tuple[bool, str]:
        others = averages.get(epochs, [])
        if len(others) < rule.min_trials:
            return True, f"epoch {epochs}: trials to compare with: {len(others)}, at least {rule.min_trials} are needed"
        value, middle = best(course, trial, epochs), _median(others)
        count = f"{len(others)} trial{'s' if len(others) != 1 else ''}"
        compared = f"best {text(course, value)}, median of {count} {text(course, middle)}"
        return value <= middle and value < WORST, f"epoch {epochs}: {compared}"

    return EachEpoch(course, rule.min_epochs, verdict, ended)


def _of_the_cohort(course: Course, least: int) -> tuple[Keep, Verdicts]:
    """Return what rungs of the median rule keep and decide; `least`: the fewest others to compare with."""

    def keep(trial: TrialView, step: int, value: float) -> float:
        return average(course, trial, step // course.partitions)

    def verdict(trials: int, rung: Rung, trial: TrialView) -> tuple[bool, str]:
        others = len(rung.order) - 1
        if others < least:
            return True, f"{rung.name}: trials to compare with: {others}, at least {least} are needed"
        epochs = rung.step // course.partitions
        value, middle = best(course, trial, epochs), _median(rung.order, (average(course, trial, epochs), trial.id))
        rest = "the other" if others == 1 else f"the {others} others"
        compared = f"best {text(course, value)}, median of {rest} {text(course, middle)}"
        return value <= middle and value < WORST, f"{rung.name}: {compared}"

    return keep, verdict


def _median(order: Sequence[tuple[float, int]], without: tuple[float, int] | None = None) -> float:
    """Return the median of sorted (key, trial): the mean of the two in the middle, where their number is even.
    `without`: an entry that is left out."""
    count, left_out = len(order) - (without is not None), len(order) if without is None else bisect_left(order, without)

    def key(number: int) -> float:
        return order[number + (number >= left_out)][0]

    return key(count // 2) if count % 2 else (key(count // 2 - 1) + key(count // 2)) / 2
