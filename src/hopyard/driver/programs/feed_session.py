"""One feed of a program, on its driver's side: carries out what `core.programs.feeding` decides.

Spark's tasks send Spark's rows, which the driver never sees; a thread of this process sends the rows that are here
already. Meanwhile the thread of the call waits for whatever happens to the program, its workers, or the rows.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from hopyard.core.programs.feed_events import (
    Answer,
    Cancel,
    EndAsked,
    EndpointsAsked,
    EpochSent,
    Fail,
    Fed,
    FeedCommand,
    FeedFact,
    Looked,
    SendMessage,
    SendRows,
    SourceFailed,
    TasksReplaced,
    Warn,
)
from hopyard.core.programs.feeding import FeedMachine
from hopyard.core.programs.messages import BatchesReady, Endpoint, RowsTaken
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.driver.programs.sources import FeedSource
from hopyard.errors import HopyardError, ProgramFailed
from hopyard.feeds.sender import Route
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)


class FeedSession:
    """Owner of one feed of a program: one call after another sends its rows.

    Args:
        machine: the feed's.
        loop: the program's.
        layout: paths of the program's directory.
        token: the secret with which workers accept rows.
        room: makes a context in which Spark's tasks (True) have room.
    """

    def __init__(
        self,
        machine: FeedMachine,
        loop: ProgramLoop,
        layout: Layout,
        token: str,
        room: Callable[[bool], AbstractContextManager[None]],
    ) -> None:
        self.machine = machine
        self._loop, self._layout, self._token, self._room = loop, layout, token, room
        self._changed = loop.changed
        """Held while the machine is used, as the loop's thread does so too."""
        self._serial = threading.RLock()
        """Held during a call."""
        self._facts: deque[FeedFact] = deque()
        """Facts that wait to be handled; the thread that sends adds its own."""
        self._error: BaseException | None = None
        """The error of the source in the last epoch."""

    def feed(self, source: FeedSource, epochs: int, end: bool, timeout: float | None) -> int:
        """Send all rows `epochs` times, to each attempt anew; return how many. `end`: wait until they are taken."""
        return self._call(Fed(source, epochs, end, timeout)).rows

    def end(self) -> None:
        """End the feed after the rows that are being sent."""
        self._call(EndAsked())

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return where the workers take rows, once each has opened its endpoint; another call may go on meanwhile."""
        machine = FeedMachine(self.machine.name, self.machine.uneven, "")
        session = FeedSession(machine, self._loop, self._layout, self._token, self._room)
        return session._call(EndpointsAsked()).endpoints

    def lacks(self) -> bool:
        """Whether tasks that were started again lack rows, or do not know that no more come."""
        with self._changed:
            return self.machine.lacks(self._loop.status.incarnations)

    def catch_up(self) -> None:
        """After the program was started again: feed again what no call of the user's is about to, and end the feed."""
        try:
            self._call(TasksReplaced())
        except ProgramFailed as error:  # which says why to whoever waits for it
            log.info("%s: feed %r: %s", self._layout.root, self.machine.name, error)
        except HopyardError as error:
            log.warning("%s: feed %r cannot go again: %s", self._layout.root, self.machine.name, error)

    def on_message(self, message: RowsTaken | BatchesReady) -> None:
        """Handle a worker's message about this feed; the caller holds the loop's `changed`."""
        for command in self.machine.on_message(message, self._loop.status):
            self._do(command)

    # ------------------------------------------------------------------------------------------- a call

    def _call(self, fact: FeedFact) -> Answer:
        """Hand the machine a fact, and carry out its commands until the call is over."""
        with self._serial, contextlib.ExitStack() as room:
            self._facts.clear()
            self._facts.append(fact)
            sends = False
            try:
                while True:
                    for command in self._next_commands(sends):
                        if isinstance(command, Answer):
                            return command
                        if isinstance(command, SendRows):
                            room.close()
                            room.enter_context(self._room(command.source.spark))
                        self._do(command)
                    sends = self.machine.sends
                    if not sends:
                        room.close()
            except BaseException as error:
                interrupted = isinstance(error, (KeyboardInterrupt, SystemExit))
                with self._changed:
                    commands = self.machine.abandon("interrupted while rows went" if interrupted else str(error))
                for command in commands:
                    self._do(command)
                raise

    def _next_commands(self, sends: bool) -> list[FeedCommand]:
        """Wait for the machine's next commands; there are none when it sends no longer."""
        with self._changed:
            while True:
                fact = self._facts.popleft() if self._facts else Looked()
                commands = self.machine.handle(fact, self._loop.status, time.monotonic())
                if commands or (sends and not self.machine.sends):
                    return commands
                if not self._facts:
                    due = self.machine.due
                    self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))

    def _do(self, command: FeedCommand) -> None:
        match command:
            case SendMessage():
                self._loop.send(command.message, command.to)
            case SendRows():
                self._error, machine = None, self.machine
                route = Route(command.endpoints, self._token, machine.name, command.epoch, machine.uneven)
                thread = threading.Thread(
                    target=self._send, args=(command.source, route), name="hopyard-feed", daemon=True
                )
                thread.start()
            case Cancel():
                command.source.cancel()
            case Warn():
                log.warning("%s: %s", self._layout.root, command.words)
            case Fail():
                if command.error is not None:
                    raise command.error from self._error
                self._fail_over()
            case Answer():
                pass  # `_call` returns it

    def _send(self, source: FeedSource, route: Route) -> None:
        """Send the rows of one epoch; runs in a thread."""
        error: BaseException | None = None
        fact: FeedFact
        try:
            fact = EpochSent(route.epoch, source.send(route))
        except BaseException as caught:  # noqa: BLE001 - raised in the thread of the call
            error, fact = caught, SourceFailed(route.epoch, _short(caught))
        with self._changed:
            if self.machine.sends and route.epoch == self.machine.epochs:  # else its call is over
                self._error = error
                self._facts.append(fact)
            self._changed.notify_all()

    def _fail_over(self) -> NoReturn:
        """Raise the error of a call whose program is over."""
        self._loop.check()
        status = self._loop.status.status
        raise ProgramFailed(
            f"{self._layout.root}: feed {self.machine.name!r}: the program is over ({status}); launch it again"
        )


def _short(error: BaseException) -> str:
    """Return the line that says what happened: Spark wraps the errors of Python in traces of several languages."""
    trace = str(error).rpartition('  File "')[2].splitlines()
    error_line = next((line.strip() for line in trace[1:] if line and not line.startswith((" ", "\t"))), "")
    if error_line:
        return error_line.removeprefix("hopyard.errors.")[:800]
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    errors = [
        line for line in lines if line.startswith(("hopyard.", "ConnectionError", "pyspark.errors")) and ": " in line
    ]
    return (errors or lines or [type(error).__name__])[-1 if errors else 0][:800]
