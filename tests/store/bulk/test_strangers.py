"""The port of States against who does not belong to the run, or means no good."""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hopyard import certificate
from hopyard.certificate import make_certificate, prove_same, tls
from hopyard.spec import Ref
from hopyard.store.bulk import connection
from hopyard.store.bulk import server as bulk_server
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.system.network import parted
from jobs import until

REF = Ref(1, 2, 3)
SERVICES = {"echo": Service(lambda ask, data: bytes(data))}


@pytest.fixture
def friend(credentials: Credentials, server: Server) -> Iterator[Callable[[], None]]:
    """Somebody who belongs to the run is answered."""
    client = Client(credentials)

    def works() -> None:
        assert client.ask(server.address, Ask("echo", REF), b"x") == b"x"
        client.close()
        client._open = True  # the next time by another connection

    yield works
    client.close()


def refused(address: str, credentials: Credentials, words: str) -> None:
    client = Client(credentials)
    with pytest.raises(ConnectionError, match=words):
        client.ask(address, Ask("echo", REF), b"x")
    client.close()


def ends(line: socket.socket, seconds: float) -> None:
    """The other end hangs up within so many seconds."""
    line.settimeout(seconds)
    try:
        while line.recv(1 << 16):
            pass
    except ConnectionError:
        pass


def threads() -> int:
    return sum(thread.name == "hopyard-bulk-line" for thread in threading.enumerate())


# ------------------------------------------------------------------------------------------ who gets in


def test_a_client_without_the_token_gets_nothing(
    server: Server, friend: Callable[[], None], pem: str, encrypt: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        for token in ("a guess", "", "the token "):
            refused(server.address, Credentials(token, pem if encrypt else ""), "the connection ended")
    assert caplog.text.count("connections to the port of States were refused") == 1
    assert "the token" not in caplog.text.replace("know the token of", "")
    friend()


def test_the_token_never_travels(encrypt: bool) -> None:
    """A server that knows nothing hears nothing of it, and its answer is not believed."""
    heard = bytearray()

    def plays(listener: socket.socket) -> None:
        line, _ = listener.accept()
        with line:
            line.sendall(bytes(16))
            while len(heard) < 48:
                heard.extend(line.recv(100))
            line.sendall(bytes(heard[16:48]))  # what it heard: no proof that it knows the token, too

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=plays, args=(listener,))
        thread.start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        refused(address, Credentials("the token"), "who answers there does not know the token")
        thread.join()
    assert len(heard) == 48 and b"token" not in heard


def test_a_proof_cannot_be_reused(server: Server, credentials: Credentials, friend: Callable[[], None]) -> None:
    one, other = Credentials("the token", credentials.certificate), Credentials("the token", credentials.certificate)
    proofs: list[bytes] = []
    mac = one.mac
    one.mac = lambda *given: proofs.append(mac(*given)) or mac(*given)  # type: ignore[method-assign]
    connection.dial(server.address, one).close()
    other.mac = lambda *given: proofs[0]  # type: ignore[method-assign]
    refused(server.address, other, "the connection ended")
    friend()


def test_without_a_certificate_nobody_gets_in(pem: str) -> None:
    server = Server("127.0.0.1", Credentials("the token", pem), SERVICES, encrypt=True)
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(parted(server.address)) as line,
        pytest.raises(OSError, match=r"certificate|reset"),
        bare.wrap_socket(line) as wrapped,
    ):
        assert wrapped.recv(16) == b"", "it was asked for the token"
        raise ConnectionResetError
    server.close()


def test_of_another_certificate_neither_end_wants_to_know(pem: str) -> None:
    server = Server("127.0.0.1", Credentials("the token", pem), SERVICES, encrypt=True)
    refused(server.address, Credentials("the token", make_certificate()), "certificate")
    trusting = Credentials("the token", make_certificate())
    trusting.for_client.verify_mode = ssl.CERT_NONE  # of the two only the server looks
    trusting.certificate = pem
    refused(server.address, trusting, "alert|reset|line ended")
    client = Client(Credentials("the token", pem))
    assert client.ask(server.address, Ask("echo"), b"x") == b"x"
    client.close()
    server.close()


def test_the_certificate_is_pinned(pem: str) -> None:
    prove_same(ssl.PEM_cert_to_DER_cert(certificate._public(pem)), pem)
    for other in (b"", ssl.PEM_cert_to_DER_cert(certificate._public(make_certificate()))):
        with pytest.raises(ConnectionError, match="not this run's"):
            prove_same(other, pem)


def test_a_tls_server_ignores_a_plaintext_client(pem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.5)
    server = Server("127.0.0.1", Credentials("the token", pem), SERVICES, encrypt=True)
    refused(server.address.replace("tls", "tcp"), Credentials("the token"), "connection ended|reset")
    server.close()


def test_older_versions_of_tls_are_refused(pem: str) -> None:
    server = Server("127.0.0.1", Credentials("the token", pem), SERVICES, encrypt=True)
    old = tls(pem, server=False)
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(parted(server.address)) as line, pytest.raises(OSError, match=r"version|VERSION"):
        old.wrap_socket(line)
    server.close()


def test_the_key_is_nowhere_on_disk(pem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tls(pem, server=True)
    monkeypatch.delattr(os, "memfd_create", raising=False)  # as on macOS
    with certificate._as_file(pem) as path:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        assert Path(path).read_text() == pem
    assert list(tmp_path.iterdir()) == []
    tls(pem, server=False)
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ who means no good


TAKES = """
import sys
from hopyard.store.bulk.server import Server, Service
from hopyard.store.bulk.connection import Credentials
certificate = sys.stdin.readline().replace("|", "\\n")
server = Server("127.0.0.1", Credentials("t", certificate.strip()), {}, encrypt=bool(certificate.strip()))
print(server.address, flush=True)
sys.stdin.readline()
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_a_stranger_who_sends_much_takes_no_memory(encrypt: bool, pem: str) -> None:
    def peak(megabytes: int) -> int:
        process = subprocess.Popen(
            [sys.executable, "-c", TAKES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write((pem.replace("\n", "|") if encrypt else "") + "\n")
        process.stdin.flush()
        address = process.stdout.readline().strip()
        with socket.create_connection(parted(address)) as line:
            part = struct.pack("<cI", b"A", 0xFFFFFFFF) + random.Random(0).randbytes(1 << 20)
            try:
                for _ in range(megabytes):
                    line.sendall(part)
            except ConnectionError:
                pass  # it hung up
        found, _ = process.communicate("\n")
        return int(found)

    assert peak(400) - peak(0) < 20_000


def test_garbage_ends_nothing(server: Server, friend: Callable[[], None]) -> None:
    for seed in range(20):
        with socket.create_connection(parted(server.address)) as line:
            line.sendall(random.Random(seed).randbytes(4096))
    friend()
    until(lambda: not server._strangers)


def test_a_frame_that_is_too_large_is_not_read(
    server: Server, credentials: Credentials, friend: Callable[[], None]
) -> None:
    line = connection.dial(server.address, credentials)
    connection._send(line._socket, struct.pack("<cI", b"A", connection.CHUNK + 1))
    with pytest.raises(ConnectionError):
        line.receive(connection.REPLY)
    line.close()
    friend()


@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["bytes", "as TLS"])
def test_a_deliberately_slow_client_has_one_deadline(
    server: Server, friend: Callable[[], None], monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    """A byte now and then, each sooner than any time-out for a single read."""
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 0.5)
    ended = threading.Event()
    with socket.create_connection(parted(server.address)) as line:

        def drips() -> None:
            try:
                line.sendall(first)
                while not ended.wait(0.15):
                    line.sendall(b"\x00")
            except OSError:
                pass

        thread = threading.Thread(target=drips)
        thread.start()
        friend()
        try:
            ends(line, 20.0)
        finally:
            ended.set()
            thread.join()
    until(lambda: threads() <= 1)


def test_no_byte_is_read_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each byte of a stranger would give it a little more time."""
    clock = iter([0.0, connection.HANDSHAKE_SECONDS])
    monkeypatch.setattr(connection, "monotonic", lambda: next(clock))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        mine, _ = listener.accept()
    with theirs:
        theirs.sendall(bytes(48))
        with pytest.raises(TimeoutError):
            connection.admit(mine, Credentials("the token"))


def test_a_connection_that_is_half_open_keeps_nobody(
    server: Server, credentials: Credentials, friend: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody of the run was let in, said half a word and was stopped."""
    monkeypatch.setattr(connection, "STALL_SECONDS", 1.0)
    line = connection.dial(server.address, credentials)
    connection._send(line._socket, b"A\x10\x00")
    friend()
    until(lambda: threads() <= 1)
    line.close()


@pytest.mark.slow
def test_two_hundred_connections_at_once(
    server: Server, friend: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HANDSHAKE_SECONDS", 2.0)
    lines = [socket.create_connection(parted(server.address)) for _ in range(200)]
    try:
        until(lambda: len(server._strangers) == bulk_server.STRANGERS)
        until(lambda: threads() <= bulk_server.STRANGERS + 1)
        friend()
        for line in lines:
            ends(line, 30.0)
    finally:
        for line in lines:
            line.close()
    until(lambda: not server._strangers)
    until(lambda: threads() <= 1)
    friend()
