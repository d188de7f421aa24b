"""Memory that the members of a gang on one host share, in which they add up what they exchange.

It has no name in any file system, so nothing is left of it, whoever is killed: rank 0 makes it, the others open it
through `/proc`. Members wait for each other by the process group alone (`barrier`), whose sockets show at once that one
of them is gone; nobody ever waits for a word in this memory.

Each number is added up by one member, in the order in which gloo's ring over sockets does it, so that a gang on one
host has the bits of one on several.

Source: gloo, `allreduce.cc`, `ring`: blocks of the members, each reduced from rank to rank downwards.
"""

from __future__ import annotations

import math
import mmap
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import torch

from hopyard.exchange.buffers import PIECE_BYTES, Piecewise

SEGMENT_BYTES = 1 << 20
"""The largest segment of gloo's ring."""
_DTYPES = (torch.float32, torch.float64)


class _Place(msgspec.Struct, frozen=True):
    """Where rank 0's memory is."""

    pid: int
    descriptor: int
    """-1: it could not be made."""
    mark: bytes
    """What is written at its beginning: another host may have a process of that number too."""


def block(size: int, itemsize: int, members: int, rank: int) -> tuple[int, int]:
    """Return the first number of a piece that `rank` adds up, and the one past its last: the block of gloo's ring whose
    sum is complete at that rank first."""
    at_least = max(math.ceil(size * itemsize / SEGMENT_BYTES), 2 * members)
    each = math.ceil(at_least / members)  # segments of a block
    length = each * math.ceil(math.ceil(size * itemsize / (each * members)) / itemsize)
    return min(rank * length, size), min((rank + 1) * length, size)


class SharedMemory:
    """One member's view of the memory: for two pieces in turn, what each member has put there, and their sum.

    Args:
        memory: the whole of it.
        rank, size: which member this is, of how many.
        barrier: returns when all members have called it, and raises where one is gone.
    """

    def __init__(self, memory: mmap.mmap, rank: int, size: int, barrier: Callable[[], None]) -> None:
        self._rank, self._size, self._barrier = rank, size, barrier
        self._bytes = torch.frombuffer(memory, dtype=torch.uint8).view(2, size + 1, PIECE_BYTES)

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        """Whether sums of this dtype are those of gloo."""
        return dtype in _DTYPES

    def reduce(self, sizes: Sequence[int], dtype: torch.dtype, load: Piecewise, store: Piecewise) -> None:
        """Add up pieces over all members: while one is put there, the one before is added up, and the sum of the one
        before that is taken.

        Args:
            sizes: numbers of each piece.
            dtype: of the numbers.
            load: puts this member's numbers into a piece.
            store: takes the sum from a piece.
        """
        count = len(sizes)

        def part(number: int, owner: int) -> torch.Tensor:
            return self._bytes[number % 2, owner].view(dtype)[: sizes[number]]

        for step in range(count + 2):
            if step < count:
                load(step, part(step, self._rank))
            if 1 <= step <= count:
                self._add([part(step - 1, owner) for owner in range(self._size + 1)])
            if step >= 2:
                store(step - 2, part(step - 2, self._size))
            if step <= count:  # what is put there next time is in the place of what all have taken then
                self._barrier()

    def _add(self, parts: Sequence[torch.Tensor]) -> None:
        """Add up this member's block of a piece. `parts`: those of the members, and that for the sum."""
        size = self._size
        first, past = block(len(parts[0]), parts[0].element_size(), size, self._rank)
        *others, total = [part[first:past] for part in parts]
        in_order = [others[(self._rank - distance) % size] for distance in range(1, size + 1)]
        torch.add(in_order[0], in_order[1], out=total)
        for each in in_order[2:]:
            total.add_(each)


def share(
    rank: int, size: int, gather: Callable[[bytes], list[bytes]], barrier: Callable[[], None]
) -> SharedMemory | None:
    """Return memory that all members share; None: they do not all see that of rank 0."""
    length = 2 * (size + 1) * PIECE_BYTES
    descriptor, memory = -1, None
    try:
        if not rank:
            with suppress(AttributeError, OSError):
                descriptor = os.memfd_create("hopyard-gang")
                os.truncate(descriptor, length)
                memory = mmap.mmap(descriptor, length)
        mark = secrets.token_bytes(16)
        if memory is not None:
            memory[: len(mark)] = mark
        own = _Place(os.getpid(), -1 if memory is None else descriptor, mark)
        place = msgspec.msgpack.decode(gather(msgspec.msgpack.encode(own))[0], type=_Place)
        if rank and place.descriptor >= 0:
            with suppress(OSError, ValueError):
                descriptor = os.open(f"/proc/{place.pid}/fd/{place.descriptor}", os.O_RDWR)
                if os.fstat(descriptor).st_size == length:
                    memory = mmap.mmap(descriptor, length)
        seen = memory is not None and memory[: len(place.mark)] == place.mark
        everywhere = all(each == b"\x01" for each in gather(bytes([seen])))
        return SharedMemory(memory, rank, size, barrier) if memory is not None and everywhere else None
    finally:
        if descriptor >= 0:
            os.close(descriptor)
