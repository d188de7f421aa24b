"""The order of everything is a function of the seed, and frozen."""

import random
from itertools import product

from hopyard.core.runs import order


def test_the_hash_is_frozen():
    assert order.keyed(0, "build", 0) == FROZEN["build"]
    assert order.partition_seed(1, 2, 3, 4) == FROZEN["partition"]
    assert order.shuffle_seed(1, 2, 3, 4) == FROZEN["shuffle"]


FROZEN = {"build": 7228877497940974188, "partition": 2498252157065828832, "shuffle": 7083967194507919685}


def test_each_trial_visits_each_partition_once_an_epoch_and_no_two_meet():
    for partitions in (1, 2, 5):
        for epoch in range(2):
            for k in range(partitions):
                at = [order.visit(trial, epoch * partitions + k, partitions) for trial in range(partitions)]
                assert sorted(at) == [(epoch, p) for p in range(partitions)]
        for trial in range(7):
            steps = [order.visit(trial, step, partitions) for step in range(2 * partitions)]
            assert sorted(steps) == sorted(product(range(2), range(partitions)))


def test_seeds_differ_in_every_argument():
    found = [order.partition_seed(*k) for k in product(range(4), repeat=4)]
    found += [order.shuffle_seed(*k) for k in product(range(4), repeat=4)]
    assert len(set(found)) == len(found)
    assert all(0 <= seed < 1 << 63 for seed in found)


def test_arguments_do_not_run_together():
    assert order.keyed(1, "x", 2, 3) != order.keyed(1, "x", 23)
    assert order.keyed(12, "x", 3) != order.keyed(1, "x", 23)


def test_fractions_are_uniform():
    values = sorted(order.fraction(0, "space", n, "lr") for n in range(4000))
    assert values[0] >= 0 and values[-1] < 1
    assert max(abs(value - n / 4000) for n, value in enumerate(values)) < 0.03  # Kolmogorov, p < 0.001


def test_order_leaves_global_random_state_alone():
    random.seed(5)
    first = random.random()
    random.seed(5)
    order.keyed(0, "x")
    assert random.random() == first
