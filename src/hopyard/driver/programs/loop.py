"""Driving a program: agents up, facts to the journal and the machine, commands to the agents, nothing left behind.

One thread does it all; the user's thread puts orders into a queue. As the loop of a run: nothing clever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from hopyard.core.facts import Lost, Tick
from hopyard.core.messages import Feeding
from hopyard.core.programs.events import (
    CODEC,
    Assigned,
    Begin,
    Ended,
    Finish,
    Halt,
    Launched,
    Over,
    ProgramCommand,
    ProgramEvent,
    Renew,
    Reported,
    Reserved,
    Running,
    Stop,
    Warned,
    journaled,
)
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.messages import (
    BatchesReady,
    FeedEndpoint,
    Host,
    RowsTaken,
    StopRequested,
    TensorBoardStarted,
)
from hopyard.driver.commit import Clock, commit
from hopyard.driver.links import Gone, Router
from hopyard.errors import HopyardError, ResourceError
from hopyard.ports import Engine
from hopyard.store.journal import Journal, Lock
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)

TICK = 0.2
"""Seconds between ticks, which deadlines need; they are not journaled."""


class ProgramLoop:
    """Owner of a program's agents, its machine and its journal, in a thread of its own.

    Args:
        layout: of its directory.
        lock: held until it is over.
        machine: of the program.
        engine: brings agents up.
        order: what each agent is told once; `home` and `apart` are filled in here.
        about: facts for the journal.
    """

    def __init__(
        self,
        layout: Layout,
        lock: Lock,
        machine: ProgramMachine,
        engine: Engine,
        order: Host,
        about: dict[str, Any],
    ) -> None:
        self._layout, self._lock, self._engine = layout, lock, engine
        self.machine = machine
        self._order = msgspec.structs.replace(order, home=engine.address[0], apart=engine.apart)
        self._about = about
        self._clock = Clock()
        self._journal = Journal(layout.program, CODEC)
        self._orders: queue.SimpleQueue[Stop | Feeding] = queue.SimpleQueue()
        self._bell, self._ringer = os.pipe()
        os.set_blocking(self._bell, False)
        os.set_blocking(self._ringer, False)
        self._link: Router | None = None
        self._changed = threading.Condition()
        self._endpoints: dict[int, tuple[int, dict[str, Any]]] = {}
        """Slot → incarnation of its task, and where it takes rows."""
        self.heard: Callable[[RowsTaken | BatchesReady], None] = lambda message: None
        """Told, in this thread, what tasks say of feeds."""
        self.assigned: Callable[[], None] = lambda: None
        """Told, in this thread, when each task has its slot."""
        self.over: Callable[[], None] = lambda: None
        """Told when nothing of it runs any more."""
        self.board = ""
        """URL of TensorBoard."""
        self.boardless = ""
        """Why there is none, though one was asked for."""
        self.asked = False
        """Whether there are inferences: tasks of Spark, whose errors are not the program's."""
        self._renewed: deque[int] = deque()
        """Slots that want an agent."""
        self._over = False
        self.ended = threading.Event()
        self.opened = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="hopyard-program", daemon=True)

    # ------------------------------------------------------------------------------------------------ the user's side

    def open(self) -> None:
        """Begin. Raises what keeps the engine from being opened."""
        self._thread.start()
        self.opened.wait()
        if self._link is None and self.error is not None:
            self._thread.join()
            raise self.error

    def stop(self, reason: str, grace: float = 0.0) -> None:
        """End the program."""
        self._put(Stop(at=0.0, reason=reason, grace=grace))

    def tell(self, message: Feeding) -> None:
        """Send this to all tasks that are fed."""
        self._put(message)

    @property
    def fed(self) -> list[int]:
        """Slots of the tasks that are fed: chiefs and workers."""
        return [book.task.slot for book in self.machine.tasks.copy().values() if book.task.rank >= 0]

    def names(self, slots: list[int]) -> str:
        """The tasks there, in words."""
        books = self.machine.tasks.copy()
        return ", ".join(books[slot].task.name if slot in books else f"slot {slot}" for slot in slots)

    @property
    def incarnations(self) -> frozenset[int]:
        """Which tasks these are; others after a restart."""
        return frozenset(book.incarnation for book in self.machine.tasks.copy().values() if book.task.rank >= 0)

    def endpoints(self, until: float) -> tuple[frozenset[int], list[dict[str, Any]]]:
        """Which tasks are fed, and where they take rows, by rank; waits for those that are not there yet. No endpoints:
        the program is over.

        Raises:
            TimeoutError: some are not there by then.
        """
        while not self.ended.is_set():
            with self._changed:
                books = [book for book in self.machine.tasks.copy().values() if book.task.rank >= 0]
                books.sort(key=lambda book: book.task.rank)
                gone = [
                    book.task.name
                    for book in books
                    if book.status == "done" and self._endpoints.get(book.task.slot, (0, {}))[0] != book.incarnation
                ]
                if gone:
                    raise HopyardError(
                        f"{', '.join(gone)} has ended and never asked for rows: nothing can be fed to it"
                    )
                known = [self._endpoints.get(book.task.slot, (0, {})) for book in books]
                if books and all(
                    incarnation == book.incarnation for (incarnation, _), book in zip(known, books, strict=True)
                ):
                    return frozenset(book.incarnation for book in books), [endpoint for _, endpoint in known]
                if time.monotonic() > until:
                    raise TimeoutError
                self._changed.wait(0.1)
        return frozenset(), []

    def _put(self, order: Stop | Feeding) -> None:
        self._orders.put(order)
        with contextlib.suppress(OSError):
            os.write(self._ringer, b"x")

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            timeout = self._order.heartbeat_timeout
            self._link = Router(self._engine, lambda device: self._order, self._layout.log, timeout)
            self.opened.set()
            self._commit([Launched(at=0.0, spec=self.machine.spec, about=self._about)])
            while not self._over:
                self._turn()
        except BaseException as error:
            self.error = error
            if not isinstance(error, HopyardError):
                log.exception("%s ended", self._layout.root)
            if self._link is None or not self._journal.begun:
                return  # nothing has happened
            with contextlib.suppress(Exception):  # a full disk, perhaps: then the error itself must do
                self._journal.append([Over(at=self._clock.now(), status="failed", cause=str(error))])
        finally:
            self.opened.set()
            self._close()

    def _turn(self) -> None:
        """Wait for something to happen, and see it through: all facts first, then what is said of feeds."""
        assert self._link is not None
        facts: list[ProgramEvent] = []
        others: list[Any] = []
        try:
            messages = self._link.receive(0.0 if self._renewed else TICK, self._bell)
        except ResourceError as error:  # there will be no (more) slots
            if not self.machine.tasks:
                raise
            messages = []
            if self.machine.phase != "closing":
                facts.append(Stop(at=0.0, reason=str(error), failed=True))
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        for message in messages:
            if isinstance(message, Gone):
                facts.append(Lost(at=0.0, slot=message.slot, reason=message.reason))
            elif isinstance(message, (Reserved, Running, Reported, Ended)):
                facts.append(message)
            else:
                others.append(message)
        asked = self._asked()
        facts += [order for order in asked if isinstance(order, Stop)]
        self._commit([*facts, Tick(at=0.0)])
        for message in others:
            self._heard(message)
        for order in asked:
            if not isinstance(order, Stop):
                self._tell_all(order)
        if self.machine.phase in ("closing", "over"):
            self._renewed.clear()
        if self._renewed:  # one by one: there may be hundreds, and an order to stop
            self._link.start(self._renewed.popleft())

    def _asked(self) -> list[Stop | Feeding]:
        """What was asked for since the last turn."""
        asked = []
        with contextlib.suppress(queue.Empty):
            while True:
                asked.append(self._orders.get_nowait())
        return asked

    def _heard(self, message: Any) -> None:
        match message:
            case FeedEndpoint():
                with self._changed:
                    self._endpoints[message.slot] = message.incarnation, message.endpoint
                    self._changed.notify_all()
            case TensorBoardStarted():
                self.board, self.boardless = message.url, message.error
                if message.error:
                    log.warning("%s: TensorBoard did not start: %s", self._layout.root, message.error)
            case RowsTaken() | BatchesReady():
                book = self.machine.tasks.get(message.slot)
                if book is not None and book.incarnation == message.incarnation:  # not of a task of the past
                    self.heard(message)
            case _:
                log.warning("slot %s says what belongs to a run: %s", message.slot, type(message).__name__)

    def _commit(self, facts: Sequence[ProgramEvent]) -> None:
        assert self._link is not None
        now = self._clock.now()
        events = [msgspec.structs.replace(fact, at=now) for fact in facts]
        _, commands = commit(events, self.machine.handle, journaled, self._journal, self._link)
        for command in commands:
            self._do(command)
        if any(isinstance(command, Assigned) for command in commands):  # the tasks have been told to begin
            self.assigned()

    def _do(self, command: ProgramCommand) -> None:
        link = self._link
        assert link is not None
        match command:
            case Renew():
                link.end(command.slot)
                if command.slot not in self._renewed:
                    self._renewed.append(command.slot)
            case Begin():
                link.send(command.task.slot, command)
            case Halt():
                link.send(command.slot, command)
            case Warned():
                link.send(command.slot, StopRequested(command.slot, command.incarnation))
            case Finish():
                self._over = True
                self._say_failures()

    def _say_failures(self) -> None:
        """Those of a program that is asked: what Spark raises says only that the worker is gone. What failed when the
        program was done already changes nothing of that, but is no secret."""
        if self.machine.status == "failed" and self.asked:
            log.error("%s: %s", self._layout.root, self.machine.cause)
        if self.machine.status == "done":
            for book in self.machine.tasks.values():
                if book.status == "failed":
                    words = f"{book.task.name} failed when the program was done: {book.cause}"
                    log.warning("%s: %s; log %s", self._layout.root, words, self._layout.log(book.task.slot))

    def _tell_all(self, message: Feeding) -> None:
        if self._link is None or self.machine.phase == "over":
            return
        for book in self.machine.tasks.values():
            if book.task.rank >= 0 and (book.up or book.status == "done"):
                self._link.send(
                    book.task.slot, msgspec.structs.replace(message, slot=book.task.slot, incarnation=book.incarnation)
                )

    @property
    def link(self) -> Router:
        """For those who need the agents; only while the program runs."""
        assert self._link is not None
        return self._link

    def _close(self) -> None:
        for step in (self._hang_up, self._journal.close, self._lock.free):
            try:
                step()
            except Exception as error:  # noqa: BLE001 - the rest must be closed too
                log.warning("%s: closing: %s", self._layout.root, error)
                self.error = self.error or error
        try:
            self.over()
        finally:
            self.ended.set()
        with self._changed:
            self._changed.notify_all()

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        os.close(self._bell)
        ringer, self._ringer = self._ringer, -1
        os.close(ringer)


def token() -> str:
    """Lets rows into a program."""
    return secrets.token_hex(16)
