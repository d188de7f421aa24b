"""Files for rows that arrive faster than a program takes them."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

SEGMENT = 64 << 20
"""Bytes after which a new file begins. Two thousand of them, as many as descriptors may be had, are 128 GB."""


class _Segment:
    """A temporary file without a name. Owner: the Spill."""

    def __init__(self, folder: Path) -> None:
        self.file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed with its last body
        self.bytes = 0
        """Offset of the next body, which is the file's length."""
        self.bodies = 0
        """Bodies that were neither read nor freed."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """The position of one block's body in a spill file."""

    segment: _Segment
    at: int
    size: int
    """In bytes."""


class Spill:
    """Owner of files for bodies of blocks. Many bodies share a file, as a mapping or a file for each would cost a
    descriptor for each. They are written, not mapped, as a full disk under a mapping ends the process (SIGBUS). Any
    thread may call the methods; a lock serializes them.

    A file, and its space, exist while any body in it was neither read nor freed: so a program that always has one body
    waiting holds two files, not all that ever came.

    Args:
        folder: where the files are created.
        segment: bytes after which a new file begins.
    """

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        self._folder = folder
        self._segment_bytes = segment
        self._lock = threading.Lock()
        self._last: _Segment | None = None
        self.bytes = 0
        """Total bytes of the files."""

    def write(self, body: Any) -> Spilled:
        """Append a body.

        Raises:
            OSError: the write failed, for example because the disk is full.
        """
        with self._lock:
            if self._last is None or self._last.bytes >= self._segment_bytes:
                self._last = _Segment(self._folder)
            segment = self._last
            spilled = Spilled(segment, segment.bytes, len(body))
            view, done = memoryview(body), 0
            segment.bodies += 1
            try:
                while done < spilled.size:
                    done += os.pwrite(segment.file.fileno(), view[done:], spilled.at + done)
            except OSError:
                self._release(segment)
                raise
            segment.bytes += spilled.size
            self.bytes += spilled.size
            return spilled

    def read(self, spilled: Spilled) -> Any:
        """Return a body as a writable array of uint8, and free it.

        Raises:
            OSError: it cannot be read.
        """
        body = buffer(spilled.size)
        view, done = memoryview(body), 0
        with self._lock:
            try:
                while done < spilled.size:
                    count = os.preadv(spilled.segment.file.fileno(), [view[done:]], spilled.at + done)
                    if not count:
                        raise OSError(errno.EIO, f"the file ends at byte {spilled.at + done}")
                    done += count
            finally:
                self._release(spilled.segment)
        return body

    def free(self, spilled: Spilled) -> None:
        """Free a body without reading it."""
        with self._lock:
            self._release(spilled.segment)

    def _release(self, segment: _Segment) -> None:
        segment.bodies -= 1
        if segment.bodies:
            return
        with contextlib.suppress(OSError):  # nobody needs the data that a network file system reports as lost now
            segment.file.close()
        self.bytes -= segment.bytes
        if self._last is segment:
            self._last = None


def buffer(size: int) -> Any:
    """Return a writable array of `size` uint8, aligned for Arrow."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8) if size else np.empty(0, np.uint8)
