"""What holds of supervisors however they are placed: by a Spark task, a login, or by hand with a ticket. They are real
processes, and their agents dial a port where nobody answers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hopyard import __version__
from hopyard.certificate import make_certificate
from hopyard.engines.local import cores
from hopyard.engines.supervisors import host as module
from hopyard.engines.supervisors.messages import Prepare, SupervisorHello, line_of
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import PYTHON, dial
from hopyard.engines.supervisors.ticket import Ticket, write
from hopyard.engines.supervisors.ticket import line_of as ticket_line
from hopyard.system.processes import children_of
from jobs import alive, gone, until
from played_supervisors import KEYS, TASK, TOKEN, agents_of

pytestmark = pytest.mark.slow

HERE = socket.gethostname()


class Placed:
    """A supervisor that was placed in one of the ways, and the driver's side of it."""

    def __init__(self, way: str, folder: Path) -> None:
        self.way = way
        self.port = socket.create_server(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{self.port.getsockname()[1]}"
        card = json.dumps({"slot": 0, "address": address, **KEYS})
        on_spark = way == "task"
        certificate = "" if on_spark else make_certificate()
        self.supervisors = Supervisors(
            "127.0.0.1",
            0,
            TOKEN,
            lambda slot: folder / f"{slot}.log",
            certificate=certificate,
            prepare=None if on_spark else Prepare(card, 1, {}),
            task_name="Spark task" if on_spark else "supervisor",
            keep_idle=not on_spark,
        )
        self.ticket = Ticket("127.0.0.1", self.supervisors.port, TOKEN, certificate=certificate)
        self.others = []
        python = [sys.executable, "-P"]
        if on_spark:
            executor = subprocess.Popen(["sleep", "60"])
            self.others.append(executor)
            text = json.dumps([self.supervisors.port, TOKEN, card, executor.pid]).encode() + b"\n"
            command, self.killed = [*python, "-c", TASK], executor.pid
        elif way == "login":
            command, text = [*python, "-m", "hopyard.engines.supervisors", "1", "none"], ticket_line(self.ticket)
        else:
            write(folder / "ticket", self.ticket)
            command = [*python, "-m", "hopyard", "agent", "--join", str(folder / "ticket"), "--slots", "1"]
            text = b""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if not on_spark:
            self.killed = self.process.pid
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()
        self.supervisors.start(3)
        until(lambda: not self.supervisors.waits(3))
        self.supervisor, self.agent = self.pair()

    def pair(self) -> tuple[int, int]:
        """The supervisor and its agent, once both are there."""

        def there() -> list[tuple[int, int]]:
            return [(one, agent) for one in children_of(self.process.pid) for agent in agents_of(one)]

        return until(there)[0]

    def lost(self) -> list[tuple[int, str]]:
        return until(self.supervisors.lost)

    def close(self) -> None:
        self.supervisors.close()
        for process in (self.process, *self.others):
            process.kill()
            process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.port.close()
        assert gone([self.supervisor, self.agent])


@pytest.fixture(params=["task", "login", "by hand"])
def placed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Placed]:
    made = Placed(request.param, tmp_path)
    yield made
    made.close()


def test_an_agent_that_is_killed_leaves_its_place_to_the_next(placed: Placed) -> None:
    os.kill(placed.agent, signal.SIGKILL)
    ((slot, reason),) = placed.lost()
    assert slot == 3 and reason == f"process {placed.agent} on {HERE} was killed by SIGKILL"
    placed.supervisors.start(4)
    supervisor, agent = placed.pair()
    assert supervisor == placed.supervisor and agent != placed.agent
    placed.supervisors.end(4)
    assert gone([agent])
    assert placed.supervisors.lost() == []


def test_a_supervisor_that_is_killed_takes_its_agent_along(placed: Placed) -> None:
    os.kill(placed.supervisor, signal.SIGKILL)
    ((slot, reason),) = placed.lost()
    assert slot == 3 and re.fullmatch(f"its (Spark task|supervisor) on {HERE} ended", reason)
    assert gone([placed.supervisor, placed.agent])
    if placed.way != "task":  # Spark's jobs see to that there
        placed.supervisors.start(4)
        placed.supervisor, placed.agent = placed.pair()


def test_the_end_of_what_holds_it_ends_all(placed: Placed) -> None:
    os.kill(placed.killed, signal.SIGKILL)
    for process in placed.others:
        process.wait()
    ((slot, reason),) = placed.lost()
    assert slot == 3 and re.fullmatch(f"its (executor|parent process) on {HERE} ended", reason)
    assert gone([placed.supervisor, placed.agent])


def test_the_end_of_the_driver_ends_all(placed: Placed) -> None:
    """Who stands by for the next run stays."""
    placed.supervisors.close()
    assert gone([placed.agent])
    if placed.way == "by hand":
        assert placed.process.poll() is None and alive([placed.supervisor])
    else:
        assert gone([placed.supervisor, placed.process.pid])


def test_a_line_that_breaks_ends_the_agent(placed: Placed) -> None:
    """As when the driver is killed. A host dials again: only an order ends a place there."""
    next(iter(placed.supervisors._roster.supervisors.values())).line.socket.shutdown(socket.SHUT_RDWR)
    ((slot, reason),) = placed.lost()
    assert slot == 3 and reason.endswith(f"on {HERE} ended")
    assert gone([placed.agent])
    if placed.way != "task":
        placed.supervisors.start(3)
        placed.supervisor, placed.agent = placed.pair()


def test_the_end_of_a_logins_input_ends_all(tmp_path: Path) -> None:
    """However ssh ended. Agents and supervisors that are stopped end too, and so does the process above them."""
    placed = Placed("login", tmp_path)
    try:
        for pid in (placed.agent, placed.supervisor):
            os.kill(pid, signal.SIGSTOP)
        assert placed.process.stdin is not None
        placed.process.stdin.close()
        assert gone([placed.agent, placed.supervisor, placed.process.pid])
    finally:
        placed.close()


def test_a_host_process_that_is_stopped_does_not_stay_behind(tmp_path: Path) -> None:
    placed = Placed("login", tmp_path)
    try:
        os.kill(placed.process.pid, signal.SIGSTOP)
        placed.supervisors.close()
        assert gone([placed.agent, placed.supervisor, placed.process.pid])
    finally:
        placed.close()


@pytest.mark.long
def test_a_supervisor_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    placed = Placed("login", tmp_path)
    try:
        os.kill(placed.supervisor, signal.SIGSTOP)
        placed.supervisors.end(3)
        placed.supervisors.start(3)
        assert gone([placed.supervisor, placed.agent], module.STOPPED_SECONDS + 10)
        until(lambda: placed.supervisors.lost() == [] and not placed.supervisors.waits(3), 20)
        placed.supervisor, placed.agent = placed.pair()
    finally:
        placed.close()


def test_gpus_of_a_host_are_given_out_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert module.shares(None, "auto") == [["4"], ["6"]]
    assert module.shares(3, "auto") == [["4"], ["6"], ["4"]]
    assert module.shares(2, "none") == [[], []]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert module.shares(None, "auto") == [[]] * cores()


def test_only_who_has_the_certificate_and_the_token_is_let_in(tmp_path: Path) -> None:
    placed = Placed("login", tmp_path)
    try:
        count, address = placed.supervisors.admitted_count, ("127.0.0.1", placed.supervisors.port)
        hello = line_of(SupervisorHello(TOKEN, "there", "", (), 0, __version__, PYTHON))
        with socket.create_connection(address, 5) as plain:  # knows the token, speaks no TLS
            plain.sendall(hello)
            assert ended(plain)
        other = Ticket(*address, TOKEN, certificate=make_certificate())
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1:\d+ is not the driver"):
            dial(other)
        wrong = dial(Ticket(*address, "a guess", certificate=placed.ticket.certificate))
        with wrong.socket:
            wrong.send(line_of(SupervisorHello("a guess", "there", "", (), 0, __version__, PYTHON)))
            assert wrong.receive() in (b"", None)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with socket.create_connection(address, 5) as plain, context.wrap_socket(plain) as anonymous:
            assert ended(anonymous)  # it has no certificate at all
        assert placed.supervisors.admitted_count == count
    finally:
        placed.close()


def ended(line: socket.socket) -> bool:
    """Whether the other end hangs up; an alert of TLS may come before."""
    line.settimeout(5)
    try:
        while line.recv(1 << 16):
            pass
    except (ConnectionError, ssl.SSLError):
        pass
    return True
