"""Over all rows: the least and the largest label, and the largest weight of training and of validation rows.

A loss is a mean over rows by their weights. A weight below 0, which `encoder` refuses, turns the gradient around, and
where all weights are 0 there is no mean at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hopyard.data.manifest import Field
from hopyard.errors import DataError
from hopyard.formats.arrow import Array
from hopyard.spec import RowKind

Range = tuple[float, float]


class Extremes(msgspec.Struct):
    """The extremes of the rows so far; it can be sent."""

    labels: Range | None = None
    """The range of a label that is one column of one number a row; other labels have none."""
    heaviest: dict[RowKind, float] = {}
    """Kind → the largest weight of its rows; empty without a weight."""

    def take(self, fields: Sequence[Field], raw: list[Array], is_validation: Array | None) -> None:
        """Adds one array of shape (rows, …) for each field. `is_validation`: which rows validate; None: none."""
        label = _label(fields)
        for field, values in zip(fields, raw, strict=True):
            if field is label and len(values):
                self.merge(Extremes((float(values.min()), float(values.max()))))
            if field.role == "weights":
                self._add("train", values if is_validation is None else values[~is_validation])
                self._add("validate", values[:0] if is_validation is None else values[is_validation])

    def merge(self, other: Extremes) -> None:
        """Adds the extremes of other rows."""
        if other.labels is not None:
            least, largest = self.labels or other.labels
            self.labels = min(least, other.labels[0]), max(largest, other.labels[1])
        for kind, weight in other.heaviest.items():
            self.heaviest[kind] = max(weight, self.heaviest.get(kind, 0.0))

    def check(self, fields: Sequence[Field]) -> None:
        """Raise DataError where all rows of a kind have the weight 0."""
        for kind, weight in self.heaviest.items():
            if not weight > 0:
                column = next(field.columns[0].name for field in fields if field.role == "weights")
                rows = "training" if kind == "train" else "validation"
                raise DataError(
                    f"weight column {column!r}: all {rows} rows have the weight 0, so that there is nothing to "
                    f"learn from or to measure with; give at least one of them a weight above 0, or leave weight= out"
                )

    def result(self, fields: Sequence[Field], lists: dict[str, list[Any]]) -> tuple[int | None, Range | None]:
        """Return (classes, label range), given the values of each column of categories."""
        label = _label(fields)
        if label is None or self.labels is None or label.columns[0].encode == "one-hot":
            return None, None
        if label.columns[0].encode:
            size = len(lists[label.columns[0].name])
            return size, (0.0, float(size - 1))
        are_classes = label.dtype == "int64" and self.labels[0] >= 0
        return (int(self.labels[1]) + 1 if are_classes else None), self.labels

    def _add(self, kind: RowKind, weights: Array) -> None:
        if len(weights):
            self.merge(Extremes(heaviest={kind: float(weights.max())}))


def _label(fields: Sequence[Field]) -> Field | None:
    """Return the label that is one column of one number a row."""
    targets = [field for field in fields if field.role == "targets"]
    single = len(targets) == 1 and not targets[0].matrix and targets[0].columns[0].shape == ()
    return targets[0] if single else None
