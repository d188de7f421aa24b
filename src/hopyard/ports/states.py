"""States, and the stores that keep them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hopyard.spec import Ref

if TYPE_CHECKING:
    from numpy.typing import NDArray  # processes of programs import no NumPy of ours

Tree = Any
"""A State as plain values: dicts, lists, tuples, strings, numbers, booleans, None, and arrays (NumPy or torch)."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An array of a State that NumPy does not have by itself.

    Attributes:
        array: the values; those of a dtype that NumPy lacks as uint16 or uint8 of the same shape.
        dtype: safetensors' name of the real dtype: "F32", "BF16", "F8_E4M3", …; also "C64", "C128".
        kind: the package of the array: "torch" is restored as a torch tensor; "ml_dtypes"; "numpy".
    """

    array: NDArray[Any]
    dtype: str
    kind: str = "numpy"


class Store(Protocol):
    """Stores States. Put-if-absent: what is stored under an address never changes."""

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync; do nothing where the same bytes are stored. Raises ResourceError when there is no room,
        leaving nothing behind, and StateConflict where other bytes are stored under this address."""
        ...

    def get(self, ref: Ref) -> bytearray | memoryview:
        """Return the bytes as stored, in memory that belongs to the caller. Raises FileNotFoundError."""
        ...

    def has(self, ref: Ref) -> bool:
        """Whether a State is stored under this address."""
        ...

    def delete(self, ref: Ref) -> None:
        """Deletes it; no error when it is not stored."""
        ...

    def refs(self) -> set[Ref]:
        """Return the addresses of all stored States."""
        ...
