"""Which States must still become durable, and until when.

The State at the end of an epoch is stored always, so its `Durable` must come. A slot that owes such a State and stores
nothing at all for `durable_timeout`, though it lives, is of no use. Each `Durable` of a slot begins its time anew: one
that stores many States slowly, one after the other, is not late. While the store is away nobody is late; but a
slot that alone cannot reach it is, `durable_timeout` after another stored a State. Time is not read here: it arrives
with the events.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from hopyard.spec import Ref


class _Owing:
    """What one slot owes. Its times are seconds in which it could reach the store: the wall's less those `apart`."""

    __slots__ = ("alone", "apart", "since", "states", "stored")

    def __init__(self) -> None:
        self.states: dict[Ref, tuple[float, float]] = {}
        """State → (when it was made, how many times the timeout it may take), the oldest first."""
        self.stored = -math.inf
        """When it last stored any State."""
        self.since: float | None = None
        """Since when, by the wall, it cannot reach the store."""
        self.alone: float | None = None
        """Since when another slot is known to reach it meanwhile."""
        self.apart = 0.0
        """Seconds before that in which it could not."""

    def own(self, at: float) -> float:
        """The slot's time at this time of the wall."""
        return (at if self.since is None else self.since) - self.apart

    def late(self, timeout: float) -> float:
        """From when on, by the wall, it is late; infinite: it owes nothing, or nobody reaches the store."""
        if not self.states:
            return math.inf
        made, times = next(iter(self.states.values()))
        if self.since is not None:
            return math.inf if self.alone is None else self.alone + times * timeout
        return max(made, self.stored) + times * timeout + self.apart


class Durability:
    """The States that are awaited. Owner: `Machine`.

    Each change costs O(log slots), amortized; `gone` and `expired` cost O(n) for what the slots owe.

    Args:
        timeout: seconds in which a slot that owes a State must store one, while it reaches the store.
    """

    __slots__ = ("_away", "_makers", "_queue", "_queued", "_slots", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._makers: dict[Ref, int] = {}
        """Awaited State → the slot that has it."""
        self._slots: dict[int, _Owing] = {}
        self._away: set[int] = set()
        """Slots that cannot reach the store."""
        self._queue: list[tuple[float, int]] = []
        """(when it is late, slot). Most slots get more time before theirs is over: their entries are put off when they
        come up."""
        self._queued: dict[int, float] = {}
        """Slot → its entry that counts."""

    def __len__(self) -> int:
        return len(self._makers)

    def made(self, ref: Ref, slot: int, at: float, times: float = 1.0) -> None:
        """The slot has made a State that it is to store; it may take so many times the timeout."""
        owing = self._owing(slot)
        self._makers[ref] = slot
        owing.states[ref] = owing.own(at), times
        self._look(slot, owing)

    def stored(self, slot: int, at: float) -> None:
        """The slot has stored some State, awaited or not: the store is there, also for those that do not reach it."""
        owing = self._slots.get(slot)
        if owing is not None:
            owing.stored = owing.own(at)
        for other in self._away:
            owing = self._slots[other]
            if other != slot and owing.alone is None:
                owing.alone = at
                self._look(other, owing)

    def settled(self, ref: Ref) -> None:
        """The State is durable, or nobody needs it."""
        slot = self._makers.pop(ref, None)
        if slot is not None:
            owing = self._slots[slot]
            del owing.states[ref]
            self._look(slot, owing)

    def gone(self, slot: int) -> None:
        """The slot is not there any longer, nor what it was to store."""
        owing = self._slots.pop(slot, None)
        self._away.discard(slot)
        for ref in () if owing is None else owing.states:
            del self._makers[ref]

    def away(self, slot: int, at: float) -> None:
        """The slot cannot reach the store: it is not late before it can, or others do."""
        owing = self._owing(slot)
        if owing.since is None:
            owing.since = at
            for other in self._away:  # what was stored last may have been so before the store went away
                self._slots[other].alone = None
            self._away.add(slot)

    def back(self, slot: int, at: float) -> None:
        """The slot reaches the store again: it has as much time as it had left."""
        owing = self._owing(slot)
        if owing.since is not None:
            owing.apart += at - owing.since
            owing.since = owing.alone = None
            self._away.discard(slot)
            self._look(slot, owing)

    def oldest(self, slot: int) -> Ref | None:
        """The awaited State that the slot has had for the longest time."""
        owing = self._slots.get(slot)
        return None if owing is None else next(iter(owing.states), None)

    def times(self, ref: Ref) -> float:
        """How many times the timeout an awaited State may take."""
        return self._slots[self._makers[ref]].states[ref][1]

    def earliest(self) -> float | None:
        """When the next slot is late; None: none can be. Amortized O(log slots)."""
        queue, queued = self._queue, self._queued
        while queue:
            when, slot = queue[0]
            owing = self._slots.get(slot)
            late = math.inf if owing is None else owing.late(self._timeout)
            counts = queued.get(slot) == when
            if counts and late == when:
                return when
            heappop(queue)
            if counts:
                del queued[slot]
                if late < math.inf:
                    queued[slot] = late
                    heappush(queue, (late, slot))
        return None

    def expired(self, at: float) -> list[tuple[int, Ref]]:
        """(slot, the State that it has owed for the longest time) of all slots that are late at this time, in order of
        their deadlines."""
        late = sorted((owing.late(self._timeout), slot) for slot, owing in self._slots.items())
        return [(slot, next(iter(self._slots[slot].states))) for until, slot in late if until <= at]

    def awaited(self) -> dict[str, tuple[int, float]]:
        """State → (slot, when that slot is late with it). For tests."""
        return {
            str(ref): (slot, max(made, owing.stored) + times * self._timeout + owing.apart)
            for slot, owing in self._slots.items()
            for ref, (made, times) in owing.states.items()
        }

    def _owing(self, slot: int) -> _Owing:
        return self._slots.setdefault(slot, _Owing())

    def _look(self, slot: int, owing: _Owing) -> None:
        """The slot may be late sooner than it was."""
        late = owing.late(self._timeout)
        if late < self._queued.get(slot, math.inf):
            self._queued[slot] = late
            heappush(self._queue, (late, slot))
