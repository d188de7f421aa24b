"""Adds the predictions of a model to the record batches of a DataFrame, in executors.

A Meaning says what outputs are. "values": they are the prediction. "logits" and "probabilities": they belong to
classes, one to each class, or a single one to class 1 against class 0; the prediction is the number of the most
probable class.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hopyard.errors import DataError
from hopyard.formats.arrow import Array
from hopyard.spark.inference.arrays import to_column, to_vectors
from hopyard.spark.inference.bundle import ModelTicket
from hopyard.spark.inference.loaded import Invalid, cached_model, encoded, predicted
from hopyard.sparkapi.tasks import partition
from hopyard.training.predictor import Predictor

Meaning = Literal["values", "logits", "probabilities"]
"""What a model's outputs are."""


@dataclass(frozen=True, slots=True)
class Score:
    """The columns that are added: `prediction`, and for classes `probability` and `raw` unless these are empty."""

    ticket: ModelTicket
    meaning: Meaning
    prediction: str
    probability: str = ""
    raw: str = ""
    thresholds: tuple[float, ...] = ()
    """One for each class, or none: the class with the largest probability ÷ threshold is predicted."""
    invalid: Invalid = "error"


def score_batches(score: Score, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the batches of one Spark partition with the columns added.

    The first rows are encoded before the model is opened: where they cannot be, a task fails without an import of the
    model's framework, each of the times that Spark tries it.

    Raises:
        DataError: rows cannot be encoded; names the column, the row and the Spark partition.
    """
    model = cached_model(score.ticket)
    row = 0
    for batch in batches:
        first, row = row, row + batch.num_rows
        if not batch.num_rows:
            continue
        with _placed(score, model, first, batch):
            outputs, kept = predicted(model, batch, score.invalid)
        if outputs is None:  # each of its rows is left out
            continue
        rows = batch if kept is None else batch.filter(pa.array(kept))
        schema, columns = rows.schema, list(rows.columns)
        for name, column in score_columns(score, outputs).items():
            schema = schema.append(pa.field(name, column.type))
            columns.append(column)
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextmanager
def _placed(score: Score, model: Predictor, row: int, batch: Any) -> Iterator[None]:
    """Let a DataError say where in the DataFrame it is, and what handleInvalid= could do."""
    try:
        yield
    except DataError as error:
        hint = ""
        if score.invalid == "error":
            with suppress(DataError):
                for _ in encoded(model, batch, "skip"):
                    pass
                hint = '; or leave such rows out with handleInvalid="skip", or keep them, with NaN, with "keep"'
        raise DataError(f"Spark partition {partition()}, rows counted from its row {row}: {error}{hint}") from None


def score_columns(score: Score, outputs: Any) -> dict[str, Any]:
    """Return column name → Arrow array: doubles for one number a row, else lists; for several outputs structs."""
    if score.meaning == "values":
        return {score.prediction: to_column(_scalars(outputs), score.prediction)}
    class_probabilities = probabilities(score.meaning, outputs)
    columns = {
        score.raw: to_vectors(raw_predictions(score.meaning, outputs)) if score.raw else None,
        score.probability: to_vectors(class_probabilities) if score.probability else None,
        score.prediction: pa.array(_predicted(class_probabilities, score.thresholds)),
    }
    return {name: column for name, column in columns.items() if name}


def _predicted(class_probabilities: Array, thresholds: tuple[float, ...]) -> Array:
    """Return the number of the class with the largest probability ÷ threshold, float64 of shape (rows,); NaN where a
    probability is NaN. A class whose threshold is 0 is predicted wherever it has any probability."""
    shares = class_probabilities
    if thresholds:
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.nan_to_num(shares / np.array(thresholds), nan=-np.inf, posinf=np.inf)
    best: Array = shares.argmax(1).astype(np.float64)
    best[np.isnan(class_probabilities).any(1)] = np.nan
    return best


def raw_predictions(meaning: Meaning, outputs: Array) -> Array:
    """Return a float64 array of shape (rows, classes), larger for a class that is more likely: of two classes (−m, m),
    where m is the log-odds of class 1; of more classes the logits; where outputs are probabilities, these."""
    if meaning == "probabilities":
        return probabilities(meaning, outputs)
    values = np.asarray(outputs, np.float64)
    if values.ndim == 1 or values.shape[1] == 1:
        odds = values.reshape(-1)
    elif values.shape[1] == 2:
        odds = values[:, 1] - values[:, 0]
    else:
        return values
    return np.stack([-odds, odds], axis=1)


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


def _scalars(outputs: Any) -> Any:
    """Return outputs of one number a row as float64 of shape (rows,), others as they are."""
    if isinstance(outputs, dict):
        return {name: _scalars(part) for name, part in outputs.items()}
    values = np.asarray(outputs)
    if values.shape[1:] in ((), (1,)):
        return values.reshape(-1).astype(np.float64)
    return values
