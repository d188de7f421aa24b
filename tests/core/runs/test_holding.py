"""Workers that are too few for a gang: when they are given back, and when they are requested again."""

import pytest

from hopyard.core.contention import hold_seconds, pause_seconds
from hopyard.core.facts import Tick
from hopyard.core.runs.codec import decode, encode
from hopyard.core.runs.events import (
    AskAgain,
    Began,
    Checked,
    Dispatch,
    Exhausted,
    Formed,
    Joined,
    Proposed,
    Requested,
    Resumed,
    StoreAway,
    StoreBack,
    Yielded,
)
from hopyard.core.runs.machine import Machine
from hopyard.spec import Gang, RunSpec
from machines import Run, dispatched

MARK = "mark"


class Scarce(Run):
    """A run on an engine whose places others want too, with gangs of three.

    Args:
        joined: how many workers have joined, all at once.
        requested: how many others have no place, and how many start in one.
    """

    def __init__(self, joined=2, requested=(1, 0), size=3, trials=1, gang=None, **spec):
        super().__init__(trials=trials, gang=gang or Gang(size), checked=False, **spec)
        self.give(Resumed(at=0.0, mark=MARK))
        for slot in range(1, 1 + joined):
            self.join(slot)
        self.give(Checked(at=0.0, slot=1, trial=0, faults=(), names=("loss",)))
        self.request(*requested)

    def request(self, unplaced, starting=0):
        return self.give(Requested(at=self.at, unplaced=unplaced, starting=starting))

    def wait(self, seconds):
        """Let time pass, as the loop does: a tick is given where it changes something."""
        self.at += seconds
        return self.give(Tick(at=self.at)) if self.machine.due(self.at) else []

    @property
    def hold(self):
        return hold_seconds(MARK, self.machine.holding.turn)


def yielded(commands):
    return [command.slots for command in commands if isinstance(command, Yielded)]


def asks(commands):
    return [command for command in commands if isinstance(command, AskAgain)]


def test_too_few_workers_are_given_back_and_requested_again():
    run = Scarce()
    assert run.machine.earliest() == run.hold
    (line,) = [command for command in run.tick() if isinstance(command, Yielded)]
    assert line == Yielded(at=run.at, slots=(1, 2), until=run.at + pause_seconds(MARK, 0))
    assert len(run.machine.workers) == 0 and run.machine.holding.requested == (0, 0)
    assert run.machine.earliest() == line.until
    assert asks(run.tick()) == [AskAgain()]
    assert run.machine.earliest() is None


def test_nothing_is_given_back_before_its_time():
    run = Scarce()
    assert not run.wait(run.hold - 0.01)
    assert yielded(run.wait(0.02)) == [(1, 2)]


def test_each_place_that_comes_begins_the_time_anew():
    run = Scarce(requested=(3, 0), size=5)
    run.wait(run.hold - 0.01)
    run.request(2, 1)
    assert not run.wait(run.hold - 0.01)
    run.join(3)
    assert not run.wait(run.hold - 0.01)
    assert yielded(run.wait(0.02)) == [(1, 2, 3)]


def test_a_worker_that_starts_in_its_place_is_waited_for():
    """An import may take longer than the time for which places are held."""
    run = Scarce(requested=(2, 1))
    assert run.machine.earliest() is None
    assert [command.members for command in run.join(3) if isinstance(command, Formed)] == [(1, 2, 3)]
    assert run.machine.holding.requested == (2, 0)


def test_workers_are_kept_where_nothing_is_requested():
    """As on an engine whose places are the run's own, and where helpers validate for the gangs that there are."""
    assert Scarce(requested=(0, 0)).machine.earliest() is None
    run = Scarce(joined=4, requested=(1, 0))
    assert run.machine.earliest() is None, "no gang waits for the fifth worker"


def test_a_gang_that_works_is_not_touched():
    run = Scarce(joined=4, requested=(2, 0))
    assert [unit[2] for unit in dispatched([line for line in run.lines if isinstance(line, Dispatch)])] == ["train"]
    assert yielded(run.tick()) == [(1,)], "it checked the first trial while the others formed a gang"
    assert run.machine.slots[2].together


def test_times_grow_until_a_gang_is_formed():
    run = Scarce()
    for turn in range(3):
        assert run.machine.holding.turn == turn
        assert run.machine.earliest() == run.at + hold_seconds(MARK, turn)
        run.tick()
        assert run.machine.earliest() == run.at + pause_seconds(MARK, turn)
        run.tick()
        run.request(3)
        for slot in (3 + 2 * turn, 4 + 2 * turn):
            run.join(slot)
        assert run.machine.holding.requested == (1, 0)
    run.join(9)
    assert run.machine.holding.turn == 0


def test_a_worker_that_validates_is_kept():
    run = Scarce(joined=3, requested=(0, 0), validation=1, epochs=2)
    run.done(1)
    assert [unit[2] for unit in dispatched(run.done(1))] == ["validate"]
    run.durable(1, 0, 2, 2)
    run.lost(2)
    run.request(1)
    assert run.machine.earliest() is None
    run.at = 100.0
    run.done(1, memory_key="")
    assert run.machine.earliest() == 100.0 + run.hold
    assert yielded(run.tick()) == [(1, 3)]


def test_a_worker_with_the_only_copy_of_a_state_is_kept():
    run = Scarce(joined=3, requested=(0, 0))
    run.done(1)
    run.lost(2)
    run.request(1)
    assert run.machine.earliest() is None
    run.give(StoreAway(at=run.at, slot=1, error="away"))
    run.at = 500.0
    run.give(StoreBack(at=run.at, slot=1))
    assert yielded(run.durable(1, 0, 1, 1)) == [(1, 3)]
    assert run.machine.trials[0].step == 1
    run.wait(100.0)
    run.join(4)
    run.join(5)
    assert [unit[2:] for unit in dispatched(run.join(6))] == [("train", 0, (1,))]


def test_workers_that_may_be_a_smaller_gang_are_kept_once_there_was_a_whole_one():
    gang = Gang(3, least=2)
    run = Scarce(gang=gang)
    assert yielded(run.tick()) == [(1, 2)], "there was none: the user asked for three"
    run = Scarce(joined=3, requested=(0, 0), gang=gang)
    run.lost(3)
    run.request(1)
    assert run.machine.earliest() is None
    run.lost(2)
    run.request(2)
    assert yielded(run.tick()) == [(1,)]


def test_a_check_is_not_cut_short():
    run = Run(trials=1, slots=0, checked=False, gang=Gang(3))
    run.give(Requested(at=0.0, unplaced=2, starting=1))
    run.join(0)
    assert run.machine.earliest() is None
    run.at = 100.0
    run.give(Checked(at=run.at, slot=0, trial=0, faults=("no room",), fault="system", names=()))
    assert run.machine.earliest() == 101.0, "when the check is tried again"
    run.tick()
    run.give(Checked(at=run.at, slot=0, trial=0, faults=(), names=("loss",)))
    assert run.machine.earliest() == run.at + hold_seconds("", 0)


def test_another_driver_begins_anew():
    run = Scarce()
    run.tick()
    run.give(Resumed(at=run.at, mark="other"))
    assert run.machine.earliest() is None and run.machine.holding.turn == 0
    run.join(3)
    run.request(2)
    assert run.machine.earliest() == run.at + hold_seconds("other", 0)


def test_the_times_of_a_run_are_its_own():
    """Two runs with equal seeds must not wait in step."""
    times = []
    for mark in ("a", "b"):
        machine = Machine(RunSpec(epochs=1, partitions=2, validation=0, trials=1, gang=Gang(3)))
        for event in (
            Began(at=0.0, spec=machine.spec, mark=mark),
            Proposed(at=0.0, trial=0, config={}),
            Exhausted(at=0.0),
            Joined(at=0.0, slot=0, host="h", pid=0),
            Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",)),
            Requested(at=0.0, unplaced=2, starting=0),
        ):
            machine.handle(event)
        times.append(machine.earliest())
    assert times == [hold_seconds("a", 0), hold_seconds("b", 0)] and times[0] != times[1]


@pytest.mark.parametrize("line", [Requested(at=1.0, unplaced=2, starting=1), Yielded(at=1.0, slots=(3, 5), until=2.5)])
def test_they_are_in_the_journal(line):
    assert decode(encode(line)) == line
