"""Adds the predictions of a model to the record batches of a DataFrame, in executors.

A Meaning says what outputs are. "values": they are the prediction. "logits" and "probabilities": they belong to
classes, one to each class, or a single one to class 1 against class 0; the prediction is the number of the most
probable class.
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
from hopyard.spark.inference.loaded import cached_model

Meaning = Literal["values", "logits", "probabilities"]
"""What a model's outputs are."""


@dataclass(frozen=True, slots=True)
class Score:
    """The columns that are added: `prediction`, and for classes `probability` unless that is empty."""

    ticket: Ticket
    meaning: Meaning
    prediction: str
    probability: str = ""


def score_batches(score: Score, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of one Spark partition with the columns added.

    Raises:
        DataError: rows cannot be encoded; names the column, the row and the Spark partition.
    """
    row = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        try:
            outputs = cached_model(score.ticket)(batch)
        except DataError as error:
            raise DataError(f"Spark partition {partition()}, rows counted from its row {row}: {error}") from None
        schema, columns = batch.schema, list(batch.columns)
        for name, column in score_columns(score, outputs).items():
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        row += batch.num_rows


def score_columns(score: Score, outputs: Any) -> dict[str, Any]:
    """Return column name → Arrow array: doubles for one number a row, else lists; for several outputs structs."""
    if score.meaning == "values":
        return {score.prediction: to_column(_scalars(outputs), score.prediction)}
    class_probabilities = probabilities(score.meaning, outputs)
    best = class_probabilities.argmax(1).astype(np.float64)
    best[np.isnan(class_probabilities).any(1)] = np.nan
    columns = {score.prediction: pa.array(best)}
    return columns | ({score.probability: to_vectors(class_probabilities)} if score.probability else {})


def probabilities(meaning: Meaning, outputs: Array) -> Array:
    """Return a float64 array of shape (rows, classes) from outputs of shape (rows, classes), (rows, 1) or (rows,)."""
    values = np.asarray(outputs, np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        flat = values.reshape(-1)
        if meaning == "logits":
            flat = np.where(flat >= 0, 1.0, np.exp(-np.abs(flat))) / (1 + np.exp(-np.abs(flat)))  # no overflow
        return np.stack([1 - flat, flat], axis=1)
    if meaning == "logits":
        values = np.exp(values - values.max(1, keepdims=True))
        values /= values.sum(1, keepdims=True)
    return values


def infer_meaning(outputs: Any, classes: int | None) -> Meaning:
    """Return what outputs look like, when the user does not say what they are.

    They belong to classes when the label does (`classes` is not None) and they are one array of shape (rows, classes),
    or of one number a row for at most two classes. They are probabilities when every row adds up to 1 and none is
    negative; a single number, when it is in [0, 1] for all rows. Rows with NaN, as made-up ones may have, are left out.
    """
    if classes is None or isinstance(outputs, dict):
        return "values"
    values = np.asarray(outputs, np.float64)
    single = values.ndim == 1 or values.shape[1:] == (1,)
    if values.ndim > 2 or (single and classes > 2):
        return "values"
    values = values[np.isfinite(values.reshape(len(values), -1)).all(1)]
    in_range = bool(len(values) and (values >= 0).all() and (values <= 1).all())
    normalized = single or np.allclose(values.sum(1), 1, atol=1e-3)
    return "probabilities" if in_range and normalized else "logits"


def partition() -> int:
    """Return the number of the Spark partition that this worker processes; -1 outside of any."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return -1 if context is None else context.partitionId()


def _scalars(outputs: Any) -> Any:
    """Return outputs of one number a row as float64 of shape (rows,), others as they are."""
    if isinstance(outputs, dict):
        return {name: _scalars(part) for name, part in outputs.items()}
    values = np.asarray(outputs)
    if values.shape[1:] in ((), (1,)):
        return values.reshape(-1).astype(np.float64)
    return values
