"""File systems at URLs, by fsspec: opened in one place, so that one that cannot be reached is told in one way.

Drivers raise what they like: an ImportError where a package is missing, an OSError of Java's, `requests`' or
`botocore`'s own errors around that of a socket. And `exists`, `isdir` and `glob` take any of these for an absence.
"""

from __future__ import annotations

import os
import posixpath
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hopyard.checks import escaped
from hopyard.errors import HopyardError, ResourceError
from hopyard.system.files import FULL

_WHOLE = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "obs", "memory"}
"""Protocols whose upload is seen when it is complete."""
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
