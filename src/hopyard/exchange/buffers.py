"""Flat memory through which arrays of any framework are reduced: made once for a list of arrays, then used again.

Buffers are fixed, so the order in which numbers are added never changes from one step to the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hopyard.errors import SpecError

LISTS = 8
"""Lists whose memory is kept: a model has up to four (gradients or changes, optimizers, statistics)."""
_WIDER = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
"""dtypes whose sums are made in another one."""


class Flat:
    """One flat tensor on the host for all arrays of one dtype. Its first number is 1, for the rows.

    Attributes:
        memory: (1 + numbers,).
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        dtype = _WIDER.get(tensors[0].dtype, tensors[0].dtype)
        self.memory = torch.zeros(1 + sum(tensor.numel() for tensor in tensors), dtype=dtype)
        self._views = []
        start = 1
        for tensor in tensors:
            self._views.append(self.memory[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def load(self, tensors: Sequence[torch.Tensor], factor: float) -> None:
        """Copy arrays in, multiplied by a factor; the first number becomes the factor itself."""
        self.memory[0] = factor
        for view, tensor in zip(self._views, tensors, strict=True):
            if self._direct(tensor):
                torch.mul(tensor, factor, out=view)  # one pass over memory in place of two
            else:
                view.copy_(tensor).mul_(factor)

    def store(self, tensors: Sequence[torch.Tensor], divisor: float) -> None:
        """Copy the numbers, divided, back into the arrays."""
        for view, tensor in zip(self._views, tensors, strict=True):
            if self._direct(tensor):
                torch.div(view, divisor, out=tensor)
            else:
                tensor.copy_(view.div_(divisor))

    def _direct(self, tensor: torch.Tensor) -> bool:
        return tensor.dtype is self.memory.dtype and not tensor.is_cuda


class Buffers:
    """The flat memory for the last few lists of arrays, by their shapes and dtypes. Owner: a member's exchange."""

    def __init__(self) -> None:
        self._flats: OrderedDict[tuple[Any, ...], list[tuple[list[int], Flat]]] = OrderedDict()

    def of(self, tensors: Sequence[torch.Tensor]) -> list[tuple[list[int], Flat]]:
        """Return, for each dtype, the positions of its arrays and their flat memory."""
        key = tuple([(tensor.dtype, tensor.shape) for tensor in tensors])
        flats = self._flats.get(key)
        if flats is None:
            positions: dict[torch.dtype, list[int]] = {}
            for position, tensor in enumerate(tensors):
                positions.setdefault(tensor.dtype, []).append(position)
            flats = [(where, Flat([tensors[each] for each in where])) for where in positions.values()]
            self._flats[key] = flats
            if len(self._flats) > LISTS:
                self._flats.popitem(last=False)
        self._flats.move_to_end(key)
        return flats


def tensor_of(array: Any) -> torch.Tensor:
    """Return a tensor that shares memory with an array of numbers that have fractions.

    Raises:
        SpecError: it is nothing of that kind.
    """
    if isinstance(array, np.ndarray) and array.dtype.kind == "f":
        return torch.from_numpy(array)
    if isinstance(array, torch.Tensor) and array.is_floating_point():
        return array.detach()
    raise SpecError(
        "exchange.mean takes arrays of NumPy or tensors of torch, with floating point numbers, got "
        f"{type(array).__name__} of {getattr(array, 'dtype', 'no dtype')}"
    )
