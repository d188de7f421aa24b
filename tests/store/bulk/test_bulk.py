"""Bytes by network: what gets through, what does not, and what the client is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.arena import Taken
from hopyard.store.bulk import client as bulk
from hopyard.store.bulk import connection
from hopyard.store.bulk import server as bulk_server
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.store.remote import GETS, PUTS, Depot, RemoteStore
from hopyard.store.states import LocalStore
from jobs import until

pytestmark = pytest.mark.slow

REF = Ref(1, 2, 3)
MANY = os.urandom((9 << 20) + 5)


def fail(error: Exception) -> Callable[[Any, Any], Any]:
    def raise_it(ask: Any, data: Any) -> Any:
        raise error

    return raise_it


SERVICES = {
    "echo": Service(lambda ask, data: bytes(data)),
    "many": Service(lambda ask, data: MANY),
    "torn": Service(lambda ask, data: Taken(memoryview(MANY), lambda: False)),
    "missing": Service(fail(FileNotFoundError("not here"))),
    "full": Service(fail(ResourceError("no room"))),
    "broken": Service(fail(ValueError("what?"))),
    "cut": Service(fail(ConnectionResetError("by the store"))),
}


ENCRYPTED = pytest.mark.parametrize(
    "encrypt", [pytest.param(False, marks=pytest.mark.long), True], ids=["plain", "encrypted"], indirect=True
)
"""For tests that wait for seconds."""


@pytest.fixture
def client(credentials: Credentials) -> Iterator[Client]:
    made = Client(credentials)
    yield made
    made.close()


# ------------------------------------------------------------------------------------------ bytes


def test_bytes_go_there_and_back(server: Server, client: Client) -> None:
    for data in (b"some", MANY, b"", MANY[: connection.CHUNK], MANY[: connection.CHUNK + 1]):
        assert client.ask(server.address, Ask("echo", REF), data) == data
    assert client.ask(server.address, Ask("echo", REF)) == b""
    assert client.ask(server.address, Ask("many", REF)) == MANY


def test_errors_come_back_as_what_they_are(server: Server, client: Client) -> None:
    with pytest.raises(FileNotFoundError, match="not here"):
        client.ask(server.address, Ask("missing", REF))
    with pytest.raises(ResourceError, match="no room"):
        client.ask(server.address, Ask("full", REF), MANY)
    with pytest.raises(ConnectionError, match="ValueError: what"):
        client.ask(server.address, Ask("broken", REF), MANY)
    with pytest.raises(ConnectionError, match="ConnectionResetError: by the store"):
        client.ask(server.address, Ask("cut", REF), MANY)
    with pytest.raises(ConnectionError, match="nobody here does 'unheard of'"):
        client.ask(server.address, Ask("unheard of", REF), MANY)
    with pytest.raises(FileNotFoundError, match="used again"):
        client.ask(server.address, Ask("torn", REF))
    assert client.ask(server.address, Ask("echo", REF), b"still there") == b"still there"


def test_damage_is_seen(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """On either way: here the hash of the end that sends is another."""
    send = connection.Connection.send

    def damaged(self: Any, kind: bytes, body: bytes = b"") -> None:
        send(self, kind, bytes(32) if kind == connection.END else body)

    monkeypatch.setattr(connection.Connection, "send", damaged)
    with pytest.raises(ConnectionError, match=f"{len(MANY)} bytes .*damaged"):
        client.ask(server.address, Ask("many", REF))
    with pytest.raises(ConnectionError, match=f"{len(MANY)} bytes .*damaged"):
        client.ask(server.address, Ask("echo", REF), MANY)
    monkeypatch.undo()
    assert client.ask(server.address, Ask("echo", REF), MANY) == MANY


def test_bytes_moved_are_reported(server: Server, credentials: Credentials) -> None:
    moved: list[int] = []
    client = Client(credentials, moved.append)
    client.ask(server.address, Ask("echo", REF), MANY)
    assert sum(moved) == 2 * len(MANY) and max(moved) == connection.CHUNK
    client.close()


def test_a_waiting_client_sees_the_servers_heartbeat(
    credentials: Credentials, encrypt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_server, "PULSE_SECONDS", 0.05)
    moved: list[int] = []
    heard = threading.Event()

    def slow(ask: Ask, data: memoryview) -> bytes:
        assert heard.wait(30)
        return b""

    def hear(count: int) -> None:
        moved.append(count)
        heard.set()

    server = Server("127.0.0.1", credentials, {"slow": Service(slow)}, encrypt=encrypt)
    client = Client(credentials, hear)
    client.ask(server.address, Ask("slow"))
    assert moved and set(moved) == {0}
    client.close()
    server.close()


@ENCRYPTED
def test_a_slow_transfer_goes_on_while_bytes_move(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time-out is for a step without progress: in all it takes three times as long."""
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(connection, "CHUNK", 1 << 16)
    send = connection._send

    def slowly(line: Any, data: Any) -> None:
        time.sleep(0.1)
        send(line, data)

    monkeypatch.setattr(connection, "_send", slowly)
    began = time.monotonic()
    assert client.ask(server.address, Ask("echo", REF), MANY[: 1 << 20]) == MANY[: 1 << 20]
    assert time.monotonic() - began > 3.0


# ------------------------------------------------------------------------------------------ connections


def test_connections_are_kept(server: Server, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []
    dial = connection.dial

    def counted(address: str, credentials: Credentials) -> Any:
        dialled.append(address)
        return dial(address, credentials)

    monkeypatch.setattr(bulk, "dial", counted)
    for _ in range(5):
        client.ask(server.address, Ask("echo", REF), b"x")
        with pytest.raises(FileNotFoundError):
            client.ask(server.address, Ask("missing", REF))
        with pytest.raises(FileNotFoundError):
            client.ask(server.address, Ask("torn", REF))
    assert len(dialled) == 1


def test_a_server_that_is_gone(
    credentials: Credentials, encrypt: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 3600.0)  # longer than a test may take
    server = Server("127.0.0.1", credentials, SERVICES, encrypt=encrypt)
    assert client.ask(server.address, Ask("many", REF)) == MANY
    server.close()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="does not answer"):
            client.ask(server.address, Ask("many", REF))


def test_a_server_that_is_back_is_dialled_again(credentials: Credentials, encrypt: bool, client: Client) -> None:
    server = Server("127.0.0.1", credentials, SERVICES, encrypt=encrypt)
    assert client.ask(server.address, Ask("many", REF)) == MANY
    port = int(server.address.rpartition(":")[2])
    server.close()
    server = Server("127.0.0.1", credentials, SERVICES, port=port, encrypt=encrypt)
    assert client.ask(server.address, Ask("many", REF)) == MANY
    server.close()


def test_several_threads_share_a_client(server: Server, client: Client) -> None:
    wrong = []

    def many(number: int) -> None:
        for _ in range(20):
            data = bytes([number]) * 10_000
            if client.ask(server.address, Ask("echo", REF), data) != data:
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ResourceError, match="give another port="):
        Server("127.0.0.1", Credentials("t"), SERVICES, port=taken.getsockname()[1])


def test_the_server_listens_at_the_given_address(credentials: Credentials, encrypt: bool) -> None:
    server = Server("127.0.0.2", credentials, SERVICES, encrypt=encrypt)
    port = int(server.address.rpartition(":")[2])
    socket.create_connection(("127.0.0.2", port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    server.close()


def test_a_server_that_closes_answers_what_it_began(credentials: Credentials, encrypt: bool, client: Client) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(ask: Ask, data: memoryview) -> bytes:
        began.set()
        assert go_on.wait(30)
        return b"done"

    server = Server("127.0.0.1", credentials, {"slow": Service(slow)}, encrypt=encrypt)
    found: list[bytes] = []
    asker = threading.Thread(target=lambda: found.append(bytes(client.ask(server.address, Ask("slow")))))
    asker.start()
    assert began.wait(30)
    closer = threading.Thread(target=server.close)
    closer.start()
    time.sleep(0.1)
    go_on.set()
    asker.join()
    closer.join()
    assert found == [b"done"]


def test_closing_a_client_wakes_its_requests(credentials: Credentials, encrypt: bool) -> None:
    began, go_on = threading.Event(), threading.Event()

    def slow(ask: Ask, data: memoryview) -> bytes:
        began.set()
        go_on.wait(30)
        return b""

    server = Server("127.0.0.1", credentials, {"slow": Service(slow)}, encrypt=encrypt)
    client, errors = Client(credentials), []

    def asks() -> None:
        try:
            client.ask(server.address, Ask("slow"))
        except ConnectionError as error:
            errors.append(error)

    asker = threading.Thread(target=asks)
    asker.start()
    assert began.wait(30)
    client.close()
    asker.join(60)
    assert len(errors) == 1
    go_on.set()
    server.close()


# ------------------------------------------------------------------------------------------ a slow depot


class SlowDisk:
    """Takes one State at a time, at so many bytes a second."""

    def __init__(self, store: LocalStore, rate: float) -> None:
        self.store, self.rate = store, rate
        self.lock = threading.Lock()
        self.open = threading.Event()
        self.open.set()

    def put(self, ref: Ref, data: memoryview) -> None:
        with self.lock:
            time.sleep(len(data) / self.rate)
            self.open.wait()
            self.store.put(ref, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


@pytest.fixture
def slow(
    tmp_path: Path, credentials: Credentials, encrypt: bool, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[SlowDisk, Server]]:
    """60 MB/s and 60 s, at a twentieth of both the bytes and the times."""
    monkeypatch.setattr(bulk_server, "PULSE_SECONDS", 0.25)
    monkeypatch.setattr(connection, "STALL_SECONDS", 3.0)
    disk = SlowDisk(LocalStore(tmp_path / "states"), 60e6 / 20)
    server = Server("127.0.0.1", credentials, Depot(disk).services(), encrypt=encrypt)
    yield disk, server
    disk.open.set()
    server.close()


@ENCRYPTED
def test_eight_senders_wait_for_a_slow_depot(slow: tuple[SlowDisk, Server], credentials: Credentials) -> None:
    """All of it takes longer than the time after which a server that is silent counts as gone."""
    disk, server = slow
    data, errors = os.urandom(1_800_000), []

    def put(trial: int) -> None:
        client = Client(credentials)
        try:
            RemoteStore(client, server.address).put(Ref(trial, 1, 1), memoryview(data))
        except Exception as error:
            errors.append(error)
        client.close()

    began = time.monotonic()
    threads = [threading.Thread(target=put, args=(trial,)) for trial in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert time.monotonic() - began > connection.STALL_SECONDS
    assert all(disk.store.get(Ref(trial, 1, 1)) == data for trial in range(8))


def test_a_request_whose_turn_comes_too_late_is_dropped(slow: tuple[SlowDisk, Server], client: Client) -> None:
    disk, server = slow
    disk.open.clear()
    remote = RemoteStore(client, server.address)
    others = [threading.Thread(target=remote.put, args=(Ref(trial, 1, 1), memoryview(b"x"))) for trial in range(2)]
    for other in others:
        other.start()
    until(lambda: len(client._busy) == 2 and disk.lock.locked())
    time.sleep(0.2)  # both have their turn
    with pytest.raises(ConnectionError, match=r"turn .*within 0 seconds"):
        client.ask(server.address, Ask("put", REF, seconds=0.3), b"late")
    disk.open.set()
    for other in others:
        other.join()
    assert remote.refs() == {Ref(0, 1, 1), Ref(1, 1, 1)}
    remote.put(REF, memoryview(b"in time"))
    assert remote.get(REF) == b"in time"


def test_a_request_whose_asker_hung_up_is_dropped(
    slow: tuple[SlowDisk, Server], client: Client, credentials: Credentials
) -> None:
    disk, server = slow
    disk.open.clear()
    remote = RemoteStore(client, server.address)
    others = [threading.Thread(target=remote.put, args=(Ref(trial, 1, 1), memoryview(b"x"))) for trial in range(2)]
    for other in others:
        other.start()
    until(lambda: len(client._busy) == 2 and disk.lock.locked())
    impatient = connection.dial(server.address, credentials)
    impatient.send(connection.ASK, bulk.encode(Ask("put", REF, size=10)))
    until(lambda: len(server._connections) == 3)
    impatient.close()
    until(lambda: len(server._connections) == 2)  # nobody waits for a disk that is at work
    disk.open.set()
    for other in others:
        other.join()
    assert remote.refs() == {Ref(0, 1, 1), Ref(1, 1, 1)}


STOPS = """
import sys, time
from hopyard.store.bulk.server import Server, Service
from hopyard.store.bulk.connection import Credentials
server = Server("127.0.0.1", Credentials("t"), {"wait": Service(lambda ask, data: time.sleep(1000))})
print(server.address, flush=True)
sys.stdin.read()
"""


def test_a_server_that_is_stopped_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    process = subprocess.Popen([sys.executable, "-c", STOPS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    client = Client(Credentials("t"))
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        timer = threading.Timer(0.3, process.send_signal, (signal.SIGSTOP,))
        timer.start()
        with pytest.raises(ConnectionError, match="does not answer: State None: timed out"):
            client.ask(address, Ask("wait"))
        timer.join()
    finally:
        process.kill()
        process.communicate()
        client.close()


DIES = """
import sys
from hopyard.spec import Ref
from hopyard.store.bulk.client import Ask, encode
from hopyard.store.bulk.connection import ASK, GO, DATA, Credentials, dial
token, address, certificate = sys.stdin.read().split("|")
line = dial(address, Credentials(token, certificate))
line.send(ASK, encode(Ask("put", Ref(1, 2, 3), size=100 << 20)))
line.receive(GO)
line.send(DATA, bytes(1 << 20))
print("half", flush=True)
import time; time.sleep(1000)
"""


def test_a_client_that_dies_while_it_sends_leaves_nothing(
    tmp_path: Path, credentials: Credentials, encrypt: bool, client: Client
) -> None:
    """And takes nobody's turn with it."""
    store = LocalStore(tmp_path)
    server = Server("127.0.0.1", credentials, Depot(store).services(), encrypt=encrypt)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", DIES], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("|".join(("the token", server.address, credentials.certificate)).encode())
        process.stdin.close()
        assert process.stdout.readline() == b"half\n"
        process.kill()
        process.stdout.close()
        process.wait()
    RemoteStore(client, server.address).put(REF, memoryview(b"whole"))
    assert [path.name for path in tmp_path.iterdir()] == [f"{REF}.safetensors"]
    assert store.get(REF) == b"whole"
    server.close()


def test_clients_that_stop_while_they_send_keep_their_turns_only_until_they_count_as_gone(
    tmp_path: Path, credentials: Credentials, encrypt: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_server, "PULSE_SECONDS", 0.1)
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    store = LocalStore(tmp_path)
    server = Server("127.0.0.1", credentials, Depot(store).services(), encrypt=encrypt)
    stopped = []
    for trial in range(PUTS):
        line = connection.dial(server.address, credentials)
        line.send(connection.ASK, bulk.encode(Ask("put", Ref(trial, 1, 1), size=10 << 20)))
        line.receive(connection.GO)
        line.send(connection.DATA, bytes(1 << 20))
        stopped.append(line)
    RemoteStore(client, server.address).put(REF, memoryview(b"whole"))
    assert store.refs() == {REF}
    for line in stopped:
        line.close()
    server.close()


def test_clients_that_stop_while_they_take_keep_their_turns_only_until_they_count_as_gone(
    tmp_path: Path, credentials: Credentials, encrypt: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_server, "PULSE_SECONDS", 0.1)
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    store = LocalStore(tmp_path)
    store.put(REF, memoryview(bytes(32 << 20)))
    server = Server("127.0.0.1", credentials, Depot(store).services(), encrypt=encrypt)
    stopped = [connection.dial(server.address, credentials) for _ in range(GETS)]
    for line in stopped:
        line.send(connection.ASK, bulk.encode(Ask("get", REF)))
    assert len(RemoteStore(client, server.address).get(REF)) == 32 << 20
    for line in stopped:
        line.close()
    server.close()


def test_more_bytes_than_can_be_taken_are_refused_before_they_come(
    tmp_path: Path, credentials: Credentials, encrypt: bool
) -> None:
    server = Server("127.0.0.1", credentials, Depot(LocalStore(tmp_path)).services(), encrypt=encrypt)
    line = connection.dial(server.address, credentials)
    for what, fault, words in (("put", "room", "does not fit into the memory of"), ("has", "other", "brings no bytes")):
        line.send(connection.ASK, bulk.encode(Ask(what, REF, size=1 << 60)))
        reply = msgspec.msgpack.decode(line.receive(connection.GO, connection.REPLY)[1], type=bulk.Reply)
        assert reply.fault == fault and words in reply.text and str(1 << 60) in reply.text
    line.close()
    server.close()
