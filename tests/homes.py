"""What tests of homes count: the rows in caches of hosts, and those that a run has moved, over the whole table."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import hopyard as hy
from hopyard.data.manifest import Manifest, folder_name


def stored(manifest: Manifest, hosts: Iterable[set[str]]) -> float:
    """Bytes of the partitions that hosts have, each given by the names of its partitions."""
    parts = {"train": manifest.train, "validate": manifest.validate}
    sizes = {folder_name(kind, n): part.bytes for kind, infos in parts.items() for n, part in enumerate(infos)}
    return sum(sizes[name] for names in hosts for name in names) / manifest.bytes


def moved(manifest: Manifest, directory: Path) -> float:
    """Bytes of rows that workers of a run have brought to their hosts, as its report says."""
    return sum(host["fetched_bytes"] for host in hy.load(directory).summary()["hosts"].values()) / manifest.bytes


def fetched(cache: Path, manifest: Manifest) -> set[str]:
    """The names of the partitions of this table that are entries of their own in a data cache."""
    paths = cache.glob(f"hopyard/data/{manifest.key}-*")
    return {path.name.removeprefix(f"{manifest.key}-") for path in paths}
