"""The table of SECURITY.md, "Ports": what strangers can do at each port of Hopyard's own before they show anything.

What lets somebody in is tested where each port is; here, how much is read before, for how long, from how many at once.
"""

from __future__ import annotations

import contextlib
import errno
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from feed_servers import TOKEN, feed_server, numbers
from hopyard import __version__
from hopyard.agent.connection import dial
from hopyard.core.delivery import Header
from hopyard.core.messages import LIMIT, Hello, Ready, Setup, framed, pack
from hopyard.driver import router as router_module
from hopyard.driver import strangers as strangers_module
from hopyard.driver.router import Router
from hopyard.engines.supervisors import listener as supervisors_module
from hopyard.engines.supervisors.messages import Start, SupervisorHello, line_of, order_of
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.feeds import protocol, receiver
from hopyard.feeds.sender import Route, SendResult, send_partition
from hopyard.spec import Ref, RunSpec
from hopyard.store.bulk import connection
from hopyard.store.bulk import server as bulk_server
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.system.network import parted, read
from wires import Cards

HERE = Path(__file__).parent.parent
SECONDS = 60.0
"""What ends takes less; a test that waits for so long has failed."""
SETUP = Setup(RunSpec(epochs=1, partitions=1, validation=0), b"recipe", b"{}", "states", "/dev/shm", "run", 1)
GREETING = b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32)
LARGEST = GREETING + b"\6" + struct.pack(">Q", LIMIT)
"""The greeting of ZeroMQ, and the head of a frame."""

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the time of strangers is bounded there")


def dialled(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, SECONDS)


def hung_up(line: socket.socket) -> bool:
    """The other end hangs up; what it said before is skipped."""
    with contextlib.suppress(ConnectionError):
        while line.recv(1 << 16):
            pass
    return True


def taken(line: socket.socket, size: int) -> bool:
    """Whether the other end takes so many bytes."""
    try:
        for _ in range(size >> 16):
            line.sendall(bytes(1 << 16))
    except ConnectionError:
        return False
    return True


def drip(line: socket.socket, first: bytes = b"") -> bool:
    """Bring a byte now and then, until the other end hangs up: each comes sooner than any time-out for one read."""
    end = time.monotonic() + SECONDS
    with contextlib.suppress(ConnectionError):
        line.sendall(first)
        while time.monotonic() < end:
            line.sendall(b"\0")
            time.sleep(0.1)
    return time.monotonic() < end


# ------------------------------------------------------------------------------------------ messages


class Driver:
    """The port of messages, and an agent that is let in."""

    def __init__(self) -> None:
        engine = Cards()
        self.router = Router(engine, lambda device: SETUP, lambda slot: Path("none"), 60.0)
        self.router.start(0)
        self.card = engine.cards[0]
        self.address = parted(self.card.address)

    def lets_in(self) -> bool:
        """Whether an agent is heard."""
        context = zmq.Context()
        agent = dial(context, self.card, "w", {zmq.LINGER: 0})
        agent.send(framed(Header(1, 0), pack(Hello(0))))
        agent.send(framed(Header(2, 0), pack(Ready(0, "here", 1))))
        end = time.monotonic() + SECONDS
        heard: list[Any] = []
        while not heard and time.monotonic() < end:
            heard = self.router.receive(0.05)
        agent.close()
        context.term()
        return heard == [Ready(0, "here", 1)]


@pytest.fixture
def driver() -> Iterator[Callable[[], Driver]]:
    drivers: list[Driver] = []

    def make() -> Driver:
        drivers.append(Driver())
        return drivers[-1]

    yield make
    for each in drivers:
        each.router.close()


def test_messages_before_the_key_of_the_run(driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_module, "HANDSHAKE_SECONDS", 1.0)
    it = driver()
    began = time.monotonic()
    with dialled(it.address) as line:
        assert drip(line, LARGEST)
    assert time.monotonic() - began > 0.9
    assert it.lets_in()


@LINUX
def test_messages_take_few_bytes_of_a_stranger(driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: his first frame could have as many bytes as any, 64 MB on each of his connections."""
    monkeypatch.setattr(router_module, "HANDSHAKE_SECONDS", 1000.0)
    it = driver()
    with dialled(it.address) as line:
        assert drip(line, LARGEST + bytes(strangers_module.HANDSHAKE_BYTES))
    assert it.lets_in()


@LINUX
def test_messages_have_few_strangers_at_once(driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each of them took a descriptor of the driver, as many as they liked."""
    monkeypatch.setattr(strangers_module, "STRANGERS", 5)
    it = driver()
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(dialled(it.address)) for _ in range(12)]
        assert all(hung_up(line) for line in lines[:7])
        assert it.lets_in()


@LINUX
def test_agents_who_were_let_in_are_no_strangers(driver: Callable[[], Driver], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "STRANGERS", 2)
    it = driver()
    context = zmq.Context()
    news = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
    with contextlib.ExitStack() as stack:
        stack.callback(context.term)
        events = []
        for number in range(8):
            card = msgspec.structs.replace(it.card, incarnation=number)
            agent = stack.enter_context(dial(context, card, "w", {zmq.LINGER: 0}))
            event = stack.enter_context(agent.get_monitor_socket(news))
            assert event.poll(int(SECONDS * 1000))
            assert recv_monitor_message(event)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            events.append(event)
        lines = [stack.enter_context(dialled(it.address)) for _ in range(6)]
        assert all(hung_up(line) for line in lines[:4])
        assert not any(event.poll(0) for event in events)


# ------------------------------------------------------------------------------------------ supervisors


@pytest.fixture
def supervisors(tmp_path: Path) -> Iterator[Supervisors]:
    made = Supervisors("127.0.0.1", 0, TOKEN, lambda slot: tmp_path / f"{slot}.log")
    yield made
    made.close()


@pytest.mark.slow
def test_supervisors_before_the_token(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = "127.0.0.1", supervisors.port
    with dialled(address) as line:
        assert not taken(line, 8 << 20)  # more than the kernel takes for a server that reads nothing
    monkeypatch.setattr(supervisors_module, "HELLO_SECONDS", 1.0)
    began = time.monotonic()
    with dialled(address) as line:
        assert drip(line, b'{"token": "')
    assert time.monotonic() - began > 0.9
    for _ in range(20):
        with dialled(address) as line:
            line.sendall(line_of(SupervisorHello("a guess")))
            assert hung_up(line)
    assert caplog.text.count("did not show the token") == 1  # bug: a line of the log for each
    supervisors.start(0)
    with dialled(address) as line, line.makefile("rb") as orders:
        hello = line_of(SupervisorHello(TOKEN, "there", "", (), 0, __version__, PYTHON))
        line.sendall(hello[:20])  # however it comes
        line.sendall(hello[20:])
        assert order_of(orders.readline()) == Start(0)


def test_a_stranger_who_is_gone_at_once_does_not_end_the_run(
    supervisors: Supervisors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: where the system then allows no options any more (macOS), the thread of supervisors ended, and the run."""
    gone = iter([OSError(errno.EINVAL, "Invalid argument")])
    lasting = supervisors_module.lasting  # type: ignore[attr-defined]

    def fail_once(line: socket.socket) -> None:
        if error := next(gone, None):
            raise error
        lasting(line)

    monkeypatch.setattr(supervisors_module, "lasting", fail_once)
    address = "127.0.0.1", supervisors.port
    with dialled(address) as line:
        assert hung_up(line)
    supervisors.start(0)
    with dialled(address) as line, line.makefile("rb") as orders:
        line.sendall(line_of(SupervisorHello(TOKEN, "there", "", (), 0, __version__, PYTHON)))
        assert order_of(orders.readline()) == Start(0)
        assert supervisors.lost() == []


# ------------------------------------------------------------------------------------------ States


def test_states_before_the_challenge() -> None:
    """Its first 48 bytes decide; what else is bounded, `store/bulk/test_strangers.py` shows."""
    credentials = Credentials("the token")
    server = Server("127.0.0.1", credentials, {"echo": Service(lambda ask, data: bytes(data))})
    try:
        with dialled(parted(server.address)) as line:
            assert len(line.recv(16, socket.MSG_WAITALL)) == 16
            line.sendall(bytes(47))
            line.settimeout(0.3)
            with pytest.raises(TimeoutError):
                line.recv(1)
            line.settimeout(SECONDS)
            line.sendall(b"\0")
            assert line.recv(1) == b""
        with dialled(parted(server.address)) as line:
            assert not taken(line, 8 << 20)
        client = Client(credentials)
        assert client.ask(server.address, Ask("echo", Ref(1, 2, 3)), b"x") == b"x"
        client.close()
    finally:
        server.close()


# ------------------------------------------------------------------------------------------ rows of a feed


def test_rows_by_tcp_before_the_challenge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with feed_server(tmp_path, apart=True) as server:
        address = server.endpoint.host, server.endpoint.port
        with dialled(address) as line:  # one byte more than is allowed: none of them is waited for
            assert len(line.recv(16, socket.MSG_WAITALL)) == 16
            line.sendall(struct.pack("<i", protocol._MAX_MESSAGE_BYTES + 1))
            assert line.recv(1) == b""
        with dialled(address) as line:
            line.sendall(struct.pack("<i", protocol._MAX_MESSAGE_BYTES))
            assert not taken(line, 8 << 20)
        monkeypatch.setattr(protocol, "_HANDSHAKE_SECONDS", 1.0)
        began = time.monotonic()
        with dialled(address) as line:
            assert drip(line, struct.pack("<i", protocol._MAX_MESSAGE_BYTES))
        assert time.monotonic() - began > 0.9
        monkeypatch.undo()
        monkeypatch.setattr(receiver, "STRANGERS", 3)
        with contextlib.ExitStack() as stack:
            lines = [stack.enter_context(dialled(address)) for _ in range(8)]
            assert all(hung_up(line) for line in lines[:5])
            far = replace(server.endpoint, machine="another")
            assert send_partition(Route((far,), TOKEN), 0, [numbers(0, 25)]) == SendResult(25, 0)


def test_bytes_of_a_hello_that_come_after_its_deadline_are_late() -> None:
    """Bug: whoever sent a byte each millisecond was read for a minute."""
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"hello")
        with pytest.raises(TimeoutError):
            read(other, 5, time.monotonic() - 0.001)


def test_rows_have_few_strangers_though_their_threads_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the oldest was ended again and again until its own thread noticed, and the others stayed."""
    goes_on, admit = threading.Event(), protocol.Handshake.admit

    def admit_later(handshake: protocol.Handshake) -> dict[str, Any]:
        goes_on.wait(SECONDS)
        return admit(handshake)

    monkeypatch.setattr(protocol.Handshake, "admit", admit_later)
    monkeypatch.setattr(receiver, "STRANGERS", 3)
    with feed_server(tmp_path, apart=True) as server, contextlib.ExitStack() as stack:
        stack.callback(goes_on.set)
        address = server.endpoint.host, server.endpoint.port
        lines = [stack.enter_context(dialled(address)) for _ in range(8)]
        assert all(hung_up(line) for line in lines[:5])


# ------------------------------------------------------------------------------------------ all of them


def test_the_page_on_security_says_what_the_code_does() -> None:
    text = (HERE / "SECURITY.md").read_text().partition("## Ports")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    said = {row[0].partition(" (")[0]: tuple(row[3:6]) for row in rows[2:6]}

    def limits(size: int, seconds: float, count: int, more: str = "") -> tuple[str, str, str]:
        amount = f"{size >> 10} KiB" if size >= 1024 else f"{size} bytes"
        return f"{amount}{more}", f"{seconds:g} s", str(count)

    assert said == {
        "messages": limits(
            strangers_module.HANDSHAKE_BYTES, strangers_module.HANDSHAKE_SECONDS, strangers_module.STRANGERS
        ),
        "supervisors": limits(
            supervisors_module.HELLO_BYTES, supervisors_module.HELLO_SECONDS, supervisors_module.STRANGERS
        ),
        "States": limits(
            connection._NONCE + connection._MAC, connection.HANDSHAKE_SECONDS, bulk_server.STRANGERS, " beside TLS"
        ),
        "rows of a feed": limits(protocol._MAX_MESSAGE_BYTES, protocol._HANDSHAKE_SECONDS, receiver.STRANGERS),
    }


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_short_campaign_of_strangers() -> None:
    campaign = subprocess.run(
        [sys.executable, HERE / "benchmarks" / "strangers.py", "--frames", "4000"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.findall(
        r"^(\S+): \S+ frames .*: (-?\d+) let in; memory \S+ MB, ([+-][\d.]+) MB at most.*; honest requests: ([\d,]+) ",
        campaign.stdout,
        re.MULTILINE,
    )
    assert [name for name, *_ in found] == ["messages", "supervisors", "states", "states-tls", "rows"], campaign
    for name, let_in, growth, answered in found:  # the ratio of rates means nothing in so short a time
        assert int(let_in) == 0 and float(growth) <= 64 and answered != "0", (name, campaign.stdout)


def test_a_descriptor_that_is_something_else_by_now_ends_no_watcher() -> None:
    """ZeroMQ may have closed the connection, and a pipe or a socket pair have its number."""
    one, other = socket.socketpair()
    strangers = strangers_module.Strangers.__new__(strangers_module.Strangers)
    strangers._port, strangers._descriptors = 1, {one.fileno(): None}
    with one, other:
        strangers._look(one.fileno(), 0)
        assert not strangers._descriptors
        assert one.send(b"x") == 1
