"""Rules that look at the curve of one trial at the end of each epoch. The trial waits for the decision at the epoch's
end, so what it ends with does not depend on how far it went meanwhile. The user's function and a replay are such rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from hopyard.stopping.rung import WORST, key
from hopyard.stopping.standing import Course, Judge, Standing, StoppingRule, TrialView, Verdict


def keys(course: Course, trial: TrialView, epochs: int) -> list[float]:
    """Return the keys (`rung.key`) of the trial's first epochs."""
    return [
        key(course.mode, trial.history[epoch].get(course.metric)) for epoch in range(epochs) if epoch in trial.history
    ]


def best(course: Course, trial: TrialView, epochs: int) -> float:
    """Return the best key of the first epochs."""
    return min(keys(course, trial, epochs), default=WORST)


def average(course: Course, trial: TrialView, epochs: int) -> float:
    """Return the mean key of the first epochs."""
    values = keys(course, trial, epochs)
    return sum(values) / len(values) if values else WORST


def text(course: Course, value: float) -> str:
    """Return the metric's value that has this key."""
    return "not finite" if value == WORST else f"{value if course.mode == 'min' else -value:.4g}"


Verdicts = Callable[[TrialView, int], tuple[bool, str]]
"""(trial, its epochs) → whether it goes on, and the reason."""


class EachEpoch:
    """Judge of rules that decide at the end of each epoch about one trial.

    Args:
        course: of the run.
        first: the first epoch at the end of which something is decided, from 1; or a function from trial to that.
        verdict: what is decided; None: the driver decides, and says so (`Granted`, `Stopped`).
        ended: called once for each trial that ended without having failed.
    """

    def __init__(
        self,
        course: Course,
        first: int | Callable[[int], int],
        verdict: Verdicts | None,
        ended: Callable[[TrialView], None] | None = None,
    ) -> None:
        self._course = course
        self._first = first
        self._verdict = verdict
        self._on_end = ended
        self._counted: set[int] = set()

    def first(self, trial: int) -> int:
        """Return the end of the first epoch at which something is decided."""
        epoch = self._first if isinstance(self._first, int) else self._first(trial)
        return min(epoch, self._course.epochs) * self._course.partitions

    def proposed(self, trial: int) -> None:
        """Record nothing: each trial is looked at alone."""

    def report(self, trial: TrialView, step: int, value: float) -> None:
        """Record nothing: the trial's history has its values."""

    def granted(self, trial: int, step: int) -> None:
        """Record nothing: the trial's target says so."""

    def ended(self, trial: TrialView) -> None:
        """Let others be compared with it from now on."""
        if self._on_end is not None and trial.status != "failed" and trial.id not in self._counted:
            self._counted.add(trial.id)
            self._on_end(trial)

    def again(self, trial: TrialView, anew: bool) -> bool:
        """Record nothing: a trial that failed was not counted. One that failed where it awaited a decision awaits it
        no longer, and goes on to the next place."""
        if not anew and len(trial.history) * self._course.partitions >= trial.target:
            trial.target = min(trial.target + self._course.partitions, self._course.steps)
        return False

    def decide(self, standing: Standing) -> Iterator[Verdict]:
        """Decide about the trials whose metrics are in."""
        course = self._course
        if self._verdict is None:
            return
        for number, step in list(standing.undecided.items()):
            goes_on, reason = self._verdict(standing.trials[number], step // course.partitions)
            yield Verdict(number, min(step + course.partitions, course.steps) if goes_on else None, reason)

    def generation(self, trial: int) -> tuple[int, int] | None:
        """Return None: trials are proposed one by one."""
        return None

    def rungs(self) -> list[tuple[str, int, int, int]]:
        """Return none."""
        return []


class Asked(StoppingRule, frozen=True):
    """The user's function is asked at the end of each epoch of each trial. It is no part of the journal; its answers
    are. It should not depend on time, as it is asked about one trial alone."""

    sync: ClassVar[bool] = True

    def judge(self, course: Course) -> Judge:
        """Return what waits for the function's answers."""
        return EachEpoch(course, 1, None)


class Lengths(StoppingRule, frozen=True):
    """Each trial ends after as many epochs as an earlier run let it have: how a replay repeats what was decided."""

    sync: ClassVar[bool] = True
    epochs: tuple[int, ...]

    def judge(self, course: Course) -> Judge:
        """Return what decides for it."""
        return EachEpoch(
            course, lambda trial: self.epochs[trial], lambda trial, epochs: (False, f"after {epochs} epochs, again")
        )
