"""Leases: who works on what, since when, and until when an answer counts.

A unit that is given out gets a lease, a number that is never used again. An answer counts only while its lease
stands; whatever else arrives (the slot was slow, stopped, thought dead, replaced) is fenced off by its number.
Time is not read here: it arrives with the events.
"""

from __future__ import annotations

from heapq import heappop, heappush

from hopyard.spec import Unit


class Leases:
    """The table of standing leases. Owner: `Machine`."""

    __slots__ = ("_deadlines", "_standing", "last")

    def __init__(self) -> None:
        self.last = 0
        self._standing: dict[int, tuple[int, Unit]] = {}
        self._deadlines: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._standing)

    def grant(self, slot: int, unit: Unit, deadline: float) -> None:
        """`slot` works on `unit` (which carries the lease's number) until `deadline`, seconds since the epoch."""
        self.last = unit.lease
        self._standing[unit.lease] = slot, unit
        heappush(self._deadlines, (deadline, unit.lease))

    def accept(self, slot: int, lease: int) -> Unit | None:
        """Ends a lease. None when it does not stand or belongs to another slot: the answer came too late."""
        held = self._standing.get(lease)
        if held is None or held[0] != slot:
            return None
        del self._standing[lease]
        return held[1]

    def revoke(self, lease: int) -> Unit | None:
        """Ends a lease from this side: an answer to it will not count."""
        held = self._standing.pop(lease, None)
        return held[1] if held else None

    def earliest(self) -> float | None:
        """The next deadline; None when there is none."""
        while self._deadlines and self._deadlines[0][1] not in self._standing:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, at: float) -> list[tuple[int, int]]:
        """(slot, lease) of those whose deadline has passed at `at`, in order of their deadlines. They still stand."""
        late = []
        again = []
        while (first := self.earliest()) is not None and first <= at:
            entry = heappop(self._deadlines)
            again.append(entry)
            late.append((self._standing[entry[1]][0], entry[1]))
        for entry in again:
            heappush(self._deadlines, entry)
        return late

    def standing(self) -> dict[int, tuple[int, Unit]]:
        """Lease → (slot, unit)."""
        return dict(self._standing)
