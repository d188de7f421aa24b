"""Local SGD without a framework: rounds of steps that a member of a gang takes by itself, and what follows them.

At a round's end p ← mean(p), weighted by the rows of the round, or start + mean(p − start) where changes travel
compressed, or a step of an outer optimizer along that mean. Equal numbers stay as they are to the bit. Arrays are
NumPy's or torch's.

Source: Moritz et al., "SparkNet", ICLR 2016, algorithm 1; Douillard et al., "DiLoCo", arXiv:2311.08105, algorithm 1,
with the mean change in place of its negative, the outer gradient; Lin et al., "Don't Use Large Mini-Batches, Use Local
SGD", ICLR 2020, §3 (post-local SGD: the first steps are rounds of one step, and without an outer optimizer).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hopyard.ports.states import Tree
from hopyard.ports.training import Exchange


class Rounds:
    """The rounds of one member. Owner of the outer optimizer's momentum, and of what rounding has taken."""

    def __init__(self) -> None:
        self.exchange: Exchange | None = None
        self.others: list[Tree] = []
        """What the other members have of their own, by rank, on rank 0 at a unit's end."""
        self.error: list[Any] | None = None
        """What rounding has taken from this member's changes so far, where they travel compressed; None: nothing."""
        self.rows = 0.0
        """Rows that this member has seen in the round."""
        self._trained = 0
        """Steps since the training began, of all members."""
        self._velocity: list[Any] | None = None
        self._start: list[Any] = []
        """The parameters at the round's beginning, where changes are exchanged; else nothing."""
        self._steps = 0
        """Steps of the round so far, of all members, whether they had rows or not."""
        self._warm = False
        """Whether the round belongs to the first steps, each of which is a round."""

    @property
    def averages(self) -> bool:
        """Whether the members exchange parameters, not gradients."""
        return self.exchange is not None and self.exchange.size > 1 and self.exchange.gang.exchange == "parameters"

    @property
    def left(self) -> int:
        """Steps until the round ends."""
        assert self.exchange is not None
        return (1 if self._warm else self.exchange.gang.every) - self._steps

    @property
    def begun(self) -> bool:
        """Whether a step was taken in the round."""
        return self._steps > 0

    def begin(self, copies: Callable[[], list[Any]] | None = None) -> None:
        """Begin a round. `copies` returns copies of the parameters; None: they are what `mean` has made."""
        if copies is not None:
            gang = None if self.exchange is None else self.exchange.gang
            self._start = copies() if gang is not None and (gang.outer or gang.compress) else []
        self._steps, self.rows = 0, 0.0
        self._warm = self.exchange is not None and self._trained < self.exchange.gang.warmup

    def add(self, rows: float, steps: int = 1) -> None:
        """Count steps, which this member took with so many rows."""
        self._steps += steps
        self._trained += steps
        self.rows += rows

    def mean(self, now: Sequence[Any]) -> None:
        """End a round: replace what this member has made of the parameters, in place, by those with which all members
        go on."""
        exchange = self.exchange
        assert exchange is not None
        outer = None if self._warm else exchange.gang.outer
        if outer is None and not exchange.gang.compress:
            exchange.average(now, self.rows)
            for start, value in zip(self._start, now, strict=bool(self._start)):
                start[...] = value
            return
        changes = _difference(now, self._start)
        if exchange.gang.compress:
            changes = self._rounded(changes)
        if not exchange.mean(changes, self.rows):
            changes = []
        elif outer is not None:
            before, momentum = self._velocity, outer.momentum
            self._velocity = changes
            if before is not None:
                self._velocity = [momentum * each + change for each, change in zip(before, changes, strict=True)]
            pairs = zip(changes, self._velocity, strict=True)
            changes = [outer.lr * (change + momentum * velocity) for change, velocity in pairs]
        for start, change in zip(self._start, changes, strict=bool(changes)):
            start[...] += change
        for value, start in zip(now, self._start, strict=True):
            value[...] = start

    def _rounded(self, changes: list[Any]) -> list[Any]:
        """Return the changes as they travel, and keep what rounding takes from them for the next round."""
        assert self.exchange is not None
        if self.error is not None:
            changes = [change + error for change, error in zip(changes, self.error, strict=True)]
        if not self.rows:  # then the others do not count what this member sends
            self.error = changes
            return [change * 0 for change in changes]
        sent = [self.exchange.rounded(change) for change in changes]
        self.error = _difference(changes, sent)
        return sent

    def state(self) -> Tree:
        """Return what the State of a model has for its gang; None: nothing."""
        if not self.averages:
            return None
        return {"outer": self._velocity, "error": self.error, "steps": self._trained, "others": self.others}

    def load(self, tree: Tree, copy: Callable[[list[Any]], list[Any]]) -> Tree:
        """Take what the State of a model has for its gang.

        Args:
            tree: what `state` returned.
            copy: returns copies of arrays that are like the parameters.

        Returns:
            What this member has of its own; None: what rank 0 has, which is the model's. It is that for all where the
            State is of a gang with fewer members; where it had more, what the last ones had is dropped.
        """
        self.others = []
        rank, size = (0, 1) if self.exchange is None else (self.exchange.rank, self.exchange.size)
        own = error = None
        if tree is not None and rank == 0:
            error = tree["error"]
        elif tree is not None and len(tree["others"]) >= size - 1:
            own = tree["others"][rank - 1]
            error = own["error"]
        self.error = None if error is None else copy(error)
        self._trained = 0 if tree is None else tree["steps"]
        self._velocity = None if tree is None or tree["outer"] is None else copy(tree["outer"])
        return own


def _difference(one: Sequence[Any], other: Sequence[Any]) -> list[Any]:
    return [a - b for a, b in zip(one, other, strict=True)]
