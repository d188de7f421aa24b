"""One feed of a program: what is sent when, what happens meanwhile, and when it is over.

Pure: `FeedMachine` takes facts, the program's status, and the time; it returns commands. A call of the user sends one
epoch after another: once each fed task has opened its endpoint (opening), rows go (sending), and with the last call the
feed ends when all rows were taken (draining). When the tasks to which rows go are gone, the machine waits until the
program's status says why (broken): it failed, it had enough, or it was started again.

A program that is started again begins at its own last checkpoint, which the driver cannot read: so its feeds begin at
their first row, and it is the program that skips rows. Where one task alone was started again there is no right answer:
the others have rows that it lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from hopyard.core.programs.events import STARTING
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
    Incarnations,
    Looked,
    SendMessage,
    SendRows,
    SourceFailed,
    TasksReplaced,
    Warn,
)
from hopyard.core.programs.feed_progress import Count, FeedProgress, Uneven
from hopyard.core.programs.messages import (
    BatchesReady,
    FeedAllowed,
    FeedEnded,
    FeedFailed,
    FeedOpened,
    FeedOrder,
    FeedQuery,
    RowsTaken,
)
from hopyard.core.programs.status import ProgramStatus
from hopyard.errors import FeedError, HopyardError, SpecError
from hopyard.text import sendable, shown

ASK_SECONDS = 0.5
"""Seconds between questions to the workers how far they are. They are asked again and again, as a process that does not
read receives no more questions, and one that hangs does not answer."""
SOON_SECONDS = 0.01
"""Least seconds between questions while only answers are waited for; they grow to a tenth of the time waited so far."""
OPEN_SECONDS = 120.0
"""Seconds in which each worker of a running program must open its endpoint."""
BREAK_SECONDS = 3.0
"""Seconds in which the program must begin to restart or to end, once rows went no further."""


class _Epoch(NamedTuple):
    """One pass over the rows of a source that has to be sent."""

    source: Any
    later: bool
    """Whether an epoch of the same source came before."""
    new: bool
    """Whether it belongs to the present call; else tasks that were started again lack it."""


def feed_named(name: Any, caller: str) -> str:
    """Return the name of a feed, checked.

    Raises:
        SpecError: `name` is no valid name; the message begins with `caller`.
    """
    if not isinstance(name, str) or not name or not sendable(name):
        raise SpecError(f"{caller}(name=…) must be text that is not empty, got {shown(name)}")
    return str.__str__(name)  # of another class, such as NumPy's, no message has it


class FeedMachine:
    """Owner of the decisions about one feed: one call at a time. Not for several threads at a time.

    Args:
        name: name of the feed.
        uneven: the rule by which its workers end.
        restart: what is started again when a task fails: "program", "task", or "" where nothing is.

    Attributes:
        progress: what the workers reported.
        epochs: how many epochs all calls have begun: an epoch's number is never used twice.
        ended: whether the user said that no more rows come.
        due: when `Looked` must come at the latest; None: when the program's status changes.
    """

    def __init__(self, name: str, uneven: Uneven, restart: Literal["", "program", "task"]) -> None:
        self.name, self.uneven, self._restart = name, uneven, restart
        self.progress = FeedProgress(uneven)
        self.epochs = 0
        self.ended = False
        self.due: float | None = None
        self._replay_sources: list[tuple[Any, int]] = []
        """(source, epochs) of former calls, which tasks that are started again must get."""
        self._complete_tasks: Incarnations | None = None
        """The tasks that have all rows of `_replay_sources`; None: no tasks, or there are no such sources."""
        self._warned = False
        """Whether the user was warned that no batch can be given out."""

        self._phase: Literal["idle", "opening", "sending", "broken", "draining"] = "idle"
        self._call: Fed | None = None
        """The call of the user; None: only the rows that tasks lack that were started again are sent."""
        self._in_replay = False
        """Whether the call's source is in `_replay_sources`."""
        self._timeout: float | None = None
        self._pending_epochs: Iterator[_Epoch] = iter(())
        self._epoch: _Epoch | None = None
        """The epoch that is sent, or is sent next; None: all were sent, or only endpoints are asked for."""
        self._receivers: Incarnations | None = None
        """The tasks that have all rows sent so far."""
        self._rows = 0
        """Rows that the call's epochs had so far."""
        self._outcome: EpochSent | SourceFailed | None = None
        """How the present epoch ended."""
        self._rows_before = 0
        """Rows that were taken before the present epoch."""
        self._asked_to_open: Incarnations | None = None
        """The tasks that were asked to open their endpoints."""
        self._deadline = 0.0
        self._watched_since = self._asked_at = 0.0
        self._last_progress: dict[int, tuple[int, float]] = {}
        """Slot → rows that it took, and since when it took no more."""

        self._status: ProgramStatus
        self._at = 0.0
        self._out: list[FeedCommand] = []
        self._steps: dict[str, Callable[[], bool]] = {
            "opening": self._open,
            "sending": self._send,
            "broken": self._break_off,
            "draining": self._drain,
        }

    # ------------------------------------------------------------------------------------------- facts

    @property
    def idle(self) -> bool:
        """Whether no call goes on."""
        return self._phase == "idle"

    @property
    def sends(self) -> bool:
        """Whether rows are sent, or were until the program broke off."""
        return self._phase == "sending" or (self._phase == "broken" and self._epoch is not None)

    def lacks(self, incarnations: Incarnations) -> bool:
        """Whether these tasks, if they were started again, lack rows or the message that no more come."""
        return bool(self._lacked(incarnations)) or self.ended

    def on_message(self, message: RowsTaken | BatchesReady, status: ProgramStatus) -> list[FeedCommand]:
        """Handle a worker's message. Whether a wait is over is decided with the next fact."""
        if isinstance(message, RowsTaken):
            self.progress.take(message.slot, message.rows, message.waiting, message.question)
            return []
        out: list[FeedCommand] = []
        allowed = self.progress.count(message.slot, Count(message.batches, message.final), status.slots)
        if allowed is not None:
            order = FeedAllowed(feed=self.name, batches=allowed.batches, final=allowed.ended)
            out.append(SendMessage(order, status.incarnations))
        if not self._warned and (empty := self.progress.ended_empty):
            self._warned = True
            out.append(
                Warn(
                    f'feed {self.name!r} with uneven="min" has ended without a batch, as {status.names(empty)} had '
                    "none; all rows that came to others are dropped: repartition the data, so that each gets some, if "
                    "they asked for any"
                )
            )
        return out

    def handle(self, fact: FeedFact, status: ProgramStatus, at: float) -> list[FeedCommand]:
        """Return what follows from a fact, the program's status, and the time `at` in seconds."""
        self._status, self._at, self._out, self.due = status, at, [], None
        match fact:
            case Fed():
                self._begin(fact)
            case EndAsked():
                self.ended = True
                if not self._lacked(status.incarnations):  # else after the rows that are sent again
                    self._send_message(FeedEnded(feed=self.name), status.incarnations)
                self._out.append(Answer())
            case EndpointsAsked():
                self._epoch, self._asked_to_open, self._phase = None, None, "opening"
            case TasksReplaced():
                self._begin(None)
            case EpochSent() | SourceFailed():
                if self.sends and fact.epoch == self.epochs:
                    self._outcome = fact
            case Looked():
                pass
        while self._phase != "idle" and self._steps[self._phase]():
            pass
        return self._out

    def abandon(self, why: str) -> list[FeedCommand]:
        """End the call after an error from outside the machine. Rows that were not yet sent never will be."""
        self._out = []
        if self.sends and self._epoch is not None:
            self._out.append(Cancel(self._epoch.source))
            self._send_message(FeedFailed(feed=self.name, error=f"feed {self.name!r}: {why}"))
        self._phase, self._call = "idle", None
        return self._out

    # ------------------------------------------------------------------------------------------- a call

    def _begin(self, call: Fed | None) -> None:
        self._call, self._in_replay, self._rows = call, False, 0
        self._timeout = None if call is None else call.timeout
        if call is not None and self.ended:
            self._fail(
                f"feed(name={self.name!r}): this feed has ended; give end=False to calls before the last, or another "
                "name",
                error=SpecError,
            )
        elif not self._lacked(self._status.incarnations):
            self._plan(self._complete_tasks)
        else:
            self._send_again(self._complete_tasks)

    def _plan(self, fed: Incarnations | None) -> None:
        """Plan what is to be sent. `fed`: the tasks that have all earlier rows; None: no task has any."""
        lacked = [] if fed is not None else self._lacked(self._status.incarnations)
        new = [] if self._call is None or self._in_replay else [(self._call.source, self._call.epochs)]
        self._receivers, self._epoch = fed, None
        self._pending_epochs = _epochs(lacked, new)
        self._next()

    def _next(self) -> None:
        """Go on with the next epoch; where there is none, with the call's end."""
        before, self._epoch = self._epoch, next(self._pending_epochs, None)
        if before is not None and not before.new and (self._epoch is None or self._epoch.new):
            self._complete_tasks = self._receivers
        self._outcome = self._asked_to_open = None
        if self._epoch is not None:
            self._phase = "opening"
        elif self._call is None:
            self._end_catch_up()
        elif self._call.end:
            self._end()
        else:
            self._end_call()

    def _end(self) -> None:
        """Wait until all was taken, as all was sent and no more comes. From now on tasks that are started again get the
        rows before the end, whatever becomes of the call."""
        present = self._status.incarnations
        self._keep_source()
        self.ended = True
        if self._receivers is None:
            self._receivers = present
        if self._receivers == present:  # else the rows must go again, and the end comes after them
            self._send_message(FeedEnded(feed=self.name))
        if not self._receivers:  # there are no tasks yet, so nothing was sent
            self._end_call()
            return
        self._phase = "draining"
        self._watch(ask=True)  # most workers have taken all by now

    def _keep_source(self) -> None:
        """Keep the call's source where tasks may be started again; not its rows, but a list or table of this process
        stays in memory with it."""
        call = self._call
        if call is not None and not self._in_replay and self._restart and call.epochs:
            self._replay_sources.append((call.source, call.epochs))
            self._complete_tasks, self._in_replay = self._receivers, True

    def _end_call(self) -> None:
        """End the call, as all was done. Tasks that were started again since get the rows too, before it returns."""
        self._keep_source()
        self._call = None
        self._end_catch_up(send=False)

    def _end_catch_up(self, send: bool = True) -> None:
        """Go idle, as tasks that were started again have all they lacked; unless they were started once more."""
        if self._lacked(self._status.incarnations):
            self._send_again(self._complete_tasks)
            return
        if self.ended and send:
            self._send_message(FeedEnded(feed=self.name), self._status.incarnations)
        self._phase = "idle"
        self._out.append(Answer(self._rows))

    # ------------------------------------------------------------------------------------------- its phases

    def _open(self) -> bool:
        """Wait for a program that starts, or starts again, then for the endpoints of its tasks."""
        status, epoch = self._status, self._epoch
        if status.ended:
            if epoch is None or not (epoch.later and status.status == "completed"):
                return self._fail_over()
            self._skip()  # it had enough
            return True
        if status.phase in STARTING:  # `start_timeout` ends this
            self._asked_to_open = None
            return False
        if self._asked_to_open != status.incarnations:
            self._asked_to_open, self._deadline = status.incarnations, self._at + OPEN_SECONDS
            self._send_message(FeedOpened(feed=self.name, uneven=self.uneven), status.incarnations)
        without_endpoint = [
            task.task.slot for task in status.fed if task.endpoint is None and task.status == "completed"
        ]
        to = status.incarnations if self._call is None and epoch is not None else None
        if without_endpoint:
            return self._fail(
                f"{status.names(without_endpoint)} has ended and never asked for rows: nothing can be fed to it", to
            )
        endpoints = tuple(task.endpoint for task in status.fed if task.endpoint is not None)
        if not endpoints or len(endpoints) < len(status.fed):
            if self._at >= self._deadline:
                return self._fail(
                    f"feed {self.name!r}: not every worker opened its endpoint within {OPEN_SECONDS:.0f} seconds; "
                    "program.summary() and program.logs() say what they do",
                    to,
                )
            self.due = self._deadline
            return False
        if epoch is None:
            self._phase = "idle"
            self._out.append(Answer(endpoints=endpoints))
            return True
        if self._receivers not in (None, status.incarnations):  # started again between two epochs
            return self._send_again(self._receivers)
        self._receivers, self._phase = status.incarnations, "sending"
        self.epochs += 1
        self._rows_before = self.progress.taken
        self._watch()
        self._out.append(SendRows(epoch.source, self.epochs, endpoints))
        return True

    def _send(self) -> bool:
        """Wait until the source has sent all rows of the epoch."""
        if isinstance(self._outcome, EpochSent):
            return self._end_epoch(self._outcome.rows)
        if self._outcome is not None or self._is_broken_off():
            self._deadline, self._phase = self._at + BREAK_SECONDS, "broken"
            return True
        return self._look_for_stalls(eager=False)

    def _drain(self) -> bool:
        """Wait until all rows, which were sent, are taken."""
        if self._is_broken_off():
            self._deadline, self._phase = self._at + BREAK_SECONDS, "broken"
            return True
        if self.progress.all_taken(self._status.slots):
            self._end_call()
            return True
        return self._look_for_stalls(eager=True)

    def _break_off(self) -> bool:
        """Wait for the program's status, as the tasks to which rows went are gone, or take no more."""
        if isinstance(self._outcome, EpochSent):  # all its rows had been sent
            return self._end_epoch(self._outcome.rows)
        status, epoch = self._status, self._epoch
        replaced = status.incarnations != self._receivers
        if not status.ended and not (replaced and status.phase == "running"):
            if self._at < self._deadline:
                self.due = self._deadline
                return False
            if status.phase in (*STARTING, "closing", "over"):
                return False
            assert isinstance(self._outcome, SourceFailed)  # as the program's status is what it was
            return self._fail(f"feed {self.name!r} broke off: {self._outcome.why}", self._receivers)
        if epoch is not None:
            self._out.append(Cancel(epoch.source))
        if not status.ended:
            return self._send_again(self._receivers)
        if not status.well:
            return self._fail_over()
        if epoch is not None:  # it had enough
            return self._end_epoch(self.progress.taken - self._rows_before)
        self._end_call()
        return True

    def _end_epoch(self, rows: int) -> bool:
        """End the present epoch, of which so many rows were sent."""
        self._rows += rows if self._epoch is not None and self._epoch.new else 0
        self._next()
        return True

    def _is_broken_off(self) -> bool:
        return self._status.ended or self._status.incarnations != self._receivers

    def _skip(self) -> None:
        """Send no further epoch of this source."""
        while self._epoch is not None:
            self._next()
            if self._epoch is None or not self._epoch.later:
                return

    def _send_again(self, receivers: Incarnations | None) -> bool:
        """Send all rows again, as tasks were started again. The call fails if some of `receivers`, which have rows, are
        still there: rows would be doubled."""
        present = self._status.incarnations
        if self._restart == "task" and receivers and receivers & present:
            text = (
                f'feed {self.name!r}: a task was started again by itself (restart_scope="task"), and the others have '
                "rows that it lacks: each row could not come once. Give "
                'restart_scope="program" to a program that is fed'
            )
            return self._fail(text, present)
        self._out.append(Warn(f"the program was started again: the rows of feed {self.name!r} go again"))
        self.progress.forget()
        self._complete_tasks = None
        if self._call is not None and not self._in_replay:
            self._rows = 0
        self._plan(None)
        return True

    # ------------------------------------------------------------------------------------------- helpers

    def _lacked(self, incarnations: Incarnations) -> list[tuple[Any, int]]:
        """Return the sources of former calls that these tasks lack: all of them, or none."""
        return [] if self._complete_tasks == incarnations else self._replay_sources.copy()

    def _send_message(self, message: FeedOrder, to: Incarnations | None = None) -> None:
        fed = self._receivers or frozenset()
        self._out.append(SendMessage(message, fed if to is None else to))

    def _fail(self, text: str, to: Incarnations | None = None, error: type[HopyardError] = FeedError) -> bool:
        """Let the call raise an error. `to`: the tasks that wait for rows, which are sent the error."""
        if to is not None:
            self._send_message(FeedFailed(feed=self.name, error=text), to)
        self._phase, self._call = "idle", None
        self._out.append(Fail(error(text)))
        return True

    def _fail_over(self) -> bool:
        self._phase, self._call = "idle", None
        self._out.append(Fail(None))
        return True

    # ------------------------------------------------------------------------------------------- stalls

    def _watch(self, ask: bool = False) -> None:
        """Begin to watch that each worker for which rows wait takes some. `ask`: the first question goes at once."""
        self._watched_since = self._at
        self._asked_at = -math.inf if ask else self._at
        self._last_progress.clear()
        self.progress.question += 1  # more rows were sent

    def _look_for_stalls(self, eager: bool) -> bool:
        """Ask the workers how far they are; fail if one has taken nothing for too long."""
        if self._status.phase != "running":
            self._last_progress.clear()
            return False
        waited = (self._at - self._watched_since) / 10
        wait = min(ASK_SECONDS, max(SOON_SECONDS, waited)) if eager else ASK_SECONDS
        if self._at - self._asked_at >= wait:
            self._asked_at = self._at
            self._send_message(FeedQuery(feed=self.name, question=self.progress.question))
        for slot, (rows, waiting) in self.progress.answers.items():
            last, since = self._last_progress.get(slot, (-1, self._at))
            if rows != last or not waiting:
                self._last_progress[slot] = rows, self._at
            elif self._timeout is not None and self._at - since > self._timeout:
                return self._fail_stalled(slot, rows, self._timeout)
        self.due = self._asked_at + wait
        return False

    def _fail_stalled(self, slot: int, rows: int, timeout: float) -> bool:
        status = self._status
        silent = self.progress.silent(status.slots)
        text = (
            f"feed {self.name!r}: {status.names([slot])} has taken no row for {timeout:.0f} seconds, "
            f"though rows wait for it ({rows:,} taken so far): does the main of {status.names(silent or [slot])} read "
            f"ctx.feed({self.name!r})? "
            + (f'With uneven="{self.uneven}" the others wait for it. ' if silent else "")
            + "feed(timeout=…) says how long to wait"
        )
        if self._epoch is not None:
            self._out.append(Cancel(self._epoch.source))
        return self._fail(text, self._receivers)


def _epochs(lacked: Iterable[tuple[Any, int]], new: Iterable[tuple[Any, int]]) -> Iterator[_Epoch]:
    """Yield the epochs to send, in order."""
    for sources, is_new in ((lacked, False), (new, True)):
        for source, epochs in sources:
            for number in range(epochs):
                yield _Epoch(source, number > 0, is_new)
