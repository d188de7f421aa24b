"""What the workers of one feed have said: how many rows they took, and how many batches are ready for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hopyard.core.programs.uneven import Count, Uneven, allowed

NOTHING = Count(0, False)


class FeedProgress:
    """Owner of what is known of the workers of one feed, by slot.

    Args:
        uneven: the rule by which they end.

    Attributes:
        question: number that goes with a question to the workers, and comes back with its answer.
    """

    __slots__ = ("_allowed", "_counts", "_taken", "question", "uneven")

    def __init__(self, uneven: Uneven) -> None:
        self.uneven = uneven
        self.question = 0
        self._counts: dict[int, Count] = {}
        self._allowed = NOTHING
        self._taken: dict[int, tuple[int, bool, int]] = {}

    def forget(self) -> None:
        """Other tasks are fed from now on."""
        self._counts.clear()
        self._taken.clear()
        self._allowed = NOTHING

    # ------------------------------------------------------------------------------------------- batches

    def count(self, slot: int, count: Count, fed: Sequence[int]) -> Count | None:
        """A worker has so many batches. Returns what all may give out by now, where that has changed."""
        if self.uneven == "join":
            return None
        self._counts[slot] = count
        now = allowed(self.uneven, [self._counts.get(other, NOTHING) for other in fed])
        if now == self._allowed:
            return None
        self._allowed = now
        return now

    def silent(self, fed: Sequence[int]) -> list[int]:
        """Workers that hold the others up: they have said nothing of their batches, as they ask for none."""
        return [] if self.uneven == "join" else [slot for slot in fed if slot not in self._counts]

    @property
    def ended_empty(self) -> list[int]:
        """Under "min": the workers without a batch, where the feed has ended for all because of them, and others had
        some."""
        some = any(count.batches for count in self._counts.values())
        if self.uneven != "min" or self._allowed != Count(0, True) or not some:
            return []
        return [slot for slot, count in self._counts.items() if count == Count(0, True)]

    # ------------------------------------------------------------------------------------------- rows

    def ask_anew(self) -> None:
        """What workers said of taking rows is out of date: more were sent. Answers to older questions do not count."""
        self.question += 1

    def take(self, slot: int, rows: int, more: bool, question: int) -> None:
        """A worker's program has taken so many rows, and whether more wait for it."""
        self._taken[slot] = rows, more, question

    @property
    def taken(self) -> int:
        """Rows that the programs of all workers took, as far as is known."""
        return sum(rows for rows, _, _ in self._taken.values())

    @property
    def answers(self) -> dict[int, tuple[int, bool]]:
        """Slot → rows that its program took, and whether more wait; of those that answered the present question."""
        known = self._taken.items()
        return {slot: (rows, more) for slot, (rows, more, question) in known if question == self.question}

    def all_taken(self, fed: Collection[int]) -> bool:
        """Whether each of these workers said that none wait for it."""
        answers = self.answers
        return bool(fed) and all(slot in answers and not answers[slot][1] for slot in fed)
