"""Folders of rows as Dataset.spark leaves them, without Spark."""

from __future__ import annotations

from typing import Any

import fsspec
import msgspec

from hopyard.data.encoding.extremes import Extremes
from hopyard.data.encoding.finalize import FeatureFinalizer
from hopyard.data.manifest import FILE, Stored
from hopyard.data.partitions.builder import make_manifest

NAME = "spark-{:024x}"
"""Of the folder with some number."""
NAMED = "spark-{}-{:032x}"
"""Of the folder of rows to which the user gave a name."""


def spark_rows(place: str, number: int = 0, *, key: str = "", half: bool = False, name: str = "") -> str:
    """The URL of a new folder of rows at a place; `half`: of a driver that was killed before it wrote the manifest."""
    url = f"{place}/{NAMED.format(name, number) if name else NAME.format(number)}"
    files, root = fsspec.core.url_to_fs(url)
    files.makedirs(root, exist_ok=True)
    stored = Stored(url, f"{number:064x}")
    manifest: Any = make_manifest(FeatureFinalizer([], {}, {}), {}, Extremes(), {"train": [], "validate": []}, [])
    manifest = msgspec.structs.replace(manifest, key=key or f"{number:032x}", stored=stored)
    written = {f"{number:012x}-00003-{number:012x}.seg": b"rows"}
    if half:
        written[f"{number:012x}-{number:016x}.copies"] = b"numbers"
    else:
        written |= {stored.file: b"{}", FILE: msgspec.json.encode(manifest)}
    for name, data in written.items():
        files.pipe_file(f"{root}/{name}", data)
    return url
