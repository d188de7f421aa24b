"""How arrays of any framework lie in flat memory, through which they are reduced part by part.

Parts, and the pieces that they make up, are fixed by the arrays' shapes and dtypes, so the order in which numbers are
added never changes from one step to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from hopyard.errors import SpecError

PART_BYTES = 1 << 20
"""Bytes that are filled, added up or taken at a time: what follows on them finds them in the processor's cache."""
PIECE_PARTS = 4
"""Parts that gloo adds up at a time: several pieces of 4 MiB at once are 2 to 3 times as fast over loopback as 10 or 40
MB are."""
LARGE_BYTES = 64 << 10
"""Bytes from which on an array is exchanged by itself."""
LISTS = 8
"""Lists whose layout is remembered: a model has up to four (gradients or parameters, optimizers, statistics)."""

Span = tuple[int, int, int, int]
"""(array, its first number in the part, past its last one, where they begin in the part)"""


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of this one are added up."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


class Layout:
    """Where the arrays of one dtype lie in flat memory. Its first number is 1, for the rows.

    Args:
        dtype: of the arrays.
        counts: how many numbers each has.

    Attributes:
        dtype: the one in which they are added up.
        parts: how many numbers each part has.
        pieces: how many numbers each piece has; it is PIECE_PARTS parts, the last one the remaining parts.
    """

    def __init__(self, dtype: torch.dtype, counts: Sequence[int]) -> None:
        self.dtype = sum_dtype(dtype)
        most = max(1, PART_BYTES // self.dtype.itemsize)
        size = 1 + sum(counts)
        self.parts = [min(most, size - first) for first in range(0, size, most)]
        self.pieces = [sum(self.parts[first : first + PIECE_PARTS]) for first in range(0, len(self.parts), PIECE_PARTS)]
        self._spans: list[list[Span]] = [[] for _ in self.parts]
        place = 1
        for number, count in enumerate(counts):
            first = 0
            while first < count:
                part, begin = divmod(place, most)
                past = min(count, first + most - begin)
                self._spans[part].append((number, first, past, begin))
                place += past - first
                first = past
        self._most = most
        self._memory: torch.Tensor | None = None

    def in_piece(self, number: int) -> tuple[int, int]:
        """Return how many numbers the piece of a part has, and at which of them the part begins."""
        piece, part = divmod(number, PIECE_PARTS)
        return self.pieces[piece], part * self._most

    def parts_of(self, piece: int, memory: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Return the parts of a piece, each with its number, in memory at whose beginning the piece lies."""
        numbers = range(piece * PIECE_PARTS, min((piece + 1) * PIECE_PARTS, len(self.parts)))
        parts = torch.split(memory[: self.pieces[piece]], [self.parts[number] for number in numbers])
        return list(zip(numbers, parts, strict=True))

    @property
    def memory(self) -> torch.Tensor:
        """Memory of this process for all parts, made once."""
        if self._memory is None:
            self._memory = torch.zeros(sum(self.parts), dtype=self.dtype)
        return self._memory

    def load(self, number: int, part: torch.Tensor, arrays: Sequence[torch.Tensor], factor: float) -> None:
        """Fill a part with the arrays' numbers, multiplied by a factor; the first number becomes the factor itself."""
        if not number:
            part[0] = factor
        for array, first, past, begin in self._spans[number]:
            torch.mul(arrays[array][first:past], factor, out=part[begin : begin + past - first])

    def store(self, number: int, part: torch.Tensor, arrays: Sequence[torch.Tensor], divisor: float) -> None:
        """Copy a part's numbers, divided, into the arrays."""
        for array, first, past, begin in self._spans[number]:
            torch.div(part[begin : begin + past - first], divisor, out=arrays[array][first:past])


class Flat:
    """Arrays of one dtype as flat arrays on the host: their own memory where that is possible, else copies.

    Args:
        tensors: the arrays.
        dtype: of the flat ones.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self.arrays = [
            tensor.view(-1)
            if tensor.dtype is dtype and not tensor.is_cuda and tensor.is_contiguous()
            else tensor.to("cpu", dtype, copy=True).reshape(-1)
            for tensor in tensors
        ]

    def finish(self) -> None:
        """Write what is in copies back."""
        for tensor, array in zip(self._tensors, self.arrays, strict=True):
            if tensor.data_ptr() != array.data_ptr():
                tensor.copy_(array.view(tensor.shape))


class Compact:
    """Arrays of one dtype as few flat ones on the host, none of which has memory of another one: large arrays as `Flat`
    has them, then a copy of all small ones. How long each is depends on the arrays' sizes alone.

    Args:
        tensors: the arrays.
        dtype: of the flat ones.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> None:
        large = [tensor for tensor in tensors if tensor.numel() * dtype.itemsize >= LARGE_BYTES]
        self._small = [tensor for tensor in tensors if tensor.numel() * dtype.itemsize < LARGE_BYTES]
        self._flat = Flat(large, dtype)
        _separate(self._flat.arrays)
        self.arrays = list(self._flat.arrays)
        if self._small:
            self.arrays.append(torch.cat([tensor.to("cpu", dtype).reshape(-1) for tensor in self._small]))

    def finish(self) -> None:
        """Write what is in copies back."""
        self._flat.finish()
        if self._small:
            copies = torch.split(self.arrays[-1], [tensor.numel() for tensor in self._small])
            for tensor, array in zip(self._small, copies, strict=True):
                tensor.copy_(array.view(tensor.shape))


def _separate(arrays: list[torch.Tensor]) -> None:
    """Put a copy in the place of each array that has memory of one that begins before it."""
    past = 0
    for number in sorted(range(len(arrays)), key=lambda number: arrays[number].data_ptr()):
        array = arrays[number]
        begin = array.data_ptr()
        if begin < past:
            arrays[number] = array.clone()
        past = max(past, begin + array.nbytes)


class Layouts:
    """The layouts for the last few lists of arrays, by their shapes and dtypes. Owner: a member's exchange."""

    def __init__(self) -> None:
        self._layouts: OrderedDict[tuple[Any, ...], list[tuple[list[int], Layout]]] = OrderedDict()

    def of(self, tensors: Sequence[torch.Tensor]) -> list[tuple[list[int], Layout]]:
        """Return, for each dtype, the positions of its arrays and their layout."""
        key = tuple([(tensor.dtype, tensor.numel()) for tensor in tensors])
        layouts = self._layouts.get(key)
        if layouts is None:
            positions: dict[torch.dtype, list[int]] = {}
            for position, tensor in enumerate(tensors):
                positions.setdefault(tensor.dtype, []).append(position)
            layouts = [
                (where, Layout(dtype, [tensors[each].numel() for each in where])) for dtype, where in positions.items()
            ]
            self._layouts[key] = layouts
            if len(self._layouts) > LISTS:
                self._layouts.popitem(last=False)
        self._layouts.move_to_end(key)
        return layouts


Partwise = Callable[[int, torch.Tensor], None]
"""Fills or takes the part of this number."""


@contextmanager
def contiguous(arrays: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield `arrays`, with contiguous copies of those NumPy arrays that torch may be unable to view, such as reversed
    ones; write the copies back at the end."""
    copies = [
        array.copy() if isinstance(array, np.ndarray) and array.flags.writeable and not array.flags.carray else array
        for array in arrays
    ]
    yield copies
    for array, copy in zip(arrays, copies, strict=True):
        if copy is not array:
            array[...] = copy


def tensor_of(array: Any) -> torch.Tensor:
    """Return a tensor that shares memory with an array of numbers that have fractions.

    Raises:
        SpecError: it is nothing of that kind, or cannot be changed.
    """
    if isinstance(array, np.ndarray) and array.dtype.kind == "f":
        if not array.flags.writeable:
            raise SpecError("an exchange takes arrays that it may change, got one that is read-only: give a copy")
        with suppress(TypeError, ValueError):  # another order of bytes, or of more of them than torch has
            return torch.from_numpy(array)
    if isinstance(array, torch.Tensor) and array.is_floating_point():
        return array.detach()
    raise SpecError(
        "an exchange takes arrays of NumPy or tensors of torch, with floating point numbers, got "
        f"{type(array).__name__} of {getattr(array, 'dtype', 'no dtype')}"
    )
