"""Predictions beside rows: what executors do with the record batches of a DataFrame and a model that travelled.

What outputs mean is one word. "values": they are the prediction. "logits" and "probabilities": they are of classes, of
each class one, or a single one of class 1 against class 0; the prediction is the number of the most probable class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hopyard.errors import DataError
from hopyard.formats.arrow import Array
from hopyard.spark.inference.arrays import to_column, to_vectors
from hopyard.spark.inference.bundle import Ticket
from hopyard.spark.inference.loaded import ready

Meaning = Literal["values", "logits", "probabilities"]
"""Of a model's outputs."""


@dataclass(frozen=True, slots=True)
class Score:
    """What is added to rows: the column `prediction`, and of classes `probability` unless that is empty."""

    ticket: Ticket
    meaning: Meaning
    prediction: str
    probability: str = ""


def scored(score: Score, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of one Spark partition with the columns added.

    Raises:
        DataError: rows that cannot be encoded; names the column, the row and the Spark partition.
    """
    row = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        try:
            outputs = ready(score.ticket)(batch)
        except DataError as error:
            raise DataError(f"Spark partition {partition()}, rows counted from its row {row}: {error}") from None
        schema, columns = batch.schema, list(batch.columns)
        for name, column in added(score, outputs).items():
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        row += batch.num_rows


def added(score: Score, outputs: Any) -> dict[str, Any]:
    """Column name → Arrow array: a double for outputs of one number a row, else lists, for several outputs a struct."""
    if score.meaning == "values":
        return {score.prediction: to_column(_scalars(outputs), score.prediction)}
    shares = probabilities(score.meaning, outputs)
    best = shares.argmax(1).astype(np.float64)
    best[np.isnan(shares).any(1)] = np.nan
    made = {score.prediction: pa.array(best)}
    return made | ({score.probability: to_vectors(shares)} if score.probability else {})


def probabilities(meaning: Meaning, outputs: Array) -> Array:
    """float64 array of shape (rows, classes) from outputs of shape (rows, classes), (rows, 1) or (rows,)."""
    values = np.asarray(outputs, np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        one = values.reshape(-1)
        if meaning == "logits":
            one = np.where(one >= 0, 1.0, np.exp(-np.abs(one))) / (1 + np.exp(-np.abs(one)))  # no overflow
        return np.stack([1 - one, one], axis=1)
    if meaning == "logits":
        values = np.exp(values - values.max(1, keepdims=True))
        values /= values.sum(1, keepdims=True)
    return values


def told(outputs: Any, classes: int | None) -> Meaning:
    """What outputs look like, when the user does not say.

    They are of classes when the label is (`classes` is not None) and they are one array of shape (rows, classes), or of
    one number a row for at most two classes. They are probabilities when every row adds up to 1 and none is negative;
    a single number, when it is in [0, 1] for all rows. Rows with NaN, as made-up ones may have, say nothing.
    """
    if classes is None or isinstance(outputs, dict):
        return "values"
    values = np.asarray(outputs, np.float64)
    one = values.ndim == 1 or values.shape[1:] == (1,)
    if values.ndim > 2 or (one and classes > 2):
        return "values"
    values = values[np.isfinite(values.reshape(len(values), -1)).all(1)]
    inside = bool(len(values) and (values >= 0).all() and (values <= 1).all())
    sure = one or np.allclose(values.sum(1), 1, atol=1e-3)
    return "probabilities" if inside and sure else "logits"


def partition() -> int:
    """Number of the Spark partition that this worker is at; -1 outside of any."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _scalars(outputs: Any) -> Any:
    """Outputs of one number a row as float64 of shape (rows,)."""
    if isinstance(outputs, dict):
        return {name: _scalars(part) for name, part in outputs.items()}
    values = np.asarray(outputs)
    if values.shape[1:] in ((), (1,)):
        return values.reshape(-1).astype(np.float64)
    return values
