"""One feed of a program, from its driver's side: what is sent when, what happens meanwhile, and when it is over.

Rows of Spark go from Spark's tasks, the driver never sees them; rows that are here already go from here. While rows go,
the program is watched: when it fails, the feed fails with *its* error; when it was started again, all rows go again;
when a worker takes no row for too long, the feed says which.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NoReturn

from hopyard.core.programs.feeding import FeedRecord
from hopyard.core.programs.machine import STARTING
from hopyard.core.programs.messages import (
    BatchesReady,
    Endpoint,
    FeedAllowed,
    FeedEnded,
    FeedFailed,
    FeedOpened,
    FeedQuery,
    RowsTaken,
)
from hopyard.core.programs.uneven import Count
from hopyard.driver.programs.failure import failure
from hopyard.driver.programs.loop import ProgramLoop
from hopyard.driver.programs.sources import Source
from hopyard.driver.programs.status import ProgramStatus
from hopyard.errors import HopyardError, ProgramFailed, SpecError
from hopyard.feeds.sender import Route
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)

ASK_SECONDS = 0.5
"""Between questions to the workers how far they are. They are asked again and again, as a process that does not read is
not told more, and one that hangs tells nothing."""
SOON_SECONDS = 0.01
"""The same, at first, where only their answer is waited for: a tenth of the time that has passed."""
OPEN_SECONDS = 120.0
"""Until each worker of a program that runs has opened its endpoint."""
BREAK_SECONDS = 3.0
"""For the program to begin to restart or to end, once a feed broke off."""
LAST_WORDS = 15.0
"""For the program to say why a feed broke off."""

Incarnations = frozenset[int]
"""Which tasks are fed: numbers that no other attempt has."""


class _Again(Exception):
    """The program was started again: its workers want all rows again."""


class FeedSession:
    """Owner of one feed of a program: one call after another sends its rows.

    Args:
        record: of the feed.
        loop: of the program.
        layout: of its directory.
        token: lets rows in.
        room: a context in which Spark's tasks (True) have room.
    """

    def __init__(
        self,
        record: FeedRecord,
        loop: ProgramLoop,
        layout: Layout,
        token: str,
        room: Callable[[bool], AbstractContextManager[None]],
    ) -> None:
        self.record = record
        self._loop, self._layout, self._token, self._room = loop, layout, token, room
        self._changed = loop.changed
        """Held while what is known of the feed is read or changed, as the loop's thread does so too."""
        self._serial = threading.RLock()
        """Held while rows of this feed go."""
        self._warned = False
        """Whether it was said that no batch can be given."""

    # ------------------------------------------------------------------------------------------- asked by others

    def feed(self, source: Source, epochs: int, end: bool, timeout: float | None) -> int:
        """Send all rows `epochs` times, to each attempt anew; gives how many. With `end`, until they are taken."""
        with self._serial:
            if self.record.ended:
                raise SpecError(
                    f"feed(name={self.record.name!r}): this feed has ended; give end=False to calls before the last, "
                    "or another name"
                )
            while True:
                try:
                    self._repeat(timeout)
                    rows, incarnations = self._all(source, epochs, timeout, self.record.incarnations)
                    if end:
                        self.end()
                        self._taken(timeout, incarnations)
                    break
                except _Again:
                    self._begin_again()
                    if not self._lacked():
                        self._log_replay()
            with self._changed:
                self.record.keep(source, epochs, incarnations)
            if self._make_whole(timeout) and self.record.ended:
                self._loop.send(FeedEnded(feed=self.record.name))
            return rows

    def end(self) -> None:
        """No more rows come, after those that go."""
        with self._serial:
            with self._changed:
                self.record.ended = True
            if not self._lacked():  # else once they have gone again
                self._loop.send(FeedEnded(feed=self.record.name))

    def behind(self) -> bool:
        """Whether tasks that were started again lack rows, or the word that no more come."""
        return bool(self._lacked()) or self.record.ended

    def catch_up(self) -> None:
        """After the program was started again: feed again what no call of the user's is about to, and say its end."""
        with self._serial:
            try:
                self._make_whole(None)
                if self.record.ended:
                    self._loop.send(FeedEnded(feed=self.record.name))
            except ProgramFailed as error:  # which says why to whoever waits for it
                log.info("%s: feed %r: %s", self._layout.root, self.record.name, error)
            except HopyardError as error:
                log.warning("%s: feed %r cannot go again: %s", self._layout.root, self.record.name, error)
                self._loop.send(FeedFailed(feed=self.record.name, error=str(error)))

    def endpoints(self, begun: bool = False) -> tuple[Incarnations, tuple[Endpoint, ...]]:
        """Which tasks are fed, and where. Waits for a program that starts, or starts again. Nowhere, if the program
        had enough of what was begun.

        Raises:
            ProgramFailed: it is over.
            HopyardError: a worker does not open its endpoint.
        """
        name = self.record.name
        self._loop.wait_for(lambda now: now.phase not in STARTING or now.ended)  # `start_timeout` ends this
        self._loop.send(FeedOpened(feed=name, uneven=self.record.uneven))
        now = self._loop.wait_for(_opened, OPEN_SECONDS)
        if now is None:
            raise HopyardError(
                f"feed {name!r}: not every worker opened its endpoint within {OPEN_SECONDS:.0f} seconds; "
                "program.status() and program.logs() say what they do"
            )
        if now.ended:
            if not (begun and now.status == "done"):
                self._is_over()
            return frozenset(), ()
        endpoints = tuple(task.endpoint for task in now.fed if task.endpoint is not None)
        if len(endpoints) < len(now.fed):
            gone = [task.task.slot for task in now.fed if task.status == "done" and task.endpoint is None]
            raise HopyardError(f"{now.names(gone)} has ended and never asked for rows: nothing can be fed to it")
        return now.incarnations, endpoints

    def on_message(self, message: RowsTaken | BatchesReady) -> None:
        """What a worker says of this feed; the caller holds the loop's `changed`."""
        if isinstance(message, RowsTaken):
            self.record.takes(message.slot, message.rows, message.waiting, message.question)
        else:
            allowed = self.record.says(message.slot, Count(message.batches, message.final), self._loop.status.slots)
            if allowed is not None:
                self._loop.send(FeedAllowed(feed=message.feed, batches=allowed.batches, final=allowed.ended))
            if not self._warned and (empty := self.record.ended_empty):
                self._warned = True
                log.warning(
                    '%s: feed %r with uneven="min" has ended without a batch, as %s had none; all rows that came '
                    "to others are dropped: repartition the data, so that each gets some, if they asked for any",
                    self._layout.root, message.feed, self._loop.status.names(empty),
                )  # fmt: skip

    # ------------------------------------------------------------------------------------------- sending

    def _make_whole(self, timeout: float | None) -> bool:
        """Feed again what tasks that were started again lack, until none was meanwhile. False: none lack anything."""
        again = False
        while self._lacked():
            again = True
            try:
                self._repeat(timeout)
            except _Again:
                self._begin_again()
        return again

    def _repeat(self, timeout: float | None) -> None:
        """What was fed before, for a program that was started again since."""
        lacked = self._lacked()
        if not lacked:
            return
        self._unless_doubled(self.record.incarnations, self._loop.status.incarnations)
        self._begin_again()  # what was said is the former tasks'
        self._log_replay()
        sent: Incarnations | None = None
        for source, epochs in lacked:
            _, sent = self._all(source, epochs, timeout, sent)
        with self._changed:
            self.record.caught_up(self._loop.status.incarnations if sent is None else sent)

    def _lacked(self) -> list[tuple[Source, int]]:
        with self._changed:
            return self.record.lacked(self._loop.status.incarnations)

    def _begin_again(self) -> None:
        with self._changed:
            self.record.begin_again()

    def _all(
        self, source: Source, epochs: int, timeout: float | None, sent: Incarnations | None
    ) -> tuple[int, Incarnations | None]:
        """Send all rows `epochs` times; gives how many, and to which tasks. `sent`: who has what went before."""
        rows = 0
        for epoch in range(epochs):
            incarnations, endpoints = self.endpoints(begun=epoch > 0)
            if not endpoints:
                break
            if sent not in (None, incarnations):  # started again between two epochs
                self._unless_doubled(sent, incarnations)
                raise _Again
            sent = incarnations
            route = Route(endpoints, self._token, self.record.name, self.record.begin_epoch(), self.record.uneven)
            with self._room(source.spark):
                rows += self._watched(source, route, incarnations, timeout)
        return rows, sent

    def _watched(self, source: Source, route: Route, incarnations: Incarnations, timeout: float | None) -> int:
        """Send the rows of one epoch from another thread, and watch the program. How many were sent; of a program
        that had enough, how many it took of them, as far as is known."""
        sending = _Sending(source, route, self._changed)
        try:
            with self._changed:
                before = self.record.taken
                stall = _Stall(self.record, self._loop, timeout)
                while not (sending.over or self._is_broken_off(incarnations)):
                    self._changed.wait(stall.look())
        except BaseException as error:
            source.cancel()
            if not isinstance(error, HopyardError):  # Ctrl-C: some rows went, and the rest never will
                self._loop.send(FeedFailed(feed=route.feed, error=f"feed {route.feed!r}: interrupted while rows went"))
            raise
        if sending.rows is not None:
            return sending.rows
        try:
            again = self._over_or_again(incarnations)
        except BaseException:  # the program failed, or was ended: nobody takes the rest
            source.cancel()
            raise
        if again is None:  # it had enough
            source.cancel()
            with self._changed:
                return self.record.taken - before
        if again:
            source.cancel()
            self._unless_doubled(incarnations, self._loop.status.incarnations)
            raise _Again
        if not sending.over:
            source.cancel()
            self._loop.wait_for(lambda now: sending.over, LAST_WORDS)
        if sending.rows is not None:
            return sending.rows
        why = "its source does not end" if sending.error is None else _short(sending.error)
        words = f"feed {route.feed!r} broke off: {why}"
        self._loop.send(FeedFailed(feed=route.feed, error=words))  # who waits for the rest would wait for ever
        raise HopyardError(words) from sending.error

    def _taken(self, timeout: float | None, incarnations: Incarnations | None) -> None:
        """Wait until the program has taken all rows, or wants no more."""
        incarnations = self._loop.status.incarnations if incarnations is None else incarnations
        if not incarnations:
            return  # nobody is there yet, so nothing was sent
        with self._changed:
            stall = _Stall(self.record, self._loop, timeout, eager=True)
            while not (self._is_broken_off(incarnations) or self.record.all_taken(self._loop.status.slots)):
                self._changed.wait(stall.look())
            now = self._loop.status
        if now.ended:
            if not now.well:
                self._is_over()
        elif now.incarnations != incarnations and self._over_or_again(incarnations):
            self._unless_doubled(incarnations, self._loop.status.incarnations)
            raise _Again

    # ------------------------------------------------------------------------------------------- the program

    def _is_broken_off(self, incarnations: Incarnations) -> bool:
        """Whether the tasks to which rows go are not there any more."""
        return self._loop.status.ended or self._loop.status.incarnations != incarnations

    def _over_or_again(self, incarnations: Incarnations) -> bool | None:
        """A feed broke off: wait for what the program has to say. True: it was started again; None: it is done.

        Raises:
            ProgramFailed: it is over.
        """

        def decided(now: ProgramStatus) -> bool:
            return now.ended or (now.phase == "running" and now.incarnations != incarnations)

        self._loop.wait_for(decided, BREAK_SECONDS)
        self._loop.wait_for(lambda now: decided(now) or now.phase not in (*STARTING, "closing", "over"))
        now = self._loop.status
        if not now.ended:
            return now.incarnations != incarnations
        if not now.well:
            self._is_over()
        return None

    def _log_replay(self) -> None:
        log.warning("%s was started again: the rows of feed %r go again", self._layout.root, self.record.name)

    def _unless_doubled(self, had: Incarnations | None, now: Incarnations) -> None:
        """Raises HopyardError where rows that some tasks have cannot go again."""
        if words := self.record.doubled(had, now):
            self._loop.send(FeedFailed(feed=self.record.name, error=words))
            raise HopyardError(words)

    def _is_over(self) -> NoReturn:
        """Raises what a feed of a program that is over raises."""
        self._loop.wait_for(lambda now: now.ended, LAST_WORDS)
        now = self._loop.status
        if now.error is not None:
            raise now.error
        if now.status == "failed":
            raise failure(now, self._layout)
        raise ProgramFailed(
            f"{self._layout.root}: feed {self.record.name!r}: the program is over ({now.status}); launch it again"
        )


def _opened(now: ProgramStatus) -> ProgramStatus | None:
    """How the program stands once all its fed tasks have opened their endpoints, one never will, or it is over."""
    never = any(task.endpoint is None and task.status == "done" for task in now.fed)
    return now if now.ended or never or (now.fed and all(task.endpoint for task in now.fed)) else None


class _Sending:
    """The rows of a source on their way, in a thread of their own.

    Attributes:
        over: whether it has ended.
        rows: how many were sent; None: not all.
        error: why not.
    """

    def __init__(self, source: Source, route: Route, changed: threading.Condition) -> None:
        self._source, self._route, self._changed = source, route, changed
        self.over = False
        self.rows: int | None = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name="hopyard-feed", daemon=True).start()

    def _run(self) -> None:
        try:
            self.rows = self._source.send(self._route)
        except BaseException as error:  # noqa: BLE001 - raised in the user's thread
            self.error = error
        finally:
            with self._changed:
                self.over = True
                self._changed.notify_all()


class _Stall:
    """Tells when a worker that has rows takes none. Its owner holds the loop's `changed`."""

    def __init__(self, record: FeedRecord, loop: ProgramLoop, timeout: float | None, eager: bool = False) -> None:
        self._record, self._loop, self._timeout, self._eager = record, loop, timeout, eager
        self._moved: dict[int, tuple[int, float]] = {}
        self._began = self._asked = time.monotonic()
        record.ask_anew()

    def look(self) -> float | None:
        """Ask the workers how far they are; seconds until it should be called again, None: when the program runs.

        Raises:
            HopyardError: one has taken nothing for too long.
        """
        status = self._loop.status
        if status.phase != "running":
            self._moved.clear()
            return None
        now = time.monotonic()
        wait = min(ASK_SECONDS, max(SOON_SECONDS, (now - self._began) / 10)) if self._eager else ASK_SECONDS
        if now - self._asked >= wait:
            self._asked = now
            self._loop.send(FeedQuery(feed=self._record.name, question=self._record.question))
        for slot, (rows, waiting) in self._record.said.items():
            last, since = self._moved.get(slot, (-1, now))
            if rows != last or not waiting:
                self._moved[slot] = rows, now
            elif self._timeout is not None and now - since > self._timeout:
                self._fail(status, slot, rows)
        return self._asked + wait - now

    def _fail(self, status: ProgramStatus, slot: int, rows: int) -> NoReturn:
        name = self._record.name
        silent = self._record.silent(status.slots)
        words = (
            f"feed {name!r}: {status.names([slot])} has taken no row for {self._timeout:.0f} seconds, "
            f"though rows wait for it ({rows:,} taken so far): does the main of {status.names(silent or [slot])} read "
            f"ctx.feed({name!r})? "
            + (f'With uneven="{self._record.uneven}" the others wait for it. ' if silent else "")
            + "feed(timeout=…) says how long to wait"
        )
        self._loop.send(FeedFailed(feed=name, error=words))
        raise HopyardError(words)


def _short(error: BaseException) -> str:
    """The line that tells what happened: Spark wraps the errors of Python in traces of several languages."""
    trace = str(error).rpartition('  File "')[2].splitlines()
    raised = next((line.strip() for line in trace[1:] if line and not line.startswith((" ", "\t"))), "")
    if raised:
        return raised.removeprefix("hopyard.errors.")[:800]
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    errors = [
        line for line in lines if line.startswith(("hopyard.", "ConnectionError", "pyspark.errors")) and ": " in line
    ]
    return (errors or lines or [type(error).__name__])[-1 if errors else 0][:800]
