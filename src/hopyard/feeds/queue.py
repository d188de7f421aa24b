"""One feed as it arrives: a queue of blocks, bounded in bytes, and books of what was taken, so that rows come once.

Threads that receive call `claim`, `reserve`, `put`, `over`, `lost`; the program's thread calls `take`. Blocks that any
task may add to stand in one stream. In inference each partition has a stream of its own (`requests.py`), and the
program stays with one until it is over: its answers go back to that task. How many batches may be given out where
workers end together, `pacing.py` says. Knows no sockets, and not what a block holds.
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
from hopyard.core.programs.uneven import Count, Uneven
from hopyard.errors import DataError, HopyardError
from hopyard.feeds.pacing import Arrived, Pacing
from hopyard.feeds.requests import Requests
from hopyard.feeds.spill import Spill, Spilled, buffer
from hopyard.feeds.streams import Block, QueueItem, Stream

QUEUE_BYTES = 64 << 20
"""Bytes of one feed that may wait in a process; the tasks that send more wait with them."""


class FeedQueue:
    """Owner of one feed's blocks in one process.

    Args:
        name: of the feed.
        folder: for blocks beyond `limit` of feeds that must not hold their senders up (see `reserve`).
        limit: bytes that may wait in memory.
        on_count: told the name and how many batches came, for feeds whose workers end together.
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
        self._telling = threading.Lock()
        self._shared = Stream()
        self._requests = Requests()
        self._pacing = Pacing()
        self._bytes = 0
        """In memory, and promised by `reserve`."""
        self._ledger = DeliveryLedger(name)
        self._error: HopyardError | None = None
        self._unwanted = False
        self._ended = False
        self.received = 0
        """Rows that came, each once."""
        self.taken = 0
        """Rows that `take` gave."""

    # The receiving side

    def claim(self, epoch: int, partition: int, worker: int) -> int | None:
        """Which worker gets a partition: that which the first attempt named. None: the attempt comes too late.

        Others may want rows though this process does not.
        """
        with self._changed:
            if not self._begun(epoch):
                return None
            return self._ledger.claim(partition, worker)

    def open(self, epoch: int, partition: int, reply_to: Any = None, timeout: float | None = None) -> Stream | None:
        """A stream for an attempt, its own where it waits for answers; None: it is not wanted.

        Raises:
            HopyardError: the feed has failed.
        """
        with self._changed:
            self._check()
            if not self._current(epoch):
                return None
            if reply_to is None:
                return self._shared
            self._pacing.uneven = self._pacing.uneven or "join"
            self._changed.notify_all()
            return self._requests.open(reply_to, partition, timeout)

    def reserve(self, stream: Stream, size: int) -> Any | None:
        """Wait for room, and give an array of `size` bytes; None when the rows are not wanted any more.

        A feed whose workers end together never waits: a task that did could keep from its slot the very task that the
        slowest worker waits for. What is beyond the limit `put` then lays into a file.

        Raises:
            HopyardError: the feed has failed.
        """
        with self._changed:
            while True:
                self._check()
                if self._unwanted or self._ended:
                    return None
                full = self._bytes and self._bytes + size > self._limit
                if not full or (stream.is_request and not stream.blocks):  # each inference may have one block
                    break
                if self._may_file(stream):
                    break
                self._changed.wait()
            self._bytes += size
        return buffer(size)

    def release(self, size: int) -> None:
        """Room that was not used after all."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def seen(self, epoch: int, partition: int, number: int, digest: bytes) -> bool:
        """Whether block `number` of a partition was taken from another attempt.

        Raises:
            HopyardError: the feed has failed, or the block differs from the one that was taken.
        """
        with self._changed:
            self._check()
            return self._current(epoch) and self._same(partition, number, digest)

    def put(self, block: Block, epoch: int, number: int, digest: bytes) -> bool:
        """Take a block for which `reserve` gave room. False: it came from another attempt meanwhile, or is not wanted.

        Raises:
            HopyardError: the feed has failed, as it does where the block differs from the one that was taken, or the
                disk has no room for it.
        """
        size = len(block.body)
        if self._overfull(block):
            try:
                block.body = self._spill.write(block.body)
            except OSError as error:
                self.release(size)
                if self._unwanted:
                    return False
                raise self._disk_failed(f"{size:,} bytes could not be written to", error) from error
        spilled = isinstance(block.body, Spilled)
        with self._changed:
            taken = False
            try:
                taken = self._takes(block, epoch, number, digest)
            finally:
                if not taken and isinstance(block.body, Spilled):
                    self._spill.free(block.body)
                if spilled or not taken:
                    self._bytes -= size
                    self._changed.notify_all()
            if not taken:
                return False
            self._requests.comes()
            block.stream.blocks.append(block)
            self.received += block.rows
            self._changed.notify_all()
        self._report()
        return True

    def over(self, stream: Stream, epoch: int, partition: int, total: int) -> None:
        """An attempt came to the end of its partition, after `total` blocks.

        Raises:
            HopyardError: the feed has failed, or another attempt had more blocks.
        """
        with self._changed:
            self._check()
            if stream.is_request:
                stream.state = "over"
            elif self._current(epoch):
                with self._failing():
                    self._ledger.over(partition, total)
            self._changed.notify_all()

    def lost(self, stream: Stream) -> None:
        """An attempt broke off. What was taken of it counts, except in inference."""
        with self._changed:
            if stream.is_request:
                self._bytes -= self._requests.lose(stream)
            self._changed.notify_all()

    # What the driver says

    @property
    def uneven(self) -> Uneven | None:
        """The rule by which the feed ends; None: not known yet."""
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
            asking = list(self._requests.asking)
        for stream in asking:
            stream.reply_to.leave(failed=str(error))

    def allow(self, allowed: Count) -> None:
        """So many batches may be given out; `allowed.ended`: and no more ever."""
        with self._changed:
            self._pacing.allowed = allowed
            self._changed.notify_all()

    # The program's side

    @property
    def unwanted(self) -> bool:
        """Whether the program is through with this feed."""
        return self._unwanted

    @property
    def waiting(self) -> int:
        """Rows that the program has not taken yet."""
        with self._changed:
            return 0 if self._unwanted else self.received - self.taken

    @property
    def finished(self) -> bool:
        """Whether nothing will come that is not here, nor is anything here: the end was said and all was taken."""
        with self._changed:
            streams = self._requests.streams
            left = any(stream.blocks or stream.state == "open" for stream in streams) or self._shared.blocks
            return self._unwanted or (self._ended and not left)

    def terminate(self) -> None:
        """Take no more: what is queued goes away, and all that still comes."""
        with self._changed:
            self._unwanted = True
            self._drop()
            asking = list(self._requests.asking)
        for stream in asking:
            stream.reply_to.leave(unwanted=True)
        self._report()  # workers that end together do not wait for this one

    def take(self, wait: float | None = None) -> QueueItem:
        """The next block, waiting up to `wait` seconds (None: as long as it takes).

        Raises:
            HopyardError: the feed has failed, as it does where a block cannot be read back from the disk.
        """
        item = self._awaited(wait)
        if item.block is not None and isinstance(item.block.body, Spilled):  # read while others may put
            size = item.block.body.size
            try:
                item.block.body = self._spill.read(item.block.body)
            except OSError as error:
                raise self._disk_failed(f"{size:,} bytes could not be read back from", error) from error
        return item

    def _awaited(self, wait: float | None) -> QueueItem:
        until = None if wait is None else time.monotonic() + wait
        with self._changed:
            while True:
                self._check()
                if self._unwanted:
                    return QueueItem("end")
                item = self._next()
                if item is not None:
                    return item
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    return QueueItem("pause")
                self._requests.waits(True)
                try:
                    self._changed.wait(left)
                finally:
                    self._requests.waits(False)

    @contextlib.contextmanager
    def answering(self, stream: Stream, rows: int) -> Iterator[None]:
        """While answers to the next rows of a stream go."""
        with self._changed:
            self._requests.answers(True)
        try:
            yield
        finally:
            with self._changed:
                stream.owed -= rows
                self._requests.answers(False)

    def await_stall(self) -> float | None:
        """Wait until the program has rows of an inference to take or to answer and did neither for too long; for how
        many seconds it may. None: it takes no more, or the feed has failed."""
        with self._changed:
            while not (self._unwanted or self._error):
                timeout, stalled = self._requests.timeout, self._requests.stalled
                if timeout is not None and stalled > timeout:
                    return timeout
                self._changed.wait(None if timeout is None else timeout - stalled)
            return None

    def rule(self) -> Uneven:
        """How this feed ends; waits until it is known.

        Raises:
            HopyardError: the feed has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.uneven or self._error or self._unwanted or self._ended)
            self._check()
            return self.uneven or "join"

    def turn(self, batch: int, size: int) -> Literal["give", "again", "end"]:
        """Wait until it is known whether batch number `batch`, of `size` rows, may be given out, in a feed whose
        workers end together; see `Pacing.turn`.

        Raises:
            HopyardError: the feed has failed.
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
        """Whether rows of an epoch are wanted."""
        return self._begun(epoch) and not self._unwanted

    def _begun(self, epoch: int) -> bool:
        return self._ledger.begun(epoch) and not self._ended

    def _may_file(self, stream: Stream) -> bool:
        """Whether blocks of a stream wait in a file rather than hold their sender up."""
        return self._pacing.together and not stream.is_request

    def _overfull(self, block: Block) -> bool:
        """Whether a block for which `reserve` gave room is beyond the limit; one alone never is."""
        with self._changed:
            return self._may_file(block.stream) and self._bytes > max(self._limit, len(block.body))

    def _takes(self, block: Block, epoch: int, number: int, digest: bytes) -> bool:
        """Whether a block is wanted, and new; then it is in the books."""
        self._check()
        if block.stream.is_request:
            return not (self._unwanted or block.stream.state == "lost")
        if not self._current(epoch) or self._same(block.partition, number, digest):
            return False
        self._ledger.take(block.partition, digest)
        return True

    def _disk_failed(self, what: str, error: OSError) -> HopyardError:
        """The failure of the feed that an error of its file is."""
        failure = HopyardError(
            f"feed {self.name!r}: {what} {self._folder} on {socket.gethostname()} ({error}), where rows beyond "
            f"{self._limit:,} bytes wait by uneven={self.uneven!r} (now {self._spill.bytes:,} bytes): free space "
            'there, or set TMPDIR to a folder on a larger disk, or feed with uneven="join", which holds senders up'
        )
        self.fail(failure)
        return failure

    def _same(self, partition: int, number: int, digest: bytes) -> bool:
        with self._failing():
            return self._ledger.seen(partition, number, digest)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        """An error of the books is the feed's."""
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
        self._requests.moves()
        self._changed.notify_all()
        return QueueItem("block", block, stream)

    def _drop(self) -> None:
        """Let go of all that waits."""
        for stream in [self._shared, *self._requests.streams]:
            for block in stream.blocks:
                if isinstance(block.body, Spilled):
                    self._spill.free(block.body)
            stream.blocks.clear()
        self._requests.streams.clear()
        self._bytes = 0
        self._changed.notify_all()

    def _report(self) -> None:
        """Tell how many batches are here, where it matters and has changed."""
        if self._on_count is None or not self._pacing.together:
            return
        with self._telling:  # of its own: counts go out in order, and nobody waits for the network to take a block
            with self._changed:
                count = self._pacing.news(self._arrived)
            if count is not None:
                self._on_count(self.name, count)

    @property
    def _arrived(self) -> Arrived:
        return Arrived(self.received, self._ended, self._unwanted)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
