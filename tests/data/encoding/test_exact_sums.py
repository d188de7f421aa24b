"""Sums are exact, so that no order changes them."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.data.encoding.exact_sums import UNIT, ExactSums
from hopyard.data.encoding.finalize import measure, scales
from hopyard.data.manifest import Column, Field
from hopyard.formats.arrow import Array

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "block",
    [
        RNG.normal(size=(10_000, 3)),
        RNG.normal(size=(5_000, 2)) * 10.0 ** RNG.integers(-100, 38, (5_000, 2)),
        np.full((777, 1), 0.1),
        1e9 + RNG.integers(0, 2, (3_000, 1)),
        np.array([[1e300 * 0, 3e38], [-0.0, -3e38], [5e-324, 1e-310]]),
    ],
)
def test_they_are_those_of_fractions(block: Array) -> None:
    sums, other = ExactSums(block.shape[1]), ExactSums(block.shape[1])
    sums.add(block[:100])
    other.add(block[100:][::-1])
    sums.merge(ExactSums.unpacked(other.packed()))
    rows = len(block)
    for at, column in enumerate(block.T.tolist()):
        assert Fraction(sums.sums[at], 2**UNIT) == sum(map(Fraction, column))
        assert sums.mean(at) == float(sum(map(Fraction, column)) / rows) == pytest.approx(math.fsum(column) / rows)
        squares = sum(Fraction(value) ** 2 for value in column)
        assert abs(Fraction(sums.squares[at], 2**UNIT) - squares) <= rows * Fraction(1, 2**UNIT)
        exact = squares / rows - (sum(map(Fraction, column)) / rows) ** 2
        assert sums.deviation(at) == pytest.approx(math.sqrt(exact), rel=1e-15, abs=1e-160)


def test_a_constant_has_no_deviation() -> None:
    sums = ExactSums(1)
    sums.add(np.full((10_001, 1), 0.1))
    assert sums.mean(0) == 0.1 and sums.deviation(0) == 0.0


@settings(max_examples=30)
@given(st.lists(st.floats(-1e38, 1e38), min_size=1, max_size=40), st.integers(0, 40), st.randoms())
def test_neither_cuts_nor_orders_change_them(values: list[float], cut: int, rng: object) -> None:
    shuffled = list(values)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = ExactSums(1), ExactSums(1)
    one.add(np.array(values)[:, None])
    for part in (shuffled[:cut], shuffled[cut:]):
        two.add(np.array(part).reshape(-1, 1))
    assert one.packed() == two.packed()


def test_a_block_whose_rows_all_validate_is_measured() -> None:
    fields = [Field("inputs", "inputs", True, [Column("a", "double:float64", (), scaled=True)], "float64", "float32")]
    moments: dict[str, ExactSums] = {}
    measure(moments, fields, 0, np.zeros((0, 1)))
    measure(moments, fields, 0, np.array([[1.0], [3.0]]))
    assert scales(moments, fields)["a"].means == [2.0]
