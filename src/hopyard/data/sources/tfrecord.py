"""Files of tf.train.Example records as rows: found, looked through once for their columns, decoded by batches."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from blake3 import blake3

from hopyard.data.manifest import SourceInfo
from hopyard.data.sources.memory import BYTES, ROWS, Piece
from hopyard.data.sources.parquet import ahead, stamp
from hopyard.errors import DataError, SpecError
from hopyard.filesystems import is_there, matching, names_of, open_url, reaching
from hopyard.formats.example import Seen, decode, listed, look, schema
from hopyard.formats.tfrecord import records


def find(source: Any) -> list[str]:
    """The TFRecord files of a path, a glob, a directory, an fsspec URL, or a list of these; each list entry sorted.

    Of directories and globs, files whose name, or a folder below the directory, begins with "_" or "." are left out.

    Raises:
        SpecError: not such a thing.
        DataError: nothing matches.
    """
    if isinstance(source, (str, os.PathLike)) and os.fspath(source):
        return _find(os.fspath(source))
    if isinstance(source, (list, tuple)) and source:
        return [path for one in source for path in find(one)]
    raise SpecError(f"source = {source!r}: a path, glob, directory or URL, or a list of these, is needed")


def _find(path: str) -> list[str]:
    with reaching(path, "open", DataError, "source"):
        system, inner = open_url(str(Path(path).expanduser().absolute()) if "://" not in path else path)
        system.invalidate_cache()
        several = any(c in inner for c in "*?[") and not is_there(system, inner)
        found = []
        for name in matching(system, inner) if several else [inner]:
            if system.isdir(name) and not (several and _hidden(name)):
                below = [file for file in system.find(name) if not _hidden(file[len(name) :])]
                found += sorted(below)
            elif is_there(system, name) and not (several and _hidden(posixpath.basename(name))):
                found.append(name)
    if not found:
        raise DataError(
            f"no TFRecord file matches {path!r} (this process runs in {Path.cwd()}); give a path that is there"
        )
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    return [str(name) if protocols & {"file", "local"} else str(system.unstrip_protocol(name)) for name in found]


def _hidden(inside: str) -> bool:
    return any(part.startswith(("_", ".")) for part in inside.strip("/").split("/"))


def batches(path: str, columns: pa.Schema, rows: int = ROWS, size: int = BYTES) -> Iterator[Any]:
    """The records of a file as record batches of `columns`, each of at most `rows` rows and about `size` bytes."""
    held: list[bytes] = []
    first = total = 0
    for data in records(path):
        held.append(data)
        total += len(data)
        if len(held) >= rows or total >= size:
            yield decode(held, columns, path, first)
            first, total, held = first + len(held), 0, []
    if held:
        yield decode(held, columns, path, first)


class Records:
    """TFRecord files, by path or URL. Cheap to pickle; read as often as needed, and once more for their columns."""

    def __init__(self, paths: list[str], binary: Sequence[str] = ()) -> None:
        self.paths, self.binary = paths, listed(binary)
        self._listed: list[SourceInfo] = []
        self._known: tuple[list[str], pa.Schema] | None = None
        """(stamps of the files, the columns that they then had)."""

    def __repr__(self) -> str:
        return names_of(self.paths)

    def identity(self) -> str:
        """BLAKE3 over path and stamp of each file, and which features are binary."""
        hasher = blake3(repr(sorted(self.binary)).encode())
        for path, seen in zip(self.paths, self._stamps(), strict=True):
            hasher.update(f"{path}\0{seen}\0".encode())
        return hasher.hexdigest()

    def schema(self) -> pa.Schema:
        """Of all records; reads all files, unless that was done and they are the same.

        Raises:
            DataError: a file is damaged, there are no records, or a feature has two kinds.
        """
        stamps = self._stamps()
        if self._known is None or self._known[0] != stamps:
            found: dict[str, Seen] = {}
            if not sum(look(found, records(path), path) for path in self.paths):
                raise DataError(f"{self!r}: there are no records, so no columns are known")
            self._known = stamps, schema(found, self.binary, repr(self))
        return self._known[1]

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """Batches of each file in order."""
        self._listed = []
        return ahead(self._read(names))

    def listed(self) -> list[SourceInfo]:
        """Each file."""
        return self._listed

    def detached(self, identity: str | None) -> Records:
        """Itself: paths only."""
        return Records(self.paths, self.binary)

    def _read(self, names: list[str] | None) -> Iterator[Piece]:
        columns = self.schema()
        if names is not None:
            columns = pa.schema([field for field in columns if field.name in names])
        for path in self.paths:
            row = 0
            for batch in batches(path, columns):
                yield batch, path, row
                row += batch.num_rows
            self._listed.append(SourceInfo(path, -1, row))

    def _stamps(self) -> list[str]:
        return [stamp(path) for path in self.paths]
