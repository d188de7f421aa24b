"""What the queue of a feed holds: blocks, the streams that they belong to, and the items that `take` returns.

The partitions of an inference have a stream each: answers go back to the task that sent it. Nothing here has a lock:
the queue has one.
"""

from __future__ import annotations

import time
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


@dataclass(slots=True)
class Piece:
    """Rows of one block, from `start` to before `stop`."""

    block: Block
    start: int
    stop: int


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


class Requests:
    """Owner of the streams of one inference, in the order in which they came. Not for several threads at a time."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        """Streams that are not over yet; the program stays with the first one until it is."""
        self.connected: list[Stream] = []
        """Streams whose task is still connected."""
        self._progress_at = time.monotonic()
        """When the program last took or answered something, or had nothing to do."""
        self._answering = self._waiting = False
        """Whether the program's thread is sending an answer, or waiting for rows."""

    def open(self, reply_to: Any, partition: int, timeout: float | None) -> Stream:
        """Add a stream for an attempt that waits for answers, and return it."""
        stream = Stream(reply_to, partition, timeout=timeout)
        self.streams.append(stream)
        self.connected.append(stream)
        return stream

    def lose(self, stream: Stream) -> int:
        """The task of a stream is gone: return the bytes that this frees. Its rows do not count, unless the stream came
        to its end before."""
        if stream in self.connected:
            self.connected.remove(stream)
        if stream.state != "open":
            return 0
        stream.state = "lost"
        size = sum(len(block.body) for block in stream.blocks)
        stream.blocks.clear()
        return size

    @property
    def timeout(self) -> float | None:
        """The shortest time-out of the connected streams; None: no task is connected, or all wait for ever."""
        return min((stream.timeout for stream in self.connected if stream.timeout is not None), default=None)

    @property
    def stalled(self) -> float:
        """Seconds for which the program had rows to take or to answer, and did neither."""
        return time.monotonic() - self._progress_at if self._is_programs_turn() and not self._answering else 0.0

    def expect_block(self) -> None:
        """Record that a block is about to come. The time of a program that had nothing to do starts now."""
        if not self._is_programs_turn():
            self.record_progress()

    def record_progress(self) -> None:
        """Record that the program took or answered something."""
        self._progress_at = time.monotonic()

    def set_waiting(self, waiting: bool) -> None:
        """Record that the program's thread begins or ends waiting for rows."""
        self._waiting = waiting
        if not waiting:
            self.record_progress()

    def set_answering(self, answering: bool) -> None:
        """Record that the program's thread begins or ends sending an answer: a slow task is not the program's fault."""
        self._answering = answering
        if not answering:
            self.record_progress()

    def _is_programs_turn(self) -> bool:
        """Whether the next step is the program's: rows are here and it does not wait for any, or it has rows to answer
        and no more rows come."""
        if self._waiting:
            return any(stream.unanswered for stream in self.connected if stream.state == "over")
        return any(stream.unanswered or stream.blocks for stream in self.connected)
