"""The driver's part in gangs: who gets what members publish, and what is told when their exchange breaks."""

import pytest

from hopyard.core.messages import Broken, GiveUpUnit, Membership, Publish, Published, Ready
from hopyard.core.runs.events import (
    Began,
    Checked,
    Exhausted,
    Failed,
    GiveUp,
    Joined,
    Proposed,
    Shrunk,
)
from hopyard.core.runs.machine import Machine
from hopyard.driver.commit import Gone
from hopyard.driver.runs.gangs import GangMessages
from hopyard.driver.runs.workers import FAILED_STARTS, SHORT_SECONDS, Workers
from hopyard.errors import ResourceError
from hopyard.spec import Gang, RunSpec


class Wire:
    def __init__(self):
        self.sent = []

    def send(self, slot, message):
        self.sent.append((slot, message))

    def start(self, slot):
        pass

    def end(self, slot):
        pass


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


def test_an_unexplained_failure_is_put_to_the_network(gangs):
    gangs.broken(Broken(1, 1), 5.0)
    gangs.broken(Broken(0, 1, "closed"), 5.0)
    (failed,) = gangs.broken(Broken(2, 1), 6.0)
    assert failed == Failed(at=6.0, slot=0, lease=1, fault="system", error="closed")


def test_failures_after_the_first_cause_are_ignored(gangs, machine, wire):
    gangs.broken(Broken(0, 1), 5.0)
    commands = machine.handle(Failed(at=5.0, slot=1, lease=1, fault="user", error="no"))
    (given_up,) = [command for command in commands if isinstance(command, GiveUp)]
    wire.sent.clear()
    gangs.give_up(given_up)
    assert wire.sent == [(number, GiveUpUnit(1, 1)) for number in range(3)]
    assert [gangs.broken(Broken(number, 1), 5.0) for number in (0, 2)] == [[], []]


def test_members_of_a_revoked_unit_are_told_once_to_stop(gangs, machine, wire):
    """Bug: each was told again whenever another one was out, for ever, and the slot was never idle."""
    machine.leases.revoke(1)
    assert [gangs.broken(Broken(number, 1, "closed"), 5.0) for number in (1, 0)] == [[], []]
    (failed,) = gangs.broken(Broken(2, 1), 6.0)
    assert failed.lease == 1
    assert wire.sent == [(0, GiveUpUnit(1, 1)), (2, GiveUpUnit(1, 1))]
    machine.handle(failed)
    assert not machine.slots[0].busy


@pytest.fixture
def shrinking(wire, tmp_path):
    """Machine and workers of a gang of three that may get as small as two."""
    machine = Machine(RunSpec(epochs=1, partitions=2, validation=0, trials=1, gang=Gang(3, least=2)))
    machine.handle(Began(spec=machine.spec))
    workers = Workers(wire, machine, 3, lambda slot: tmp_path / f"{slot}.log")
    for slot in range(3):
        workers.start()
        assert workers.shrunk(0.0) is None, "a run begins with a whole gang"
        ready = Ready(slot, "a", slot, {})
        machine.handle(workers.ready(ready, 0.0))
    assert workers.shrunk(0.0) is None
    return machine, workers


def lose(machine, workers, slot):
    for fact in workers.gone(Gone(slot, "lost"), 1.0):
        machine.handle(fact)


def test_a_gang_gets_smaller_when_no_other_worker_comes(shrinking):
    machine, workers = shrinking
    lose(machine, workers, 1)
    assert workers.shrunk(1.0) is None, "another one starts"
    assert workers.shrunk(SHORT_SECONDS) is None
    assert workers.shrunk(1.0 + SHORT_SECONDS) == Shrunk(at=1.0 + SHORT_SECONDS, members=2)


def test_a_gang_gets_smaller_when_no_other_worker_can_be_started(shrinking):
    machine, workers = shrinking
    lose(machine, workers, 1)
    for slot in range(3, 2 + 4 * FAILED_STARTS):
        lose(machine, workers, slot)
        assert workers.shrunk(1.0) is None
    lose(machine, workers, 2 + 4 * FAILED_STARTS)
    machine.handle(workers.shrunk(2.0))
    assert machine.spec.members == 2 and machine.slots[0].members == (0, 2)
    assert workers.shrunk(2.0) is None


def test_a_gang_gets_no_smaller_than_the_user_allows(shrinking):
    machine, workers = shrinking
    lose(machine, workers, 1)
    lose(machine, workers, 2)
    assert workers.shrunk(9.0 + SHORT_SECONDS) is None
    with pytest.raises(ResourceError, match="no worker comes up"):
        for slot in range(3, 100):
            lose(machine, workers, slot)
