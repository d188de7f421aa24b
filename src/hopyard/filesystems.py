"""File systems at URLs, opened by fsspec in one place, so that every failure to reach one is reported in the same way.
`Directory` writes the files of one directory whole, and lists them as they are now.

Drivers raise errors of many kinds: an ImportError where a package is missing, Java's OSErrors, errors of `requests` or
`botocore` around that of a socket, hdfs-native's RuntimeErrors with the text of the NameNode. `exists`, `isdir` and
`glob` treat any of these as "does not exist".
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import re
import secrets
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import util
from pathlib import Path
from typing import Any

from hopyard.checks import expanded, without_scheme
from hopyard.errors import HopyardError, ResourceError, SpecError
from hopyard.system.files import FULL, sync, sync_directory
from hopyard.text import escaped, without_secrets

_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs", "memory"}
"""Protocols where an upload is visible only when it is complete."""
PART = ".part-"
"""Prefix of the names of files that are being written, where an upload is visible before it is complete."""
_MODIFIED_KEYS = {
    **dict.fromkeys(("mtime", "LastModified", "last_modified", "updated"), 1),
    **dict.fromkeys(("modification_time", "modificationTime"), 1000),
}
"""Keys under which file systems give the time at which a file was written → units in a second."""
_HDFS = {"hdfs", "viewfs"}
_HDFS_OPTIONS = {"dfs.client.failover.max.attempts": "3"}
"""Where no NameNode listens, a call of hdfs-native fails after 10 s, and with its own 15 attempts after 180 s. Callers
try again by themselves."""
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
    options = _HDFS_OPTIONS if url.partition("://")[0] in _HDFS and util.find_spec("hdfs_native") else {}
    system, path = fsspec.core.url_to_fs(url, **options)
    return system, str(path)


def url_of(url: str, system: Any, path: str) -> str:
    """Return the URL of another path in the file system of `url`."""
    host = re.match("webhdfs://[^/]*", url)  # fsspec drops it
    return f"{host[0]}{path}" if host else str(system.unstrip_protocol(path))


def open_to_read(system: Any, path: str, size: int | None = None) -> Any:
    """Open a file for reading bytes.

    Args:
        system: its file system.
        path: the path in it.
        size: the bytes that are asked for at once; None: what its driver takes.
    """
    file = system.open(path, "rb", block_size=None if _HDFS & _protocols(system) else size)
    return io.BufferedReader(_HdfsReader(file), size or 1 << 20) if hasattr(file, "read_range_stream") else file


class _HdfsReader(io.RawIOBase):
    """A reader of hdfs-native, which has no buffer, no `readinto` and a `seek` without an answer."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readall(self) -> bytes:  # the inherited one reads 8 KiB at a time
        return bytes(self._file.read())

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._file.seek(offset, whence)
        return int(self._file.tell())

    def tell(self) -> int:
        return int(self._file.tell())


def rename(system: Any, source: str, target: str, overwrite: bool = False) -> None:
    """Rename a file in its file system. Where a file of HDFS may not be overwritten, one that is there raises an error;
    other file systems overwrite it."""
    protocols = _protocols(system)
    if "webhdfs" in protocols:  # without options a rename that fails answers "false", which `mv` does not look at
        options = {"destination": target, "renameoptions": "OVERWRITE" if overwrite else "NONE"}
        system._call("RENAME", method="put", path=source, **options)
    elif _HDFS & protocols:
        system.mv(source, target, overwrite=overwrite)
    else:
        system.mv(source, target)


def _protocols(system: Any) -> set[str]:
    return {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)


class Directory:
    """The files of one directory at a path or URL, by name. Any number of processes may use it at once. Raises
    whatever the driver of the file system raises: see `reaching`.
    """

    def __init__(self, url: str) -> None:
        self._system, root = open_url(url)
        self.url = url
        self.root = root.rstrip("/")
        """The directory's path in its file system."""
        protocols = _protocols(self._system)
        self._is_local = "file" in protocols
        self._uploads_whole = bool(_WHOLE & protocols)
        self._has_folders = not self._uploads_whole or "memory" in protocols
        self._renames_exclusively = bool((_HDFS | {"webhdfs"}) & protocols)

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
            both = self.create(name, b"first") and self.create(name, b"second")
            with ThreadPoolExecutor(barrier.parties) as pool:
                winners = sum(pool.map(compete, range(barrier.parties)))
            fault = "the second of two writers won" if both else "" if winners == 1 else f"{winners} of 8 writers won"
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
            key = next((key for key in _MODIFIED_KEYS if key in entry), "")
            modified: Any = entry.get(key)
            timestamp = modified.timestamp() if hasattr(modified, "timestamp") else modified
            if isinstance(timestamp, (int, float)):
                times[name] = timestamp / _MODIFIED_KEYS[key]
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


def _link(system: Any, source: str, target: str) -> None:
    system.link(source, target)


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
        if detail := full(error):
            raise ResourceError(
                f"{argument}: no room in {url} on host {socket.gethostname()} ({detail}); what was written is removed; "
                f"free some, or give {argument}= another place"
            ) from error
        cause, step = why(url, error) or (line_of(error), otherwise or "see whether it can be opened from this host")
        raise raises(f"{argument}: host {socket.gethostname()} cannot {verb} {url}: {cause}; {step}") from error


def full(error: BaseException) -> str:
    """Return in which words a file system says that it is full, or a quota used up; "" for any other error."""
    if isinstance(error, OSError) and error.errno in FULL:
        return error.strerror or line_of(error)
    return line_of(error) if re.search("QuotaExceeded|StorageFull|InsufficientStorage", str(error)) else ""


def why(url: str, error: BaseException) -> tuple[str, str] | None:
    """Return (cause, next step) of an error in reaching a file system; None for any other error."""
    protocol = url.partition("://")[0] if "://" in url else ""
    text = line_of(error)
    if isinstance(error, ImportError):
        install = "pip install 'hopyard[s3]'" if protocol in ("s3", "s3a") else "install it"
        return f"a package is missing ({error})", f"{install} here and on every host that reads or writes there"
    if isinstance(error, ValueError) and "protocol not known" in text.lower():
        return (
            f"there is no file system {protocol!r}",
            "give a path, or a URL that fsspec knows: s3://…, gs://…, abfs://…, hdfs://…, webhdfs://…",
        )
    if re.search("libjvm|libhdfs|HDFS connection failed", text):
        return (
            f"Java or Hadoop's client is not found ({text})",
            "pip install 'hopyard[hdfs]', which needs neither, here and on every host that reads or writes there, or "
            "give webhdfs://namenode:9870/…",
        )
    for link in _chain(error):
        for kind, cause, step in _CAUSES:
            if isinstance(link, kind):
                return f"{cause} ({line_of(link)})", step
        for pattern, cause, step in _TEXTS:
            if re.search(pattern, f"{type(link).__name__}: {link}"):
                return f"{cause} ({line_of(link)})", step
    return None


_NOBODY = ("nobody listens there", "check host and port of the URL, and that the service runs")
_SILENCE = ("nobody answered in time", "check host and port of the URL and what is between, or try again")
_REFUSED = ("it was refused", "check credentials and rights of the user that this process runs as")
_CAUSES: tuple[tuple[type[OSError], str, str], ...] = (
    (socket.gaierror, "its host name is not known", "check the host of the URL, and the name service of this host"),
    (ConnectionRefusedError, *_NOBODY),
    (TimeoutError, *_SILENCE),
    (ConnectionError, "the connection broke", "check that the service runs, and try again"),
    (PermissionError, *_REFUSED),
)
_TEXTS = (
    ("no such bucket", "its bucket does not exist", "check the name of the bucket, or make it"),
    ("EndpointConnectionError", *_NOBODY),
    ("ConnectTimeoutError|ReadTimeoutError", *_SILENCE),
    (
        "NoCredentials|AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|AccessControlException",
        *_REFUSED,
    ),
    ("SafeMode|in safe mode", "the NameNode is in safe mode", "wait until its DataNodes have reported, and try again"),
    ("StandbyException", "no NameNode is active", "wait for the failover, or check the configuration of HDFS here"),
    (
        "All DataNodes failed|Failed to find datanode|only be written to 0|No active nodes|Failed to complete file",
        "no DataNode answers",
        "check that the DataNodes run and can be reached from this host, and try again",
    ),
)
"""What the errors of botocore, hdfs-native and WebHDFS say, whose classes do not tell them apart."""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error, its cause, the cause of that, and so on; the socket's own error is the last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        if number := re.search(r"\(os error (\d+)\)", str(error)):  # Rust's text of an error that has no errno here
            yield OSError(int(number[1]), str(error))
        error = error.__cause__ or error.__context__


def line_of(error: BaseException) -> str:
    """Return the error in one line."""
    first = re.split(r"\n|\\n", str(error).strip())[0]  # Java's traces come with newlines written as \n, too
    return escaped(without_secrets(f"{type(error).__name__}: {first}")[:500])
