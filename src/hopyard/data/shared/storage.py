"""A folder at a path or URL that several hosts share, by fsspec. Knows nothing of what is in the files."""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from hopyard import filesystems
from hopyard.errors import SpecError

_WRITTEN = ("mtime", "LastModified", "last_modified", "updated")
"""What file systems call the time at which a file was written."""


def reaching(url: str, verb: str) -> AbstractContextManager[None]:
    """Turns what a file system raises into an error that names path=, as `filesystems.reaching` does.

    Args:
        url: what `path=` led to.
        verb: what is done there, for the message: "write to".

    Raises:
        ResourceError: no room there.
        SpecError: all else.
    """
    step = f"path= must be a place that driver and executors share and may write to: {filesystems.SHARED}"
    return filesystems.reaching(url, verb, SpecError, "path", step)


class Folder:
    """Files by name, of one directory. Any number of processes may use it at once."""

    def __init__(self, url: str) -> None:
        with reaching(url, "open"):
            self._system, root = filesystems.open_url(url)
        self.url = url
        self._root = root.rstrip("/")
        self._whole = filesystems.uploads_whole(self._system)

    def make(self) -> None:
        """Makes the directory; no error when it is there."""
        self._system.makedirs(self._root, exist_ok=True)

    def stream(self, name: str) -> Any:
        """A new file, open for writing bytes. It may be seen before it is closed: its name must be known to nobody."""
        return self._system.open(self._path(name), "wb")

    def put(self, name: str, data: bytes) -> None:
        """Writes a file that others see whole or not at all."""
        part = name if self._whole else f".part-{name}-{secrets.token_hex(4)}"
        self._system.pipe_file(self._path(part), data)
        if part != name:
            self._system.mv(self._path(part), self._path(name))

    def get(self, name: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        return bytes(self._system.cat_file(self._path(name)))

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """The bytes of each (name, start, stop); object stores are asked for all of them at once."""
        names, starts, stops = (list(each) for each in zip(*wanted, strict=True))
        found = self._system.cat_ranges([self._path(name) for name in names], starts, stops, on_error="raise")
        return [bytes(part) for part in found]

    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by name; one listing, never from a cache."""
        self._system.invalidate_cache()
        try:
            entries: list[Any] = self._system.ls(self._root, detail=True)
        except FileNotFoundError:  # object stores have no empty directories
            return {}
        return {
            posixpath.basename(entry["name"].rstrip("/")): int(entry["size"] or 0)
            for entry in entries
            if entry["type"] == "file"
        }

    def times(self) -> dict[str, float]:
        """When each file was written, by name, in seconds since the epoch of Unix; without those of which the file
        system does not tell."""
        found = {}
        for entry in self._system.ls(self._root, detail=True):
            told: Any = next((entry[key] for key in _WRITTEN if key in entry), None)
            time = told.timestamp() if hasattr(told, "timestamp") else told
            if isinstance(time, (int, float)):
                found[posixpath.basename(entry["name"].rstrip("/"))] = float(time)
        return found

    def has(self, name: str) -> bool:
        """Whether there is such a file, never from a cache."""
        self._system.invalidate_cache()
        return filesystems.is_there(self._system, self._path(name))

    def remove(self, name: str) -> None:
        """No error when it is not there."""
        try:
            self._system.rm_file(self._path(name))
        except FileNotFoundError:
            pass

    def drop(self) -> None:
        """Removes the directory if nothing is in it."""
        if not self.sizes():
            try:
                self._system.rmdir(self._root)
            except OSError:  # no such directory, or somebody has just put something there
                pass

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
