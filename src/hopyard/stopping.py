"""The rules by which a search looks at its trials before their last epoch, and stops, pauses or promotes them.

A rule is a frozen value: the first line of a run's journal holds it. What it decides is in `core/runs/rungs`. Epochs
count from 1 here, as users see them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hopyard.checks import flag, number, whole
from hopyard.errors import SpecError

NO_DELTA = 0.0
"""`min_delta` by default. (One object: the text of a rule leaves out what *is* the default.)"""


class ASHA(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
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

    reduction_factor: int = 3
    min_epochs: int = 1
    min_partitions: int | None = None
    sync: bool = False
    promote: bool = True

    def __post_init__(self) -> None:
        _set(self, "reduction_factor", whole("ASHA: reduction_factor", self.reduction_factor, 2))
        _set(self, "min_epochs", whole("ASHA: min_epochs", self.min_epochs, 1))
        if self.min_partitions is not None:
            _set(self, "min_partitions", whole("ASHA: min_partitions", self.min_partitions, 1))
            if self.min_epochs != 1:
                raise SpecError(
                    f"ASHA: min_epochs = {self.min_epochs} and min_partitions = {self.min_partitions}: the first rung "
                    "is at one of them; leave the other out"
                )
        for name in ("sync", "promote"):
            _set(self, name, flag(f"ASHA: {name}", getattr(self, name)))
        if self.sync and not self.promote:
            raise SpecError("ASHA: promote = False: with sync=True each rung promotes its best once; leave promote out")

    def rungs(self, epochs: int) -> tuple[int, ...]:
        """Return the epochs of the rungs in a run of so many epochs, the last epoch not included."""
        return powers(self.min_epochs, self.reduction_factor, epochs)

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time."""
        return not self.sync


class Hyperband(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
    """Several successive halvings, called brackets, from many trials that are looked at early to few that are not.

    Trials are dealt to the brackets in the order of proposal; when all brackets are full, the next ones begin.

    Args:
        reduction_factor: η, an integer >= 2.
        min_epochs: epochs of the first rung of the first bracket.
        sync: whether a rung waits for all its trials, as published; else each bracket is a `hy.ASHA` of its own.

    Source: Li et al., "Hyperband: A Novel Bandit-Based Approach to Hyperparameter Optimization", JMLR 18, 2018,
    algorithm 1, with R = epochs / `min_epochs`.

    Example:
        >>> import hopyard as hy
        >>> hy.Hyperband(reduction_factor=3).brackets(epochs=27)
        ((27, (1, 3, 9)), (12, (3, 9)), (6, (9,)), (4, ()))
    """

    reduction_factor: int = 3
    min_epochs: int = 1
    sync: bool = False

    def __post_init__(self) -> None:
        _set(self, "reduction_factor", whole("Hyperband: reduction_factor", self.reduction_factor, 2))
        _set(self, "min_epochs", whole("Hyperband: min_epochs", self.min_epochs, 1))
        _set(self, "sync", flag("Hyperband: sync", self.sync))

    def brackets(self, epochs: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return (number of trials, epochs of the rungs) of each bracket in a run of so many epochs."""
        eta, most = self.reduction_factor, 0
        while self.min_epochs * eta ** (most + 1) <= epochs:
            most += 1
        brackets = []
        for s in range(most, -1, -1):
            trials = -(-(most + 1) * eta**s // (s + 1))  # rounded up
            rungs = [epochs // eta**i for i in range(s, 0, -1)]
            brackets.append((trials, tuple(rungs)))
        return tuple(brackets)

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time."""
        return not self.sync


class Median(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
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

    min_epochs: int = 1
    min_trials: int = 3
    sync: bool = False

    def __post_init__(self) -> None:
        _set(self, "min_epochs", whole("Median: min_epochs", self.min_epochs, 1))
        _set(self, "min_trials", whole("Median: min_trials", self.min_trials, 1))
        _set(self, "sync", flag("Median: sync", self.sync))

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time."""
        return not self.sync


class Patience(msgspec.Struct, frozen=True, tag=True, tag_field="rule", repr_omit_defaults=True):
    """Stops a trial that has not improved for so many epochs, as `keras.callbacks.EarlyStopping` does.

    Args:
        epochs: epochs without improvement after which a trial is stopped.
        min_delta: a value improves when it is better than the best before it by more than this.
        min_epochs: the first epoch at the end of which a trial may be stopped.
    """

    epochs: int
    min_delta: float = NO_DELTA
    min_epochs: int = 1

    def __post_init__(self) -> None:
        _set(self, "epochs", whole("Patience: epochs", self.epochs, 1))
        _set(self, "min_delta", number("Patience: min_delta", self.min_delta, 0.0) or NO_DELTA)
        _set(self, "min_epochs", whole("Patience: min_epochs", self.min_epochs, 1))

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time: it does not, as it looks at one trial alone."""
        return False


class Asked(msgspec.Struct, frozen=True, tag=True, tag_field="rule"):
    """The user's function is asked at the end of each epoch of each trial. It is no part of the journal; its answers
    are."""

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time: it should not, as it is asked about one trial alone."""
        return False


class Lengths(msgspec.Struct, frozen=True, tag=True, tag_field="rule"):
    """Each trial ends after as many epochs as an earlier run let it have: how a replay repeats what was decided."""

    epochs: tuple[int, ...]

    @property
    def asynchronous(self) -> bool:
        """Whether what it decides depends on time."""
        return False


Rule = ASHA | Hyperband | Median | Patience | Asked | Lengths
RULES = (ASHA, Hyperband, Median, Patience)
"""Those that users give."""


def check_rule(rule: Rule, epochs: int, metric: str | None) -> None:
    """Check a rule against the run that it is for. `Median` and `Patience` may be too patient ever to stop a trial.

    Raises:
        SpecError: it does not fit.
    """
    name = type(rule).__name__
    if not isinstance(rule, RULES):
        return
    if metric is None:
        raise SpecError(
            f'stop = hy.{name}(…) needs metric= and mode=, by which it compares: metric="val_loss", mode="min" '
            "for example, got metric=None"
        )
    if isinstance(rule, ASHA) and rule.min_partitions is not None:
        if metric.startswith("val_"):
            raise SpecError(
                f"ASHA: min_partitions = {rule.min_partitions} needs a metric of training, as validation comes at the "
                f'end of an epoch: give metric="{metric.removeprefix("val_")}", or min_epochs=1; got metric={metric!r}'
            )
        return
    first = rule.min_epochs * (rule.reduction_factor if isinstance(rule, Hyperband) else 1)
    if isinstance(rule, Hyperband) and first > epochs:
        raise SpecError(
            f"Hyperband: min_epochs = {rule.min_epochs} times reduction_factor = {rule.reduction_factor} must be at "
            f"most the epochs of the run, which are {epochs}: no bracket has a rung; give more epochs, or "
            "smaller numbers"
        )
    if isinstance(rule, ASHA) and first >= epochs:
        raise SpecError(
            f"ASHA: min_epochs = {rule.min_epochs} must be below the epochs of the run, which are {epochs}: no trial "
            "comes to a rung, so all would be trained to the end; give more epochs, or a smaller min_epochs"
        )


def check_partitions(rule: Rule | None, epochs: int, partitions: int) -> None:
    """Check a rule against the number of training partitions, which is known once the data is prepared.

    Raises:
        SpecError: it does not fit.
    """
    if isinstance(rule, ASHA) and rule.min_partitions is not None and rule.min_partitions >= epochs * partitions:
        raise SpecError(
            f"ASHA: min_partitions = {rule.min_partitions} must be below the partitions that a trial goes over, which "
            f"are {epochs * partitions} ({epochs} epochs of {partitions}): trials would end before anything is "
            "decided; give a smaller min_partitions, or min_epochs="
        )


def powers(first: int, factor: int, end: int) -> tuple[int, ...]:
    """Return first, first · factor, first · factor², … below `end`."""
    rungs = []
    while first < end:
        rungs.append(first)
        first *= factor
    return tuple(rungs)


def _set(rule: Any, name: str, value: Any) -> None:
    msgspec.structs.force_setattr(rule, name, value)
