"""Spreads the copies of rows that are wholly equal, where few rows are different: else whole groups of rows would
validate, or lie in one partition. Counts groups of rows too, by which the driver knows whether features alone may draw.

Tasks count how many rows each name has. The driver adds up the counts of the tasks before each one: that is the number
of a row's first copy there. In another pass each copy has its number, and from 1 on a first word that is drawn from it.
Copies are interchangeable, so what follows depends on the rows alone, not on which task has which of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopyard.data.rows.hash import WORDS, mixed
from hopyard.data.rows.names import Distinct, Names, added
from hopyard.formats.arrow import Array

LIMIT = 1024
"""Names that are counted. A task reports 16 bytes for each."""

Table = tuple[Array, Array]
"""uint64 arrays of shape (names,): the second words of names, sorted; and a number for each."""


class Copies:
    """Counts the rows of each name of one task, and spreads them where it is told how. Names with a key stay.

    Args:
        first: the number of each name's first copy in this task; None: names stay as they are.
        by_content: whether rows are drawn by all that they hold, not by their features.
    """

    def __init__(self, first: Table | None = None, by_content: bool = False) -> None:
        self.total = 0
        """The sum of the names as they came, where they become others."""
        self.distinct, self.others = Distinct(), Distinct()
        """Of the first words that names have now, which draw, and of the second ones."""
        self._first, self._by_content = first, by_content
        self._counts: Table | None = np.zeros(0, np.uint64), np.zeros(0, np.uint64)

    def take(self, names: Names) -> Names:
        """Counts rows and returns their names, which are others from the second copy on where copies are spread."""
        if names.words.shape[1] > WORDS:
            self._counts = None
        if self._counts is not None:
            known, counts = self._counts
            words, inverse = np.unique(np.concatenate([known, names.words[:, 1]]), return_inverse=True)
            totals = np.bincount(inverse[len(known) :], minlength=len(words)).astype(np.uint64)
            totals[inverse[: len(known)]] += counts
            self._counts = (words, totals) if len(words) <= LIMIT else None
        if self._first is not None or self._by_content:
            self.total = added(self.total, names.total())
            names = names.by_content() if self._first is None else self._spread(names, *self._first)
        self.distinct.take(names.words[:, 0])
        self.others.take(names.words[:, 1])
        return names

    def packed(self) -> bytes | None:
        """Return the counts for `first_copies`; None: there are more than LIMIT names."""
        return None if self._counts is None else np.stack(self._counts).astype("<u8").tobytes()

    def _spread(self, names: Names, known: Array, numbers: Array) -> Names:
        words = names.words.copy()
        # a row that no pass before has seen is counted, and then the driver sees that
        at = np.minimum(np.searchsorted(known, words[:, 1]), len(known) - 1).astype(np.uint16)
        order = np.argsort(at, kind="stable")
        counts = np.bincount(at, minlength=len(known))
        copies = numbers[at]
        copies[order] += (np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)).astype(np.uint64)
        drawn = mixed(words[:, 1] ^ mixed(copies.copy()))
        words[:, 0] = np.where(copies == 0, words[:, 0], drawn)
        numbers += counts.astype(np.uint64)
        return Names(words)


def first_copies(counts: Sequence[bytes | None]) -> bytes | None:
    """Return the names, then for each task the numbers of their first copies, as uint64; None: names stay as they are,
    because more than LIMIT are different, or all of them.

    Args:
        counts: what `Copies.packed` gave, for each task in its order.
    """
    tables = [np.frombuffer(packed, "<u8").reshape(2, -1) for packed in counts if packed is not None]
    known = np.unique(np.concatenate([np.zeros(0, np.uint64), *(words for words, _ in tables)]))
    rows = sum(int(numbers.sum()) for _, numbers in tables)
    if None in counts or len(known) > LIMIT or len(known) == rows:
        return None
    table = np.zeros((1 + len(tables), len(known)), np.uint64)
    for number, (words, numbers) in enumerate(tables, 1):
        table[number, np.searchsorted(known, words)] = numbers
    table[1:] = np.cumsum(table[1:], axis=0) - table[1:]
    table[0] = known
    return table.astype("<u8").tobytes()
