"""A program's turns under a link that is played: whatever is reported, what is due is decided, said and journaled."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.programs.events import (
    Assigned,
    Begin,
    Closing,
    Ended,
    Halt,
    Launched,
    Over,
    Reported,
    Reserved,
    Restarting,
    Running,
    Waiting,
    decode,
    spec_of,
)
from hopyard.core.programs.machine import LAST, SETTLE, ProgramMachine
from hopyard.core.programs.messages import HostTasks, StopRequested
from hopyard.core.programs.placement import Place
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock


def place(slot: int) -> Place:
    return Place(slot, "h", 10 + slot, "127.0.0.1", (1, 2, 3), ())


class Played:
    """A link to agents that the test plays."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.sent: list[Any] = []
        self.pause = 0.0
        self.started: list[int] = []
        self.places_missing = 0
        self.given_back: list[range] = []

    def paused(self) -> float:
        pause, self.pause = self.pause, 0.0
        return pause

    def receive(self, seconds: float, also: int = -1) -> list[Any]:
        came, self.came = self.came, []
        return came

    def send(self, slot: int, message: Any) -> None:
        self.sent.append(message)

    def start(self, slot: int) -> None:
        self.started.append(slot)

    def end(self, slot: int) -> None:
        pass

    def confirm(self) -> None:
        pass

    def waiting(self) -> int:
        return self.places_missing

    def give_back(self, slots: range) -> None:
        self.given_back.append(slots)


class Turns:
    """A program of workers that run, unless others want their places too; worker 1 reports in every turn."""

    def __init__(self, folder: Path, workers: int = 2, **how: Any) -> None:
        self.layout, self.at = Layout(folder), 1000.0
        folder.mkdir(parents=True)
        spec = spec_of({"worker": workers}, None, run_id="x", **how)
        self.machine = ProgramMachine(spec)
        engine = hy.Local(workers=workers, devices=None)
        self.lock = Lock(self.layout.lock)
        order = HostTasks(b"", False, str(folder), 15.0, "t", "127.0.0.1", False)
        self.loop = ProgramLoop(self.layout, self.lock, self.machine, engine, order, {})
        self.link = Played()
        self.loop._link = self.link  # type: ignore[assignment]
        self.loop._clock = self  # type: ignore[assignment]
        self.loop._commit([Launched(at=0.0, spec=spec)])
        slots = range(workers)
        if how.get("shared_slots"):
            return
        self.turn(*(Reserved(at=0.0, place=place(slot)) for slot in slots))
        self.turn(*(Running(at=0.0, slot=slot, incarnation=self.machine.tasks[slot].incarnation) for slot in slots))

    def turn(self, *messages: Any, seconds: float = 0.13) -> None:
        self.at += seconds
        self.link.came = list(messages)
        self.loop._turn()

    def now(self) -> float:
        """As the loop's clock has it."""
        return self.at

    def skip(self, seconds: float) -> None:
        """As the loop's clock does it."""
        self.at -= seconds

    def reports(self, seconds: float) -> None:
        """Worker 1 reports in each turn, and does as it is told."""
        end = self.at + seconds
        while self.at < end and not self.loop._over:
            halts = [message for message in self.link.sent if isinstance(message, Halt)]
            self.link.sent = [message for message in self.link.sent if not isinstance(message, Halt)]
            record = self.machine.tasks[1]
            self.turn(
                Reported(at=0.0, slot=1, incarnation=record.incarnation, values={"loss": 1.0}),
                *(Ended(at=0.0, slot=halt.slot, incarnation=halt.incarnation, code=-15, halted=True) for halt in halts),
            )

    def fails(self, slot: int) -> None:
        self.turn(
            Ended(
                at=0.0,
                slot=slot,
                incarnation=self.machine.tasks[slot].incarnation,
                code=1,
                story="process ended with 1",
            )
        )

    def lines(self, kind: type) -> list[Any]:
        lines = [decode(line) for line in self.layout.program.read_bytes().splitlines()]
        return [line for line in lines if isinstance(line, kind)]

    def close(self) -> None:
        self.loop._journal.close()
        self.lock.free()
        os.close(self.loop._wake_reader)
        os.close(self.loop._wake_writer)


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Callable[..., Turns]]:
    made: list[Turns] = []

    def make(**how: Any) -> Turns:
        made.append(Turns(tmp_path / "program", **how))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_task_that_failed_is_started_again_while_another_reports(turns: Callable[..., Turns]) -> None:
    it = turns(max_restarts=1, restart_scope="task")
    it.fails(0)
    it.reports(10.0)
    assert [line.restart for line in it.lines(Assigned)] == [0, 1]
    begun = [message for message in it.link.sent if isinstance(message, Begin)]
    assert [(message.task.slot, message.incarnation) for message in begun] == [(0, 1), (1, 2), (0, 3)]


def test_a_program_is_started_again_while_a_task_reports(turns: Callable[..., Turns]) -> None:
    it = turns(max_restarts=1, restart_scope="program")
    it.fails(0)
    it.reports(10.0)
    assert len(it.lines(Restarting)) == 1
    assert [line.restart for line in it.lines(Assigned)] == [0, 1]
    assert [message.incarnation for message in it.link.sent if isinstance(message, Begin)] == [1, 2, 3, 4]


def test_max_time_ends_a_program_that_reports_all_the_time(turns: Callable[..., Turns]) -> None:
    it = turns(max_time=20.0, grace=1.0)
    it.reports(20.0 + LAST + 30.0)
    assert it.loop._over
    assert [line.halted for line in it.lines(Closing)] == [False, True]
    (over,) = it.lines(Over)
    assert over.status == "failed" and "max_time=20" in over.cause


def test_time_in_which_the_driver_was_stopped_does_not_count(turns: Callable[..., Turns]) -> None:
    it = turns(max_time=20.0, grace=1.0)
    it.reports(15.0)
    it.link.pause = 1000.0
    it.turn(seconds=1000.0)
    it.reports(4.0)
    assert not it.lines(Closing)
    it.reports(1.0 + LAST + 30.0)
    assert "max_time=20" in it.lines(Over)[0].cause


def test_all_that_comes_in_one_turn_is_one_sync(turns: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("hopyard.store.journal.os.fdatasync", synced.append)
    it = turns(workers=8)
    assert all(record.status == "running" for record in it.machine.tasks.values())
    assert len(synced) == 3  # the launch, eight that reserved and were assigned, eight that run
    it.turn()
    assert len(synced) == 3


def test_the_loop_waits_until_a_time_out_is_over(turns: Callable[..., Turns]) -> None:
    it = turns(max_time=500.0)
    assert it.loop._wait() > 100.0
    it.fails(0)
    assert SETTLE < it.loop._wait() < SETTLE + 0.01
    it.turn(seconds=it.loop._wait())
    assert it.machine.phase == "closing"


def test_nothing_is_sent_before_it_is_on_disk(turns: Callable[..., Turns], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr("hopyard.store.journal.os.fdatasync", lambda file: told.append(len(it.link.sent) if it else 0))
    it: Any = None
    it = turns(max_restarts=1, restart_scope="program")
    sent = len(it.link.sent)
    it.fails(0)
    it.turn(seconds=1.0)
    assert told[-1] == sent  # the fdatasync of `Restarting`
    assert any(isinstance(message, Halt) for message in it.link.sent[sent:])


def test_tasks_of_a_program_that_is_stopped_may_end_restarts_alone(turns: Callable[..., Turns]) -> None:
    it = turns()
    it.loop.stop("stopped by the user", grace=5.0)
    it.turn()
    asked = [message.slot for message in it.link.sent if isinstance(message, StopRequested)]
    assert (asked, it.machine.phase) == ([0, 1], "running")
    it.turn(seconds=4.0)
    assert it.machine.phase == "running"
    it.reports(3.0)
    (closing,) = it.lines(Closing)
    assert (closing.status, closing.halted) == ("stopped", True)


def test_slots_that_are_too_few_are_given_back_with_one_warning(
    turns: Callable[..., Turns], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "hopyard.driver.programs.loop")
    it = turns(workers=3, shared_slots=3)
    it.link.places_missing = 3
    it.turn()
    it.link.places_missing = 1
    it.turn(seconds=0.01)  # slots are still being started: nobody asks how many wait
    assert it.lines(Waiting) == []
    it.turn(Reserved(at=0.0, place=place(0)))
    it.turn()
    for _ in range(2):
        given_back, it.link.started = len(it.link.given_back), []
        while len(it.link.given_back) == given_back:
            it.turn(Reserved(at=0.0, place=place(0)))
            it.turn(seconds=4.0)
        while len(it.link.started) < 3:
            it.turn(seconds=1.0)
    assert it.link.given_back == [range(3)] * 2 and it.link.started == [0, 1, 2]
    assert it.lines(Waiting)[0].slots == 1
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "the roles need 3 processes, and there are places for 2" in caplog.text
