"""A supervisor on Spark that is frozen: its slot gets another, and its old agent does not go on working."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hopyard.engines.spark.engine import Spark
from hopyard.engines.supervisors import roster as module
from hopyard.ports.engines import LaunchInfo
from hopyard.system.processes import children_of
from jobs import alive, gone, until
from played_spark import Session
from played_supervisors import CARD, KEYS, agents_of

pytestmark = pytest.mark.slow


class Placed:
    """Agents on a session that is played."""

    def __init__(self, cores: int, tmp_path: Path, engine: Spark | None = None, card: str = CARD) -> None:
        engine = engine or Spark(Session(cores), workers=2, address="127.0.0.1")
        self.session = engine.session
        launch = LaunchInfo(lambda slot: card.encode(), lambda slot: tmp_path / f"{slot}.log")
        self.agents: Any = engine.open(launch)
        self.pids: set[int] = set()
        """Of supervisors and agents."""

    def look(self) -> dict[int, int]:
        """Sitter → its agent, of those that are there; asks the agents as the driver's loop does."""
        self.agents.lost()
        supervisors = [pid for task in self.session.sparkContext.tasks for pid in children_of(task.pid)]
        found = {supervisor: agent for supervisor in supervisors for agent in agents_of(supervisor)}
        self.pids |= {*found, *found.values()}
        return found

    def up(self, count: int) -> dict[int, int]:
        return until(lambda: found if len(found := self.look()) == count else None)

    def replace(self, slot: int) -> None:
        """As the driver does with an agent that says nothing any more."""
        self.agents.end(slot)
        self.agents.start(slot)

    def waits(self) -> int:
        self.look()
        return sum(self.agents.waits(slot) for slot in range(2))


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.long)], ids=["all cores taken", "a core to spare"])
def placed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Placed]:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.5)
    monkeypatch.setattr("hopyard.engines.spark.jobs.AGAIN_SECONDS", 0.1)
    made = Placed(request.param, tmp_path)
    for slot in range(2):
        made.agents.start(slot)
    made.up(2)
    until(lambda: made.waits() == 0)
    yield made
    made.agents.close()
    try:
        made.session.sparkContext.wait_for_tasks()
        assert gone(sorted(made.pids))
    finally:
        for pid in alive(sorted(made.pids)):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("agent_too", [False, True], ids=["supervisor", "supervisor and agent"])
def test_its_slot_is_replaced_and_its_agent_ended(placed: Placed, agent_too: bool) -> None:
    before = placed.up(2)
    supervisor, agent = next(iter(before.items()))
    others = {pid for pid in before.values() if pid != agent}
    for pid in [supervisor, *([agent] if agent_too else [])]:
        os.kill(pid, signal.SIGSTOP)
    slot = next(slot for slot in range(2) if _is_of(placed, slot, supervisor))
    placed.replace(slot)
    until(lambda: placed.waits() == 0 and len(placed.look()) == 2)
    now = placed.look()
    assert supervisor not in now and not alive([agent]) and gone([supervisor])
    assert others < set(now.values()), "an agent that nothing was wrong with was ended"


def test_a_new_agent_comes_only_when_the_old_one_is_gone(placed: Placed) -> None:
    """They have one name on the wire."""
    supervisor, agent = next(iter(placed.up(2).items()))
    os.kill(supervisor, signal.SIGSTOP)
    slot = next(slot for slot in range(2) if _is_of(placed, slot, supervisor))
    placed.replace(slot)
    while placed.agents.waits(slot):
        there = bool(alive([agent]))
        placed.look()
        time.sleep(0.005)
    assert not there or not alive([agent])


def test_a_worker_that_is_frozen_while_its_supervisor_is_killed(placed: Placed) -> None:
    """Its job does not end, though its supervisor is gone."""
    supervisor, agent = next(iter(placed.up(2).items()))
    task = next(one for one in placed.session.sparkContext.tasks if supervisor in children_of(one.pid))
    slot = next(slot for slot in range(2) if _is_of(placed, slot, supervisor))
    os.kill(task.pid, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    assert until(lambda: [gone for gone, _ in placed.agents.lost() if gone == slot])
    placed.agents.start(slot)
    until(lambda: placed.waits() == 0)
    assert not alive([agent])


def test_jobs_are_as_many_as_slots(placed: Placed) -> None:
    """Also after one of them was cancelled."""
    supervisor = next(iter(placed.up(2)))
    os.kill(supervisor, signal.SIGSTOP)
    slot = next(slot for slot in range(2) if _is_of(placed, slot, supervisor))
    placed.replace(slot)
    tasks = placed.session.sparkContext.tasks
    until(lambda: placed.waits() == 0 and sum(task.poll() is None for task in tasks) == 2)
    assert placed.agents._supervisors.due == 2


def test_a_supervisor_frozen_between_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it got a slot of the next run, which then waited for it for ever."""
    port = socket.create_server(("127.0.0.1", 0))  # supervisors look whether agents can reach the driver
    card = json.dumps({"slot": 0, "address": f"tcp://127.0.0.1:{port.getsockname()[1]}", **KEYS})
    with port, Spark(Session(2), workers=2, address="127.0.0.1") as engine:
        first = Placed(2, tmp_path, engine, card)
        for slot in range(2):
            first.agents.start(slot)
        until(lambda: first.waits() == 0)
        pids = {*first.look()}
        first.agents.close()
        frozen = min(pids)
        os.kill(frozen, signal.SIGSTOP)
        second = Placed(2, tmp_path, engine, card)
        for slot in range(2):
            second.agents.start(slot)
        until(lambda: second.waits() == 1)
        with monkeypatch.context() as patch:
            patch.setattr(module, "BEGIN_SECONDS", 0.0)
            ((slot, reason),) = until(second.agents.lost)
        assert "has not started it" in reason
        monkeypatch.setattr(module, "GONE_SECONDS", 0.5)
        second.agents.start(slot)
        until(lambda: second.waits() == 0)
        os.kill(frozen, signal.SIGCONT)
        second.agents.close()
    assert gone(sorted(pids))


def _is_of(placed: Placed, slot: int, pid: int) -> bool:
    """Whether the slot's agent is this supervisor's."""
    supervisor = placed.agents._supervisors._roster.of(slot)
    return supervisor is not None and supervisor.line.socket.getpeername()[1] == _port(pid)


def _port(pid: int) -> int:
    """The local port of a supervisor's line."""
    inodes = {os.readlink(path)[8:-1] for path in Path(f"/proc/{pid}/fd").iterdir() if "socket" in os.readlink(path)}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in inodes:
            return int(fields[1].rpartition(":")[2], 16)
    return 0
