"""Sources of rows, each a stream of Arrow record batches with an identity. A new source is a module here that has a
`Source`, and a class method of `Dataset`.

A source never holds more than a few batches of what it streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from hopyard.data.manifest import SourceInfo

Piece = tuple[Any, str, int]
"""(record batch, name of its origin, number of its first row there)."""


class Source(Protocol):
    """A stream of record batches with an identity."""

    @property
    def volatile(self) -> bool:
        """Whether the rows may change while this process lives. If so, the identity is computed at each use, and a
        pickle reads them anew.
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
