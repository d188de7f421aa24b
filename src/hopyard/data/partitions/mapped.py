"""The partitions that this process has mapped, and where on this host their rows lie: in the driver's entry, or each in
an entry of its own, which is brought when it is first needed.

    <root>/<key of the driver's entry>-train-00003/     an entry of one partition (`cache`)
"""

from __future__ import annotations

import os
import re
import threading
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hopyard.data.columns import Columns, own, pack
from hopyard.data.keywords import CACHE_BYTES
from hopyard.data.manifest import FILE, ArrayInfo, Manifest, file_name, folder_name, gone
from hopyard.data.npy import map_npy
from hopyard.data.partitions.cache import Pin, compare_part, default_root, find_or_make, pin, usable
from hopyard.data.partitions.supply import SUPPLIES, bring
from hopyard.data.shared.fetch import fetch
from hopyard.errors import DataError, SpecError
from hopyard.folders import temporary_folder
from hopyard.spec import PartitionRange, RowKind

OPEN = 256
"""How many partitions of one manifest stay mapped, at most."""
MAPPINGS = 16_384
"""How many arrays of one manifest stay mapped; Linux allows a process 65,530 mappings."""
_PINS: weakref.WeakValueDictionary[Path, Pin] = weakref.WeakValueDictionary()
"""The pins of entries of which partitions are open. `_shared_pin` alone uses it."""


class Mapped:
    """The mapped partitions of one manifest, least recently used first.

    Args:
        limit: how many stay mapped.

    Attributes:
        fetched_bytes: of columns, of the partitions that this process has brought to this host.
    """

    def __init__(self, limit: int) -> None:
        self.fetched_bytes = 0
        self._limit = limit
        self._columns: dict[tuple[RowKind, int], Columns] = {}
        self._lock = threading.Lock()

    def get(self, kind: RowKind, partition: int) -> Columns | None:
        """Return a partition, if it is mapped, and mark it as used."""
        with self._lock:
            columns = self._columns.pop((kind, partition), None)
            if columns is not None:
                self._columns[kind, partition] = columns
            return columns

    def put(self, kind: RowKind, partition: int, columns: Columns) -> None:
        """Keep a partition mapped, in place of the one that was used least recently."""
        with self._lock:
            self._columns[kind, partition] = columns
            if len(self._columns) > self._limit:
                del self._columns[next(iter(self._columns))]

    def drop(self, kind: RowKind, partition: int) -> None:
        """Keep a partition mapped no longer."""
        with self._lock:
            self._columns.pop((kind, partition), None)


MAPPED: dict[int, Mapped] = {}
"""The mapped partitions of each Manifest that lives, by its id."""


def _shared_pin(path: Path) -> Pin | None:
    """Return the pin that all open partitions of an entry share, so that none needs an open file of its own."""
    if (pinned := _PINS.get(path)) is None and (pinned := pin(path.parent, path.name)) is not None:
        _PINS[path] = pinned
    return pinned


def open_partition(manifest: Manifest, kind: RowKind, partition: int) -> Columns:
    """Return the memory-mapped columns of one partition.

    Mappings stay for as long as the Manifest object lives (those of the last OPEN partitions, or fewer of many arrays),
    or until `close_partition`, because mapping anew for each visit costs a tenth of a shuffled pass in page faults.
    They hold no open file. They are private, so writing to them changes no file, but it would change what later visits
    of this process see: copy first.

    Raises:
        SpecError: no such partition.
        DataError: the cache entry is gone or damaged.
        ResourceError: the host lacks what it takes to open it.
    """
    mapped = MAPPED.get(id(manifest))
    if mapped is None:
        mapped = MAPPED[id(manifest)] = Mapped(max(1, min(OPEN, MAPPINGS // len(manifest.fields))))
        weakref.finalize(manifest, MAPPED.pop, id(manifest), None)
    columns = mapped.get(kind, partition)
    if columns is None:
        columns = _open(manifest, kind, partition)
        mapped.put(kind, partition, columns)
    return replace(columns, inputs=own(columns.inputs), targets=own(columns.targets))


def close_partition(manifest: Manifest, kind: RowKind, partition: int) -> None:
    """Unmap a partition once nobody uses its columns any more, so that an entry of its own can be evicted."""
    if (mapped := MAPPED.get(id(manifest))) is not None:
        mapped.drop(kind, partition)


def fetched_bytes(manifest: Manifest) -> int:
    """Return the bytes of partitions of this Manifest that this process has brought to this host, columns only."""
    mapped = MAPPED.get(id(manifest))
    return 0 if mapped is None else mapped.fetched_bytes


def rows_here(manifest: Manifest) -> tuple[PartitionRange, ...]:
    """Return the partitions of which this host has the rows, by the names of entries: no file is read."""
    if sees_entry(manifest):
        ends = {"train": len(manifest.train), "validate": len(manifest.validate)}
        return tuple(PartitionRange(kind, 0, end) for kind, end in ends.items() if end)  # type: ignore[arg-type]
    names: list[str] = []
    with suppress(OSError):  # where no cache can be, the first fetch says why
        names = [path.name for path in _host_root(manifest.path if manifest.stored is not None else "").iterdir()]
    pattern = re.compile(rf"{re.escape(manifest.key)}-(train|validate)-(\d{{5,}})")
    entries = sorted((found[1], int(found[2])) for name in names if (found := pattern.fullmatch(name)))
    ranges: list[PartitionRange] = []
    for kind, partition in entries:
        if ranges and ranges[-1].kind == kind and ranges[-1].end == partition:
            ranges[-1] = PartitionRange(kind, ranges[-1].first, partition + 1)
        else:
            ranges.append(PartitionRange(kind, partition, partition + 1))  # type: ignore[arg-type]
    return tuple(ranges)


def _open(manifest: Manifest, kind: RowKind, partition: int) -> Columns:
    parts = manifest.train if kind == "train" else manifest.validate
    if kind not in ("train", "validate") or not 0 <= partition < len(parts):
        raise SpecError(f"{kind!r} partition {partition}: there are {len(parts)}, counted from 0")
    rows, entry, number = parts[partition].rows, manifest, partition
    if manifest.stored is not None or (id(manifest) in SUPPLIES and not sees_entry(manifest)):
        entry, number = _fetch_entry(manifest, kind, partition), 0
        parts = entry.train if kind == "train" else entry.validate
    path = Path(entry.path)
    folder = path / folder_name(kind, number)
    try:
        with usable(path.parent):
            pinned = _shared_pin(path)
            if pinned is None:
                raise DataError(gone(entry))
            compare_part(folder, manifest, parts[number])
            masks = manifest.masks
            arrays = {name: info for name, info in manifest.inputs.items() if name not in masks.values()}
            inputs = _map_all(folder, "inputs", arrays, rows)
            targets = _map_all(folder, "targets", manifest.targets, rows)
            weights = _map_all(folder, "weights", {"": ArrayInfo((), "float32")} if manifest.weighted else {}, rows)
    except (FileNotFoundError, ValueError) as error:
        raise DataError(
            f"{kind} partition {partition} in {folder} is damaged: {error}; call prepare() on the Dataset again, which "
            f"makes it anew"
        ) from error
    return Columns(pack(inputs, "inputs"), pack(targets, "targets"), pack(weights, ""), rows, pinned, masks=masks)


def sees_entry(manifest: Manifest) -> bool:
    """Return whether this process sees the driver's entry. Another user's folder of that path may be closed to it."""
    with suppress(OSError):
        return manifest.stored is None and Path(manifest.path, FILE).exists()
    return False


def _fetch_entry(manifest: Manifest, kind: RowKind, partition: int) -> Manifest:
    """Return one partition that is elsewhere as an entry of this host's cache, pinned while the result lives."""
    key = f"{manifest.key}-{kind}-{partition:05d}"
    make = partial(bring if manifest.stored is None else fetch, manifest=manifest, kind=kind, partition=partition)

    def counted(directory: Path) -> Manifest:
        entry = make(directory)
        MAPPED[id(manifest)].fetched_bytes += entry.bytes
        return entry

    if manifest.stored is None:
        return find_or_make(_host_root(""), key, counted, CACHE_BYTES)
    return find_or_make(_host_root(manifest.path), key, counted, manifest.stored.limit)


def _host_root(preferred: str) -> Path:
    """Return the first of `preferred`, the user's cache, and a folder in the system's temporary directory that this
    process may write to: a container of a cluster often has no home.
    """
    for root in [Path(preferred), default_root()] if preferred else [default_root()]:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(root, os.W_OK | os.X_OK):
            return root
    folder = temporary_folder() / "data"
    folder.mkdir(exist_ok=True)
    return folder


def _map_all(folder: Path, role: str, infos: dict[str, ArrayInfo], rows: int) -> dict[str, Any]:
    return {
        name: map_npy(folder / file_name(role, number), rows, info.shape, np.dtype(info.dtype))
        for number, (name, info) in enumerate(infos.items())
    }
