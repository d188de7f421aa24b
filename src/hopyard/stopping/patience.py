"""Stopping of trials that improve no longer."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from hopyard.checks import number, whole
from hopyard.stopping.curves import EachEpoch, keys, text
from hopyard.stopping.rung import WORST
from hopyard.stopping.standing import Course, Judge, StoppingRule, TrialView, set_checked

NO_DELTA = 0.0
"""`min_delta` by default. (One object: the text of a rule leaves out what *is* the default.)"""


class Patience(StoppingRule, frozen=True):
    """Stops a trial that has not improved for so many epochs, as `keras.callbacks.EarlyStopping` does.

    Args:
        epochs: epochs without improvement after which a trial is stopped.
        min_delta: a value improves when it is better than the best before it by more than this.
        min_epochs: the first epoch at the end of which a trial may be stopped.
    """

    sync: ClassVar[bool] = True
    epochs: int
    min_delta: float = NO_DELTA
    min_epochs: int = 1

    def __post_init__(self) -> None:
        set_checked(
            self,
            epochs=partial(whole, least=1),
            min_delta=lambda name, value: number(name, value, 0.0) or NO_DELTA,
            min_epochs=partial(whole, least=1),
        )

    def judge(self, course: Course) -> Judge:
        """Return what decides for it."""

        def verdict(trial: TrialView, epochs: int) -> tuple[bool, str]:
            top, since = WORST, 0
            for epoch, value in enumerate(keys(course, trial, epochs), 1):
                if value < top - self.min_delta:
                    top, since = value, epoch
            reason = f"epoch {epochs}: the best {course.metric} is {text(course, top)}, of epoch {since}"
            if top == WORST:
                reason = f"epoch {epochs}: no finite {course.metric} so far"
            return epochs - since < self.epochs, reason

        return EachEpoch(course, max(self.min_epochs, self.epochs + 1), verdict)
