"""Times that are due, of which the first is asked after each event."""

from __future__ import annotations

from heapq import heappop, heappush


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
