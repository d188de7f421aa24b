"""What the operating system says of files, and how to change them so that nobody sees half of a change."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What says that there is no room: a full disk, a user's quota, a limit of a file's size."""
_PART = re.compile(r"\.part-\d+-.+")
"""Names that `replacing` gives. The end stays, as some who write go by it."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write to. The file there takes the place of `path` at the end, or is removed where
    something is raised. Nothing is synced."""
    part = path.with_name(f".part-{os.getpid()}-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sweep_parts(directory: Path) -> None:
    """Remove what writers that were killed in `replacing` left; only while nobody writes there."""
    for left in directory.glob(".part-*"):
        if _PART.fullmatch(left.name) and left.is_file():
            left.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Names made in a directory are on disk when this returns."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
