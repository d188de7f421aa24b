"""Partitions that are in the driver's cache alone, for agents on hosts that do not share it: file by file, as they lie.

An agent says where files come from (`supply`); a partition that a unit needs and this host has not is then brought into
its cache (`bring`). The driver serves files of its own entry (`serve`).
"""

from __future__ import annotations

import mmap
import socket
import weakref
from collections.abc import Callable
from pathlib import Path

from hopyard import meter
from hopyard.data.manifest import Manifest, all_files, folder_name
from hopyard.errors import DataError
from hopyard.spec import RowKind

Get = Callable[[str], memoryview]
"""What `serve` understands → the bytes of a file. Raises FileNotFoundError where there is none."""
SUPPLIES: dict[int, Get] = {}
"""`id` of a Manifest → where files of its partitions come from."""


def supply(manifest: Manifest, get: Get) -> None:
    """Bring partitions of this manifest by `get` where this host has them not, for as long as the object lives."""
    SUPPLIES[id(manifest)] = get
    weakref.finalize(manifest, SUPPLIES.pop, id(manifest), None)


def bring(directory: Path, manifest: Manifest, kind: RowKind, partition: int) -> Manifest:
    """Write one partition into the empty `directory`, as the only one of its kind.

    Returns:
        Manifest: of this one partition; key and path are the caller's to fill.

    Raises:
        DataError: the driver has it no longer.
        ConnectionError: the driver does not answer.
    """
    get = SUPPLIES[id(manifest)]
    folder = directory / folder_name(kind, 0)
    folder.mkdir()
    for name in all_files(manifest.fields):
        try:
            data = get(f"{folder_name(kind, partition)}/{name}")
        except FileNotFoundError as error:
            raise DataError(
                f"host {socket.gethostname()} has no rows of {kind} partition {partition}, and the driver has them no "
                f"longer ({error}): call prepare() on the Dataset again there"
            ) from None
        (folder / name).write_bytes(data)
        meter.advance()
    return manifest.only(kind, (manifest.train if kind == "train" else manifest.validate)[partition])


def serve(manifest: Manifest, name: str) -> memoryview:
    """Return the bytes of a file of this process's own entry, mapped.

    Args:
        manifest: of the entry.
        name: folder and file, as `bring` asks for them.

    Raises:
        FileNotFoundError: there is no such file of a partition.
    """
    folder, _, file = name.partition("/")
    folders = {folder_name("train", n) for n in range(len(manifest.train))}
    folders |= {folder_name("validate", n) for n in range(len(manifest.validate))}
    if folder not in folders or file not in all_files(manifest.fields):
        raise FileNotFoundError(f"{name!r} is no file of a partition")
    with Path(manifest.path, folder, file).open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
