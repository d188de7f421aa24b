"""How many batches one worker may give out of a feed whose workers end together: no clock, no lock, no I/O.

Each worker tells the driver how many batches it has; the driver tells all how far they may go
(`core.programs.feed_progress`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hopyard.core.programs.feed_progress import Count, Uneven


class Arrived(NamedTuple):
    """What one worker has received of a feed.

    Attributes:
        rows: number of rows received, given out or not.
        ended: whether no more come.
        unwanted: whether the program takes no more.
    """

    rows: int
    ended: bool
    unwanted: bool


class Pacing:
    """Owner of what one worker asked for, reported and was allowed. Not for several threads at a time.

    Attributes:
        uneven: the rule by which the feed ends; None: not known before the driver or a task has sent it.
        allowed: how many batches may be given out, and whether that is final.
    """

    __slots__ = ("_batches", "_reported", "_size", "allowed", "uneven")

    def __init__(self, uneven: Uneven | None = None) -> None:
        self.uneven = uneven
        self.allowed = Count(0, False)
        self._size = 0
        """Rows of a batch; 0: the program has not asked for one."""
        self._batches = 0
        """Number of batches that were given out."""
        self._reported: Count | None = None

    @property
    def together(self) -> bool:
        """Whether workers end together, as far as is known yet."""
        return self.uneven not in (None, "allow")

    def ask(self, batch: int, size: int) -> None:
        """Record that the program asks for batch number `batch`, of `size` rows."""
        self._batches, self._size = batch, size

    def give(self, batch: int) -> None:
        """Record that batch number `batch` was given out."""
        self._batches = batch + 1

    def turn(self, batch: int, arrived: Arrived) -> Literal["give", "again", "end"] | None:
        """Whether a batch may be given out; None: not known yet.

        "give": its rows are here, or will come. "again": no more rows come but other workers go on, so the worker
        repeats earlier rows. "end": there are no more batches.
        """
        if arrived.unwanted:
            return "end"
        if self.uneven == "cycle" and batch < self._count(arrived).batches:
            return "give"
        if batch < self.allowed.batches:
            if self.uneven != "cycle":
                return "give"
            return "again" if arrived.ended else None
        return "end" if self.allowed.ended else None

    def news(self, arrived: Arrived) -> Count | None:
        """Return the number of batches to report to the driver now. None: the driver knows it already, or it is not yet
        known how many batches the rows make."""
        if not (self._size or arrived.unwanted or (arrived.ended and not arrived.rows)):
            return None
        count = self._count(arrived)
        if count == self._reported:
            return None
        self._reported = count
        return count

    def _count(self, arrived: Arrived) -> Count:
        """Return how many batches came, given out or not; once the program takes no more, how many it took."""
        if arrived.unwanted:
            return Count(self._batches, True)
        if not self._size:
            return Count(0, arrived.ended)
        full, remainder = divmod(arrived.rows, self._size)
        return Count(full + bool(remainder and arrived.ended), arrived.ended)
