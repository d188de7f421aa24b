"""Leases: who works on what, since when, and until when an answer counts.

A unit that is given out gets a lease, a number that is never used again. An answer counts only while its lease
stands; whatever else arrives (the slot was slow, stopped, thought dead, replaced) is fenced off by its number.

Where the user has set `unit_timeout`, a unit has a deadline too. It belongs to the slot, not to the lease: a slot that
is busy with a unit which no longer counts is of no use either. Whether a slot makes progress is decided
elsewhere (`liveness`). Time is not read here: it arrives with the events.
"""

from __future__ import annotations

from heapq import heappop, heappush

from hopyard.core.runs.events import Dispatch
from hopyard.spec import Unit


class Deadlines(dict[int, float]):
    """Slot → the time that is due, in seconds since the epoch. A change costs O(log n), `earliest` the same amortized:
    entries that a later one replaced are dropped when they come up."""

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, int]] = []

    def __setitem__(self, slot: int, at: float) -> None:
        if self.get(slot) != at:
            super().__setitem__(slot, at)
            heappush(self._heap, (at, slot))

    def earliest(self) -> float | None:
        """Return the first time; None: there is none."""
        heap = self._heap
        while heap and self.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due(self, at: float) -> list[int]:
        """Return the slots that are due at this time, in order of their times."""
        first = self.earliest()
        if first is None or first > at:
            return []
        return [slot for _, slot in sorted((time, slot) for slot, time in self.items() if time <= at)]

    def clear(self) -> None:
        """Remove all."""
        super().clear()
        self._heap.clear()


class Leases:
    """The table of standing leases and of the slots that owe an answer. Owner: `Machine`."""

    __slots__ = ("_standing", "_until", "last")

    def __init__(self) -> None:
        self.last = 0
        self._standing: dict[int, Dispatch] = {}
        self._until = Deadlines()
        """Slot → the time by which it must answer."""

    def __len__(self) -> int:
        return len(self._standing)

    def grant(self, line: Dispatch, deadline: float | None = None) -> None:
        """Record that a slot works on a unit (which carries the lease's number), until `deadline` if there is one, in
        seconds since the epoch."""
        lease, slot = line.unit.lease, line.slot
        self.last = lease
        self._standing[lease] = line
        if deadline is None:
            self._until.pop(slot, None)
        else:
            self._until[slot] = deadline

    def answered(self, slot: int) -> None:
        """Record that the slot owes no answer: it gave one, or is gone."""
        self._until.pop(slot, None)

    def accept(self, slot: int, lease: int) -> Unit | None:
        """End a lease. Returns its unit; None: it does not stand or is another slot's, as the answer came too late."""
        dispatch = self._standing.get(lease)
        if dispatch is None or dispatch.slot != slot:
            return None
        del self._standing[lease]
        return dispatch.unit

    def since(self, lease: int) -> float | None:
        """Return when a unit was given out; None: its lease does not stand."""
        dispatch = self._standing.get(lease)
        return None if dispatch is None else dispatch.at

    def revoke(self, lease: int) -> Unit | None:
        """End a lease from this side: an answer to it will not count. The slot's deadline stays."""
        dispatch = self._standing.pop(lease, None)
        return dispatch.unit if dispatch else None

    def stands(self, lease: int) -> bool:
        """Whether the lease stands, so that an answer to it would count."""
        return lease in self._standing

    def unit(self, lease: int) -> Unit:
        """Return the unit of a standing lease."""
        return self._standing[lease].unit

    def earliest(self) -> float | None:
        """Return the next deadline; None: there is none."""
        return self._until.earliest()

    def expired(self, at: float) -> list[int]:
        """Return the slots whose deadline has passed at `at`, in order of their deadlines."""
        return self._until.due(at)

    def standing(self) -> dict[int, tuple[int, Unit]]:
        """Return lease → (slot, unit)."""
        return {lease: (line.slot, line.unit) for lease, line in self._standing.items()}

    def deadlines(self) -> dict[int, float]:
        """Return slot → the time by which it must answer."""
        return dict(self._until)

    def clear(self) -> None:
        """Remove all leases and slots. Numbers of leases go on."""
        self._standing.clear()
        self._until.clear()
