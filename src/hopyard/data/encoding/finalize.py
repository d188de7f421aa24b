"""The second step of encoding: from raw arrays to what a model sees, when vocabularies, means, deviations are known."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hopyard.data.columns import batch_bytes
from hopyard.data.encoding.encoder import ONE_HOT_LIMIT, Vocabulary
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.schema import row_shape, width
from hopyard.data.manifest import ArrayInfo, Column, Field, Scale, Value
from hopyard.errors import DataError
from hopyard.formats.arrow import Array

_BLOCK_BYTES = 1 << 20
"""About how many bytes of rows of few columns are finalized at once."""
_TOGETHER = 64
"""Values of a row after which no further column is added up in the same NumPy calls."""


class FeatureFinalizer:
    """Applies vocabularies and scales; the same bits for training rows and for those that `predict` is given."""

    def __init__(
        self,
        fields: list[Field],
        vocabularies: Mapping[str, Vocabulary],
        scales: Mapping[str, Scale],
        fills: Mapping[str, Value] | None = None,
    ) -> None:
        self.fields = fields
        categories = {name: v.fill for name, v in vocabularies.items() if v.fill is not None}
        self.fills: dict[str, Value] = {**(fills or {}), **categories}
        self.vocabularies: dict[str, list[Value]] = {name: v.ordered_values() for name, v in vocabularies.items()}
        self.infos = [ArrayInfo(row_shape(field, self.vocabularies), field.dtype) for field in fields]
        self._ranks = {name: v.ranks() for name, v in vocabularies.items()}
        self._scales = scales
        for field in fields:
            for column in field.columns:
                if column.encode == "one-hot" and (size := width(column, self.vocabularies)) > ONE_HOT_LIMIT:
                    raise DataError(
                        f"column {column.name!r} has {size} different values, more than the {ONE_HOT_LIMIT} that a "
                        f'one-hot column may have; use encode={{{column.name!r}: "index"}} with an embedding'
                    )

    def __call__(self, number: int, raw: Array) -> Array:
        """Finalizes rows of field `number`: (rows, *raw row shape) → (rows, *row shape). May return `raw` itself."""
        field = self.fields[number]
        if field.is_final:
            return raw
        if not field.matrix and field.columns[0].encode == "index":
            return np.asarray(self._ranks[field.columns[0].name][raw])
        shape: Any = self.infos[number].shape
        out = np.empty((len(raw), *shape), field.dtype)
        if not field.matrix and not field.columns[0].encode:
            self._number(field.columns[0], raw, out)
            return out
        stack = raw.reshape(len(raw), -1)
        start = stop = 0
        for column in field.columns:
            raw_width, size = column.size, width(column, self.vocabularies)
            part = stack[:, start : start + raw_width]
            start += raw_width
            target = out[:, stop : stop + size]
            stop += size
            if column.scaled or column.is_filled:
                self._number(column, part, target)
            elif column.encode:
                codes = self._ranks[column.name][part[:, 0].astype(np.int64)]
                if column.encode == "one-hot":
                    target[...] = 0
                    target[np.arange(len(codes)), codes] = 1
                else:
                    target[:, 0] = codes
            else:
                target[...] = part
        return out

    def _number(self, column: Column, part: Array, out: Array) -> None:
        if column.is_filled:
            part = np.where(np.isnan(part), float(self.fills[column.name]), part)
        if not column.scaled:
            np.copyto(out, part, casting="same_kind")
            return
        scale, shape = self._scales[column.name], part.shape[1:]
        centred = part - np.array(scale.means).reshape(shape)
        centred /= np.array(scale.deviations).reshape(shape)
        np.copyto(out, centred, casting="same_kind")


def block_bytes(fields: Sequence[Field]) -> int:
    """Return about how many bytes of rows of these fields to finalize at once."""
    return batch_bytes(sum(len(field.columns) for field in fields), _BLOCK_BYTES)


def is_measured(column: Column) -> bool:
    """Whether the sums of a column's training rows are needed."""
    return column.scaled or column.impute == "mean"


def measure(moments: dict[str, ExactSums], fields: list[Field], number: int, block: Array) -> None:
    """Adds a raw block of field `number` to the sums of its columns that are measured; missing values do not count."""
    if not len(block):
        return
    stack, stop = block.reshape(len(block), -1), 0
    measured: list[tuple[Column, int, int]] = []
    for column in fields[number].columns:
        start, stop = stop, stop + column.size
        if is_measured(column):
            measured.append((column, start, stop))
        ends = not is_measured(column) or column is fields[number].columns[-1]
        if measured and (ends or stop - measured[0][1] >= _TOGETHER):
            _measure(moments, number, stack, measured)
            measured = []


def _measure(
    moments: dict[str, ExactSums], number: int, stack: Array, columns: Sequence[tuple[Column, int, int]]
) -> None:
    """Add the values of neighbouring columns to their sums. A NumPy call for each column would take longer than its
    additions."""
    first = columns[0][1]
    values = stack[:, first : columns[-1][2]]
    missing = np.isnan(values)
    counts = np.count_nonzero(missing, axis=0)
    if counts.any():
        values = np.where(missing, 0.0, values)  # a 0 adds nothing to either sum
    sums = ExactSums(values.shape[1])
    sums.add(values)
    for column, start, stop in columns:
        part = sums.part(start - first, stop - first, int(counts[start - first]) if column.impute else 0)
        key = f"{number}/{column.name}"
        if key in moments:
            moments[key].merge(part)
        else:
            moments[key] = part


def count_categories(
    vocabularies: Mapping[str, Vocabulary], columns: Collection[str], field: Field, block: Array
) -> None:
    """Counts the values of these columns of categories in a raw block of training rows."""
    stack, start = block.reshape(len(block), -1), 0
    for column in field.columns:
        if column.encode and column.name in columns:
            vocabularies[column.name].count(stack[:, start].astype(np.int64))
        start += column.size


def scales(moments: Mapping[str, ExactSums], fields: list[Field]) -> dict[str, Scale]:
    """Return the scale of each standardized column from the sums of all training rows; the deviation of a constant
    is 1.
    """
    return {
        column.name: Scale(
            [sums.mean(at) for at in range(len(sums.sums))],
            [sums.deviation(at) or 1.0 for at in range(len(sums.sums))],
        )
        for column, sums in _measured(moments, fields)
        if column.scaled
    }


def means(moments: Mapping[str, ExactSums], fields: list[Field]) -> dict[str, Value]:
    """Return the mean of each column whose missing values it stands for."""
    return {column.name: sums.mean(0) for column, sums in _measured(moments, fields) if column.impute == "mean"}


def _measured(moments: Mapping[str, ExactSums], fields: list[Field]) -> Iterator[tuple[Column, ExactSums]]:
    columns = {f"{number}/{column.name}": column for number, field in enumerate(fields) for column in field.columns}
    for key, sums in moments.items():
        column = columns[key]
        name = column.name
        if not sums.rows:
            raise DataError(
                f"column {name!r}: the value of every training row is missing, so there is no mean; leave the column "
                "out, or give impute= a number for it and leave it out of standardize="
            )
        yield column, sums
