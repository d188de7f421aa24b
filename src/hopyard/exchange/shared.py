"""Memory that the members of a gang on one host share, in which they add up, or average, what they exchange.

It has no name in any file system, so nothing is left of it, whoever is killed: rank 0 makes it, the others open it
through `/proc`. Members wait for each other by pipes (`Gate`), which show at once that one of them is gone; nobody ever
waits for a word in this memory.

Each number is added up by one member, in the order in which gloo's ring over sockets does it, so that a gang on one
host has the bits of one on several. Averages have the same bits however they are split (`average_of`).

Source: gloo, `allreduce.cc`, `ring`: blocks of the members, each reduced from rank to rank downwards.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import lru_cache

import msgspec
import torch

from hopyard.exchange.average import average_of
from hopyard.exchange.board import GangBroken
from hopyard.exchange.buffers import PART_BYTES, Layout, Partwise

SEGMENT_BYTES = 1 << 20
"""The largest segment of gloo's ring."""
AREAS = 3
"""Parts that are in the memory at a time. With two, a member could write a sum where another still takes the one of
two parts before."""
ROWS_BYTES = 1 << 16
"""At the end of the memory, for a number of each member."""
_HERE, _GONE = b"x", b"!"
"""What goes through a pipe: a member has come to the gate; it comes no more."""
_DTYPES = (torch.float32, torch.float64)


class _Place(msgspec.Struct, frozen=True):
    """Descriptors of a member by which the others open its pipes and, of rank 0, the memory."""

    pid: int
    pipes: dict[int, tuple[int, int]]
    """Rank of another member → the descriptor by which that one writes to this member, and the inode of the pipe."""
    memory: int
    """-1: of another rank, or it could not be made."""
    mark: bytes
    """What is written at its beginning: another host may have a process of that number too."""


@lru_cache(maxsize=1024)
def block(size: int, itemsize: int, members: int, rank: int) -> tuple[int, int]:
    """Return the first number of a piece's block that is complete at `rank` first in gloo's ring, and the one past its
    last."""
    at_least = max(math.ceil(size * itemsize / SEGMENT_BYTES), 2 * members)
    each = math.ceil(at_least / members)  # segments of a block
    length = each * math.ceil(math.ceil(size * itemsize / (each * members)) / itemsize)
    return min(rank * length, size), min((rank + 1) * length, size)


class Gate:
    """One member's ends of the pipes between all members, by which they wait for each other.

    A member that hangs up says so; when its process ends, the system closes its ends, and whoever waits for it, or
    tells it something, sees that.

    Args:
        inward: descriptors to read what each of the others writes.
        outward: descriptors to write to each of the others.
    """

    def __init__(self, inward: Sequence[int], outward: Sequence[int]) -> None:
        self._inward, self._outward = list(inward), list(outward)

    def arrive(self) -> None:
        """Tell the others that this member has come here.

        Raises:
            GangBroken: one of them is gone.
        """
        try:
            for descriptor in self._outward:
                os.write(descriptor, _HERE)
        except OSError as error:
            raise GangBroken(f"a member of the gang has hung up: {error}") from None

    def wait(self) -> None:
        """Wait until all others have come here.

        Raises:
            GangBroken: one of them is gone.
        """
        for descriptor in self._inward:
            if os.read(descriptor, 1) != _HERE:
                raise GangBroken("a member of the gang has hung up")

    def close(self) -> None:
        """Hang up, and say so: processes that the user's code has forked hold these ends too."""
        for descriptor in self._outward:
            with suppress(OSError):
                os.write(descriptor, _GONE)
        for descriptor in self._inward + self._outward:
            os.close(descriptor)
        self._inward, self._outward = [], []


Join = Callable[[int, list[torch.Tensor], torch.Tensor], None]
"""Makes this member's share of a result: (number of a part, those of the members, that of the result)."""


class SharedMemory:
    """One member's view of the memory: for AREAS parts in turn, what each member has put there, and what is made of it.

    Args:
        memory: the whole of it.
        rank, size: which member this is, of how many.
        gate: where the members wait for each other.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, gate: Gate) -> None:
        self._rank, self._size, self._gate = rank, size, gate
        everything = torch.frombuffer(memory, dtype=torch.uint8)
        self._areas = everything[:-ROWS_BYTES].view(AREAS, size + 1, PART_BYTES)
        self._rows = everything[-ROWS_BYTES:].view(torch.float64)[:size]
        """Of each member, in an average."""

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """Whether sums of this dtype are those of gloo."""
        return dtype in _DTYPES

    def reduce(self, layout: Layout, load: Partwise, store: Partwise) -> None:
        """Add up the parts of a layout over all members.

        Args:
            layout: of the arrays.
            load: puts this member's numbers into a part.
            store: takes the sum from a part.

        Raises:
            GangBroken: a member is gone.
        """

        def add(number: int, members: list[torch.Tensor], total: torch.Tensor) -> None:
            self._add(members, total, *layout.in_piece(number))

        self._exchange(layout.dtype, layout.parts, load, add, store)

    def average(self, arrays: Sequence[torch.Tensor], rows: float) -> None:
        """Average arrays over all members, as `Group.average` does.

        What a member joins itself it takes from its arrays, and puts there: the memory has the rest.

        Raises:
            GangBroken: a member is gone.
        """
        dtype = arrays[0].dtype
        parts = [part for array in arrays for part in torch.split(array, PART_BYTES // dtype.itemsize)]
        self._rows[self._rank] = rows  # the others read it after the first gate, and pass the second after that
        counts: list[float] = []

        def load(number: int, part: torch.Tensor) -> None:
            for other in self._shares_of_others(len(part)):
                part[other].copy_(parts[number][other])

        def join(number: int, members: list[torch.Tensor], average: torch.Tensor) -> None:
            if not number:
                counts[:] = self._rows.tolist()
            share = self._share(len(average))
            own, result = parts[number][share], average[share]
            average_of([own if n == self._rank else part[share] for n, part in enumerate(members)], counts, result)
            own.copy_(result)

        def store(number: int, average: torch.Tensor) -> None:
            for other in self._shares_of_others(len(average)):
                parts[number][other].copy_(average[other])

        self._exchange(dtype, [len(part) for part in parts], load, join, store)

    def _exchange(self, dtype: torch.dtype, parts: Sequence[int], load: Partwise, join: Join, store: Partwise) -> None:
        """Go over parts of so many numbers: in each step one is put there, the result of the one before is made, and
        that of the one before that is taken.

        A member takes a result after it has arrived at a gate, so others may pass that gate before it has; they use the
        result's place again only two steps later, which is after the next gate. After the last one there is no gate:
        the first one of the next call is the next.
        """
        count = len(parts)
        areas = self._areas.view(dtype)

        def part(number: int, owner: int) -> torch.Tensor:
            return areas[number % AREAS, owner, : parts[number]]

        for step in range(count + 2):
            if step < count:
                load(step, part(step, self._rank))
            if 1 <= step <= count:
                *members, result = [part(step - 1, owner) for owner in range(self._size + 1)]
                join(step - 1, members, result)
            if step <= count:
                self._gate.arrive()
            if step >= 2:
                store(step - 2, part(step - 2, self._size))
            if step <= count:
                self._gate.wait()

    def close(self) -> None:
        """Hang up, which the others see."""
        self._gate.close()

    def _share(self, numbers: int) -> slice:
        """Return which of a part's numbers this member joins."""
        return slice(numbers * self._rank // self._size, numbers * (self._rank + 1) // self._size)

    def _shares_of_others(self, numbers: int) -> list[slice]:
        own = self._share(numbers)
        return [each for each in (slice(own.start), slice(own.stop, numbers)) if len(range(numbers)[each])]

    def _add(self, parts: list[torch.Tensor], total: torch.Tensor, size: int, begin: int) -> None:
        """Add up this member's share of a part.

        Args:
            parts: those of the members.
            total: for the sum.
            size, begin: how many numbers the piece has, and at which of them the part begins.
        """
        members, share = self._size, self._share(len(total))
        for owner in range(members):
            first, past = block(size, total.element_size(), members, owner)
            first, past = max(first - begin, share.start), min(past - begin, share.stop)
            if first < past:
                in_order = [parts[(owner - distance) % members][first:past] for distance in range(1, members + 1)]
                result = total[first:past]
                torch.add(in_order[0], in_order[1], out=result)
                for each in in_order[2:]:
                    result.add_(each)


def share(rank: int, size: int, gather: Callable[[bytes], list[bytes]]) -> SharedMemory | None:
    """Return memory that all members share; None: they do not all see that of rank 0, or each other's pipes."""
    length = AREAS * (size + 1) * PART_BYTES + ROWS_BYTES
    others = [other for other in range(size) if other != rank]
    inward: list[int] = []
    outward: list[int] = []
    pipes: dict[int, tuple[int, int]] = {}
    memory, descriptor, mark = None, -1, secrets.token_bytes(16)
    with ExitStack() as temporary, ExitStack() as ends:
        with suppress(AttributeError, OSError):  # where that fails, the others see that there is nothing
            for other in others:
                reader, writer = os.pipe()
                ends.callback(os.close, reader)
                temporary.callback(os.close, writer)
                inward.append(reader)
                pipes[other] = writer, os.fstat(writer).st_ino
            if not rank:
                descriptor = os.memfd_create("hopyard-gang")
                temporary.callback(os.close, descriptor)
                os.truncate(descriptor, length)
                memory = mmap.mmap(descriptor, length)
                memory[: len(mark)] = mark
        own = _Place(os.getpid(), pipes, -1 if memory is None else descriptor, mark)
        places = [msgspec.msgpack.decode(each, type=_Place) for each in gather(msgspec.msgpack.encode(own))]
        with suppress(OSError, ValueError, KeyError):
            if rank:
                memory = _mapped(places[0], length)
            for other in others:
                outward.append(_opened(places[other].pid, *places[other].pipes[rank]))
                ends.callback(os.close, outward[-1])
        seen = memory is not None and memory[: len(mark)] == places[0].mark and len(outward) == len(others)
        everywhere = all(each == b"\x01" for each in gather(bytes([seen])))  # then writers are closed: others have them
        if memory is None or not everywhere:
            return None
        shared = SharedMemory(memory, rank, size, Gate(inward, outward))
        ends.pop_all()
        return shared


def _mapped(place: _Place, length: int) -> mmap.mmap | None:
    """Return the memory of another process; None: it has none of this length.

    Raises:
        OSError: it cannot be opened.
    """
    if place.memory < 0:
        return None
    descriptor = os.open(f"/proc/{place.pid}/fd/{place.memory}", os.O_RDWR)
    try:
        return mmap.mmap(descriptor, length) if os.fstat(descriptor).st_size == length else None
    finally:
        os.close(descriptor)


def _opened(process: int, descriptor: int, inode: int) -> int:
    """Return the end to write to a pipe of another process.

    Raises:
        OSError: it is not there, or another one is.
    """
    end = os.open(f"/proc/{process}/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK)
    if os.fstat(end).st_ino != inode:
        os.close(end)
        raise OSError(f"descriptor {descriptor} of process {process} is not the pipe that it was")
    return end
