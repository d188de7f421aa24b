"""Which States must still become durable, and until when.

The State at the end of an epoch is stored always, so its `Durable` must come. A slot that owes such a State and stores
nothing at all for `durable_timeout`, though it lives, is of no use. Each `Durable` of a slot begins its time anew, and
so does its `StoreBack`. While the store is away no slot is late. But a slot that cannot reach the store while another
stores States, at the beginning and at the end of a whole `durable_timeout`, is cut off alone, and late. Time is not
read here: it arrives with the events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hopyard.core.runs.leases import Deadlines
from hopyard.spec import Ref

CUT_OFF = 150.0
"""Seconds, at least, for which a slot alone must have failed to reach the store: it tries again once a minute."""


@dataclass(slots=True)
class _Owing:
    """The States that one slot must still store."""

    states: dict[Ref, float] = field(default_factory=dict)
    """State → when it was made, the oldest first."""
    stored: float = -math.inf
    """When it last stored any State, or reached the store again."""
    away: float | None = None
    """Since when it cannot reach the store; None: it can."""
    alone: float | None = None
    """When another slot first stored a State after `away`; None: none did."""


class Durability:
    """The States that are awaited. Owner: `Machine`.

    `earliest` costs amortized O(log n), `stored` O(slots that are away), `gone` O(n) for what the slot owes.

    Args:
        timeout: seconds in which a slot that owes a State must store one, while it reaches the store.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._makers: dict[Ref, int] = {}
        """Awaited State → the slot that has it."""
        self._slots: dict[int, _Owing] = {}
        self._away: dict[int, _Owing] = {}
        """Slots that cannot reach the store."""
        self._late = Deadlines()
        """Slot → when it is late."""

    def __len__(self) -> int:
        return len(self._makers)

    def expect(self, ref: Ref, slot: int, at: float) -> None:
        """Await a State that the slot has made and must store."""
        owing = self._slots.setdefault(slot, _Owing())
        self._makers[ref] = slot
        owing.states[ref] = at
        self._look(slot, owing)

    def stored(self, slot: int, at: float) -> None:
        """Record that the slot stored a State, awaited or not: the store is up, also for slots that do not reach it."""
        if (owing := self._slots.get(slot)) is not None:
            owing.stored = at
            self._look(slot, owing)
        for number, other in self._away.items():
            if number == slot or at <= (other.away or 0.0):
                continue
            if other.alone is None:
                other.alone = at
            oldest = next(iter(other.states.values()), math.inf)
            if at - max(other.alone, oldest) >= max(self._timeout, CUT_OFF):
                self._late[number] = self._late.get(number, at)

    def settled(self, ref: Ref) -> None:
        """Stop awaiting a State: it is durable, or nobody needs it."""
        if (slot := self._makers.pop(ref, None)) is not None:
            owing = self._slots[slot]
            del owing.states[ref]
            self._look(slot, owing)

    def gone(self, slot: int) -> None:
        """Remove a slot, which is gone, and the States that it was to store."""
        owing = self._slots.pop(slot, None)
        self._away.pop(slot, None)
        self._late.pop(slot, None)
        for ref in () if owing is None else owing.states:
            del self._makers[ref]

    def away(self, slot: int, at: float) -> None:
        """Record that the slot cannot reach the store: it is not late before it can, or others do."""
        owing = self._away[slot] = self._slots.setdefault(slot, _Owing())
        if owing.away is None:
            owing.away = at
            self._late.pop(slot, None)

    def back(self, slot: int, at: float) -> None:
        """Record that the slot reaches the store again: its time begins anew."""
        if (owing := self._away.pop(slot, None)) is not None:
            owing.stored, owing.away, owing.alone = at, None, None
            self._look(slot, owing)

    def oldest(self, slot: int) -> Ref | None:
        """Return the awaited State that the slot has had for the longest time."""
        owing = self._slots.get(slot)
        return None if owing is None else next(iter(owing.states), None)

    def earliest(self) -> float | None:
        """Return when the next slot is late; None: none can be."""
        return self._late.earliest()

    def expired(self, at: float) -> list[tuple[int, Ref]]:
        """Return (slot, the State that it has owed for the longest time) for all slots that are late at this time, in
        order of their deadlines."""
        return [(slot, next(iter(self._slots[slot].states))) for slot in self._late.due(at)]

    def _look(self, slot: int, owing: _Owing) -> None:
        """Note when the slot is late, as what it owes has changed."""
        if not owing.states:
            self._late.pop(slot, None)
        elif owing.away is None:
            self._late[slot] = max(next(iter(owing.states.values())), owing.stored) + self._timeout
