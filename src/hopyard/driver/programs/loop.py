"""Driving a program: starts agents, gives facts to machine and journal and commands to agents, leaves nothing behind.

One thread does it all, and publishes how the program stands as one immutable value. The user's threads put orders into
a queue, and read that value or wait for it. Like the loop of a run, it decides nothing itself.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import math
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import msgspec

from hopyard.core.facts import Lost, Tick
from hopyard.core.programs.events import (
    CODEC,
    Assigned,
    Begin,
    Ended,
    Finish,
    GiveBack,
    Halt,
    Launched,
    Over,
    ProgramCommand,
    ProgramEvent,
    Renew,
    Reported,
    RequestStop,
    Reserved,
    Running,
    Stop,
    Waiting,
    Yielded,
    journaled,
)
from hopyard.core.programs.feed_events import Incarnations, SendMessage
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.messages import (
    BatchesReady,
    Endpoint,
    FeedEndpoint,
    FeedOrder,
    HostTasks,
    RowsTaken,
    StopRequested,
    TensorBoardStarted,
)
from hopyard.core.programs.status import ProgramStatus, status_of
from hopyard.driver.commit import Clock, Gone, commit
from hopyard.driver.logs import last_lines
from hopyard.driver.router import Router
from hopyard.errors import HopyardError, ProgramFailed, ResourceError
from hopyard.ports.engines import AgentEngine, Agents
from hopyard.store.journal import Journal
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.states import disown

log = logging.getLogger(__name__)

LATE_SECONDS = 0.001
"""After the end of a time-out, so that it is over however times are rounded."""

BEHIND_SECONDS = 1.0
"""Seconds for which a turn waits for the journal at a URL that is far behind, and between two looks at it."""

TAIL = 40
"""Lines of a task's log that an error shows."""
PREFIX = "  | "

T = TypeVar("T")


class FeedListener(Protocol):
    """Receives, in the loop's thread, what concerns feeds."""

    def on_feed_message(self, message: RowsTaken | BatchesReady) -> None:
        """A task sent this about a feed. Threads that wait in `wait_for` are woken afterwards."""
        ...

    def assigned(self) -> None:
        """Each task has its slot, and has the order to begin."""
        ...

    def over(self) -> None:
        """Nothing of the program runs any more."""
        ...


class ProgramLoop:
    """Owner of a program's agents, its machine and its journal, in a thread of its own.

    Args:
        layout: paths of its directory.
        lock: held until it is over.
        machine: the program's, before its first fact.
        engine: starts the agents.
        setup: sent to each agent once; `home` and `apart` are filled in here.
        about: facts for the journal.

    Attributes:
        spec: what was asked for.
        status: how it stands.
        changed: is notified when `status` changes, or a task has sent something about a feed; what the listener's
            `on_feed_message` changes is changed while it is held.
    """

    def __init__(
        self,
        layout: Layout,
        lock: Lock,
        machine: ProgramMachine,
        engine: AgentEngine,
        setup: HostTasks,
        about: dict[str, Any],
    ) -> None:
        self._layout, self._lock, self._engine = layout, lock, engine
        self._machine = machine
        self.spec = machine.spec
        self._setup = msgspec.structs.replace(setup, home=engine.endpoint[0], apart=engine.apart)
        self._about = about
        self._clock = Clock()
        self._journal = Journal(layout.program, CODEC, mirror=lock.mirror)
        self._orders: queue.SimpleQueue[Stop | SendMessage] = queue.SimpleQueue()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)
        self._link: Router | None = None
        self._listener: FeedListener | None = None
        self._endpoints: dict[int, Endpoint] = {}
        """Incarnation of a task → the endpoint at which it takes rows."""
        self._tensorboard = TensorBoardStarted(0, "")
        self._slots_to_start: deque[int] = deque()
        """Slots that need a new agent."""
        self._over = False
        self._decided_at = 0.0
        """The time of the last decisions."""
        self.changed = threading.Condition()
        self.status = status_of(machine, {})
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hopyard-program", daemon=True)

    # ------------------------------------------------------------------------------------------------ the user's side

    @property
    def tensorboard(self) -> bool:
        """Whether TensorBoard was asked for."""
        return bool(self._setup.tensorboard)

    def open(self, listener: FeedListener) -> None:
        """Start the thread; raise the error if the engine cannot be opened. The program ends with this process."""
        atexit.register(self._end_with_process)
        self._listener = listener
        self._thread.start()
        self._opened.wait()
        if self._link is None and self.status.error is not None:
            self._thread.join()
            raise self.status.error

    def stop(self, reason: str, grace: float = 0.0) -> None:
        """End the program."""
        self._put(Stop(reason=reason, grace=grace))

    def _end_with_process(self) -> None:
        self.stop("stopped by the user")
        self.wait_for(lambda now: now.ended, 30.0)

    def send(self, message: FeedOrder, to: Incarnations | None = None) -> None:
        """Send this to all tasks that are fed, or to those of them that have these incarnations."""
        self._put(SendMessage(message, to))

    def wait_for(self, predicate: Callable[[ProgramStatus], T], timeout: float | None = None) -> T:
        """Wait until this is true of the status, or of what was reported of feeds; return its last value."""
        with self.changed:
            return self.changed.wait_for(lambda: predicate(self.status), timeout)

    def check(self) -> None:
        """Raise what ended the program, where it has failed: the error of its driver, or its first cause and the end of
        the log of the task that failed."""
        status, root = self.status, self._layout.place
        if status.error is not None:
            raise status.error
        if status.status != "failed":
            return
        if status.no_slots:
            raise ResourceError(f"{root}: {status.cause}")
        path = self._layout.log(max(status.failed_slot, 0))
        failed = next((task for task in status.tasks if task.task.slot == status.failed_slot), None)
        if failed is None:
            where = "" if status.failed_slot < 0 else f"\n  log {path}{last_lines(path, TAIL, PREFIX)}"
            raise ProgramFailed(f"{root}: {status.cause}{where}")
        text = f"{status.cause}\n  on host {failed.host}, log {path}"
        if status.restart:
            text += f", after {status.restart} restart(s)"
        if "Traceback" not in status.cause:
            text += last_lines(path, TAIL, PREFIX)
        raise ProgramFailed(text, failed.task.name, failed.host, str(path))

    @property
    def agents(self) -> Agents:
        """The agents as their engine sees them; only while the program runs."""
        assert self._link is not None
        return self._link.agents

    def _put(self, order: Stop | SendMessage) -> None:
        self._orders.put(order)
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"x")

    # ------------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            timeout = self._setup.heartbeat_timeout
            self._link = Router(
                *(self._engine, lambda device: self._setup, self._layout.log, timeout),
                open_ended=True,
                together=self.spec.least,
            )
            self._opened.set()
            self._commit([Launched(spec=self.spec, about=self._about)])
            while not self._over:
                self._turn()
            while self._orders.empty() and not self._journal.shared(self._journal.size, BEHIND_SECONDS):
                pass  # others see the end of a program at a URL before the caller does
        except BaseException as caught:
            error = caught
            if not isinstance(error, HopyardError):
                log.exception("%s ended", self._layout.place)
            if self._link is not None and self._journal.begun:
                try:
                    self._journal.append([Over(at=self._clock.now(), status="failed", cause=str(error))])
                except (HopyardError, OSError) as append_error:  # the lock, which is free then, says as much
                    log.warning("the journal does not say that the program failed: %s", append_error)
        finally:
            self._close(error)

    def _turn(self) -> None:
        """Wait for something to happen, and handle it: all facts first, then messages about feeds."""
        assert self._link is not None
        facts: list[ProgramEvent] = []
        other_messages: list[Any] = []
        try:
            keeps_up = self._journal.keeps_up(BEHIND_SECONDS)
            messages = self._link.receive(self._wait(), self._wake_reader) if keeps_up else []
        except ResourceError as error:  # there will be no (more) slots
            if not self._machine.tasks:
                raise
            messages = []
            if self._machine.phase != "closing":
                facts.append(Stop(reason=str(error), failed=True))
        self._clock.skip(self._link.paused())
        facts += self._granted()
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        for message in messages:
            if isinstance(message, Gone):
                facts.append(Lost(slot=message.slot, reason=message.reason))
            elif isinstance(message, (Reserved, Running, Reported, Ended)):
                facts.append(message)
            else:
                if isinstance(message, FeedEndpoint):  # before the facts: its task may have ended since
                    self._endpoints[message.incarnation] = message.endpoint
                other_messages.append(message)
        orders = self._pending_orders()
        facts += [order for order in orders if isinstance(order, Stop)]
        self._commit([*facts, Tick()])
        for message in other_messages:
            self._on_message(message)
        for order in orders:
            if not isinstance(order, Stop):
                self._send_all(order)
        if self._machine.phase in ("closing", "over"):
            self._slots_to_start.clear()
        if self._slots_to_start:  # one by one: there may be hundreds, and an order to stop
            self._link.start(self._slots_to_start.popleft())

    def _granted(self) -> list[ProgramEvent]:
        """Return how many slots wait for a place in the cluster, if that has changed while slots are asked for."""
        reservation = self._machine.reservation
        asks = self._machine.phase == "reserving" and reservation.asks_at is None and not self._slots_to_start
        if not (asks and self.spec.shared_slots):
            return []
        assert self._link is not None
        waiting = self._link.waiting()
        return [] if waiting == reservation.waiting else [Waiting(slots=waiting)]

    def _wait(self) -> float:
        """Return the seconds until there is something to do, if no message comes."""
        due = self._machine.due(self._decided_at)  # a time-out may have ended since: it was not decided upon
        longest = math.inf if self._lock.mirror is None else BEHIND_SECONDS  # another driver may have gone on
        left = longest if due is None else min(longest, due - self._clock.now() + LATE_SECONDS)
        return 0.0 if self._slots_to_start else left

    def _pending_orders(self) -> list[Stop | SendMessage]:
        """Return the orders that came since the last turn."""
        orders = []
        with contextlib.suppress(queue.Empty):
            while True:
                orders.append(self._orders.get_nowait())
        return orders

    def _commit(self, facts: Sequence[ProgramEvent]) -> None:
        assert self._link is not None
        now = self._decided_at = self._clock.now()
        events = [msgspec.structs.replace(fact, at=now) for fact in facts]
        lines, commands = commit(events, self._machine.handle, journaled, self._journal, self._link)
        for command in commands:
            self._do(command)
        if lines:
            self._publish()
        if any(isinstance(command, Assigned) for command in commands) and self._listener is not None:
            self._listener.assigned()

    def _publish(self, ended: bool = False, error: BaseException | None = None) -> None:
        status = replace(
            status_of(self._machine, self._endpoints),
            tensorboard_url=self._tensorboard.url,
            tensorboard_error=self._tensorboard.error,
            ended=ended,
            error=error,
        )
        with self.changed:
            self.status = status
            self.changed.notify_all()

    def _on_message(self, message: Any) -> None:
        match message:
            case FeedEndpoint():
                self._publish()
            case TensorBoardStarted():
                self._tensorboard = message
                self._publish()
                if message.error:
                    log.warning("%s: TensorBoard did not start: %s", self._layout.place, message.error)
            case RowsTaken() | BatchesReady():
                record = self._machine.tasks.get(message.slot)
                if record is not None and record.incarnation == message.incarnation and self._listener is not None:
                    with self.changed:
                        self._listener.on_feed_message(message)
                        self.changed.notify_all()
            case _:
                log.warning("slot %s says what belongs to a run: %s", message.slot, type(message).__name__)

    def _do(self, command: ProgramCommand) -> None:
        link = self._link
        assert link is not None
        match command:
            case Renew():
                link.end(command.slot)
                if command.slot not in self._slots_to_start:
                    self._slots_to_start.append(command.slot)
            case GiveBack(slots=slots):
                self._slots_to_start = deque(slot for slot in self._slots_to_start if slot not in slots)
                link.give_back(slots)
            case Yielded():
                level = logging.INFO if command.turn else logging.WARNING
                text = "the roles need %d processes, and there are places for %d: they are left to others for %.0f s"
                log.log(level, f"%s: {text}", self._layout.place, self.spec.least, command.held, command.seconds)
            case Begin():
                link.send(command.task.slot, command)
            case Halt():
                link.send(command.slot, command)
            case RequestStop():
                link.send(command.slot, StopRequested(command.slot, command.incarnation))
            case Finish():
                self._over = True
                self._log_failures()
            case _:
                pass  # a decision: it is in the journal

    def _log_failures(self) -> None:
        """Log tasks that failed after the program had completed: they do not change its status."""
        if self._machine.status == "completed":
            for record in self._machine.tasks.values():
                if record.status == "failed":
                    text = f"{record.task.name} failed after the program had completed: {record.cause}"
                    log.warning("%s: %s; log %s", self._layout.place, text, self._layout.log(record.task.slot))

    def _send_all(self, order: SendMessage) -> None:
        if self._link is None or self._machine.phase == "over":
            return
        for record in self._machine.tasks.values():
            addressed = order.to is None or record.incarnation in order.to
            if addressed and record.task.rank >= 0 and (record.up or record.status == "completed"):
                slot, incarnation = record.task.slot, record.incarnation
                self._link.send(slot, msgspec.structs.replace(order.message, slot=slot, incarnation=incarnation))

    def _close(self, error: BaseException | None) -> None:
        for step in (self._disconnect, self._disown_store, self._journal.close, self._lock.free):
            try:
                step()
            except Exception as close_error:  # noqa: BLE001 - the other steps must be done too
                log.warning("%s: closing: %s", self._layout.place, close_error)
                error = error or close_error
        try:
            if self._listener is not None:
                self._listener.over()
        finally:
            atexit.unregister(self._end_with_process)
            self._publish(ended=True, error=error)
            self._opened.set()

    def _disown_store(self) -> None:
        if self._setup.owner:
            disown(self._setup.store, self._setup.owner)

    def _disconnect(self) -> None:
        if self._link is not None:
            self._link.close()
        os.close(self._wake_reader)
        writer, self._wake_writer = self._wake_writer, -1
        os.close(writer)
