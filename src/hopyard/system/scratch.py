"""Folders of one process in the temporary directory, and the removal of those whose process has ended.

Spark ends its Python workers by signals, and engines end their agents so: nobody cleans up behind those. Each folder
holds a file `lock` that its process, and what it forks, keep locked; the kernel drops the lock however they end.
Whoever makes a folder first removes those whose lock is free. Others may write to the temporary directory, so only
folders of this user are touched, and no link and no pipe in them is followed or waited for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "hopyard-"
_OTHERS = re.compile(rf"{PREFIX}\d+([-.].*)?")
"""Shared memory of runs, and caches: `store.arena` and `data.cache` remove those."""
ATTEMPTS = 100
"""How many names are tried for a folder."""
YOUNG = 3600.0
"""Age in seconds of a folder without its final name from which its process counts as killed while it made it."""


def scratch(kind: str) -> Path:
    """Return a folder of this process, which stays locked until the process and its forks have ended. The folders of
    ended processes are removed."""
    return _make_locked(kind)[0]


@contextlib.contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Yield the same, and remove it at the end of the block."""
    path, lock = _make_locked(kind)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def sweep(root: Path) -> None:
    """Remove the folders in `root` whose processes have ended."""
    for path in [*root.glob(f"{PREFIX}*"), *root.glob(f".{PREFIX}*")]:
        with contextlib.suppress(OSError):
            _remove_if_unlocked(path)


def _make_locked(kind: str) -> tuple[Path, int]:
    root = Path(tempfile.gettempdir())
    sweep(root)
    for attempt in range(1, ATTEMPTS + 1):
        folder = Path(tempfile.mkdtemp(prefix=f".{PREFIX}{kind}-", dir=root))  # swept by no other before it is locked
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return folder.rename(folder.with_name(folder.name[1:])), lock
        except OSError:  # somebody who saw the first name has taken the second one
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
            if attempt == ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _remove_if_unlocked(path: Path) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or _OTHERS.fullmatch(path.name):
        return
    if path.name.startswith(".") and time.time() - status.st_mtime < YOUNG:
        return
    lock = os.open(path / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(lock).st_mode):
            return
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
