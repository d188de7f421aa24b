"""How many batches one worker may give out of a feed whose workers end together: no clock, no lock, no I/O.

Each worker tells the driver how many batches it has; the driver tells all how far they may go (`core.programs.uneven`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hopyard.core.programs.uneven import Count, Uneven


class Arrived(NamedTuple):
    """What has come of a feed.

    Attributes:
        rows: that came, given out or not.
        ended: whether no more come.
        unwanted: whether the program takes no more.
    """

    rows: int
    ended: bool
    unwanted: bool


class Pacing:
    """Owner of what one worker asked for, told and was allowed. Not for several threads at a time.

    Attributes:
        uneven: the rule by which the feed ends; None: not known before the driver or a task has said it.
        allowed: how many batches may be given out, and whether no more ever.
    """

    __slots__ = ("_given", "_size", "_told", "allowed", "uneven")

    def __init__(self, uneven: Uneven | None = None) -> None:
        self.uneven = uneven
        self.allowed = Count(0, False)
        self._size = 0
        """Rows of a batch; 0: the program has not asked for one."""
        self._given = 0
        """Batches that were given out."""
        self._told: Count | None = None

    @property
    def together(self) -> bool:
        """Whether workers end together, as far as is known."""
        return self.uneven not in (None, "join")

    def ask(self, batch: int, size: int) -> None:
        """The program wants batch number `batch`, of `size` rows."""
        self._given, self._size = batch, size

    def give(self, batch: int) -> None:
        """It gets it."""
        self._given = batch + 1

    def turn(self, batch: int, arrived: Arrived) -> Literal["give", "again", "end"] | None:
        """Whether a batch may be given out; None: not known yet.

        "give": its rows are here, or will come. "again": no more come, others go on: rows that were there before.
        "end": no more batches.
        """
        if arrived.unwanted:
            return "end"
        if self.uneven == "repeat" and batch < self._count(arrived).batches:
            return "give"
        if batch < self.allowed.batches:
            if self.uneven != "repeat":
                return "give"
            return "again" if arrived.ended else None
        return "end" if self.allowed.ended else None

    def news(self, arrived: Arrived) -> Count | None:
        """What the driver is to be told now: how many batches are here. None: nothing that it does not know, or nobody
        can say yet how many batches the rows are."""
        if not (self._size or arrived.unwanted or (arrived.ended and not arrived.rows)):
            return None
        count = self._count(arrived)
        if count == self._told:
            return None
        self._told = count
        return count

    def _count(self, arrived: Arrived) -> Count:
        """Batches that came, given out or not; once the program takes no more, those that it took."""
        if arrived.unwanted:
            return Count(self._given, True)
        if not self._size:
            return Count(0, arrived.ended)
        full, rest = divmod(arrived.rows, self._size)
        return Count(full + bool(rest and arrived.ended), arrived.ended)
