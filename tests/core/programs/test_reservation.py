"""Too few places are given back and asked for again; programs that fit alone all end, whatever the others do."""

from __future__ import annotations

import heapq
import random
from itertools import count
from typing import Any

import msgspec
import pytest

from hopyard.core.contention import hold_seconds, pause_seconds
from hopyard.core.facts import Fact, Lost, Tick
from hopyard.core.programs.events import (
    AskedAgain,
    Assigned,
    Begin,
    Ended,
    Finish,
    GiveBack,
    Launched,
    Renew,
    Reserved,
    Running,
    Waiting,
    Yielded,
    fitted,
    spec_of,
)
from hopyard.core.programs.machine import SETTLE, ProgramMachine
from hopyard.core.programs.placement import Place
from hopyard.core.programs.reservation import ELASTIC, FAILED_STARTS
from program_play import Play

KEY = "a program"
HOLD, PAUSE = hold_seconds(KEY, 0), pause_seconds(KEY, 0)
TICK = Tick(at=0)


def play(roles: Any = None, shared: int = 3, **more: Any) -> Play:
    """Of three workers on a cluster that others use too."""
    return Play(roles or {"worker": 3}, run_id=KEY, shared_slots=shared, **{"start_timeout": 100.0, **more})


def test_too_few_places_are_given_back_and_asked_for_again() -> None:
    it = play()
    it.tell(Waiting(at=0, slots=1))
    it.up(0, 1)
    assert it.tell(TICK, HOLD - 0.1) == []
    assert it.tell(TICK, 0.2) == [GiveBack(range(3))]
    (yielded,) = it.decided
    assert isinstance(yielded, Yielded) and (yielded.turn, yielded.held, yielded.seconds) == (0, 2, PAUSE)
    assert it.machine.phase == "reserving" and it.machine.places == {}
    assert it.machine.due(it.now) == pytest.approx(it.now + PAUSE)
    assert it.tell(TICK, PAUSE - 0.1) == []
    assert it.tell(TICK, 0.2) == [Renew(0), Renew(1), Renew(2)]
    assert isinstance(it.decided[0], AskedAgain)
    assert len(it.up()) == 3 and it.machine.phase == "running"


def test_each_turn_is_of_its_own_length() -> None:
    it, turns = play(), []
    while it.machine.phase == "reserving":
        it.tell(Waiting(at=0, slots=2))
        due = it.machine.due(it.now)
        assert due is not None
        turns += [line.turn for line in it.lines[-1:] if isinstance(line, Yielded)]
        it.tell(TICK, due - it.now + 0.001)
    held = [line for line in it.lines if isinstance(line, Yielded)]
    assert [line.turn for line in held] == list(range(len(held))) and len(held) > 4
    assert [line.seconds for line in held] == [pause_seconds(KEY, turn) for turn in range(len(held))]


def test_whoever_has_nothing_waits() -> None:
    it = play()
    it.tell(TICK, 99.0)
    assert it.decided == it.said == []


def test_a_slot_whose_agent_starts_slowly_has_its_place() -> None:
    """A pod whose node pulls the image takes nobody's place but its own."""
    it = play()
    it.tell(Waiting(at=0, slots=0))
    it.up(0)
    it.tell(TICK, 90.0)
    assert it.decided == it.said == []


def test_each_place_that_comes_begins_the_hold_anew() -> None:
    it = play()
    it.tell(Waiting(at=0, slots=2))
    it.tell(Waiting(at=0, slots=1), HOLD - 0.1)
    assert it.tell(TICK, HOLD - 0.1) == []
    assert it.tell(Waiting(at=0, slots=2), 0.05) == []  # one is lost: no reason to hold the other for longer
    assert it.tell(TICK, 0.1) == [GiveBack(range(3))]


def test_places_that_nobody_else_wants_are_held() -> None:
    it = play(shared=0)
    it.up(0, 1)
    assert it.tell(TICK, 90.0) == [] and it.decided == []


def test_slots_beside_the_driver_are_kept() -> None:
    it = play({"worker": 3, "ps": 1}, shared=3)
    it.up(3)
    it.tell(TICK, 60.0)
    assert it.decided == []  # no place of the cluster is held
    it.tell(Waiting(at=0, slots=2))
    assert it.tell(TICK, HOLD + 0.1) == [GiveBack(range(3))]
    assert it.decided[0].held == 2
    it.tell(Lost(at=0, slot=3, reason="it was killed"))
    assert it.said == [Renew(3)]
    it.up(3)
    it.tell(TICK, PAUSE)
    assert len(it.up(0, 1, 2)) == 4


def test_an_elastic_program_goes_on_with_the_fewest_that_it_needs() -> None:
    it = play({"worker": (2, 3)})
    it.up(0, 1)
    it.tell(TICK, ELASTIC + 0.1)
    assert it.machine.phase == "running" and len(it.machine.tasks) == 2


def test_what_is_heard_late_of_agents_that_were_given_back() -> None:
    it = play()
    it.up(0, 1)
    it.tell(TICK, HOLD + 0.1)
    for _ in range(FAILED_STARTS):
        assert it.tell(Lost(at=0, slot=0, reason="it was ended")) == []
    it.up(1)
    assert it.machine.places == {} and it.machine.reservation.failed_starts == {}
    it.tell(TICK, PAUSE)
    assert it.said == [Renew(0), Renew(1), Renew(2)]


def test_the_timeout_counts_from_the_launch_and_names_the_most_slots_that_there_were() -> None:
    it = play(start_timeout=30.0)
    it.up(0, 1)
    while it.machine.status == "running":
        due = it.machine.due(it.now)
        assert due is not None and due <= 30.0
        it.tell(TICK, due - it.now + 0.001)
    assert it.now == pytest.approx(30.0, abs=0.1)
    assert it.machine.no_slots and "need 3 processes, and after 30 seconds there were slots for 2" in it.machine.cause


def test_a_restart_gives_back_what_it_has_too() -> None:
    """Two programs that lost a host would wait for each other as two that begin."""
    it = play(max_restarts=1)
    it.tell(Waiting(at=0, slots=0))
    it.up()
    it.tell(Lost(at=0, slot=2, reason="its executor ended"))
    it.tell(TICK, SETTLE + 0.1)
    it.halted()
    assert it.machine.phase == "reserving" and it.said == [Renew(2)]
    it.tell(Waiting(at=0, slots=1))
    assert it.tell(TICK, HOLD + 0.1) == [GiveBack(range(3))]
    it.tell(TICK, PAUSE + 0.1)
    assert it.said == [Renew(0), Renew(1), Renew(2)]
    assert len(it.up()) == 3 and it.machine.restart == 1


def test_the_spec_says_which_slots_have_places_that_others_want() -> None:
    spec = spec_of({"worker": (2, 4), "ps": 1}, None)
    assert fitted(spec, 4).shared_slots == 0
    assert fitted(spec, 4, own_slots=0).shared_slots == 4
    assert fitted(spec, 9, own_slots=1).shared_slots == 4


# ------------------------------------------------------------------------------------------------ several at once

MEDIAN, LONGEST = 8.0, 14.0
"""Seconds of each program until all have ended, in half of the worlds, and in all."""
SLOWEST = 1.0
"""The longest time until a place is free, and until an agent is up, in seconds."""


class Cluster:
    """Places that programs share, in virtual time: free again some time after they are given back, and granted in the
    order in which they are asked for, or, with half of the seeds, in any order, as Kubernetes does."""

    def __init__(self, seed: int, places: int, *programs: tuple[int, float, float]) -> None:
        """`programs`: workers, seconds that each works, start_timeout."""
        self._draw, self._free, self.now = random.Random(seed), places, 0.0
        self._queue: list[tuple[int, int]] = []
        """(program, slot) that wait for a place."""
        self._granted: dict[tuple[int, int], int] = {}
        """(program, slot) → a number that no other grant has."""
        self._todo: list[tuple[float, int, Any]] = []
        self._numbers = count()
        self._fair = self._draw.random() < 0.5
        self.decided: list[list[Fact]] = [[] for _ in programs]
        self._decided_at = [0.0] * len(programs)
        self.ended: dict[int, float] = {}
        self._work = [seconds for _, seconds, _ in programs]
        self.machines = []
        for number, (workers, _, timeout) in enumerate(programs):
            key = f"{seed}-{number}"
            spec = spec_of({"worker": workers}, None, run_id=key, shared_slots=workers, start_timeout=timeout)
            self.machines.append(ProgramMachine(spec))
            self._later(
                self._draw.uniform(0.0, 0.1), lambda one=number, spec=spec: self._tell(one, Launched(at=0, spec=spec))
            )

    def run(self) -> None:
        while len(self.ended) < len(self.machines):
            due = min(filter(None, map(self._due, self._going_on())), default=float("inf"))
            if self._todo and self._todo[0][0] <= due:
                self.now, _, action = heapq.heappop(self._todo)
                action()
            else:
                self.now = due
                for number in self._going_on():
                    self._tell(number, TICK)

    def _going_on(self) -> list[int]:
        return [number for number in range(len(self.machines)) if number not in self.ended]

    def _due(self, number: int) -> float | None:
        """Return when its driver wakes."""
        due = self.machines[number].due(self._decided_at[number])
        return None if due is None else due + 0.001

    def _later(self, seconds: float, action: Any) -> None:
        heapq.heappush(self._todo, (self.now + seconds, next(self._numbers), action))

    def _tell(self, number: int, event: Any) -> None:
        machine, self._decided_at[number] = self.machines[number], self.now
        commands = machine.handle(msgspec.structs.replace(event, at=self.now))
        self.decided[number] += [command for command in commands if isinstance(command, Fact)]
        for command in commands:
            self._do(number, command)
        self._serve()

    def _do(self, number: int, command: Any) -> None:
        match command:
            case Renew(slot=slot):
                self._queue.append((number, slot))
            case GiveBack(slots=slots):
                self._leave([(number, slot) for slot in slots])
            case Begin(task=task, incarnation=incarnation):
                begun = Running(at=0, slot=task.slot, incarnation=incarnation)
                ended = Ended(at=0, slot=task.slot, incarnation=incarnation, returned=True)
                self._later(0.1, lambda: self._tell(number, begun))
                self._later(self._work[number], lambda: self._tell(number, ended))
            case Finish():
                self.ended[number] = self.now
                self._leave([(number, slot) for slot in range(self.machines[number].spec.slots)])

    def _leave(self, keys: list[tuple[int, int]]) -> None:
        """Withdraw what waits; free what was granted, after a while."""
        self._queue = [key for key in self._queue if key not in keys]
        for key in keys:
            if self._granted.pop(key, None) is not None:
                self._later(self._draw.uniform(0.05, SLOWEST), self._free_one)

    def _free_one(self) -> None:
        self._free += 1
        self._serve()

    def _serve(self) -> None:
        """Grant places that are free; say so to those whose number of waiting slots has changed."""
        while self._free and self._queue:
            self._free -= 1
            key = number, slot = self._queue.pop(0 if self._fair else self._draw.randrange(len(self._queue)))
            grant = self._granted[key] = next(self._numbers)
            one = Reserved(at=0, place=Place(slot, f"host-{grant}", 1, "10.0.0.1", (1, 2, 3)))
            self._later(
                self._draw.uniform(0.05, SLOWEST), lambda key=key, grant=grant, one=one: self._up(key, grant, one)
            )
        for number in self._going_on():
            reservation = self.machines[number].reservation
            waiting = sum(one == number for one, _ in self._queue)
            asks = self.machines[number].phase == "reserving" and reservation.asks_at is None
            if asks and reservation.waiting != waiting:
                self._tell(number, Waiting(at=0, slots=waiting))

    def _up(self, key: tuple[int, int], grant: int, reserved: Reserved) -> None:
        if self._granted.get(key) == grant:  # else it was given back meanwhile
            self._tell(key[0], reserved)


def statuses(cluster: Cluster) -> list[str]:
    return [machine.status for machine in cluster.machines]


@pytest.mark.parametrize(
    ("programs", "worlds"),
    [(2, 100), (3, 50), (6, 10), *(pytest.param(programs, 1000, marks=pytest.mark.long) for programs in (2, 3))],
)
def test_programs_that_do_not_fit_together_all_complete(programs: int, worlds: int) -> None:
    """Each of 3 workers on 4 places, with 5 s of work: one after the other, and none waits for its timeout."""
    ends, turns = [], []
    for seed in range(worlds):
        cluster = Cluster(seed, 4, *[(3, 5.0, 120.0)] * programs)
        cluster.run()
        assert statuses(cluster) == ["completed"] * programs, f"seed {seed}"
        ends.append(max(cluster.ended.values()))
        turns.append(sum(isinstance(line, Yielded) for lines in cluster.decided for line in lines))
    assert min(ends) > programs * 5.0
    assert sorted(ends)[worlds // 2] < programs * MEDIAN and max(ends) < programs * LONGEST, ends
    assert max(turns) < 5 * programs


def test_a_program_that_never_fits_keeps_no_other_from_its_end() -> None:
    for seed in range(50):
        cluster = Cluster(seed, 4, (5, 5.0, 60.0), (3, 5.0, 120.0), (2, 5.0, 120.0))
        cluster.run()
        assert statuses(cluster) == ["failed", "completed", "completed"], f"seed {seed}"
        machine = cluster.machines[0]
        assert "need 5 processes, and after 60 seconds there were slots for 4" in machine.cause, machine.cause
        assert cluster.ended[0] == pytest.approx(60.0, abs=0.2)
        assert cluster.ended[1] < 60.0 and cluster.ended[2] < 60.0


def test_a_program_that_fits_gives_nothing_back() -> None:
    cluster = Cluster(0, 6, (3, 5.0, 120.0), (3, 5.0, 120.0))
    cluster.run()
    assert [type(line) for lines in cluster.decided for line in lines].count(Yielded) == 0
    assert [type(lines[0]) for lines in cluster.decided] == [Assigned, Assigned]
