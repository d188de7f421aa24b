"""A 128-bit keyed hash of a row's values, the same whoever reads the row, in whatever order and batches.

It is two words of 64 bits. Columns are distinguished by their names, so their order does not matter. Values count,
not types: integers and floats that are equal numbers are equal (one zero, one NaN), booleans are 0 and 1, times are
microseconds in UTC and the nanoseconds beyond them, text and bytes are their bytes (text as UTF-8), lists their values
and their length; null has a mark of its own. It is not a cryptographic hash: whoever chooses the values can make two
rows collide.

Source: values are summed with one random odd factor for each column and position, in each word: multilinear hashing
(Lemire, Kaser, "Strongly universal string hashing is fast", The Computer Journal 2014, section 2), of words whose bits
were spread in place of words of twice the width; sums are scrambled by `assignment.mix` (SplitMix64).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from hopyard.data.assignment import mix
from hopyard.errors import DataError
from hopyard.formats.arrow import Array, is_list, is_text, list_lengths

WORDS = 2
"""How many words a hash has."""
_SPREAD, _HALF = np.uint64(0x9E3779B97F4A7C15), np.uint64(32)
_EXACT = 1 << 53
"""All integers up to here are exact as floats of 64 bits."""
_BLOCK = 8192
"""Values scrambled at once: 64 KiB, which stays in the cache of a core."""
_TEXT_BYTES = 8 << 20
"""Bytes of text hashed at once."""
_PER_MICROSECOND = {"s": 1_000_000, "ms": 1_000, "us": 1}

Pair = tuple[Array, Array]
"""Two words for each value: uint64 arrays of shape (rows,)."""


def row_hashes(
    batch: Any, columns: Sequence[str], source_label: str, first_word: Collection[str] | None = None
) -> Array:
    """Return a uint64 array of shape (rows, 2): the hash of each row of a record batch.

    Args:
        batch: a record batch.
        columns: those to hash; the batch has each of them.
        source_label: where the batch is from, for messages.
        first_word: those of `columns` that the first word is a hash of; None: all of them.

    Raises:
        DataError: a column has a type that cannot be hashed, such as a map.
    """
    totals = np.zeros(batch.num_rows, np.uint64), np.zeros(batch.num_rows, np.uint64)
    for column in columns:
        array = batch.column(batch.schema.get_field_index(column))
        try:
            pair = _pair(array)
        except _Unhashable as error:
            raise DataError(
                f"column {column!r} of {source_label} has type {error.args[0]}, of which rows cannot be named; leave "
                f"it out, or make it numbers, text, times or lists of these with transform="
            ) from None
        for at, factor in enumerate(_factors(f"column {column}", WORDS)):
            if at or first_word is None or column in first_word:
                totals[at][:] += pair[at] * (factor | np.uint64(1))
    return np.stack([mixed(total) for total in totals], axis=1)


def mixed(words: Array) -> Array:
    """Scrambles a uint64 array of shape (rows,) in place, block by block, and returns it."""
    for start in range(0, len(words), _BLOCK):
        mix(words[start : start + _BLOCK])
    return words


def spread(words: Array) -> Array:
    """Mixes the high bits of each word into the low ones, in place, one to one: the low bits of most floats are 0, and
    would be 0 in sums of products. It costs a third of `mixed`."""
    words *= _SPREAD
    words ^= words >> _HALF
    return words


class _Unhashable(Exception):
    """Raised for a type whose values cannot be hashed."""


@lru_cache(4096)
def _factors(purpose: str, count: int) -> Array:
    """Return a uint64 array of shape (count,): random words that never change."""
    return np.frombuffer(blake3(f"hopyard row names\0{purpose}".encode()).digest(8 * count), "<u8").astype(np.uint64)


_NULL, _WHOLE, _LENGTH = _factors("marks", 3)
_POSITIONS = 1024


def _positions(longest: int) -> Array:
    """Return odd factors of the positions in a list, for both words: shape (2, at least `longest`)."""
    count = _POSITIONS
    while count < longest:
        count *= 2
    return _position_table(count)


@lru_cache(2)
def _position_table(count: int) -> Array:
    step = np.arange(count, dtype=np.uint64)
    return np.stack([mix(step * np.uint64(2) + word) | np.uint64(1) for word in _factors("positions", WORDS)])


def _pair(array: Any) -> Pair:
    """Return two words for each value of an Arrow array, nulls and lists included."""
    kind = array.type
    words: Pair
    if pa.types.is_dictionary(kind):
        return _decoded(_pair(array.dictionary), array.indices)
    if pa.types.is_null(kind):
        return (np.full(len(array), _NULL),) * 2
    if isinstance(kind, pa.FixedShapeTensorType):
        words = _tensor(array)
    elif is_list(kind):
        words = _lists(array)
    elif is_text(kind) or _is_bytes(kind):
        words = _text(array)
    else:
        words = (spread(_bits(array)),) * 2
    if array.null_count:
        null = np.asarray(array.is_null().to_numpy(zero_copy_only=False))
        words = tuple(np.where(null, _NULL, word) for word in words)  # type: ignore[assignment]
    return words


def _decoded(words: Pair, indices: Any) -> Pair:
    at = np.asarray(indices.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    null = np.asarray(indices.is_null().to_numpy(zero_copy_only=False)) if indices.null_count else None
    first, second = (word[at] if len(word) else np.full(len(at), _NULL) for word in words)
    if null is not None:
        first[null] = second[null] = _NULL
    return first, second


def _bits(array: Any) -> Array:
    """Return a word for each number, in a new array of shape (rows,). The word of a null is arbitrary."""
    kind, test = array.type, pa.types
    if test.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    if test.is_boolean(kind):
        array, kind = array.cast(pa.int8()), pa.int8()
    if test.is_temporal(kind):
        return _times(array)
    if not (test.is_integer(kind) or test.is_floating(kind)):
        raise _Unhashable(kind)
    values = _filled(array)
    return _whole(values) if values.dtype.itemsize == 8 and values.dtype.kind in "iu" else _floating(values)


def _filled(array: Any) -> Array:
    """Return an Arrow array as plain numbers, with 0 for null."""
    return np.asarray((array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False))


def _floating(values: Array) -> Array:
    numbers = values.astype(np.float64)
    numbers += 0.0  # −0 becomes 0
    if len(numbers) and np.isnan(numbers.min()):
        numbers[np.isnan(numbers)] = np.nan
    return numbers.view(np.uint64)


def _whole(values: Array) -> Array:
    """Return words for integers of 64 bits: their floats where exact, else the integers, marked and scrambled."""
    words = _floating(values)
    if not len(values) or (values.max() <= _EXACT and (values.dtype.kind == "u" or values.min() >= -_EXACT)):
        return words
    numbers, end = words.view(np.float64), 2.0 ** (64 if values.dtype.kind == "u" else 63)
    in_range = (numbers >= -end) & (numbers < end)
    round_trip = np.where(in_range, numbers, 0.0).astype(values.dtype)
    exact = in_range & (round_trip == values)
    return np.where(exact, words, mixed(values.astype(np.uint64) ^ _WHOLE))


def _times(array: Any) -> Array:
    """Return words for times: those of their microseconds, scrambled with the rest where nanoseconds leave one."""
    words = _whole(_microseconds(array))
    if getattr(array.type, "unit", "") == "ns" and (rest := _filled(array.cast(pa.int64())) % 1_000).any():
        words = np.where(rest == 0, words, mixed(words ^ mixed(rest.astype(np.uint64))))
    return words


def _microseconds(array: Any) -> Array:
    """Return an int64 array: times since 1970 in UTC, times of day since midnight, or durations, in microseconds."""
    kind, test = array.type, pa.types
    if test.is_date32(kind):
        return _filled(array.cast(pa.int32())).astype(np.int64) * 86_400_000_000
    if test.is_date64(kind):
        return _filled(array.cast(pa.int64())) * 1_000
    if not hasattr(kind, "unit"):
        raise _Unhashable(kind)
    storage_type = pa.int32() if test.is_time32(kind) else pa.int64()
    values = _filled(array.cast(storage_type)).astype(np.int64)
    return values // 1_000 if kind.unit == "ns" else values * _PER_MICROSECOND[kind.unit]


def _is_bytes(kind: Any) -> bool:
    test = pa.types
    return bool(
        test.is_binary(kind)
        or test.is_large_binary(kind)
        or test.is_fixed_size_binary(kind)
        or test.is_binary_view(kind)
    )


def _lists(array: Any) -> Pair:
    """Return the words of lists of any kind, nested ones too; a null row has no values here."""
    return _folded(_pair(array.flatten()), list_lengths(array))


def _tensor(array: Any) -> Pair:
    """Return the words of tensors of one shape, as those of lists of lists."""
    storage, size = array.storage, array.type.storage_type.list_size
    words = _pair(storage.values.slice(storage.offset * size, len(storage) * size))  # a null takes up space too
    for size in reversed(array.type.shape):
        words = _folded(words, np.full(len(words[0]) // size, size, np.int64))
    return words


def _folded(words: Pair, lengths: Array) -> Pair:
    """Return the words of lists from the words of all their values, one list after the other."""
    rows, longest = len(lengths), int(lengths.max(initial=0))
    factors = _positions(longest)
    if rows and int(lengths.min()) == longest:
        sums = [word.reshape(rows, longest) @ factor[:longest] for word, factor in zip(words, factors, strict=True)]
    else:
        ends = np.cumsum(lengths)
        at = np.arange(int(ends[-1]) if rows else 0) - np.repeat(ends - lengths, lengths)
        sums = []
        for word, factor in zip(words, factors, strict=True):
            running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(word * factor[at])])
            sums.append(running[ends] - running[ends - lengths])
    size = mixed(lengths.astype(np.uint64) ^ _LENGTH)
    return mixed(sums[0] ^ size), mixed(sums[1] ^ size)


def _text(array: Any) -> Pair:
    """Return the words of text and bytes: lists of words of 8 bytes, zero-padded, with the number of bytes."""
    array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64, len(array) + 1, array.offset * 8) if len(array) else np.zeros(1, np.int64)
    parts: list[Pair] = []
    start = 0
    while start < len(array):
        stop = max(start + 1, int(np.searchsorted(ends, ends[start] + _TEXT_BYTES, "right")) - 1)
        parts.append(_words_of_text(ends[start : stop + 1], data))
        start = stop
    if not parts:
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    return np.concatenate([first for first, _ in parts]), np.concatenate([second for _, second in parts])


def _words_of_text(ends: Array, data: Any) -> Pair:
    size = int(ends[-1] - ends[0])
    padded = np.zeros(size + 8, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8, size, int(ends[0]))
    unaligned: Array = np.ndarray((size + 1,), "<u8", padded, strides=(1,))  # a word that begins at each byte
    starts, lengths = ends[:-1] - ends[0], np.diff(ends)
    counts = -(-lengths // 8)
    at = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    words = unaligned[np.repeat(starts, counts) + 8 * at].astype(np.uint64)
    excess_bits = np.clip(8 * (at + 1) - np.repeat(lengths, counts), 0, 7).astype(np.uint64) * np.uint64(8)
    words = words << excess_bits >> excess_bits
    scrambled = spread(words)
    first, second = _folded((scrambled, scrambled), counts)
    size_words = mixed(lengths.astype(np.uint64) ^ _WHOLE)
    return mixed(first ^ size_words), mixed(second ^ size_words)
