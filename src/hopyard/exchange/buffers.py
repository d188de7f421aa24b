"""How arrays of any framework lie in flat memory, through which the members of a gang exchange them, and the average of
such memory where that of all members meets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

from hopyard.errors import SpecError

PIECE_BYTES = 4 << 20
"""Bytes that are exchanged at a time: several pieces at once are 2 to 3 times as fast over loopback as 10 or 40 MB are.
The order in which numbers are added depends on it."""


Memory = Callable[[int, torch.dtype], torch.Tensor]
"""Returns flat memory for so many numbers."""


def flattened(
    tensors: list[torch.Tensor], memory: Memory, multiple: int = 1
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Copy tensors of one dtype into flat memory, after one number more.

    Args:
        tensors: at least one.
        memory: where they go.
        multiple: of how many numbers its length is a multiple.

    Returns:
        The memory, of the dtype in which numbers are added up, and the part of it that each tensor has.
    """
    dtype, counts = tensors[0].dtype, [tensor.numel() for tensor in tensors]
    end = 1 + sum(counts)
    flat = memory(-(-end // multiple) * multiple, torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype)
    flat[0] = flat[end:] = 0
    _, *flats = torch.split(flat[:end], [1, *counts])
    parts = [part.view(tensor.shape) for part, tensor in zip(flats, tensors, strict=True)]
    torch._foreach_copy_(parts, tensors)
    return flat, parts


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


def average_of(members: Sequence[torch.Tensor], rows: Sequence[float], out: torch.Tensor) -> None:
    """Write the average of the members' numbers, weighted by rows; where there are none, the numbers of the first one.

    It is made from what the first member's numbers differ by from those of another: Σ rows · (first − number) / Σ rows
    is subtracted from the first one's. So numbers that all have alike stay as they are to the bit, without a copy of
    what they were before. Each operation is rounded by itself (a quotient is subtracted, which no processor does with
    one rounding, not a multiple), so the bits do not depend on the processor, nor on how the numbers are split for it.

    Args:
        members: what each has, by rank; of one length.
        rows: of each. The numbers of a member without rows do not count.
        out: for the average; none of `members`.
    """
    counted = [(numbers, count) for numbers, count in zip(members, rows, strict=True) if count]
    (first, unit), *others = counted or [(members[0], 0.0)]
    if not others:
        out.copy_(first)
        return
    for number, (numbers, count) in enumerate(others):
        change = first - numbers if number else torch.sub(first, numbers, out=out)
        if count != unit:
            change.mul_(count / unit)
        if number:
            out.add_(change)
    # subtracted, as −0.0 + 0.0 is 0.0, and −0.0 − 0.0 is not
    torch.addcdiv(first, out, out.new_tensor(sum(rows) / unit), value=-1, out=out)
    if not math.isfinite(float(out.sum())):  # an infinity that all have differs from itself by no number
        alike = [first.isinf(), *(numbers == first for numbers, _ in others)]
        torch.where(torch.stack(alike).all(0), first, out, out=out)
