"""Encodes rows for `predict` and `evaluate` exactly as the training rows were, from the manifest alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.columns import Columns, aligned, pack
from hopyard.data.dataset import Dataset
from hopyard.data.encoding.encoder import Encoder, RowOrigin
from hopyard.data.encoding.faults import listed
from hopyard.data.encoding.finalize import FeatureFinalizer
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import Field, Manifest
from hopyard.data.ragged import joined
from hopyard.data.shared.fetch import fixed_vocabularies
from hopyard.data.sources import Source, parquet
from hopyard.data.sources.memory import Arrays, Table
from hopyard.data.sources.of import arrow_source, as_array, is_pandas, table_of
from hopyard.errors import DataError
from hopyard.formats.arrow import Array, require
from hopyard.text import shown

log = logging.getLogger(__name__)

UNKNOWN = -1
"""Stands for the number of a row that is not known."""
TRUSTED = (
    "the Dataset's transform does not give back the column that numbers the rows (or not as it was): answers "
    "are taken to stand in the order of the rows that went in. A transform that keeps the columns that it is given has "
    "each answer put at its row, also where it filters or sorts"
)

WITH_LABEL = (
    'evaluate takes rows with their label as one value: {"inputs": x, "targets": y} where training had arrays, else a '
    "DataFrame, a table, a dict of arrays or a Dataset with the columns that it had"
)

MOVED = (
    "the Dataset's transform gives rows in another order, and does not give back the column that numbers "
    "them, so nobody can tell which answer is whose; let it keep the columns that it is given"
)


def apply(
    manifest: Manifest,
    data: Any,
    transform: Callable[[Any], Any] | RowTracker | None = None,
    *,
    targets: bool = True,
    drop_invalid: bool = False,
) -> Columns:
    """Return the rows of `data` in memory as a model sees them, and for each of them the number of its source row.

    Args:
        manifest: of the training data; its cache entry is not needed.
        data: a Dataset (its own transform, if any, is used instead of `transform`; its `validation` is not used), a
            pandas DataFrame, whatever else Dataset.arrow takes but iterables, the path of Parquet files, a dict from
            column to array, a list of dicts, or one array: the single input, or, when that is a list of number columns,
            these side by side.
        transform: that of the training Dataset, if it had one. A RowTracker keeps its findings for the next call.
        targets: whether to return targets and weights, if their columns exist. Without them (`predict`) the source row
            of each row must be known; with them (`evaluate`) it is enough to know how many rows there are.
        drop_invalid: leave out rows with null, NaN, infinity or a value that training never saw, as a transform that
            drops them would.

    Raises:
        DataError: a column is missing, has another type or shape, holds NaN, or a value that training never saw; the
            transform duplicates rows; or, without `targets`, it drops or moves rows and does not show which.
    """
    if isinstance(data, Dataset) and data.transform is not None:
        transform = data.transform
    tracker = RowTracker(transform) if callable(transform) and not isinstance(transform, RowTracker) else transform
    model_columns = [c.name for field in manifest.fields if targets or field.role == "inputs" for c in field.columns]
    fields: list[Field] = []
    encoder: Encoder | None = None
    vocabularies = fixed_vocabularies(manifest)
    blocks: list[list[Any]] = []
    finisher: FeatureFinalizer | None = None
    places = RowNumbers()
    rows = 0
    for piece, piece_origin in _pieces(manifest, data, tracker is not None):
        if not piece.num_rows:
            continue
        batch, origin, numbers = piece, piece_origin, None
        if tracker is not None:
            origin = RowOrigin(piece_origin.name, rows, True)
            batch, numbers = tracker(
                piece, places.source_rows, model_columns, f"{piece_origin.name}, rows from {piece_origin.row}"
            )
        if encoder is None and batch.num_rows:
            fields = _fields(manifest, batch.schema, str(origin), targets)
            encoder = Encoder(fields, vocabularies, strict=False, drops=drop_invalid)
            finisher = FeatureFinalizer(fields, vocabularies, manifest.standardize, manifest.fills)
        raw: list[Any] = []
        valid = np.arange(batch.num_rows)
        while encoder is not None and len(valid):
            raw = encoder.raw(batch.take(pa.array(valid)) if len(valid) < batch.num_rows else batch, origin)
            if not drop_invalid or not encoder.faults:
                break
            encoder.faults.clear()
            valid = valid[~encoder.refused]
        places.add(piece.num_rows, batch.num_rows, numbers, valid)
        rows += len(valid)
        if encoder is not None and finisher is not None and len(valid) and not encoder.faults:
            blocks.append([finisher(number, array) for number, array in enumerate(raw)])
    if not places.source_rows:
        raise DataError("data must have rows: it has none; give at least one")
    if encoder is None or finisher is None:  # the transform dropped all
        fields = [field for field in manifest.fields if field.role == "inputs"]
        finisher = FeatureFinalizer(fields, vocabularies, manifest.standardize, manifest.fills)
    elif encoder.faults:
        raise DataError(
            f"the data holds values that the model cannot be given:\n{listed(encoder.faults)}\ndrop or fill them first"
        )
    source_places = places.result(rows, ordered=not targets)
    if tracker is not None and not targets and places.trusted:
        if tracker.moves:
            raise DataError(MOVED)
        if not tracker.warned:
            tracker.warned = True
            log.warning(TRUSTED)
    arrays: dict[str, dict[str, Any]] = {"inputs": {}, "targets": {}, "weights": {}}
    for number, (field, info) in enumerate(zip(finisher.fields, finisher.infos, strict=True)):
        parts = [block[number] for block in blocks]
        if field.is_ragged:
            arrays[field.role][field.name] = joined(parts, info.dtype)
            continue
        shape: Any = info.shape
        column_array = aligned((rows, *shape), info.dtype)
        if parts:
            np.concatenate(parts, out=column_array)
        arrays[field.role][field.name] = column_array
    packed = (pack(arrays["inputs"], "inputs"), pack(arrays["targets"], "targets"), pack(arrays["weights"], "weights"))
    return Columns(*packed, rows, source_rows=places.source_rows, places=source_places, masks=manifest.masks)


def check_types(manifest: Manifest, schema: pa.Schema, source_label: str) -> None:
    """Check the types of columns with one number a row before there are rows.

    Args:
        manifest: of the training data.
        schema: of rows that the model is to be given; other columns than the model's are allowed.
        source_label: their origin, for the message.

    Raises:
        DataError: a column is missing, or has a type that cannot be encoded; all of these are named.
    """
    faults = []
    for field in _fields(manifest, schema, source_label, targets=False):
        for column in field.columns:
            kind = schema.field(column.name).type
            if column.encode or column.shape or pa.types.is_null(kind):
                continue  # whether values are categories, and how long lists are, only rows tell
            single = Field("inputs", column.name, False, [column], field.raw, field.raw)
            no_rows = pa.RecordBatch.from_arrays([pa.array([], kind)], [column.name])
            try:
                Encoder([single], {}, strict=False).raw(no_rows, RowOrigin(source_label, 0))
            except DataError as error:
                faults.append(str(error))
    if faults:
        raise DataError("\n".join(faults))


class RowNumbers:
    """Collects, batch by batch, the number of the source row of each row of the transform's result.

    Attributes:
        source_rows: how many rows went into the transform so far.
        trusted: whether the rows of some batch were assumed to keep their order, as the transform does not show it.
    """

    def __init__(self) -> None:
        self.source_rows = 0
        self.trusted = False
        self._parts: list[Array] = []

    def add(self, before: int, after: int, numbers: Array | None, valid: Array) -> None:
        """Records that a batch of `before` rows became `after` rows.

        Args:
            before: rows that went into the transform.
            after: rows that came out.
            numbers: their source rows; None: not known, or all rows in their order.
            valid: which of those that came out are left, by their places there.
        """
        if numbers is None and before == after:
            numbers = np.arange(self.source_rows, self.source_rows + before)
            self.trusted = True
        numbers = np.full(after, UNKNOWN) if numbers is None else numbers
        self._parts.append(numbers[valid])
        self.source_rows += before

    def result(self, rows: int, ordered: bool) -> Array | None:
        """Return the value of `Columns.places`.

        Raises:
            DataError: some rows are duplicated; or, when `ordered`, it is not known which rows they are.
        """
        places = np.concatenate(self._parts)
        if np.array_equal(places, np.arange(self.source_rows)):
            return None
        unknown = int((places == UNKNOWN).sum())
        numbers, counts = np.unique(places[places != UNKNOWN], return_counts=True)
        if (counts > 1).any() or rows > self.source_rows:
            repeated = f"row {numbers[counts > 1][0]} is there {counts.max()} times; " if (counts > 1).any() else ""
            raise DataError(
                f"the Dataset's transform made {rows} rows of {self.source_rows}: {repeated}predict and evaluate need "
                "at most one for each row; leave rows that are doubled out of transform=, and double them before"
            )
        if unknown and ordered:
            raise DataError(
                f"the Dataset's transform made {rows} rows of {self.source_rows}, and nobody can tell which: it does "
                "not give back the column that numbers the rows, or does not give the same twice; let it "
                "keep the columns that it is given, or drop such rows before predict"
            )
        return places


def _fields(manifest: Manifest, schema: pa.Schema, source_label: str, targets: bool) -> list[Field]:
    require(schema, manifest.column_names("inputs"), source_label)
    roles = {"inputs"}
    if targets:
        roles |= {role for role in ("targets", "weights") if set(manifest.column_names(role)) <= set(schema.names)}
    return [field for field in manifest.fields if field.role in roles]


def _pieces(manifest: Manifest, data: Any, all_columns: bool) -> Iterator[tuple[Any, RowOrigin]]:
    """Yield the rows before any transform. `all_columns`: read all, not only those that a model needs."""
    names, encoded = None, []
    if not all_columns:
        columns = [column for field in manifest.fields for column in field.columns]
        names = list(dict.fromkeys(column.name for column in columns))
        encoded = [column.name for column in columns if column.encode]
    if isinstance(data, Dataset):
        pieces = data.rows.source.pieces(names, encoded)
    else:
        pieces = _source(manifest, data, names).pieces(None, [])
    for batch, name, first in pieces:
        yield batch, RowOrigin(name, first)


def _source(manifest: Manifest, data: Any, names: list[str] | None) -> Source:
    """Return the source of rows that are no Dataset. `names`: the columns that a model may read, if not all."""
    if isinstance(data, (str, os.PathLike)):
        return parquet.ParquetFiles(parquet.find(data))
    if isinstance(data, Mapping) and data:  # a column that no model reads may be of any type, slice by slice
        return Arrays({str(name): as_array(array, repr(name)) for name, array in data.items()}, "the arrays")
    if is_pandas(data) and (array := _unnamed(manifest, data)) is not None:
        return Arrays(_split(manifest, array), "the data frame")
    if is_pandas(data) and names is not None and any(read := [name in names for name in data.columns]):
        data = data.loc[:, read]  # a column that no model reads may hold anything
    if not is_pandas(data) and (known := arrow_source(data, names is not None)) is not None:
        return known[0]
    if (table := table_of(data)) is not None:
        return Table(table, "the data frame" if is_pandas(data) else "the table", names is not None)
    try:
        array = as_array(data, "the data")
    except DataError as error:
        if isinstance(data, tuple) and len(data) == 2:
            raise DataError(f"the data must be one value, got a tuple of two; {WITH_LABEL}") from error
        raise
    if not array.ndim:
        raise DataError(
            "data must be a Dataset, a DataFrame, a table, the path of Parquet files, a dict of arrays or an array, "
            f"got {shown(data)}"
        )
    return Arrays(_split(manifest, array), "the array")


def _unnamed(manifest: Manifest, frame: Any) -> Array | None:
    """Return a data frame of numbers as an array, as Dataset.numpy takes one, where the model was trained on one array
    and the frame has no column of its name; else None."""
    if manifest.column_names("inputs") != ["inputs"] or "inputs" in frame.columns:
        return None
    array = as_array(frame, "the data frame")
    return array if array.dtype.kind in "biuf" else None


def _split(manifest: Manifest, array: Array) -> dict[str, Array]:
    """Return one array as the columns of the single input."""
    fields = [field for field in manifest.fields if field.role == "inputs"]
    names = manifest.column_names("inputs")
    if len(fields) != 1 or any(column.encode for column in fields[0].columns):
        raise DataError(
            f"one array of shape {array.shape}, but the model was trained on the columns {names}, some of them "
            f"categories or named inputs; give a data frame, a table or a dict of arrays with these columns"
        )
    (field,) = fields
    if not field.matrix:
        return {names[0]: array}
    widths = [column.size for column in field.columns]
    if array.ndim != 2 or array.shape[1] != sum(widths):
        raise DataError(f"an array must have shape (rows, {sum(widths)}), for {names}, got {array.shape}")
    columns, start = {}, 0
    for column, width in zip(field.columns, widths, strict=True):
        columns[column.name] = array[:, start : start + width].reshape(len(array), *column.shape)
        start += width
    return columns
