"""Fetches one partition of a materialisation to this host: reads its runs, compares digests, orders and finishes the
rows, writes .npy.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from hopyard import meter
from hopyard.data.encoding.encoder import Vocabulary
from hopyard.data.encoding.finalize import FeatureFinalizer, block_bytes
from hopyard.data.manifest import ArrayInfo, Manifest, Stored, file_names, folder_name
from hopyard.data.npy import OPEN_FILES, appender, parts_of
from hopyard.data.rows.order import RowSorter
from hopyard.data.shared.segments import Index, Segment, infos, ranges, views
from hopyard.data.shared.storage import shared_directory
from hopyard.errors import DataError, HopyardError
from hopyard.filesystems import Directory
from hopyard.spec import RowKind

_BYTES = 64 << 20
"""About how many bytes are asked for and not used yet."""
_REQUESTS = 32
"""The most ranges that are read at once."""

_Piece = tuple[Segment, int, int, int]
"""(segment, rows, first byte, end)."""


def fetch(directory: Path, manifest: Manifest, kind: RowKind, partition: int) -> Manifest:
    """Writes partition `partition` into the empty `directory`, as the only one of its kind.

    Returns:
        Manifest: of this one partition; key and path are the caller's to fill.

    Raises:
        DataError: the materialisation does not exist, cannot be read, or does not hold what was written.
    """
    assert manifest.stored is not None
    index = load(manifest.stored)
    layout, run = infos(manifest.fields, index.words), index.run(kind, partition)
    sorter = RowSorter(layout[:-1], index.words, directory / "order", step=block_bytes(manifest.fields))
    finisher = FeatureFinalizer(manifest.fields, fixed_vocabularies(manifest), manifest.standardize, manifest.fills)
    (directory / folder_name(kind, 0)).mkdir()
    files: list[Any] = []
    try:
        for name, info in zip(file_names(manifest.fields), finisher.infos, strict=True):
            keep = len(finisher.infos) <= OPEN_FILES
            files.append(appender(directory / folder_name(kind, 0) / name, info.shape, info.dtype, keep))
        with closing(_arrays(manifest, index, run, layout)) as arrays:
            for *raw, names in arrays:
                sorter.take(raw, names)
        for block in sorter.blocks():
            meter.advance()
            for number, (array, file) in enumerate(zip(block, files, strict=True)):
                file.append(finisher(number, array))
        digests = [part.finish() for part in parts_of(files)]
    finally:
        for file in files:
            file.close()
        sorter.close()
    parts = manifest.train if kind == "train" else manifest.validate
    return manifest.only(kind, msgspec.structs.replace(parts[partition], files=digests))


def fixed_vocabularies(manifest: Manifest) -> dict[str, Vocabulary]:
    """Return the vocabularies of a manifest."""
    other = {column.name for field in manifest.fields for column in field.columns if column.other}
    return {
        name: Vocabulary(
            name,
            {value: code for code, value in enumerate(values)},
            fixed=True,
            other=name in other,
            fill=manifest.fills.get(name),
        )
        for name, values in manifest.vocabularies.items()
    }


@lru_cache(4)
def load(stored: Stored) -> Index:
    """Return the index of a materialisation.

    Raises:
        DataError: it does not exist, or is damaged.
    """
    try:
        data = shared_directory(stored.url).get(stored.file)
    except HopyardError:
        raise
    except Exception as error:
        raise _missing(stored.url, stored.file, error) from error
    if blake3(data).hexdigest() != stored.index:
        raise DataError(f"{stored.url}/{stored.file} is damaged: its digest is another; {_AGAIN}")
    try:
        return msgspec.json.decode(data, type=Index)
    except msgspec.MsgspecError as error:
        raise DataError(f"{stored.url}/{stored.file} is no index: {error}; {_AGAIN}") from error


_AGAIN = "make the data set again with Dataset.spark(…)"


def _missing(url: str, name: str, error: Exception) -> DataError:
    return DataError(
        f"host {socket.gethostname()} cannot read {url}/{name} ({type(error).__name__}: {error}): the place must be "
        f"there on all hosts that work on the data; if it was deleted, {_AGAIN}"
    )


def _arrays(manifest: Manifest, index: Index, run: int, layout: list[ArrayInfo]) -> Generator[list[Any], None, None]:
    """Yield the raw arrays and the names of one run, segment by segment."""
    assert manifest.stored is not None
    url = manifest.stored.url
    pieces = [
        (segment, *piece)
        for segment in index.segments
        if segment.digests[run]
        for piece in ranges(layout, segment, run)
    ]
    hasher, rows_left = blake3(), 0
    with closing(_read(shared_directory(url), pieces)) as chunks:
        for (segment, rows, _, _), data in chunks:
            rows_left = rows_left or segment.rows(run)
            meter.advance(len(data))
            hasher.update(data)
            yield views(layout, rows, np.frombuffer(data, np.uint8))
            rows_left -= rows
            if not rows_left:
                if hasher.hexdigest() != segment.digests[run]:
                    raise DataError(
                        f"{url}/{segment.name} is damaged: the digest of its rows for this partition is another than "
                        f"when it was written; {_AGAIN}"
                    )
                hasher = blake3()


def _read(folder: Directory, pieces: list[_Piece]) -> Generator[tuple[_Piece, bytes], None, None]:
    """Yield the bytes of each piece in order, while those of the next ones are on their way."""
    coming: deque[tuple[_Piece, Future[bytes]]] = deque()
    size = 0
    pool = ThreadPoolExecutor(_REQUESTS, "hopyard-read")
    try:
        for piece in pieces:
            segment, _, first, end = piece
            coming.append((piece, pool.submit(folder.range, segment.name, first, end)))
            size += end - first
            while size > _BYTES or len(coming) > 2 * _REQUESTS:
                oldest, data = _arrived(folder, *coming.popleft())
                size -= len(data)
                yield oldest, data
        for each in coming:
            yield _arrived(folder, *each)
    finally:
        pool.shutdown(cancel_futures=True)


def _arrived(folder: Directory, piece: _Piece, answer: Future[bytes]) -> tuple[_Piece, bytes]:
    segment, _, first, end = piece
    try:
        data = answer.result()
    except Exception as error:
        raise _missing(folder.url, segment.name, error) from error
    if len(data) != end - first:
        raise DataError(f"{folder.url}/{segment.name} is damaged: it ends too early; {_AGAIN}")
    return piece, data
