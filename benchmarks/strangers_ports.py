"""The ports that `strangers.py` attacks: how each is served, how an honest client uses it, and what strangers bring.

Servers and clients are those of Hopyard. A server here answers every request at once, so that the port is what is
measured, and counts the handshakes that succeeded.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import select
import struct
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import msgspec
import zmq

from hopyard import __version__
from hopyard.agent.connection import DriverConnection
from hopyard.agent.connection import dial as dial_driver
from hopyard.agent.progress import Progress
from hopyard.certificate import make_certificate
from hopyard.core.delivery import Header
from hopyard.core.messages import FRAME_LIMIT, Card, Examine, Hello, Ready, Setup, framed, pack
from hopyard.driver import router
from hopyard.engines.supervisors import messages as lines
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.engines.supervisors.supervisor import dial as dial_from_host
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.feeds import receiver
from hopyard.feeds.protocol import PICKLE, connect
from hopyard.feeds.reader import Feed
from hopyard.feeds.sender import FeedConnection, Route
from hopyard.spec import Ref, RunSpec
from hopyard.store.bulk import server as bulk
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.connection import dial as dial_states
from hopyard.system.network import joined, parted

HOST = "127.0.0.1"
Address = tuple[str, int]
Dice = random.Random
Bytes = Callable[[Dice], bytes]


def counted(owner: Any, name: str) -> list[None]:
    """Let a function note each call that returned something true."""
    function, calls = getattr(owner, name), []

    def call(*args: Any, **named: Any) -> Any:
        if result := function(*args, **named):
            calls.append(None)
        return result

    setattr(owner, name, call)
    return calls


def answer(pipe: Pipe, address: Address, secret: Any, admitted: list[None]) -> None:
    """Say where the server is; then how many it let in, as often as that is asked."""
    pipe.send((address, secret))
    while pipe.recv():
        pipe.send(len(admitted))


# ------------------------------------------------------------------------------------------ messages


class Watched(router.Router):
    """Notes frames under names that are not the honest agent's, should any ever arrive."""

    admitted: list[None]

    def _numbered(self, name: bytes, data: bytes) -> Iterator[Any]:
        self._note(name)
        return super()._numbered(name, data)

    def _heartbeat(self, name: bytes, body: bytes) -> None:
        self._note(name)
        super()._heartbeat(name, body)

    def _note(self, name: bytes) -> None:
        if not re.fullmatch(rb"[ws]0\.\d{1,9}", name):
            self.admitted.append(None)


def serve_messages(pipe: Pipe) -> None:
    admitted = counted(router._Allowed, "callback")
    nothing: Callable[..., Any] = lambda *_: []  # noqa: E731
    agents = SimpleNamespace(start=nothing, end=nothing, close=nothing, lost=nothing, watch=nothing, waits=nothing)
    agents.device, launches = lambda slot: "cpu", []
    engine: Any = SimpleNamespace(endpoint=(HOST, 0), workers=1, open=lambda launch: launches.append(launch) or agents)
    setup = Setup(RunSpec(epochs=1, partitions=1, validation=0), b"recipe", b"{}", "states", "/dev/shm", "run", 1)
    served = Watched(engine, lambda device: setup, lambda slot: Path(os.devnull), 3600.0)
    served.admitted = admitted
    served.start(0)
    card = Card(**json.loads(launches[0].card(0)))
    pipe.send((parted(card.address), card))
    while True:
        for message in served.receive(0.5, pipe.fileno()):
            if isinstance(message, Ready):
                served.send(0, Examine(message.pid, {}))
        served.confirm()
        if pipe.poll() and pipe.recv():
            pipe.send(len(admitted))


def agent(address: Address, card: Card) -> Iterator[None]:
    card = msgspec.structs.replace(card, address=f"tcp://{joined(*address)}", incarnation=secrets.randbelow(10**9))
    connection = DriverConnection(card, Progress())
    try:
        connection.send(Hello(0))
        connection.receive()
        yield
        while True:
            connection.send(Ready(0, "here", 1))
            connection.receive()
            yield
    finally:
        connection.close()


def greeting(mechanism: bytes, major: int = 3, rest: bytes = bytes(32)) -> bytes:
    return b"\xff" + bytes(8) + b"\x7f" + bytes([major, 0]) + mechanism.ljust(20, b"\0") + rest


def command(name: bytes, body: bytes) -> bytes:
    body = bytes([len(name)]) + name + body
    return b"\x04" + bytes([len(body)]) + body if len(body) < 256 else b"\x06" + struct.pack(">Q", len(body)) + body


NAME = b"w0.9999999999"
HELLO = framed(Header(1, 0), pack(Hello(0)))
HELLO_FRAME = bytes([0, len(HELLO)]) + HELLO
IDENTITY = b"\x08Identity" + struct.pack(">I", len(NAME)) + NAME
MESSAGES: list[Bytes] = [
    lambda dice: dice.randbytes(dice.randrange(1, 200)),
    lambda dice: greeting(b"CURVE", dice.randrange(256)) + dice.randbytes(99),
    lambda dice: greeting(b"CURVE")[: dice.randrange(1, 64)],
    lambda dice: greeting(b"CURVE") + command(b"HELLO", b"\1\0" + bytes(72) + dice.randbytes(120)),
    lambda dice: greeting(b"CURVE") + command(b"INITIATE", dice.randbytes(dice.randrange(240, 400))),
    lambda dice: greeting(b"CURVE") + command(dice.randbytes(5), dice.randbytes(dice.randrange(400))),
    lambda dice: greeting(b"CURVE") + HELLO_FRAME,
    lambda dice: greeting(b"NULL") + command(b"READY", b"\x0bSocket-Type\0\0\0\6DEALER" + IDENTITY) + HELLO_FRAME,
    lambda dice: greeting(b"PLAIN") + command(b"HELLO", b"\4user\4word") + HELLO_FRAME,
    # ZMTP 2 and 1, which know no keys
    lambda dice: b"\xff" + bytes(8) + b"\x7f\1\5" + bytes([0, len(NAME)]) + NAME + HELLO_FRAME,
    lambda dice: bytes([len(NAME) + 1, 0]) + NAME + bytes([len(HELLO) + 1, 0]) + HELLO,
]


def large_message(dice: Dice) -> bytes:
    size = dice.choice([FRAME_LIMIT + 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, 1 << 18])
    return greeting(b"CURVE") + bytes([dice.choice([2, 6])]) + struct.pack(">Q", size) + bytes(1 << 18)


class Dealers:
    """Impostors of ZeroMQ, who know the server's key, but not that of agents."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._open: deque[Any] = deque()

    def __call__(self, address: Address, card: Card) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        card = msgspec.structs.replace(card, public_key=public, secret_key=secret, incarnation=10**10)
        self._open.append(dial_driver(self._context, card, "w", {zmq.LINGER: 0, zmq.RECONNECT_IVL: -1}))
        self._open[-1].send(HELLO, zmq.NOBLOCK)
        if len(self._open) > 20:
            self._open.popleft().close()


# ------------------------------------------------------------------------------------------ supervisors


def serve_supervisors(pipe: Pipe) -> None:
    token = secrets.token_hex()
    served = Supervisors(HOST, 0, token, lambda slot: Path(os.devnull))
    pipe.send(((HOST, served.port), token))
    served.start(0)
    while True:
        select.select([*served.watch(), pipe], [], [], 0.5)
        for slot, _ in served.lost():
            served.start(slot)
        if pipe.poll() and pipe.recv():
            pipe.send(served.admitted_count)


def executor(address: Address, token: str) -> Iterator[None]:
    with dial_from_host(Ticket(*address, token)).socket as connection:
        connection.sendall(lines.line_of(lines.SupervisorHello(token, "here", "here-1", (), 0, __version__, PYTHON)))
        with connection.makefile("rb") as orders:
            while line := orders.readline():
                slot = lines.order_of(line).slot
                yield
                connection.sendall(lines.line_of(lines.AgentEnded(slot, "as agreed")))
        raise ConnectionError("the driver hung up")


def false_executor(address: Address, token: str) -> None:
    client = executor(address, secrets.token_hex())
    with contextlib.suppress(OSError):
        next(client)


SUPERVISORS: list[Bytes] = [
    lambda dice: dice.randbytes(dice.randrange(1, 200)) + b"\n",
    lambda dice: json.dumps({"token": dice.randbytes(32).hex(), "host": "x"}).encode() + b"\n",
    lambda dice: json.dumps({"token": dice.choice([None, 3, [], {}, "", True])}).encode() + b"\n",
    lambda dice: dice.choice([b"{}", b"[1]", b"null", b"1e999", b"9" * 5000, b'{"token": "\\ud800"}']) + b"\n",
    lambda dice: dice.choice([b"[", b'{"token":']) * dice.randrange(1, 7000) + b"\n",
    lambda dice: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


def large_hello(dice: Dice) -> bytes:
    return dice.choice([b"", b'{"token": "', b"["]) + b"x" * dice.randrange(1 << 16, 1 << 18)


# ------------------------------------------------------------------------------------------ States


def serve_states(pipe: Pipe, encrypt: bool = False) -> None:
    admitted = counted(bulk, "admit")
    token, certificate = secrets.token_hex(), make_certificate() if encrypt else ""
    services = {"echo": bulk.Service(lambda ask, data: bytes(data))}
    served = bulk.Server(HOST, Credentials(token, certificate), services, encrypt=encrypt)
    answer(pipe, parted(served.address), (token, certificate), admitted)


def serve_states_tls(pipe: Pipe) -> None:
    serve_states(pipe, encrypt=True)


def states_client(address: Address, secret: tuple[str, str]) -> Iterator[None]:
    client, url = Client(Credentials(*secret)), f"{'tls' if secret[1] else 'tcp'}://{joined(*address)}"
    try:
        while True:
            client.ask(url, Ask("echo", Ref(0, 1, 1)), bytes(1000))
            yield
    finally:
        client.close()


def false_states_client(address: Address, secret: tuple[str, str]) -> None:
    certificate = make_certificate() if secret[1] else ""
    with contextlib.suppress(OSError):
        url = f"{'tls' if certificate else 'tcp'}://{joined(*address)}"
        dial_states(url, Credentials("a guess", certificate)).close()


STATES: list[Bytes] = [
    lambda dice: dice.randbytes(48),
    lambda dice: dice.randbytes(dice.randrange(1, 48)),
    lambda dice: dice.randbytes(dice.randrange(49, 2000)),
    lambda dice: bytes(48) + b"A\5\0\0\0hello",
    lambda dice: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(48),
]
TLS: list[Bytes] = [
    *STATES,
    lambda dice: struct.pack(">BHH", dice.randrange(19, 26), 0x0301, 99) + dice.randbytes(99),
    lambda dice: struct.pack(">BHHI", 22, 0x0301, 300, 1 << 24 | dice.randrange(400)) + dice.randbytes(296),
    lambda dice: struct.pack(">BHHBB", 21, 0x0303, 2, dice.randrange(3), dice.randrange(256)),
    lambda dice: b"\x80\x2e\1\0\2" + dice.randbytes(43),
]


def large_record(dice: Dice) -> bytes:
    part = struct.pack(">BHHI", 22, 0x0301, 1 << 14, 0x1FFFFFF) + dice.randbytes((1 << 14) - 4)
    return dice.choice(
        [part + 15 * (struct.pack(">BHH", 22, 0x0301, 1 << 14) + part[5:]), b"\x16\x03\x01\xff\xff" + part]
    )


# ------------------------------------------------------------------------------------------ rows of a feed


def serve_rows(pipe: Pipe) -> None:
    admitted = counted(receiver.Handshake, "admit")
    token = secrets.token_hex()
    with tempfile.TemporaryDirectory() as folder:
        served = receiver.FeedServer(Path(folder), HOST, token, 0, apart=True)

        def program() -> None:
            feed = Feed(served.queue("infer"))
            for rows in feed.rows(3):
                feed.answer(rows)

        threading.Thread(target=program, daemon=True).start()
        answer(pipe, (HOST, served.endpoint.port), (served.endpoint, token), admitted)


def task(address: Address, secret: tuple[Any, str]) -> Iterator[None]:
    endpoint = replace(secret[0], machine="another", host=address[0], port=address[1])
    with FeedConnection(Route((endpoint,), secret[1], "infer"), 0, answers=True) as connection:
        yield
        number, body = 0, cloudpickle.dumps([1, 2, 3], 5)
        while True:
            connection.send(PICKLE, body, number, 3)
            connection.answer()
            yield
            number += 1


def false_task(address: Address, secret: tuple[Any, str]) -> None:
    endpoint = replace(secret[0], machine="another")
    with contextlib.suppress(OSError):
        connect(endpoint, "a guess", {"feed": "infer", "epoch": 0, "partition": 0, "worker": 0})


def prefixed(data: bytes, more: int = 0) -> bytes:
    return struct.pack("<i", len(data) + more) + data


ROWS: list[Bytes] = [
    lambda dice: dice.randbytes(dice.randrange(1, 200)),
    lambda dice: prefixed(dice.randbytes(dice.randrange(48))),
    lambda dice: prefixed(dice.randbytes(48) + b'{"feed": "infer", "epoch": 0, "partition": 0}'),
    lambda dice: prefixed(dice.randbytes(60), dice.randrange(-60, 60)),
    lambda dice: struct.pack("<i", -dice.randrange(1, 1 << 31)) + bytes(99),
    lambda dice: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


def large_proof(dice: Dice) -> bytes:
    return bytes(dice.randrange(49, 1 << 18))


def large_rows(dice: Dice) -> bytes:
    return struct.pack("<i", dice.choice([1 << 16, 1 << 17, (1 << 31) - 1])) + bytes(dice.randrange(1 << 15, 1 << 18))


# ------------------------------------------------------------------------------------------ one port


@dataclass(frozen=True)
class Port:
    """How one port is served, used and abused."""

    serve: Callable[[Pipe], None]
    client: Callable[[Address, Any], Iterator[None]]
    """Connects, yields, and yields again after each request that was answered."""
    impostor: Callable[[], Callable[[Address, Any], None]]
    malformed: list[Bytes]
    oversized: Bytes
    handshakes: int = 1
    """Connections of one client."""
    in_clear: bool = False
    """Whether what lets a client in can be overheard."""
    weight: float = 1.0
    """Its part of the frames, and of those that come in a second, beside the others."""


PORTS = {
    "messages": Port(serve_messages, agent, Dealers, MESSAGES, large_message, handshakes=2),
    "supervisors": Port(serve_supervisors, executor, lambda: false_executor, SUPERVISORS, large_hello, in_clear=True),
    "states": Port(
        serve_states,
        states_client,
        lambda: false_states_client,
        STATES,
        lambda dice: bytes(dice.randrange(49, 1 << 18)),
    ),
    "states-tls": Port(serve_states_tls, states_client, lambda: false_states_client, TLS, large_record, weight=0.5),
    "rows": Port(serve_rows, task, lambda: false_task, ROWS, large_rows),
}
