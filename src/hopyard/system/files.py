"""Changes of files of which nobody sees a half, the errors by which the system reports a lack of room, and locks."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for "no room": a full disk, a user's quota, a limit of a file's size."""
_PART = re.compile(r"\.part-\d+-.+")
"""Names that `replacing` gives. They keep the end of the real name, as some writers go by it."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside `path` to write to. The file there replaces `path` at the end, or is removed where something
    is raised. Nothing is synced."""
    part = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def total_bytes(path: Path) -> int:
    """Return the bytes of the files below a folder; what others remove meanwhile counts or not."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += (Path(folder) / name).lstat().st_size
    return total


def sweep_parts(directory: Path) -> None:
    """Remove what writers that were killed in `replacing` left; only while nobody writes there."""
    for part in directory.glob(".part-*"):
        if _PART.fullmatch(part.name) and part.is_file():
            part.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A pipe, which another user may have put there, is not waited for.

    Raises:
        OSError: it is not there, may not be read, or is no regular file.
    """
    file = open(path, "rb", opener=_at_once)  # noqa: SIM115 - Path.open has no opener
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def still_there(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one at `path`. A lock (flock) on a file that was removed since protects nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync_directory(path: Path) -> None:
    """Sync a directory: names that were made in it are on disk when this returns."""
    sync(path, os.O_DIRECTORY)


def sync(path: Path, flags: int = 0) -> None:
    """Sync a file, or a directory. `flags`: how it is opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
