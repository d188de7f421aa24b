"""Which ready unit goes to which idle slot.

Slots that hold the same partitions share a Pool. A trial that can train waits in the heap of every pool that holds
its next partition, longest remaining time first; validations wait in the pool's queue. An idle slot takes

1. a fold (milliseconds, and it ends an epoch),
2. the validation of the State that it has in memory,
3. the trial that it has in memory,
   unless a waiting trial is *critical*: its remaining time exceeds an even share of all that is left, so that it
   alone would decide when the run ends,
4. another trial's validation, oldest first,
5. the waiting trial with the longest remaining time.

Entries are never searched for or removed in the middle; those that went stale are dropped when they come up. Each
choice costs O(log n).

Source: 5 is longest-processing-time-first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math.
17(2), 1969, §3), applied to what remains; the exception in 3 is McNaughton's bound max(longest, total / slots)
("Scheduling with Deadlines and Loss Functions", Management Science 6(1), 1959), without which two slots would end
three equal trials after 2 lengths instead of 1.5.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from hopyard.core.books import SlotBook, TrialBook

SHARES = 4
"""A group of units is at most this part of a slot's even share of what is left, so that slots end together."""


class Pool:
    """What waits for the slots that hold the same partitions. Owner: `Machine`."""

    __slots__ = ("checks", "heap", "holds", "idle", "slots")

    def __init__(self, holds: tuple[int, ...] | None) -> None:
        self.holds = None if holds is None else frozenset(holds)
        self.idle: dict[int, None] = {}
        self.slots = 0
        self.heap: list[tuple[float, int, int]] = []
        """(−remaining seconds, trial, stamp)."""
        self.checks: deque[tuple[int, int]] = deque()
        """(trial, epoch) with validation partitions to be given out."""

    def offer(self, trial: TrialBook) -> None:
        """The trial can train on a partition that this pool holds."""
        heappush(self.heap, (-trial.remaining, trial.id, trial.stamp))

    def longest(self, trials: dict[int, TrialBook]) -> TrialBook | None:
        """The waiting trial with the longest remaining time. It stays in the heap until it is dispatched."""
        heap = self.heap
        while heap:
            _, number, stamp = heap[0]
            trial = trials[number]
            if trial.stamp == stamp:
                return trial
            heappop(heap)
        return None

    def check(self, trials: dict[int, TrialBook]) -> tuple[TrialBook, int] | None:
        """The oldest validation with a partition that this pool holds."""
        checks = self.checks
        while checks:
            number, epoch = checks[0]
            trial = trials[number]
            if self.leftover(trial, epoch):
                return trial, epoch
            checks.popleft()
        return None

    def leftover(self, trial: TrialBook, epoch: int) -> list[int]:
        """The validation partitions of this epoch that are to be given out and that this pool holds, sorted."""
        book = trial.epochs.get(epoch)
        if trial.ended or book is None or not book.left:
            return []
        return sorted(book.left if self.holds is None else book.left & self.holds)

    def serves(self, partition: int) -> bool:
        """Whether the pool's slots hold this partition."""
        return self.holds is None or partition in self.holds


def critical(waiting: TrialBook | None, mine: TrialBook, total: float, slots: int) -> bool:
    """Whether `waiting` must run before `mine` goes on: it is longer than an even share of all the work left."""
    return waiting is not None and waiting.remaining > mine.remaining and waiting.remaining * slots > total


def span(
    pool: Pool, trial: TrialBook, partitions: int, group: int, seconds: float, total: float, slots: int
) -> tuple[int, ...]:
    """The consecutive partitions that a training unit covers: at least one, of one epoch, all held by the pool.

    Args:
        pool: of the slot that takes it; it holds the first partition.
        trial: whose unit it is.
        partitions: P.
        group: a fixed number; 0: by `seconds`.
        seconds: of work that a unit may be long; 0: one partition.
        total: seconds of work left in all trials.
        slots: how many share it.
    """
    first = trial.id + trial.step
    most = partitions - trial.step % partitions
    if group:
        most = min(most, group)
    elif trial.seconds <= 0 or seconds <= 0:
        most = 1
    else:
        most = min(most, max(1, int(min(seconds, total / (SHARES * slots)) / trial.seconds)))
    if pool.holds is None:
        return tuple([(first + n) % partitions for n in range(most)])
    taken = [first % partitions]
    while len(taken) < most and (first + len(taken)) % partitions in pool.holds:
        taken.append((first + len(taken)) % partitions)
    return tuple(taken)


def share(left: list[int], each: float, group: int, seconds: float) -> tuple[int, ...]:
    """How much of a validation one unit takes: `left` partitions of about `each` seconds; 0 when that is not known."""
    if group:
        return tuple(left[:group])
    if each <= 0 or seconds <= 0:
        return tuple(left[:1])
    return tuple(left[: max(1, int(seconds / each))])


def idle_for(pools: list[Pool], trial: TrialBook, slots: dict[int, SlotBook], memory: int) -> SlotBook | None:
    """The idle slot that a ready trial goes to: the one that has it in memory, else the first of the first pool."""
    if memory in slots and slots[memory].trial == trial.id:
        for pool in pools:
            if memory in pool.idle:
                return slots[memory]
    for pool in pools:
        for number in pool.idle:
            return slots[number]
    return None
