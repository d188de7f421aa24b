"""Random numbers that are keyed hashes (BLAKE2b) of what they are for: there is no generator to share or reseed."""

from __future__ import annotations

import hashlib


def keyed(seed: int | str, purpose: str, *parts: int | str) -> int:
    """Return a 63-bit number that depends on every argument and on nothing else. Its encoding must never change, as
    results would change with it."""
    text = "/".join([str(seed), purpose, *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=b"hopyard").digest(), "big") >> 1


def fraction(seed: int | str, purpose: str, *parts: int | str) -> float:
    """Return a number in [0, 1), 53 bits of `keyed`."""
    return (keyed(seed, purpose, *parts) >> 10) / (1 << 53)
