"""Keyed hashes are frozen, and take the place of random generators."""

import random

from hopyard.core.keyed import fraction, keyed


def test_the_hash_is_frozen():
    assert keyed(0, "build", 0) == 7228877497940974188


def test_arguments_do_not_run_together():
    assert keyed(1, "x", 2, 3) != keyed(1, "x", 23)
    assert keyed(12, "x", 3) != keyed(1, "x", 23)


def test_fractions_are_uniform():
    values = sorted(fraction(0, "space", n, "lr") for n in range(4000))
    assert values[0] >= 0 and values[-1] < 1
    assert max(abs(value - n / 4000) for n, value in enumerate(values)) < 0.03  # Kolmogorov, p < 0.001


def test_order_leaves_global_random_state_alone():
    random.seed(5)
    first = random.random()
    random.seed(5)
    keyed(0, "x")
    assert random.random() == first
