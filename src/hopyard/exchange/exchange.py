"""What a Trainable of a gang is given: means over all members, weighted by rows."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hopyard.exchange.buffers import Compact, Flat, Layout, Layouts, tensor_of
from hopyard.exchange.compression import pack, rounded, unpack
from hopyard.exchange.gpus import Gpus
from hopyard.exchange.group import Group
from hopyard.spec import Gang

_ROUNDED = ("bf16", "int8")
"""Compressions under which members send their numbers rounded, and each adds up those of all."""


class GangExchange:
    """A member's exchange with the others; a `ports.Exchange`.

    Args:
        rank, size: which member this is, of how many.
        gang: how they train together.
        connect: connects the members; called when they first exchange something.
    """

    def __init__(self, rank: int, size: int, gang: Gang, connect: Callable[[], Group]) -> None:
        self.rank, self.size, self.gang = rank, size, gang
        self._connect = connect
        self._connected: Group | None = None
        self._aborted = False
        self._layouts = Layouts()

    def connect(self) -> None:
        """Connect the members, if they are not; waits until all of them are there.

        Raises:
            GangBroken: they could not be connected, or their unit was given up.
        """
        if self._connected is None:
            self._connected = self._connect()
            if self._aborted:
                self._connected.abort()

    def abort(self) -> None:
        """Break off what would wait for a member that is gone without noticing it; from any thread."""
        self._aborted = True
        if self._connected is not None:
            self._connected.abort()

    def close(self) -> None:
        """Hang up, which the other members notice."""
        if self._connected is not None:
            self._connected.close()

    @property
    def _group(self) -> Group:
        self.connect()
        assert self._connected is not None
        return self._connected

    def mean(self, arrays: Sequence[Any], rows: float, compress: bool = True) -> float:
        """Replace arrays by their means over all members, weighted by rows, with the same bits on each member.

        Each number is Σ rows · number / Σ rows. What a member without rows has in its arrays does not matter.

        Args:
            arrays: of NumPy or torch, of equal shapes and in equal order on all members; changed in place.
            rows: the rows that this member's numbers are the mean of.
            compress: whether they travel in fewer bytes, if the gang's `compress` says so.

        Returns:
            Σ rows over all members; where that is 0 the arrays stay as they are.
        """
        if self.size == 1:
            return rows
        tensors = [tensor_of(array) for array in arrays]
        if compress and self.gang.compress in _ROUNDED:
            return self._mean_of_rounded(tensors, rows)
        if compress and self.gang.compress:
            return self._mean_in_half(tensors, rows)
        total = 0.0
        on_gpus, tensors = self._parted(tensors)
        for gpus, alike in on_gpus:
            total = gpus.mean(alike, rows)
        for positions, layout in self._layouts.of(tensors):
            total = self._mean(layout, [tensors[position] for position in positions], rows)
        return total

    def average(self, arrays: Sequence[Any], rows: float) -> None:
        """As `mean`, but numbers that all members have alike stay as they are to the bit, and nothing ever travels in
        fewer bytes: what rounding takes would be lost, and make a small mean of squares negative. Where no member has
        rows, the arrays become those of rank 0.

        Args:
            arrays: as for `mean`.
            rows: as for `mean`.
        """
        if self.size == 1:
            return
        on_gpus, tensors = self._parted([tensor_of(array) for array in arrays])
        for gpus, alike in on_gpus:
            gpus.average(alike, rows)
        for positions, layout in self._layouts.of(tensors):
            compact = Compact([tensors[position] for position in positions], layout.dtype)
            self._group.average(compact.arrays, rows)
            compact.finish()

    def _mean(self, layout: Layout, tensors: list[torch.Tensor], rows: float) -> float:
        """As `mean`, for tensors of one layout."""
        flat, total = Flat(tensors, layout.dtype), 0.0

        def load(number: int, part: torch.Tensor) -> None:
            if rows:
                layout.load(number, part, flat.arrays, rows)
            else:
                part.zero_()

        def store(number: int, part: torch.Tensor) -> None:
            nonlocal total
            if not number:
                total = float(part[0])
            if total:
                layout.store(number, part, flat.arrays, total)

        self._group.reduce(layout, load, store)
        if total:
            flat.finish()
        return total

    def _mean_in_half(self, tensors: list[torch.Tensor], rows: float) -> float:
        """As `mean`; numbers of single precision travel in half precision."""
        total = self._total(rows)
        on_gpus, tensors = self._parted(tensors)
        for gpus, alike in on_gpus if total else ():
            gpus.mean_in_half(alike, rows / total)
        for positions, layout in self._layouts.of(tensors):
            flat, memory = Flat([tensors[position] for position in positions], layout.dtype), layout.memory
            parts = torch.split(memory, layout.parts)
            for number, part in enumerate(parts) if rows else ():
                layout.load(number, part, flat.arrays, rows / total)
            if not rows:
                memory.zero_()
            small = memory.to(torch.float16) if layout.dtype is torch.float32 else memory
            self._group.add(small)
            memory.copy_(small)
            for number, part in enumerate(parts) if total else ():
                layout.store(number, part, flat.arrays, 1.0)
            flat.finish()
        return total

    def rounded(self, array: Any) -> Any:
        """Return an array as the other members get it in `mean`."""
        if self.gang.compress not in _ROUNDED:
            return array
        value = rounded(tensor_of(array), self.gang.compress)
        return value.numpy() if isinstance(array, np.ndarray) else value

    def _mean_of_rounded(self, tensors: list[torch.Tensor], rows: float) -> float:
        head = struct.pack("<d", rows)
        members = self._group.gather(head + (pack(tensors, self.gang.compress) if rows else b""))
        counts = [struct.unpack("<d", member[: len(head)])[0] for member in members]
        total = float(sum(counts))
        sums: list[torch.Tensor] | None = None
        for member, count in zip(members, counts, strict=True):
            if not count:
                continue
            shares = [part * (count / total) for part in unpack(member[len(head) :], tensors, self.gang.compress)]
            sums = shares if sums is None else [one.add_(other) for one, other in zip(sums, shares, strict=True)]
        for tensor, value in zip(tensors, sums or (), strict=sums is not None):
            tensor.copy_(value)
        return total

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace arrays of NumPy or torch, of any dtype, by those of rank 0."""
        for array in arrays if self.size > 1 else ():
            tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array.detach()
            host = tensor.cpu().contiguous()
            self._group.broadcast(host.reshape(-1).view(torch.uint8))
            tensor.copy_(host)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all members, by rank."""
        return self._group.gather(data)

    def _parted(
        self, tensors: Sequence[torch.Tensor]
    ) -> tuple[list[tuple[Gpus, list[torch.Tensor]]], list[torch.Tensor]]:
        """Return what is exchanged between GPUs, in lists of one dtype, and what goes through the hosts' memory."""
        gpus = self._group.gpus
        if gpus is None:
            return [], list(tensors)
        alike: dict[torch.dtype, list[torch.Tensor]] = {}
        others = []
        for tensor in tensors:
            if gpus.takes(tensor):
                alike.setdefault(tensor.dtype, []).append(tensor)
            else:
                others.append(tensor)
        return [(gpus, each) for each in alike.values()], others

    def _total(self, rows: float) -> float:
        total = torch.tensor([rows], dtype=torch.float64)
        self._group.add(total)
        return float(total)
