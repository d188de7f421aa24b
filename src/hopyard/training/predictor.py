"""A trained net that turns a user's rows into outputs, one for each row in their order, or into loss and metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from hopyard.data.columns import Columns
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import Manifest
from hopyard.data.new_rows import WITH_LABEL, apply
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.ragged import Ragged
from hopyard.errors import DataError, HopyardError, SpecError
from hopyard.formats.arrow import Array
from hopyard.frameworks import framework_of, model_file
from hopyard.ports.training import SupportsLabelCheck, SupportsPredict, SupportsResult
from hopyard.spec import Batch
from hopyard.training.build import Built, undisturbed
from hopyard.training.steps import over

log = logging.getLogger(__name__)

EXACT = 1 << 53
"""float64 holds every whole number up to this one."""


class Predictor:
    """A trained net and the encoding of its training data: what `Trial`, `SavedModel` and `hy.spark.predict` ask.

    Args:
        manifest: of the training data.
        tracker: runs the transform of the training data; None: it had none.
        build: returns the net with its weights. It is called once, when the net is first needed: what is wrong with
            rows is found before the net's framework is imported.
    """

    def __init__(self, manifest: Manifest, tracker: RowTracker | None, build: Callable[[], Built]) -> None:
        self.manifest = manifest
        self.tracker = tracker
        self._build: Callable[[], Built] | None = build

    @cached_property
    def built(self) -> Built:
        """The net."""
        assert self._build is not None
        built, self._build = self._build(), None  # which may hold the files that it was read from
        return built

    @property
    def net(self) -> SupportsPredict:
        """The net, where it can predict. Raises SpecError where it cannot."""
        trainable = self.built.trainable
        if not isinstance(trainable, SupportsPredict):
            raise SpecError(f"{type(trainable).__name__} has no method predict(batch): give it one")
        return trainable

    def model(self) -> Any:
        """Return the framework's own model, in evaluation mode, or the recipe's own Trainable."""
        trainable = self.built.trainable
        framework = framework_of(trainable)
        return trainable if framework is None else model_file(framework).model(trainable)

    def predict(self, data: Any) -> Any:
        """Return outputs as `Trial.predict` describes them; raises the same. The process stays as it was."""
        columns = self.encode(data)
        with undisturbed():
            return self.outputs(columns)

    def encode(self, data: Any, drop_invalid: bool = False) -> Columns:
        """Return rows as the net sees them: `data.new_rows.apply` without targets."""
        return apply(self.manifest, data, self.tracker, targets=False, drop_invalid=drop_invalid)

    def outputs(self, columns: Columns, least: int = 1, same_type: bool = False) -> Any:
        """Return `answers` for encoded rows. The net gets its batch size of them at once, or `least` if more."""
        return answers(self.net, columns, max(self.built.batch_size, least), same_type)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return loss and metrics as `Trial.evaluate` describes them; raises the same."""
        trainable = self.built.trainable
        columns = apply(self.manifest, data, self.tracker)
        dropped = (columns.source_rows or 0) - columns.rows
        if not columns.rows:
            raise DataError(f"evaluate: the Dataset's transform dropped all of the {dropped} rows")
        if dropped:
            log.warning("evaluate: the Dataset's transform dropped %d of %d rows", dropped, columns.source_rows)
        if columns.targets is None and self.manifest.targets:
            label = ", ".join(self.manifest.column_names("targets"))
            raise SpecError(f"evaluate: the data lacks the label ({label}); {WITH_LABEL}")
        with undisturbed():
            self._check_labels(columns)
            sums = over(self.built, PartitionLoader(columns, self.built.batch_size), train=False)
        loss, rows = sums.get("loss", (0.0, 1.0))
        if not isinstance(loss, list) and not (rows and math.isfinite(loss)):
            return dict.fromkeys(sums, math.nan)
        values = {}
        for name, (total, rows) in sums.items():
            if isinstance(total, list):
                if not isinstance(trainable, SupportsResult):
                    raise HopyardError(f"metric {name!r} is an array and the model has no result(name, total, rows)")
                values[name] = float(trainable.result(name, total, rows))
            else:
                values[name] = total / rows if rows else math.nan
        return values

    def _check_labels(self, columns: Columns) -> None:
        """Raise DataError for a label that the model has no output for, where it can tell."""
        trainable, labels = self.built.trainable, columns.targets
        if not isinstance(trainable, SupportsLabelCheck) or not isinstance(labels, np.ndarray) or labels.ndim != 1:
            return
        batch = next(iter(PartitionLoader(columns, self.built.batch_size)))
        if fault := trainable.label_fault(batch, float(labels.min()), float(labels.max())):
            (label,) = self.manifest.column_names("targets")
            raise DataError(f"evaluate: column {label!r}: {fault}; or drop such rows")


def answers(trainable: SupportsPredict, columns: Columns, batch_size: int, same_type: bool = False) -> Any:
    """Return outputs for all rows, each at the position of its row, with NaN for rows that were left out.

    Args:
        trainable: the model.
        columns: the result of `data.new_rows.apply`.
        batch_size: rows of each call of the model.
        same_type: whether the dtype of outputs with several numbers a row must not depend on dropped rows.

    Returns:
        Array of shape (source rows, …), or a dict of such. Whole numbers and booleans are float64 where rows were
        dropped.

    Raises:
        HopyardError: the model returns more or fewer answers than rows.
        DataError: rows were dropped, and answers are of a type that has no NaN.
    """
    parts: list[Any] = []
    for number, batch in enumerate(PartitionLoader(columns, batch_size)):
        try:
            parts.append(trainable.predict(batch))
        except Exception as error:
            first = number * batch_size
            error.add_note(
                f"The model raised this for rows {first} to {first + batch.rows - 1} of the encoded data. Columns and "
                "types are those of the training rows, so perhaps a value is one that none of those had."
            )
            raise
    if not parts:  # all rows were dropped: a row of zeros shows shapes and types
        parts = [_each(trainable.predict(_zeros(columns)), lambda array: array[:0])]
    return _each(joined(parts), lambda array: _at_source_rows(array, columns, same_type))


def joined(parts: list[Any]) -> Any:
    """Return the outputs of all parts, one after another: arrays of shape (rows, …), or dicts of such."""
    if isinstance(parts[0], dict):
        return {name: joined([part[name] for part in parts]) for name in parts[0]}
    shapes = sorted({part.shape[1:] for part in parts})
    if len(shapes) > 1:
        raise HopyardError(
            f"predict(batch) gave answers of shape {shapes[0]} a row for some batches and {shapes[-1]} for others: "
            "rows of any length are padded to the longest of their batch; give answers of one shape, such as a mean "
            "over the values that the mask has"
        )
    return np.concatenate(parts)  # a copy of a single part too, which the model may fill anew


def _at_source_rows(array: Array, columns: Columns, same_type: bool) -> Array:
    if len(array) != columns.rows:
        raise HopyardError(
            f"predict(batch) must give one answer for each row, gave {len(array)} for {columns.rows} rows"
        )
    if columns.places is None:
        return array
    total = columns.rows if columns.source_rows is None else columns.source_rows
    if columns.rows == total:
        outputs = np.empty_like(array)
    else:
        outputs = np.full(
            (total, *array.shape[1:]), np.nan, _with_nan(array, same_type and array.shape[1:] not in ((), (1,)))
        )
    outputs[columns.places] = array
    return outputs


def _with_nan(array: Array, same_type: bool) -> Any:
    """Return the array's dtype, or float64 for numbers that lack NaN. Raises DataError where neither will do."""
    if array.dtype.kind in "fc":
        return array.dtype
    exact = array.dtype.kind == "b" or (
        array.dtype.kind in "iu" and (not array.size or (array.min() >= -EXACT and array.max() <= EXACT))
    )
    if same_type or not exact:
        raise DataError(
            f"rows were left out (by the Dataset's transform, or as handleInvalid= says), and answers of type "
            f"{array.dtype} have no NaN that could stand in their place; drop such rows before predict"
        )
    return np.dtype(np.float64)


def _zeros(columns: Columns) -> Batch:
    def row(array: Any) -> Any:
        if isinstance(array, Ragged):
            return Ragged.of(np.zeros(1, array.dtype), np.ones(1, np.int64))
        return np.zeros((1, *array.shape[1:]), array.dtype)

    return next(iter(PartitionLoader(Columns(_each(columns.inputs, row), None, None, 1, masks=columns.masks), 1)))


def _each(value: Any, function: Any) -> Any:
    return {name: function(array) for name, array in value.items()} if isinstance(value, dict) else function(value)
