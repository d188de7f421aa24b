"""Which States must still become durable, and until when.

The State at the end of an epoch is stored always, so its `Durable` must come; whoever made it and does not store it in
time, though it lives, is of no use. While the store is away nobody is late. Time is not read here: it arrives with the
events.
"""

from __future__ import annotations

import math

from hopyard.spec import Ref


class Durability:
    """The States that are awaited. Owner: `Machine`.

    Args:
        timeout: seconds that a State may take while its slot reaches the store.
    """

    __slots__ = ("_awaited", "_away", "_first", "_timeout")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._awaited: dict[Ref, tuple[int, float]] = {}
        """State → (slot that has it, when it is late)."""
        self._away: dict[int, float] = {}
        """Slot → since when it cannot reach the store."""
        self._first = math.inf
        """No State is late before."""

    def __len__(self) -> int:
        return len(self._awaited)

    def made(self, ref: Ref, slot: int, at: float) -> None:
        """The slot has made a State that it is to store."""
        late = self._away.get(slot, at) + self._timeout
        self._awaited[ref] = slot, late
        if slot not in self._away:
            self._first = min(self._first, late)

    def settled(self, ref: Ref) -> None:
        """The State is durable, or nobody needs it."""
        if self._awaited.pop(ref, None) is not None:
            self._look()

    def gone(self, slot: int) -> None:
        """The slot is not there any longer, nor what it was to store."""
        self._away.pop(slot, None)
        for ref in [ref for ref, (maker, _) in self._awaited.items() if maker == slot]:
            del self._awaited[ref]
        self._look()

    def away(self, slot: int, at: float) -> None:
        """The slot cannot reach the store: its States are not late before it can."""
        self._away.setdefault(slot, at)
        self._look()

    def back(self, slot: int, at: float) -> None:
        """The slot reaches the store again: its States have as much time as they had left."""
        since = self._away.pop(slot, None)
        if since is not None:
            for ref, (maker, late) in self._awaited.items():
                if maker == slot:
                    self._awaited[ref] = slot, late + at - since
            self._look()

    def earliest(self) -> float | None:
        """When the next State is late; None: none is awaited."""
        return None if self._first == math.inf else self._first

    def expired(self, at: float) -> list[tuple[int, Ref]]:
        """(slot, State) of all that are late at this time, in order of their deadlines; none is awaited any more."""
        late = sorted((until, slot, ref) for ref, (slot, until) in self._timed() if until <= at)
        for _, _, ref in late:
            del self._awaited[ref]
        self._look()
        return [(slot, ref) for _, slot, ref in late]

    def clear(self) -> None:
        """No slot is there."""
        self._awaited.clear()
        self._away.clear()
        self._first = math.inf

    def awaited(self) -> dict[str, tuple[int, float]]:
        """State → (slot, when it is late)."""
        return {str(ref): entry for ref, entry in self._awaited.items()}

    def _timed(self) -> list[tuple[Ref, tuple[int, float]]]:
        return [(ref, entry) for ref, entry in self._awaited.items() if entry[0] not in self._away]

    def _look(self) -> None:
        self._first = min((until for _, (_, until) in self._timed()), default=math.inf)
