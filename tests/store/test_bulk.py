"""Bytes by network: what gets through, what does not, and what the client is told."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq

from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.bulk import Ask, Client, Place, Server

REF = Ref(1, 2, 3)
MANY = os.urandom(3 << 20)


def fail(error: Exception) -> Callable[[Any, Any], Any]:
    def raise_it(ask: Any, data: Any) -> Any:
        raise error

    return raise_it


HANDLERS = {
    "echo": lambda ask, data: bytes(data),
    "many": lambda ask, data: MANY,
    "missing": fail(FileNotFoundError("not here")),
    "full": fail(ResourceError("no room")),
    "broken": fail(ValueError("what?")),
}


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server("127.0.0.1", "the token", HANDLERS, encrypt=request.param)
    yield made
    made.close()


@pytest.fixture
def client() -> Iterator[Client]:
    public, secret = zmq.curve_keypair()
    made = Client(public.decode(), secret.decode(), seconds=3.0)
    yield made
    made.close()


def ask(client: Client, place: Place, what: str, data: bytes = b"") -> Any:
    return client.ask(place, Ask(place.token, what, REF), data)


def test_bytes_go_there_and_back(server: Server, client: Client) -> None:
    assert bytes(ask(client, server.place, "echo", b"some")) == b"some"
    assert bytes(ask(client, server.place, "echo", MANY)) == MANY
    assert bytes(ask(client, server.place, "echo")) == b""
    assert ask(client, server.place, "many") == MANY


def test_errors_come_back_as_what_they_are(server: Server, client: Client) -> None:
    with pytest.raises(FileNotFoundError, match="not here"):
        ask(client, server.place, "missing")
    with pytest.raises(ResourceError, match="no room"):
        ask(client, server.place, "full")
    with pytest.raises(ConnectionError, match="ValueError: what"):
        ask(client, server.place, "broken")
    with pytest.raises(ConnectionError, match="KeyError"):
        ask(client, server.place, "unheard of")
    assert bytes(ask(client, server.place, "echo", b"still there")) == b"still there"


def test_a_stranger_gets_nothing(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    place = msgspec.structs.replace(server.place, token="a guess")
    with caplog.at_level(logging.WARNING), pytest.raises(ConnectionError, match="not of this run"):
        ask(client, place, "many")
    assert "a stranger asked for a State" in caplog.text
    assert ask(client, server.place, "many") == MANY


def test_without_the_key_there_is_no_answer(client: Client) -> None:
    server = Server("127.0.0.1", "the token", HANDLERS, encrypt=True)
    with pytest.raises(ConnectionError, match="does not answer"):
        ask(client, msgspec.structs.replace(server.place, key=""), "many")
    server.close()


def test_garbage_ends_nothing(server: Server, client: Client) -> None:
    host, port = server.place.address.removeprefix("tcp://").split(":")
    for seed in range(20):  # half of these made a REP socket lose its next answer
        with socket.create_connection((host, int(port))) as line:
            line.sendall(random.Random(seed).randbytes(4096))
        assert ask(client, server.place, "echo", b"x") == b"x"


def test_a_server_that_is_gone(client: Client) -> None:
    server = Server("127.0.0.1", "the token", HANDLERS)
    assert ask(client, server.place, "many") == MANY
    server.close()
    began = time.monotonic()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="does not answer"):
            ask(client, server.place, "many")
    assert time.monotonic() - began < 30


def test_several_threads_share_a_client(server: Server, client: Client) -> None:
    wrong = []

    def many(number: int) -> None:
        for _ in range(20):
            data = bytes([number]) * 10_000
            if bytes(ask(client, server.place, "echo", data)) != data:
                wrong.append(number)

    threads = [threading.Thread(target=many, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ResourceError, match="give another port="):
        Server("127.0.0.1", "t", HANDLERS, port=taken.getsockname()[1])
