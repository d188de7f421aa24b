"""Averages over sockets: each member makes those of one block of each piece.

What the others have of a block is sent to its member, and what that one has made of it is sent to all: as many bytes as
a sum takes. Members send to each other without collective operations, which copy a member's own block as well, and wake
a thread for each. Pieces are under way by turns, in 40 MiB of memory at most for each dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch

from hopyard.exchange.average import average_of
from hopyard.exchange.buffers import Layout, Partwise

AHEAD = 2
"""Pieces that are sent before the first of them is averaged, and averages that are sent before one is taken."""

Guard = Callable[[Callable[[], Any]], Any]
"""Calls an operation of the process group; raises GangBroken where that fails."""


class _Area:
    """Memory for one piece at a time.

    Args:
        rank, size: which member this is, of how many.
        most: how many numbers a piece may have.
        dtype: of them.
    """

    def __init__(self, rank: int, size: int, most: int, dtype: torch.dtype) -> None:
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self.piece = torch.zeros(most, dtype=dtype)
        """What this member has; then the averages."""
        self._received = torch.zeros(size, -(-most // size), dtype=dtype)
        """What the others have of this member's block, and, in its own place, the average."""
        self._works: list[Any] = []

    def scatter(self, group: Any, blocks: Sequence[slice], tag: int) -> None:
        """Send each member what this one has of its block of the piece."""
        own = self.piece[blocks[self._rank]]
        if len(own):
            self._works = [group.recv([self._received[other, : len(own)]], other, tag) for other in self._others]
        self._works += self._sent(group, [(other, self.piece[blocks[other]]) for other in self._others], tag)

    def average(self, blocks: Sequence[slice], rows: Sequence[float]) -> None:
        """Average this member's block of the piece, once all of it is there."""
        own = self.piece[blocks[self._rank]]
        if len(own):
            average = self._received[self._rank, : len(own)]
            members = [own if rank == self._rank else each[: len(own)] for rank, each in enumerate(self._received)]
            average_of(members, rows, average)
            own.copy_(average)

    def gather(self, group: Any, blocks: Sequence[slice], tag: int) -> None:
        """Send all what this member has averaged, and put what they have into the piece."""
        own = self.piece[blocks[self._rank]]
        takers = [(other, self.piece[blocks[other]]) for other in self._others]
        self._works = [group.recv([block], other, tag) for other, block in takers if len(block)]
        self._works += self._sent(group, [(other, own) for other in self._others], tag)

    @staticmethod
    def _sent(group: Any, blocks: Sequence[tuple[int, torch.Tensor]], tag: int) -> list[Any]:
        return [group.send([block], other, tag) for other, block in blocks if len(block)]

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
        self._areas: dict[torch.dtype, list[_Area]] = {}

    def average(self, layout: Layout, rows: float, load: Partwise, store: Partwise) -> None:
        """Average the parts of a layout, as `Group.average` does.

        Raises:
            GangBroken: a member is gone.
        """
        counts, own = torch.zeros(self._size, dtype=layout.dtype), torch.tensor([rows], dtype=layout.dtype)
        counting = self._guard(lambda: self._group._allgather_base(counts, own))
        areas, count = self._areas_for(layout), len(layout.pieces)
        for step in range(count + 2 * AHEAD):
            if step < count:
                area, blocks = areas[step % len(areas)], self._blocks(layout.pieces[step])
                for number, part in layout.parts_of(step, area.piece):
                    load(number, part)
                self._guard(partial(area.scatter, self._group, blocks, 2 * step))
            if 0 <= (scattered := step - AHEAD) < count:
                area, blocks = areas[scattered % len(areas)], self._blocks(layout.pieces[scattered])
                self._guard(partial(area.wait, self._timeout))
                if not scattered:
                    self._guard(counting.wait)
                area.average(blocks, counts.tolist())
                self._guard(partial(area.gather, self._group, blocks, 2 * scattered + 1))
            if (gathered := step - 2 * AHEAD) >= 0:
                area = areas[gathered % len(areas)]
                self._guard(partial(area.wait, self._timeout))
                for number, part in layout.parts_of(gathered, area.piece):
                    store(number, part)

    def _blocks(self, numbers: int) -> list[slice]:
        """Return which of a piece's numbers are the block of each member; the last ones may have none."""
        most = -(-numbers // self._size)
        return [slice(min(rank * most, numbers), min((rank + 1) * most, numbers)) for rank in range(self._size)]

    def _areas_for(self, layout: Layout) -> list[_Area]:
        dtype, most, count = layout.dtype, layout.pieces[0], min(len(layout.pieces), 2 * AHEAD + 1)
        areas = self._areas.get(dtype, [])
        if len(areas) < count or len(areas[0].piece) < most:
            areas = self._areas[dtype] = [_Area(self._rank, self._size, most, dtype) for _ in range(count)]
        return areas
