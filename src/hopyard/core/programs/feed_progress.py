"""The reports of the workers of one feed: how many rows they took, how many batches are ready for them, and how many
batches each may give out where the workers got unequal shares of the rows.

A synchronous program hangs when one worker has a batch and another has none: an all-reduce waits for all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


NOTHING = Count(0, False)


class FeedProgress:
    """Owner of what the workers of one feed have reported, by slot.

    Args:
        uneven: the rule by which they end.

    Attributes:
        question: number of the present question to the workers. Answers to earlier ones do not count.
    """

    __slots__ = ("_allowed", "_counts", "_replies", "question", "uneven")

    def __init__(self, uneven: Uneven) -> None:
        self.uneven = uneven
        self.question = 0
        self._counts: dict[int, Count] = {}
        self._allowed = NOTHING
        self._replies: dict[int, tuple[int, bool, int]] = {}

    def forget(self) -> None:
        """Drop all reports: other tasks are fed from now on."""
        self._counts.clear()
        self._replies.clear()
        self._allowed = NOTHING

    # ------------------------------------------------------------------------------------------- batches

    def count(self, slot: int, count: Count, fed: Sequence[int]) -> Count | None:
        """Record a worker's batches. Returns what all may give out by now, or None where that has not changed."""
        if self.uneven == "allow":
            return None
        self._counts[slot] = count
        allowance = allowed(self.uneven, [self._counts.get(worker, NOTHING) for worker in fed])
        if allowance == self._allowed:
            return None
        self._allowed = allowance
        return allowance

    def silent(self, fed: Sequence[int]) -> list[int]:
        """Return the workers that hold up the others: they have reported no batches, as they ask for none."""
        return [] if self.uneven == "allow" else [slot for slot in fed if slot not in self._counts]

    @property
    def ended_empty(self) -> list[int]:
        """Under "min": the workers without a batch, where the feed has ended for all because of them, and others had
        some."""
        any_batches = any(count.batches for count in self._counts.values())
        if self.uneven != "min" or self._allowed != Count(0, True) or not any_batches:
            return []
        return [slot for slot, count in self._counts.items() if count == Count(0, True)]

    # ------------------------------------------------------------------------------------------- rows

    def take(self, slot: int, rows: int, more: bool, question: int) -> None:
        """Record how many rows a worker's program has taken, and whether more wait for it."""
        self._replies[slot] = rows, more, question

    @property
    def taken(self) -> int:
        """Rows that the programs of all workers took, as far as they have reported."""
        return sum(rows for rows, _, _ in self._replies.values())

    @property
    def answers(self) -> dict[int, tuple[int, bool]]:
        """Slot → rows that its program took, and whether more wait, for those that answered the present question."""
        replies = self._replies.items()
        return {slot: (rows, more) for slot, (rows, more, question) in replies if question == self.question}

    def all_taken(self, fed: Collection[int]) -> bool:
        """Whether each of these workers answered that no rows wait for it."""
        answers = self.answers
        return bool(fed) and all(slot in answers and not answers[slot][1] for slot in fed)
