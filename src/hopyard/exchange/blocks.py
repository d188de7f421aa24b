"""Averages over sockets: each member makes those of one block of each piece.

What the others have of a block is sent to its member, and what that one has made of it is sent to all: as many bytes as
a sum takes. Members send to each other without collective operations, which copy a member's own block as well, and wake
a thread for each. What is sent leaves from the arrays themselves, and averages come into them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from hopyard.exchange.average import average_of
from hopyard.exchange.buffers import PART_BYTES, PIECE_PARTS

PIECE_BYTES = PIECE_PARTS * PART_BYTES
AHEAD = 5
"""Pieces that are sent before the first of them is averaged, and averages that are sent before one is taken."""

Guard = Callable[[Callable[[], Any]], Any]
"""Calls an operation of the process group; raises GangBroken where that fails."""


class _Piece:
    """One piece of the arrays while it is under way.

    Args:
        numbers: of the piece, which become the averages.
        received: memory for what the others have of this member's block, (members, numbers); and, in this member's own
            place, for the average.
        rank: of this member.
    """

    def __init__(self, numbers: torch.Tensor, received: torch.Tensor, rank: int) -> None:
        self._rank = rank
        most = -(-len(numbers) // len(received))
        self._blocks = [numbers[each * most : (each + 1) * most] for each in range(len(received))]
        """Those of the members; the last ones may have no numbers."""
        self._received = list(received[:, : len(self._blocks[rank])])
        self._works: list[Any] = []

    def scatter(self, group: Any, tag: int) -> None:
        """Send each member what this one has of its block."""
        self._start(group, tag, self._received, self._blocks)

    def average(self, rows: Sequence[float]) -> None:
        """Average this member's block, once all of it is there."""
        own, average = self._blocks[self._rank], self._received[self._rank]
        if len(own):
            average_of([own if n == self._rank else each for n, each in enumerate(self._received)], rows, average)
            own.copy_(average)

    def gather(self, group: Any, tag: int) -> None:
        """Send all what this member has averaged, and take what they have."""
        self._start(group, tag, self._blocks, [self._blocks[self._rank]] * len(self._blocks))

    def _start(self, group: Any, tag: int, into: Sequence[torch.Tensor], sent: Sequence[torch.Tensor]) -> None:
        others = [n for n in range(len(self._blocks)) if n != self._rank]
        self._works = [group.recv([into[n]], n, tag) for n in others if len(into[n])]
        self._works += [group.send([sent[n]], n, tag) for n in others if len(sent[n])]

    def wait(self, timeout: timedelta) -> None:
        """Wait until what was sent and is to be received has gone and come."""
        for work in self._works:
            work.wait(timeout)
        self._works = []


class Blocks:
    """One member's part in averages over a process group. Owner of the memory for the pieces that are under way.

    Args:
        group: gloo's, of all members.
        rank, size: which member this is, of how many.
        guard: calls what the group does.
        timeout: for one operation.
    """

    def __init__(self, group: Any, rank: int, size: int, guard: Guard, timeout: timedelta) -> None:
        self._group, self._rank, self._size, self._guard, self._timeout = group, rank, size, guard, timeout
        self._received: dict[torch.dtype, torch.Tensor] = {}

    def average(self, arrays: Sequence[torch.Tensor], rows: float) -> None:
        """Average arrays over all members, as `Group.average` does.

        Raises:
            GangBroken: a member is gone.
        """
        dtype = arrays[0].dtype
        counts, own = torch.zeros(self._size, dtype=torch.float64), torch.tensor([rows], dtype=torch.float64)
        counting = self._guard(lambda: self._group._allgather_base(counts, own))
        received = self._memory(dtype)
        parts = [part for array in arrays for part in torch.split(array, PIECE_BYTES // dtype.itemsize)]
        pieces = [_Piece(part, received[n % len(received)], self._rank) for n, part in enumerate(parts)]
        count = len(pieces)
        for step in range(count + 2 * AHEAD):
            if step < count:
                self._guard(partial(pieces[step].scatter, self._group, 2 * step))
            if 0 <= (scattered := step - AHEAD) < count:
                piece = pieces[scattered]
                self._guard(partial(piece.wait, self._timeout))
                if not scattered:
                    self._guard(counting.wait)
                piece.average(counts.tolist())
                self._guard(partial(piece.gather, self._group, 2 * scattered + 1))
            if (gathered := step - 2 * AHEAD) >= 0:
                self._guard(partial(pieces[gathered].wait, self._timeout))

    def _memory(self, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for what is received of the pieces that are under way: (pieces, members, numbers)."""
        if dtype not in self._received:
            most = -(-PIECE_BYTES // dtype.itemsize // self._size)
            self._received[dtype] = torch.zeros(AHEAD + 1, self._size, most, dtype=dtype)
        return self._received[dtype]
