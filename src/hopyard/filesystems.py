"""File systems at URLs, opened by fsspec in one place, so that every failure to reach one is reported in the same way.
`Directory` writes the files of one directory whole, and lists them as they are now.

Drivers raise errors of many kinds: an ImportError where a package is missing, Java's OSErrors, errors of `requests` or
`botocore` around that of a socket. `exists`, `isdir` and `glob` treat any of these as "does not exist".
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from hopyard.checks import expanded, without_scheme
from hopyard.errors import HopyardError, ResourceError
from hopyard.system.files import FULL
from hopyard.text import escaped

_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs", "memory"}
"""Protocols where an upload is visible only when it is complete."""
PART = ".part-"
"""Prefix of the names of files that are being written, where an upload is visible before it is complete."""
_MODIFIED_KEYS = ("mtime", "LastModified", "last_modified", "updated")
"""Keys under which file systems give the time at which a file was written."""
SHARED = "a path on NFS, or a URL of HDFS, S3 and the like"


def absolute(url: str | os.PathLike[str]) -> str:
    """Return a path, or the URL of a file, as an absolute path, and any other URL unchanged; none ends with a slash,
    except for the root "/"."""
    text = without_scheme(os.fspath(url))
    protocol, separator, path = text.partition("://")
    return f"{protocol}{separator}{path.rstrip('/')}" if separator else str(expanded(text))


def open_url(url: str) -> tuple[Any, str]:
    """Return (the file system at a path or URL, the path in it). Raises whatever its driver raises: see `reaching`."""
    import fsspec  # 30 ms, and not needed by data in memory

    url = without_scheme(url)
    if "://" not in url:  # a path may contain "::", which is special in a URL
        system = fsspec.filesystem("file")
        return system, str(system._strip_protocol(url))
    system, path = fsspec.core.url_to_fs(url)
    return system, str(path)


class Directory:
    """The files of one directory at a path or URL, by name. Any number of processes may use it at once. Raises
    whatever the driver of the file system raises: see `reaching`.
    """

    def __init__(self, url: str) -> None:
        self._system, root = open_url(url)
        self.url = url
        self.root = root.rstrip("/")
        """The directory's path in its file system."""
        protocols: Any = self._system.protocol
        self._uploads_whole = not _WHOLE.isdisjoint({protocols} if isinstance(protocols, str) else protocols)

    def make(self) -> None:
        """Makes the directory; no error when it exists."""
        self._system.makedirs(self.root, exist_ok=True)

    def stream(self, name: str) -> Any:
        """Opens a new file for writing bytes. Others may see it before it is closed: nobody else may know its name."""
        return self._system.open(self._path(name), "wb")

    def put(self, name: str, data: bytes) -> None:
        """Writes a file that others see whole or not at all; a failure leaves nothing of it behind."""
        temporary = name if self._uploads_whole else f"{PART}{name}-{secrets.token_hex(4)}"
        try:
            self._system.pipe_file(self._path(temporary), data)
            if temporary != name:
                self._system.mv(self._path(temporary), self._path(name))
        except BaseException:
            if temporary != name:
                with suppress(Exception):  # the first error says why
                    self.remove(temporary)
            raise

    def create(self, name: str, data: bytes) -> bool:
        """Write a file whole or not at all, and only if its name is free. Of several processes at most one succeeds.

        A store may carry out a request whose answer is lost, and refuse the second try. So a name that is taken is
        decided by its content: `data` must name its writer.

        Returns:
            bool: whether the file has this content now.
        """
        temporary = f"{PART}{name}-{secrets.token_hex(4)}"
        try:
            if self._uploads_whole:
                self._system.pipe_file(self._path(name), data, mode="create")
            else:
                self._system.pipe_file(self._path(temporary), data)
                self._system.link(self._path(temporary), self._path(name))
        except FileExistsError:
            return self.get(name) == data
        finally:
            if not self._uploads_whole:
                with suppress(Exception):  # only a file too many
                    self.remove(temporary)
        return True

    def get(self, name: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""
        return bytes(self._system.cat_file(self._path(name)))

    def blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a file, at most `size` at once. Raises FileNotFoundError."""
        self._system.invalidate_cache()  # or a file younger than the last listing counts as missing
        with self._system.open(self._path(name), "rb", block_size=size) as file:
            while block := file.read(size):
                yield block

    def ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Return the bytes of each (name, start, stop); object stores are asked for all of them at once."""
        names, starts, stops = (list(each) for each in zip(*ranges, strict=True))
        blocks = self._system.cat_ranges([self._path(name) for name in names], starts, stops, on_error="raise")
        return [bytes(block) for block in blocks]

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
        times = {}
        for name, entry in self._entries().items():
            modified: Any = next((entry[key] for key in _MODIFIED_KEYS if key in entry), None)
            timestamp = modified.timestamp() if hasattr(modified, "timestamp") else modified
            if isinstance(timestamp, (int, float)):
                times[name] = float(timestamp)
        return times

    def has(self, name: str) -> bool:
        """Whether there is such a file; never answered from a cache."""
        self._system.invalidate_cache()
        return is_there(self._system, self._path(name))

    def remove(self, name: str) -> None:
        """Removes a file; no error when it does not exist."""
        with suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    def drop(self) -> None:
        """Removes the directory if it is empty."""
        if not self.sizes():
            with suppress(OSError):  # no such directory, or somebody has just put a file into it
                self._system.rmdir(self.root)

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _entries(self) -> dict[str, Any]:
        self._system.invalidate_cache()
        try:
            entries: list[Any] = self._system.ls(self.root, detail=True)
        except FileNotFoundError:  # object stores have no empty directories
            return {}
        return {posixpath.basename(entry["name"].rstrip("/")): entry for entry in entries}


def is_there(system: Any, path: str) -> bool:
    """Whether there is a file or directory. Unlike `system.exists` it raises when that cannot be found out."""
    try:
        system.info(path)
    except FileNotFoundError:
        return False
    return True


def matching(system: Any, pattern: str) -> list[str]:
    """Return what a glob pattern matches, sorted. Unlike `system.glob` it raises when its folder cannot be read."""
    names = sorted(str(name) for name in system.glob(pattern))
    if not names:
        is_there(system, posixpath.dirname(re.split(r"[*?\[]", pattern, maxsplit=1)[0]))
    return names


def names_of(paths: Sequence[str]) -> str:
    """Describes files in short: the first, and how many."""
    return paths[0] if len(paths) == 1 else f"{len(paths)} files, {paths[0]} and so on"


@contextmanager
def reaching(url: str, verb: str, raises: type[HopyardError], argument: str, otherwise: str = "") -> Iterator[None]:
    """Turns what a file system raises into an error that names the URL, the cause and the next step.

    Args:
        url: the URL of the file system, or of a file in it.
        verb: the action, for the message: "open", "write to".
        raises: the class of the error.
        argument: the argument that named the URL: "store".
        otherwise: the next step where the cause does not give one.

    Raises:
        ResourceError: the file system is full.
        HopyardError: anything else, as an error of class `raises`; HopyardErrors from inside pass unchanged.
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
    """Return (cause, next step) of an error in reaching a file system; None for any other error."""
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
    for link in _chain(error):
        for kind, cause, step in _CAUSES:
            if isinstance(link, kind):
                return f"{cause} ({line_of(link)})", step
    return None


_CAUSES: tuple[tuple[type[OSError], str, str], ...] = (
    (socket.gaierror, "its host name is not known", "check the host of the URL, and the name service of this host"),
    (ConnectionRefusedError, "nobody listens there", "check host and port of the URL, and that the service runs"),
    (TimeoutError, "nobody answered in time", "check host and port of the URL and what is between, or try again"),
    (ConnectionError, "the connection broke", "check that the service runs, and try again"),
    (PermissionError, "it was refused", "check credentials and rights of the user that this process runs as"),
)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on; the socket's own error is the last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def line_of(error: BaseException) -> str:
    """Return the error in one line."""
    first = (str(error).strip().splitlines() or [""])[0]
    return escaped(f"{type(error).__name__}: {first}"[:500])
