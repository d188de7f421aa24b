"""Which unit goes where: the pure choices, and the queues behind them."""

import msgspec

from hopyard.core.runs.records import EpochRecord, SlotRecord, TrialRecord
from hopyard.core.runs.scheduling import policy
from hopyard.core.runs.scheduling.estimates import Estimates
from hopyard.core.runs.scheduling.homes import Homes
from hopyard.core.runs.scheduling.scheduler import Scheduler
from hopyard.spec import RunSpec


def trial(number=0, step=0, seconds=0.0, remaining=0.0):
    book = TrialRecord(number, {}, 16)
    book.step, book.seconds, book.remaining, book.offset = step, seconds, remaining, number
    return book


def spec(partitions=8, **more):
    return RunSpec(epochs=2, partitions=partitions, validation=0, **more)


def test_a_trial_of_unknown_length_gets_one_partition():
    assert policy.span(trial(3), spec(), 1e9) == (3,)


def test_short_units_are_grouped_up_to_about_a_second():
    assert policy.span(trial(seconds=0.3), spec(), 1e9) == (0, 1, 2)
    assert policy.span(trial(seconds=2.0), spec(), 1e9) == (0,)


def test_groups_become_small_when_the_end_is_near():
    assert policy.span(trial(seconds=0.1), spec(), 1e9) == tuple(range(8))
    assert policy.span(trial(seconds=0.1), spec(), 0.8) == (0, 1)
    assert policy.span(trial(seconds=0.1), spec(), 0.0) == (0,)


def test_groups_wrap_around_but_not_over_the_end_of_an_epoch():
    assert policy.span(trial(6, seconds=0.1), spec(), 1e9) == (6, 7, 0, 1, 2, 3, 4, 5)
    assert policy.span(trial(6, step=6, seconds=0.1), spec(), 1e9) == (4, 5)


def test_a_fixed_group_and_none():
    assert policy.span(trial(), spec(group=3), 0.0) == (0, 1, 2)
    assert policy.span(trial(seconds=0.1), spec(group_seconds=0.0), 1e9) == (0,)


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


def scheduled(trials, slots=1):
    """What a scheduler gives to idle slots when all these trials may train."""
    there = {n: SlotRecord(n, "h", n, "", 0.0) for n in range(slots)}
    scheduler = Scheduler(spec(), {one.id: one for one in trials}, there, Homes(spec()), Estimates())
    for slot in there.values():
        scheduler.set_idle(slot)
    found = []
    for slot, one, kind, epoch, partitions in scheduler.assignments():
        scheduler.set_busy(slot)
        slot.busy = 1 + len(found)
        if kind == "validate":
            one.epochs[epoch].pending -= set(partitions)
        else:
            one.lease = slot.busy
            one.queue_version += 1
        found.append((slot.id, one.id, kind))
    return found


def test_the_longest_trial_goes_first_and_each_goes_once():
    trials = [trial(n, remaining=float(n)) for n in range(4)]
    trials[2].until = 9.0
    assert scheduled(trials, slots=9) == [(0, 3, "train"), (1, 1, "train"), (2, 0, "train")]
    assert [one.queue_version for one in trials] == [1, 1, 0, 1]


def test_the_oldest_validation_goes_before_other_trials():
    trials = [trial(n) for n in range(3)]
    for one in trials:
        one.epochs[0] = EpochRecord()
    trials[1].epochs[0].pending, trials[2].epochs[0].pending = {0}, {1}
    assert scheduled(trials) == [(0, 1, "validate")]
    trials[1].ended = True
    assert scheduled(trials) == [(0, 2, "validate")]


def test_the_last_slot_of_a_home_is_not_spare_while_trials_must_visit_its_partitions():
    run = spec()
    places = Homes(run)
    places.begin(4, msgspec.structs.replace(run, copies=1))
    there = {n: SlotRecord(n, host, n, "", 0.0, host) for n, host in enumerate("aabb")}
    for slot in there.values():
        places.join("validate", slot.host)
        places.join("train", slot.host)
    places.start(0.0)
    for host, partition in (("a", 0), ("b", run.partitions - 1)):
        places.place(places.claim(host, "train", partition, 0.0))
    one = trial(0, remaining=1.0)
    one.target = run.partitions
    scheduler = Scheduler(run, {0: one}, there, places, Estimates())
    assert scheduler.spare(60.0, 30.0) == [0, 2]
    one.step = run.partitions - 1  # only the last partition is left
    assert scheduler.spare(60.0, 30.0) == [0, 1, 2]
