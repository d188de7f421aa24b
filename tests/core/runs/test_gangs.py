"""Workers that train together are one slot: how they are grouped, and what becomes of them when one is lost."""

import msgspec
import pytest

from hopyard.core.facts import Lost
from hopyard.core.runs.codec import decode, encode
from hopyard.core.runs.events import Dispatch, Failed, Formed, GiveUp, Release, Replace, Resumed, Shrunk
from hopyard.core.runs.gangs import grouped
from hopyard.core.runs.records import SlotRecord
from hopyard.spec import Gang, RunSpec, Timeouts
from machines import Run, dispatched


def run_of(size=2, slots=2, **spec):
    return Run(slots=slots, gang=Gang(size), **spec)


def formed(commands):
    return [command.members for command in commands if isinstance(command, Formed)]


def given_up(commands):
    return [(command.members, command.lease) for command in commands if isinstance(command, GiveUp)]


def lost(run, slot, fault="system"):
    return run.give(Lost(at=run.at, slot=slot, reason="lost", fault=fault))


def free(number, host="a", has_states=False):
    slot = SlotRecord(number, host, number, "", 0.0)
    slot.memory_only |= {0} if has_states else set()
    return slot


def test_workers_of_one_host_are_grouped_first():
    slots = [free(0), free(1, "b"), free(2), free(3, "b"), free(4)]
    assert grouped(slots, 2) == [(0, 2), (1, 3)]
    assert grouped(slots, 3) == [(0, 2, 4)]
    assert grouped(slots, 4) == [(0, 2, 4, 1)]
    assert grouped(slots[:1], 2) == []


def test_a_worker_with_states_is_the_first_member():
    assert grouped([free(0), free(1, has_states=True)], 2) == [(1, 0)]


def test_the_second_worker_completes_the_gang():
    run = run_of(slots=1)
    assert dispatched(run.first) == []
    commands = run.join(1)
    assert formed(commands) == [(0, 1)]
    assert dispatched(commands) == [(0, 0, "train", 0, (0,))]
    slot = run.machine.slots[0]
    assert slot.together and slot.group == 1 and list(run.machine.slots) == [0]
    assert dispatched(run.done(0)) == [(0, 0, "train", 0, (1,))]
    assert slot.group == 1  # they stay connected


def test_the_seconds_of_a_unit_count_for_each_member():
    """Bug: they counted once."""
    run = run_of(size=3, slots=3, partitions=1, validation=1)
    run.at = 10.0
    assert [unit[2] for unit in dispatched(run.done(0))] == ["validate"]  # by one member alone
    run.at = 14.0
    run.done(0, memory_key="")
    assert run.machine.trials[0].worker_seconds == 3 * 10.0 + 4.0


def test_a_worker_that_completes_no_gang_validates():
    run = run_of(slots=3, validation=1, epochs=2)
    assert formed(run.first) == [(1, 2)]  # 0 checked the first trial meanwhile
    run.done(1)
    assert dispatched(run.done(1)) == [(1, 0, "train", 1, (0,)), (0, 0, "validate", 0, (0,))]


def test_a_gang_validates_where_nobody_else_can():
    run = run_of(validation=1)
    run.done(0)
    assert dispatched(run.done(0)) == [(0, 0, "validate", 0, (0,))]
    assert not run.machine.slots[0].together


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_remaining_members_are_free_at_once(gone):
    run = run_of(3, slots=3)
    left = tuple(number for number in range(3) if number != gone)
    commands = lost(run, gone)
    assert given_up(commands) == [(left, 1)]
    assert list(run.machine.slots) == list(left)
    assert not any(slot.busy for slot in run.machine.slots.values())
    commands = run.join(3)
    assert formed(commands) == [(*left, 3)]
    assert dispatched(commands) == [(left[0], 0, "train", 0, (0,))]


def test_memory_of_the_first_member_stays():
    run = run_of()
    run.done(0)
    lost(run, 1)
    assert run.machine.trials[0].step == 1
    (unit,) = [command.unit for command in run.join(2) if isinstance(command, Dispatch)]
    assert unit.memory_key == "m1"


def test_memory_of_the_first_member_is_lost_with_it():
    run = run_of()
    run.done(0)
    lost(run, 0)
    assert dispatched(run.join(2)) == [(1, 0, "train", 0, (0,))]


def test_a_follower_lets_go_what_it_made_before():
    run = run_of(slots=4, trials=2, partitions=3)
    assert formed(run.first) == [(1, 2), (0, 3)]
    trial = run.unit(1).trial
    run.done(0)
    run.done(1)
    key = run.machine.trials[trial].states[1].memory_key
    lost(run, 2)
    commands = lost(run, 3)
    assert formed(commands) == [(0, 1)]
    assert [command for command in commands if isinstance(command, Release)] == [Release(1, key)]
    assert run.machine.trials[trial].step == 0 and run.machine.trials[1 - trial].step == 1


def test_validation_goes_on_when_another_member_is_lost():
    run = run_of(validation=1)
    run.done(0)
    run.done(0)
    assert given_up(lost(run, 1)) == []
    assert run.machine.slots[0].busy == 3


def test_the_failure_of_any_member_is_the_units():
    run = run_of(3, slots=3)
    commands = run.give(Failed(at=0.0, slot=2, lease=1, fault="user", error="no"))
    assert given_up(commands) == [((0, 1, 2), 1)]
    assert run.machine.trials[0].error == "no"
    assert run.machine.slots[0].members == (0, 1, 2) and run.machine.slots[0].group == 0


def test_answers_for_a_revoked_unit_are_ignored():
    run = run_of(3, slots=3)
    lost(run, 1)
    assert run.done(0, lease=1, partitions=(0,)) == [Release(0, "m1")]
    assert run.give(Failed(at=0.0, slot=2, lease=1, fault="user", error="no")) == []


def test_only_the_first_member_says_that_a_unit_is_done():
    run = run_of()
    assert run.done(1, lease=1, partitions=(0,)) == []
    assert run.machine.slots[0].busy == 1


def test_a_gang_whose_time_is_over_is_replaced_whole():
    run = run_of(timeouts=Timeouts(unit_timeout=5.0))
    run.at = 6.0
    replaced = [command.slot for command in run.tick() if isinstance(command, Replace)]
    assert replaced == [0, 1]
    assert len(run.machine.workers) == 0


def test_a_worker_rests_while_the_one_that_it_needs_is_busy():
    run = run_of(slots=2, validation=4, trials=1)
    run.done(0)
    run.done(0)
    lost(run, 1)  # 0 validates
    assert dispatched(run.join(2)) == []
    assert run.machine.scheduler.withheld == {2}
    assert formed(run.done(0)) == [(0, 2)]


def test_a_formation_is_in_the_journal():
    for line in (Formed(at=1.0, slot=3, members=(3, 5)), Shrunk(at=1.0, members=2)):
        assert decode(encode(line)) == line


def test_a_resume_may_change_how_many_train_together():
    run = run_of(size=2, slots=2)
    run.done(0)
    run.give(Resumed(at=run.at, members=3))
    assert run.machine.spec.gang.size == 3
    assert formed(run.join(4)) == formed(run.join(5)) == []
    commands = run.join(6)
    assert formed(commands) == [(4, 5, 6)]
    assert [unit[2:] for unit in dispatched(commands)] == [("train", 0, (0,))]
    assert b"members" not in encode(Resumed(at=0.0))
    run.give(Resumed(at=run.at, members=1))
    assert len(dispatched(run.join(7))) == 1


def test_a_gang_goes_on_with_those_who_are_left():
    run = run_of(size=3, slots=3)
    run.done(0)
    assert dispatched(lost(run, 1)) == []
    commands = run.give(Shrunk(at=run.at, members=2))
    assert formed(commands) == [(0, 2)]
    assert dispatched(commands) == [(0, 0, "train", 0, (1,))]
    assert run.machine.spec.members == 2
    lost(run, 0)
    commands = run.give(Shrunk(at=run.at, members=1))
    assert formed(commands) == []
    assert dispatched(commands) == [(2, 0, "train", 0, (0,))], "the State was in the memory of 0"
    assert formed(run.join(4)) == []


def test_a_gang_is_in_the_journal():
    spec = RunSpec(epochs=1, partitions=1, validation=0, gang=Gang(2))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=RunSpec) == spec
    assert b'"gang":{"size":2}' in msgspec.json.encode(spec)


def test_workers_are_not_given_back_where_a_gang_may_need_them():
    run = run_of(slots=3)
    assert not run.machine.slots[0].busy
    assert run.machine.spare(100.0, 1.0) == []
