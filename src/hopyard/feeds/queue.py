"""The receiving queue of one feed: blocks, bounded in bytes, and a record of those accepted, so that rows come once.

Threads that receive call `claim`, `reserve`, `put`, `end_partition`, `abandon`; the program's thread calls `take`.
Blocks of all tasks share one stream. In inference each partition has a stream of its own (`Requests`), and the
program stays with one until it is over: its answers go back to that task. `pacing.py` says how many batches may be
given out where workers end together. Knows no sockets, and not what a block holds.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from hopyard.core.programs.exactly_once import DeliveryLedger
from hopyard.core.programs.feed_progress import Count, Uneven
from hopyard.errors import DataError, FeedError, HopyardError
from hopyard.feeds.pacing import Arrived, Pacing
from hopyard.feeds.spill import Spill, Spilled, buffer
from hopyard.feeds.streams import Block, QueueItem, Requests, Stream

QUEUE_BYTES = 64 << 20
"""Bytes of one feed that may wait in a process; a task that sends more has to wait."""


class FeedQueue:
    """Owner of one feed's blocks in one process.

    Args:
        name: of the feed.
        folder: where blocks beyond `limit` are stored, of feeds that must not hold their senders up (see `reserve`).
        limit: bytes that may wait in memory.
        on_count: called with the name and how many batches came, for feeds whose workers end together.
    """

    def __init__(
        self, name: str, folder: Path, limit: int = QUEUE_BYTES, on_count: Callable[[str, Count], None] | None = None
    ) -> None:
        self.name = name
        self._folder = folder
        self._spill = Spill(folder)
        self._limit = limit
        self._on_count = on_count
        self._changed = threading.Condition()
        self._report_lock = threading.Lock()
        self._shared = Stream()
        self._requests = Requests()
        self._pacing = Pacing()
        self._bytes = 0
        """Bytes in memory, and those promised by `reserve`."""
        self._ledger = DeliveryLedger(name)
        self._error: HopyardError | None = None
        self.unwanted = False
        """Whether the program takes no more rows of this feed."""
        self._ended = False
        self.received = 0
        """Rows that were received, each counted once."""
        self.taken = 0
        """Rows that `take` returned."""

    # The receiving side

    def claim(self, epoch: int, partition: int, worker: int) -> int | None:
        """Return the worker that gets a partition: the one that the first attempt named. None: the attempt is too late.

        Other workers may want rows though this process does not.
        """
        with self._changed:
            if not self._advance_to(epoch):
                return None
            return self._ledger.claim(partition, worker)

    def open(self, epoch: int, partition: int, reply_to: Any = None, timeout: float | None = None) -> Stream | None:
        """Return a stream for an attempt, its own where it waits for answers; None: its rows are not wanted.

        Raises:
            FeedError: the feed has failed.
        """
        with self._changed:
            self._check()
            if not self._current(epoch):
                return None
            if reply_to is None:
                return self._shared
            self._pacing.uneven = self._pacing.uneven or "allow"
            self._changed.notify_all()
            return self._requests.open(reply_to, partition, timeout)

    def reserve(self, stream: Stream, size: int) -> Any | None:
        """Wait for room and return an array of `size` bytes; None when the rows are not wanted any more.

        A feed whose workers end together never waits: a task that did could keep from its slot the very task that the
        slowest worker waits for. `put` then writes blocks beyond the limit to a file.

        Raises:
            FeedError: the feed has failed.
        """
        with self._changed:
            while True:
                self._check()
                if self.unwanted or self._ended:
                    return None
                full = self._bytes and self._bytes + size > self._limit
                if not full or (stream.is_request and not stream.blocks):  # each request may have one block
                    break
                if self._may_spill(stream):
                    break
                self._changed.wait()
            self._bytes += size
        return buffer(size)

    def release(self, size: int) -> None:
        """Give back room that `reserve` granted and that was not used."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def is_duplicate(self, epoch: int, partition: int, number: int, digest: bytes) -> bool:
        """Whether block `number` of a partition was accepted from another attempt.

        Raises:
            FeedError: the feed has failed, or the block differs from the one that was accepted.
        """
        with self._changed:
            self._check()
            return self._current(epoch) and self._is_duplicate(partition, number, digest)

    def put(self, block: Block, epoch: int, number: int, digest: bytes) -> bool:
        """Add a block for which `reserve` gave room. False: it came from another attempt meanwhile, or is not wanted.

        Raises:
            FeedError: the feed has failed, as it does where the block differs from the one that was accepted, or the
                disk has no room for it.
        """
        size = len(block.body)
        if self._overfull(block):
            try:
                block.body = self._spill.write(block.body)
            except OSError as error:
                self.release(size)
                if self.unwanted:
                    return False
                raise self._fail_disk(f"{size:,} bytes could not be written to", error) from error
        spilled = isinstance(block.body, Spilled)
        with self._changed:
            accepted = False
            try:
                accepted = self._accept(block, epoch, number, digest)
            finally:
                if not accepted and isinstance(block.body, Spilled):
                    self._spill.free(block.body)
                if spilled or not accepted:
                    self._bytes -= size
                    self._changed.notify_all()
            if not accepted:
                return False
            self._requests.expect_block()
            block.stream.blocks.append(block)
            self.received += block.rows
            self._changed.notify_all()
        self._report()
        return True

    def end_partition(self, stream: Stream, epoch: int, partition: int, total: int) -> None:
        """An attempt came to the end of its partition, after `total` blocks.

        Raises:
            FeedError: the feed has failed, or another attempt had more blocks.
        """
        with self._changed:
            self._check()
            if stream.is_request:
                stream.state = "over"
            elif self._current(epoch):
                with self._failing_feed():
                    self._ledger.end_partition(partition, total)
            self._changed.notify_all()

    def abandon(self, stream: Stream) -> None:
        """An attempt broke off. What was accepted from it counts, except in inference."""
        with self._changed:
            if stream.is_request:
                self._bytes -= self._requests.lose(stream)
            self._changed.notify_all()

    # Called for the driver

    @property
    def uneven(self) -> Uneven | None:
        """The rule by which the feed ends; None: it is not known yet."""
        return self._pacing.uneven

    @uneven.setter
    def uneven(self, rule: Uneven) -> None:
        with self._changed:
            self._pacing.uneven = rule
            self._changed.notify_all()
        self._report()

    def end(self) -> None:
        """No more partitions will come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._report()

    def fail(self, error: HopyardError) -> None:
        """Raise `error` in the program, and in all tasks that send. The first one counts."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._drop()
            streams = list(self._requests.connected)
        for stream in streams:
            stream.reply_to.leave(failed=str(error))

    def allow(self, allowed: Count) -> None:
        """Set how many batches may be given out; `allowed.ended`: no more will ever be allowed."""
        with self._changed:
            self._pacing.allowed = allowed
            self._changed.notify_all()

    # The program's side

    @property
    def waiting(self) -> int:
        """Rows that the program has not taken yet."""
        with self._changed:
            return 0 if self.unwanted else self.received - self.taken

    @property
    def finished(self) -> bool:
        """Whether all rows were taken and no more will come, or the program takes no more."""
        with self._changed:
            streams = self._requests.streams
            queued = any(stream.blocks or stream.state == "open" for stream in streams) or self._shared.blocks
            return self.unwanted or (self._ended and not queued)

    def terminate(self) -> None:
        """Take no more rows: what is queued is dropped, and so is all that still comes."""
        with self._changed:
            self.unwanted = True
            self._drop()
            streams = list(self._requests.connected)
        for stream in streams:
            stream.reply_to.leave(unwanted=True)
        self._report()  # workers that end together do not wait for this one

    def take(self, timeout: float | None = None) -> QueueItem:
        """Return the next block, waiting up to `timeout` seconds (None: as long as it takes).

        Raises:
            FeedError: the feed has failed, as it does where a block cannot be read back from the disk.
        """
        item = self._wait_for_item(timeout)
        if item.block is not None and isinstance(item.block.body, Spilled):  # read while others may put
            size = item.block.body.size
            try:
                item.block.body = self._spill.read(item.block.body)
            except OSError as error:
                raise self._fail_disk(f"{size:,} bytes could not be read back from", error) from error
        return item

    def _wait_for_item(self, timeout: float | None) -> QueueItem:
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                self._check()
                if self.unwanted:
                    return QueueItem("end")
                item = self._next()
                if item is not None:
                    return item
                remaining = None if deadline is None else deadline - time.monotonic()
                if remaining is not None and remaining <= 0:
                    return QueueItem("pause")
                self._requests.set_waiting(True)
                try:
                    self._changed.wait(remaining)
                finally:
                    self._requests.set_waiting(False)

    @contextlib.contextmanager
    def answering(self, stream: Stream, rows: int) -> Iterator[None]:
        """Surrounds the sending of answers to the next rows of a stream."""
        with self._changed:
            self._requests.set_answering(True)
        try:
            yield
        finally:
            with self._changed:
                stream.unanswered -= rows
                self._requests.set_answering(False)

    def await_stall(self) -> float | None:
        """Wait until the program has rows of an inference to take or to answer and did neither for too long; return the
        time-out in seconds. None: the program takes no more rows, or the feed has failed."""
        with self._changed:
            while not (self.unwanted or self._error):
                timeout, stalled = self._requests.timeout, self._requests.stalled
                if timeout is not None and stalled > timeout:
                    return timeout
                self._changed.wait(None if timeout is None else timeout - stalled)
            return None

    def rule(self) -> Uneven:
        """Return the rule by which this feed ends; waits until it is known.

        Raises:
            FeedError: the feed has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.uneven or self._error or self.unwanted or self._ended)
            self._check()
            return self.uneven or "allow"

    def turn(self, batch: int, size: int) -> Literal["give", "again", "end"]:
        """Wait until it is known whether batch number `batch`, of `size` rows, may be given out, in a feed whose
        workers end together; see `Pacing.turn`.

        Raises:
            FeedError: the feed has failed.
        """
        with self._changed:
            self._pacing.ask(batch, size)
        self._report()

        def decided() -> Literal["give", "again", "end"] | None:
            return "end" if self._error is not None else self._pacing.turn(batch, self._arrived)

        with self._changed:
            turn = self._changed.wait_for(decided)
            self._check()
            assert turn is not None
            if turn != "end":
                self._pacing.give(batch)
            return turn

    # Inside

    def _current(self, epoch: int) -> bool:
        """Whether rows of an epoch are still wanted."""
        return self._advance_to(epoch) and not self.unwanted

    def _advance_to(self, epoch: int) -> bool:
        return self._ledger.advance_to(epoch) and not self._ended

    def _may_spill(self, stream: Stream) -> bool:
        """Whether blocks of a stream wait in a file rather than hold up their sender."""
        return self._pacing.together and not stream.is_request

    def _overfull(self, block: Block) -> bool:
        """Whether a block for which `reserve` gave room is beyond the limit; a block that is alone never is."""
        with self._changed:
            return self._may_spill(block.stream) and self._bytes > max(self._limit, len(block.body))

    def _accept(self, block: Block, epoch: int, number: int, digest: bytes) -> bool:
        """Whether a block is wanted and new; if so, record it in the ledger."""
        self._check()
        if block.stream.is_request:
            return not (self.unwanted or block.stream.state == "lost")
        if not self._current(epoch) or self._is_duplicate(block.partition, number, digest):
            return False
        self._ledger.record(block.partition, digest)
        return True

    def _fail_disk(self, problem: str, error: OSError) -> FeedError:
        """Let the feed fail after an error of its file, and return the failure."""
        failure = FeedError(
            f"feed {self.name!r}: {problem} {self._folder} on {socket.gethostname()} ({error}), where rows beyond "
            f"{self._limit:,} bytes wait by uneven={self.uneven!r} (now {self._spill.bytes:,} bytes): free space "
            'there, or set TMPDIR to a folder on a larger disk, or feed with uneven="allow", which holds senders up'
        )
        self.fail(failure)
        return failure

    def _is_duplicate(self, partition: int, number: int, digest: bytes) -> bool:
        with self._failing_feed():
            return self._ledger.is_duplicate(partition, number, digest)

    @contextlib.contextmanager
    def _failing_feed(self) -> Iterator[None]:
        """An error of the ledger fails the feed."""
        try:
            yield
        except DataError as error:
            self._error = self._error or error
            self._drop()
            raise

    def _next(self) -> QueueItem | None:
        if self._shared.blocks:
            return self._pop(self._shared)
        streams = self._requests.streams
        if not streams:
            return QueueItem("end") if self._ended else None
        if streams[0].blocks:
            return self._pop(streams[0])
        if streams[0].state == "open":
            return None
        stream = streams.pop(0)
        return QueueItem("over" if stream.state == "over" else "lost", None, stream)

    def _pop(self, stream: Stream) -> QueueItem:
        block = stream.blocks.popleft()
        if not isinstance(block.body, Spilled):
            self._bytes -= len(block.body)
        self.taken += block.rows
        self._requests.record_progress()
        self._changed.notify_all()
        return QueueItem("block", block, stream)

    def _drop(self) -> None:
        """Drop all blocks that wait."""
        for stream in [self._shared, *self._requests.streams]:
            for block in stream.blocks:
                if isinstance(block.body, Spilled):
                    self._spill.free(block.body)
            stream.blocks.clear()
        self._requests.streams.clear()
        self._bytes = 0
        self._changed.notify_all()

    def _report(self) -> None:
        """Report how many batches are here, where it matters and has changed."""
        if self._on_count is None or not self._pacing.together:
            return
        with self._report_lock:  # its own: counts go out in order, and nobody waits for the network to take a block
            with self._changed:
                count = self._pacing.news(self._arrived)
            if count is not None:
                self._on_count(self.name, count)

    @property
    def _arrived(self) -> Arrived:
        return Arrived(self.received, self._ended, self.unwanted)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
