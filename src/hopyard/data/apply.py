"""Encodes rows for `predict` and `evaluate` exactly as the training rows were, from the manifest alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns import Columns, aligned, pack
from hopyard.data.dataset import Dataset
from hopyard.data.encoding.encoder import Encoder, RowOrigin
from hopyard.data.encoding.finalize import FeatureFinalizer
from hopyard.data.encoding.row_tracker import NAME, RowTracker
from hopyard.data.manifest import Field, Manifest
from hopyard.data.shared.fetch import fixed
from hopyard.data.sources.memory import Arrays, Reader, Table
from hopyard.data.sources.of import as_array, is_pandas, table_of
from hopyard.data.sources.source import Source
from hopyard.errors import DataError
from hopyard.formats.arrow import Array, require

log = logging.getLogger(__name__)

UNKNOWN = -1
"""In the place of the number of a row that nobody can tell."""
TRUSTED = (
    f"the Dataset's transform does not give back the column {NAME!r} that numbers the rows (or not as it was): answers "
    "are taken to stand in the order of the rows that went in. A transform that keeps the columns that it is given has "
    "each answer put at its row, also where it filters or sorts"
)

MOVED = (
    f"the Dataset's transform gives rows in another order, and does not give back the column {NAME!r} that numbers "
    "them, so nobody can tell which answer is whose; let it keep the columns that it is given"
)


def apply(
    manifest: Manifest,
    data: Any,
    transform: Callable[[Any], Any] | RowTracker | None = None,
    *,
    targets: bool = True,
) -> Columns:
    """The rows of `data` in memory as a model sees them, and which of the rows that went in each of them is.

    Args:
        manifest: of the training data; its cache entry is not needed.
        data: a Dataset (where it has a transform itself, that takes the other's place; its `validation` is not used), a
            pandas DataFrame, a pyarrow Table, RecordBatch or RecordBatchReader, a dict from column to array, a list of
            dicts, or one array: the single input, or, when that is a list of number columns, these side by side.
        transform: that of the training Dataset, if it had one. A RowTracker keeps what it found out for the next call.
        targets: whether to give targets and weights, where their columns are there. Without them (`predict`) the place
            of each row must be known, with them (`evaluate`) it is enough to know how many there are.

    Raises:
        DataError: a column is missing, has another type or shape, holds NaN, or a value that training never saw; the
            transform doubles rows; it drops or moves some, and does not tell which (without `targets`).
    """
    if isinstance(data, Dataset) and data.transform is not None:
        transform = data.transform
    tracker = RowTracker(transform) if callable(transform) and not isinstance(transform, RowTracker) else transform
    read = [c.name for field in manifest.fields if targets or field.role == "inputs" for c in field.columns]
    chosen: list[Field] = []
    encoder: Encoder | None = None
    known = fixed(manifest)
    blocks: list[list[Array]] = []
    finisher: FeatureFinalizer | None = None
    places = Places()
    rows = 0
    for piece, where in _pieces(manifest, data, tracker is not None):
        if not piece.num_rows:
            continue
        batch, origin, numbers = piece, where, None
        if tracker is not None:
            origin = RowOrigin(where.name, rows, True)
            batch, numbers = tracker(piece, places.source_rows, read, f"{where.name}, rows from {where.row}")
        places.add(piece.num_rows, batch.num_rows, numbers)
        rows += batch.num_rows
        if not batch.num_rows:
            continue
        if encoder is None:
            chosen = _fields(manifest, batch.schema, str(origin), targets)
            encoder = Encoder(chosen, known, strict=False)
            finisher = FeatureFinalizer(chosen, known, manifest.standardize)
        raw = encoder.raw(batch, origin)
        if not encoder.faults and finisher is not None:
            blocks.append([finisher(number, array) for number, array in enumerate(raw)])
    if not places.source_rows:
        raise DataError("no rows were given; give at least one")
    if encoder is None or finisher is None:  # the transform dropped all
        finisher = FeatureFinalizer(
            [field for field in manifest.fields if field.role == "inputs"], known, manifest.standardize
        )
    else:
        encoder.check()
    found = places.result(rows, ordered=not targets)
    if tracker is not None and not targets and places.trusted and tracker.moves:
        raise DataError(MOVED)
    if tracker is not None and not targets and places.trusted and not tracker.warned:
        tracker.warned = True
        log.warning(TRUSTED)
    made: dict[str, dict[str, Array]] = {"inputs": {}, "targets": {}, "weights": {}}
    for number, (field, info) in enumerate(zip(finisher.fields, finisher.infos, strict=True)):
        whole = aligned((rows, *info.shape), info.dtype)
        if blocks:
            np.concatenate([block[number] for block in blocks], out=whole)
        made[field.role][field.name] = whole
    parts = (pack(made["inputs"], "inputs"), pack(made["targets"], "targets"), pack(made["weights"], "weights"))
    return Columns(*parts, rows, source_rows=places.source_rows, places=found)


class Places:
    """Which of the rows that went in each row is, collected over batches.

    Attributes:
        source_rows: how many went in so far.
        trusted: whether the order of a batch was taken to be that of its rows, as the transform does not tell.
    """

    def __init__(self) -> None:
        self.source_rows = 0
        self.trusted = False
        self._parts: list[Array] = []

    def add(self, before: int, after: int, numbers: Array | None) -> None:
        """A batch of `before` rows became `after` rows; None: nobody can tell which (or all as they were)."""
        if numbers is None and before == after:
            numbers = np.arange(self.source_rows, self.source_rows + before)
            self.trusted = True
        self._parts.append(np.full(after, UNKNOWN) if numbers is None else numbers)
        self.source_rows += before

    def result(self, rows: int, ordered: bool) -> Array | None:
        """What `Columns.places` says of the rows.

        Raises:
            DataError: some rows are doubled; or, when `ordered`, it is not known which rows they are.
        """
        places = np.concatenate(self._parts)
        if np.array_equal(places, np.arange(self.source_rows)):
            return None
        lost = int((places == UNKNOWN).sum())
        known, counts = np.unique(places[places != UNKNOWN], return_counts=True)
        if (counts > 1).any() or rows > self.source_rows:
            which = f"row {known[counts > 1][0]} is there {counts.max()} times; " if (counts > 1).any() else ""
            raise DataError(
                f"the Dataset's transform made {rows} rows of {self.source_rows}: {which}predict and evaluate need at "
                "most one for each row; leave rows that are doubled out of transform=, and double them before"
            )
        if lost and ordered:
            raise DataError(
                f"the Dataset's transform made {rows} rows of {self.source_rows}, and nobody can tell which: it does "
                f"not give back the column {NAME!r} that numbers the rows, or does not give the same twice; let it "
                "keep the columns that it is given, or drop such rows before predict"
            )
        return places


def _fields(manifest: Manifest, schema: pa.Schema, where: str, targets: bool) -> list[Field]:
    inputs = [field for field in manifest.fields if field.role == "inputs"]
    require(schema, [column.name for field in inputs for column in field.columns], where)
    there = set(schema.names)
    chosen = inputs
    for role in ("targets", "weights"):
        fields = [field for field in manifest.fields if field.role == role]
        if targets and all(column.name in there for field in fields for column in field.columns):
            chosen = chosen + fields
    return chosen


def _pieces(manifest: Manifest, data: Any, every: bool) -> Iterator[tuple[Any, RowOrigin]]:
    """The rows before any transform; `every`: all columns, not only those that a model reads."""
    names, encoded = None, []
    if isinstance(data, Dataset) and not every:
        columns = [column for field in manifest.fields for column in field.columns]
        names = list(dict.fromkeys(column.name for column in columns))
        encoded = [column.name for column in columns if column.encode]
    source = data.rows.source if isinstance(data, Dataset) else _source(manifest, data)
    for batch, name, first in source.pieces(names, encoded):
        yield batch, RowOrigin(name, first)


def _source(manifest: Manifest, data: Any) -> Source:
    if isinstance(data, pa.RecordBatchReader):
        return Reader(data, "the record batch reader")
    if isinstance(data, Mapping) and data:  # a column that no model reads may be of any type, slice by slice
        return Arrays({str(name): as_array(array, repr(name)) for name, array in data.items()}, "the arrays")
    if (table := table_of(data)) is not None:
        return Table(table, "the data frame" if is_pandas(data) else "the table")
    return Arrays(_split(manifest, as_array(data, "the data")), "the array")


def _split(manifest: Manifest, array: Array) -> dict[str, Array]:
    """One array as the columns of the single input."""
    fields = [field for field in manifest.fields if field.role == "inputs"]
    names = [column.name for field in fields for column in field.columns]
    if len(fields) != 1 or any(column.encode for column in fields[0].columns):
        raise DataError(
            f"one array of shape {array.shape}, but the model was trained on the columns {names}, some of them "
            f"categories or named inputs; give a data frame, a table or a dict of arrays with these columns"
        )
    (field,) = fields
    if not field.matrix:
        return {names[0]: array}
    widths = [math.prod(column.shape) for column in field.columns]
    if array.ndim != 2 or array.shape[1] != sum(widths):
        raise DataError(f"an array must have shape (rows, {sum(widths)}), for {names}, got {array.shape}")
    made, start = {}, 0
    for column, wide in zip(field.columns, widths, strict=True):
        made[column.name] = array[:, start : start + wide].reshape(len(array), *column.shape)
        start += wide
    return made
