"""Members on one host add up in memory what others send through sockets: with the same bits, and as ready to break."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from gang_processes import share_once
from gang_threads import exchanges, together
from hopyard.exchange.board import GangBroken
from hopyard.exchange.buffers import Layout
from hopyard.exchange.shared import Gate, _opened, block, share
from hopyard.spec import Gang

SIZES = (1, 17, 1000, 65_537, 1_300_000)
"""Numbers: less than a segment of gloo's ring, some, and more than a piece."""


@pytest.fixture
def shares_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.exchange.group.SHARED_BYTES", 1)


def arrays(rank: int) -> list[torch.Tensor]:
    """Numbers of many magnitudes, whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    return [
        torch.randn(size, generator=generator, dtype=dtype) * 10.0 ** torch.randint(-3, 4, (size,), generator=generator)
        for dtype in (torch.float32, torch.float64)
        for size in SIZES
    ]


@pytest.mark.parametrize("members", [2, 3, 4])
def test_the_bits_are_those_of_the_ring_over_sockets(members: int, shares_all: None) -> None:
    def work(exchange: Any) -> tuple[list[torch.Tensor], bool]:
        values = arrays(exchange.rank)
        for value in values:  # each in a call of its own: parts follow each other at once
            exchange.mean([value], 1.0 + exchange.rank)
        return values, exchange._group._shared is not None

    shared = together(work, exchanges(Gang(members), one_host=True))
    sent = together(work, exchanges(Gang(members)))
    assert [through for _, through in shared] == [True] * members
    assert [through for _, through in sent] == [False] * members
    for values, _ in shared:
        for one, other in zip(values, sent[0][0], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("size", "members"), [(1, 3), (5, 4), (1_048_576, 3), (1_000_003, 8)])
def test_the_blocks_of_all_members_are_the_whole_piece(size: int, members: int) -> None:
    bounds = [block(size, 4, members, rank) for rank in range(members)]
    assert bounds[0][0] == 0 and bounds[-1][1] == size
    assert all(one[1] == other[0] for one, other in pairwise(bounds))


@pytest.mark.parametrize("one_host", [True, False])
@pytest.mark.parametrize("operation", ["mean", "average"])
def test_a_member_that_is_gone_is_noticed_in_the_middle(operation: str, one_host: bool, shares_all: None) -> None:
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

    assert together(work, exchanges(Gang(3), one_host=one_host)) == ["noticed", "left", "noticed"]


def test_members_that_cannot_open_it_say_so_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refused(path: Any, *arguments: Any, **more: Any) -> int:
        if str(path).startswith("/proc/"):
            raise PermissionError(path)
        return opened(path, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    results = together(lambda exchange: share(exchange.rank, 3, exchange.gather), exchanges(Gang(3), one_host=True))
    assert results == [None, None, None]


def test_another_pipe_is_not_taken_for_a_members() -> None:
    """A process that ended, and another with its number, or one of another host."""
    reader, writer = os.pipe()
    try:
        inode = os.fstat(writer).st_ino
        os.close(_opened(os.getpid(), writer, inode))
        with pytest.raises(OSError, match="not the pipe"):
            _opened(os.getpid(), writer, inode + 1)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_member_that_is_killed_is_noticed_at_once() -> None:
    context = multiprocessing.get_context("spawn")
    connection, other_end = context.Pipe()
    process = context.Process(target=share_once, args=(other_end,), daemon=True)
    process.start()
    other_end.close()

    def gather(data: bytes) -> list[bytes]:
        everything = [data, connection.recv()]
        connection.send(everything)
        return everything

    memory, sums = None, torch.zeros(0)
    layout = Layout(torch.float32, [100_000])

    def store(_: int, part: torch.Tensor) -> None:
        nonlocal sums
        sums = torch.cat([sums, part])

    try:
        memory = share(0, 2, gather)
        assert memory is not None
        memory.reduce(layout, lambda _, part: part.fill_(1.0), store)  # type: ignore[arg-type]
        assert sums.tolist() == [3.0] * 100_001
        assert connection.recv() == "took part"
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(GangBroken, match="has hung up"):
            memory.reduce(layout, lambda _, part: part.fill_(1.0), store)  # type: ignore[arg-type]
    finally:
        process.kill()
        process.join()
        if memory is not None:
            memory.close()


def test_a_member_that_hangs_up_is_noticed_though_a_fork_holds_its_ends() -> None:
    """As the workers of a torch DataLoader do."""
    (own_reader, other_writer), (other_reader, own_writer) = os.pipe(), os.pipe()
    own, other = Gate([own_reader], [own_writer]), Gate([other_reader], [other_writer])
    copies = [os.dup(end) for end in (other_reader, other_writer)]
    try:
        other.arrive()
        own.wait()
        other.close()
        own.arrive()
        with pytest.raises(GangBroken, match="has hung up"):
            own.wait()
    finally:
        own.close()
        for end in copies:
            os.close(end)


def test_without_descriptors_all_go_on_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three members can open one pipe only."""
    made, failing = os.pipe, threading.local()

    def refused() -> tuple[int, int]:
        if getattr(failing, "pipes", None) == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        if hasattr(failing, "pipes"):
            failing.pipes -= 1
        return made()

    def work(exchange: Any) -> Any:
        exchange.connect()
        if exchange.rank == 1:
            failing.pipes = 1
        return share(exchange.rank, 3, exchange.gather)

    monkeypatch.setattr(os, "pipe", refused)
    assert together(work, exchanges(Gang(3), one_host=True)) == [None, None, None]


def test_nothing_is_left_open(shares_all: None) -> None:
    def opened() -> list[str]:
        names = []
        for path in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the descriptor of this very list
                names.append(os.readlink(path))
        return [name for name in names if "hopyard-gang" in name or name.startswith("pipe:")]

    before = opened()
    together(lambda exchange: exchange.mean([torch.ones(1000)], 1.0), exchanges(Gang(2), one_host=True))
    assert sorted(opened()) == sorted(before)
