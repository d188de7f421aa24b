"""A feed for the tests of frameworks: one aligned buffer, overwritten as soon as the next batch is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hopyard.spec import Batch


def aligned(shape: tuple[int, ...], dtype: Any, offset: int = 0) -> np.ndarray[Any, Any]:
    """An array whose memory begins `offset` bytes after a multiple of 64."""
    dtype = np.dtype(dtype)
    raw = np.empty(int(np.prod(shape)) * dtype.itemsize + 128, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)


def is_aligned(array: np.ndarray[Any, Any]) -> bool:
    """Whether it is contiguous, and its first byte lies at a multiple of 64."""
    return bool(array.flags.c_contiguous and array.ctypes.data % 64 == 0)


class Rows:
    """A `ports.training.PartitionBatches` over given arrays."""

    def __init__(
        self, inputs: Any, targets: Any, size: int, seed: int | None = 0, weights: Any = None, poison: bool = True
    ) -> None:
        self.inputs, self.targets, self.weights = inputs, targets, weights
        self.rows = len(targets)
        self.sizes: Sequence[int] = [min(size, self.rows - n) for n in range(0, self.rows, size)]
        self.columns = self
        self.order = None
        self.seed = seed
        self.poison = poison

    def __iter__(self) -> Iterator[Batch]:
        at = 0
        held: list[Any] = []
        for count in self.sizes:
            cut = slice(at, at + count)
            at += count
            made = [self._part(array, cut) for array in (self.inputs, self.targets, self.weights)]
            held = made
            yield Batch(made[0], made[1], made[2], rows=count, seed=self.seed)
            for array in held if self.poison else ():
                for part in array.values() if isinstance(array, dict) else (array,):
                    if part is not None:
                        part[...] = 1 if part.dtype.kind in "iub" else np.nan

    def _part(self, array: Any, cut: slice) -> Any:
        if array is None:
            return None
        if isinstance(array, dict):
            return {name: self._part(item, cut) for name, item in array.items()}
        rows = array[cut]
        buffer = aligned(rows.shape, rows.dtype)
        buffer[...] = rows
        return buffer


def rows(seed: int, count: int = 50, width: int = 20, classes: int = 5, size: int = 16, **more: Any) -> Rows:
    """Random rows that depend on `seed` alone."""
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((count, width), dtype=np.float32)
    return Rows(inputs, rng.integers(0, classes, count), size, seed=seed, **more)
