"""What a Trainable of a gang is given: means over all members, weighted by rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import torch

from hopyard.checks import number
from hopyard.errors import SpecError
from hopyard.exchange.buffers import contiguous, flattened, tensor_of
from hopyard.exchange.compression import pack, rounded, unpack
from hopyard.exchange.gpus import Gpus
from hopyard.exchange.group import Group
from hopyard.spec import Gang

_ROUNDED = ("bf16", "int8")
"""Compressions under which members send their numbers rounded, and each adds up those of all."""

KNOWN = 64
"""Lists of arrays that are remembered as alike."""
SHOWN = 200
"""Characters of a list in an error."""


class GangExchange:
    """A member's exchange with the others; a `ports.training.Exchange`.

    Args:
        gang: how they train together.
        group: of all members; it is connected when they first exchange something.
    """

    def __init__(self, gang: Gang, group: Group) -> None:
        self.rank, self.size, self.gang = group.rank, group.size, gang
        self._group = group
        self.means = 0
        """How often `mean` was called."""
        self._known: set[tuple[Any, ...]] = set()
        """Lists of arrays that all members have alike."""

    @property
    def sent(self) -> int:
        """Bytes that this member has sent to the others (`Group.sent`)."""
        return self._group.sent

    def connect(self) -> None:
        """Connect the members, if they are not; waits until all of them are there.

        Raises:
            GangBroken: they could not be connected, or their unit was given up.
        """
        self._group.connect()

    def abort(self) -> None:
        """Break off what would wait for a member that is gone without noticing it; from any thread."""
        self._group.abort()

    def close(self) -> None:
        """Hang up, which the other members notice."""
        self._group.close()

    def mean(self, arrays: Sequence[Any], rows: float, compress: bool = True) -> float:
        """Replace arrays by their means over all members, weighted by rows, with the same bits on each member.

        Each number is Σ rows · number / Σ rows. What a member without rows has in its arrays does not matter.

        Args:
            arrays: of NumPy or torch, of equal shapes and in equal order on all members; changed in place. Without
                any, the rows alone are added up.
            rows: the rows that this member's numbers are the mean of.
            compress: whether they travel in fewer bytes, if the gang's `compress` says so.

        Returns:
            Σ rows over all members; where that is 0 the arrays stay as they are.

        Raises:
            SpecError: rows are no finite number >= 0; arrays are of another kind, or others than those of another
                member.
            GangBroken: a member is gone.
        """
        rows = number("rows", rows, 0)
        self.means += 1
        if self.size == 1:
            return rows
        with contiguous(arrays) as viewed:
            return self._mean_of(self._tensors(viewed), rows, compress)

    def _mean_of(self, tensors: list[torch.Tensor], rows: float, compress: bool) -> float:
        if not tensors:
            return self._total(rows)
        if compress and self.gang.compress in _ROUNDED:
            return self._mean_of_rounded(tensors, rows)
        if compress and self.gang.compress:
            return self._mean_in_half(tensors, rows)
        total = 0.0
        for group, alike in self._alike(tensors):
            flat, parts = flattened(alike, group.memory)
            flat.mul_(rows) if rows else flat.zero_()  # numbers of a member without rows may be no numbers
            flat[0] = rows
            group.add(flat)
            if total := float(flat[0]):
                flat.div_(total)
                torch._foreach_copy_(alike, parts)
        return total

    def average(self, arrays: Sequence[Any], rows: float) -> None:
        """As `mean`, but numbers that all members have alike stay as they are to the bit, and nothing ever travels in
        fewer bytes: what rounding takes would be lost, and make a small mean of squares negative. Where no member has
        rows, the arrays become those of rank 0.

        Args:
            arrays: as for `mean`.
            rows: as for `mean`.

        Raises:
            SpecError, GangBroken: as for `mean`.
        """
        rows = number("rows", rows, 0)
        if self.size == 1:
            return
        with contiguous(arrays) as viewed:
            for group, alike in self._alike(self._tensors(viewed)):
                flat, parts = flattened(alike, group.memory, self.size)
                group.average(flat, rows)
                torch._foreach_copy_(alike, parts)

    def _mean_in_half(self, tensors: list[torch.Tensor], rows: float) -> float:
        """As `mean`; numbers of single precision travel in half precision."""
        total = self._total(rows)
        for group, alike in self._alike(tensors) if total else ():
            flat, parts = flattened(alike, group.memory)
            flat.mul_(rows / total) if rows else flat.zero_()
            sent = flat.to(torch.float16) if flat.dtype is torch.float32 else flat
            group.add(sent)
            flat.copy_(sent)
            torch._foreach_copy_(alike, parts)
        return total

    def rounded(self, array: Any) -> Any:
        """Return an array as the other members get it in `mean`."""
        if self.gang.compress not in _ROUNDED:
            return array
        tensor = tensor_of(np.asarray(array, order="C") if isinstance(array, np.ndarray) else array)
        value = rounded(tensor, self.gang.compress)
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
        if self.size == 1:
            return
        with contiguous(arrays) as viewed:
            for array in viewed:
                tensor = torch.from_numpy(array) if isinstance(array, np.ndarray) else array.detach()
                host = tensor.cpu().contiguous()
                self._group.broadcast(host.reshape(-1).view(torch.uint8))
                tensor.copy_(host)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all members, by rank."""
        return self._group.gather(data)

    def _tensors(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        """Return arrays as tensors, once it is known that all members have such."""
        tensors = [tensor_of(array) for array in arrays]
        key = tuple([(str(tensor.dtype).removeprefix("torch."), tensor.numel()) for tensor in tensors])
        if key not in self._known:
            members = self._group.gather(msgspec.json.encode(key))
            if (other := next((rank for rank, each in enumerate(members) if each != members[0]), 0)) != 0:
                raise SpecError(
                    "all members of a gang must exchange equal arrays in equal order; (dtype, numbers) are at member 0 "
                    f"{_some(members[0])}, at member {other} {_some(members[other])}"
                )
            self._known = self._known if len(self._known) < KNOWN else set()
            self._known.add(key)
        return tensors

    def _alike(self, tensors: Sequence[torch.Tensor]) -> Iterator[tuple[Group | Gpus, list[torch.Tensor]]]:
        """Yield the tensors of each dtype, and the group that exchanges them: on GPUs, or through the hosts' memory."""
        gpus = self._group.gpus
        alike: dict[tuple[bool, torch.dtype], list[torch.Tensor]] = {}
        for tensor in tensors:
            alike.setdefault((gpus is not None and gpus.takes(tensor), tensor.dtype), []).append(tensor)
        for (on_gpu, _), each in alike.items():
            yield gpus if gpus is not None and on_gpu else self._group, each

    def _total(self, rows: float) -> float:
        total = torch.tensor([rows], dtype=torch.float64)
        self._group.add(total)
        return float(total)


def _some(described: bytes) -> str:
    text = described.decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
