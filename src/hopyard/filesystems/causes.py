"""Errors of file systems, converted into errors that name the URL, the cause and the next step.

Drivers raise errors of many kinds: an ImportError where a package is missing, Java's OSErrors, errors of `requests` or
`botocore` around that of a socket, hdfs-native's RuntimeErrors with the text of the NameNode. `exists`, `isdir` and
`glob` treat any of these as "does not exist".
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hopyard.errors import HopyardError, ResourceError
from hopyard.system.files import FULL
from hopyard.text import escaped, without_secrets

SHARED = "a path on NFS, or a URL of HDFS, S3 and the like"


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
        body = getattr(getattr(link, "response", None), "text", "")  # a DataNode's reason, which `requests` leaves out
        for pattern, cause, step in _TEXTS:
            if re.search(pattern, f"{type(link).__name__}: {link} {body}"):
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
    (
        "SlowDown|Service Unavailable|InternalError|Internal Server Error",
        "the service is overloaded, or has failed",
        "wait, and try again",
    ),
    ("SafeMode|in safe mode", "the NameNode is in safe mode", "wait until its DataNodes have reported, and try again"),
    ("StandbyException", "no NameNode is active", "wait for the failover, or check the configuration of HDFS here"),
    (
        "All DataNodes failed|Failed to find datanode|only be written to 0|No active nodes|Failed to complete file",
        "no DataNode answers",
        "check that the DataNodes run and can be reached from this host, and try again",
    ),
)
"""Patterns in the text of errors of botocore, hdfs-native and WebHDFS, whose classes are too general."""


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
