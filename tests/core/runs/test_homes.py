"""The machine where partitions have homes: nothing waits for ever, and gangs are of one host."""

import itertools

import msgspec
import pytest

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import (
    DECISIONS,
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Joined,
    Placed,
    Proposed,
    Resumed,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.core.runs.scheduling.homes import GRACE
from hopyard.spec import Gang, Part, PartitionRange, Ref, RunSpec


class Run:
    """A machine with its journal."""

    def __init__(self, workers=2, trials=1, gang=1, **more):
        spec = RunSpec(epochs=1, trials=trials, group=1, copies=1, **({"partitions": 4, "validation": 0} | more))
        self.spec = msgspec.structs.replace(spec, gang=Gang(gang)) if gang > 1 else spec
        self.machine, self.journal, self.workers = Machine(self.spec), [], workers
        self.feed(Began(at=0.0, spec=self.spec, workers=workers))
        for trial in range(trials):
            self.feed(Proposed(at=0.0, trial=trial, config={}))
        self.feed(Exhausted(at=0.0))

    def feed(self, event):
        commands = self.machine.handle(event)
        self.journal += [event, *(each for each in commands if isinstance(each, DECISIONS))]
        return commands

    def join(self, at, slot, host, rows=()):
        return self.feed(Joined(at=at, slot=slot, host=host, pid=1, rows=rows))

    def pass_check(self, at, slot, trial=0, faults=()):
        return self.feed(Checked(at=at, slot=slot, trial=trial, faults=faults, names=("loss",)))

    def work(self, at):
        """End the unit of each slot."""
        commands = []
        for slot in [slot for slot in self.machine.slots.values() if slot.busy > 0]:
            unit = self.machine.leases.unit(slot.busy)
            parts = tuple(Part(each, {"loss": (1.0, 1.0)}, 1.0) for each in unit.partitions)
            commands += self.feed(
                Done(at=at, slot=slot.id, lease=slot.busy, parts=parts, seconds=1.0, memory_key=f"m{unit.lease}")
            )
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            commands += self.feed(Durable(at=at, slot=slot.id, ref=ref, digest=f"{ref}", bytes=1))
        return commands

    def resume(self, at):
        self.machine = fold(self.journal)
        return self.feed(Resumed(at=at, workers=self.workers))


def given(commands):
    return [command for command in commands if isinstance(command, Dispatch)]


def test_a_resumed_run_goes_on_where_the_host_of_its_next_partition_does_not_come_back():
    run = Run()
    run.join(1.0, 0, "a"), run.join(1.0, 1, "b")
    run.pass_check(2.0, 0)
    for at in (3.0, 4.0):
        run.work(at)
    assert run.machine.trials[0].step == 2
    run.resume(10.0)
    assert not given(run.join(11.0, 5, "a"))
    assert run.machine.earliest() == 11.0 + GRACE
    assert given(run.feed(Tick(at=11.0 + GRACE)))


def test_a_run_begins_where_the_host_of_its_first_partition_never_comes():
    run = Run(trials=2)
    run.join(1.0, 0, "a")
    run.pass_check(2.0, 0, faults=("unfit",))
    assert not given(run.pass_check(3.0, 0, trial=1))
    assert given(run.feed(Tick(at=run.machine.earliest())))


@pytest.mark.parametrize("hosts", sorted(set(itertools.permutations("aabb"))), ids="".join)
def test_gangs_are_of_one_host_in_whatever_order_workers_join(hosts):
    run = Run(workers=4, trials=4, gang=2)
    for slot, host in enumerate(hosts):
        run.join(1.0, slot, host)
    run.pass_check(2.0, 0)
    on = {n: host for n, host in enumerate(hosts)}
    gangs = [{on[n] for n in slot.members} for slot in run.machine.slots.values() if slot.members]
    assert sorted(map(sorted, gangs)) == [["a"], ["b"]]


def test_a_gang_over_hosts_is_formed_where_no_host_has_enough_workers():
    run = Run(workers=2, gang=2)
    run.join(1.0, 0, "a"), run.pass_check(2.0, 0)
    assert not any(slot.members for slot in run.machine.slots.values())
    assert given(run.join(3.0, 1, "b"))
    assert [slot.home for slot in run.machine.slots.values()] == [None]


def test_gangs_have_the_rows_of_an_earlier_run_at_home():
    run = Run(workers=4, trials=4, gang=2)
    for slot, host in enumerate("abab"):
        rows = () if slot > 1 else (PartitionRange("train", 2 * slot, 2 * slot + 2),)
        run.join(1.0, slot, host, rows)
    run.pass_check(2.0, 0)
    assert all(run.machine.places.at_home("a" if n < 2 else "b", "train", n) for n in range(4))


def test_the_check_reads_rows_that_are_at_home_on_its_host():
    run = Run()
    commands = run.join(1.0, 0, "a", (PartitionRange("train", 2, 4),))
    assert [type(command) for command in commands] == [Placed, Check]
    assert commands[1].partitions == (2, 0)


def test_a_run_that_goes_on_may_have_more_homes():
    run = Run()
    run.join(1.0, 0, "a"), run.join(1.0, 1, "b"), run.pass_check(2.0, 0)
    run.machine = fold(run.journal)
    run.feed(Resumed(at=10.0, workers=2, copies=2))
    assert run.machine.spec.copies == 2 and run.machine.places.active
    run.feed(Resumed(at=20.0, workers=2, copies=0))
    assert run.machine.spec.copies is None and not run.machine.places.active
    assert fold(run.journal).spec == run.machine.spec


def test_partitions_of_a_host_that_is_given_up_are_free_at_once():
    run = Run(trials=2)
    run.join(1.0, 0, "a"), run.join(1.0, 1, "b"), run.pass_check(2.0, 0)
    run.feed(Lost(at=5.0, slot=1, reason="its disk is full", fault="data"))
    assert run.machine.earliest() == 5.0
    run.work(6.0)
    run.feed(Tick(at=6.0))
    assert run.machine.slots[0].busy and run.machine.places.rank("a", "train", 1) >= 0


def test_a_host_that_returns_too_late_shares_the_partitions_that_it_has():
    run = Run(trials=4, workers=3, partitions=6)
    for slot, host in enumerate("abc"):
        run.join(1.0, slot, host)
    run.pass_check(2.0, 0)
    (block,) = [n for n in range(3) if run.machine.places.homes("train", n) == ["b"]]
    run.feed(Lost(at=5.0, slot=1, reason="cut off"))
    run.feed(Tick(at=5.0 + GRACE))
    for at in range(40, 60):
        run.work(float(at))
    run.join(61.0, 7, "b", (PartitionRange("train", 2 * block, 2 * block + 2),))
    (tier,) = [tier for tier in run.machine.places.tiers("b", "train") if tier]
    assert {run.machine.places.block("train", 2 * block), run.machine.places.block("train", 2 * block + 1)} == set(tier)
