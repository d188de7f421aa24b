"""The feeds of a program and its inferences, on its driver's side: which there are, and who has room in Spark.

A `FeedSession` carries out what `core.programs.feeding` decides about one feed. Spark's tasks send Spark's rows, which
the driver never sees; a thread of this process sends the rows that are here already. Meanwhile the thread of the call
waits for whatever happens to the program, its workers, or the rows. An inference is a job of the user's own, which runs
when its result is used.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NoReturn

from hopyard.checks import flag, one_of, seconds, whole
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
from hopyard.core.programs.feed_progress import RULES
from hopyard.core.programs.feeding import FeedMachine, feed_named
from hopyard.core.programs.messages import BatchesReady, Endpoint, RowsTaken
from hopyard.data.dataset import Dataset
from hopyard.data.manifest import Manifest
from hopyard.data.shared.needed import need, spare
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.driver.programs.sources import FeedSource, source_of
from hopyard.errors import HopyardError, ProgramFailed, SpecError
from hopyard.feeds.sender import Route
from hopyard.ports.engines import ReleasesCores
from hopyard.sparkapi.dataframe import checked, is_frame, mapped
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


class Feeding:
    """Owner of a program's feeds. `feed` and `infer` may be called from several threads, for several feeds.

    Args:
        loop: the program's.
        layout: paths of the program's directory.
        token: the secret with which workers accept rows.
    """

    def __init__(self, loop: ProgramLoop, layout: Layout, token: str) -> None:
        self._loop, self._layout, self._token = loop, layout, token
        self._feeds: dict[str, FeedSession] = {}
        self._lock = threading.Lock()
        self._manifests: dict[str, Manifest] = {}
        """Key → manifest of a Dataset that was fed."""
        self._over = False
        self._core_users = 0
        """How many others need the cores of fed workers now; an inference needs them until the program's end."""
        self._has_inferences = False
        """Whether there are inferences: tasks of Spark, whose errors do not say why the program failed."""

    def feed(self, data: Any, *, epochs: int, name: str, uneven: Any, end: bool, timeout: float | None) -> int:
        """See `Program.feed`."""
        epochs = whole("feed(epochs=)", epochs, 0)
        uneven, end = one_of("feed(uneven=)", uneven, RULES), flag("feed(end=)", end)
        if timeout is not None:
            timeout = seconds("feed(timeout=)", timeout, none="for any")
        source = source_of(data)
        if isinstance(data, Dataset):
            self._need(data.prepare())
        feed = self._session("feed", name, uneven)
        if feed.machine.uneven != uneven:
            raise SpecError(f"feed(uneven={uneven!r}): the feed {name!r} was opened with {feed.machine.uneven!r}")
        return feed.feed(source, epochs, end, timeout)

    def over(self) -> None:
        """Release the rows that the program was fed: nothing of it runs any more."""
        if self._has_inferences and self._loop.status.status == "failed":
            log.error("%s: %s", self._layout.root, self._loop.status.cause)
        with self._lock:
            self._over = True
            manifests = list(self._manifests.values())
        for manifest in manifests:
            spare(manifest, self._layout.root)

    def _need(self, manifest: Manifest) -> None:
        """Keep the rows of a Dataset until the program is over, as a restart is fed them again."""
        with self._lock:
            if not self._over:
                self._manifests[manifest.key] = manifest
                need(manifest, self._layout.root)

    def end(self, name: str) -> None:
        """End a feed: no more rows come."""
        self._session("end_feed", name, "allow").end()

    def infer(self, data: Any, *, schema: Any, name: str, timeout: float | None) -> Any:
        """See `Program.infer`."""
        if timeout is not None:
            timeout = seconds("infer(timeout=)", timeout, none="for any")
        if is_frame(data):
            checked(data, "data")
            if schema is None:
                raise SpecError(
                    'infer(schema=…) must name the columns of the answers, for example "prediction double", got None'
                )
        elif not hasattr(data, "mapPartitionsWithIndex"):
            raise SpecError(f"infer(…) must be given a DataFrame or an RDD, got {type(data).__name__}")
        from hopyard.feeds.spark_tasks import inferring, inferring_rows

        feed = self._session("infer", name, "allow")
        self._has_inferences = True
        route = Route(feed.endpoints(), self._token, feed.machine.name, feed.machine.epochs, timeout=timeout)
        self._use_cores()  # until the program's end: an inference may run at any time
        if is_frame(data):
            zone = data.sparkSession.conf.get("spark.sql.session.timeZone", "UTC")
            return mapped(data, inferring(route, schema, zone), schema)
        return data.mapPartitionsWithIndex(inferring_rows(route))

    def _session(self, method: str, name: str, uneven: Any) -> FeedSession:
        """Return the session of the feed with this name; a new feed gets this rule."""
        name = feed_named(name, method)
        with self._lock:
            if name not in self._feeds:
                spec = self._loop.spec
                machine = FeedMachine(name, uneven, spec.restart_scope if spec.max_restarts else "")
                self._feeds[name] = FeedSession(machine, self._loop, self._layout, self._token, self._room)
            return self._feeds[name]

    @contextlib.contextmanager
    def _room(self, spark: bool) -> Iterator[None]:
        """Make room for Spark's tasks where each executor has one core: fed workers release theirs."""
        if not spark:
            yield
            return
        try:
            self._use_cores()
            yield
        finally:
            with self._lock:
                self._core_users -= 1
                agents = self._loop.agents
                if not self._core_users and not self._loop.status.ended and isinstance(agents, ReleasesCores):
                    agents.reacquire_cores()

    def _use_cores(self) -> None:
        with self._lock:
            self._core_users += 1
        self._release()

    def _release(self) -> None:
        agents = self._loop.agents
        if isinstance(agents, ReleasesCores):
            agents.release_cores(self._loop.status.slots)

    def assigned(self) -> None:
        """Each task has its slot: release the cores that other jobs may use or need, and feed tasks that were started
        again what was fed before."""
        if self._core_users:
            try:
                self._release()
            except HopyardError as error:
                log.warning("%s: %s", self._layout.root, error)
        with self._lock:
            feeds = list(self._feeds.values())
        for feed in feeds:
            if feed.lacks():
                threading.Thread(target=feed.catch_up, name="hopyard-replay", daemon=True).start()

    def on_feed_message(self, message: RowsTaken | BatchesReady) -> None:
        """Handle a task's message about a feed."""
        with self._lock:
            feed = self._feeds.get(message.feed)
        if feed is not None:
            feed.on_message(message)
