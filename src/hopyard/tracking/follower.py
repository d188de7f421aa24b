"""The follower: brings a tracker to the present state of a run, again and again, until the run has ended.

It reads the journal, as all readers of a run do. So the run never waits for a tracker, and a follower that is killed
leaves nothing behind: the next one reads the journal from its start. What a tracker gets depends on the journal alone,
times included.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from hopyard.core.runs.machine import Machine
from hopyard.errors import HopyardError, RunDirectoryError
from hopyard.store.layout import Layout
from hopyard.store.standing import held, status_of
from hopyard.system.files import replacing
from hopyard.text import escaped
from hopyard.tracking.reading import LOOK, PORTION, Changed, Reading
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
            Changed: it has lost what it had, and gets the run from its start.
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
    """From the end of the run, or the start of a follower that begins later, until it gives up."""


USUAL = Pace()


class Progress(msgspec.Struct, frozen=True):
    """How far a tracker is, for people: a follower writes it, and none reads it."""

    track: str
    """The tracker: NAME or NAME=TARGET."""
    at: float = 0.0
    """When the last line of the journal was written that the tracker has; 0: it has none."""
    status: str = ""
    """The run's status then."""
    problem: str = ""
    """Why the last try failed; empty: it did not."""
    final: bool = False
    """Whether the problem is one that does not pass, so that the follower has ended."""


class Sender:
    """Sends news of a run to a tracker. Owns what is not sent yet, and when the next try is due.

    Args:
        tracker: see `Tracker`.
        pace: see `Pace`.
        note: takes each change of `progress`.
        progress: before the first update.
    """

    def __init__(self, tracker: Tracker, pace: Pace, note: Callable[[Progress], None], progress: Progress) -> None:
        self._tracker, self._pace, self._note = tracker, pace, note
        self._due, self._pause = 0.0, pace.pause
        self._records: list[Record] = []
        self.progress = progress

    @property
    def full(self) -> bool:
        """Whether what is not sent is enough for now."""
        return len(self._records) >= PORTION

    def sent(self, at: float, status: str) -> bool:
        """Whether the tracker has all up to this line."""
        return (self.progress.at, self.progress.status) == (at, status)

    def hurry(self) -> None:
        """Make the next try at once."""
        self._due, self._pause = 0.0, self._pace.pause

    def add(self, records: list[Record]) -> None:
        """Add what the next update sends."""
        self._records += records

    def send(self, machine: Machine, status: str, at: float, whole: bool = True) -> None:
        """Send what was added, unless the tracker has this state or no try is due. Where the journal has more (`whole`
        is False), the next one is due at once."""
        if self.sent(at, status) or time.monotonic() < self._due:
            return
        try:
            self._tracker.update(News(tuple(self._records), machine, status, at))
        except OSError as error:
            if self.progress.problem != str(error):
                log.warning("not sent, tried again: %s", escaped(str(error)))
                self._set(problem=str(error))
            self._due, self._pause = time.monotonic() + self._pause, min(2 * self._pause, self._pace.longest)
            return
        except Refused as error:
            self._set(problem=str(error), final=True)
            raise
        if self.progress.problem:
            log.info("sent again")
        self._records.clear()
        self._set(at=at, status=status, problem="")
        self._due, self._pause = time.monotonic() + whole * self._tracker.gap, self._pace.pause

    def _set(self, **changes: str | float | bool) -> None:
        self.progress = msgspec.structs.replace(self.progress, **changes)
        self._note(self.progress)


def follow(layout: Layout, track: str, connect: Callable[[], Tracker], pace: Pace = USUAL) -> None:
    """Update a tracker whenever the run has changed, until its driver has ended and the tracker has all.

    One update is made at a time, with all that is there then. The end of the run is sent at once, without the rest of
    a gap or pause: in a pod, little time is left once the driver has ended. One follower at a time does this for a
    target; others wait until it has ended, however it does.

    Args:
        layout: of the run.
        track: the tracker, NAME or NAME=TARGET.
        connect: makes the tracker.
        pace: see `Pace`.

    Raises:
        Refused: the tracker accepts nothing more.
        JournalError: the journal is damaged, or of a newer version.
        HopyardError: the tracker could not be reached for too long after the end of the run.
    """
    progress = Progress(track)

    def note(value: Progress) -> None:
        nonlocal progress
        progress = value
        with contextlib.suppress(OSError), replacing(layout.tracking_progress(track)) as part:
            part.write_bytes(msgspec.json.encode(value))

    with layout.tracking_log(track).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        while True:
            with contextlib.suppress(Changed):
                _follow(layout, Sender(connect(), pace, note, progress), pace)
                return
            progress = Progress(track)


def _follow(layout: Layout, sender: Sender, pace: Pace) -> None:
    """Do the same with one reading of the journal."""
    alive, over = time.monotonic(), False  # when the run was last seen to go on, whether it has ended since
    reading = Reading(layout)
    while True:
        live = held(layout.lock)  # asked first: of a driver that is gone, all lines are read
        if not sender.full:
            sender.add(reading.more())
        machine, last = reading.machine, reading.last
        if machine is not None and last is not None:
            ended = not live or (reading.whole and machine.ended)
            if not ended:
                alive, over = time.monotonic(), False
            elif not over:
                over = True
                sender.hurry()
            status = status_of(machine.status, live, last) if reading.whole else "running"
            sender.send(machine, status, last.at, reading.whole)
            late = time.monotonic() > alive + pace.grace
            # A driver that holds the lock may be about to go on with an ended run.
            if over and reading.whole and sender.sent(last.at, status) and (late or not held(layout.lock)):
                return
            if over and late:
                reason = sender.progress.problem
                raise HopyardError(f"the run ended {pace.grace:g} s ago, and not all of it was sent: {reason}")
        elif not live:  # else the driver has written nothing yet
            raise RunDirectoryError(f"{layout.root}: the journal is empty, so there is nothing to track")
        if reading.whole or sender.full:
            time.sleep(pace.look)
