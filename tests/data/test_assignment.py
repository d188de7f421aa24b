from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopyard.data.assignment import Dealer, hashes, permutation, shares, validates

SEEDS = st.integers(-(2**70), 2**70)


def test_splitmix_is_the_published_one() -> None:
    """SplitMix64 seeded with 1234567 gives 6457827717110365317, … (test vector of the Rosetta Code page)."""
    from hopyard.data.assignment import mix

    state = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix(state).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_order_is_frozen() -> None:
    """Results depend on these numbers: they never change."""
    assert permutation(3, 10).tolist() == [8, 1, 5, 2, 9, 0, 3, 4, 7, 6]
    assert np.flatnonzero(validates(0, 0.3, 0, 20)).tolist() == [5, 7, 11, 12, 19]


@given(SEEDS, st.integers(0, 20_000))
def test_a_permutation_has_each_row_once(seed: int, rows: int) -> None:
    order = permutation(seed, rows)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(rows))


def test_orders_differ_between_seeds_and_are_spread() -> None:
    first = [permutation(seed, 1000)[0] for seed in range(400)]
    assert len(set(first)) > 250
    assert 400 < np.mean(first) < 600
    displaced = np.abs(permutation(1, 100_000) - np.arange(100_000)).mean() / 100_000
    assert displaced == pytest.approx(1 / 3, abs=0.01)  # of a uniform permutation


@given(SEEDS, st.floats(0, 0.999), st.integers(0, 500), st.integers(0, 500))
def test_validation_rows_do_not_depend_on_blocks(seed: int, fraction: float, cut: int, rest: int) -> None:
    whole = validates(seed, fraction, 0, cut + rest)
    parts = np.concatenate([validates(seed, fraction, 0, cut), validates(seed, fraction, cut, cut + rest)])
    assert np.array_equal(whole, parts)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.2, 0.9])
def test_the_fraction_is_met(fraction: float) -> None:
    assert validates(5, fraction, 0, 200_000).mean() == pytest.approx(fraction, abs=0.005)


def test_seeds_and_rows_hash_apart() -> None:
    assert len(set(hashes(1, 0, 5000)) | set(hashes(-1, 0, 5000)) | set(hashes(2**64 + 1, 0, 5000))) == 15_000


@given(st.integers(1, 9), st.lists(st.integers(0, 40), max_size=12))
def test_dealing_does_not_depend_on_blocks(partitions: int, blocks: list[int]) -> None:
    dealer, start = Dealer(partitions), 0
    dealt: list[list[int]] = [[] for _ in range(partitions)]
    for rows in blocks:
        for partition, index in dealer.deal(np.arange(start, start + rows), rows):
            dealt[partition] += index.tolist()  # type: ignore[union-attr]
        start += rows
    assert dealt == [list(range(p, start, partitions)) for p in range(partitions)]
    assert [len(mine) for mine in dealt] == shares(start, partitions)
