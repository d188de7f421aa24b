"""The protocol of a source of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from hopyard.data.manifest import Manifest, SourceInfo

ROWS = 65_536
"""Most rows of a batch."""
BYTES = 8 << 20
"""About the most bytes of a batch of few columns: a few of them fit the last-level cache."""

Piece = tuple[Any, str, int]
"""(record batch, name of its origin, number of its first row there)."""


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
        """Yield all rows in order. `names`: the columns to read, if they exist; None: all. `dictionaries`: columns
        that are best read as Arrow dictionaries.
        """
        ...

    def provenance(self) -> list[SourceInfo]:
        """Return files and row groups with their rows, after `pieces` was exhausted."""
        ...

    def detached(self, identity: str | None) -> Source:
        """Return the source that goes into a pickle."""
        ...


@runtime_checkable
class SupportsPrepare(Protocol):
    """A source that has, or writes, partitions itself, in a folder of its own."""

    @property
    def url(self) -> str:
        """The path or URL of the folder."""
        ...

    def prepare(self, limit: int, cache: str = "") -> Manifest:
        """Return the manifest, for this process.

        Args:
            limit: bytes that a host's cache may take.
            cache: directory for the partitions that a host fetches; empty: the cache of the user there.
        """
        ...
