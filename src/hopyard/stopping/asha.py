"""Successive halving in one bracket."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from hopyard.checks import flag, whole
from hopyard.errors import SpecError
from hopyard.stopping.cohorts import batches, halving
from hopyard.stopping.halving import Bracket, Halving
from hopyard.stopping.standing import Course, Judge, StoppingRule, set_checked


class ASHA(StoppingRule, frozen=True):
    """Successive halving: of the trials at a rung, the best 1 / `reduction_factor` go on to the next one.

    Rungs are at `min_epochs` epochs, and at that times `reduction_factor`, again and again. A trial
    at a rung is paused; its State is kept, and it goes on from there when it is promoted, perhaps much later.

    Asynchronous, a trial is promoted as soon as it is among the best of those that came to its rung so far. When
    nothing is left to propose or to promote, a worker that would idle promotes the best trial of the highest rung that
    has promoted none. With `sync=True`, a rung decides once all its trials have come to it: results do not depend on
    time. Where the search proposes in batches (`batch=`), a rung decides once all of a batch have come to it, and
    compares them with all of the earlier batches too.

    Args:
        reduction_factor: η, an integer >= 2.
        min_epochs: epochs of the first rung.
        min_partitions: the first rung, in training partitions in place of epochs; the run's metric must be one of
            training then, as validation comes at the end of an epoch, and one number a row: an AUC or F1 has no value
            before.
        sync: whether a rung waits for all its trials.
        promote: False: a trial that is not among the best when it comes to a rung is stopped there for good, as Ray's
            ASHAScheduler and Optuna's SuccessiveHalvingPruner do.

    Source: Li et al., "A System for Massively Parallel Hyperparameter Tuning", MLSys 2020, algorithm 2; `sync=True`:
    Jamieson, Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization", AISTATS 2016.

    Example:
        >>> import hopyard as hy
        >>> hy.ASHA(reduction_factor=3).rungs(epochs=27)
        (1, 3, 9)
    """

    compares: ClassVar[bool] = True
    reduction_factor: int = 3
    min_epochs: int = 1
    min_partitions: int | None = None
    sync: bool = False
    promote: bool = True

    def __post_init__(self) -> None:
        set_checked(self, reduction_factor=partial(whole, least=2), min_epochs=partial(whole, least=1))
        if self.min_partitions is not None:
            set_checked(self, min_partitions=partial(whole, least=1))
            if self.min_epochs != 1:
                raise SpecError(
                    f"ASHA: min_epochs = {self.min_epochs} and min_partitions = {self.min_partitions}: the first rung "
                    "is at one of them; leave the other out"
                )
        set_checked(self, sync=flag, promote=flag)
        if self.sync and not self.promote:
            raise SpecError("ASHA: promote = False: with sync=True each rung promotes its best once; leave promote out")

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs of the rungs in a run of so many epochs, the last epoch not included."""
        return powers(self.min_epochs, self.reduction_factor, epochs)

    def check(self, epochs: int, metric: str) -> None:
        """Raise SpecError unless it fits a run."""
        if self.min_partitions is None and self.min_epochs >= epochs:
            raise SpecError(
                f"ASHA: min_epochs = {self.min_epochs} must be below the epochs of the run, which are {epochs}: no "
                "trial comes to a rung, so all would be trained to the end; give more epochs, or a smaller min_epochs"
            )
        if self.min_partitions is not None and metric.startswith("val_"):
            raise SpecError(
                f"ASHA: min_partitions = {self.min_partitions} needs a metric of training, as validation comes at the "
                f'end of an epoch: give metric="{metric.removeprefix("val_")}", or min_epochs=1; got metric={metric!r}'
            )

    def check_partitions(self, epochs: int, partitions: int) -> None:
        """Raise SpecError unless it fits the number of training partitions, known once the data is prepared."""
        if self.min_partitions is not None and self.min_partitions >= epochs * partitions:
            raise SpecError(
                f"ASHA: min_partitions = {self.min_partitions} must be below the partitions that a trial goes over, "
                f"which are {epochs * partitions} ({epochs} epochs of {partitions}): trials would end before anything "
                "is decided; give a smaller min_partitions, or min_epochs="
            )

    def judge(self, course: Course) -> Judge:
        """Return what decides for it."""
        first = self.min_partitions or self.min_epochs * course.partitions
        steps = powers(first, self.reduction_factor, course.steps)
        if self.sync:
            return batches(course, steps, *halving(self.reduction_factor))
        return Halving([(1, Bracket("", steps, course.steps))], self.reduction_factor, self.promote)


def powers(first: int, factor: int, end: int) -> tuple[int, ...]:
    """Return first, first · factor, first · factor², … below `end`."""
    rungs = []
    while first < end:
        rungs.append(first)
        first *= factor
    return tuple(rungs)
