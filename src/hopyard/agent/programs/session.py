"""What the parts of a task's process share: the task, its pipe to the agent, its endpoint for rows."""

from __future__ import annotations

import contextlib
import logging  # noqa: F401 - its lock is to be taken after ours as a process is forked, so its handler comes first
import os
import threading
import traceback
from pathlib import Path
from typing import Any

from hopyard.agent.programs.channel import Pipe
from hopyard.core.programs.events import Begin
from hopyard.core.programs.feed_progress import Count
from hopyard.core.programs.messages import (
    BatchesReady,
    FeedAllowed,
    FeedEnded,
    FeedEndpoint,
    FeedFailed,
    FeedMessage,
    FeedOpened,
    FeedQuery,
    HostTasks,
    RowsTaken,
    StopRequested,
)
from hopyard.errors import FeedError


class TaskSession:
    """Owner of the task's description, its pipe to the agent and its endpoint for rows."""

    def __init__(self, pipe: Pipe, host: HostTasks, begin: Begin, folder: Path) -> None:
        self.folder = folder
        self.pipe, self.host, self.begin = pipe, host, begin
        self.slot, self.incarnation = begin.task.slot, begin.incarnation
        self.pid = os.getpid()
        self.stopping = threading.Event()
        self._lock = threading.RLock()
        # A process that `main` forks while another thread imports would wait for that import's lock for ever.
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )
        self._feed_server: Any = None

    def listen(self) -> None:
        """Receive the agent's messages, in a thread of its own. When the agent ends, so does this process."""
        while (message := self.pipe.receive()) is not None:
            if isinstance(message, (FeedMessage, StopRequested)):
                try:
                    self._handle(message)
                except Exception:  # noqa: BLE001 - a message that fails must not end the listening
                    traceback.print_exc()
        os._exit(1)

    def feed_server(self) -> Any:
        """Return the endpoint for rows, which is created at the first call."""
        with self._lock:
            if self._feed_server is None:
                from hopyard.feeds.receiver import FeedServer

                task = self.begin.task
                if task.rank < 0:
                    raise RuntimeError(f"{task.name} is not fed: rows go to chiefs and workers")
                address = self.begin.peers[task.role][task.index].rpartition(":")[0]
                self._feed_server = FeedServer(
                    self.folder, address, self.host.token, task.rank, self.host.apart, on_count=self._on_count
                )
                self.pipe.send(FeedEndpoint(self.slot, self.incarnation, self._feed_server.endpoint))
            return self._feed_server

    def drain(self, error: str = "") -> bool:
        """`main` is over: drop rows that still come, or refuse them where it failed. False: nobody feeds this task."""
        with self._lock:
            if self._feed_server is not None:
                self._feed_server.finish(f"{self.begin.task.name} failed: {error}" if error else "")
            return self._feed_server is not None

    def _handle(self, message: FeedMessage | StopRequested) -> None:
        if isinstance(message, StopRequested):
            self.stopping.set()
            self.drain()  # a loop over a feed ends, too
            return
        queue = self.feed_server().queue(message.feed)
        match message:
            case FeedOpened():
                queue.uneven = message.uneven
            case FeedEnded():
                queue.end()
            case FeedFailed():
                queue.fail(FeedError(message.error))
            case FeedAllowed():
                queue.allow(Count(message.batches, message.final))
            case FeedQuery():
                self.pipe.send(
                    RowsTaken(
                        feed=message.feed,
                        slot=self.slot,
                        incarnation=self.incarnation,
                        rows=queue.taken,
                        waiting=queue.waiting > 0,
                        question=message.question,
                    )
                )
            case _:
                raise TypeError(f"{type(message).__name__} is no message to a task")

    def _on_count(self, feed: str, count: Count) -> None:
        ready = BatchesReady(
            feed=feed, slot=self.slot, incarnation=self.incarnation, batches=count.batches, final=count.ended
        )
        with contextlib.suppress(OSError):
            self.pipe.send(ready)
