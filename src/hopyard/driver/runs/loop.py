"""The loop around the machine: messages become events, events go to the machine and the journal, then commands to the
agents. It decides nothing itself: `core` decides what happens next, `run.py` what it means to the user, and
`driver/commit.py` how facts take effect.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from hopyard.core.facts import Tick
from hopyard.core.messages import Broken, End, Examine, NoRoom, Publish, Ready, StoreState, Unfit, Up, Work
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import (
    AskAgain,
    Check,
    Checked,
    Closed,
    Command,
    Deferred,
    Delete,
    Dispatch,
    Done,
    Durable,
    Event,
    Failed,
    Finish,
    Finished,
    Forgotten,
    Formed,
    GiveUp,
    Granted,
    Interrupted,
    Keep,
    Left,
    Line,
    Paused,
    Placed,
    Release,
    Replace,
    Stopped,
    StoreAway,
    StoreBack,
    Warn,
    Yielded,
    journaled,
)
from hopyard.core.runs.machine import Machine
from hopyard.driver.commit import Clock, Gone, Link, commit
from hopyard.driver.runs.fold import dispatched_refs
from hopyard.driver.runs.gangs import GangMessages
from hopyard.driver.runs.workers import Workers
from hopyard.errors import HopyardError, Inexact, PreflightError, ResourceError
from hopyard.ports.states import Store
from hopyard.search.proposer import Proposer
from hopyard.spec import Ref, Unit
from hopyard.store.deletions import DRAIN_SECONDS, Deletions
from hopyard.store.journal import Journal, read
from hopyard.store.urls.working import url_of
from hopyard.text import escaped, shell_command

log = logging.getLogger(__name__)

GLANCE = 1.0
"""Seconds after which views get the run again even if nothing happened."""
LONG_LOOKS = 5
"""Waits of `GLANCE` seconds for the end of the journal to reach the URL, before a warning."""


class Handle:
    """The user's hold on the driver of a run in this process: asks it to end, and says how it ended. It holds nothing
    of a driver that is over, which had sockets, files and built models.

    Attributes:
        error: what the driver raised, where `Run.wait` is to raise it; None: nothing.
        over: set unless a driver is at work in the background. (Not Thread.join: in Python 3.11 a Ctrl-C in it makes
            later joins return at once, though the thread still runs.)
        request: why the driver is to end soon, as Ctrl-C does, and whether the user asked for it, so that the run's
            status is "stopped", not "interrupted"; None: it goes on.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.over = threading.Event()
        self.over.set()
        self.request: tuple[str, bool] | None = None

    def stop(self, reason: str, stopped: bool = True) -> None:
        """End the driver, and wait until it is over."""
        self.request = reason, stopped
        self.over.wait()


class View(Protocol):
    """Something that shows a run. It gets what was journaled, and may read the machine, never change it."""

    def see(self, lines: list[Line], machine: Machine) -> None:
        """Show lines that were journaled; none: time passed."""
        ...

    def close(self, machine: Machine) -> None:
        """Close the view: the driver ends."""
        ...


class RunLoop:
    """Drives one run to its end.

    Args:
        machine: folded up to where the journal ends.
        journal: open for appending.
        link: to the agents.
        store: where States are deleted.
        proposer: asks the search what to try next.
        workers: those of this driver, over the same link.
        views: show what happens.
        opening: the facts that this driver begins with: `Began` or `Resumed`, and which failed trials are retried.
        clock: the one that gave `opening` its times.
        handle: says when to end.
    """

    def __init__(
        self,
        machine: Machine,
        journal: Journal[Line],
        link: Link,
        store: Store,
        proposer: Proposer,
        workers: Workers,
        views: Sequence[View] = (),
        opening: Sequence[Event] = (),
        clock: Clock | None = None,
        handle: Handle | None = None,
    ) -> None:
        self.machine = machine
        self._journal = journal
        self._link = link
        self._proposer = proposer
        self._workers = workers
        self._gangs = GangMessages(machine, link)
        self._views = list(views)
        self._opening = opening
        self._early: dict[int, list[Durable]] = {}
        """Lease → States that became durable before the answer to their unit came."""
        self._deletions = Deletions(store, journal)
        self._logged_waits: set[tuple[str, str]] = set()
        self._finish: Finish | None = None
        self._clock = clock or Clock()
        self._handle = handle or Handle()
        self._looked_for_spare = 0.0
        """When it last looked which agents nobody needs."""

    def run(self) -> None:
        """Run until every trial has ended.

        Raises:
            PreflightError: the first trials cannot start.
            ResourceError: no room on a disk, or no agent comes up.
            HopyardError: a worker could not store a State, for a reason that nobody expects.
            KeyboardInterrupt: from the user.
            On any of them, the journal says that the run was interrupted.
        """
        completed = False
        try:
            self._commit(self._opening)
            self._opening = ()
            self._sweep()
            self._propose()
            for _ in range(self._workers.count):
                self._workers.start()
            while self._finish is None:
                self.turn()
            self._commit([Finished(at=self._clock.now(), status=self._finish.status)])
            completed = True
        except BaseException as error:
            self._interrupted(error)
            raise
        finally:
            self._link.close()
            try:
                if completed:
                    self._share()
                    self._sweep()
            finally:
                self._deletions.close(DRAIN_SECONDS)
                self._show(lambda view: view.close(self.machine))
        if self.machine.status == "failed" and self.machine.faults and not self.machine.names:
            raise PreflightError(self.machine.faults)

    def _share(self) -> None:
        """Wait until all who read the run at a URL have its end."""
        looks = 0
        while not self._journal.shared(self._journal.size, GLANCE):
            looks += 1
            if looks == LONG_LOOKS:
                root = self._journal.path.parent
                log.warning(
                    "%s: the run has ended; waiting until its end is at %s (Ctrl-C: `%s` copies it)",
                    *(root, url_of(root), shell_command("resume", root)),
                )
            if self._handle.request is not None:
                raise KeyboardInterrupt(self._handle.request[0])

    def _interrupted(self, error: BaseException) -> None:
        """Journal the interruption, without the machine: interrupted in the middle of a commit, it is ahead of the
        journal, and would decide on facts that no journal has."""
        reason, stopped = self._handle.request or (_reason(error), False)
        line = Interrupted(at=self._clock.now(), reason=reason, stopped=stopped)
        try:
            if self._journal.begun:  # else there is no room for the line that every journal begins with
                self._journal.append([line])
        except (HopyardError, OSError) as append_error:  # the lock, which is free then, says as much
            log.warning("the journal does not say that the run was interrupted: %s", append_error)
        self._show(lambda view: view.see([line], self.machine))

    def _sweep(self) -> None:
        """Delete what is stored and not needed: States of workers that ended after they stored a State and before they
        said so. Only what this run has dispatched so far: other runs may have States there, and a State that a worker
        stores from now on may be needed by the time that the store is listed."""
        needed, last_lease = self.machine.kept(), self.machine.leases.last

        def choice(stored: set[Ref]) -> Collection[Ref]:
            candidates = {ref for ref in stored - needed if ref.attempt <= last_lease}
            return dispatched_refs(read(self._journal.path, CODEC), candidates) if candidates else ()

        self._deletions.sweep(choice)

    def turn(self) -> None:
        """Wait for something to happen, and handle it."""
        now = self._clock.now()
        deadline = self.machine.earliest()
        wait = GLANCE if deadline is None else min(GLANCE, max(0.0, deadline - now))
        messages = self._link.receive(wait) if self._journal.keeps_up(GLANCE) else []
        self._clock.skip(self._link.paused())
        self._commit(self._facts(messages))
        self._propose()
        if self._workers.idle_timeout is not None:
            self._give_back(self._workers.idle_timeout)
        if self._handle.request is not None:
            raise KeyboardInterrupt(self._handle.request[0])

    def _give_back(self, seconds: float) -> None:
        """End the agents that nobody needs: others may need their slots."""
        now = self._clock.now()
        if now < self._looked_for_spare + min(GLANCE, seconds):
            return  # not at each message: `spare` goes over all slots and trials
        self._looked_for_spare = now
        for slot in self.machine.spare(now, seconds):
            self._commit([Left(at=now, slot=slot, reason=f"nothing to do for {seconds:.0f} s: it was given back")])
            self._link.send(slot, End())

    # ---------------------------------------------------------------- in

    def _propose(self) -> None:
        """Ask the search for trials, and the user's function about those that wait for it, until neither has more to
        say for now."""
        while self._finish is None and (events := self._proposer.events(self._clock.now())):
            self._commit(events)

    def _facts(self, messages: Sequence[Up | Gone]) -> Iterator[Event]:
        """Yield facts one by one: what a message means may depend on the one before it, which the machine has then."""
        if (requested := self._workers.requested(self._clock.now())) is not None:
            yield requested  # first, while workers and machine agree on who was given back
        for message in messages:
            yield from self._events(message)
        if self._early:
            for lease in [lease for lease in self._early if not self.machine.leases.stands(lease)]:
                yield from self._pop_early(lease)  # their slot is gone, or their unit counts no more: they are deleted
        now = self._clock.now()
        if (shrunk := self._workers.shrunk(now)) is not None:
            yield shrunk
        if self.machine.due(now):
            yield Tick(at=now)

    def _events(self, message: Up | Gone) -> Sequence[Event]:
        """Return the facts that a message brings."""
        now = self._clock.now()
        match message:
            case Ready():
                return [self._workers.ready(message, now)]
            case Gone():
                return self._workers.gone(message, now)
            case Unfit():
                self._workers.unfit(message)
            case NoRoom():
                return self._no_room(message, now)
            case Done() | Failed():
                return [msgspec.structs.replace(message, at=now), *self._pop_early(message.lease)]
            case Durable() if self.machine.leases.stands(message.ref.attempt):
                # it overtook the answer: another socket, another thread
                self._early.setdefault(message.ref.attempt, []).append(message)
            case Checked() | Durable() | Forgotten():
                return [msgspec.structs.replace(message, at=now)]
            case StoreAway():
                log.warning("worker %d waits for the store, and tries again: %s", message.slot, message.error)
                return [msgspec.structs.replace(message, at=now)]
            case StoreBack():
                log.warning("worker %d can store States again", message.slot)
                return [msgspec.structs.replace(message, at=now)]
            case Publish():
                self._gangs.publish(message)
            case Broken():
                return self._gangs.broken(message, now)
            case _:
                pass
        return ()

    def _pop_early(self, lease: int) -> list[Event]:
        """Return the States that became durable early, as facts of now: the times of a journal never run backwards."""
        return [msgspec.structs.replace(message, at=self._clock.now()) for message in self._early.pop(lease, ())]

    def _no_room(self, message: NoRoom, now: float) -> Sequence[Event]:
        """No room for States: end the run, which can be resumed. No room for rows on one host: end the slot."""
        resume = f"`{shell_command('resume', self._journal.path.parent)}`"
        if message.what == "store":
            raise ResourceError(f"{message.error}. Nothing is lost: make room, then {resume}")
        if message.what == "error":
            tail = self._workers.tail(message.slot)
            raise HopyardError(f"{message.error}. {resume} goes on from the States that are stored{tail}")
        return self._workers.no_room(message, now, resume)

    # ---------------------------------------------------------------- out

    def _decide(self, event: Event) -> list[Command]:
        """Pass an event to the machine, which decides once all facts of the opening are in."""
        return self.machine.handle(event, not self._opening or event is self._opening[-1])

    def _commit(self, events: Iterable[Event]) -> None:
        """Pass events to machine, journal, effects and views, in this order. Agents may forget what the journal has."""
        lines, commands = commit(events, self._decide, journaled, self._journal, self._link)
        for command in commands:
            self._do(command)
        self._show(lambda view: view.see(lines, self.machine))

    def _show(self, show: Callable[[View], None]) -> None:
        """Call `show` for all views. A view that fails, for example with its terminal, is dropped; the run goes on."""
        for view in list(self._views):
            try:
                show(view)
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the run
                self._views.remove(view)
                log.warning("%s shows nothing any more: %s: %s", type(view).__name__, type(error).__name__, error)

    def _do(self, command: Command) -> None:
        """Carry out a command of the machine. What the search decided is for the views."""
        match command:
            case Dispatch():
                self._dispatch(command)
            case Check():
                config = self.machine.trials[command.trial].config
                self._link.send(command.slot, Examine(command.trial, config, command.partitions))
            case GiveUp():
                self._gangs.give_up(command)
            case Release():
                self._workers.release(command.slot, command.memory_key)
            case Keep():
                self._link.send(command.slot, StoreState(command.ref, command.memory_key))
            case Delete():
                self._deletions.add(command.ref)
            case Replace():
                self._workers.end(command.slot)
                self._workers.start()
            case Yielded():
                level = logging.INFO if self.machine.holding.turn > 1 else logging.WARNING
                text = "a gang needs %d workers, and %d came: their places are left to others for %.0f s"
                numbers = self.machine.spec.members, len(command.slots), command.until - command.at
                log.log(level, text, *numbers)
                self._workers.give_back(command.slots)
            case AskAgain():
                self._workers.ask_again()
            case Deferred():
                self._log_wait(command)
            case Closed():
                log.warning("the run ends with what it has: %s", command.reason)
            case Formed():
                log.debug("workers %s train together", command.members)
            case Placed():
                log.debug("%s is home to %s", command.host, command.partitions)
            case Warn():
                if command.defect and self.machine.spec.exact is True:
                    raise Inexact(command.text)
                (log.error if command.defect else log.warning)("%s", command.text)
            case Finish():
                self._finish = command
            case Paused() | Granted() | Stopped():
                pass

    def _dispatch(self, command: Dispatch) -> None:
        unit = command.unit
        config = self.machine.trials[unit.trial].config
        slot = self.machine.slots.get(command.slot)
        if slot is None or slot.busy != unit.lease:
            return  # a later fact of the same receive took the unit back
        members = slot.members if slot.together else ()
        passing = self._passing(unit, slot.members or (command.slot,))
        for rank, worker in enumerate(members or (command.slot,)):
            release = self._workers.pop_releases(worker)
            gang = self._gangs.membership(command.slot, rank) if members else None
            self._link.send(worker, Work(unit, config, release, self._peer(unit, worker), gang, passing))

    def _log_wait(self, command: Deferred) -> None:
        """Log why a trial waits. Each reason once: a file server that is away makes all trials wait."""
        key = command.fault, command.reason
        if key in self._logged_waits:
            return
        self._logged_waits.add(key)
        if command.fault == "memory":
            log.warning(
                "trial %d is tried once more, in a new worker, as memory ran out; so is each other trial that finds "
                "the same: %s",
                *(command.trial, command.reason),
            )
        else:
            log.warning(
                "trial %d waits %.0f s, as will each other trial that finds the same (%s): %s",
                *(command.trial, command.until - command.at, command.fault, command.reason),
            )

    def _passing(self, unit: Unit, workers: Sequence[int]) -> bool:
        """Return whether the unit's partitions are at home on other hosts only. A gang over several hosts has no homes,
        and its hosts keep all rows."""
        hosts = {record.host for worker in workers if (record := self.machine.workers.record(worker)) is not None}
        if unit.kind == "fold" or len(hosts) > 1:
            return False
        at_home = self.machine.places.at_home
        return not any(at_home(host, unit.kind, partition) for host in hosts for partition in unit.partitions)

    def _peer(self, unit: Unit, worker: int) -> str | None:
        """Return the address of the agent with the unit's State, when a worker cannot see the memory where it lies."""
        state = self.machine.trials[unit.trial].states.get(unit.start.step) if unit.start and unit.memory_key else None
        return None if state is None else self._workers.peer(worker, state.maker)


def _reason(error: BaseException) -> str:
    """Return why a run ended early, in one line."""
    if type(error) is KeyboardInterrupt:
        return "interrupted by the user"
    if isinstance(error, (KeyboardInterrupt, SystemExit)):  # the command line's, for SIGTERM
        return "terminated"
    return escaped(f"{type(error).__name__}: {error}".splitlines()[0])
