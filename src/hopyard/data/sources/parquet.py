"""Parquet files: found, told apart, and decoded row group by row group, one ahead of who consumes them."""

from __future__ import annotations

import glob
import os
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3

from hopyard.checks import sendable
from hopyard.data.manifest import SourceInfo
from hopyard.data.sources.memory import BYTES, ROWS, Piece
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import is_there, matching, names_of, open_url, reaching, why
from hopyard.formats.arrow import require

T = TypeVar("T")

GROUP_BYTES = 64 << 20
"""Row groups up to this size are decoded whole, the fastest way; larger ones in batches, so memory stays bounded."""


def find(source: Any) -> list[str]:
    """The Parquet files of a path, a glob, a directory, an fsspec URL, or a list of these; each list entry sorted.

    Raises:
        SpecError: not such a thing.
        DataError: nothing matches.
    """
    if isinstance(source, (str, os.PathLike)):
        found = _find(os.fspath(source))
        for path in found:
            if not sendable(path):
                raise DataError(f"{path!a}: the name has a character that UTF-8 lacks; rename the file")
        return found
    if isinstance(source, (list, tuple)) and source:
        return [path for one in source for path in find(one)]
    raise SpecError(f"source = {source!r}: a path, glob, directory or URL, or a list of these, is needed")


class Files:
    """Parquet files, by path or URL. Cheap to pickle; read as often as needed."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths
        self._listed: list[SourceInfo] = []

    def __repr__(self) -> str:
        return names_of(self.paths)

    def identity(self) -> str:
        """BLAKE3 over path, stamp and footer of each file."""
        hasher = blake3()
        for path in self.paths:
            hasher.update(f"{path}\0{stamp(path)}\0".encode())
            hasher.update(_footer(path))
        return hasher.hexdigest()

    def schema(self) -> pa.Schema:
        """Of the first file, from its footer."""
        path = self.paths[0]
        with _reading(path), _open(path) as stream, _parquet(stream, []) as file:
            return file.schema_arrow

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Row groups (or batches of large ones) in order."""
        self._listed = []
        return ahead(self._read(names, dictionaries))

    def listed(self) -> list[SourceInfo]:
        """Each row group of each file."""
        return self._listed

    def detached(self, identity: str | None) -> Files:
        """Itself: paths only."""
        return Files(self.paths)

    def _read(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        first: pa.Schema | None = None
        for path in self.paths:
            with _reading(path), _open(path) as stream, _parquet(stream, dictionaries) as file:
                schema = file.schema_arrow
                first = first or schema
                wanted = [name for name in names or first.names if name in first.names]
                _same(first, schema, wanted, path, self.paths[0])
                row = 0
                for group in range(file.num_row_groups):
                    for batch in _group(file, group, wanted):
                        yield batch, path, row
                        row += batch.num_rows
                    self._listed.append(SourceInfo(path, group, file.metadata.row_group(group).num_rows))


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """`items`, made in a thread, one ahead of who consumes them."""
    end = object()
    with ThreadPoolExecutor(1, "hopyard-read") as pool, closing(items):  # type: ignore[type-var]
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            try:
                yield item  # type: ignore[misc]
            except GeneratorExit:
                coming.cancel()
                pool.shutdown(wait=True)
                raise


def _group(file: Any, group: int, wanted: list[str]) -> Iterator[Any]:
    info = file.metadata.row_group(group)
    if info.num_rows == 0:
        return
    if info.total_byte_size <= GROUP_BYTES:
        yield from file.read_row_group(group, columns=wanted, use_threads=True).to_batches()
        return
    rows = max(1, min(ROWS, 4 * BYTES * info.num_rows // info.total_byte_size))
    yield from file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=True)


def _same(first: pa.Schema, schema: pa.Schema, names: list[str], path: str, model: str) -> None:
    require(schema, names, path)
    for name in names:
        kind, other = first.field(name).type, schema.field(name).type
        if kind != other:
            raise DataError(
                f"column {name!r} has type {other} in {path} but {kind} in {model}; write the files with one schema"
            )


def _parquet(stream: Any, dictionaries: list[str]) -> Any:
    return pq.ParquetFile(
        stream,
        read_dictionary=dictionaries or None,
        memory_map=isinstance(stream, str),
        page_checksum_verification=True,
    )


@contextmanager
def _reading(path: str) -> Iterator[None]:
    with reading(path):
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as error:
            if why(path, error) and not _local(path):
                raise
            words = f"{path} cannot be read as Parquet: {error}; write the file again, or leave it out"
            raise DataError(words) from error


def reading(path: str, verb: str = "read") -> AbstractContextManager[None]:
    """Turns what the file system of a URL raises into a DataError; of a local path whoever reads knows more."""
    return nullcontext() if _local(path) else reaching(path, verb, DataError, "source")


def _local(path: str) -> bool:
    return "://" not in path


@contextmanager
def _open(path: str) -> Iterator[Any]:
    if _local(path):
        yield path
    else:
        system, inner = open_url(path)
        with system.open(inner, "rb") as stream:
            yield stream


def _find(path: str) -> list[str]:
    if not _local(path):
        with reading(path, "open"):
            system, inner = open_url(path)
            system.invalidate_cache()
            found = matching(system, inner) if any(c in inner for c in "*?[") else [inner]
            if found == [inner] and system.isdir(inner):
                found = [name for name in system.find(inner) if _is_data(name, inner)]
            found = [system.unstrip_protocol(name) for name in sorted(found) if is_there(system, name)]
    else:
        path = str(Path(path).expanduser().absolute())
        if Path(path).is_dir():
            found = sorted(str(file) for file in Path(path).rglob("*") if file.is_file() and _is_data(str(file), path))
        elif Path(path).exists():
            found = [path]
        else:
            matches = glob.glob(path, recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
            found = sorted(file for file in matches if Path(file).is_file())
    if not found:
        raise DataError(
            f"no Parquet file matches {path!r} (this process runs in {Path.cwd()}); give a path that is there"
        )
    return [str(file) for file in found]


def _is_data(path: str, root: str) -> bool:
    """Whether a file below a directory is data: Spark and Hive hide others behind "_" and "."."""
    inside = path[len(root) :].strip("/").split("/")
    return path.endswith((".parquet", ".parq", ".pq")) and not any(part.startswith(("_", ".")) for part in inside)


_MARKS = {
    "mtime", "modified", "lastmodified", "modificationtime", "lastmodifiedtime", "updated", "created", "datetime",
    "etag", "digest", "contentmd5", "md5hash", "md5", "crc32c", "crc", "sha", "checksum", "generation", "versionid",
}  # fmt: skip
"""What file systems call the time of change and the tag of a file, in small letters without "-" and "_"."""


def stamp(path: str) -> str:
    """Size of a file, its times and its tags: equal stamps, equal content.

    Of a local file the time of the last change of its inode counts too, which a copy with preserved times, or another
    file moved to its place, does not keep. A file of which nobody tells more than its size has a stamp like no other.

    Raises:
        DataError: it cannot be asked.
    """
    if _local(path):
        with _reading(path):
            status = Path(path).stat()
        return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
    with _reading(path):
        system, inner = open_url(path)
        system.invalidate_cache(system._parent(inner))  # listings are kept for as long as the process lives
        info = system.info(inner)
    plain = {str(name).lower().replace("-", "").replace("_", ""): value for name, value in info.items()}
    marks = {name: str(plain[name]) for name in sorted(_MARKS & plain.keys()) if plain[name] is not None}
    return f"{info.get('size')} {marks or uuid.uuid4().hex}"


def _footer(path: str) -> bytes:
    """The serialized metadata at the end of a Parquet file, which ends with its length and "PAR1"."""
    with _reading(path), _open(path) as given:
        stream = Path(given).open("rb") if isinstance(given, str) else given  # noqa: SIM115
        with closing(stream):
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 8))
            tail = stream.read(8)
            length = int.from_bytes(tail[:4], "little")
            if size < 12 or tail[4:] not in (b"PAR1", b"PARE") or length > size - 12:
                raise DataError(
                    f"{path} is no Parquet file, or was cut off: it has {size} bytes and no footer at its end"
                )
            stream.seek(size - 8 - length)
            return bytes(stream.read(length))
