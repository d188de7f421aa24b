"""Supervisors over real sockets, without a cluster: who gets in, who is where, what is heard of their ends."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopyard import __version__
from hopyard.engines.local import agent_environment
from hopyard.engines.supervisors import roster as module
from hopyard.engines.supervisors.line import Line
from hopyard.engines.supervisors.messages import (
    AgentEnded,
    EndAgent,
    EndTask,
    Free,
    Leave,
    Prepare,
    Printed,
    Refuse,
    Start,
    SupervisorHello,
    line_of,
    order_of,
)
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.record import Supervisor
from hopyard.engines.supervisors.supervisor import PYTHON, Departure, Holder, _AgentRunner, attend, dial
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.errors import ResourceError
from hopyard.ports.engines import OutOfMemory
from hopyard.system import oom
from hopyard.system.processes import children_of
from jobs import alive, gone, until
from played_supervisors import CARD, TASK, TOKEN, Played, command


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    made = Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / f"{slot}.log")
    yield made
    Played.all_leave()
    made.close()


SURROGATE = b'{"token": "\\ud800", "host": "x", "gpus": []}\n'
DEEP = b"[" * 60_000 + b"\n"


def executor_of(supervisors: Supervisors, slot: int) -> str:
    """Host and process of the executor where the agent of a slot is; "": nowhere yet."""
    supervisor = supervisors._roster.of(slot)
    return "" if supervisor is None else supervisor.executor


def test_slots_wait_for_supervisors_and_supervisors_for_slots(supervisors: Supervisors) -> None:
    supervisors.start(3)
    assert supervisors.waits(3) and supervisors.missing == 1 and supervisors.occupied == 0
    one = Played(supervisors)
    assert one.hear() == Start(3)
    assert not supervisors.waits(3) and supervisors.occupied == 1
    two = Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    supervisors.start(4)
    assert two.hear() == Start(4)
    assert supervisors.lost() == []
    assert not select.select(supervisors.watch(), [], [], 0)[0]


def test_a_late_supervisor_is_admitted_and_dismissed(supervisors: Supervisors) -> None:
    one = Played(supervisors)
    until(lambda: supervisors.admitted_count == 1)
    supervisors.dismiss()
    two = Played(supervisors)
    assert one.hear() == two.hear() == Leave()


def test_a_line_that_ends_loses_its_slot_at_once(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    one.leave()
    assert select.select(supervisors.watch(), [], [], 5)[0]
    assert until(supervisors.lost) == [(0, "its Spark task on there ended")]
    assert supervisors.lost() == []


def test_a_placement_can_ask_for_another_look_at_what_is_lost(supervisors: Supervisors) -> None:
    supervisors.start(0)
    assert not select.select(supervisors.watch(), [], [], 0)[0]
    supervisors.wake()
    assert select.select(supervisors.watch(), [], [], 0)[0]
    assert supervisors.lost() == []
    assert not select.select(supervisors.watch(), [], [], 0)[0]
    supervisors.close()
    supervisors.wake()


def test_an_ended_agents_supervisor_serves_the_next_slot(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    one.say(AgentEnded(0, "process 7 was killed by SIGKILL"))
    assert until(supervisors.lost) == [(0, "process 7 was killed by SIGKILL")]
    supervisors.start(1)
    assert one.hear() == Start(1)


def test_a_supervisor_takes_another_slot_once_its_agent_is_gone(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    supervisors.end(0)
    supervisors.start(1)
    assert one.hear() == EndAgent(0)
    assert supervisors.waits(1)
    one.say(Free(0))
    assert one.hear() == Start(1)
    assert supervisors.lost() == []


def test_an_end_and_an_order_to_end_that_cross(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    supervisors.end(0)
    one.say(AgentEnded(0, "it was over before it heard"))
    assert one.hear() == EndAgent(0)
    supervisors.start(1)
    assert one.hear() == Start(1)
    assert supervisors.lost() == []


def test_a_supervisor_that_does_not_end_its_agent_is_abandoned(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is to be cancelled; its slot gets another supervisor when it is gone, but does not wait for that for
    ever."""
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.1)
    monkeypatch.setattr(module, "GONE_SECONDS", 1.0)
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    other = Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    supervisors.end(0)
    supervisors.start(0)
    assert supervisors.abandoned() == set()
    time.sleep(0.2)
    supervisors.lost()
    assert (one.hear(), one.hear()) == (EndAgent(0), Leave())
    assert supervisors.abandoned() == {one.job} and supervisors.abandoned() == set()
    assert supervisors.waits(0), "the agent that was given up may still be at work"
    until(lambda: supervisors.lost() == [] and not supervisors.waits(0))
    assert one.hear() is None and other.hear() == Start(0)
    assert supervisors.due == 1


def test_a_driver_that_did_not_run_blames_no_supervisor() -> None:
    """One that was stopped (SIGSTOP) for minutes, while a template imported."""
    roster = module.Roster(
        lambda gone: None, Prepare("{}", 1, {}, (), True), task_name="", keep_idle=True, lasting=True
    )
    line: Any = SimpleNamespace(fileno=lambda: 3, send=lambda data: None)
    now = time.monotonic()
    one = roster.supervisors[3] = Supervisor(line, now)
    roster.admit(one)
    roster.start(0)
    for seconds in (1000, 1004, 1008):
        roster.look(now + seconds)
    assert not roster.lost
    for _ in range(50):
        seconds += 4
        roster.look(now + seconds)
    assert [slot for slot, _ in roster.lost] == [0] and roster.abandoned == {-1}


def test_an_abandoned_supervisor_that_leaves_frees_its_slot(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.1)
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    supervisors.end(0)
    supervisors.start(0)
    time.sleep(0.2)
    supervisors.lost()
    one.say(Free(0))  # it was only slow
    one.leave()
    other = Played(supervisors)
    assert other.hear() == Start(0)
    assert supervisors.lost() == []


def test_a_job_that_outlives_its_supervisor(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its task runs again, and has another one."""
    monkeypatch.setattr(module, "AWAY_SECONDS", 0.1)
    one, two = Played(supervisors), Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    for played in (one, two):
        played.leave()
    until(lambda: not supervisors._roster.supervisors)
    Played(supervisors, job=two.job)
    until(lambda: supervisors.admitted_count == 3)
    time.sleep(0.2)
    supervisors.lost()
    assert supervisors.abandoned() == {one.job}


def test_a_slot_that_waits_can_be_ended(supervisors: Supervisors) -> None:
    supervisors.start(0)
    supervisors.end(0)
    assert supervisors.missing == 0
    Played(supervisors)
    until(lambda: supervisors.admitted_count)
    assert supervisors.occupied == 0


def test_an_unneeded_supervisor_is_released(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SPARE_SECONDS", 0.1)
    one = Played(supervisors)
    until(lambda: supervisors.admitted_count)
    time.sleep(0.2)
    supervisors.lost()
    assert one.hear() == Leave()


def test_strangers_and_garbage(supervisors: Supervisors, caplog: pytest.LogCaptureFixture) -> None:
    supervisors.start(0)
    with caplog.at_level(logging.WARNING):
        for token in ("a guess", "", "the toke"):
            assert Played(supervisors, token=token).hear() is None
    assert "did not show the token" in caplog.text
    for data in (
        b"{}\n",
        b"[1]\n",
        b'{"token": 3}\n',
        b"\xff\xfe\n",
        b"x" * 70_000,
        b'{"token": "\xc3\xa9"}\n',
        SURROGATE,
        DEEP,
    ):
        with socket.create_connection(("127.0.0.1", supervisors.port), 5) as line:
            line.sendall(data)
            with line.makefile("rb") as heard:
                assert heard.read(1) == b""
    assert supervisors.waits(0)
    one = Played(supervisors)
    assert one.hear() == Start(0)
    one.say(AgentEnded(99, "of nobody"))
    one.say(Printed(0, "still here"))
    assert supervisors.lost() == []


def test_strangers_are_dropped_by_age_and_number(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors._listener, "_most", 5)
    lines = [socket.create_connection(("127.0.0.1", supervisors.port), 5) for _ in range(12)]
    try:
        for line in lines[:7]:  # each one more ended the oldest
            assert line.recv(1) == b""
        supervisors.start(0)
        one = Played(supervisors)
        assert one.hear() == Start(0)
        monkeypatch.setattr("hopyard.engines.supervisors.listener.HELLO_SECONDS", 0.5)
        for line in lines[8:]:  # nobody comes any more, and yet they are dropped
            assert line.recv(1) == b""
        one.say(Printed(0, "still here"))
        assert supervisors.lost() == []
    finally:
        for line in lines:
            line.close()


def test_all_who_are_expected_may_dial_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the 513th supervisor that dialled ended the connection of the first."""
    monkeypatch.setattr("hopyard.engines.supervisors.listener.STRANGERS", 5)
    supervisors = Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / "log", expected=12)
    lines = [socket.create_connection(("127.0.0.1", supervisors.port), 5) for _ in range(12)]
    until(lambda: len(supervisors._listener._strangers) == 12)
    for line in lines:
        line.sendall(line_of(SupervisorHello(TOKEN, version=__version__, python=PYTHON)))
    until(lambda: supervisors.admitted_count == 12)
    for line in lines:
        line.close()
    supervisors.close()


def test_a_driver_without_room_for_files_lets_in_whom_it_can_later(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        """A listener whose process may open no more files."""

        def __init__(self, listener: socket.socket) -> None:
            self.listener, self.refused = listener, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.listener, name)

        def accept(self) -> Any:
            if self.refused < 3:
                self.refused += 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self.listener.accept()

    full = Full(supervisors._listener._socket)
    monkeypatch.setattr(supervisors._listener, "_socket", full)
    supervisors.start(0)
    began = time.monotonic()
    one = Played(supervisors)
    while full.refused < 3:
        supervisors.lost()
    assert one.hear() == Start(0)
    assert time.monotonic() - began > 0.2 and caplog.text.count("Too many open files") == 3
    monkeypatch.setattr(supervisors._listener, "_socket", full.listener)


def test_an_error_of_the_thread_ends_the_run(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(supervisor: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(supervisors, "_receive", breaks)
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    one.say(Printed(0, "x"))
    with pytest.raises(ResourceError, match="RuntimeError: a defect"):
        while True:
            supervisors.lost()
            time.sleep(0.01)


def test_a_supervisor_that_says_what_cannot_be_read_loses_its_slot(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    one.line.sendall(b'{"type":"Boiled","slot":0}\n')
    ((slot, reason),) = until(supervisors.lost)
    assert slot == 0 and re.fullmatch("its supervisor on there said what cannot be read: .*Boiled.*", reason)
    assert one.hear() is None


def test_an_executor_with_another_version_ends_the_run_with_a_sentence(supervisors: Supervisors) -> None:
    supervisors.start(0)
    line = socket.create_connection(("127.0.0.1", supervisors.port), 5)
    with line:  # it says none
        line.sendall(
            json.dumps({"token": TOKEN, "host": "there", "executor": "", "gpus": [], "job": 0}).encode() + b"\n"
        )
        with line.makefile("rb") as heard:
            assert isinstance(order_of(heard.readline()), Refuse) and heard.read(1) == b""
    with pytest.raises(ResourceError, match=r"there .*version of Hopyard"):
        supervisors.lost()


def test_a_late_supervisor_with_another_version_is_turned_away(
    supervisors: Supervisors, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it ended a run that others did the work of."""
    supervisors.start(0)
    assert Played(supervisors).hear() == Start(0)
    for _ in range(2):
        other = Played(supervisors, 9, version="0.0.1", host="there\x1b[2J")
        refusal = other.hear()
        assert isinstance(refusal, Refuse) and other.hear() is None
        assert re.search(r"there\\x1b\[2J has .*0\.0\.1; the driver has .*install", refusal.reason)
    assert supervisors.lost() == [] and supervisors.occupied == 1
    assert caplog.text.count("there\\x1b[2J has another version of Hopyard") == 1


def test_an_order_that_cannot_be_read_ends_a_real_supervisor(sitting: tuple[Supervisors, int]) -> None:
    supervisors, pid = sitting
    supervisor = next(iter(supervisors._roster.supervisors.values()))
    supervisor.line.send(b'{"start": 7}\n')
    ((_, reason),) = until(supervisors.lost)
    assert "the driver orders" in reason
    assert gone([pid])


def test_output_of_agents(supervisors: Supervisors, tmp_path: Path) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    one.say(Printed(0, "naïve\n"))
    one.say(Printed(0, "more\n"))
    until(lambda: (tmp_path / "0.log").exists() and (tmp_path / "0.log").read_text() == "naïve\nmore\n")


def test_devices(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors, gpus=("3",))
    one.hear()
    assert supervisors.device(0) == "cuda"
    assert supervisors.device(1) == "cpu"


def test_gpus_of_a_task_are_those_of_its_agent() -> None:
    made = agent_environment(2, "3,5", {"A": "b"})
    assert made["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert (made["OMP_NUM_THREADS"], made["A"]) == ("2", "b")
    assert agent_environment(2, "3", {"CUDA_VISIBLE_DEVICES": ""})["CUDA_VISIBLE_DEVICES"] == ""


@pytest.fixture
def kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What counts the processes of the executor's cgroup that the kernel killed for want of memory."""
    counter = tmp_path / "memory.events"
    counter.write_text("oom_kill 3\n")
    monkeypatch.setattr(oom, "counter", lambda pid: counter)
    return counter


@pytest.fixture
def sitting(
    supervisors: Supervisors, kills: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Supervisors, int]]:
    """A real supervisor in a thread of this process, with an agent that dials where nobody is: (supervisors, agent's
    pid)."""
    ticket = Ticket("127.0.0.1", supervisors.port, TOKEN, Prepare(CARD, 1, {}))
    task, its = socket.socketpair()
    thread = threading.Thread(
        target=attend, args=(ticket, dial(ticket), Holder(os.getpid(), its, "executor", "Spark task"), [])
    )
    before = set(children_of(os.getpid()))
    counts = threading.Event()
    watch = oom.Kills.watch

    def watch_and_say(self: oom.Kills, pid: int | str) -> tuple[Path, int] | None:
        count = watch(self, pid)
        counts.set()
        return count

    monkeypatch.setattr(oom.Kills, "watch", watch_and_say)
    supervisors.start(7)
    thread.start()
    assert counts.wait(60)  # from now on a kill is one of this agent
    (pid,) = until(lambda: {one for one in set(children_of(os.getpid())) - before if b"hopyard.agent" in command(one)})
    with task:
        yield supervisors, pid
    supervisors.close()
    thread.join(60)
    assert not thread.is_alive()
    assert not alive([pid])


@pytest.mark.slow
def test_a_real_supervisor_says_how_its_agent_ended(sitting: tuple[Supervisors, int]) -> None:
    supervisors, pid = sitting
    os.kill(pid, signal.SIGKILL)
    ((slot, reason),) = until(supervisors.lost)
    assert slot == 7
    assert reason == f"process {pid} on {socket.gethostname()} was killed by SIGKILL"
    assert not isinstance(reason, OutOfMemory)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_real_supervisor_tells_whether_the_kernel_killed_its_agent_for_memory(
    sitting: tuple[Supervisors, int], kills: Path, number: int
) -> None:
    """Bug: on Spark it was a lost worker like any other, and three of them were poison."""
    supervisors, pid = sitting
    kills.write_text("oom_kill 4\n")
    os.kill(pid, number)
    ((_, reason),) = until(supervisors.lost)
    assert isinstance(reason, OutOfMemory) == (number == signal.SIGKILL)
    assert ("memory of its host" in reason) == (number == signal.SIGKILL)


def test_a_kill_counts_against_the_agent_that_was_there(supervisors: Supervisors, kills: Path) -> None:
    """One of before is not told of the next."""
    line, its = socket.socketpair()
    holder = Holder(os.getpid(), its, "executor", "Spark task")
    supervisor = _AgentRunner(Prepare(CARD, 1, {}), Line(line), holder, [])
    told: list[Any] = []
    supervisor._send = told.append  # type: ignore[assignment]
    for slot, count in enumerate((4, 4, 5)):
        supervisor._start(slot)
        assert supervisor._agent is not None
        kills.write_text(f"oom_kill {count}\n")
        supervisor._agent.kill()
        assert supervisor._agent.wait(60)
        supervisor._look()
    supervisor._leave(Departure.UNHELD)
    supervisor.run()
    line.close()
    its.close()
    assert [message.memory for message in told if isinstance(message, AgentEnded)] == [True, False, True]


@pytest.mark.slow
def test_a_real_supervisor_ends_a_stopped_agent(sitting: tuple[Supervisors, int]) -> None:
    supervisors, pid = sitting
    os.kill(pid, signal.SIGSTOP)
    supervisors.end(7)
    assert gone([pid])
    assert supervisors.lost() == []


@pytest.mark.slow
def test_a_real_supervisor_leaves_when_the_driver_does(sitting: tuple[Supervisors, int]) -> None:
    supervisors, pid = sitting
    supervisors.close()
    assert gone([pid])


def test_a_task_that_steps_aside(supervisors: Supervisors) -> None:
    supervisors.start(0)
    supervisors.start(1)
    one, two = Played(supervisors), Played(supervisors)
    assert (one.hear(), two.hear()) == (Start(0), Start(1))
    assert supervisors.due == 2
    assert supervisors.release_cores([1]) == {two.job: 1}
    assert supervisors.release_cores([1]) == {}
    assert two.hear() == EndTask()
    assert (supervisors.due, supervisors.occupied) == (1, 2)
    supervisors.reacquire_cores()
    assert (supervisors.due, supervisors.occupied) == (2, 2)
    two.leave()
    assert until(supervisors.lost) == [(1, "its supervisor on there ended")]
    assert supervisors.due == 1


def test_a_slot_is_held_by_the_task_that_is_nearest(supervisors: Supervisors) -> None:
    for slot, executor in enumerate("ab"):
        supervisors.start(slot)
        Played(supervisors, executor=executor).hear()
    assert [executor_of(supervisors, slot) for slot in (0, 1, 2)] == ["a", "b", ""]
    assert len(supervisors.release_cores([0, 1])) == 2
    supervisors.reacquire_cores()
    near, far = Played(supervisors, executor="b"), Played(supervisors, executor="c")
    until(lambda: supervisors.admitted_count == 4)
    assert executor_of(supervisors, 1) == "b"
    assert supervisors.release_cores([1]) == {near.job: 1}
    assert near.hear() == Leave()
    assert supervisors.release_cores([0]) == {far.job: 0}
    assert far.hear() == Leave()
    assert supervisors.lost() == []


def test_a_task_that_holds_a_slot_takes_the_next_agent(supervisors: Supervisors) -> None:
    supervisors.start(0)
    one = Played(supervisors)
    one.hear()
    supervisors.release_cores([0])
    assert one.hear() == EndTask()
    supervisors.reacquire_cores()
    other = Played(supervisors)
    until(lambda: supervisors.admitted_count == 2)
    one.say(AgentEnded(0, "process 7 was killed by SIGKILL"))
    assert until(supervisors.lost) == [(0, "process 7 was killed by SIGKILL")]
    assert one.hear() == Leave()
    supervisors.start(0)
    assert other.hear() == Start(0)


def test_while_slots_are_aside(supervisors: Supervisors) -> None:
    """What comes late steps aside at once; what nobody needs any more leaves at once; a free supervisor that had an
    agent stays for the next."""
    supervisors.start(0)
    spare = Played(supervisors)
    assert spare.hear() == Start(0)
    spare.say(AgentEnded(0, "it is over"))
    until(supervisors.lost)
    supervisors.release_cores([1, 2])
    supervisors.start(1)
    assert (spare.hear(), spare.hear()) == (Start(1), EndTask())
    assert Played(supervisors).hear() == Leave()
    supervisors.end(1)
    assert spare.hear() == EndAgent(1)
    spare.say(Free(1))
    assert spare.hear() == Leave()


class Placed:
    """A real supervisor of a task in a process of its own, with an agent that dials nobody."""

    def __init__(self, supervisors: Supervisors, slot: int) -> None:
        self.executor = subprocess.Popen(["sleep", "60"])
        self.task = subprocess.Popen([sys.executable, "-c", TASK], stdin=subprocess.PIPE)
        supervisors.start(slot)
        assert self.task.stdin is not None
        self.task.stdin.write(json.dumps([supervisors.port, TOKEN, CARD, self.executor.pid]).encode() + b"\n")
        self.task.stdin.close()
        until(lambda: not supervisors.waits(slot))
        (self.supervisor,) = until(lambda: children_of(self.task.pid))
        (self.agent,) = until(lambda: [pid for pid in children_of(self.supervisor) if b"hopyard.agent" in command(pid)])

    def kill(self, what: str) -> None:
        whom = getattr(self, what)
        os.kill(whom if isinstance(whom, int) else whom.pid, signal.SIGKILL)

    def close(self) -> None:
        for process in (self.task, self.executor):
            process.kill()
            process.wait()
        assert gone([self.supervisor, self.agent])


@pytest.fixture
def placed(supervisors: Supervisors) -> Iterator[Placed]:
    made = Placed(supervisors, 3)
    yield made
    made.close()


@pytest.mark.slow
def test_a_supervisor_is_detached_from_its_task(placed: Placed, supervisors: Supervisors) -> None:
    assert os.getsid(placed.supervisor) == placed.supervisor
    assert os.getsid(placed.agent) == placed.agent

    def settled() -> bool:
        """Whether it has two sockets and the two pipes of its agent, once that has begun, and nothing of the worker."""
        files = []
        for path in Path(f"/proc/{placed.supervisor}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                files.append(os.readlink(path) if path.name != "2" else "/dev/null")
        kinds = Counter(file.partition(":")[0] for file in files)
        return kinds["pipe"] == kinds["socket"] == 2 and kinds.keys() <= {"/dev/null", "socket", "pipe", "anon_inode"}

    until(settled)
    assert executor_of(supervisors, 3) == f"{socket.gethostname()}-{placed.executor.pid}"
    supervisors.close()
    assert gone([placed.task.pid, placed.supervisor, placed.agent])


HERE = socket.gethostname()
DIED = {
    "agent": rf"process \d+ on {HERE} was killed by SIGKILL",
    "supervisor": f"its Spark task on {HERE} ended",
    "task": f"its Spark task on {HERE} ended",
    "executor": f"its executor on {HERE} ended",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", list(DIED))
def test_whatever_is_killed(placed: Placed, supervisors: Supervisors, what: str) -> None:
    placed.kill(what)
    ((slot, reason),) = until(supervisors.lost)
    assert slot == 3 and re.fullmatch(DIED[what], reason)
    assert gone([placed.agent])
    if what == "agent":
        supervisors.start(4)
        until(lambda: [pid for pid in children_of(placed.supervisor) if b"hopyard.agent" in command(pid)])
    else:
        assert gone([placed.supervisor, placed.task.pid])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["agent", "supervisor", "executor", "line"])
def test_whatever_is_killed_while_its_task_is_aside(placed: Placed, supervisors: Supervisors, what: str) -> None:
    assert supervisors.release_cores([3]) == {0: 3}
    assert placed.task.wait(60) == 0
    assert supervisors.due == 0
    assert alive([placed.supervisor, placed.agent]) == [placed.supervisor, placed.agent]
    if what == "line":  # as when the driver is killed
        next(iter(supervisors._roster.supervisors.values())).line.socket.shutdown(socket.SHUT_RDWR)
    else:
        placed.kill(what)
    ((slot, reason),) = until(supervisors.lost)
    said = DIED | dict.fromkeys(("supervisor", "line"), f"its supervisor on {HERE} ended")
    said["executor"] += r" \(no task held it then.*"
    assert slot == 3 and re.fullmatch(said[what], reason)
    assert gone([placed.supervisor, placed.agent])


def attended(supervisors: Supervisors, executor: int) -> tuple[threading.Thread, socket.socket]:
    """A supervisor in a thread, which has an agent, and the task's end of its socket."""
    ticket = Ticket("127.0.0.1", supervisors.port, TOKEN, Prepare(CARD, 1, {}))
    task, its = socket.socketpair()
    thread = threading.Thread(
        target=attend, args=(ticket, dial(ticket), Holder(executor, its, "executor", "Spark task"), [])
    )
    supervisors.start(7)
    thread.start()
    until(lambda: supervisors.occupied)
    return thread, task


@pytest.mark.parametrize("watched", [True, False])
def test_an_executor_that_takes_its_task_along_is_the_cause(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    monkeypatch.setattr("hopyard.engines.supervisors.supervisor.CAUSE_SECONDS", 60.0)
    if not watched:
        monkeypatch.setattr("hopyard.engines.supervisors.supervisor.watched", lambda pid: -1)
    executor = subprocess.Popen(["sleep", "60"])
    thread, task = attended(supervisors, executor.pid)
    task.close()
    executor.kill()
    executor.wait()
    assert until(supervisors.lost) == [(7, DIED["executor"])]
    thread.join(60)
    assert not thread.is_alive()


def test_an_executor_that_cannot_be_watched(supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no descriptors of processes, they are looked at now and then."""
    monkeypatch.setattr("hopyard.engines.supervisors.supervisor.watched", lambda pid: -1)
    executor = subprocess.Popen(["sleep", "60"])
    thread, task = attended(supervisors, executor.pid)
    executor.kill()
    executor.wait()
    assert until(supervisors.lost) == [(7, DIED["executor"])]
    thread.join(60)
    assert not thread.is_alive()
    task.close()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from hopyard.errors import ResourceError

    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ResourceError, match=r"another port=.* make a second ticket"),
    ):
        Supervisors("127.0.0.1", taken.getsockname()[1], TOKEN, lambda slot: tmp_path / "log")
