"""This user's folder for caches on this host.

In a container a user id often has neither a name nor a home. Its folder is then in the temporary directory.
"""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

from hopyard.errors import ResourceError


def cache_folder() -> Path:
    """Return the folder for caches: the one of the platform, which is in the user's home unless XDG_CACHE_HOME names
    another, or `temporary_folder` for a user without a home.

    Raises:
        ResourceError: there is neither a home nor a temporary directory.
    """
    with suppress(RuntimeError):  # newer versions of platformdirs raise it, older ones leave "~" in the path
        if not (folder := platformdirs.user_cache_dir("hopyard")).startswith("~"):
            return Path(folder).absolute()
    try:
        return temporary_folder()
    except OSError as error:
        raise ResourceError(
            f"user {os.geteuid()} has no home, and no folder can be made in the temporary directory ({error}): set "
            "XDG_CACHE_HOME to a directory for caches"
        ) from error


def temporary_folder() -> Path:
    """Return a private folder (0700) of this user in the system's temporary directory; made where there is none.

    Raises:
        OSError: it cannot be made.
    """
    name = f"hopyard-{os.geteuid()}"
    with suppress(FileExistsError):
        Path(tempfile.gettempdir(), name).mkdir(mode=0o700)
    return next(iter(temporary_folders()), None) or Path(tempfile.mkdtemp(prefix=f"{name}."))


def temporary_folders() -> list[Path]:
    """Return the private folders (0700) of this user in the system's temporary directory: `hopyard-<uid>`, and those
    with an unforeseeable suffix, which are made where another user has taken that name."""
    temporary, name = Path(tempfile.gettempdir()), f"hopyard-{os.geteuid()}"
    folders = []
    for path in [temporary / name, *sorted(temporary.glob(f"{name}.*"))]:
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077:
                folders.append(path)
    return folders
