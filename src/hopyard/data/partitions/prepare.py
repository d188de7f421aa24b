"""Turns the rows of a source into an entry of a cache: its key, the choice of validation rows, and the build."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
from blake3 import blake3

from hopyard.data.assignment import validates
from hopyard.data.encoding.column_types import Mixed, check, common_types, retyped
from hopyard.data.encoding.encoder import RowOrigin
from hopyard.data.encoding.transform import Transform, identity, transformed, validation_column
from hopyard.data.manifest import FORMAT, Manifest
from hopyard.data.options import BuildOptions
from hopyard.data.partitions.builder import LabelledBatch, build
from hopyard.data.partitions.cache import default_root, find_or_make, making, scratch, usable
from hopyard.data.rows.content import Content
from hopyard.data.rows.names import name_rows
from hopyard.data.sources import Source
from hopyard.data.sources.memory import BatchReader
from hopyard.errors import DataError
from hopyard.formats.arrow import require


class InputRows:
    """The rows of a source after the user's transform. Owns the digests of both, which are costly, and which only the
    process that has the rows in memory can compute: a pickle has the digests instead of the rows.

    Args:
        source: of the rows.
        transform: the user's.
        types: column → its type, for a reader, where that is known before any row is read. A pickle has none.
    """

    def __init__(
        self, source: Source, transform: Transform | None = None, types: Mapping[str, str] | None = None
    ) -> None:
        self.source, self.transform, self.types = source, transform, types or {}
        self._digest: str | None = None
        """The digest of the source's rows as they were when `identity` was first called."""
        self._digest_while_reading = False
        """Whether the digest must be computed while the rows are read."""
        self._code: str | None = None

    def identity(self, again: bool = False) -> str | None:
        """Return the digest of the source's rows as they were at the first call, or (`again`) as they are now. None:
        they must be read first.
        """
        if self._digest is None or again:
            identity = self.source.identity()
            if again or self.source.volatile:
                return identity or self._digest
            self._digest, self._digest_while_reading = identity, identity is None
        return self._digest

    @property
    def is_streamed(self) -> bool:
        """Return whether computing the identity reads all rows."""
        return self._digest_while_reading

    def code(self) -> str:
        """Return the digest of the transform, as it was at the first call."""
        if self._code is None:
            self._code = identity(self.transform)
        return self._code

    def batches(self, names: list[str], encoded: list[str]) -> Iterator[tuple[Any, RowOrigin]]:
        """Yield all rows as (record batch, its origin). Empty batches are left out.

        Args:
            names: the columns that are needed; a transform sees all.
            encoded: those of them that are best read as Arrow dictionaries.
        """
        content = Content() if self._digest_while_reading else None
        transform, row = self.transform, 0
        pieces = self.source.pieces(names, encoded) if transform is None else self.source.pieces(None, [])
        for batch, name, first in pieces:
            if content is not None:
                content.update(batch)
            origin = RowOrigin(name, first)
            if transform is not None:
                origin = RowOrigin(name, row, True)
                batch = transformed(transform, batch, f"{name}, rows from {first}")  # noqa: PLW2901
            if batch.num_rows:
                yield batch, origin
            row += batch.num_rows
        if content is not None:
            digest = content.hexdigest()
            if self._digest not in (None, digest):
                raise DataError(
                    f"{self.source!r} gave other rows when it was read again: sort them, leave random augmentation to "
                    "the recipe, or write them to Parquet first; of a reader, which can be read once, make another "
                    "Dataset"
                )
            self._digest = digest

    def __reduce__(self) -> tuple[Any, ...]:
        digest = None if self.source.volatile else self.identity()
        return _restored, (self.source.detached(digest), self.transform, self._digest, self.code())


def _restored(source: Source, transform: Transform | None, digest: str | None, code: str) -> InputRows:
    rows = InputRows(source, transform)
    rows._digest, rows._code = digest, code
    return rows


@dataclass(frozen=True, slots=True)
class LocalRows:
    """Rows that this process reads, and how they are cut.

    Attributes:
        rows: those that train, and also validate if `options` says so.
        options: how they are cut.
        second: those that validate, where they are a source of their own.
    """

    rows: InputRows
    options: BuildOptions
    second: InputRows | None = None
    url: ClassVar[None] = None

    @property
    def source(self) -> Source:
        """The source of the rows."""
        return self.rows.source

    @property
    def transform(self) -> Transform | None:
        """The user's transform, if any."""
        return self.rows.transform

    @property
    def is_streamed(self) -> bool:
        """Return whether the rows must be prepared before their identity is known."""
        return any(rows.is_streamed for rows in (self.rows, self.second) if rows is not None)

    def prepare(self, limit: int, root: Path | None = None) -> Manifest:
        """Return the manifest of the entry for these rows, which is built unless the cache has it.

        Args:
            limit: bytes that the cache may take.
            root: directory of the cache; None: the user's.

        Raises:
            DataError, ResourceError: as `Dataset.prepare`.
        """
        all_rows = [self.rows] if self.second is None else [self.rows, self.second]
        root, options = root or default_root(), self.options
        with usable(root):
            root.mkdir(parents=True, exist_ok=True)
        if (key := entry_key(all_rows, options)) is not None:
            return find_or_make(root, key, partial(_build, all_rows=all_rows, options=options, key=key), limit)
        name = f"stream{uuid.uuid4().hex}"
        with usable(root), making(root, name), scratch(root, name) as directory:
            manifest = _build(directory, all_rows, options)
            key = entry_key(all_rows, options)
            assert key is not None

            def move(empty: Path) -> Manifest:
                empty.rmdir()
                directory.rename(empty)
                return manifest

            result = find_or_make(root, key, move, limit)
        (root / "locks" / f"{name}.make").unlink(missing_ok=True)
        return result


def entry_key(all_rows: list[InputRows], options: BuildOptions, again: bool = False) -> str | None:
    """Return the key of the cache entry; None while a source must be read first. `again`: see `InputRows.identity`."""
    identities = [rows.identity(again) for rows in all_rows]
    if None in identities:
        return None
    seed = options.seed if options.fraction else 0
    parts: list[Any] = [FORMAT, options.partitions, options.assign, options.fraction, seed, options.spec]
    for rows, row_digest in zip(all_rows, identities, strict=True):
        parts += [row_digest, rows.code()]
    return blake3(msgspec.json.encode(parts)).hexdigest()[:32]


def _build(directory: Path, all_rows: list[InputRows], options: BuildOptions, key: str | None = None) -> Manifest:
    manifest = None
    with suppress(Mixed):
        manifest = build(directory, options, _blocks(all_rows, options, None))
    if manifest is None:
        for written in directory.iterdir():
            shutil.rmtree(written)
        names, encoded = options.spec.names, list(options.spec.encode)
        batches = (batch for rows in all_rows for batch, _ in rows.batches(names, encoded))
        manifest = build(directory, options, _blocks(all_rows, options, common_types(batches, names)))
    manifest.sources = [info for rows in all_rows for info in rows.source.provenance()]
    if key is not None and entry_key(all_rows, options, again=True) != key:
        sources = " or ".join(repr(rows.source) for rows in all_rows)
        again = "call prepare() again when they are whole"
        if not any(rows.source.volatile for rows in all_rows):  # their digest stays that of the first call
            again = "make the Dataset again, and leave its rows in memory as they are"
        raise DataError(f"{sources} changed after they were first read: {again}")
    return manifest


def _blocks(
    all_rows: list[InputRows], options: BuildOptions, types: dict[str, Any] | None
) -> Generator[LabelledBatch, None, None]:
    """Yield batches with the choice of validation rows: all rows of a second source are validation rows. `types`: those
    of the columns whose type differs between a transform's batches; None: not looked for yet.

    Raises:
        Mixed: `types` is None, the type of a column differs, and the rows can be read again.
    """
    spec, row = options.spec, 0
    before: dict[str, Any] = {}
    again = all(not isinstance(rows.source, BatchReader) or rows.source.again for rows in all_rows)
    for number, rows in enumerate(all_rows):
        for batch, origin in rows.batches(spec.names, list(spec.encode)):
            names = None
            if types is not None:
                batch = retyped(batch, types, str(origin))  # noqa: PLW2901
            elif rows.transform is not None and again:
                check(before, batch, spec.names)
            if spec.key:
                require(batch.schema, spec.names, str(origin))
                names = name_rows(batch, spec, str(origin))
            is_validation = None
            if number:
                is_validation = np.ones(batch.num_rows, np.bool_)
            elif options.fraction and names is not None:
                is_validation = names.validates(options.seed, options.fraction)
            elif options.fraction:
                is_validation = validates(options.seed, options.fraction, row, row + batch.num_rows)
            elif spec.validation is not None and batch.schema.get_field_index(spec.validation) >= 0:
                is_validation = validation_column(batch, spec.validation, origin)
            row += batch.num_rows
            yield batch, origin, is_validation, names
