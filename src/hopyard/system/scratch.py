"""Folders that live as long as the processes that hold them: the shared memory of a run, and what one process writes to
the temporary directory.

Each folder holds a file `lock` that its processes, and their forks, keep locked. The kernel drops the lock however they
end, also where nobody cleans up behind them, as Spark and engines end processes by signals. `sweep` removes the folders
whose lock is free. Others may write to the temporary directory, so only folders of this user are touched, and no link
and no pipe in them is followed or waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hopyard.errors import ResourceError
from hopyard.system.files import FULL, still_there

YOUNG = 60.0
"""Age in seconds up to which a folder without a lock counts as just made."""
_OPEN = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def scratch(kind: str) -> Path:
    """Return a folder of this process in the temporary directory. It stays until the process and its forks have ended;
    the folders of ended processes are removed."""
    return _scratch(kind).path


@contextlib.contextmanager
def scratch_folder(kind: str, root: Path | None = None) -> Iterator[Path]:
    """Yield the same, in `root` where it is given, and remove it at the end of the block."""
    folder = _scratch(kind, root)
    try:
        yield folder.path
    finally:
        folder.close()


@contextlib.contextmanager
def room_in(folder: Path, original: object) -> Iterator[None]:
    """Turn a lack of room in a folder of this host, while `original` is copied there, into a ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise ResourceError(
            f"host {socket.gethostname()} has no room in {folder} for a copy of {original} ({error.strerror}); set "
            "TMPDIR (of agents by the engine's env=) to a directory with room"
        ) from error


def _scratch(kind: str, root: Path | None = None) -> Folder:
    root = root or Path(tempfile.gettempdir())
    sweep(root)
    return Folder(root, f"{kind}-{secrets.token_hex(4)}")


class Folder:
    """A folder, 0700, of one process or of several, for example of the driver and the agents of a run on this host.

    Each holds a shared lock of the kernel on a file in it. Who gets the lock exclusively knows that all of them are
    gone, however they ended, and removes the folder: the last one that closes, or the `sweep` of a later start.

    Args:
        root: the directory that it is in.
        name: the same in all these processes.

    Raises:
        ResourceError: the folder cannot be made, or belongs to somebody else.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.path = _path(root, name)
        self._fd = -1
        for _ in range(100):
            try:
                self._lock_folder()
            except FileNotFoundError:
                continue  # swept between making and locking it
            except OSError as error:
                raise ResourceError(f"folder {self.path}: {error}") from error
            if self._fd >= 0:
                return
        raise ResourceError(f"folder {self.path}: it is removed again and again")

    @staticmethod
    def shared(root: Path, name: str) -> bool:
        """Return whether a process has made the folder of this name."""
        return (_path(root, name) / "lock").exists()

    @property
    def identity(self) -> str:
        """Equal for processes that see the same folder."""
        status = self.path.stat()
        return f"{socket.gethostname()}:{status.st_dev}:{status.st_ino}"

    def close(self) -> None:
        """Release the lock; the last process removes the folder."""
        if self._fd >= 0:
            if not _removed(self.path, self._fd):
                remove_if_alone(self.path)  # somebody has removed it, and others have made it again
            os.close(self._fd)
            self._fd = -1

    def _lock_folder(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ResourceError(
                f"{self.path} is not a folder of this user alone (0700): remove it, or use another root"
            )
        fd = os.open(self.path / "lock", _OPEN | os.O_CREAT, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        if still_there(fd, self.path / "lock"):
            self._fd = fd
        else:
            os.close(fd)


def sweep(root: Path) -> list[Path]:
    """Remove this user's folders that no process holds. Returns those removed."""
    return [path for path in _folders(root) if remove_if_alone(path)]


def left(root: Path) -> list[Path]:
    """Return this user's folders that no process holds; nothing is removed."""
    return [path for path in _folders(root) if remove_if_alone(path, look=True)]


def remove_if_alone(path: Path, *, look: bool = False) -> bool:
    """Remove a folder unless some process holds it. Returns whether it is gone, or with `look` whether it would be."""
    try:
        lock = os.open(path / "lock", _OPEN)
    except FileNotFoundError:  # it is gone, was made just now, or its maker was killed before it locked it
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime <= YOUNG:
                return False
            if not look:
                shutil.rmtree(path, ignore_errors=True)
        return True
    except OSError:
        return False
    try:
        return _removed(path, lock, look)
    finally:
        os.close(lock)


def _removed(path: Path, lock: int, look: bool = False) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    if not still_there(lock, path / "lock"):  # somebody else has taken the name
        return False
    if not look:
        shutil.rmtree(path, ignore_errors=True)
    return True


def _prefix() -> str:
    return f"hopyard-{os.geteuid()}-"


def _path(root: Path, name: str) -> Path:
    return root / f"{_prefix()}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"


def _folders(root: Path) -> list[Path]:
    """Return the folders with such names that are this user's. Others may give theirs such names, and whoever opens a
    file that its owner has under a lease waits for 45 seconds."""
    folders = []
    for path in root.glob(f"{_prefix()}*"):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                folders.append(path)
    return folders
