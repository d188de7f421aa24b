"""Sums that do not depend on order: each is exact, so means and deviations do not depend on how rows were cut.

Source: blocks are taken apart by Rump, Ogita, Oishi, "Accurate floating-point summation part I: faithful rounding",
SIAM Journal on Scientific Computing 2008, algorithm 3.2 (ExtractVector); squares by Dekker, "A floating-point technique
for extending the available precision", Numerische Mathematik 1971 (TwoProduct). Totals are whole numbers of 2⁻¹⁰⁷⁴, the
least positive float64, in Python's integers.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from hopyard.formats.arrow import Array

UNIT = 1074
"""Totals are multiples of 2 to the power of minus this."""
_BITS = 13
_ROWS = 1 << (_BITS - 1)
"""Rows taken apart at once: their high parts, cut to 53 − 13 bits, add up without rounding."""
_SPLIT = 2.0**27 + 1


PackedSums = tuple[int, list[str], list[str]]
"""Rows, sums and squares as plain values: whole numbers in hexadecimal, as they are longer than 64 bits."""


class ExactSums:
    """Exact sum and sum of squares of each value of a row.

    A square whose lowest bits are below the least positive float64 is cut there; that depends on the value alone.
    """

    def __init__(self, width: int) -> None:
        self.rows = 0
        self.sums = [0] * width
        self.squares = [0] * width

    def add(self, block: Array) -> None:
        """Adds a finite float64 block of shape (rows, values), |value| <= 2¹²⁸."""
        for start in range(0, len(block), _ROWS):
            part = np.array(block[start : start + _ROWS].T, order="C")  # (values, rows): each value lies together
            self.rows += part.shape[1]
            square = part * part
            high = part * _SPLIT
            high -= high - part
            low = part - high
            error = high * high
            error -= square
            high *= 2.0
            high *= low
            error += high
            low *= low
            error += low
            for totals, values in ((self.sums, part), (self.squares, square), (self.squares, error)):
                _gather(totals, values)

    def part(self, start: int, stop: int, zeros: int) -> ExactSums:
        """Return the sums of the values from `start` to `stop`, without `zeros` rows, whose 0 stands for no value."""
        sums = ExactSums(stop - start)
        sums.rows, sums.sums, sums.squares = self.rows - zeros, self.sums[start:stop], self.squares[start:stop]
        return sums

    def packed(self) -> PackedSums:
        """Return the plain values that `unpacked` takes."""
        return self.rows, [f"{total:x}" for total in self.sums], [f"{total:x}" for total in self.squares]

    @classmethod
    def unpacked(cls, packed: PackedSums) -> ExactSums:
        """Return the sums that `packed` returned as plain values."""
        sums = cls(len(packed[1]))
        sums.rows, sums.sums, sums.squares = packed[0], *([int(total, 16) for total in each] for each in packed[1:])
        return sums

    def merge(self, other: ExactSums) -> None:
        """Adds the rows of `other`."""
        self.rows += other.rows
        self.sums = [a + b for a, b in zip(self.sums, other.sums, strict=True)]
        self.squares = [a + b for a, b in zip(self.squares, other.squares, strict=True)]

    def mean(self, at: int) -> float:
        """Return the mean of value `at`, rounded once."""
        return float(Fraction(self.sums[at], self.rows << UNIT))

    def deviation(self, at: int) -> float:
        """Return the population deviation of value `at`: the root of its exact variance."""
        spread = self.rows * (self.squares[at] << UNIT) - self.sums[at] ** 2
        return math.sqrt(Fraction(max(spread, 0), (self.rows << UNIT) ** 2))


def _gather(totals: list[int], remainder: Array) -> None:
    """Adds up each row of `remainder`, of at most _ROWS values, without rounding; overwrites `remainder`."""
    largest = np.maximum(remainder.max(axis=1), -remainder.min(axis=1))
    sigma = np.ldexp(1.0, np.frexp(largest)[1] + _BITS)[:, None]
    high = np.empty_like(remainder)
    while largest.any():
        np.add(remainder, sigma, out=high)
        high -= sigma
        remainder -= high
        for at, part in enumerate(high.sum(axis=1).tolist()):
            if part:
                numerator, denominator = part.as_integer_ratio()
                totals[at] += (numerator << UNIT) // denominator
        largest = np.maximum(remainder.max(axis=1), -remainder.min(axis=1))
        sigma = np.ldexp(1.0, np.frexp(largest)[1] + _BITS)[:, None]
