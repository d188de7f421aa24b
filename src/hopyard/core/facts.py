"""What the journals of runs and of programs share: the base of their facts, two facts of both, text for numbers that
JSON lacks, and what tells a journal of one from a journal of the other."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import msgspec

from hopyard.text import escaped_tree

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that decoding may raise."""


class Fact(msgspec.Struct, frozen=True, tag=True, tag_field="type", kw_only=True, gc=False):
    """The base of all facts. `at`: when it happened, in seconds since the epoch of Unix, by the driver's clock; 0: an
    agent, which has another clock, leaves that to the driver."""

    at: float = 0.0


class Lost(Fact, frozen=True):
    """A slot is gone, with all that only it had. `fault`: "system": the unit that it worked on may have ended it, which
    counts against the unit; "memory": the system killed it because the memory of its host ran out; "data": its host
    cannot keep or read the rows; "store": it did not store a State in time. These two are no fault of the unit."""

    slot: int
    reason: str
    fault: Literal["system", "memory", "data", "store"] = "system"


class Tick(Fact, frozen=True):
    """Time passed: trials that waited until now go on. The slots whose deadline is over (`unit_timeout`,
    `durable_timeout`) are named by the `Lost` behind it."""


Line = TypeVar("Line")
"""A line of a journal."""


@dataclass(frozen=True, slots=True)
class Codec(Generic[Line]):
    """What a journal must know about the facts that it holds: those of a run or of a program.

    Attributes:
        format: the newest format that can be read.
        first: class of the first line, which names the journal's format.
        encode: a line as JSON, without a newline.
        decode: the reverse; raises JournalError.
        resume: how the user goes on from a journal; `{directory}` stands for its folder.
    """

    format: int
    first: type[Fact]
    encode: Callable[[Line], bytes]
    decode: Callable[[bytes], Line]
    resume: str


_encoder = msgspec.json.Encoder()


def as_json(fact: Any, finite: bool = True) -> bytes:
    """Return a fact as JSON. `finite`: whether all its numbers are finite; else the others become text."""
    if not finite:
        return _encoder.encode(nonfinite_as_text(msgspec.to_builtins(fact)))
    try:
        return _encoder.encode(fact)
    except UnicodeEncodeError:  # in the text of an error, or in the name of a directory
        return _encoder.encode(escaped_tree(msgspec.to_builtins(fact)))


_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def nonfinite_as_text(tree: Any) -> Any:
    """Return the tree with NaN and infinities as text."""
    if isinstance(tree, float) and not math.isfinite(tree):
        return "NaN" if math.isnan(tree) else "Infinity" if tree > 0 else "-Infinity"
    if isinstance(tree, dict):
        return {key: nonfinite_as_text(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [nonfinite_as_text(value) for value in tree]
    return tree


def nonfinite_from_text(tree: Any) -> Any:
    """The reverse of `nonfinite_as_text`, for metrics only: a config may hold such a text itself."""
    if isinstance(tree, str):
        return _NONFINITE.get(tree, tree)
    if isinstance(tree, dict):
        return {key: nonfinite_from_text(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [nonfinite_from_text(value) for value in tree]
    return tree
