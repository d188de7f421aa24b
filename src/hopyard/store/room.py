"""Memory for States that are read from a file, or received."""

from __future__ import annotations

import contextlib
import mmap
import threading

LARGE = 4 << 20
"""Bytes from which large pages are worth a mapping of their own."""
KEPT = 1 << 28
"""Bytes of the largest memory that is kept to be used again."""


def room(size: int) -> memoryview:
    """Return `size` bytes, in large pages where that is much: 100 MB take 11 ms, where a `bytearray` takes 80."""
    return memoryview(bytearray(size) if size < LARGE else _mapped(size))


class Room:
    """Memory that is used again, for States of similar size that come one after the other. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapping: mmap.mmap | None = None

    def __call__(self, size: int) -> memoryview:
        """Return `size` bytes. They are the caller's for as long as there is a view of them, or an array over one; then
        the next call may return them again, which saves the page faults of new memory."""
        if not LARGE <= size <= KEPT:
            return room(size)
        with self._lock:
            mapping = self._mapping
            if mapping is None or not size <= len(mapping) <= 2 * size or _viewed(mapping):
                mapping = self._mapping = _mapped(size)
            return memoryview(mapping)[:size]


def _viewed(mapping: mmap.mmap) -> bool:
    """Whether somebody has a view of it: then its size is fixed. True also where that cannot be known."""
    try:
        mapping.resize(len(mapping))
    except (BufferError, OSError, SystemError):  # views; no memory; a system that cannot do it
        return True
    return False


def _mapped(size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared memory has no large pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
