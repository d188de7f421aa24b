"""The lock of a run directory: one driver at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from hopyard.errors import RunDirectoryError
from hopyard.system.locks import still_there

PATIENCE = 2.0
"""Seconds for which those who only ask for the lock are waited for."""


class Lock:
    """The right to drive a run. The kernel gives it back when the process ends, however it ends.

    Attributes:
        made: whether there was no lock file, so that nothing of ours was here.

    Raises:
        RunDirectoryError: another driver holds it; says which.
        FileNotFoundError: there is no such directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        while True:
            self.made = not path.exists()
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._take()
            except BlockingIOError:
                holder = os.pread(self._file, 100, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                raise RunDirectoryError(
                    f"{path.parent} is in use by a live driver (process {holder}): wait for it, stop it, or give "
                    "another directory="
                ) from None
            if still_there(self._file, path):
                break
            os.close(self._file)  # removed by `withdraw` between open and lock: that lock protects nothing
        with contextlib.suppress(OSError):  # a full disk: only whose it is cannot be said then
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def _take(self) -> None:
        """Whoever asks whether a driver lives (`standing.held`) holds a lock that is shared, for a moment: that one is
        waited for. Raises BlockingIOError: a driver holds it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # fails, if it is a driver
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(0.001)

    def free(self) -> None:
        """Give it back. May be called twice: by then its descriptor may be another file's."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def withdraw(self) -> None:
        """Give it back as if it had never been: without its file, where there was none."""
        if self._file >= 0 and self.made:
            self._path.unlink(missing_ok=True)
        self.free()
