"""File systems at paths and URLs, opened by fsspec, and what its drivers do differently."""

from __future__ import annotations

import io
import os
import posixpath
import re
from collections.abc import Sequence
from functools import partial
from importlib import util
from typing import Any

from hopyard.checks import expanded, without_scheme

HDFS = {"hdfs", "viewfs"}
_HDFS_OPTIONS = {"dfs.client.failover.max.attempts": "3"}
"""Where no NameNode listens, a lookup by hdfs-native fails after 6.5 s and a put after 16 s. With its own 15 attempts
it was 180 s. Callers try again by themselves."""
_HTTP_SECONDS = 60
"""Seconds of silence after which a request of WebHDFS fails, as Hadoop's own `dfs.client.socket-timeout`. fsspec gives
it none, and would wait for a stopped server for ever."""


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
    options = _HDFS_OPTIONS if url.partition("://")[0] in HDFS and util.find_spec("hdfs_native") else {}
    system, path = fsspec.core.url_to_fs(url, **options)
    if "webhdfs" in protocols_of(system):
        system.session.request = partial(system.session.request, timeout=_HTTP_SECONDS)
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
    file = system.open(path, "rb", block_size=None if HDFS & protocols_of(system) else size)
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
    protocols = protocols_of(system)
    if "webhdfs" in protocols:  # without options a rename that fails answers "false", which `mv` does not look at
        options = {"destination": target, "renameoptions": "OVERWRITE" if overwrite else "NONE"}
        system._call("RENAME", method="put", path=source, **options)
    elif HDFS & protocols:
        system.mv(source, target, overwrite=overwrite)
    else:
        system.mv(source, target)


def protocols_of(system: Any) -> set[str]:
    """Return the protocols of a file system's URLs."""
    return {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)


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
