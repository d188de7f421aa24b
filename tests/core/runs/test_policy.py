"""Which unit goes where: the pure choices, and the queues behind them."""

from hopyard.core.runs import policy
from hopyard.core.runs.records import EpochBook, Pool, TrialBook
from hopyard.spec import RunSpec


def trial(number=0, step=0, seconds=0.0, remaining=0.0):
    book = TrialBook(number, {})
    book.step, book.seconds, book.remaining = step, seconds, remaining
    return book


def spec(partitions=8, **more):
    return RunSpec(epochs=2, partitions=partitions, validation=0, **more)


def test_a_trial_of_unknown_length_gets_one_partition():
    assert policy.span(trial(3), None, spec(), 1e9) == (3,)


def test_short_units_are_grouped_up_to_about_a_second():
    assert policy.span(trial(seconds=0.3), None, spec(), 1e9) == (0, 1, 2)
    assert policy.span(trial(seconds=2.0), None, spec(), 1e9) == (0,)


def test_groups_become_small_when_the_end_is_near():
    assert policy.span(trial(seconds=0.1), None, spec(), 1e9) == tuple(range(8))
    assert policy.span(trial(seconds=0.1), None, spec(), 0.8) == (0, 1)
    assert policy.span(trial(seconds=0.1), None, spec(), 0.0) == (0,)


def test_groups_wrap_around_but_not_over_the_end_of_an_epoch():
    assert policy.span(trial(6, seconds=0.1), None, spec(), 1e9) == (6, 7, 0, 1, 2, 3, 4, 5)
    assert policy.span(trial(6, step=6, seconds=0.1), None, spec(), 1e9) == (4, 5)


def test_groups_stop_at_what_the_slot_does_not_hold():
    assert policy.span(trial(seconds=0.1), frozenset([0, 1, 3]), spec(), 1e9) == (0, 1)


def test_a_fixed_group_and_none():
    assert policy.span(trial(), None, spec(group=3), 0.0) == (0, 1, 2)
    assert policy.span(trial(seconds=0.1), None, spec(group_seconds=0.0), 1e9) == (0,)


def test_portions_of_a_validation():
    left = [1, 4, 5, 9]
    assert policy.portion(left, 0.0, spec()) == (1,)
    assert policy.portion(left, 0.4, spec()) == (1, 4)
    assert policy.portion(left, 9.0, spec()) == (1,)
    assert policy.portion(left, 0.0, spec(group=3)) == (1, 4, 5)


def test_a_trial_is_critical_when_it_alone_decides_the_end():
    mine = trial(remaining=1.0)
    assert policy.critical(trial(remaining=2.0), mine, 1.5)
    assert not policy.critical(trial(remaining=2.0), mine, 2.5)
    assert not policy.critical(trial(remaining=0.5), mine, 0.1)
    assert not policy.critical(None, mine, 0.0)


def test_a_pool_gives_the_longest_and_drops_what_went_stale():
    pool = Pool(None)
    trials = {n: trial(n, remaining=float(n)) for n in range(4)}
    for book in trials.values():
        pool.offer(book)
    assert pool.longest(trials) is trials[3]
    trials[3].stamp += 1
    assert pool.longest(trials) is trials[2]
    assert len(pool.heap) == 3
    for book in trials.values():
        book.stamp += 1
    assert pool.longest(trials) is None and not pool.heap


def test_a_pool_gives_the_oldest_validation_that_it_holds():
    pool = Pool((1,))
    trials = {n: trial(n) for n in range(2)}
    for book in trials.values():
        book.epochs[0] = EpochBook()
        pool.checks.append((book.id, 0))
    trials[0].epochs[0].left, trials[1].epochs[0].left = {0, 2}, {0, 1}
    assert pool.check(trials) == (trials[1], 0)
    assert pool.leftover(trials[1], 0) == [1]
    trials[1].ended = True
    assert pool.check(trials) is None
