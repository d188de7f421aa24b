"""What a source of rows is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from hopyard.data.manifest import Manifest, SourceInfo

ROWS = 65_536
"""Most rows of a batch."""
BYTES = 8 << 20
"""About the most bytes of a batch: a few of them fit the last-level cache."""

Piece = tuple[Any, str, int]
"""(record batch, name of where it is from, number of its first row there)."""


class Source(Protocol):
    """A stream of record batches with an identity."""

    @property
    def volatile(self) -> bool:
        """Whether its rows may change while this process lives: then its identity is asked for each time, and its
        pickle gives the same rows.
        """
        ...

    def identity(self) -> str | None:
        """Equal identities, equal rows. None: known only after all rows were read."""
        ...

    def pieces(self, names: list[str] | None, dictionaries: list[str]) -> Iterator[Piece]:
        """All rows in order. `names`: the columns wanted, where they are there; None: all. `dictionaries`: best given
        as such.
        """
        ...

    def provenance(self) -> list[SourceInfo]:
        """Files and row groups with their rows; after `pieces` was exhausted."""
        ...

    def detached(self, identity: str | None) -> Source:
        """What goes into a pickle."""
        ...


@runtime_checkable
class SupportsPrepare(Protocol):
    """A source that has, or writes, partitions itself, in a folder of its own."""

    @property
    def url(self) -> str:
        """The path or URL of the folder."""
        ...

    def prepare(self, limit: int, cache: str = "") -> Manifest:
        """Its manifest, for this process.

        Args:
            limit: bytes that a host's cache may take.
            cache: directory for the partitions that a host brings; empty: the cache of the user there.
        """
        ...
