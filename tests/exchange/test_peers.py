"""Connections between members: who may come in, and what happens when somebody goes."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import torch

from gang_threads import LOOPBACK, exchanges, together
from hopyard.exchange import peers
from hopyard.exchange.board import GangBroken
from hopyard.exchange.peers import Peer, connect, wait
from hopyard.spec import Gang


class Table:
    """Where members in threads hand over data to each other, once."""

    def __init__(self, size: int) -> None:
        self._data: dict[int, bytes] = {}
        self._all = threading.Barrier(size)

    def gather(self, rank: int) -> Callable[[bytes], list[bytes]]:
        def gathered(data: bytes) -> list[bytes]:
            self._data[rank] = data
            self._all.wait(60)
            return [self._data[each] for each in sorted(self._data)]

        return gathered


def connected(size: int, between: Callable[[int, list[bytes]], None] | None = None) -> list[dict[int, Peer]]:
    """The peers of all members. `between`: called for each of them, with what was gathered, before it dials."""
    table = Table(size)

    def one(rank: int) -> dict[int, Peer]:
        gather = table.gather(rank)

        def gathered(data: bytes) -> list[bytes]:
            everything = gather(data)
            if between is not None:
                between(rank, everything)
            return everything

        return connect(rank, size, LOOPBACK, gathered, lambda: False)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def closed(ends: list[dict[int, Peer]]) -> None:
    for members in ends:
        for peer in members.values():
            peer.close()


def test_all_are_connected_and_bytes_keep_their_order() -> None:
    ends = connected(3)
    try:
        assert [sorted(each) for each in ends] == [[1, 2], [0, 2], [0, 1]]
        one, other = ends[0][2], ends[2][0]
        sent = [os.urandom(size) for size in (1, 3_000_000, 17, 0, 200_000)]
        came = [bytearray(len(data)) for data in sent]
        seen: list[str] = []
        for number, (data, into) in enumerate(zip(sent, came, strict=True)):
            one.send(memoryview(data), lambda number=number: seen.append(f"sent {number}"))  # type: ignore[misc]
            other.receive(memoryview(into), lambda number=number: seen.append(f"came {number}"))  # type: ignore[misc]
        while not (one.done and other.done):
            if not one.go_on() | other.go_on():
                wait([one, other])
        assert [bytes(each) for each in came] == sent
        for what in ("sent", "came"):
            order = [each for each in seen if each.startswith(what)]
            assert order == [f"{what} {number}" for number in (3, 0, 1, 2, 4)], "what is empty is there at once"
    finally:
        closed(ends)


def test_strangers_are_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who says nothing, or another token, or hangs up, keeps nobody out."""
    monkeypatch.setattr(peers, "HELLO_SECONDS", 0.2)
    strangers: list[socket.socket] = []

    def between(rank: int, everything: list[bytes]) -> None:
        if rank == 0:
            return
        place = msgspec.msgpack.decode(everything[0], type=peers._Address)
        for said in (b"", b"GET / HTTP/1.1", peers._HELLO.pack(bytes(16), 1), b"x" * 1000):
            strangers.append(socket.create_connection((place.host, place.port)))
            strangers[-1].sendall(said)
        strangers[-1].close()

    ends = connected(2, between)
    try:
        into = bytearray(2)
        ends[1][0].send(memoryview(b"ok"), lambda: None)
        ends[0][1].receive(memoryview(into), lambda: None)
        while not (ends[0][1].done and ends[1][0].done):
            ends[1][0].go_on()
            ends[0][1].go_on()
        assert into == b"ok"
    finally:
        closed(ends)
        for stranger in strangers:
            stranger.close()


def test_giving_up_ends_the_wait_for_a_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 10_000.0)
    begin = time.monotonic()

    def gather(data: bytes) -> list[bytes]:
        return [data, data]  # the other one is there, and never dials

    with pytest.raises(GangBroken, match="could not be connected"):
        connect(0, 2, LOOPBACK, gather, lambda: time.monotonic() > begin + 0.1)


def test_waiting_for_a_dial_notices_a_lost_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "CONNECT_SECONDS", 10_000.0)
    with socket.create_server((LOOPBACK, 0)) as server:
        first = msgspec.msgpack.encode(peers._Address(LOOPBACK, server.getsockname()[1], bytes(16)))

        def gather(data: bytes) -> list[bytes]:
            threading.Thread(target=lambda: server.accept()[0].close()).start()
            return [first, data, data]  # the third one never dials

        with pytest.raises(GangBroken, match="hung up"):
            connect(1, 3, LOOPBACK, gather, lambda: False)


def test_a_lost_member_cannot_be_dialed() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    place = msgspec.msgpack.encode(peers._Address(LOOPBACK, port, bytes(16)))
    with pytest.raises(GangBroken, match="could not be connected"):
        connect(1, 2, LOOPBACK, lambda data: [place, data], lambda: False)


@pytest.mark.parametrize("operation", ["mean", "average"])
def test_a_member_that_is_gone_is_noticed_in_the_middle(operation: str) -> None:
    """It hangs up after the first of several exchanges."""
    left = threading.Event()

    def work(exchange: Any) -> str:
        values, exchanged = [torch.ones(3_000_000)], getattr(exchange, operation)
        exchanged(values, 1.0)
        if exchange.rank == 1:
            exchange.close()
            left.set()
            return "left"
        left.wait(60)
        try:
            for _ in range(3):
                exchanged(values, 1.0)
        except GangBroken:
            exchange.close()
            return "noticed"
        return "never"

    assert together(work, exchanges(Gang(3))) == ["noticed", "left", "noticed"]


def test_giving_up_ends_a_wait() -> None:
    """For a member that stands still: its sockets are open."""
    first, other = exchanges(Gang(2, "parameters", every=1))
    out = threading.Event()

    def work(exchange: object) -> str:
        values = [torch.ones(3_000_000)]
        exchange.average(values, 1.0)  # type: ignore[attr-defined]
        if exchange is other:
            out.wait(60)
            return "stood still"
        threading.Timer(0.2, first.abort).start()
        try:
            first.average(values, 1.0)
        except GangBroken:
            return "out"
        finally:
            out.set()
        return "done"

    assert together(work, [first, other]) == ["out", "stood still"]


def test_a_hang_up_is_noticed_though_a_fork_holds_the_socket() -> None:
    """As processes do that load data for the user's code."""
    (one,), (other,) = ([*each.values()] for each in connected(2))
    child = subprocess.Popen(["sleep", "60"], pass_fds=[one.fileno()])
    try:
        one.close()
        other.receive(memoryview(bytearray(1)), lambda: None)
        wait([other])
        with pytest.raises(ConnectionError):
            other.go_on()
    finally:
        child.kill()
        child.wait()
        other.close()
