"""One feed of a program as its driver knows it: what its workers took, how far they may go, and what tasks that were
started again lack of what was fed before.

A program that is started again begins at its own last checkpoint, which the driver cannot read: so its feeds begin at
their first row, and whoever skips rows is the program. Where one task alone was started again there is no right answer:
the others have rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from hopyard.core.programs.uneven import Count, Uneven, allowed
from hopyard.errors import SpecError
from hopyard.text import sendable

NOTHING = Count(0, False)


def feed_named(name: Any, where: str) -> str:
    """A feed's name.

    Raises:
        SpecError: `name` is none; says so of `where`.
    """
    if not isinstance(name, str) or not name or not sendable(name):
        raise SpecError(f"{where}(name={name!r}): text that is not empty is needed")
    return name


class FeedRecord:
    """Owner of what is known of one feed. Not for several threads at a time: they take turns by a lock of their own.

    Args:
        name: of the feed.
        uneven: the rule by which its workers end.
        restart: what is started again when a task fails: "program", "task", or "" where nothing is.
    """

    __slots__ = (
        "_allowed",
        "_counts",
        "_incarnations",
        "_kept",
        "_question",
        "_restart",
        "_taken",
        "ended",
        "epochs",
        "name",
        "uneven",
    )

    def __init__(self, name: str, uneven: Uneven, restart: Literal["", "program", "task"]) -> None:
        self.name, self.uneven, self._restart = name, uneven, restart
        self.epochs = 0
        """That were begun, in all calls: an epoch's number is never used twice."""
        self.ended = False
        """Whether the user said that no more rows come."""
        self._counts: dict[int, Count] = {}
        self._allowed = NOTHING
        self._taken: dict[int, tuple[int, bool, int]] = {}
        self._question = 0
        self._kept: list[tuple[Any, int]] = []
        self._incarnations: frozenset[int] | None = None
        """The tasks that have all that is kept."""

    # ------------------------------------------------------------------------------------------- what workers say

    def says(self, slot: int, count: Count, fed: Sequence[int]) -> Count | None:
        """A worker has so many batches. What all may give out by now, where that has changed."""
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

    @property
    def question(self) -> int:
        """Number that goes with a question to the workers, and comes back with its answer."""
        return self._question

    def ask_anew(self) -> None:
        """What workers said of taking rows is out of date: more were sent. Answers to older questions do not count."""
        self._question += 1

    def takes(self, slot: int, rows: int, more: bool, question: int) -> None:
        """A worker's program has taken so many rows, and whether more wait for it."""
        self._taken[slot] = rows, more, question

    @property
    def taken(self) -> int:
        """Rows that the programs of all workers took, as far as is known."""
        return sum(rows for rows, _, _ in self._taken.values())

    @property
    def said(self) -> dict[int, tuple[int, bool]]:
        """Slot → rows that its program took, and whether more wait; of those that answered the present question."""
        known = self._taken.items()
        return {slot: (rows, more) for slot, (rows, more, question) in known if question == self._question}

    def all_taken(self, fed: Collection[int]) -> bool:
        """Whether each of these workers said that none wait for it."""
        said = self.said
        return bool(fed) and all(slot in said and not said[slot][1] for slot in fed)

    # ------------------------------------------------------------------------------------------- what they are sent

    def begin_epoch(self) -> int:
        """The number of a new epoch."""
        self.epochs += 1
        return self.epochs

    def keep(self, source: Any, epochs: int, incarnations: frozenset[int] | None) -> None:
        """These tasks have all rows of a source, `epochs` times. Where they may be started again the source is kept;
        not its rows, but a list or table of this process stays in memory with it."""
        if self._restart and epochs:
            self._kept.append((source, epochs))
            self._incarnations = incarnations

    def lacked(self, incarnations: frozenset[int]) -> list[tuple[Any, int]]:
        """What these tasks lack of what was fed before: all of it, or nothing."""
        return [] if self._incarnations == incarnations else self._kept.copy()

    def caught_up(self, incarnations: frozenset[int] | None) -> None:
        """These tasks have all that was kept."""
        self._incarnations = incarnations

    @property
    def incarnations(self) -> frozenset[int] | None:
        """The tasks that have what was fed so far; None: nothing that is kept was fed."""
        return self._incarnations

    def begin_again(self) -> None:
        """Tasks were started again: forget what those before said, and had."""
        self._counts.clear()
        self._taken.clear()
        self._allowed, self._incarnations = NOTHING, None

    def doubled(self, had: frozenset[int] | None, now: frozenset[int]) -> str:
        """Why rows that some tasks have cannot go again to those that there are now; empty: they can."""
        if self._restart != "task" or not (had and had & now):
            return ""
        return (
            f'feed {self.name!r}: a task was started again by itself (restart_scope="task"), and the others have rows '
            'that it lacks: each row could not come once. Give restart_scope="program" to a program that is fed'
        )
