"""The files of one directory at a path or URL, written whole, and listed as they are now."""

from __future__ import annotations

import errno
import posixpath
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from hopyard.errors import SpecError
from hopyard.filesystems.causes import line_of
from hopyard.filesystems.opening import HDFS, is_there, open_to_read, open_url, protocols_of, rename
from hopyard.system.files import sync, sync_directory

_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs", "memory"}
"""Protocols where an upload is visible only when it is complete."""
PART = ".part-"
"""Prefix of the names of files that are being written, where an upload is visible before it is complete."""
_MODIFIED_KEYS = {
    **dict.fromkeys(("mtime", "LastModified", "last_modified", "updated"), 1),
    **dict.fromkeys(("modification_time", "modificationTime"), 1000),
}
"""Keys under which file systems give the time at which a file was written → units in a second."""


class Directory:
    """The files of one directory at a path or URL, by name. Any number of processes may use it at once. Raises
    whatever the driver of the file system raises: see `reaching`.
    """

    def __init__(self, url: str) -> None:
        self._system, root = open_url(url)
        self.url = url
        self.root = root.rstrip("/")
        """The directory's path in its file system."""
        protocols = protocols_of(self._system)
        self._is_local = "file" in protocols
        self._uploads_whole = bool(_WHOLE & protocols)
        self._has_folders = not self._uploads_whole or "memory" in protocols
        self._renames_exclusively = bool((HDFS | {"webhdfs"}) & protocols)

    def make(self) -> None:
        """Make the directory; no error when it exists. Object stores have none, and drivers would make the bucket.

        Raises:
            FileNotFoundError: an object store has no such bucket.
        """
        if self._has_folders:
            self._system.makedirs(self.root, exist_ok=True)
            return
        bucket = self.root.partition("/")[0]
        try:
            self._system.info(bucket)
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, "no such bucket", bucket) from None
        except Exception:  # noqa: BLE001 - rights may be those on the directory alone
            self._entries()

    def stream(self, name: str) -> Any:
        """Opens a new file for writing bytes. Others may see it before it is closed: nobody else may know its name."""
        return self._system.open(self._path(name), "wb")

    def put(self, name: str, data: bytes | Path) -> None:
        """Write a file that others see whole or not at all; a failure leaves nothing of it behind. A Path is a file of
        this host, which is copied. A local file is on disk when this returns."""
        temporary = name if self._uploads_whole else f"{PART}{name}-{secrets.token_hex(4)}"
        try:
            if isinstance(data, Path):
                self._system.put_file(str(data), self._path(temporary))
            else:
                self._system.pipe_file(self._path(temporary), data)
            if self._is_local:
                sync(Path(self._path(temporary)))
            if temporary != name:
                rename(self._system, self._path(temporary), self._path(name), overwrite=True)
            if self._is_local:
                sync_directory(Path(self.root))
        except BaseException:
            if temporary != name:
                with suppress(Exception):  # the first error says why
                    self.remove(temporary)
            raise

    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole or not at all, and only if its name is free. Of several processes at most one succeeds.

        A store may carry out a request whose answer is lost, and refuse the second try. Nor do drivers agree on the
        error of a name that is taken. So the content of the file decides after any error: `data` must name its writer.

        Returns:
            bool: whether the file has this content now.
        """
        temporary = f"{PART}{name}-{secrets.token_hex(4)}"
        try:
            if self._uploads_whole:
                self._system.pipe_file(self._path(name), data, mode="create")
            else:
                self._system.pipe_file(self._path(temporary), data)
                put = rename if self._renames_exclusively else _link
                put(self._system, self._path(temporary), self._path(name))
        except Exception:
            with suppress(FileNotFoundError):
                return self.get(name) == data
            raise
        finally:
            if not self._uploads_whole:
                with suppress(Exception):  # only a file too many
                    self.remove(temporary)
        return True

    def check_create(self, argument: str = "directory") -> None:
        """Check that `create` creates a file once: two calls one after the other, then eight at once.

        Args:
            argument: the argument that named the URL, for the message.

        Raises:
            SpecError: the file system lets two writers win, or has no such operation. States can still be kept there.
        """
        name, barrier = f"{PART}create-{secrets.token_hex(4)}", threading.Barrier(8)

        def compete(number: int) -> bool:
            barrier.wait()
            return self.create(f"{name}-race", b"writer %d" % number)

        try:
            if self.create(name, b"first") and self.create(name, b"second"):
                fault = "the second of two writers won"
            else:
                with ThreadPoolExecutor(barrier.parties) as pool:
                    winners = sum(pool.map(compete, range(barrier.parties)))
                fault = "" if winners == 1 else f"{winners} of {barrier.parties} writers won"
        except (AttributeError, NotImplementedError) as error:
            fault = line_of(error)
        finally:
            for each in (name, f"{name}-race"):
                with suppress(Exception):  # only a file too many
                    self.remove(each)
        if fault:
            raise SpecError(
                f"{argument}: {self.url} cannot create a file only where there is none ({fault}), so two drivers could "
                f"have one run; give {argument}= a local path, HDFS or an object store with conditional writes; store= "
                "may be there"
            )

    def get(self, name: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""
        return bytes(self._system.cat_file(self._path(name)))

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a file, at most `size` at once. Raises FileNotFoundError."""
        self._system.invalidate_cache()  # or a file younger than the last listing counts as missing
        with open_to_read(self._system, self._path(name), size) as file:
            while block := file.read(size):
                yield block

    def range(self, name: str, start: int, stop: int) -> bytes:
        """Return the bytes of a file from `start` to before `stop`. Raises FileNotFoundError."""
        return bytes(self._system.cat_file(self._path(name), start=start, end=stop))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each file, by name, from one fresh listing."""
        return {name: int(entry["size"] or 0) for name, entry in self._entries().items() if entry["type"] == "file"}

    def folders(self) -> list[str]:
        """Return the names of the folders in it, sorted, from one fresh listing."""
        return sorted(name for name, entry in self._entries().items() if entry["type"] == "directory")

    def times(self) -> dict[str, float]:
        """Return when each file was written, by name, in seconds since the epoch of Unix. Files for which the file
        system gives no time are left out.
        """
        times = {name: _modified(entry) for name, entry in self._entries().items()}
        return {name: time for name, time in times.items() if time is not None}

    def versions(self) -> dict[str, tuple[int, float | None]]:
        """Return (bytes, time as in `times`) of each file, by name, from one fresh listing. The time is None where the
        file system gives none."""
        files = {name: entry for name, entry in self._entries().items() if entry["type"] == "file"}
        return {name: (int(entry["size"] or 0), _modified(entry)) for name, entry in files.items()}

    def has(self, name: str) -> bool:
        """Return whether the file exists, without asking a cache."""
        self._system.invalidate_cache()
        return is_there(self._system, self._path(name))

    def remove(self, name: str) -> None:
        """Removes a file; no error when it does not exist."""
        with suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def drop(self) -> None:
        """Remove the directory if it is empty. Object stores have none, and drivers would remove the bucket."""
        if self._has_folders and not self._entries():
            with suppress(Exception):  # no such directory, or somebody has just put a file into it
                self._system.rmdir(self.root)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _entries(self) -> dict[str, Any]:
        self._system.invalidate_cache()
        try:
            entries: list[Any] = self._system.ls(self.root, detail=True)
        except FileNotFoundError:  # object stores have no empty directories
            return {}
        names = [entry["name"].rstrip("/") for entry in entries]  # object stores may list the directory itself
        return {
            posixpath.basename(name): entry for name, entry in zip(names, entries, strict=True) if name != self.root
        }


def _modified(entry: dict[str, Any]) -> float | None:
    """Return when the file of an entry was written, in seconds since the epoch of Unix."""
    key = next((key for key in _MODIFIED_KEYS if key in entry), "")
    modified: Any = entry.get(key)
    timestamp = modified.timestamp() if hasattr(modified, "timestamp") else modified
    return timestamp / _MODIFIED_KEYS[key] if isinstance(timestamp, (int, float)) else None


def _link(system: Any, source: str, target: str) -> None:
    system.link(source, target)
