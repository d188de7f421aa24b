"""How long to hold places that are too few, and how long to leave them to others.

Two programs that fit alone, and not together, could each hold some of the places for ever ("hold and wait", Coffman et
al. 1971, System Deadlocks). A program that holds too few therefore gives all of them back after a while, and asks again
after a pause. Both times are drawn by a keyed hash, so that two that began together soon differ. Pauses grow from turn
to turn, as fewer compete then. Holds do not: places that are held for nothing are missing elsewhere.
"""

from __future__ import annotations

from hopyard.core.keyed import fraction

HOLD_SECONDS, PAUSE_SECONDS = 2.0, 2.0
"""The least time, in the first turn. The most is twice that."""
GROWTH, MOST_TURNS = 1.5, 4
"""By how much each pause is longer than the one before, and from which turn on they are no longer."""


def hold_seconds(key: str, turn: int) -> float:
    """Return how long places that are too few are held without another one coming; `turn`: from 0; `key`: its own for
    each run or program."""
    return _drawn(HOLD_SECONDS, key, "hold", turn)


def pause_seconds(key: str, turn: int) -> float:
    """Return how long they are left to others before they are asked for again."""
    return _drawn(PAUSE_SECONDS * GROWTH ** min(turn, MOST_TURNS), key, "pause", turn)


def _drawn(least: float, key: str, purpose: str, turn: int) -> float:
    return least * (1 + fraction(key, purpose, turn))
