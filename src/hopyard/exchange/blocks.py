"""Averages over sockets: each member makes those of one block of each piece.

What the others have of a block is scattered to its member, and what that one has made of it is gathered by all: as many
bytes as a sum takes. Pieces are under way by turns, so that the memory for them does not grow with the arrays.
"""

from __future__ import annotations

from typing import Any

import torch

from hopyard.exchange.average import average_of
from hopyard.exchange.buffers import Layout, Partwise

AHEAD = 2
"""Pieces that are scattered before the first of them is averaged, and those that are gathered before one is taken."""


class _Area:
    """Memory for one piece at a time.

    Args:
        rank, size: which member this is, of how many.
        most: how many numbers a piece may have.
        dtype: of them.
    """

    def __init__(self, rank: int, size: int, most: int, dtype: torch.dtype) -> None:
        self._rank, self._size = rank, size
        block = -(-most // size)
        self.piece = torch.zeros(most, dtype=dtype)
        self.averages = torch.zeros(block * size, dtype=dtype)
        self._received = torch.zeros(block * size, dtype=dtype)
        self._own = torch.zeros(block, dtype=dtype)
        self.work: Any = None
        """What gloo does with the piece now."""

    def scatter(self, group: Any, numbers: int) -> None:
        """Send each member what this one has of its block of the piece."""
        block = -(-numbers // self._size)
        sent = [min(block, max(0, numbers - rank * block)) for rank in range(self._size)]
        own = sent[self._rank]
        received = self._received[: own * self._size]
        self.work = group.alltoall_base(received, self.piece[:numbers], [own] * self._size, sent)

    def gather(self, group: Any, numbers: int, rows: list[float]) -> None:
        """Average this member's block of the piece, and send it to all."""
        block = -(-numbers // self._size)
        own = min(block, max(0, numbers - self._rank * block))
        if own:
            members = list(torch.split(self._received[: own * self._size], own))
            average_of(members, rows, self._own[:own])
        self.work = group._allgather_base(self.averages[: block * self._size], self._own[:block])


class Blocks:
    """One member's part in averages over a process group. Owner of the memory for the pieces that are under way.

    Args:
        group: gloo's, of all members.
        rank, size: which member this is, of how many.
    """

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group, self._rank, self._size = group, rank, size
        self._areas: dict[torch.dtype, list[_Area]] = {}

    def average(self, layout: Layout, rows: float, load: Partwise, store: Partwise) -> float:
        """Average the parts of a layout, as `Group.average` does.

        Raises:
            RuntimeError: a member is gone.
        """
        counts = torch.zeros(self._size, dtype=layout.dtype)
        counting = self._group._allgather_base(counts, torch.tensor([rows], dtype=layout.dtype))
        areas, pieces = self._areas_for(layout), layout.pieces
        for step in range(len(pieces) + 2 * AHEAD):
            scattered, gathered = step - AHEAD, step - 2 * AHEAD
            if step < len(pieces):
                area = areas[step % len(areas)]
                for number, part in layout.parts_of(step, area.piece):
                    load(number, part)
                area.scatter(self._group, pieces[step])
            if 0 <= scattered < len(pieces):
                area = areas[scattered % len(areas)]
                area.work.wait()
                if not scattered:
                    counting.wait()
                area.gather(self._group, pieces[scattered], counts.tolist())
            if gathered >= 0:
                area = areas[gathered % len(areas)]
                area.work.wait()
                for number, part in layout.parts_of(gathered, area.averages):
                    store(number, part)
        return float(counts.sum())

    def _areas_for(self, layout: Layout) -> list[_Area]:
        dtype, most, count = layout.dtype, layout.pieces[0], min(len(layout.pieces), 2 * AHEAD + 1)
        areas = self._areas.get(dtype, [])
        if len(areas) < count or len(areas[0].piece) < most:
            areas = self._areas[dtype] = [_Area(self._rank, self._size, most, dtype) for _ in range(count)]
        return areas
