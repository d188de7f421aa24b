"""What a task's process shares between its parts: the task, its way to the agent, its door for rows."""

from __future__ import annotations

import contextlib
import os
import threading
import traceback
from pathlib import Path
from typing import Any

from hopyard.agent.programs.channel import Pipe, down
from hopyard.core.programs.events import Begin
from hopyard.core.programs.messages import Door, FeedWord, Host


class TaskSession:
    """Owner of the task: what it is, its way to the agent, its door for rows."""

    def __init__(self, pipe: Pipe, host: Host, begin: Begin, folder: Path) -> None:
        self.folder = folder
        self.pipe, self.host, self.begin = pipe, host, begin
        self.slot, self.life = begin.task.slot, begin.life
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._intake: Any = None

    def listen(self) -> None:
        """Hear the agent, in a thread of its own. Its end is this process's."""
        while (message := down(self.pipe)) is not None:
            if isinstance(message, FeedWord):
                try:
                    self._heed(message)
                except Exception:  # noqa: BLE001 - a word that cannot be heeded must not end the hearing
                    traceback.print_exc()
        os._exit(1)

    def intake(self) -> Any:
        """The door for rows, made when it is first wanted."""
        with self._lock:
            if self._intake is None:
                from dataclasses import asdict

                from hopyard.feeds.receiver import Intake

                task = self.begin.task
                if task.rank < 0:
                    raise RuntimeError(f"{task.name} is not fed: rows go to chiefs and workers")
                ranked = int(self.begin.environment["WORLD_SIZE"])
                address = self.begin.peers[task.role][task.index].rpartition(":")[0]
                self._intake = Intake(
                    self.folder,
                    address,
                    self.host.token,
                    task.rank,
                    ranked,
                    self.host.apart,
                    tell=self._count,
                )
                self.pipe.send(Door(self.slot, self.life, asdict(self._intake.where)))
            return self._intake

    def drain(self, error: str = "") -> bool:
        """`main` is over: rows that still come are thrown away, or refused where it failed. False: there is no door."""
        with self._lock:
            if self._intake is not None:
                self._intake.finish(f"{self.begin.task.name} failed: {error}" if error else "")
            return self._intake is not None

    def _heed(self, word: FeedWord) -> None:
        if word.word == "stop":
            self.stopping.set()
            self.drain()  # a loop over a feed ends, too
            return
        intake = self.intake()
        match word.word:
            case "open":
                intake.opened(word.feed, word.text or "join")
            case "ended":
                intake.ended(word.feed)
            case "failed":
                intake.failed(word.feed, word.text)
            case "ask":
                taken, waiting = intake.inlet(word.feed).taken, intake.waiting(word.feed)
                answer = FeedWord(self.slot, self.life, word.feed, "taken", taken, waiting > 0, str(word.number))
                self.pipe.send(answer)
            case "allowed":
                intake.allowed(word.feed, word.number, word.flag)

    def _count(self, feed: str, count: Any) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(FeedWord(self.slot, self.life, feed, "counts", count.batches, count.ended))
