"""Pouring one feed into a program: what is sent when, what happens meanwhile, and when it is over.

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

from hopyard.core.feeds import FeedBook
from hopyard.core.hosting import FeedWord
from hopyard.core.uneven import Count
from hopyard.data.door import Door
from hopyard.data.pour import Road
from hopyard.driver.hosts import Hosts
from hopyard.driver.program import failure
from hopyard.driver.sources import Source
from hopyard.errors import HopyardError, ProgramFailed
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.01
"""Between looks at how far the workers are."""
ASK_SECONDS = 0.5
"""Between questions to the workers. Where their answer is waited for: a tenth of the time that has passed."""
OPEN_SECONDS = 120.0
"""Until each worker of a program that runs has opened its door."""
LAST_WORDS = 15.0
"""For the program to say why a feed broke off."""

Lives = frozenset[int]
"""Which tasks are fed: numbers that no other attempt has."""


class _Again(Exception):
    """The program was started again: its workers want all rows again."""


class Pouring:
    """Owner of one feed of a program: one call after another sends its rows.

    Args:
        book: of the feed.
        hosts: of the program.
        layout: of its directory.
        token: lets rows in.
        room: a context in which Spark's tasks (True) have room.
    """

    def __init__(
        self,
        book: FeedBook,
        hosts: Hosts,
        layout: Layout,
        token: str,
        room: Callable[[bool], AbstractContextManager[None]],
    ) -> None:
        self.book = book
        self._hosts, self._layout, self._token, self._room = hosts, layout, token, room
        self._serial = threading.RLock()
        """Held while rows of this feed go."""

    # ------------------------------------------------------------------------------------------- asked by others

    def feed(self, source: Source, epochs: int, end: bool, timeout: float | None) -> int:
        """Send all rows so often, to each attempt of the program anew; how many. With `end`, until they are taken."""
        with self._serial:
            while True:
                try:
                    self._repeat(timeout)
                    rows, lives = self._all(source, epochs, timeout, self.book.lives)
                    if end:
                        self.end()
                        self._taken(timeout, lives)
                    self.book.keep(source, epochs, lives)
                    return rows
                except _Again:
                    self.book.begin_again()
                    if not self.book.lacked(self._hosts.lives):
                        log.warning(
                            "%s was started again: the rows of feed %r go again", self._layout.root, self.book.name
                        )

    def end(self) -> None:
        """No more rows come."""
        self.book.ended = True
        self._hosts.tell(self.book.name, "ended")

    def catch_up(self) -> None:
        """Feed again what no call of the user's is about to, after the program was started again."""
        with self._serial:
            while self.book.lacked(self._hosts.lives):
                try:
                    self._repeat(None)
                except _Again:
                    self.book.begin_again()
                except HopyardError as error:  # the program is over, and says why
                    log.info("%s: feed %r: %s", self._layout.root, self.book.name, error)
                    return

    def doors(self, begun: bool = False) -> list[Door]:
        """Where rows go. Waits for a program that starts, or starts again. Nowhere, if the program had enough of
        what was begun.

        Raises:
            ProgramFailed: it is over.
            HopyardError: a worker does not open its door.
        """
        name = self.book.name
        while self._hosts.machine.phase in ("reserving", "failing", "restarting") and not self._hosts.ended.is_set():
            time.sleep(0.02)  # the program's own patience ends this
        self._hosts.tell(name, "open", text=self.book.uneven)
        try:
            found = self._hosts.doors(time.monotonic() + OPEN_SECONDS)
        except TimeoutError:
            raise HopyardError(
                f"feed {name!r}: not every worker opened its door within {OPEN_SECONDS:.0f} seconds; program.status() "
                "and program.logs() say what they do"
            ) from None
        if not found and not (begun and self._hosts.machine.status == "done"):
            self._is_over()
        return [Door(**door) for door in found]

    def heard(self, word: FeedWord) -> None:
        """What a worker says of this feed."""
        if word.word == "taken":
            self.book.takes(word.slot, word.number, word.flag)
        elif word.word == "counts":
            allowed = self.book.says(word.slot, Count(word.number, word.flag), self._hosts.fed)
            if allowed is not None:
                self._hosts.tell(word.feed, "allowed", allowed.batches, allowed.ended)

    # ------------------------------------------------------------------------------------------- sending

    def _repeat(self, timeout: float | None) -> None:
        """What was fed before, for a program that was started again since."""
        lacked = self.book.lacked(self._hosts.lives)
        if not lacked:
            return
        self._unless_doubled()
        log.warning("%s was started again: the rows of feed %r go again", self._layout.root, self.book.name)
        lives: Lives | None = None
        for source, epochs in lacked:
            _, lives = self._all(source, epochs, timeout, lives)
        if self.book.ended:
            self._hosts.tell(self.book.name, "ended")
        self.book.caught_up(lives)

    def _all(
        self, source: Source, epochs: int, timeout: float | None, poured: Lives | None
    ) -> tuple[int, Lives | None]:
        """Send all rows so often: how many, and to which tasks. `poured`: those that have what was sent before."""
        rows = 0
        for _ in range(epochs):
            doors = self.doors(rows > 0)
            if not doors:
                break
            lives = self._hosts.lives
            if poured not in (None, lives):  # started again between two epochs
                self._unless_doubled()
                raise _Again
            poured = lives
            road = Road(tuple(doors), self._token, self.book.name, self.book.begin_epoch(), self.book.uneven)
            with self._room(source.spark):
                rows += self._watched(source, road, lives, timeout)
        return rows, poured

    def _watched(self, source: Source, road: Road, lives: Lives, timeout: float | None) -> int:
        """Send the rows of one epoch from another thread, and watch the program."""
        done: list[int] = []
        broken: list[BaseException] = []

        def run() -> None:
            try:
                done.append(source.pour(road))
            except BaseException as error:  # noqa: BLE001 - raised in the user's thread
                broken.append(error)

        thread = threading.Thread(target=run, name="hopyard-feed", daemon=True)
        thread.start()
        stall = _Stall(self.book, self._hosts, timeout)
        try:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
                if self._hosts.ended.is_set() or self._hosts.lives != lives:
                    break
                stall.look()
        except BaseException:
            source.cancel()
            raise
        if done:
            return done[0]
        again = self._over_or_again(lives)
        if again is None:  # it had enough
            source.cancel()
            return sum(rows for rows, _ in self.book.taken.values())
        if again:
            source.cancel()
            self._unless_doubled()
            raise _Again
        if thread.is_alive():
            source.cancel()
            thread.join(LAST_WORDS)
        if done:
            return done[0]
        words = f"feed {road.feed!r} broke off: {_short(broken[0]) if broken else 'its source does not end'}"
        self._hosts.tell(road.feed, "failed", text=words)  # who waits for the rest would wait for ever
        raise HopyardError(words) from broken[0] if broken else None

    def _taken(self, timeout: float | None, lives: Lives | None) -> None:
        """Wait until the program has taken all rows, or wants no more."""
        lives = self._hosts.lives if lives is None else lives
        stall = _Stall(self.book, self._hosts, timeout, eager=True)
        self.book.ask_anew()
        while not self._hosts.ended.is_set():
            if self._hosts.lives != lives:
                if self._over_or_again(lives):
                    raise _Again
                return
            stall.look()
            if self.book.all_taken(self._hosts.fed):
                return
            time.sleep(LOOK_SECONDS)
        if self._hosts.machine.status == "failed" or self._hosts.error is not None:
            self._is_over()

    # ------------------------------------------------------------------------------------------- the program

    def _over_or_again(self, lives: Lives) -> bool | None:
        """A feed broke off: wait for what the program has to say. True: it was started again; None: it is done.

        Raises:
            ProgramFailed: it is over.
        """
        until = time.monotonic() + 3.0
        while time.monotonic() < until or self._hosts.machine.phase in ("failing", "restarting", "closing"):
            if self._hosts.ended.is_set():
                if self._hosts.machine.status == "done" and self._hosts.error is None:
                    return None
                self._is_over()
            if self._hosts.lives != lives and self._hosts.machine.phase == "running":
                return True
            time.sleep(0.02)
        return False

    def _unless_doubled(self) -> None:
        """Raises HopyardError where rows cannot go again."""
        if words := self.book.doubled:
            self._hosts.tell(self.book.name, "failed", text=words)
            raise HopyardError(words)

    def _is_over(self) -> None:
        """Raises what a feed of a program that is over raises."""
        self._hosts.ended.wait(LAST_WORDS)
        if self._hosts.error is not None:
            raise self._hosts.error
        machine = self._hosts.machine
        if machine.status == "failed":
            raise failure(machine, self._layout)
        raise ProgramFailed(
            f"{self._layout.root}: feed {self.book.name!r}: the program is over ({machine.status}); launch it again"
        )


class _Stall:
    """Tells when a worker that has rows takes none."""

    def __init__(self, book: FeedBook, hosts: Hosts, timeout: float | None, eager: bool = False) -> None:
        self._book, self._hosts, self._timeout, self._eager = book, hosts, timeout, eager
        self._moved: dict[int, tuple[int, float]] = {}
        self._began = self._asked = time.monotonic()

    def look(self) -> None:
        """Ask them; raises HopyardError when one has taken nothing for too long."""
        now, taken = time.monotonic(), self._book.taken
        if now - self._asked >= (min(ASK_SECONDS, (now - self._began) / 10) if self._eager else ASK_SECONDS):
            self._asked = now
            self._hosts.tell(self._book.name, "ask")
        for slot, (rows, waiting) in taken.items():
            last, since = self._moved.get(slot, (-1, now))
            if rows != last or not waiting:
                self._moved[slot] = rows, now
            elif self._timeout is not None and now - since > self._timeout:
                task = self._hosts.machine.tasks.get(slot)
                who = task.task.name if task is not None else f"slot {slot}"
                words = (
                    f"feed {self._book.name!r}: {who} has taken no row for {self._timeout:.0f} seconds, though rows "
                    f"wait for it ({rows:,} taken so far): does its main read ctx.feed({self._book.name!r})? "
                    "feed(timeout=…) says how long to wait"
                )
                self._hosts.tell(self._book.name, "failed", text=words)
                raise HopyardError(words)


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    told = [
        line for line in lines if line.startswith(("hopyard.", "ConnectionError", "pyspark.errors")) and ": " in line
    ]
    return (told or lines or [type(error).__name__])[-1 if told else 0][:800]
