"""Which States must still become durable, and until when.

The State at the end of an epoch is stored always, so its `Durable` must come. A slot that owes such a State and stores
nothing at all for `durable_timeout`, though it lives, is of no use. Each `Durable` of a slot begins its time anew: one
that stores many States slowly, one after the other, is not late. While the store is away no slot is late. But a slot
that cannot reach the store while another stores States, at the beginning and at the end of a whole `durable_timeout`,
is cut off alone, and late. Time is not read here: it arrives with the events.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from hopyard.spec import Ref

CUT_OFF = 150.0
"""Seconds, at least, for which a slot alone must have failed to reach the store: it tries again once a minute."""


class _Owing:
    """What one slot owes. Its own time is wall time less the seconds without access to the store (`apart`)."""

    __slots__ = ("alone", "apart", "cut", "since", "states", "stored")

    def __init__(self) -> None:
        self.states: dict[Ref, tuple[float, float, float]] = {}
        """State → (when it was made, in the slot's time; how many times the timeout it may take; when it was made, in
        wall time), the oldest first."""
        self.stored = -math.inf
        """When it last stored any State, in the slot's time."""
        self.since: float | None = None
        """Since when, in wall time, it cannot reach the store; None: it can."""
        self.alone: float | None = None
        """When another slot first stored a State after `since`; None: none did."""
        self.cut = math.inf
        """When it was certain that this slot alone cannot reach the store."""
        self.apart = 0.0
        """Seconds before `since` in which it could not reach the store."""

    def own(self, at: float) -> float:
        """Return the slot's time at this wall time."""
        return (at if self.since is None else self.since) - self.apart

    def late(self, timeout: float) -> float:
        """Return the wall time from which it is late; infinity: it owes nothing, or perhaps none reaches the store."""
        if not self.states:
            return math.inf
        if self.since is not None:
            return self.cut
        made_at, times, _ = next(iter(self.states.values()))
        return max(made_at, self.stored) + times * timeout + self.apart


class Durability:
    """The States that are awaited. Owner: `Machine`.

    Each change costs O(log slots), amortized; `gone` and `expired` cost O(n) for what the slots owe. `stored` looks at
    slots that have been cut off for as long as the timeout, too.

    Args:
        timeout: seconds in which a slot that owes a State must store one, while it reaches the store.
    """

    __slots__ = ("_alone", "_away", "_makers", "_queue", "_queued", "_slots", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._makers: dict[Ref, int] = {}
        """Awaited State → the slot that has it."""
        self._slots: dict[int, _Owing] = {}
        self._away: dict[int, _Owing] = {}
        """Slots that cannot reach the store, where no other is known to."""
        self._alone: dict[int, _Owing] = {}
        """Slots that cannot reach the store, where others do; in the order of `alone`."""
        self._queue: list[tuple[float, int]] = []
        """(when the slot is late, slot). Most slots get more time before theirs is over: their entries are put off when
        they come up."""
        self._queued: dict[int, float] = {}
        """Slot → its entry that counts."""

    def __len__(self) -> int:
        return len(self._makers)

    def expect(self, ref: Ref, slot: int, at: float, times: float = 1.0) -> None:
        """Await a State that the slot has made and must store; it may take so many times the timeout."""
        owing = self._owing(slot)
        self._makers[ref] = slot
        owing.states[ref] = owing.own(at), times, at
        self._look(slot, owing)

    def stored(self, slot: int, at: float) -> None:
        """Record that the slot stored a State, awaited or not: the store is up, also for slots that do not reach it."""
        owing = self._slots.get(slot)
        if owing is not None:
            owing.stored = owing.own(at)
        if not self._away and not self._alone:
            return
        for other_slot in [
            other_slot for other_slot, owing in self._away.items() if other_slot != slot and at > (owing.since or 0.0)
        ]:
            self._alone[other_slot] = owing = self._away.pop(other_slot)
            owing.alone = at
        for other_slot, owing in self._alone.items():
            assert owing.alone is not None
            if at - owing.alone < max(self._timeout, CUT_OFF):
                break
            if other_slot != slot and owing.states and owing.cut == math.inf:
                _, times, made_at = next(iter(owing.states.values()))
                if at - max(owing.alone, made_at) >= max(times * self._timeout, CUT_OFF):
                    owing.cut = at
                    self._look(other_slot, owing)

    def settled(self, ref: Ref) -> None:
        """Stop awaiting a State: it is durable, or nobody needs it."""
        slot = self._makers.pop(ref, None)
        if slot is not None:
            owing = self._slots[slot]
            del owing.states[ref]
            self._look(slot, owing)

    def gone(self, slot: int) -> None:
        """Remove a slot, which is gone, and the States that it was to store."""
        owing = self._slots.pop(slot, None)
        self._away.pop(slot, None)
        self._alone.pop(slot, None)
        for ref in () if owing is None else owing.states:
            del self._makers[ref]

    def away(self, slot: int, at: float) -> None:
        """Record that the slot cannot reach the store: it is not late before it can, or others do."""
        owing = self._owing(slot)
        if owing.since is None:
            owing.since = at
            self._away[slot] = owing

    def back(self, slot: int, at: float) -> None:
        """Record that the slot reaches the store again: it has as much time as it had left."""
        owing = self._owing(slot)
        if owing.since is not None:
            owing.apart += at - owing.since
            owing.since, owing.alone, owing.cut = None, None, math.inf
            self._away.pop(slot, None)
            self._alone.pop(slot, None)
            self._look(slot, owing)

    def oldest(self, slot: int) -> Ref | None:
        """Return the awaited State that the slot has had for the longest time."""
        owing = self._slots.get(slot)
        return None if owing is None else next(iter(owing.states), None)

    def times(self, ref: Ref) -> float:
        """Return how many times the timeout an awaited State may take."""
        return self._slots[self._makers[ref]].states[ref][1]

    def earliest(self) -> float | None:
        """Return when the next slot is late; None: none can be. Amortized O(log slots)."""
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
        """Return (slot, the State that it has owed for the longest time) for all slots that are late at this time, in
        order of their deadlines."""
        late = sorted((owing.late(self._timeout), slot) for slot, owing in self._slots.items())
        return [(slot, next(iter(self._slots[slot].states))) for until, slot in late if until <= at]

    def awaited(self) -> dict[str, tuple[int, float]]:
        """State → (slot, when that slot is late with it). For tests."""
        return {
            str(ref): (slot, max(made_at, owing.stored) + times * self._timeout + owing.apart)
            for slot, owing in self._slots.items()
            for ref, (made_at, times, _) in owing.states.items()
        }

    def _owing(self, slot: int) -> _Owing:
        return self._slots.setdefault(slot, _Owing())

    def _look(self, slot: int, owing: _Owing) -> None:
        """Queue the slot, if it is late sooner than its entry says."""
        late = owing.late(self._timeout)
        if late < self._queued.get(slot, math.inf):
            self._queued[slot] = late
            heappush(self._queue, (late, slot))
