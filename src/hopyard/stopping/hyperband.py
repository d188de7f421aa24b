"""Successive halving in several brackets."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from hopyard.checks import flag, whole
from hopyard.errors import SpecError
from hopyard.stopping.cohorts import Cohorts, halving
from hopyard.stopping.halving import Bracket, Halving
from hopyard.stopping.standing import Course, Judge, StoppingRule, set_checked


class Hyperband(StoppingRule, frozen=True):
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

    compares: ClassVar[bool] = True
    reduction_factor: int = 3
    min_epochs: int = 1
    sync: bool = False

    def __post_init__(self) -> None:
        set_checked(self, reduction_factor=partial(whole, least=2), min_epochs=partial(whole, least=1), sync=flag)

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

    def check(self, epochs: int, metric: str) -> None:
        """Raise SpecError unless it fits a run."""
        if self.min_epochs * self.reduction_factor > epochs:
            raise SpecError(
                f"Hyperband: min_epochs = {self.min_epochs} times reduction_factor = {self.reduction_factor} must be "
                f"at most the epochs of the run, which are {epochs}: no bracket has a rung; give more epochs, or "
                "smaller numbers"
            )

    def judge(self, course: Course) -> Judge:
        """Return what decides for it."""
        counts, epochs = zip(*self.brackets(course.epochs), strict=True)

        def bracket(kind: int) -> Bracket:
            return Bracket(f"bracket {kind + 1}, ", [n * course.partitions for n in epochs[kind]], course.steps)

        if self.sync:
            return Cohorts(counts, bracket, *halving(self.reduction_factor))
        brackets = [(count, bracket(kind)) for kind, count in enumerate(counts)]
        return Halving(brackets, self.reduction_factor, promote=True)
