"""Work that waits for a slot, keyed by the block of its next partition (`homes`).

Entries are never searched for or removed in the middle; those that are out of date are dropped when they come up. Each
choice costs O(log n), and O(1) more for each block that a slot may work on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

from hopyard.core.runs.records import TrialRecord


class Waiting:
    """Trials that can train, the longest remaining time first, and validations, the oldest first. Owner: `Scheduler`.

    Args:
        trials: the machine's, by number.

    Attributes:
        heaps: block → (−remaining seconds, trial, its queue version) of trials that may wait.
        validations: block → (number of the entry, trial, epoch) of those with partitions of the block to be validated.
    """

    def __init__(self, trials: dict[int, TrialRecord]) -> None:
        self._trials = trials
        self.heaps: dict[int, list[tuple[float, int, int]]] = {}
        self.validations: dict[int, deque[tuple[int, int, int]]] = {}
        self._count = 0

    def clear(self) -> None:
        """Drop all."""
        self.heaps.clear()
        self.validations.clear()

    def add(self, trial: TrialRecord, block: int) -> None:
        """Add a trial whose next partition is in this block."""
        heappush(self.heaps.setdefault(block, []), (-trial.remaining, trial.id, trial.queue_version))

    def longest(self, blocks: Iterable[int]) -> TrialRecord | None:
        """Return the trial with the longest remaining time in these blocks. It stays here until it is dispatched."""
        best: tuple[float, int, int] | None = None
        for block in blocks:
            heap = self.heaps.get(block)
            while heap:
                entry = heap[0]
                if self._trials[entry[1]].queue_version == entry[2]:
                    if best is None or entry < best:
                        best = entry
                    break
                heappop(heap)
            if not heap:
                self.heaps.pop(block, None)
        return None if best is None else self._trials[best[1]]

    def add_validation(self, trial: int, epoch: int, blocks: Iterable[int]) -> None:
        """Add the validation of an epoch, with partitions in these blocks."""
        self._count += 1
        for block in blocks:
            self.validations.setdefault(block, deque()).append((self._count, trial, epoch))

    def oldest(self, blocks: Iterable[int], waits: Callable[[int, int, int], bool]) -> tuple[int, int] | None:
        """Return (trial, epoch) of the oldest validation in these blocks; `waits` tells of (trial, epoch, block)
        whether it still does."""
        best: tuple[int, int, int] | None = None
        for block in blocks:
            queue = self.validations.get(block)
            while queue:
                entry = queue[0]
                if waits(entry[1], entry[2], block):
                    best = entry if best is None or entry < best else best
                    break
                queue.popleft()
            if not queue:
                self.validations.pop(block, None)
        return None if best is None else best[1:]
