"""One array on disk: a .npy file that grows by rows, is hashed as it is written, compared with that digest when it is
first opened by another process, and mapped at a 64-byte boundary.

The header has a fixed size (format 1.0 allows any padding), so it can be written last, when the rows are counted.
`numpy.load` reads the files.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from hopyard import meter
from hopyard.formats.arrow import Array

HEADER = 256
"""Bytes before the data; a multiple of 64, and room for the shape of any array."""

_BLOCK = 1 << 20
"""Bytes that are read at once to be compared: they stay in the second-level cache."""
_SAME: dict[tuple[int, int], tuple[int, int]] = {}
"""Size and time of each file whose data this process has written or compared, by device and inode. `Appender` and
`compare` alone use it."""


def header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The first HEADER bytes of a .npy file, format 1.0."""
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode() + b"\n"


class Appender:
    """Writes one .npy file, rows at a time. Closed between writes unless `keep`: there may be thousands."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str, keep: bool) -> None:
        self.path, self.rows = path, 0
        self._shape, self._dtype, self._keep = shape, np.dtype(dtype), keep
        self._hash = blake3()
        self._file = -1
        self._write([bytes(HEADER)])

    def append(self, rows: Array) -> None:
        """Takes C-contiguous rows of shape (n, *shape)."""
        data = rows.reshape(-1).view(np.uint8).data
        self._hash.update(data)
        self._write([data])
        self.rows += len(rows)

    def finish(self) -> str:
        """Writes the header, closes, gives the BLAKE3 of the data."""
        self.close()
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, header((self.rows, *self._shape), self._dtype), 0)
            which, mark = _marks(file)
            _SAME[which] = mark
        finally:
            os.close(file)
        return self._hash.hexdigest()

    def close(self) -> None:
        """No error when closed already."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, parts: list[bytes | memoryview]) -> None:
        if self._file < 0:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for part in parts:
            left = memoryview(part)
            while left:
                left = left[os.write(self._file, left) :]
        if not self._keep:
            self.close()


def compare(path: Path, digest: str) -> None:
    """Compares the data of a file with the digest that `Appender.finish` gave. A file that this process wrote or
    compared is not read again while it has the same inode, size and time.

    The file is read, not mapped: what a broken disk says is an error then, and no signal.

    Raises:
        OSError: it cannot be read.
        ValueError: its data is other than what was written.
    """
    with path.open("rb", buffering=0) as file:
        which, mark = _marks(file.fileno())
        if _SAME.get(which) == mark:
            return
        hasher, block = blake3(), memoryview(bytearray(_BLOCK))
        file.seek(HEADER)
        while count := file.readinto(block):
            hasher.update(block[:count])
            meter.advance(count)
    if hasher.hexdigest() != digest:
        raise ValueError(f"the data of {path.name} has another digest than when it was written")
    _SAME[which] = mark


def _marks(file: int) -> tuple[tuple[int, int], tuple[int, int]]:
    there = os.fstat(file)
    return (there.st_dev, there.st_ino), (there.st_size, there.st_mtime_ns)


def map_npy(path: Path, rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The rows of a file that Appender wrote, mapped privately: shape (rows, *shape), 64-byte aligned.

    Raises:
        OSError: no such file.
        ValueError: its size or header is another.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        expected = HEADER + rows * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if (size := os.fstat(file).st_size) != expected:
            raise ValueError(f"{path.name} has {size} bytes, not {expected}")
        mapped = mmap.mmap(file, expected, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(file)
    mapped.madvise(mmap.MADV_WILLNEED)  # reads ahead in order: a shuffled pass would fault page by page
    if mapped[:HEADER] != header((rows, *shape), dtype):
        raise ValueError(f"{path.name} has a header that is not for {rows} rows of {shape} {dtype}")
    return np.frombuffer(mapped, dtype, offset=HEADER).reshape(rows, *shape)
