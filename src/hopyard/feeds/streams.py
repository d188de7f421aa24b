"""What lies in the queues of a feed: blocks, the streams that they stand in, and what is found there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


@dataclass(slots=True, eq=False)
class Block:
    """Some rows of one partition, as they came."""

    kind: bytes
    rows: int
    body: Any
    """A writable array of uint8."""
    schema: Any
    """Schema of an Arrow block; else None."""
    stream: Stream
    partition: int
    decoded: dict[str, Any] = field(default_factory=dict)
    """What was made of the body already; owned by the Feed."""


@dataclass(slots=True, eq=False)
class Stream:
    """Blocks that are taken one after another."""

    reply_to: Any = None
    """In inference: where answers go."""
    partition: int = -1
    owed: int = 0
    """In inference: rows of batches that the program has and has not answered."""
    timeout: float | None = None
    """In inference: seconds that its rows may wait here while nothing moves; None: any."""
    blocks: deque[Block] = field(default_factory=deque)
    state: Literal["open", "over", "lost"] = "open"

    @property
    def is_request(self) -> bool:
        """Whether it is a partition of an inference; else the one that all partitions of a feed share."""
        return self.reply_to is not None


class QueueItem(NamedTuple):
    """What `take` found: a block, or why there is none.

    "block"; "pause": none within the time; "over": `stream` is at its end; "lost": `stream` broke off, its rows do not
    count; "end": the feed is at its end.
    """

    what: Literal["block", "pause", "over", "lost", "end"]
    block: Block | None = None
    stream: Stream | None = None
