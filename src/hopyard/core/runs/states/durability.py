"""The States that must still become durable, and the deadlines of the slots that owe them.

The State at the end of an epoch is always stored, so its maker owes a `Durable`. A slot is *late* if it owes a State
and has stored none for `durable_timeout`. Each `Durable` and each `StoreBack` of a slot restarts this timeout. It is
suspended while the slot reports that the store is away. If another slot stores States at the beginning and at the end
of a whole `durable_timeout` in that time, the fault is the slot's own, and it is late. No clock is read here: time
arrives with the events.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hopyard.core.runs.leases import Deadlines
from hopyard.spec import Ref

CUT_OFF = 150.0
"""Minimum of seconds for which a slot alone fails to reach the store before it is late: it retries once a minute."""


@dataclass(slots=True)
class _Owing:
    """The States that one slot owes."""

    states: dict[Ref, float] = field(default_factory=dict)
    """State → when it was made, the oldest first."""
    stored: float = -math.inf
    """When it last stored any State, or reached the store again."""
    away: float | None = None
    """When it last lost the store; None: it reaches the store."""
    alone: float | None = None
    """When another slot first stored a State after `away`; None: none did."""


class Durability:
    """The awaited States and the slots that owe them. Owner: `Machine`.

    `earliest` costs amortized O(log n), `stored` O(slots without the store), `gone` O(States that the slot owes).

    Args:
        timeout: seconds in which a slot that owes a State and reaches the store must store one.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._makers: dict[Ref, int] = {}
        """Awaited State → the slot that owes it."""
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
        self._update(slot, owing)

    def stored(self, slot: int, at: float) -> None:
        """Record that the slot stored a State, awaited or not. The store is up, so slots that do not reach it may be
        late."""
        if (owing := self._slots.get(slot)) is not None:
            owing.stored = at
            self._update(slot, owing)
        for number, other in self._away.items():
            if number == slot or at <= (other.away or 0.0):
                continue
            if other.alone is None:
                other.alone = at
            oldest = next(iter(other.states.values()), math.inf)
            if at - max(other.alone, oldest) >= max(self._timeout, CUT_OFF):
                self._late[number] = self._late.get(number, at)

    def settled(self, ref: Ref) -> None:
        """Stop awaiting a State, which is durable or no longer needed."""
        if (slot := self._makers.pop(ref, None)) is not None:
            owing = self._slots[slot]
            del owing.states[ref]
            self._update(slot, owing)

    def gone(self, slot: int) -> None:
        """Remove a lost slot and the States that it owes."""
        owing = self._slots.pop(slot, None)
        self._away.pop(slot, None)
        self._late.pop(slot, None)
        for ref in () if owing is None else owing.states:
            del self._makers[ref]

    def away(self, slot: int, at: float) -> None:
        """Record that the slot cannot reach the store, and suspend its deadline."""
        owing = self._away[slot] = self._slots.setdefault(slot, _Owing())
        if owing.away is None:
            owing.away = at
            self._late.pop(slot, None)

    def back(self, slot: int, at: float) -> None:
        """Record that the slot reaches the store again, and restart its timeout."""
        if (owing := self._away.pop(slot, None)) is not None:
            owing.stored, owing.away, owing.alone = at, None, None
            self._update(slot, owing)

    def oldest(self, slot: int) -> Ref | None:
        """Return the State that the slot has owed for the longest time."""
        owing = self._slots.get(slot)
        return None if owing is None else next(iter(owing.states), None)

    def earliest(self) -> float | None:
        """Return the time at which the next slot is late; None: there is no deadline."""
        return self._late.earliest()

    def expired(self, at: float) -> list[tuple[int, Ref]]:
        """Return (slot, oldest State that it owes) for all slots that are late at this time, by deadline."""
        return [(slot, next(iter(self._slots[slot].states))) for slot in self._late.due(at)]

    def _update(self, slot: int, owing: _Owing) -> None:
        """Update the slot's deadline."""
        if not owing.states:
            self._late.pop(slot, None)
        elif owing.away is None:
            self._late[slot] = max(next(iter(owing.states.values())), owing.stored) + self._timeout
