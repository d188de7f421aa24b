"""Encodes rows for `predict` and `evaluate` exactly as the training rows were, from the manifest alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hopyard.data.blocks import transformed
from hopyard.data.columns import Array, Columns, aligned, pack
from hopyard.data.dataset import Dataset
from hopyard.data.encoder import Encoder, Place
from hopyard.data.fetch import fixed
from hopyard.data.finish import Finisher
from hopyard.data.given import as_array, from_pandas
from hopyard.data.manifest import Field, Manifest
from hopyard.data.names import require
from hopyard.data.sources import Arrays, Reader, Source, Table
from hopyard.errors import DataError


def apply(
    manifest: Manifest, data: Any, transform: Callable[[Any], Any] | None = None, *, targets: bool = True
) -> Columns:
    """The rows of `data` in memory, in their order, as a model sees them.

    Args:
        manifest: of the training data; its cache entry is not needed.
        data: a Dataset (its own transform is applied; its `validation` is not), a pandas DataFrame, a pyarrow Table,
            RecordBatch or RecordBatchReader, a dict from column to array, or one array: the single input, or, when that
            is a list of number columns, these side by side.
        transform: of the training Dataset, if it had one; not used for a Dataset.
        targets: whether to give targets and weights, where their columns are there.

    Raises:
        DataError: a column is missing, has another type or shape, holds NaN, or a value that training never saw.
    """
    chosen: list[Field] = []
    encoder: Encoder | None = None
    known = fixed(manifest)
    blocks: list[list[Array]] = []
    finisher: Finisher | None = None
    for batch, place in _batches(manifest, data, transform):
        if encoder is None:
            chosen = _fields(manifest, batch.schema, str(place), targets)
            encoder = Encoder(chosen, known, strict=False)
            finisher = Finisher(chosen, known, manifest.standardize)
        raw = encoder.raw(batch, place)
        if not encoder.faults and finisher is not None:
            blocks.append([finisher(number, array) for number, array in enumerate(raw)])
    if encoder is None or finisher is None:
        raise DataError("no rows were given; give at least one")
    encoder.check()
    rows = sum(len(block[0]) for block in blocks)
    made: dict[str, dict[str, Array]] = {"inputs": {}, "targets": {}, "weights": {}}
    for number, (field, info) in enumerate(zip(chosen, finisher.infos, strict=True)):
        whole = aligned((rows, *info.shape), info.dtype)
        np.concatenate([block[number] for block in blocks], out=whole)
        made[field.role][field.name] = whole
    parts = (pack(made["inputs"], "inputs"), pack(made["targets"], "targets"), pack(made["weights"], "weights"))
    return Columns(*parts, rows)


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


def _batches(manifest: Manifest, data: Any, transform: Callable[[Any], Any] | None) -> Iterator[tuple[Any, Place]]:
    if isinstance(data, Dataset):
        yield from data.batches(
            list(dict.fromkeys(column.name for field in manifest.fields for column in field.columns))
        )
        return
    row = 0
    for batch, name, first in _source(manifest, data).pieces(None, []):
        place = Place(name, first)
        if transform is not None:
            place = Place(name, row, True)
            batch = transformed(transform, batch, name)  # noqa: PLW2901
        if batch.num_rows:
            yield batch, place
        row += batch.num_rows


def _source(manifest: Manifest, data: Any) -> Source:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        return Table(data, "the table")
    if isinstance(data, pa.RecordBatchReader):
        return Reader(data, "the record batch reader")
    if isinstance(data, Mapping):
        return Arrays({str(name): as_array(array, repr(name)) for name, array in data.items()}, "the arrays")
    if hasattr(data, "iloc"):
        return Table(from_pandas(data), "the data frame")
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
        raise DataError(f"an array of shape {array.shape} was given; (rows, {sum(widths)}) is needed, for {names}")
    made, start = {}, 0
    for column, wide in zip(field.columns, widths, strict=True):
        made[column.name] = array[:, start : start + wide].reshape(len(array), *column.shape)
        start += wide
    return made
