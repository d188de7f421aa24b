"""The follower: brings a tracker to the present state of a run, again and again, until the run has ended.

It reads the journal, as all readers of a run do. So the run never waits for a tracker, and a follower that is killed
leaves nothing behind: the next one reads the journal from its start. What a tracker gets depends on the journal alone,
times included.
"""

from __future__ import annotations

import fcntl
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from hopyard.core.runs.machine import Machine
from hopyard.errors import HopyardError, RunDirectoryError, UsageError
from hopyard.store.layout import Layout
from hopyard.store.standing import held, status_of
from hopyard.text import error_line, escaped
from hopyard.tracking.progress import Progress, note
from hopyard.tracking.reading import LOOK, PORTION, ReadAgain, Reading
from hopyard.tracking.records import Record

log = logging.getLogger(__name__)


class Refused(HopyardError):
    """The tracker accepts nothing more of this run."""


class News(NamedTuple):
    """What a tracker does not have yet."""

    records: tuple[Record, ...]
    """Those since the last update that succeeded, of this follower: its first update begins with the run's start,
    whatever another one has sent."""
    machine: Machine
    """The state of the run after these records."""
    status: str
    """The run's status. While the journal has more than these records, it is "running"."""
    at: float
    """When the last of these lines of the journal was written."""


class Tracker(Protocol):
    """What shows runs to people. Made anew by each follower, and again where a journal is read anew.

    Attributes:
        gap: seconds between two updates.
    """

    gap: float

    def update(self, news: News) -> None:
        """Bring the tracker up to date. What it has already, by an earlier follower or a try that failed half way, is
        not sent twice.

        Raises:
            Refused: it accepts nothing more of this run.
            OSError: the next try may succeed.
            ReadAgain: it has lost what it had, and gets the run from its start.
        """
        ...


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a follower, in seconds."""

    look: float = LOOK
    """Between two looks at the journal."""
    pause: float = 1.0
    """After an update that failed, and twice as long after each further one."""
    longest: float = 60.0
    """The longest of these pauses."""
    grace: float = 600.0
    """From the end of the run, the start of a follower that begins later, or the last update that succeeded, until it
    gives up."""


USUAL = Pace()
ONCE = Pace(grace=30.0)
"""For `hopyard track`, whose user is waiting."""


class Sender:
    """Sends news of a run to a tracker. Owns what is not sent yet, and when the next try is due.

    Args:
        tracker: see `Tracker`.
        pace: see `Pace`.
        progress: before the first update.
        note: takes each change of `progress`.

    Attributes:
        progress: how far the tracker is.
        since: when an update last succeeded, or 0.
    """

    def __init__(self, tracker: Tracker, pace: Pace, progress: Progress, note: Callable[[Progress], None]) -> None:
        self._tracker, self._pace, self._note = tracker, pace, note
        self._due, self._pause = 0.0, pace.pause
        self._records: list[Record] = []
        self._sent = 0, ""
        """Lines of the journal that the tracker has, and the status."""
        self.progress, self.since = progress, 0.0

    @property
    def full(self) -> bool:
        """Whether what is not sent is enough for now."""
        return len(self._records) >= PORTION

    def has(self, lines: int, status: str) -> bool:
        """Whether the tracker has so many lines, and this status."""
        return self._sent == (lines, status)

    def hurry(self) -> None:
        """Make the next try at once."""
        self._due, self._pause = 0.0, self._pace.pause

    def add(self, records: list[Record]) -> None:
        """Add what the next update sends."""
        self._records += records

    def send(self, machine: Machine, status: str, at: float, lines: int, whole: bool = True) -> None:
        """Send what was added, unless the tracker has this state or no try is due. Where the journal has more (`whole`
        is False), the next one is due at once."""
        if self.has(lines, status) or time.monotonic() < self._due:
            return
        try:
            self._tracker.update(News(tuple(self._records), machine, status, at))
        except OSError as error:
            if self.progress.problem != str(error):
                log.warning("not sent, tried again: %s", escaped(str(error)))
                self._set(problem=str(error))
            self._due, self._pause = time.monotonic() + self._pause, min(2 * self._pause, self._pace.longest)
            return
        if self.progress.problem:
            log.info("sent again")
        self._records.clear()
        self._sent, self.since = (lines, status), time.monotonic()
        self._set(at=at, status=status, problem="")
        self._due, self._pause = time.monotonic() + whole * self._tracker.gap, self._pace.pause

    def _set(self, **changes: str | float) -> None:
        self.progress = msgspec.structs.replace(self.progress, **changes)
        self._note(self.progress)


def follow(
    layout: Layout,
    track: str,
    connect: Callable[[], Tracker],
    pace: Pace | None = None,
    once: bool = False,
    wait: bool = True,
) -> None:
    """Update a tracker whenever the run has changed, until its driver has ended and the tracker has all.

    One update is made at a time, with all that is there then. The end of the run is sent at once, without the rest of
    a gap or pause: in a pod, little time is left once the driver has ended. One follower at a time does this for a
    target.

    Args:
        layout: of the run.
        track: the tracker, NAME or NAME=TARGET.
        connect: makes the tracker.
        pace: see `Pace`; None: `USUAL`, or `ONCE`.
        once: end as soon as the tracker has all that has happened so far, even if the run goes on.
        wait: if another follower is at work, wait until it has ended, however it does.

    Raises:
        Refused: the tracker accepts nothing more.
        UsageError: another follower is at work, and this one does not wait.
        JournalError: the journal is damaged, or of a newer version.
        HopyardError: the tracker could not be reached for too long after the end of the run.
    """
    pace = pace or (ONCE if once else USUAL)
    layout.logs.mkdir(exist_ok=True)
    with layout.tracking_log(track).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise UsageError(
                f"a follower of {layout.shown} is at work already; `hopyard show {layout.shown}` says how far it is"
            ) from None
        progress = Progress(track)

        def noted(value: Progress) -> None:
            nonlocal progress
            progress = value
            note(layout, value)

        pause = pace.pause
        while True:
            try:
                _follow(layout, Sender(connect(), pace, Progress(track), noted), pace, once)
                return
            except ReadAgain as error:
                if pause > pace.longest and (once or not held(layout.lock)):
                    noted(msgspec.structs.replace(progress, problem=f"given up: {error}"))
                    raise HopyardError(f"given up: {error}") from None
                time.sleep(min(pause, pace.longest))
                pause *= 2
            except Exception as error:
                noted(msgspec.structs.replace(progress, problem=error_line(error)))
                raise


def _follow(layout: Layout, sender: Sender, pace: Pace, once: bool) -> None:
    """Do the same with one reading of the journal."""
    alive, over = time.monotonic(), False  # when the run was last seen to go on, whether it has ended since
    reading = Reading(layout)
    while True:
        live = held(layout.lock)  # asked first: of a driver that is gone, all lines are read
        if not sender.full:
            sender.add(reading.more())
        machine, last = reading.machine, reading.last
        if machine is not None and last is not None:
            ended = once or not live or (reading.whole and machine.ended)
            if not ended:
                alive, over = time.monotonic(), False
            elif not over:
                over = True
                sender.hurry()
            status = status_of(machine.status, live, last, bool(layout.url)) if reading.whole else "running"
            sender.send(machine, status, last.at, reading.count, reading.whole)
            late = time.monotonic() > max(alive, sender.since) + pace.grace
            # A driver that holds the lock may be about to go on with an ended run.
            if over and reading.whole and sender.has(reading.count, status):
                if once or late or not held(layout.lock):
                    return
            elif over and late:
                raise HopyardError(f"not sent in {pace.grace:g} s, given up: {sender.progress.problem}")
        elif not live:  # else the driver has written nothing yet
            raise RunDirectoryError(f"{layout.root}: the journal is empty, so there is nothing to track")
        if reading.whole or sender.full:
            time.sleep(pace.look)
