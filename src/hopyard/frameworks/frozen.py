"""The record of what is frozen in a model: a State has its digest in place of the tensors.

Frozen tensors stay where the recipe has built them. A State is loaded only into a model whose frozen tensors have the
same names, dtypes, shapes and bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from hopyard.errors import SpecError
from hopyard.ports.states import Leaf

KEY = "base"
"""The entry of a State with the digest; a State of a model without frozen tensors has none."""
PIECE = 1 << 18
"""Elements that are read at a time, so that tensors with other strides are never copied as a whole."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """The record of the frozen tensors of one model.

    Attributes:
        digests: name → BLAKE3 of dtype, shape and bytes.
        nbytes: bytes of all tensors.
    """

    digests: dict[str, str]
    nbytes: int

    @property
    def digest(self) -> str:
        """The BLAKE3 of all names and digests, in order of names; "" where nothing is frozen."""
        return blake3(json.dumps(self.digests, sort_keys=True).encode()).hexdigest() if self.digests else ""

    @property
    def entry(self) -> dict[str, str]:
        """The entry of a State that holds the digest; empty where nothing is frozen."""
        return {KEY: self.digest} if self.digests else {}

    def require(self, digest: str, remedy: str = "") -> None:
        """Raise SpecError where the State of a model with frozen tensors of this digest does not fit.

        Args:
            digest: "" where nothing was frozen.
            remedy: what else the user may do, for the message.
        """
        if digest != self.digest:
            own = f"{len(self.digests)} of {self.nbytes:,} bytes, digest {self.digest[:16]}" if self.digests else "none"
            saved = f"digest {digest[:16]}" if digest else "none"
            raise SpecError(
                f"the frozen parameters of the State ({saved}) are not those of the built model ({own}): the recipe "
                "must freeze the same and give them the same values wherever it is called. See whether each host has "
                f"the same file of weights{remedy}"
            )

    def changed(self, now: Frozen) -> list[str]:
        """Return the names of the tensors that have other bits now."""
        return [name for name, digest in self.digests.items() if now.digests[name] != digest]


def read(tensors: Iterable[tuple[str, NDArray[Any] | Leaf]]) -> Frozen:
    """Return the record of named tensors, each of which is read to its end before the next one is asked for."""
    digests, nbytes = {}, 0
    for name, tensor in tensors:
        array, dtype = (tensor.array, tensor.dtype) if isinstance(tensor, Leaf) else (tensor, str(tensor.dtype))
        hasher = blake3(f"{dtype} {array.shape} ".encode())
        flags, contiguous = ["external_loop", "buffered", "zerosize_ok"], [["readonly", "contig"]]
        pieces = np.nditer(array, flags, contiguous, order="C", buffersize=PIECE)  # type: ignore[call-overload]
        for piece in pieces:
            hasher.update(piece.view(np.uint8))
        digests[name] = hasher.hexdigest()
        nbytes += array.nbytes
    return Frozen(digests, nbytes)
