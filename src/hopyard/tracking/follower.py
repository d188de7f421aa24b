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

from hopyard.core.runs.machine import Machine
from hopyard.driver.runs.fold import Fold
from hopyard.errors import HopyardError, RunDirectoryError
from hopyard.store.layout import Layout
from hopyard.store.standing import held
from hopyard.text import escaped

log = logging.getLogger(__name__)

Update = Callable[[Machine, str, float], None]
"""Brings a tracker to the state of a run: its machine, its status, and when the last line of its journal was written.
Raises `Refused`, or OSError where the next try may succeed."""


class Refused(HopyardError):
    """The tracker accepts nothing more of this run."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The times of a follower, in seconds."""

    look: float = 0.5
    """Between two looks at the journal."""
    gap: float = 5.0
    """Between two updates."""
    pause: float = 1.0
    """After an update that failed, and twice as long after each further one."""
    longest: float = 60.0
    """The longest of these pauses."""
    grace: float = 600.0
    """From the end of the run, or the start of a follower that begins later, until it gives up."""


USUAL = Pace()


class Sender:
    """Sends states of a run to a tracker. Owns what was sent, and when the next try is due.

    Args:
        update: see `Update`.
        pace: see `Pace`.

    Attributes:
        sent: time and status of the last state that the tracker has; None: it has none.
        problem: why the last try failed; empty: it did not.
    """

    def __init__(self, update: Update, pace: Pace) -> None:
        self._update, self._pace = update, pace
        self._due, self._pause = 0.0, pace.pause
        self.sent: tuple[float, str] | None = None
        self.problem = ""

    def hurry(self) -> None:
        """Make the next try at once."""
        self._due, self._pause = 0.0, self._pace.pause

    def send(self, machine: Machine, status: str, at: float) -> None:
        """Send this state, unless the tracker has it or no try is due."""
        if self.sent == (at, status) or time.monotonic() < self._due:
            return
        try:
            self._update(machine, status, at)
        except OSError as error:
            if self.problem != str(error):
                self.problem = str(error)
                log.warning("not sent, tried again: %s", escaped(self.problem))
            self._due, self._pause = time.monotonic() + self._pause, min(2 * self._pause, self._pace.longest)
            return
        if self.problem:
            log.info("sent again")
        self.sent, self.problem = (at, status), ""
        self._due, self._pause = time.monotonic() + self._pace.gap, self._pace.pause


def follow(layout: Layout, tracker: str, update: Update, pace: Pace = USUAL) -> None:
    """Update a tracker whenever the run has changed, until its driver has ended and the tracker has its last state.

    One update is made at a time, with the state that is the newest then. The end of the run is sent at once, without
    the rest of a gap or pause: in a pod, little time is left once the driver has ended. One follower at a time does
    this for a tracker; others wait until it has ended, however it does.

    Args:
        layout: of the run.
        tracker: its name.
        update: see `Update`.
        pace: see `Pace`.

    Raises:
        Refused: the tracker accepts nothing more.
        JournalError: the journal is damaged, or of a newer version.
        HopyardError: the tracker could not be reached for too long after the end of the run.
    """
    alive, over = time.monotonic(), False  # when the run was last seen to go on, whether it has ended since
    with layout.tracking_log(tracker).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fold, sender = Fold(layout), Sender(update, pace)
        while True:
            try:
                with fold.now() as (machine, status):
                    if status == "running":
                        alive, over = time.monotonic(), False
                    elif not over:
                        over = True
                        sender.hurry()
                    sender.send(machine, status, fold.at)
            except RunDirectoryError:  # the driver has written nothing yet
                if not held(layout.lock):
                    raise
            late = time.monotonic() > alive + pace.grace
            # A driver that holds the lock may be about to go on with an ended run.
            if over and sender.sent == (fold.at, status) and (late or not held(layout.lock)):
                return
            if over and late:
                raise HopyardError(f"the run ended {pace.grace:g} s ago, and its end was not sent: {sender.problem}")
            time.sleep(pace.look)
