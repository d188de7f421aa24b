"""Least and largest label, over all rows."""

from __future__ import annotations

from typing import Any

from hopyard.data.manifest import Field
from hopyard.formats.arrow import Array

Range = tuple[float, float]


class LabelRange:
    """Finds the range of a label that is one column of one number a row; other labels have none."""

    def __init__(self, fields: list[Field]) -> None:
        self.range: Range | None = None
        targets = [number for number, field in enumerate(fields) if field.role == "targets"]
        single = len(targets) == 1 and not fields[targets[0]].matrix and fields[targets[0]].columns[0].shape == ()
        self._number = targets[0] if single else -1
        self._field = fields[targets[0]] if single else None

    def take(self, raw: list[Array]) -> None:
        """Adds rows: one array for each field."""
        if self._field is not None and len(raw[self._number]):
            labels = raw[self._number]
            self.merge((float(labels.min()), float(labels.max())))

    def merge(self, other: Range | None) -> None:
        """Adds the range of other rows."""
        if other is not None:
            current = self.range or other
            self.range = (min(current[0], other[0]), max(current[1], other[1]))

    def result(self, lists: dict[str, list[Any]]) -> tuple[int | None, Range | None]:
        """Return (classes, label range), given the values of each column of categories."""
        if self._field is None or self.range is None or self._field.columns[0].encode == "one-hot":
            return None, None
        if self._field.columns[0].encode:
            size = len(lists[self._field.columns[0].name])
            return size, (0.0, float(size - 1))
        are_classes = self._field.dtype == "int64" and self.range[0] >= 0
        return (int(self.range[1]) + 1 if are_classes else None), self.range
