"""An agent: a process that dials home, is told what it is for, and does that until it is told to end.

It runs units (`hands.py`), or hosts a task of a program (`host.py`).

Two threads where it runs units. The main one receives a unit, runs it and answers, on a socket of its own, so that no
answer waits for another thread. The other seals and stores States, and has a second socket.

Keys come on standard input, first line; its end means that the driver is gone, and the agent with it. To see to that,
and to tell the driver that the agent lives, is the work of a companion process (`companion.py`).
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import traceback
from typing import Any

import msgspec
import zmq

from hopyard import meter
from hopyard.agent.companion import accompany
from hopyard.agent.progress import Progress
from hopyard.core.hosting import Host
from hopyard.core.messages import LIMIT, Card, Hello, Setup, Up, pack, unpack_down


class Line:
    """The connection home. `say` may be called from any thread, `answer` and `hear` from the main one only."""

    def __init__(self, card: Card) -> None:
        self._context = zmq.Context()
        self._main = self._dial(card, f"w{card.slot}")
        self._side = self._dial(card, f"s{card.slot}")
        self._lock = threading.Lock()

    def _dial(self, card: Card, name: str) -> zmq.Socket[bytes]:
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt_string(zmq.IDENTITY, name)
        dealer.curve_serverkey = card.server_key.encode()
        dealer.curve_publickey = card.public_key.encode()
        dealer.curve_secretkey = card.secret_key.encode()
        dealer.setsockopt(zmq.LINGER, 2000)
        dealer.setsockopt(zmq.MAXMSGSIZE, LIMIT)
        dealer.ipv6 = "[" in card.address
        dealer.connect(card.address)
        return dealer

    def hear(self) -> Any:
        """The next message from the driver; waits for it."""
        return unpack_down(self._main.recv())

    def answer(self, message: Up) -> None:
        """Say something from the main thread."""
        self._main.send(pack(message))

    def say(self, message: Up) -> None:
        """Say something from another thread."""
        with self._lock:
            if not self._side.closed:
                self._side.send(pack(message))

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """What `hear` reads, for those who wait for more than the driver."""
        return self._main

    def close(self) -> None:
        """Hang up, once all that was said is sent."""
        with self._lock:
            self._main.close()
            self._side.close()
        self._context.term()


def serve(card: Card, progress: Progress) -> None:
    """The life of an agent."""
    line = Line(card)
    try:
        line.answer(Hello(card.slot))
        first = line.hear()
        if isinstance(first, Host):
            from hopyard.agent.host import Hosting

            progress.enter("idle")  # the task has a process of its own
            Hosting(card, line, first, progress.companion).run()
        elif isinstance(first, Setup):
            from hopyard.agent.hands import work

            meter.count_with(progress)
            work(card, line, first, progress)
        else:
            raise TypeError(f"the first message is Setup or Host, not {type(first).__name__}")
    finally:
        line.close()


def main() -> None:
    """`python -m hopyard.agent`, started by an engine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each mapped column of each partition is a file
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the driver decides
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            os._exit(1)
        data += more
    card = msgspec.json.decode(data, type=Card)
    progress = Progress()
    accompany(card, progress)
    try:
        serve(card, progress)
    except Exception:  # noqa: BLE001 - the log is the only place left to say it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
