"""Decodes blocks of a feed into batches: NumPy arrays, or Python rows, from pieces of one block or several."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.checks import no_such
from hopyard.errors import DataError
from hopyard.feeds.protocol import PICKLE
from hopyard.feeds.rows import unpacked
from hopyard.feeds.streams import Block, Piece
from hopyard.formats.arrow import Array, masked_at
from hopyard.formats.vectors import column_to_numpy


def columns_of(pieces: Sequence[Piece], feed: str, names: Sequence[str] | None = None) -> dict[str, Array]:
    """Return column → array of all rows of the pieces: a view of one block, a copy where there are several.

    Args:
        pieces: of the feed's blocks.
        feed: its name.
        names: the columns to decode; None: all.

    Raises:
        DataError: a column has nulls or lists of different lengths, or is not there; blocks differ in columns or
            shapes.
    """
    parts = [
        {name: values[piece.start : piece.stop] for name, values in _columns(piece.block, feed, names).items()}
        for piece in pieces
    ]
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        if part.keys() != first.keys():
            raise DataError(f"feed {feed!r}: rows have the columns {list(first)}, later ones {list(part)}")
    return {name: _concatenate([part[name] for part in parts], name, feed) for name in first}


def rows_of(pieces: Sequence[Piece]) -> list[Any]:
    """Return the Python rows of the pieces."""
    return list(chain.from_iterable(_rows(piece.block)[piece.start : piece.stop] for piece in pieces))


def _columns(block: Block, feed: str, names: Sequence[str] | None) -> dict[str, Array]:
    """Return these columns of a block, or all; each is decoded once."""
    if "makers" not in block.decoded:
        block.decoded["makers"], block.decoded["columns"] = _makers(block, feed), {}
    makers, decoded = block.decoded["makers"], block.decoded["columns"]
    if unknown := [name for name in names or () if name not in makers]:
        raise DataError(f"feed {feed!r} has {no_such('column', unknown, makers)}")
    wanted = makers if names is None else names
    for name in wanted:
        if name not in decoded:
            decoded[name] = makers[name]()
    return {name: decoded[name] for name in wanted}


def _makers(block: Block, feed: str) -> dict[str, Callable[[], Array]]:
    """Return column → function that decodes it."""
    if block.kind == PICKLE:
        return _makers_of_rows(_rows(block), feed)
    batch = _batch(block)
    return {name: partial(_array, batch, at, name, feed, block.body) for at, name in enumerate(batch.schema.names)}


def _array(batch: Any, number: int, name: str, feed: str, body: Array) -> Array:
    skip = "name the columns that you read, batches(…, columns=[…]), or take Python rows with feed.rows"
    return _writable(column_to_numpy(batch.column(number), name, f"feed {feed!r}", skip), body)


def _rows(block: Block) -> list[Any]:
    if "rows" not in block.decoded:
        if block.kind == PICKLE:
            block.decoded["rows"] = pickle.loads(block.body)  # noqa: S301 - its sender showed the token
        else:
            block.decoded["rows"] = unpacked(_batch(block))
    rows: list[Any] = block.decoded["rows"]
    return rows


def _batch(block: Block) -> Any:
    return pa.ipc.read_record_batch(pa.py_buffer(block.body), block.schema)


def _writable(array: Array, body: Array) -> Array:
    """Return the same values as a writable array: a view of the block's own memory where they lie in it."""
    if array.flags.writeable:
        return array
    offset = array.ctypes.data - body.ctypes.data
    if not (array.flags.c_contiguous and offset >= 0 and offset + array.nbytes <= body.nbytes):
        return array.copy()
    return body[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)


def _makers_of_rows(rows: list[Any], feed: str) -> dict[str, Callable[[], Array]]:
    """Return column → function that returns its array, of Python rows that were not sent as numbers."""
    if not all(isinstance(row, (tuple, list)) and len(row) == len(rows[0]) for row in rows):
        return {"value": partial(_array_of_values, rows, "value", feed)}
    names = list(getattr(rows[0], "__fields__", None) or [f"_{n + 1}" for n in range(len(rows[0]))])
    return {
        name: partial(_array_of_values, values, name, feed)
        for name, values in zip(names, zip(*rows, strict=True), strict=True)
    }


def _array_of_values(values: Sequence[Any], name: str, feed: str) -> Array:
    if any(value is None for value in values) or masked_at(values) is not None:
        raise DataError(
            f"column {name!r} of feed {feed!r} holds None or masked values; leave such rows out, name the columns that "
            "you read (batches(…, columns=[…])), or take feed.rows"
        )
    try:
        array = np.array(values)
    except ValueError:
        array = None
    if array is None or array.dtype.kind in "USO":
        if array is None or isinstance(values[0], (list, tuple, np.ndarray)):
            raise DataError(
                f"column {name!r} of feed {feed!r} holds lists or arrays that differ in length or type; pad them "
                "before feeding, or take Python rows with feed.rows"
            )
        array = np.empty(len(values), object)
        array[:] = values
    return array


def _concatenate(parts: list[Array], name: str, feed: str) -> Array:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise DataError(
            f"column {name!r} of feed {feed!r}: rows differ in shape, {sorted(shapes)}; pad or cut them before feeding"
        )
    return np.concatenate(parts)
