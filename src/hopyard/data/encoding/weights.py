"""Checks the weights of rows: each must be at least 0, and some row of each kind must have one above 0.

A loss is a mean over rows by their weights. A weight below 0 turns the gradient around, and where all weights are 0
there is no mean at all.
"""

from __future__ import annotations

import numpy as np

from hopyard.data.manifest import Field
from hopyard.errors import DataError
from hopyard.formats.arrow import Array
from hopyard.spec import RowKind


def negative(weights: Array) -> int | None:
    """Return the first row whose weight is below 0, or None."""
    return int(np.argmax(weights < 0)) if len(weights) and weights.min() < 0 else None


class WeightCheck:
    """Checks that some row of each kind has a weight above 0.

    Args:
        fields: one for each raw array; without a weight among them, the check passes.

    Attributes:
        heaviest: kind → the largest weight of its rows; plain values, to be sent.
    """

    def __init__(self, fields: list[Field]) -> None:
        self.heaviest: dict[RowKind, float] = {}
        self._number = next((at for at, field in enumerate(fields) if field.role == "weights"), -1)
        self._column = fields[self._number].columns[0].name if self._number >= 0 else ""

    def take(self, raw: list[Array], is_validation: Array | None) -> None:
        """Adds one array of shape (rows, …) for each field. `is_validation`: which rows validate; None: none."""
        if self._number < 0:
            return
        weights = raw[self._number]
        self._add("train", weights if is_validation is None else weights[~is_validation])
        if is_validation is not None:
            self._add("validate", weights[is_validation])

    def merge(self, heaviest: dict[RowKind, float]) -> None:
        """Adds the largest weights of other rows."""
        for kind, weight in heaviest.items():
            self.heaviest[kind] = max(weight, self.heaviest.get(kind, 0.0))

    def check(self) -> None:
        """Raise DataError where all rows of a kind have the weight 0."""
        for kind, weight in self.heaviest.items():
            if not weight > 0:
                rows = "training" if kind == "train" else "validation"
                raise DataError(
                    f"weight column {self._column!r}: all {rows} rows have the weight 0, so that there is nothing to "
                    f"learn from or to measure with; give at least one of them a weight above 0, or leave weight= out"
                )

    def _add(self, kind: RowKind, weights: Array) -> None:
        if len(weights):
            self.merge({kind: float(weights.max())})
