"""The lock of a run directory: one driver at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from hopyard.errors import RunDirectoryError
from hopyard.store.journal import Copier
from hopyard.system.files import still_there

PATIENCE = 2.0
"""How many seconds to wait for those who only ask whether the lock is held."""


class Lock:
    """The right to drive a run. The kernel releases it when the process ends, however it ends.

    Attributes:
        made: whether this made the lock file, so that nothing of ours was here before.
        mirror: the claim of the run at a URL, whose working folder this is; ends with the lock.

    Raises:
        RunDirectoryError: another driver holds it; says which.
        FileNotFoundError: there is no such directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.mirror: Copier | None = None
        while True:
            self.made = not path.exists()
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                self._acquire()
            except BlockingIOError:
                holder = os.pread(self._file, 100, 0).decode(errors="replace").strip() or "unknown"
                os.close(self._file)
                error = RunDirectoryError(
                    f"{path.parent} is in use by a live driver (process {holder}): wait for it, stop it, or give "
                    "another directory="
                )
                error.exit_code = 4  # a later start may succeed
                raise error from None
            if still_there(self._file, path):
                break
            os.close(self._file)  # removed by `withdraw` between open and lock: that lock protects nothing
        with contextlib.suppress(OSError):  # a full disk: only the holder cannot be named then
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def _acquire(self) -> None:
        """Lock the file. Whoever asks whether a driver lives (`standing.held`) holds a shared lock for a moment, and is
        waited for. Raises BlockingIOError when a driver holds it."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
            fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # fails, if it is a driver
            fcntl.flock(self._file, fcntl.LOCK_UN)
            time.sleep(0.001)

    def free(self) -> None:
        """Release it. This may be called twice: by then its descriptor may be another file's."""
        try:
            if self.mirror is not None:
                self.mirror.close()  # takes seconds, in which Ctrl-C may come
        finally:
            self.mirror = None
            if self._file >= 0:
                os.close(self._file)
                self._file = -1

    def withdraw(self) -> None:
        """Release it as if it had never been: remove its file, where there was none before."""
        if self._file >= 0 and self.made:
            self._path.unlink(missing_ok=True)
        self.free()


def locked(lock: Path) -> bool:
    """Whether a driver, of this process or another, holds the lock. The lock is only tested: nothing is written."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe is not waited for
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
