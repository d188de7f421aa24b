"""A directory at a path or URL that several hosts share: `filesystems.Directory`, with errors that name `path=`."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from typing import Any

from hopyard import filesystems
from hopyard.errors import SpecError
from hopyard.filesystems import SHARED, Directory


def reaching(url: str, verb: str) -> AbstractContextManager[None]:
    """Turns what a file system raises into a SpecError, or a ResourceError, that names path=: see
    `filesystems.reaching`."""
    step = f"path= must be a place that driver and executors share and may write to: {SHARED}"
    return filesystems.reaching(url, verb, SpecError, "path", step)


def shared_directory(url: str) -> Directory:
    """Return the directory at a path or URL, which need not exist yet. Raises SpecError where it cannot be opened."""
    with reaching(url, "open"):
        return Directory(url)


class TaskFile:
    """A new file that a task writes to a folder of the driver's. It is there from the first `write`, and removed when
    the block ends with an error.

    Args:
        url: the folder.
        name: the file; nobody else may know its name.
        probe: a file that the driver wrote there first: a host that does not see it writes nothing.

    Raises:
        SpecError: this host does not see the probe, or cannot write there.
        ResourceError: the folder has no room.
    """

    def __init__(self, url: str, name: str, probe: str) -> None:
        self.name = name
        self._folder = shared_directory(url)
        self._stream: Any = None
        with reaching(url, "read"):
            is_visible = self._folder.has(probe)
        if not is_visible:
            raise SpecError(
                f"path must be a place that driver and executors share ({SHARED}), got {url}: host "
                f"{socket.gethostname()} does not see what the driver wrote there"
            )

    def __enter__(self) -> TaskFile:
        return self

    def write(self, parts: Iterable[Any]) -> None:
        """Appends bytes; without any, the file is empty."""
        with reaching(self._folder.url, "write to"):
            self._stream = self._stream or self._folder.stream(self.name)
            for part in parts:
                self._stream.write(part)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._stream is None:
            return
        if kind is None:
            with reaching(self._folder.url, "write to"):
                self._stream.close()
            return
        with suppress(Exception):  # the first error is reported, and the driver removes the file too
            self._stream.close()
        with suppress(Exception):
            self._folder.remove(self.name)
