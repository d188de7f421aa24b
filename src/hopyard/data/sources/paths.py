"""Finds files that the user names by path, glob, directory or URL, tells versions apart, and reads one step ahead."""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa

from hopyard.checks import expanded, path, sequence
from hopyard.errors import DataError, ResourceError
from hopyard.filesystems import is_there, matching, open_to_read, open_url, reaching, url_of, why
from hopyard.system.limits import remedy
from hopyard.text import sendable

T = TypeVar("T")

_NULL = "__HIVE_DEFAULT_PARTITION__"
"""What Hive and Spark write for null in the name of a folder."""
_MARKS = {
    "mtime", "modified", "lastmodified", "modificationtime", "lastmodifiedtime", "updated", "created", "datetime",
    "etag", "digest", "contentmd5", "md5hash", "md5", "crc32c", "crc", "sha", "checksum", "generation", "versionid",
}  # fmt: skip
"""What file systems call the time of change and the tag of a file, in small letters without "-" and "_"."""


class FoundFile(NamedTuple):
    """A file of rows."""

    path: str
    """Absolute, or a URL."""
    folders: dict[str, str | None]
    """The columns that folders name, as Hive's `year=2013/month=1/` do, and their value; None: null."""


def find(source: Any, kind: str, endings: tuple[str, ...] = ("",)) -> list[FoundFile]:
    """Return the files of a path, a glob, a directory, an fsspec URL, or a list of these; each list entry sorted.

    Below a directory, and behind the first wildcard of a glob, names that begin with "_" or "." are left out: Spark and
    Hive hide other files by such names. There, too, folders name columns.

    Args:
        source: what the user wrote.
        kind: of the files, for messages.
        endings: names of files below a directory end with one of these; others are left out.

    Raises:
        SpecError: `source` is none of these.
        DataError: nothing matches, or the file system cannot be reached.
    """
    source = sequence(source)
    if isinstance(source, list) and source:
        paths = [path(f"source[{at}]", one, "a path, glob, directory or URL") for at, one in enumerate(source)]
        return [file for one in paths for file in find(one, kind, endings)]
    text = path("source", source, "a path, glob, directory or URL, or a list of these")
    with reaching(text, "open", DataError, "source"):
        system, root = open_url(str(expanded(text)) if is_local(text) else text)
        system.invalidate_cache()
        files = list(_below(system, root, endings))
        is_empty = not files and is_there(system, posixpath.join(root, "_SUCCESS"))
    if is_empty:
        raise DataError(f"{text}: no records; what was saved there, as its file _SUCCESS says, had none")
    if not files:
        raise DataError(
            f"no {kind} file matches {text!r} (this process runs in {Path.cwd()}); give a path that is there"
        )
    for file in files:
        if not sendable(file.path):
            raise DataError(f"{file.path!a}: the name has a character that UTF-8 lacks; rename the file")
    if "file" in ((system.protocol,) if isinstance(system.protocol, str) else system.protocol):
        return files
    return [file._replace(path=url_of(text, system, file.path)) for file in files]


def _below(system: Any, root: str, endings: tuple[str, ...]) -> Iterator[FoundFile]:
    if not any(c in root for c in "*?[") or is_there(system, root):
        yield from _files(system, root, root, endings)
        return
    start = re.split(r"[*?\[]", root, maxsplit=1)[0]
    for name in matching(system, root):
        behind = name[len(start) :]
        if not _hidden(behind if start.endswith("/") else behind.partition("/")[2]):
            yield from _files(system, name, posixpath.dirname(start), endings)


def _files(system: Any, name: str, base: str, endings: tuple[str, ...]) -> Iterator[FoundFile]:
    """Yield a file, or those below a directory; `base`: the folder below which folders name columns."""
    if system.isdir(name):
        for file in sorted(system.find(name)):
            if file.endswith(endings) and not _hidden(file[len(name) :]):
                yield FoundFile(str(file), _columns(file[len(base) :]))
    elif is_there(system, name):
        yield FoundFile(name, _columns(name[len(base) :]))


def _hidden(inside: str) -> bool:
    return any(part.startswith(("_", ".")) for part in inside.strip("/").split("/"))


def _columns(inside: str) -> dict[str, str | None]:
    pairs = [part.partition("=") for part in inside.split("/")[:-1]]
    return {unquote(name): None if value == _NULL else unquote(value) for name, mark, value in pairs if name and mark}


def is_local(path: str) -> bool:
    """Whether it is a path of this host, not a URL."""
    return "://" not in path


@contextmanager
def reading(path: str, kind: str = "") -> Iterator[None]:
    """Turns what is raised while a file of some kind ("Parquet") is read into a DataError that names the file;
    into a ResourceError where that is the host's fault."""
    with nullcontext() if is_local(path) else reaching(path, "read", DataError, "source"):
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as error:
            if why(path, error) and not is_local(path):
                raise
            if isinstance(error, OSError) and (advice := remedy(error)):
                raise ResourceError(f"{path} cannot be read: {error}; {advice}") from error
            how = f" as {kind}" if kind else ""
            raise DataError(f"{path} cannot be read{how}: {error}; write the file again, or leave it out") from error


@contextmanager
def opened(path: str) -> Iterator[Any]:
    """Yield the path of a local file, or an open stream of any other."""
    if is_local(path):
        yield path
    else:
        system, inner = open_url(path)
        with open_to_read(system, inner) as stream:
            yield stream


def stamp(path: str) -> str:
    """Return size, times and tags of a file: equal stamps, equal content.

    For a local file the time of the last change of its inode counts too, which a copy with preserved times, or another
    file moved to its path, does not keep. A file whose file system gives only its size has a new stamp each time.

    Raises:
        DataError: the status of the file cannot be read.
    """
    with reading(path):
        if is_local(path):
            status = Path(path).stat()
            return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
        system, inner = open_url(path)
        system.invalidate_cache(system._parent(inner))  # listings are kept for as long as the process lives
        info = system.info(inner)
    plain = {str(name).lower().replace("-", "").replace("_", ""): value for name, value in info.items()}
    marks = {name: str(plain[name]) for name in sorted(_MARKS & plain.keys()) if plain[name] is not None}
    return f"{info.get('size')} {marks or uuid.uuid4().hex}"


def read_ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """Yield `items`, which a thread computes one ahead of their consumer."""
    end = object()
    with ThreadPoolExecutor(1, "hopyard-read") as pool, closing(items):  # type: ignore[type-var]
        pending = pool.submit(next, items, end)
        while (item := pending.result()) is not end:
            pending = pool.submit(next, items, end)
            try:
                yield item  # type: ignore[misc]
            except GeneratorExit:
                pending.cancel()
                pool.shutdown(wait=True)
                raise
