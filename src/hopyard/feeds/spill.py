"""Files for rows that came sooner than a program takes them."""

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
    """A file without a name. Owner: the Spill."""

    def __init__(self, folder: Path) -> None:
        self.file: Any = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - closed with its last body
        self.bytes = 0
        """Where the next body goes: the file's length."""
        self.bodies = 0
        """Neither read nor freed."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where the body of a block lies in a spill."""

    segment: _Segment
    at: int
    size: int
    """In bytes."""


class Spill:
    """Owner of files for bodies of blocks: one for many, as a mapping or a file of each would cost a descriptor of
    each, and written, as a full disk under a mapping ends the process (SIGBUS). Threads take turns.

    A file, and its space, are there while any body in it was neither read nor freed: so a program that always has one
    body waiting holds two files, not all that ever came.

    Args:
        folder: where they lie.
        segment: bytes after which a new file begins.
    """

    def __init__(self, folder: Path, segment: int = SEGMENT) -> None:
        self._folder = folder
        self._most = segment
        self._lock = threading.Lock()
        self._last: _Segment | None = None
        self.bytes = 0
        """That the files take."""

    def write(self, body: Any) -> Spilled:
        """Append a body.

        Raises:
            OSError: as when the disk is full.
        """
        with self._lock:
            if self._last is None or self._last.bytes >= self._most:
                self._last = _Segment(self._folder)
            segment = self._last
            spilled = Spilled(segment, segment.bytes, len(body))
            view, done = memoryview(body), 0
            segment.bodies += 1
            try:
                while done < spilled.size:
                    done += os.pwrite(segment.file.fileno(), view[done:], spilled.at + done)
            except OSError:
                self._freed(segment)
                raise
            segment.bytes += spilled.size
            self.bytes += spilled.size
            return spilled

    def read(self, spilled: Spilled) -> Any:
        """A body as a writable array of uint8; it is freed.

        Raises:
            OSError: it cannot be read.
        """
        body = buffer(spilled.size)
        view, done = memoryview(body), 0
        with self._lock:
            try:
                while done < spilled.size:
                    got = os.preadv(spilled.segment.file.fileno(), [view[done:]], spilled.at + done)
                    if not got:
                        raise OSError(errno.EIO, f"the file ends at byte {spilled.at + done}")
                    done += got
            finally:
                self._freed(spilled.segment)
        return body

    def free(self, spilled: Spilled) -> None:
        """A body is not needed."""
        with self._lock:
            self._freed(spilled.segment)

    def _freed(self, segment: _Segment) -> None:
        segment.bodies -= 1
        if segment.bodies:
            return
        with contextlib.suppress(OSError):  # nobody needs what a network's disk says it lost now
            segment.file.close()
        self.bytes -= segment.bytes
        if self._last is segment:
            self._last = None


def buffer(size: int) -> Any:
    """A writable array of `size` uint8, aligned for Arrow."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8) if size else np.empty(0, np.uint8)
