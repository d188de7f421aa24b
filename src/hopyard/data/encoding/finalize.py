"""The second step of encoding: from raw arrays to what a model sees, when vocabularies, means, deviations are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hopyard.data.encoding.encoder import ONE_HOT_LIMIT, Vocabulary
from hopyard.data.encoding.exact_sums import ExactSums
from hopyard.data.encoding.schema import row_shape
from hopyard.data.manifest import ArrayInfo, Column, Field, Scale, Value
from hopyard.errors import DataError
from hopyard.formats.arrow import Array


class FeatureFinalizer:
    """Applies vocabularies and scales; the same bits for training rows and for those that `predict` is given."""

    def __init__(
        self, fields: list[Field], vocabularies: Mapping[str, Vocabulary], scales: Mapping[str, Scale]
    ) -> None:
        self.fields = fields
        self.vocabularies: dict[str, list[Value]] = {name: v.ordered_values() for name, v in vocabularies.items()}
        self.infos = [ArrayInfo(row_shape(field, self.vocabularies), field.dtype) for field in fields]
        self._ranks = {name: v.ranks() for name, v in vocabularies.items()}
        self._scales = scales
        for field in fields:
            for column in field.columns:
                if column.encode == "one-hot" and (size := len(self.vocabularies[column.name])) > ONE_HOT_LIMIT:
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
        out = np.empty((len(raw), *self.infos[number].shape), field.dtype)
        if not field.matrix and not field.columns[0].encode:
            self._scaled(field.columns[0], raw, out)
            return out
        stack = raw.reshape(len(raw), -1)
        start = stop = 0
        for column in field.columns:
            width = math.prod(column.shape)
            part = stack[:, start : start + width]
            start += width
            size = len(self.vocabularies[column.name]) if column.encode == "one-hot" else width
            target = out[:, stop : stop + size]
            stop += size
            if column.scaled:
                self._scaled(column, part, target)
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

    def _scaled(self, column: Column, part: Array, out: Array) -> None:
        scale, shape = self._scales[column.name], part.shape[1:]
        centred = part - np.array(scale.means).reshape(shape)
        centred /= np.array(scale.deviations).reshape(shape)
        np.copyto(out, centred, casting="same_kind")


def measure(moments: dict[str, ExactSums], fields: list[Field], number: int, block: Array) -> None:
    """Adds a raw block of field `number` to the sums of its standardized columns."""
    if not len(block):
        return
    stack, start = block.reshape(len(block), -1), 0
    for column in fields[number].columns:
        width = math.prod(column.shape)
        if column.scaled:
            moments.setdefault(f"{number}/{column.name}", ExactSums(width)).add(stack[:, start : start + width])
        start += width


def scales(moments: Mapping[str, ExactSums]) -> dict[str, Scale]:
    """Return the scale of each standardized column from the sums of all training rows; the deviation of a constant
    is 1.
    """
    return {
        name.partition("/")[2]: Scale(
            [sums.mean(at) for at in range(len(sums.sums))],
            [sums.deviation(at) or 1.0 for at in range(len(sums.sums))],
        )
        for name, sums in moments.items()
    }
