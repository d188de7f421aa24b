"""The partitions of an inference that wait in one process, each with its own stream: answers go back to the task that
sent it. Knows no lock: the feed's queue has one."""

from __future__ import annotations

import time
from typing import Any

from hopyard.feeds.streams import Stream


class Requests:
    """Owner of the streams of one inference, in the order in which they came. Not for several threads at a time."""

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        """Not over yet; the program stays with the first one until it is."""
        self.asking: list[Stream] = []
        """Streams whose task is still there."""
        self._moved = time.monotonic()
        """When the program took or answered something, or had nothing to do."""
        self._answering = self._waiting = False
        """Whether its thread gives an answer away, or waits for rows."""

    def open(self, reply_to: Any, partition: int, timeout: float | None) -> Stream:
        """A stream for an attempt that waits for answers."""
        stream = Stream(reply_to, partition, timeout=timeout)
        self.streams.append(stream)
        self.asking.append(stream)
        return stream

    def lose(self, stream: Stream) -> int:
        """The task of a stream is gone; gives the bytes that are free now. Its rows do not count, unless it came to its
        end before."""
        if stream in self.asking:
            self.asking.remove(stream)
        if stream.state != "open":
            return 0
        stream.state = "lost"
        size = sum(len(block.body) for block in stream.blocks)
        stream.blocks.clear()
        return size

    @property
    def timeout(self) -> float | None:
        """The shortest of those that ask; None: nobody asks, or all wait for ever."""
        return min((stream.timeout for stream in self.asking if stream.timeout is not None), default=None)

    @property
    def stalled(self) -> float:
        """Seconds for which the program had rows to take or to answer, and did neither."""
        return time.monotonic() - self._moved if self._at_work() and not self._answering else 0.0

    def comes(self) -> None:
        """A block is about to come. A program that had nothing to do has its time from now on."""
        if not self._at_work():
            self.moves()

    def moves(self) -> None:
        """The program took or answered something."""
        self._moved = time.monotonic()

    def waits(self, waiting: bool) -> None:
        """The program's thread begins, or ends, to wait for rows."""
        self._waiting = waiting
        if not waiting:
            self.moves()

    def answers(self, answering: bool) -> None:
        """The program's thread begins, or ends, to give an answer away: a slow task is not the program's fault."""
        self._answering = answering
        if not answering:
            self.moves()

    def _at_work(self) -> bool:
        """Whether the next step is the program's: rows are here and it does not wait for any, or it has rows to answer
        of which no more come."""
        if self._waiting:
            return any(stream.owed for stream in self.asking if stream.state == "over")
        return any(stream.owed or stream.blocks for stream in self.asking)
