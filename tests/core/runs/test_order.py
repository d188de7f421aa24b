"""The order of everything is a function of the seed, and frozen."""

from itertools import product

from hopyard.core.runs import order


def test_seeds_are_frozen():
    assert order.partition_seed(1, 2, 3, 4) == FROZEN["partition"]
    assert order.shuffle_seed(1, 2, 3, 4) == FROZEN["shuffle"]


FROZEN = {"partition": 2498252157065828832, "shuffle": 7083967194507919685}


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
