"""Feeding a program from its driver's side: which jobs pour the rows, what happens meanwhile, and when it is over.

Rows of Spark go from Spark's tasks, the driver never sees them; rows that are here already go from here, a thread for
each worker. While rows go, the program is watched: when it fails, the feed fails with *its* error; when it was started
again, all rows go again; when a worker takes no row for too long, the feed says which.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from hopyard.core.hosting import FeedWord
from hopyard.core.uneven import RULES, Count, allowed
from hopyard.data.door import Door
from hopyard.data.pour import Road
from hopyard.data.spark import checked, is_frame, mapped
from hopyard.driver.hosts import Hosts
from hopyard.driver.program import failure
from hopyard.driver.sources import Source, source_of
from hopyard.errors import HopyardError, ProgramFailed, SpecError
from hopyard.store.layout import Layout

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
"""Between looks at how far the workers are."""
ASK_SECONDS = 0.5
"""Between questions to a worker that answers; rows that are waited for are asked after more often."""
OPEN_SECONDS = 120.0
"""Until each worker of a program that runs has opened its door."""
LAST_WORDS = 15.0
"""For the program to say why a feed broke off."""


NOTHING = Count(0, False)


@dataclass(slots=True)
class _Open:
    """One feed that workers know of."""

    uneven: Literal["join", "min", "repeat"]
    epochs: int = 0
    """That were poured, in all calls."""
    counts: dict[int, Count] = field(default_factory=dict)
    taken: dict[int, tuple[int, bool]] = field(default_factory=dict)
    """Slot → (rows that its program took, whether more wait)."""
    allowed: Count = NOTHING
    serial: Any = field(default_factory=threading.RLock)
    """Held while rows of this feed go."""
    kept: list[tuple[Source, int]] = field(default_factory=list)
    """What was fed, and how often, where the program may be started again: then it goes again."""
    lives: frozenset[int] | None = None
    """The tasks that have all that is kept."""
    ended: bool = False

    def begin_again(self) -> None:
        """Forget what tasks of an earlier attempt said."""
        self.counts.clear()
        self.taken.clear()
        self.allowed = NOTHING
        self.lives = None


class _Again(Exception):
    """The program was started again: its workers want all rows again."""


class Feeding:
    """Owner of a program's feeds. `feed` and `infer` may be called from several threads, for several feeds."""

    def __init__(self, hosts: Hosts, layout: Layout, token: str, lend: bool = False) -> None:
        self._hosts, self._layout, self._token = hosts, layout, token
        self._feeds: dict[str, _Open] = {}
        self._lock = threading.Lock()
        self._kept = contextlib.ExitStack()
        """What inferences, which may come at any time, keep to the program's end."""
        self._aside = 0
        """Who needs room in Spark's books right now; an inference needs it to the program's end."""
        self._lends = lend
        hosts.heard = self._heard
        hosts.assigned = self._assigned
        if lend:
            self._aside += 1

    def _assigned(self) -> None:
        """Each task has its slot. Other jobs may have their cores, where they are lent; a program that was started
        again gets what was fed before."""
        if self._lends:
            try:
                self._hosts.link.crew.aside(self._fed())
            except HopyardError as error:
                log.warning("%s: %s", self._layout.root, error)
        machine = self._hosts.machine
        if machine.restart and machine.spec.restart == "program":
            for name, feed in self._feeds.copy().items():
                if feed.kept:
                    threading.Thread(target=self._replay, args=(name, feed), name="hopyard-replay", daemon=True).start()

    def _replay(self, name: str, feed: _Open) -> None:
        """In a thread of its own: feed again what no call of the user's is about to."""
        with feed.serial:
            while feed.lives != self._lives():
                try:
                    self._repeated(name, feed, None)
                except _Again:
                    feed.begin_again()
                except HopyardError as error:  # the program is over, and says why
                    log.info("%s: feed %r: %s", self._layout.root, name, error)
                    return

    def _repeated(self, name: str, feed: _Open, timeout: float | None) -> None:
        """What was fed before, for a program that was started again since."""
        if not feed.kept or feed.lives == self._lives():
            return
        self._unless_doubled(name)
        log.warning("%s was started again: the rows of feed %r go again from the first", self._layout.root, name)
        lives: frozenset[int] | None = None
        for source, epochs in feed.kept:
            _, lives = self._all(source, name, feed, epochs, timeout, lives)
        if feed.ended:
            self._hosts.tell(name, "ended")
        feed.lives = lives

    # ------------------------------------------------------------------------------------------------ feeding

    def feed(self, data: Any, *, epochs: int, name: str, uneven: Any, end: bool, timeout: float | None) -> int:
        """See `Program.feed`."""
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0:
            raise SpecError(f"feed(epochs={epochs!r}): a whole number of at least 0 is needed")
        if uneven not in RULES:
            raise SpecError(f"feed(uneven={uneven!r}): one of {', '.join(map(repr, RULES))} is needed")
        if not isinstance(name, str) or not name:
            raise SpecError(f"feed(name={name!r}): a name is needed")
        _patient("feed", timeout)
        with self._lock:
            feed = self._feeds.setdefault(name, _Open(uneven))
            if feed.uneven != uneven:
                raise SpecError(f"feed(uneven={uneven!r}): the feed {name!r} was opened with {feed.uneven!r}")
        source = source_of(data)
        with feed.serial:
            while True:
                try:
                    self._repeated(name, feed, timeout)
                    rows, lives = self._all(source, name, feed, epochs, timeout, feed.lives)
                    if end:
                        self.end(name)
                        self._taken(name, feed, timeout, lives)
                    if self._hosts.machine.spec.restarts:
                        feed.kept.append((source, epochs))
                        feed.lives = lives
                    return rows
                except _Again:
                    feed.begin_again()
                    if not feed.kept:
                        log.warning("%s was started again: the rows of feed %r go again", self._layout.root, name)

    def end(self, name: str) -> None:
        """No more rows of this feed."""
        if name in self._feeds:
            self._feeds[name].ended = True
        self._hosts.tell(name, "ended")

    def _all(
        self,
        source: Source,
        name: str,
        feed: _Open,
        epochs: int,
        timeout: float | None,
        poured: frozenset[int] | None,
    ) -> tuple[int, frozenset[int] | None]:
        """Send all rows so often: how many, and to which tasks. `poured`: those that have what was sent before."""
        rows = 0
        for _ in range(epochs):
            doors = self._doors(name, feed, rows > 0)
            if not doors:
                break
            lives = self._lives()
            if poured not in (None, lives):  # started again between two epochs
                self._unless_doubled(name)
                raise _Again
            poured = lives
            feed.epochs += 1
            road = Road(tuple(doors), self._token, name, feed.epochs, feed.uneven)
            with self._room(source.spark):
                rows += self._watched(source, road, feed, lives, timeout)
        return rows, poured

    def _doors(self, name: str, feed: _Open, begun: bool = False) -> list[Door]:
        """Where rows go. Waits for a program that starts, or starts again. Nowhere, if the program had enough of
        what was begun."""
        while self._hosts.machine.phase in ("reserving", "failing", "restarting") and not self._hosts.ended.is_set():
            time.sleep(0.02)  # the program's own patience ends this
        self._hosts.tell(name, "open", text=feed.uneven)
        try:
            found = self._hosts.doors(time.monotonic() + OPEN_SECONDS)
        except TimeoutError:
            raise HopyardError(
                f"feed {name!r}: not every worker opened its door within {OPEN_SECONDS:.0f} seconds; program.status() "
                "and program.logs() say what they do"
            ) from None
        if not found and not (begun and self._hosts.machine.status == "done"):
            self._is_over(name)
        return [Door(**door) for door in found]

    def _is_over(self, name: str) -> None:
        """Raises what a feed of a program that is over raises."""
        self._hosts.ended.wait(LAST_WORDS)
        if self._hosts.error is not None:
            raise self._hosts.error
        machine = self._hosts.machine
        if machine.status == "failed":
            raise failure(machine, self._layout)
        raise ProgramFailed(
            f"{self._layout.root}: feed {name!r}: the program is over ({machine.status}); launch it again"
        )

    def _watched(
        self,
        source: Source,
        road: Road,
        feed: _Open,
        lives: frozenset[int],
        timeout: float | None,
    ) -> int:
        """Send the rows of one epoch from another thread, and watch the program."""
        name = road.feed
        done: list[int] = []
        broken: list[BaseException] = []

        def run() -> None:
            try:
                done.append(source.pour(road))
            except BaseException as error:  # noqa: BLE001 - raised in the user's thread
                broken.append(error)

        thread = threading.Thread(target=run, name="hopyard-feed", daemon=True)
        thread.start()
        stall = _Stall(self, name, feed, timeout)
        try:
            while thread.is_alive():
                thread.join(LOOK_SECONDS)
                if self._hosts.ended.is_set() or self._lives() != lives:
                    break
                stall.look()
        except BaseException:
            source.cancel()
            raise
        if done:
            return done[0]
        again = self._over_or_again(name, lives)
        if again is None:  # it had enough
            source.cancel()
            return sum(number for number, _ in feed.taken.values())
        if again:
            source.cancel()
            self._unless_doubled(name)
            raise _Again
        if thread.is_alive():
            source.cancel()
            thread.join(LAST_WORDS)
        if done:
            return done[0]
        words = f"feed {name!r} broke off: {_short(broken[0]) if broken else 'its source does not end'}"
        self._hosts.tell(name, "failed", text=words)  # who waits for the rest would wait for ever
        raise HopyardError(words) from broken[0] if broken else None

    def _over_or_again(self, name: str, lives: frozenset[int]) -> bool | None:
        """A feed broke off: wait for what the program has to say. True: it was started again; None: it is done.

        Raises:
            ProgramFailed: it is over.
        """
        until = time.monotonic() + 3.0
        while time.monotonic() < until or self._hosts.machine.phase in ("failing", "restarting", "closing"):
            if self._hosts.ended.is_set():
                if self._hosts.machine.status == "done" and self._hosts.error is None:
                    return None
                self._is_over(name)
            if self._lives() != lives and self._hosts.machine.phase == "running":
                return True
            time.sleep(0.02)
        return False

    def _unless_doubled(self, name: str) -> None:
        """Raises HopyardError where only one task was started again: the others have rows that would come twice."""
        if self._hosts.machine.spec.restart == "task":
            words = (
                f'feed {name!r}: a task was started again by itself (restart="task"), and the others have rows that it '
                'lacks: each row could not come once. Give restart="program" to a program that is fed'
            )
            self._hosts.tell(name, "failed", text=words)
            raise HopyardError(words)

    def _taken(self, name: str, feed: _Open, timeout: float | None, lives: frozenset[int] | None) -> None:
        """Wait until the program has taken all rows, or wants no more."""
        lives = self._lives() if lives is None else lives
        stall = _Stall(self, name, feed, timeout)
        feed.taken.clear()
        while not self._hosts.ended.is_set():
            if self._lives() != lives:
                if self._over_or_again(name, lives):
                    raise _Again
                return
            stall.look()
            fed = self._fed()
            if fed and all(slot in feed.taken and not feed.taken[slot][1] for slot in fed):
                return
            time.sleep(LOOK_SECONDS)
        if self._hosts.machine.status == "failed" or self._hosts.error is not None:
            self._is_over(name)

    # ------------------------------------------------------------------------------------------------ inference

    def infer(self, data: Any, *, schema: Any, name: str, timeout: float | None) -> Any:
        """See `Program.infer`."""
        _patient("infer", timeout)
        with self._lock:
            feed = self._feeds.setdefault(name, _Open("join"))
        if is_frame(data):
            checked(data, "data")
            if schema is None:
                raise SpecError(
                    'infer(schema=None): the columns of the answers are needed, for example "prediction double"'
                )
        elif not hasattr(data, "mapPartitionsWithIndex"):
            raise SpecError(f"infer({type(data).__name__}): a DataFrame or an RDD is needed")
        from hopyard.data.inferring import inferring, inferring_rows

        doors = self._doors(name, feed)
        road = Road(tuple(doors), self._token, name, feed.epochs, timeout=timeout)
        self._kept.enter_context(self._room(True))
        if is_frame(data):
            zone = data.sparkSession.conf.get("spark.sql.session.timeZone", "UTC")
            return mapped(data, inferring(road, schema, zone), schema)
        return data.mapPartitionsWithIndex(inferring_rows(road))

    # ------------------------------------------------------------------------------------------------ the program

    @contextlib.contextmanager
    def _room(self, spark: bool) -> Iterator[None]:
        """Room for Spark's tasks where each executor has one core: sitters of fed workers step aside."""
        if not spark:
            yield
            return
        with self._lock:
            self._aside += 1
        try:
            self._hosts.link.crew.aside(self._fed())
            yield
        finally:
            with self._lock:
                self._aside -= 1
                if not self._aside and not self._hosts.ended.is_set():
                    self._hosts.link.crew.back()

    def _fed(self) -> list[int]:
        return [book.task.slot for book in self._hosts.machine.tasks.copy().values() if book.task.rank >= 0]

    def _lives(self) -> frozenset[int]:
        """Which tasks there are; others after a restart."""
        return frozenset(book.life for book in self._hosts.machine.tasks.copy().values() if book.task.rank >= 0)

    def _heard(self, word: FeedWord) -> None:
        feed = self._feeds.get(word.feed)
        if feed is None:
            return
        if word.word == "taken":
            feed.taken[word.slot] = word.number, word.flag
        elif word.word == "counts" and feed.uneven != "join":
            feed.counts[word.slot] = Count(word.number, word.flag)
            fed = self._fed()
            now = allowed(feed.uneven, [feed.counts.get(slot, NOTHING) for slot in fed])
            if now != feed.allowed:
                feed.allowed = now
                self._hosts.tell(word.feed, "allowed", now.batches, now.ended)


class _Stall:
    """Tells when a worker that has rows takes none."""

    def __init__(self, feeding: Feeding, name: str, feed: _Open, timeout: float | None) -> None:
        self._feeding, self._name, self._feed, self._timeout = feeding, name, feed, timeout
        self._moved: dict[int, tuple[int, float]] = {}
        self._asked = 0.0

    def look(self) -> None:
        """Ask them; raises HopyardError when one has taken nothing for too long."""
        now = time.monotonic()
        if now - self._asked >= (ASK_SECONDS if self._feed.taken else LOOK_SECONDS):
            self._asked = now
            self._feeding._hosts.tell(self._name, "ask")
        for slot, (number, waiting) in self._feed.taken.copy().items():
            last, since = self._moved.get(slot, (-1, now))
            if number != last or not waiting:
                self._moved[slot] = number, now
            elif self._timeout is not None and now - since > self._timeout:
                book = self._feeding._hosts.machine.tasks.get(slot)
                who = book.task.name if book is not None else f"slot {slot}"
                words = (
                    f"feed {self._name!r}: {who} has taken no row for {self._timeout:.0f} seconds, though rows wait "
                    f"for it ({number:,} taken so far): does its main read ctx.feed({self._name!r})? feed(timeout=…) "
                    "says how long to wait"
                )
                self._feeding._hosts.tell(self._name, "failed", text=words)
                raise HopyardError(words)


def _patient(what: str, timeout: float | None) -> None:
    number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if timeout is not None and not (number and timeout > 0):
        raise SpecError(f"{what}(timeout={timeout!r}): seconds, more than 0, or None are needed")


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    told = [
        line for line in lines if line.startswith(("hopyard.", "ConnectionError", "pyspark.errors")) and ": " in line
    ]
    return (told or lines or [type(error).__name__])[-1 if told else 0][:800]
