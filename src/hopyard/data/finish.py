"""The second step of encoding: from raw arrays to what a model sees, when vocabularies, means, deviations are known."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from hopyard.data.columns import Array
from hopyard.data.encoder import ONE_HOT_LIMIT, Vocabulary
from hopyard.data.manifest import ArrayInfo, Column, Field, Scale, Value
from hopyard.data.plan import row_shape
from hopyard.errors import DataError


class Finisher:
    """Applies vocabularies and scales; the same bits for training rows and for those that `predict` is given."""

    def __init__(
        self, fields: list[Field], vocabularies: Mapping[str, Vocabulary], scales: Mapping[str, Scale]
    ) -> None:
        self.fields = fields
        self.vocabularies: dict[str, list[Value]] = {name: v.listed() for name, v in vocabularies.items()}
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
        """Rows of field `number`: shape (rows, *raw row shape) → (rows, *row shape). `raw` itself if it is so."""
        field = self.fields[number]
        if field.finished:
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
            wide = math.prod(column.shape)
            part = stack[:, start : start + wide]
            start += wide
            size = len(self.vocabularies[column.name]) if column.encode == "one-hot" else wide
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


Told = tuple[int, list[float], list[float]]
"""Moments in plain values: rows, means, sums of squares."""


class Moments:
    """Mean and deviation of each value of a row, over blocks that are always cut alike.

    Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", The American Statistician 1983,
    eq. 1.5: blocks are merged by count, mean and sum of squares about the mean. In float64.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._mean: Array = np.zeros(0)
        self._squares: Array = np.zeros(0)

    def add(self, block: Array) -> None:
        """Takes a float64 block of shape (rows, values)."""
        if not len(block):
            return
        mean = block.mean(axis=0)
        one = Moments()
        one.rows, one._mean, one._squares = len(block), mean, np.square(block - mean).sum(axis=0)
        self.merge(one)

    def merge(self, other: Moments) -> None:
        """Takes the rows that `other` has taken."""
        if not self.rows or not other.rows:
            self.rows, self._mean, self._squares = (
                (self.rows, self._mean, self._squares) if self.rows else (other.rows, other._mean, other._squares)
            )
            return
        total, apart = self.rows + other.rows, other._mean - self._mean
        self._squares = self._squares + other._squares + apart * apart * (self.rows * other.rows / total)
        self._mean = self._mean + apart * (other.rows / total)
        self.rows = total

    def told(self) -> Told:
        """What `heard` makes it of."""
        return self.rows, self._mean.tolist(), self._squares.tolist()

    @classmethod
    def heard(cls, told: Told) -> Moments:
        """As it was where it was told."""
        made = cls()
        made.rows, made._mean, made._squares = told[0], np.array(told[1]), np.array(told[2])
        return made

    def scale(self) -> Scale:
        """Population deviation; where it is 0 (a constant), 1."""
        deviation = np.sqrt(self._squares / self.rows)
        tiny = np.abs(self._mean) * 1e-15 * math.sqrt(self.rows)  # what rounding leaves of a constant
        return Scale(self._mean.tolist(), np.where(deviation > tiny, deviation, 1.0).tolist())


def measure(moments: dict[str, Moments], fields: list[Field], number: int, block: Array) -> None:
    """Adds a raw block of field `number` to the moments of its standardized columns."""
    stack, start = block.reshape(len(block), -1), 0
    for column in fields[number].columns:
        wide = math.prod(column.shape)
        if column.scaled:
            moments.setdefault(f"{number}/{column.name}", Moments()).add(stack[:, start : start + wide])
        start += wide


def scales(moments: Mapping[str, Moments]) -> dict[str, Scale]:
    """Scale of each standardized column from what `measure` made of all training rows."""
    return {name.partition("/")[2]: moment.scale() for name, moment in moments.items()}
