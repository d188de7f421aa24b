"""What the journals of runs and of programs share: the base of their facts, two facts of both, and words for numbers
that JSON lacks."""

from __future__ import annotations

import math
from typing import Any, Literal

import msgspec

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding of anything may raise."""


class Fact(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True, gc=False):
    """What every fact has: when it happened, in seconds since the epoch of Unix."""

    at: float


class Lost(Fact, frozen=True):
    """A slot is gone, and what only it held. `fault`: "system": the unit that it worked on may have ended it, which
    counts against the unit; "memory": the system killed it because the memory of its host ran out; "data": its host
    cannot keep or read the rows; "store": it did not store a State in time. These two are no fault of the unit."""

    slot: int
    reason: str
    fault: Literal["system", "memory", "data", "store"] = "system"


class Tick(Fact, frozen=True):
    """Time passed: trials that waited until now go on. The slots whose deadline is over (`unit_timeout`,
    `durable_timeout`) are named by the `Lost` behind it."""


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def worded(tree: Any) -> Any:
    """The tree with NaN and infinities as words."""
    if isinstance(tree, float) and not math.isfinite(tree):
        return "NaN" if math.isnan(tree) else "Infinity" if tree > 0 else "-Infinity"
    if isinstance(tree, dict):
        return {key: worded(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [worded(value) for value in tree]
    return tree


def reworded(tree: Any) -> Any:
    """The reverse of `worded`, of metrics alone: a config may hold such a word itself."""
    if isinstance(tree, str):
        return _WORDS.get(tree, tree)
    if isinstance(tree, dict):
        return {key: reworded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [reworded(value) for value in tree]
    return tree
