"""The link of a run without other processes: its worker runs in this one."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
from collections import deque
from collections.abc import Callable, Mapping

from hopyard.agent.runs.service import UnitService, assemble, fingerprint, unfit
from hopyard.core.liveness import Stall
from hopyard.core.messages import Down, Examine, Ready, Setup, StoreState, Up, Work
from hopyard.driver.commit import Gone
from hopyard.training.build import undisturbed


class InProcess:
    """The worker in this process: it handles a message when its answer is asked for."""

    def __init__(self, setup: Callable[[str], Setup]) -> None:
        self._setup = setup("cpu")
        self._inbox: deque[Down] = deque()
        self._outbox: queue.SimpleQueue[Up | Gone] = queue.SimpleQueue()
        self._service: UnitService | None = None
        self._slot = -1

    def start(self, slot: int) -> None:
        """Assemble the worker."""
        self._slot = slot
        try:
            self._service = assemble(slot, self._setup, self._outbox.put)
        except Exception as error:  # noqa: BLE001 - reported to the user as any agent would
            self._outbox.put(unfit(slot, error))
            return
        with undisturbed():
            self._service.worker.prepare()
            worker_fingerprint = fingerprint()
        self._outbox.put(Ready(slot, socket.gethostname(), os.getpid(), worker_fingerprint))

    def end(self, slot: int) -> None:
        """Close the worker, once it has stored what it has to store."""
        self._slot = -1
        if self._service is not None:
            self._service.close()
            self._service = None

    @property
    def error(self) -> BaseException | None:
        """What the last unit or check raised; None: nothing."""
        return None if self._service is None else self._service.worker.error

    def send(self, slot: int, message: Down) -> None:
        """Put it in the worker's inbox."""
        if slot == self._slot:
            self._inbox.append(message)

    def receive(self, seconds: float) -> list[Up | Gone]:
        """Handle a message of the inbox if there is one, then return what the worker and its background sent."""
        if self._inbox:
            message = self._inbox.popleft()
            if self._service is not None and isinstance(message, (Work, StoreState, Examine)):
                with undisturbed():
                    answers = self._service.do(message)
                for answer in answers:
                    self._outbox.put(answer)
        messages: list[Up | Gone] = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._outbox.get(timeout=max(seconds, 0.001)))
            while True:
                messages.append(self._outbox.get_nowait())
        return messages

    def confirm(self) -> None:
        """Do nothing: no message is lost here."""

    def paused(self) -> float:
        """Return 0: nobody waits for anybody here."""
        return 0.0

    def stalls(self) -> Mapping[int, Stall]:
        """Return none: nobody looks at a worker while it works."""
        return {}

    def close(self) -> None:
        """Store the States of epochs' ends, and give shared memory back."""
        if self._service is not None:
            self._service.close()
