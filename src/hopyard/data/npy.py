"""One array on disk: a .npy file that grows by rows, is hashed as it is written, compared with that digest when it is
first opened by another process, and mapped at a 64-byte boundary.

The header has a fixed size (format 1.0 allows any padding), so it can be written last, when the rows are counted.
`numpy.load` reads the files.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from hopyard import meter
from hopyard.data.manifest import Shape, offsets_name, size_of
from hopyard.data.ragged import Ragged
from hopyard.formats.arrow import Array

HEADER = 256
"""Bytes before the data; a multiple of 64, and room for the shape of any array."""

OPEN_FILES = 256
"""Files that a writer keeps open at once; where there are more, each is opened for each write."""
_BLOCK = 1 << 20
"""Bytes that are read at once to be compared: they stay in the second-level cache."""
_FAILED = ctypes.c_void_p(-1).value
"""The return value of a failed `mmap` of libc."""
_VERIFIED: dict[tuple[int, int], tuple[int, int]] = {}
"""Size and time of each file whose data this process has written or compared, by device and inode. `Appender` and
`compare` alone use it."""


def header(shape: Shape, dtype: np.dtype[Any]) -> bytes:
    """Return the first HEADER bytes of a .npy file, format 1.0."""
    text = f"{{'descr': {np.lib.format.dtype_to_descr(dtype)!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    return b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little") + text.ljust(HEADER - 11).encode() + b"\n"


class Appender:
    """Writes one .npy file, rows at a time. Closed between writes unless `keep`: there may be thousands."""

    def __init__(self, path: Path, shape: Shape, dtype: str, keep: bool) -> None:
        self.path, self.rows, self.bytes = path, 0, 0
        self._shape, self._dtype, self._keep = shape, np.dtype(dtype), keep
        self._hash = blake3()
        self._file = -1
        self._write([bytes(HEADER)])

    @property
    def parts(self) -> tuple[Appender, ...]:
        """The writers of its files."""
        return (self,)

    def append(self, rows: Array) -> None:
        """Appends rows of shape (n, *shape)."""
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._hash.update(data)
        self._write([data])
        self.rows += len(rows)
        self.bytes += len(data)

    def finish(self) -> str:
        """Writes the header, closes the file and returns the BLAKE3 of the data."""
        self.close()
        file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(file, header((self.rows, *self._shape), self._dtype), 0)
            inode, version = _inode_and_version(file)
            _VERIFIED[inode] = version
        finally:
            os.close(file)
        return self._hash.hexdigest()

    def close(self) -> None:
        """Closes the file; may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, parts: list[bytes | memoryview]) -> None:
        if self._file < 0:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for part in parts:
            unwritten = memoryview(part)
            while unwritten:
                unwritten = unwritten[os.write(self._file, unwritten) :]
        if not self._keep:
            self.close()


class RaggedAppender:
    """Writes rows of any length: their values, and in a file beside it 0 and then where each row ends."""

    def __init__(self, path: Path, dtype: str, keep: bool) -> None:
        self.path, self.rows = path, 0
        self._values = Appender(path, (), dtype, keep)
        self._offsets = Appender(path.with_name(offsets_name(path.name)), (), "int64", keep)
        self._offsets.append(np.zeros(1, np.int64))

    @property
    def parts(self) -> tuple[Appender, ...]:
        """The writers of its files."""
        return self._values, self._offsets

    def append(self, rows: Ragged) -> None:
        """Appends rows."""
        self._offsets.append(np.cumsum(rows.lengths, dtype=np.int64) + self._values.rows)
        self._values.append(rows.flat())
        self.rows += len(rows)

    def close(self) -> None:
        """Closes the files; may be called twice."""
        for part in self.parts:
            part.close()


def appender(path: Path, shape: Shape, dtype: str, keep: bool) -> Any:
    """Return an Appender of rows of this shape, or a RaggedAppender."""
    return RaggedAppender(path, dtype, keep) if None in shape else Appender(path, shape, dtype, keep)


def parts_of(files: Iterable[Any]) -> list[Appender]:
    """Return the writers of all files of what `appender` made."""
    return [part for file in files for part in file.parts]


def compare(path: Path, digest: str) -> None:
    """Compares the data of a file with the digest that `Appender.finish` gave. A file that this process wrote or
    compared is not read again while it has the same inode, size and time.

    The file is read, not mapped: a broken disk then causes an error, not a signal.

    Raises:
        OSError: it cannot be read.
        ValueError: its data is not what was written.
    """
    with path.open("rb", buffering=0) as file:
        inode, version = _inode_and_version(file.fileno())
        if _VERIFIED.get(inode) == version:
            return
        hasher, block = blake3(), memoryview(bytearray(_BLOCK))
        file.seek(HEADER)
        while count := file.readinto(block):
            hasher.update(block[:count])
            meter.advance(count)
    if hasher.hexdigest() != digest:
        raise ValueError(f"the data of {path.name} has another digest than when it was written")
    _VERIFIED[inode] = version


def _inode_and_version(file: int) -> tuple[tuple[int, int], tuple[int, int]]:
    status = os.fstat(file)
    return (status.st_dev, status.st_ino), (status.st_size, status.st_mtime_ns)


def map_npy(path: Path, rows: int, shape: Shape, dtype: np.dtype[Any]) -> Any:
    """Maps the rows of a file that `appender` wrote, privately: shape (rows, *shape), 64-byte aligned, or Ragged. They
    hold no open file.

    Raises:
        OSError: no such file, or it cannot be mapped.
        ValueError: its size or header is wrong.
    """
    if None in shape:
        offsets = map_npy(path.with_name(offsets_name(path.name)), rows + 1, (), np.dtype(np.int64))
        return Ragged(map_npy(path, int(offsets[-1]), (), dtype), offsets[:-1], offsets[1:])
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        expected = HEADER + rows * size_of(shape) * dtype.itemsize
        if (size := os.fstat(file).st_size) != expected:
            raise ValueError(f"{path.name} has {size} bytes, not {expected}")
        memory = _map(file, expected, path)
    finally:
        os.close(file)
    if bytes(memory[:HEADER]) != header((rows, *shape), dtype):
        raise ValueError(f"{path.name} has a header that is not for {rows} rows of {shape} {dtype}")
    return np.frombuffer(memory, dtype, offset=HEADER).reshape(rows, *shape)


def _map(file: int, size: int, path: Path) -> Any:
    """Map a file privately; it stays mapped while the result, or an array that views it, lives. Python's `mmap` keeps a
    duplicate of the descriptor open (before 3.13 always), and a process may have more arrays than open files.
    """
    libc = _libc()
    address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE, file, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    libc.madvise(address, size, mmap.MADV_WILLNEED)  # reads ahead in order: a shuffled pass would fault page by page
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, libc.munmap, address, size).atexit = False  # arrays may be in use until the end
    return memory


@lru_cache(1)
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc
