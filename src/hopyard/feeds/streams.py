"""What the queue of a feed holds: blocks, the streams that they belong to, and the items that `take` returns."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(slots=True, eq=False)
class Block:
    """Some rows of one partition, as they were received."""

    kind: bytes
    rows: int
    body: Any
    """A writable array of uint8."""
    schema: Any
    """Schema of an Arrow block; else None."""
    stream: Stream
    partition: int
    decoded: dict[str, Any] = field(default_factory=dict)
    """What was decoded from the body already; owned by the Feed."""


@dataclass(slots=True, eq=False)
class Stream:
    """Blocks that are taken one after another."""

    reply_to: Any = None
    """In inference: the `AnswerStream` to the task."""
    partition: int = -1
    unanswered: int = 0
    """In inference: rows of batches that the program took and has not answered."""
    timeout: float | None = None
    """In inference: seconds that its rows may wait here without progress; None: no limit."""
    blocks: deque[Block] = field(default_factory=deque)
    state: Literal["open", "over", "lost"] = "open"

    @property
    def is_request(self) -> bool:
        """Whether this is the stream of one partition of an inference; else all partitions of a feed share it."""
        return self.reply_to is not None


class QueueItem(NamedTuple):
    """What `take` returns: a block, or why there is none.

    "block"; "pause": none came within the time; "over": `stream` is at its end; "lost": `stream` broke off, its
    rows do not count; "end": the feed is at its end.
    """

    kind: Literal["block", "pause", "over", "lost", "end"]
    block: Block | None = None
    stream: Stream | None = None
