"""When the feeds of workers end, where workers got unequal shares of the rows.

A synchronous program hangs when one worker has a batch and another has none: an all-reduce waits for all. Each worker
says how many batches are ready for it; from that follows what each may give out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Uneven = Literal["allow", "min", "cycle"]
"""Respectively: each worker ends with its own rows; all end after as many batches as the worker with the fewest has;
all end after as many as the one with the most has, and a worker that runs out begins its own rows again."""

RULES: tuple[Uneven, ...] = ("allow", "min", "cycle")


class Count(NamedTuple):
    """Number of batches of one feed, and whether there will be no more."""

    batches: int
    ended: bool


def allowed(uneven: Uneven, counts: Sequence[Count]) -> Count:
    """Return how many batches each worker may give out so far, and whether that is all.

    Args:
        uneven: the rule. For "allow" there is nothing to allow: a worker gives out what it has.
        counts: what each worker has received (given out or not), and whether it will receive no more.

    Returns:
        The batches never become fewer as counts grow. Under "min" all workers have so many. Under "cycle" at
        least one has; the others wait for their rows, or repeat when they are through with them.
    """
    if uneven == "cycle":
        return Count(max(count.batches for count in counts), all(count.ended for count in counts))
    least = min(count.batches for count in counts)
    return Count(least, any(count.ended and count.batches == least for count in counts))
