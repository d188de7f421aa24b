"""Seats and sitters over real sockets, without a cluster: who gets in, who sits where, what is heard of their ends."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hopyard.engines import seats as seats_of
from hopyard.engines.seats import Seats
from hopyard.engines.sitter import Ticket, environment, stay
from jobs import alive, gone

TOKEN = "the token"
CARD = json.dumps({"slot": 0, "address": "tcp://127.0.0.1:9", **dict.fromkeys(
    ("server_key", "public_key", "secret_key"), "0" * 40
)}).encode()  # fmt: skip


@pytest.fixture
def seats(tmp_path: Path) -> Iterator[Seats]:
    made = Seats("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / f"{slot}.log")
    yield made
    while Played.all:
        Played.all.pop().leave()
    made.close()


SURROGATE = b'{"token": "\\ud800", "host": "x", "gpus": []}\n'
DEEP = b"[" * 60_000 + b"\n"


class Played:
    """A sitter played by the test."""

    all: ClassVar[list[Played]] = []

    def __init__(self, seats: Seats, token: str = TOKEN, gpus: tuple[str, ...] = ()) -> None:
        self.line = socket.create_connection(("127.0.0.1", seats.port), 5)
        self.say({"token": token, "host": "there", "gpus": list(gpus)})
        self._heard = self.line.makefile("rb")
        self.all.append(self)

    def say(self, message: Any) -> None:
        self.line.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> Any:
        line = self._heard.readline()
        return json.loads(line) if line else None

    def leave(self) -> None:
        self._heard.close()
        self.line.close()


def until(condition: Callable[[], Any], seconds: float = 5.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.005)
    return found


def test_slots_wait_for_seats_and_seats_for_slots(seats: Seats) -> None:
    seats.start(3)
    assert seats.waits(3) and seats.missing == 1 and seats.taken == 0
    one = Played(seats)
    assert one.hear() == {"start": 3}
    assert not seats.waits(3) and seats.taken == 1
    two = Played(seats)
    until(lambda: seats.came == 2)
    seats.start(4)
    assert two.hear() == {"start": 4}
    assert seats.lost() == []
    assert not select.select(seats.watch(), [], [], 0)[0]


def test_a_line_that_ends_loses_its_slot_at_once(seats: Seats) -> None:
    seats.start(0)
    one = Played(seats)
    one.hear()
    one.leave()
    assert select.select(seats.watch(), [], [], 5)[0]
    assert until(seats.lost) == [(0, "its Spark task on there ended")]
    assert seats.lost() == []


def test_an_agent_that_ended_leaves_its_seat_to_the_next(seats: Seats) -> None:
    seats.start(0)
    one = Played(seats)
    one.hear()
    one.say({"ended": 0, "story": "process 7 was killed by SIGKILL"})
    assert until(seats.lost) == [(0, "process 7 was killed by SIGKILL")]
    seats.start(1)
    assert one.hear() == {"start": 1}


def test_a_seat_takes_another_slot_once_it_says_that_its_agent_is_gone(seats: Seats) -> None:
    seats.start(0)
    one = Played(seats)
    one.hear()
    seats.end(0)
    seats.start(1)
    assert one.hear() == {"end": 0}
    assert seats.waits(1)
    one.say({"free": 0})
    assert one.hear() == {"start": 1}
    assert seats.lost() == []


def test_an_end_and_an_order_to_end_that_cross(seats: Seats) -> None:
    seats.start(0)
    one = Played(seats)
    one.hear()
    seats.end(0)
    one.say({"ended": 0, "story": "it was over before it heard"})
    assert one.hear() == {"end": 0}
    seats.start(1)
    assert one.hear() == {"start": 1}
    assert seats.lost() == []


def test_a_seat_that_does_not_end_its_agent_is_given_up(seats: Seats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_of, "AWAY_SECONDS", 0.1)
    seats.start(0)
    one = Played(seats)
    one.hear()
    seats.end(0)
    time.sleep(0.2)
    seats.lost()
    assert one.hear() == {"end": 0}
    assert one.hear() is None


def test_a_slot_that_waits_can_be_ended(seats: Seats) -> None:
    seats.start(0)
    seats.end(0)
    assert seats.missing == 0
    Played(seats)
    until(lambda: seats.came)
    assert seats.taken == 0


def test_a_seat_that_nobody_wants_is_given_back(seats: Seats, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats_of, "SPARE_SECONDS", 0.1)
    one = Played(seats)
    until(lambda: seats.came)
    time.sleep(0.2)
    seats.lost()
    assert one.hear() == {"leave": True}


def test_strangers_and_garbage(seats: Seats, caplog: pytest.LogCaptureFixture) -> None:
    seats.start(0)
    with caplog.at_level(logging.WARNING):
        for token in ("a guess", "", "the toke"):
            assert Played(seats, token).hear() is None
    assert "a stranger dialled" in caplog.text
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
        with socket.create_connection(("127.0.0.1", seats.port), 5) as line:
            line.sendall(data)
            with line.makefile("rb") as heard:
                assert heard.read(1) == b""
    assert seats.waits(0)
    one = Played(seats)
    assert one.hear() == {"start": 0}
    one.say({"ended": 99, "story": "of nobody"})
    one.say({"log": 0, "text": "still here"})
    assert seats.lost() == []


def test_what_agents_print(seats: Seats, tmp_path: Path) -> None:
    seats.start(0)
    one = Played(seats)
    one.hear()
    one.say({"log": 0, "text": "naïve\n"})
    one.say({"log": 0, "text": "more\n"})
    until(lambda: (tmp_path / "0.log").exists() and (tmp_path / "0.log").read_text() == "naïve\nmore\n")


def test_devices(seats: Seats) -> None:
    seats.start(0)
    one = Played(seats, gpus=("3",))
    one.hear()
    assert seats.device(0) == "cuda"
    assert seats.device(1) == "cpu"


def test_gpus_of_a_task_are_those_of_its_agent() -> None:
    made = environment(Ticket("h", 1, "t", b"", 2, {"A": "b"}), ["3", "5"])
    assert made["CUDA_VISIBLE_DEVICES"] == "3,5"
    assert (made["OMP_NUM_THREADS"], made["A"]) == ("2", "b")
    assert "PYTHONHASHSEED" not in made
    assert environment(Ticket("h", 1, "t", b"", 2, {"CUDA_VISIBLE_DEVICES": ""}), ["3"])["CUDA_VISIBLE_DEVICES"] == ""


@pytest.fixture
def sitting(seats: Seats, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Seats, int]]:
    """A real sitter in a thread of this process, with an agent that dials where nobody is: (seats, agent's pid)."""
    ticket = Ticket("127.0.0.1", seats.port, TOKEN, CARD, 1, {})
    thread = threading.Thread(target=stay, args=(ticket, [], os.getpid()))
    before = set(mine())
    seats.start(7)
    thread.start()
    (pid,) = until(lambda: {one for one in set(mine()) - before if b"hopyard.agent" in command(one)})
    yield seats, pid
    seats.close()
    thread.join(10)
    assert not thread.is_alive()
    assert not alive([pid])


def command(pid: int) -> bytes:
    """Its command line; another one until it has begun."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def mine() -> list[int]:
    """Children of this process."""
    return [int(pid) for pid in Path(f"/proc/{os.getpid()}/task").glob("*/children") for pid in pid.read_text().split()]


def test_a_real_sitter_says_how_its_agent_ended(sitting: tuple[Seats, int]) -> None:
    seats, pid = sitting
    os.kill(pid, signal.SIGKILL)
    ((slot, reason),) = until(seats.lost)
    assert slot == 7
    assert reason == f"process {pid} on {socket.gethostname()} was killed by SIGKILL"


def test_a_real_sitter_ends_a_stopped_agent(sitting: tuple[Seats, int]) -> None:
    seats, pid = sitting
    os.kill(pid, signal.SIGSTOP)
    seats.end(7)
    assert gone([pid], 5)
    assert seats.lost() == []


def test_a_real_sitter_leaves_when_the_driver_does(sitting: tuple[Seats, int]) -> None:
    seats, pid = sitting
    seats.close()
    assert gone([pid], 1)


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    from hopyard.errors import ResourceError

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ResourceError, match="give another port="):
        Seats("127.0.0.1", taken.getsockname()[1], TOKEN, lambda slot: tmp_path / "log")
