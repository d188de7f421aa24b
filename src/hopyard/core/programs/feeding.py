"""One feed of a program: what is sent when, what happens meanwhile, and when it is over.

Pure: `FeedMachine` is handed facts, how the program stands, and the time; it returns commands. A call of the user's
sends one epoch after another: once each fed task has opened its endpoint (opening), rows go (sending), and with the
last call the feed ends when all rows were taken (draining). When the tasks to which rows go are there no more, the
program is given time to say why (broken): it failed, it had enough, or it was started again.

A program that is started again begins at its own last checkpoint, which the driver cannot read: so its feeds begin at
their first row, and whoever skips rows is the program. Where one task alone was started again there is no right answer:
the others have rows that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

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
    Say,
    Send,
    SourceFailed,
    TasksReplaced,
    Warn,
)
from hopyard.core.programs.feed_progress import FeedProgress
from hopyard.core.programs.machine import STARTING
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
from hopyard.core.programs.uneven import Count, Uneven
from hopyard.errors import HopyardError, SpecError
from hopyard.text import sendable

ASK_SECONDS = 0.5
"""Between questions to the workers how far they are. They are asked again and again, as a process that does not read is
not told more, and one that hangs tells nothing."""
SOON_SECONDS = 0.01
"""The same, at first, where only their answer is waited for: a tenth of the time that has passed."""
OPEN_SECONDS = 120.0
"""Until each worker of a program that runs has opened its endpoint."""
BREAK_SECONDS = 3.0
"""For the program to begin to restart or to end, once rows went no further."""


class _Epoch(NamedTuple):
    """One pass over the rows of a source that has to be sent."""

    source: Any
    later: bool
    """Whether one of the same source went before."""
    new: bool
    """Whether the present call brings it; else tasks that were started again lack it."""


def feed_named(name: Any, where: str) -> str:
    """A feed's name.

    Raises:
        SpecError: `name` is none; says so of `where`.
    """
    if not isinstance(name, str) or not name or not sendable(name):
        raise SpecError(f"{where}(name=…) must be text that is not empty, got {name!r}")
    return name


class FeedMachine:
    """Owner of what is decided of one feed: one call at a time. Not for several threads at a time.

    Args:
        name: of the feed.
        uneven: the rule by which its workers end.
        restart: what is started again when a task fails: "program", "task", or "" where nothing is.

    Attributes:
        progress: what the workers said.
        epochs: that were begun, in all calls: an epoch's number is never used twice.
        ended: whether the user said that no more rows come.
        due: when it is to be handed `Looked` at the latest; None: when the program stands otherwise.
    """

    def __init__(self, name: str, uneven: Uneven, restart: Literal["", "program", "task"]) -> None:
        self.name, self.uneven, self._restart = name, uneven, restart
        self.progress = FeedProgress(uneven)
        self.epochs = 0
        self.ended = False
        self.due: float | None = None
        self._kept: list[tuple[Any, int]] = []
        """What was sent by former calls: (source, epochs)."""
        self._complete: Incarnations | None = None
        """The tasks that have all that is kept; None: nobody, or nothing is kept."""
        self._warned = False
        """Whether it was said that no batch can be given."""

        self._phase: Literal["idle", "opening", "sending", "broken", "draining"] = "idle"
        self._call: Fed | None = None
        """What the user asked for; None: only what tasks that were started again lack is sent."""
        self._is_kept = False
        """Whether its source is among those that are kept."""
        self._timeout: float | None = None
        self._todo: Iterator[_Epoch] = iter(())
        self._epoch: _Epoch | None = None
        """Which is sent, or is to be sent next; None: all are, or only endpoints are asked for."""
        self._fed: Incarnations | None = None
        """The tasks that have what was sent so far."""
        self._rows = 0
        """That the call's epochs had so far."""
        self._sent: EpochSent | SourceFailed | None = None
        """How the present epoch ended."""
        self._before = 0
        """Rows that were taken before the present epoch."""
        self._opened: Incarnations | None = None
        """The tasks that were told to open their endpoints."""
        self._deadline = 0.0
        self._began = self._asked = 0.0
        self._moved: dict[int, tuple[int, float]] = {}
        """Slot → rows that it took, and since when no more."""

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
        """Whether rows go, or did until the program broke off."""
        return self._phase == "sending" or (self._phase == "broken" and self._epoch is not None)

    def lacks(self, incarnations: Incarnations) -> bool:
        """Whether these tasks, once they were started again, lack rows or the word that no more come."""
        return bool(self._lacked(incarnations)) or self.ended

    def on_message(self, message: RowsTaken | BatchesReady, status: ProgramStatus) -> list[FeedCommand]:
        """A worker says this; what is waited for is decided with the next fact."""
        if isinstance(message, RowsTaken):
            self.progress.take(message.slot, message.rows, message.waiting, message.question)
            return []
        out: list[FeedCommand] = []
        allowed = self.progress.count(message.slot, Count(message.batches, message.final), status.slots)
        if allowed is not None:
            now = FeedAllowed(feed=self.name, batches=allowed.batches, final=allowed.ended)
            out.append(Say(now, status.incarnations))
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
        """What follows from a fact, from how the program stands, and from the time `at` in seconds."""
        self._status, self._at, self._out, self.due = status, at, [], None
        match fact:
            case Fed():
                self._begin(fact)
            case EndAsked():
                self.ended = True
                if not self._lacked(status.incarnations):  # else once they have gone again
                    self._say(FeedEnded(feed=self.name), status.incarnations)
                self._out.append(Answer())
            case EndpointsAsked():
                self._epoch, self._opened, self._phase = None, None, "opening"
            case TasksReplaced():
                self._begin(None)
            case EpochSent() | SourceFailed():
                if self.sends and fact.epoch == self.epochs:
                    self._sent = fact
            case Looked():
                pass
        while self._phase != "idle" and self._steps[self._phase]():
            pass
        return self._out

    def abandon(self, why: str) -> list[FeedCommand]:
        """The call ends by an error that is none of the machine's; some rows went, perhaps, and the rest never will."""
        self._out = []
        if self.sends and self._epoch is not None:
            self._out.append(Cancel(self._epoch.source))
            self._say(FeedFailed(feed=self.name, error=f"feed {self.name!r}: {why}"))
        self._phase, self._call = "idle", None
        return self._out

    # ------------------------------------------------------------------------------------------- a call

    def _begin(self, call: Fed | None) -> None:
        self._call, self._is_kept, self._rows = call, False, 0
        self._timeout = None if call is None else call.timeout
        if call is not None and self.ended:
            self._fail(
                f"feed(name={self.name!r}): this feed has ended; give end=False to calls before the last, or another "
                "name",
                error=SpecError,
            )
        elif not self._lacked(self._status.incarnations):
            self._plan(self._complete)
        else:
            self._send_again(self._complete)

    def _replay(self) -> None:
        """Tasks were started again: all rows go again, and what former ones said is forgotten."""
        self._out.append(Warn(f"the program was started again: the rows of feed {self.name!r} go again"))
        self.progress.forget()
        self._complete = None
        if self._call is not None and not self._is_kept:
            self._rows = 0
        self._plan(None)

    def _plan(self, fed: Incarnations | None) -> None:
        """What is to be sent. `fed`: who has what went before; None: nobody has anything."""
        lacked = [] if fed is not None else self._lacked(self._status.incarnations)
        new = [] if self._call is None or self._is_kept else [(self._call.source, self._call.epochs)]
        self._fed, self._epoch = fed, None
        self._todo = _epochs(lacked, new)
        self._next()

    def _next(self) -> None:
        """Go on with the next epoch; where there is none, with the call's end."""
        before, self._epoch = self._epoch, next(self._todo, None)
        if before is not None and not before.new and (self._epoch is None or self._epoch.new):
            self._complete = self._fed
        self._sent = self._opened = None
        if self._epoch is not None:
            self._phase = "opening"
        elif self._call is None:
            self._end_catch_up()
        elif self._call.end:
            self._end()
        else:
            self._end_call()

    def _end(self) -> None:
        """All was sent, and no more comes: wait until it was taken. From now on tasks that are started again get the
        rows before the end, whatever becomes of the call."""
        present = self._status.incarnations
        self._keep_source()
        self.ended = True
        if self._fed is None:
            self._fed = present
        if self._fed == present:  # else they have to go again, and the end comes after them
            self._say(FeedEnded(feed=self.name))
        if not self._fed:  # nobody is there yet, so nothing was sent
            self._end_call()
            return
        self._phase = "draining"
        self._watch()

    def _keep_source(self) -> None:
        """Where tasks may be started again the call's source is kept; not its rows, but a list or table of this process
        stays in memory with it."""
        call = self._call
        if call is not None and not self._is_kept and self._restart and call.epochs:
            self._kept.append((call.source, call.epochs))
            self._complete, self._is_kept = self._fed, True

    def _end_call(self) -> None:
        """All that the call asked for is done; tasks that were started again since get it too, before it returns."""
        self._keep_source()
        self._call = None
        self._end_catch_up(say=False)

    def _end_catch_up(self, say: bool = True) -> None:
        """Tasks that were started again have all that they lacked, if they were not again."""
        if self._lacked(self._status.incarnations):
            self._send_again(self._complete)
            return
        if self.ended and say:
            self._say(FeedEnded(feed=self.name), self._status.incarnations)
        self._phase = "idle"
        self._out.append(Answer(self._rows))

    # ------------------------------------------------------------------------------------------- its phases

    def _open(self) -> bool:
        """Wait for a program that starts, or starts again, then for the endpoints of its tasks."""
        now, epoch = self._status, self._epoch
        if now.ended:
            if epoch is None or not (epoch.later and now.status == "done"):
                return self._fail_over()
            self._skip()  # it had enough
            return True
        if now.phase in STARTING:  # `start_timeout` ends this
            self._opened = None
            return False
        if self._opened != now.incarnations:
            self._opened, self._deadline = now.incarnations, self._at + OPEN_SECONDS
            self._say(FeedOpened(feed=self.name, uneven=self.uneven), now.incarnations)
        never = [task.task.slot for task in now.fed if task.endpoint is None and task.status == "done"]
        to = now.incarnations if self._call is None and epoch is not None else None
        if never:
            return self._fail(f"{now.names(never)} has ended and never asked for rows: nothing can be fed to it", to)
        endpoints = tuple(task.endpoint for task in now.fed if task.endpoint is not None)
        if not endpoints or len(endpoints) < len(now.fed):
            if self._at >= self._deadline:
                return self._fail(
                    f"feed {self.name!r}: not every worker opened its endpoint within {OPEN_SECONDS:.0f} seconds; "
                    "program.status() and program.logs() say what they do",
                    to,
                )
            self.due = self._deadline
            return False
        if epoch is None:
            self._phase = "idle"
            self._out.append(Answer(endpoints=endpoints))
            return True
        if self._fed not in (None, now.incarnations):  # started again between two epochs
            return self._send_again(self._fed)
        self._fed, self._phase = now.incarnations, "sending"
        self.epochs += 1
        self._before = self.progress.taken
        self._watch()
        self._out.append(Send(epoch.source, self.epochs, endpoints))
        return True

    def _send(self) -> bool:
        """Rows go."""
        if isinstance(self._sent, EpochSent):
            return self._end_epoch(self._sent.rows)
        if self._sent is not None or self._is_broken_off():
            self._deadline, self._phase = self._at + BREAK_SECONDS, "broken"
            return True
        return self._look_for_stalls(eager=False)

    def _drain(self) -> bool:
        """All rows were sent, and wait to be taken."""
        if self._is_broken_off():
            self._deadline, self._phase = self._at + BREAK_SECONDS, "broken"
            return True
        if self.progress.all_taken(self._status.slots):
            self._end_call()
            return True
        return self._look_for_stalls(eager=True)

    def _break_off(self) -> bool:
        """The tasks to which rows went are not there any more, or take no more: wait for what the program says."""
        if isinstance(self._sent, EpochSent):  # all of it was on its way
            return self._end_epoch(self._sent.rows)
        now, epoch = self._status, self._epoch
        replaced = now.incarnations != self._fed
        if not now.ended and not (replaced and now.phase == "running"):
            if self._at < self._deadline:
                self.due = self._deadline
                return False
            if now.phase in (*STARTING, "closing", "over"):
                return False
            assert isinstance(self._sent, SourceFailed)  # as the program stands as before
            return self._fail(f"feed {self.name!r} broke off: {self._sent.why}", self._fed)
        if epoch is not None:
            self._out.append(Cancel(epoch.source))
        if not now.ended:
            return self._send_again(self._fed)
        if not now.well:
            return self._fail_over()
        if epoch is not None:  # it had enough
            return self._end_epoch(self.progress.taken - self._before)
        self._end_call()
        return True

    def _end_epoch(self, rows: int) -> bool:
        """So many of an epoch's rows went."""
        self._rows += rows if self._epoch is not None and self._epoch.new else 0
        self._next()
        return True

    def _is_broken_off(self) -> bool:
        return self._status.ended or self._status.incarnations != self._fed

    def _skip(self) -> None:
        """No further epoch of this source."""
        while self._epoch is not None:
            self._next()
            if self._epoch is None or not self._epoch.later:
                return

    def _send_again(self, had: Incarnations | None) -> bool:
        """Send again what these tasks had, where none of them is still there."""
        if not self._fails_doubled(had):
            self._replay()
        return True

    # ------------------------------------------------------------------------------------------- helpers

    def _lacked(self, incarnations: Incarnations) -> list[tuple[Any, int]]:
        """What these tasks lack of what was fed before: all of it, or nothing."""
        return [] if self._complete == incarnations else self._kept.copy()

    def _say(self, message: FeedOrder, to: Incarnations | None = None) -> None:
        fed = self._fed or frozenset()
        self._out.append(Say(message, fed if to is None else to))

    def _fail(self, words: str, to: Incarnations | None = None, error: type[HopyardError] = HopyardError) -> bool:
        """The call raises. `to`: who waits for rows that do not come, and hears why."""
        if to is not None:
            self._say(FeedFailed(feed=self.name, error=words), to)
        self._phase, self._call = "idle", None
        self._out.append(Fail(error(words)))
        return True

    def _fail_over(self) -> bool:
        self._phase, self._call = "idle", None
        self._out.append(Fail(None))
        return True

    def _fails_doubled(self, had: Incarnations | None) -> bool:
        """Whether rows that some tasks have cannot go again to those that there are now; the call has failed then."""
        present = self._status.incarnations
        if self._restart != "task" or not (had and had & present):
            return False
        words = (
            f'feed {self.name!r}: a task was started again by itself (restart_scope="task"), and the others have rows '
            'that it lacks: each row could not come once. Give restart_scope="program" to a program that is fed'
        )
        return self._fail(words, present)

    # ------------------------------------------------------------------------------------------- stalls

    def _watch(self) -> None:
        """From now on it is watched that each worker that has rows takes some."""
        self._began = self._asked = self._at
        self._moved.clear()
        self.progress.ask_anew()

    def _look_for_stalls(self, eager: bool) -> bool:
        """Ask the workers how far they are; fail where one has taken nothing for too long."""
        if self._status.phase != "running":
            self._moved.clear()
            return False
        waited = (self._at - self._began) / 10
        wait = min(ASK_SECONDS, max(SOON_SECONDS, waited)) if eager else ASK_SECONDS
        if self._at - self._asked >= wait:
            self._asked = self._at
            self._say(FeedQuery(feed=self.name, question=self.progress.question))
        for slot, (rows, waiting) in self.progress.answers.items():
            last, since = self._moved.get(slot, (-1, self._at))
            if rows != last or not waiting:
                self._moved[slot] = rows, self._at
            elif self._timeout is not None and self._at - since > self._timeout:
                return self._fail_stalled(slot, rows, self._timeout)
        self.due = self._asked + wait
        return False

    def _fail_stalled(self, slot: int, rows: int, timeout: float) -> bool:
        now = self._status
        silent = self.progress.silent(now.slots)
        words = (
            f"feed {self.name!r}: {now.names([slot])} has taken no row for {timeout:.0f} seconds, "
            f"though rows wait for it ({rows:,} taken so far): does the main of {now.names(silent or [slot])} read "
            f"ctx.feed({self.name!r})? "
            + (f'With uneven="{self.uneven}" the others wait for it. ' if silent else "")
            + "feed(timeout=…) says how long to wait"
        )
        if self._epoch is not None:
            self._out.append(Cancel(self._epoch.source))
        return self._fail(words, self._fed)


def _epochs(lacked: Iterable[tuple[Any, int]], new: Iterable[tuple[Any, int]]) -> Iterator[_Epoch]:
    """What has to be sent, in its order."""
    for sources, is_new in ((lacked, False), (new, True)):
        for source, epochs in sources:
            for number in range(epochs):
                yield _Epoch(source, number > 0, is_new)
