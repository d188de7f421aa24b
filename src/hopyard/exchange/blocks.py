"""Averages over sockets: of each piece, each member averages one block.

The others send it their numbers of that block, and it sends them the average: as many bytes as an all-reduce takes.
Blocks are sent from the memory that is averaged, and averages are received into it.

Bytes between two members have one order, which both know: first the rows, then in each step s the block of piece s, and
the average of piece s − AHEAD. So no member waits for bytes that are behind others which wait for it. A member sends
the blocks of a piece to all before its average: they share the way out, and others wait longer for blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from hopyard.exchange.board import GangBroken
from hopyard.exchange.buffers import PIECE_BYTES, average_of
from hopyard.exchange.peers import Peer, wait

AHEAD = 5
"""Pieces whose blocks are sent before the average of the first of them."""
_ROWS = struct.Struct("<d")


class _Piece:
    """One piece of what is averaged.

    Args:
        numbers: of the piece, which become the averages.
        received: memory for what the others have of this member's block, (members, numbers); and, in this member's own
            place, for the average.
        rank: of this member.
    """

    def __init__(self, numbers: torch.Tensor, received: torch.Tensor, rank: int) -> None:
        self._rank = rank
        most = -(-len(numbers) // len(received))
        self.blocks = [numbers[each * most : (each + 1) * most] for each in range(len(received))]
        """Those of the members; the last ones may have no numbers."""
        self.received = list(received[:, : len(self.blocks[rank])])
        self.pending = 2 * (len(received) - 1)
        """How many parts of blocks have not gone to others, or not come from them."""

    def average(self, rows: Sequence[float]) -> None:
        """Average this member's block."""
        own, average = self.blocks[self._rank], self.received[self._rank]
        if len(own):
            average_of([own if n == self._rank else each for n, each in enumerate(self.received)], rows, average)
            own.copy_(average)

    def moved(self) -> None:
        """A part of a block has gone, or has come."""
        self.pending -= 1


class _Average:
    """One average while it is under way.

    Args:
        others: rank → peer.
        rank: of this member.
        pieces: of what is averaged.
        rows: of this member.
    """

    def __init__(self, others: dict[int, Peer], rank: int, pieces: Sequence[_Piece], rows: float) -> None:
        self._peers, self._rank, self._pieces = others, rank, pieces
        steps = range(len(pieces) + AHEAD)
        self._order = [(n, averaged) for step in steps for n, averaged in ((step, False), (step - AHEAD, True))]
        self._order = [(n, averaged) for n, averaged in self._order if 0 <= n < len(pieces)]
        """What goes to each peer, and comes from it: the block of a piece, or its average."""
        self._outward = self._inward = self._averaged = 0
        """How many of these the peers have to send, and to receive; pieces whose average is there."""
        self._rows = [bytearray(_ROWS.pack(rows)) for _ in range(len(others) + 1)]
        for other, peer in others.items():
            peer.send(memoryview(self._rows[rank]), _nothing)
            peer.receive(memoryview(self._rows[other]), _nothing)

    @property
    def done(self) -> bool:
        """Whether all has been sent, and has come."""
        if self._inward < len(self._order) or self._outward < len(self._order):
            return False
        return all(peer.done for peer in self._peers.values())

    def go_on(self) -> bool:
        """Average complete blocks, and queue the transfers that are allowed. Returns whether there were any."""
        before = self._averaged, self._outward, self._inward
        while self._averaged < len(self._pieces) and not self._pieces[self._averaged].pending:
            self._pieces[self._averaged].average([_ROWS.unpack(each)[0] for each in self._rows])
            self._averaged += 1
        while self._outward < len(self._order) and self._may_send(*self._order[self._outward]):
            self._send(*self._order[self._outward])
            self._outward += 1
        while self._inward < len(self._order) and self._may_receive(*self._order[self._inward]):
            self._receive(*self._order[self._inward])
            self._inward += 1
        return before != (self._averaged, self._outward, self._inward)

    def _may_send(self, number: int, averaged: bool) -> bool:
        return not averaged or number < self._averaged

    def _may_receive(self, number: int, averaged: bool) -> bool:
        return averaged or number <= self._averaged + AHEAD  # then nobody needs what its memory had

    def _send(self, number: int, averaged: bool) -> None:
        piece = self._pieces[number]
        for other, peer in self._peers.items():
            block = piece.blocks[self._rank if averaged else other]
            peer.send(_bytes(block), _nothing if averaged else piece.moved)

    def _receive(self, number: int, averaged: bool) -> None:
        piece = self._pieces[number]
        for other, peer in self._peers.items():
            into = (piece.blocks if averaged else piece.received)[other]
            peer.receive(_bytes(into), _nothing if averaged else piece.moved)


def _bytes(numbers: torch.Tensor) -> memoryview:
    return memoryview(numbers.numpy()).cast("B")  # type: ignore[arg-type]


def _nothing() -> None:
    """Nobody waits for it."""


class BlockAverager:
    """One member's part in averages over sockets. Owner of its peers, and of memory for what is under way.

    Args:
        others: rank → peer.
        rank: of this member.
    """

    def __init__(self, others: dict[int, Peer], rank: int) -> None:
        self._peers, self._rank, self._size = others, rank, len(others) + 1
        self._received: dict[torch.dtype, torch.Tensor] = {}

    @property
    def sent(self) -> int:
        """Bytes that this member has sent."""
        return sum(peer.sent for peer in self._peers.values())

    def average(self, flat: torch.Tensor, rows: float) -> None:
        """Replace a tensor of one axis by the average over all members, as `Group.average` does.

        Raises:
            GangBroken: a member is gone.
        """
        received = self._memory(flat.dtype)
        parts = torch.split(flat, PIECE_BYTES // flat.element_size())
        pieces = [_Piece(part, received[n % len(received)], self._rank) for n, part in enumerate(parts)]
        under_way = _Average(self._peers, self._rank, pieces, rows)
        try:
            peers = list(self._peers.values())
            while not under_way.done:
                moved = [peer.go_on() for peer in peers]
                if under_way.go_on():
                    peers = list(self._peers.values())
                elif not any(moved):
                    peers = wait(self._peers.values())
        except OSError as error:
            raise GangBroken(f"a member of the gang has hung up: {error}") from None

    def _memory(self, dtype: torch.dtype) -> torch.Tensor:
        """Return memory for what is received of the pieces that are under way: (pieces, members, numbers)."""
        if dtype not in self._received:
            most = -(-PIECE_BYTES // dtype.itemsize // self._size)
            self._received[dtype] = torch.zeros(AHEAD + 1, self._size, most, dtype=dtype)
        return self._received[dtype]

    def abort(self) -> None:
        """Break off what is under way, from any thread; nothing else can be exchanged."""
        for peer in self._peers.values():
            peer.hang_up()

    def close(self) -> None:
        """End the connections."""
        for peer in self._peers.values():
            peer.close()
