"""A directory at a path or URL that several hosts share: `filesystems.Directory`, with errors that name `path=`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from hopyard import filesystems
from hopyard.errors import SpecError
from hopyard.filesystems import Directory


def reaching(url: str, verb: str) -> AbstractContextManager[None]:
    """Turns what a file system raises into an error that names path=, as `filesystems.reaching` does.

    Args:
        url: the directory that follows from `path=`.
        verb: what is done there, for the message: "write to".

    Raises:
        ResourceError: no room there.
        SpecError: any other error.
    """
    step = f"path= must be a place that driver and executors share and may write to: {filesystems.SHARED}"
    return filesystems.reaching(url, verb, SpecError, "path", step)


def shared_directory(url: str) -> Directory:
    """Return the directory at a path or URL, which need not exist yet. Raises SpecError where it cannot be opened."""
    with reaching(url, "open"):
        return Directory(url)
