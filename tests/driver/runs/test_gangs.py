"""The driver's part in gangs: who gets what members publish, and what is told when their exchange breaks."""

import pytest

from hopyard.core.messages import Broken, GiveUpUnit, Membership, Publish, Published
from hopyard.core.runs.events import (
    Began,
    Checked,
    Exhausted,
    Failed,
    GiveUp,
    Joined,
    Proposed,
)
from hopyard.core.runs.machine import Machine
from hopyard.driver.runs.gangs import GangMessages
from hopyard.spec import Gang, RunSpec


class Wire:
    def __init__(self):
        self.sent = []

    def send(self, slot, message):
        self.sent.append((slot, message))


@pytest.fixture
def wire():
    return Wire()


@pytest.fixture
def machine():
    """Three workers of one gang, which train."""
    made = Machine(RunSpec(epochs=1, partitions=2, validation=0, trials=1, gang=Gang(3)))
    made.handle(Began(spec=made.spec))
    made.handle(Proposed(trial=0, config={}))
    made.handle(Exhausted())
    for slot in range(3):
        made.handle(Joined(slot=slot, host="b" if slot == 2 else "a", pid=slot))
    made.handle(Checked(slot=0, trial=0, faults=(), names=("loss",)))
    assert made.slots[0].together
    return made


@pytest.fixture
def gangs(machine, wire):
    return GangMessages(machine, wire)


def test_a_value_goes_to_the_other_members(gangs, wire):
    gangs.publish(Publish(1, 1, "key", b"v"))
    assert wire.sent == [(0, Published(1, "key", b"v")), (2, Published(1, "key", b"v"))]


def test_a_value_of_an_earlier_group_goes_nowhere(gangs, wire):
    gangs.publish(Publish(1, 7, "key", b"v"))
    gangs.publish(Publish(9, 1, "key", b"v"))
    assert wire.sent == []


def test_a_place_says_whether_all_are_on_one_host(gangs, machine):
    assert gangs.membership(0, 2) == Membership(2, 3, 1, False)
    machine.workers.record(2).host = "a"
    assert gangs.membership(0, 2).one_host


def test_a_broken_exchange_is_no_failure_while_somebody_may_know_why(gangs, wire):
    assert gangs.broken(Broken(1, 1, "closed"), 5.0) == []
    assert wire.sent == [(0, GiveUpUnit(1, 1)), (2, GiveUpUnit(1, 1))]
    assert gangs.broken(Broken(1, 1, "closed"), 5.0) == []
    assert gangs.broken(Broken(0, 1), 5.0) == []
    assert len(wire.sent) == 2


def test_where_nobody_knows_why_it_is_the_network(gangs):
    gangs.broken(Broken(1, 1), 5.0)
    gangs.broken(Broken(0, 1, "closed"), 5.0)
    (failed,) = gangs.broken(Broken(2, 1), 6.0)
    assert failed == Failed(at=6.0, slot=0, lease=1, fault="system", error="closed")


def test_what_comes_after_the_cause_is_not_heard(gangs, machine, wire):
    gangs.broken(Broken(0, 1), 5.0)
    commands = machine.handle(Failed(at=5.0, slot=1, lease=1, fault="user", error="no"))
    (given_up,) = [command for command in commands if isinstance(command, GiveUp)]
    wire.sent.clear()
    gangs.give_up(given_up)
    assert wire.sent == [(number, GiveUpUnit(1, 1)) for number in range(3)]
    assert [gangs.broken(Broken(number, 1), 5.0) for number in (0, 2)] == [[], []]


def test_members_of_a_unit_that_counts_no_longer_are_told_once(gangs, machine, wire):
    """Bug: each was told again whenever another one was out, for ever, and the slot was never idle."""
    machine.leases.revoke(1)
    assert [gangs.broken(Broken(number, 1, "closed"), 5.0) for number in (1, 0)] == [[], []]
    (failed,) = gangs.broken(Broken(2, 1), 6.0)
    assert failed.lease == 1
    assert wire.sent == [(0, GiveUpUnit(1, 1)), (2, GiveUpUnit(1, 1))]
    machine.handle(failed)
    assert not machine.slots[0].busy
