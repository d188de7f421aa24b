"""What the tests of supervisors share: such that a test plays, what starts a real one, and who is below it."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, ClassVar

from hopyard import __version__
from hopyard.engines.supervisors.messages import SupervisorHello, line_of, order_of
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.system.processes import children_of

TOKEN = "the token"
KEYS = dict.fromkeys(("server_key", "public_key", "secret_key"), "0" * 40)
CARD = json.dumps({"slot": 0, "address": "tcp://127.0.0.1:9", **KEYS})
"""Of agents that dial nobody."""
TASK = """
import json, sys
from hopyard.engines.spark.task import hold
from hopyard.engines.supervisors.messages import Prepare
from hopyard.engines.supervisors.ticket import Ticket
port, token, card, executor = json.loads(sys.stdin.readline())
hold(Ticket("127.0.0.1", port, token, Prepare(card, 1, {})), [], executor)
"""
"""Python that does what a task of Spark does."""


class Played:
    """A supervisor played by the test."""

    all: ClassVar[list[Played]] = []

    def __init__(
        self,
        supervisors: Supervisors,
        job: int = -1,
        *,
        token: str = TOKEN,
        gpus: tuple[str, ...] = (),
        executor: str = "",
        version: str = __version__,
        host: str = "there",
        process: int = 0,
    ) -> None:
        self.line = socket.create_connection(("127.0.0.1", supervisors.port), 5)
        self.job = job if job >= 0 else len(self.all)
        self.say(SupervisorHello(token, host, executor, gpus, self.job, version, PYTHON, process))
        self._heard = self.line.makefile("rb")
        self.all.append(self)

    def say(self, message: Any) -> None:
        self.line.sendall(line_of(message))

    def hear(self) -> Any:
        line = self._heard.readline()
        return order_of(line) if line else None

    def leave(self) -> None:
        self._heard.close()
        self.line.close()

    @classmethod
    def all_leave(cls) -> None:
        while cls.all:
            cls.all.pop().leave()


def parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def command(process: int) -> bytes:
    """Its command line; another one until it has begun."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def agents_of(supervisor: int) -> list[int]:
    """The agents below a supervisor, or below a template of it."""
    found = []
    for child in children_of(supervisor):
        is_template = b"\0template\0" in command(child)
        found += [pid for pid in (children_of(child) if is_template else [child]) if b"hopyard.agent" in command(pid)]
    return found
