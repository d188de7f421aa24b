"""Stopping of trials that improve no longer."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec.structs import force_setattr

from hopyard.checks import number, whole
from hopyard.stopping.curves import EachEpoch, keys, text
from hopyard.stopping.rung import WORST
from hopyard.stopping.standing import Course, Judge, TrialView

NO_DELTA = 0.0
"""`min_delta` by default. (One object: the text of a rule leaves out what *is* the default.)"""


class Patience(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
    """Stops a trial that has not improved for so many epochs, as `keras.callbacks.EarlyStopping` does.

    Args:
        epochs: epochs without improvement after which a trial is stopped.
        min_delta: a value improves when it is better than the best before it by more than this.
        min_epochs: the first epoch at the end of which a trial may be stopped.
    """

    compares: ClassVar[bool] = False
    sync: ClassVar[bool] = True
    epochs: int
    min_delta: float = NO_DELTA
    min_epochs: int = 1

    def __post_init__(self) -> None:
        force_setattr(self, "epochs", whole("Patience: epochs", self.epochs, 1))
        force_setattr(self, "min_delta", number("Patience: min_delta", self.min_delta, 0.0) or NO_DELTA)
        force_setattr(self, "min_epochs", whole("Patience: min_epochs", self.min_epochs, 1))

    def check(self, epochs: int, metric: str) -> None:
        """Accept any run, even one that is too short for a trial to be stopped."""

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
