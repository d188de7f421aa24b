"""File systems at URLs, by fsspec: opened in one place, so that one that cannot be reached is told in one way. Files of
one directory there (`Directory`) are written whole, and listed as they are now.

Drivers raise what they like: an ImportError where a package is missing, an OSError of Java's, `requests`' or
`botocore`'s own errors around that of a socket. And `exists`, `isdir` and `glob` take any of these for an absence.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hopyard.errors import HopyardError, ResourceError
from hopyard.system.files import FULL
from hopyard.text import escaped

_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs", "memory"}
"""Protocols whose upload is seen when it is complete."""
PART = ".part-"
"""Prefix of files that are being written, where an upload is seen before it is complete."""
_WRITTEN = ("mtime", "LastModified", "last_modified", "updated")
"""What file systems call the time at which a file was written."""
SHARED = "a path on NFS, or a URL of HDFS, S3 and the like"


def absolute(url: str | os.PathLike[str]) -> str:
    """A path as an absolute one, a URL as it is; neither ends with a slash, but for the root "/"."""
    text = os.fspath(url)
    protocol, mark, path = text.partition("://")
    return f"{protocol}{mark}{path.rstrip('/')}" if mark else str(Path(text).expanduser().absolute())


def open_url(url: str) -> tuple[Any, str]:
    """(the file system at a path or URL, the path in it). Raises whatever its driver raises: see `reaching`."""
    import fsspec  # 30 ms, and not needed by data in memory

    if "://" not in url:  # of a path, "::" is a part
        system = fsspec.filesystem("file")
        return system, str(system._strip_protocol(url))
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


def uploads_whole(system: Any) -> bool:
    """Whether a file there is seen when it is complete; on all others it needs a temporary name and a move."""
    names = system.protocol
    return not _WHOLE.isdisjoint({names} if isinstance(names, str) else names)


class Directory:
    """Files by name, of one directory at a path or URL. Any number of processes may use it at once. Raises whatever the
    driver of the file system raises: see `reaching`.
    """

    def __init__(self, url: str) -> None:
        self._system, root = open_url(url)
        self.url = url
        self._root = root.rstrip("/")
        self._whole = uploads_whole(self._system)

    def make(self) -> None:
        """Makes the directory; no error when it is there."""
        self._system.makedirs(self._root, exist_ok=True)

    def stream(self, name: str) -> Any:
        """A new file, open for writing bytes. It may be seen before it is closed: its name must be known to nobody."""
        return self._system.open(self._path(name), "wb")

    def put(self, name: str, data: bytes) -> None:
        """Writes a file that others see whole or not at all, and of which nothing is left where it fails."""
        part = name if self._whole else f"{PART}{name}-{secrets.token_hex(4)}"
        try:
            self._system.pipe_file(self._path(part), data)
            if part != name:
                self._system.mv(self._path(part), self._path(name))
        except BaseException:
            if part != name:
                with suppress(Exception):  # what was raised first says why
                    self.remove(part)
            raise

    def get(self, name: str) -> bytes:
        """A whole file. Raises FileNotFoundError."""
        return bytes(self._system.cat_file(self._path(name)))

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """The bytes of a file, at most `size` at once. Raises FileNotFoundError."""
        self._system.invalidate_cache()  # or a file younger than the last listing counts as missing
        with self._system.open(self._path(name), "rb", block_size=size) as file:
            while block := file.read(size):
                yield block

    def ranges(self, wanted: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """The bytes of each (name, start, stop); object stores are asked for all of them at once."""
        names, starts, stops = (list(each) for each in zip(*wanted, strict=True))
        found = self._system.cat_ranges([self._path(name) for name in names], starts, stops, on_error="raise")
        return [bytes(part) for part in found]

    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by name; one listing, never from a cache."""
        return {name: int(entry["size"] or 0) for name, entry in self._entries().items() if entry["type"] == "file"}

    def times(self) -> dict[str, float]:
        """When each file was written, by name, in seconds since the epoch of Unix; without those of which the file
        system does not tell.
        """
        found = {}
        for name, entry in self._entries().items():
            written: Any = next((entry[key] for key in _WRITTEN if key in entry), None)
            time = written.timestamp() if hasattr(written, "timestamp") else written
            if isinstance(time, (int, float)):
                found[name] = float(time)
        return found

    def has(self, name: str) -> bool:
        """Whether there is such a file, never from a cache."""
        self._system.invalidate_cache()
        return is_there(self._system, self._path(name))

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

    def _entries(self) -> dict[str, Any]:
        self._system.invalidate_cache()
        try:
            entries: list[Any] = self._system.ls(self._root, detail=True)
        except FileNotFoundError:  # object stores have no empty directories
            return {}
        return {posixpath.basename(entry["name"].rstrip("/")): entry for entry in entries}


def is_there(system: Any, path: str) -> bool:
    """Whether there is a file or directory. Unlike `system.exists` it raises when that cannot be told."""
    try:
        system.info(path)
    except FileNotFoundError:
        return False
    return True


def matching(system: Any, pattern: str) -> list[str]:
    """What a glob pattern matches, sorted. Unlike `system.glob` it raises when the place cannot be read at all."""
    names = sorted(str(name) for name in system.glob(pattern))
    if not names:
        is_there(system, posixpath.dirname(re.split(r"[*?\[]", pattern, maxsplit=1)[0]))
    return names


def names_of(paths: Sequence[str]) -> str:
    """Files in a few words: the first, and how many."""
    return paths[0] if len(paths) == 1 else f"{len(paths)} files, {paths[0]} and so on"


@contextmanager
def reaching(url: str, verb: str, raises: type[HopyardError], argument: str, otherwise: str = "") -> Iterator[None]:
    """Turns what a file system raises into one sentence: the URL, the cause, the next step.

    Args:
        url: of the file system, or a file in it.
        verb: what is done, for the message: "open", "write to".
        raises: the class of the error.
        argument: what named the URL: "store".
        otherwise: the next step where the cause tells none.

    Raises:
        ResourceError: no room there.
        HopyardError: of the class `raises`, all else; those that are raised within go as they are.
    """
    try:
        yield
    except HopyardError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise ResourceError(
                f"{argument}: no room in {url} on host {socket.gethostname()} ({error.strerror}); what was written is "
                f"removed; free some, or give {argument}= another place"
            ) from error
        cause, step = why(url, error) or (line_of(error), otherwise or "see whether it can be opened from this host")
        raise raises(f"{argument}: host {socket.gethostname()} cannot {verb} {url}: {cause}; {step}") from error


def why(url: str, error: BaseException) -> tuple[str, str] | None:
    """(cause, next step) of an error that is about reaching a file system; None: of another."""
    protocol = url.partition("://")[0] if "://" in url else ""
    text = line_of(error)
    if isinstance(error, ImportError):
        return f"a package is missing ({error})", "install it here and on every host that reads or writes there"
    if isinstance(error, ValueError) and "protocol not known" in text.lower():
        return (
            f"there is no file system {protocol!r}",
            "give a path, or a URL that fsspec knows: s3://…, gs://…, abfs://…, hdfs://…, webhdfs://…",
        )
    if re.search("libjvm|libhdfs|HDFS connection failed", text):
        return (
            f"Java or Hadoop's client is not found ({text})",
            "set JAVA_HOME, HADOOP_HOME and CLASSPATH=$(hadoop classpath --glob), or give webhdfs://namenode:9870/…, "
            "which needs neither",
        )
    for one in _chain(error):
        for kind, cause, step in _CAUSES:
            if isinstance(one, kind):
                return f"{cause} ({line_of(one)})", step
    return None


_CAUSES: tuple[tuple[type[OSError], str, str], ...] = (
    (socket.gaierror, "its host name is not known", "check the host of the URL, and the name service of this host"),
    (ConnectionRefusedError, "nobody listens there", "check host and port of the URL, and that the service runs"),
    (TimeoutError, "nobody answered in time", "check host and port of the URL and what is between, or try again"),
    (ConnectionError, "the connection broke", "check that the service runs, and try again"),
    (PermissionError, "it was refused", "check credentials and rights of the user that this process runs as"),
)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it was raised from, as far as that goes: the socket's own error is at the end."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def line_of(error: BaseException) -> str:
    """The error in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return escaped(f"{type(error).__name__}: {first}"[:500])
