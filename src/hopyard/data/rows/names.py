"""Names of rows that have no number. They decide which rows validate, which partition a row is in, and the order.

A name is a hash of a row's values (`hash`), after a hash of its key where there is one. Its first word, which draws, is
a hash of the key, or of the features alone: were the label in it, rows of equal features would validate or train by
what their label is. Nothing here knows how rows were batched or who reads them, so nothing that follows from it can
depend on that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.assignment import keyed
from hopyard.data.options import ColumnSpec
from hopyard.data.ragged import Ragged
from hopyard.data.rows.hash import WORDS, mixed, row_hashes
from hopyard.formats.arrow import Array

_PARTITION = np.uint64(0x6A09E667F3BCC908)
"""Makes the draw of a partition independent of that of validation rows: the root of 2."""
_LEAST = 256
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


@dataclass(frozen=True, slots=True)
class Names:
    """The names of the rows of a batch.

    Attributes:
        words: uint64 array of shape (rows, 2), a hash of the features and a hash of all content; or with a key
            (rows, 4), two words of the key's hash and two of the content's. Rows are ordered by them, from the left.
    """

    words: Array

    def __len__(self) -> int:
        return len(self.words)

    def validates(self, seed: int, fraction: float) -> Array:
        """Return a Boolean array: which rows validate; rows of one key, or of equal features, do so together.
        `fraction` in [0, 1)."""
        threshold = np.uint64(min(int(fraction * 2.0**64), (1 << 64) - 1))
        return np.asarray(mixed(self.words[:, 0] ^ keyed(seed)) < threshold)

    def runs(self, partitions: int, is_validation: Array | None) -> Iterator[tuple[int, Array, int]]:
        """Yield (run, int64 indices of its rows, sum of their names) for each run that has rows.

        Run p is training partition p, run `partitions` + p validation partition p. Rows of one key, or of equal
        features, are in one run; others are drawn independently. The sum is modulo 2¹²⁸ and does not depend on the
        order.
        """
        word = self.words[:, 1 if self.words.shape[1] > WORDS else 0]  # both words of a key are of the key alone
        draws = mixed(word ^ _PARTITION) >> np.uint64(32)
        runs = (draws * np.uint64(partitions) >> np.uint64(32)).astype(np.int32)
        if is_validation is not None:
            runs += is_validation.astype(np.int32) * np.int32(partitions)
        runs = runs.astype(np.uint16) if partitions <= 1 << 15 else runs  # NumPy sorts these by radix
        order = np.argsort(runs, kind="stable")
        counts = np.bincount(runs, minlength=2 * partitions)
        nonempty = np.flatnonzero(counts)
        stops = np.cumsum(counts[nonempty])
        starts = stops - counts[nonempty]
        for run, start, stop, total in zip(
            nonempty.tolist(), starts.tolist(), stops.tolist(), self._sums(order, starts), strict=True
        ):
            yield run, order[start:stop], total

    def by_content(self) -> Names:
        """Return names without a key with their words in turn, so that a row is drawn by all that it holds."""
        return Names(np.ascontiguousarray(self.words[:, ::-1]))

    def total(self) -> int:
        """Return the sum of all names."""
        return added(*self._sums(np.arange(len(self)), np.zeros(min(1, len(self)), np.int64)))

    def _sums(self, order: Array, starts: Array) -> list[int]:
        """Return the sums of the names from each of `starts` to the next, in `order`."""
        words = [self.words[:, at] for at in range(WORDS)]
        if self.words.shape[1] > WORDS:  # one name from key and content
            words = [mixed(word ^ mixed(self.words[:, WORDS + at].copy())) for at, word in enumerate(words)]
        totals = [0] * len(starts)
        for word in words if len(starts) else []:
            word = word[order]  # noqa: PLW2901
            upper, lower = (np.add.reduceat(half, starts).tolist() for half in (word >> _HALF, word & _LOW))
            totals = [(total << 64) + (a << 32) + b for total, a, b in zip(totals, upper, lower, strict=True)]
        return [added(total) for total in totals]


def name_rows(batch: Any, spec: ColumnSpec, source_label: str) -> Names:
    """Return the names of the rows of a record batch that has the columns of `spec`. Raises as `row_hashes`."""
    if not spec.key:
        return Names(row_hashes(batch, spec.content, source_label, spec.features))
    parts = [row_hashes(batch, columns, source_label) for columns in (spec.key, spec.content)]
    return Names(np.concatenate(parts, axis=1))


def width(spec: ColumnSpec) -> int:
    """Return how many words `name_rows` gives a row."""
    return 2 * WORDS if spec.key else WORDS


def added(*sums: int) -> int:
    """Return the sum of sums of names."""
    return sum(sums) % (1 << 128)


def unsigned(raw: Sequence[Any]) -> list[Any]:
    """Return raw arrays with 0.0 for −0.0, so that rows of equal names have equal bits. May overwrite `raw`."""
    return [a if a.dtype.kind != "f" else _unsigned(a) for a in raw]


def _unsigned(array: Any) -> Any:
    if isinstance(array, Ragged):
        return Ragged(_unsigned(array.values), array.starts, array.ends)
    return np.add(array, 0, out=array if array.flags.writeable else None)


class Distinct:
    """Counts the different names: exactly while they are few, else by an estimate from the least of them.

    Source: Bar-Yossef, Jayram, Kumar, Sivakumar, Trevisan, "Counting distinct elements in a data stream", RANDOM 2002,
    algorithm 1, of the _LEAST least first words: the error is 1/√_LEAST, 6 %.
    """

    def __init__(self) -> None:
        self._least: Array = np.zeros(0, np.uint64)

    def take(self, words: Array) -> None:
        """Adds names by their first words, a uint64 array of shape (rows,)."""
        if len(self._least) == _LEAST:
            words = words[words < self._least[-1]]
        if len(words):
            self._least = np.unique(np.concatenate([self._least, words]))[:_LEAST]

    @property
    def number(self) -> int:
        """How many there are, or about how many."""
        if len(self._least) < _LEAST:
            return len(self._least)
        return int(round((_LEAST - 1) * 2.0**64 / float(self._least[-1]), -2))

    def __str__(self) -> str:
        return f"{'about ' * (len(self._least) == _LEAST)}{self.number:,}"

    def packed(self) -> bytes:
        """Return the names as bytes for `merge`."""
        return self._least.astype("<u8").tobytes()

    def merge(self, packed: bytes) -> None:
        """Adds the names of another Distinct."""
        self.take(np.frombuffer(packed, "<u8").astype(np.uint64))
