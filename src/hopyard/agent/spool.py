"""A file for rows that came sooner than a program takes them."""

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


@dataclass(frozen=True, slots=True)
class Filed:
    """Where the body of a block lies in a spool."""

    at: int
    size: int
    """In bytes."""


class Spool:
    """Owner of a file without a name, for bodies of blocks: one for all, as a mapping or a file of each would cost a
    descriptor of each, and written, as a full disk under a mapping ends the process (SIGBUS). Threads take turns.

    The file, and its space, are there while any body in it was neither read nor freed.

    Args:
        folder: where it lies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._file: Any = None
        self._bodies = 0
        self.bytes = 0
        """Where the next body goes: the file's length."""

    def write(self, body: Any) -> Filed:
        """Append a body.

        Raises:
            OSError: as when the disk is full.
        """
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - see _freed
            filed = Filed(self.bytes, len(body))
            view, done = memoryview(body), 0
            self._bodies += 1
            try:
                while done < filed.size:
                    done += os.pwrite(self._file.fileno(), view[done:], filed.at + done)
            except OSError:
                self._freed()
                raise
            self.bytes += filed.size
            return filed

    def read(self, filed: Filed) -> Any:
        """A body as a writable array of uint8; it is freed.

        Raises:
            OSError: it cannot be read.
        """
        body = buffer(filed.size)
        view, done = memoryview(body), 0
        with self._lock:
            try:
                while done < filed.size:
                    got = os.preadv(self._file.fileno(), [view[done:]], filed.at + done)
                    if not got:
                        raise OSError(errno.EIO, f"the file ends at byte {filed.at + done}")
                    done += got
            finally:
                self._freed()
        return body

    def free(self) -> None:
        """A body is not needed."""
        with self._lock:
            self._freed()

    def _freed(self) -> None:
        self._bodies -= 1
        if not self._bodies:
            with contextlib.suppress(OSError):  # nobody needs what a network's disk says it lost now
                self._file.close()
            self._file, self.bytes = None, 0


def buffer(size: int) -> Any:
    """A writable array of `size` uint8, aligned for Arrow."""
    return np.frombuffer(pa.allocate_buffer(size), np.uint8) if size else np.empty(0, np.uint8)
