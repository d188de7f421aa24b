"""Supervisors whose places are given back leave, and those of agents that stay do not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.engines.supervisors import roster as module
from hopyard.engines.supervisors.messages import AgentEnded, EndAgent, Free, Leave, Prepare, Start
from hopyard.engines.supervisors.pool import Supervisors
from jobs import until
from played_supervisors import CARD, TOKEN, Played


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Supervisors]]:
    made: list[Supervisors] = []

    def new(**how: Any) -> Supervisors:
        made.append(Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / f"{slot}.log", **how))
        return made[-1]

    yield new
    Played.all_leave()
    for each in made:
        each.close()


def played(supervisors: Supervisors, slots: int, **how: Any) -> list[Played]:
    """Return supervisors that have an agent each."""
    found = []
    for slot in range(slots):
        supervisors.start(slot)
        found.append(Played(supervisors, **how))
        assert found[-1].hear() == Start(slot)
    return found


def test_agents_end_and_their_supervisors_and_idle_ones_leave(make: Callable[..., Supervisors]) -> None:
    supervisors = make(keep_idle=True)
    one, two = played(supervisors, 2)
    idle = Played(supervisors)
    until(lambda: supervisors.admitted_count == 3)
    supervisors.start(2)
    assert idle.hear() == Start(2)
    supervisors.end(2)
    assert idle.hear() == EndAgent(2)
    idle.say(Free(2))
    supervisors.give_back([1])
    assert idle.hear() == Leave()
    assert (two.hear(), two.hear()) == (EndAgent(1), Leave())
    two.say(AgentEnded(1, "it ended by itself just before"))
    two.leave()
    until(lambda: len(supervisors.hosts) == 1 and supervisors.occupied == 1)
    assert supervisors.lost() == [] and (supervisors.due, supervisors.missing) == (1, 0)
    supervisors.end(0)
    assert one.hear() == EndAgent(0)  # it was not told to leave


def test_a_slot_is_started_anew_once_its_agent_is_gone(make: Callable[..., Supervisors]) -> None:
    supervisors = make()
    (one,) = played(supervisors, 1)
    supervisors.give_back([0])
    supervisors.start(0)
    other = Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    assert supervisors.missing == 1
    assert (one.hear(), one.hear()) == (EndAgent(0), Leave())
    one.leave()
    assert other.hear() == Start(0)


def test_supervisors_that_last_leave_too(make: Callable[..., Supervisors]) -> None:
    supervisors = make(keep_idle=True, lasting=True, prepare=Prepare(CARD, 1, {}))
    supervisors.start(0)
    one = Played(supervisors)
    assert [type(one.hear()) for _ in range(2)] == [Prepare, Start]
    supervisors.give_back([0])
    assert (one.hear(), one.hear()) == (EndAgent(0), Leave())


def test_an_idle_supervisor_beside_an_agent_in_one_place_stays(make: Callable[..., Supervisors]) -> None:
    """A pod of two workers is there as long as one of them is."""
    supervisors = make(keep_idle=True)
    _, two = played(supervisors, 2, job=7, executor="pod-1")
    supervisors.give_back([1])
    assert two.hear() == EndAgent(1)
    two.say(Free(1))
    supervisors.start(1)
    assert two.hear() == Start(1)


def test_slots_that_still_wait_keep_their_supervisors(make: Callable[..., Supervisors]) -> None:
    supervisors = make(keep_idle=True)
    one, two = played(supervisors, 2)
    supervisors.start(2)
    supervisors.give_back([0, 1])
    orders = one.hear(), two.hear()
    assert orders == (EndAgent(0), EndAgent(1))
    two_or_one = [each for each in (one, two) if each.say(Free([one, two].index(each))) is None]
    assert sorted(type(each.hear()).__name__ for each in two_or_one) == ["Leave", "Start"]


def test_one_that_comes_later_and_is_not_needed_leaves(
    make: Callable[..., Supervisors], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPARE_SECONDS", 0.1)
    supervisors = make(keep_idle=True)
    early = Played(supervisors)
    until(lambda: supervisors.admitted_count == 1)
    time.sleep(0.2)
    supervisors.lost()
    supervisors.start(0)
    assert early.hear() == Start(0)  # idle ones stay where nobody wants their places
    supervisors.give_back([0])
    late = Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    time.sleep(0.2)
    supervisors.lost()
    assert late.hear() == Leave()
