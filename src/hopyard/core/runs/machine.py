"""The machine: events in, commands out; the only owner of a run's state.

**Theory of operation.** `apply` changes state and is a plain fold: the lines of a journal lead it to the state of the
live machine. `handle` applies one event and then decides what follows. Decisions that change state (`events.DECISIONS`)
are applied like events and belong in the journal behind the event that led to them; a slot whose time is over is
written as `Lost` behind its `Tick`. So an old journal folds to the same state for ever, whatever later versions would
decide. The table at the end of this file holds every transition; docs/architecture.md lists the modules that it calls.

A trial is a chain: State k, a unit over partition (s + k) mod P (`order.visit`), State k+1, … At most one unit of a
trial trains at a time. The validations at the ends of its epochs are units of their own and may run beside it. A State
is used as soon as its `Done` is in, long before its `Durable`. (The driver holds back a `Durable` that overtook its
`Done`.) When a slot is lost and a State that a trial needs is lost with it, the trial goes back to its *durable step*,
whose State is durable, as is that of every epoch's end before it. What is done again must give the same digest. Sums
are kept by (epoch, partition), so nothing is counted twice. A trial trains up to its `target`: the end of the run
(`Extended` moves it on), or the next place where the search looks at it. There it waits until it is granted a higher
one, or ends. A State that a slot could not take from its maker is *parked*: its maker stores it next, and units start
from it when it is durable.

No clock, no I/O, no randomness: time is in the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs import epochs, lifecycle
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Closed,
    Command,
    Deferred,
    Dispatch,
    Done,
    Durable,
    Event,
    Exhausted,
    Extended,
    Failed,
    Finish,
    Finished,
    Forgotten,
    Formed,
    Granted,
    Interrupted,
    Joined,
    Left,
    Line,
    Paused,
    Placed,
    Proposed,
    Release,
    Requested,
    Resumed,
    Retried,
    Shrunk,
    Stopped,
    StoreAway,
    StoreBack,
    Warn,
    Yielded,
)
from hopyard.core.runs.faults import rules
from hopyard.core.runs.faults.retries import Retries
from hopyard.core.runs.gangs import Gangs
from hopyard.core.runs.holding import Holding
from hopyard.core.runs.preflight import Preflight
from hopyard.core.runs.records import SlotRecord, StateRecord, TrialRecord
from hopyard.core.runs.run_record import RunRecord, RunStatus
from hopyard.core.runs.scheduling.scheduler import Assignment
from hopyard.core.runs.slots import Slots
from hopyard.core.runs.states import retention
from hopyard.core.runs.states.storing import Storing
from hopyard.spec import Ref, RunSpec, Unit, Warned


class Machine:
    """The state of one run.

    Args:
        spec: what the user asked for.

    Attributes:
        trials, slots, leases, places, scheduler, search, warnings: as in `RunRecord`.
        workers: all workers, those that are members of gangs too.
        holding: workers that are too few for a gang.
        defects: values that must be equal and are not, one sentence each.
        status: how far the run is.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._run = RunRecord(spec)
        self._retries = Retries(self._run)
        self.status: RunStatus = "checking"
        self._preflight = Preflight(self._run, self._retries, self._set_status)
        self.workers = Gangs(self._run)
        self._slots = Slots(self._run, self.workers, self._retries, self._preflight)
        self.holding = Holding(self._run, self.workers, self._slots)
        self._storing = Storing(self._run, self.workers, self._retries)
        self.trials = self._run.trials
        self.slots = self._run.slots
        self.leases = self._run.leases
        self.places = self._run.places
        self.scheduler = self._run.scheduler
        self.search = self._run.search
        self.defects = self._storing.defects
        self.warnings = self._run.warnings
        self._finishing = False
        """`Finish` was commanded."""
        self._homes_changed = False
        """A host became home to partitions since assignments were last asked for."""

    @property
    def spec(self) -> RunSpec:
        """What the user asked for, with the timeouts of the present driver."""
        return self._run.spec

    @property
    def faults(self) -> list[str]:
        """What preflight found, when nothing could start."""
        return self._preflight.faults

    @property
    def ended(self) -> bool:
        """Whether the run is over, unless it gets more epochs or trials, or failed trials are tried again."""
        return self.status in ("completed", "partial", "failed")

    @property
    def names(self) -> tuple[str, ...]:
        """The metrics that preflight saw."""
        return self._preflight.names

    @property
    def exhausted(self) -> bool:
        """Whether the search has no more to propose."""
        return self._run.exhausted

    @property
    def open(self) -> int:
        """Number of trials that have not ended."""
        return self._run.open

    # ---------------------------------------------------------------- asked by the loop

    def handle(self, event: Event, last: bool = True) -> list[Command]:
        """Apply one event, and decide what follows. Of events that are decided about together, all but the `last` one
        are only applied. Costs O(log n) for n trials, and O(n) when a slot is lost."""
        run = self._run
        commands = run.commands = []
        self._pass(event)
        kind = type(event)
        _APPLY[kind](self, event)
        if kind is Tick:
            self._expire(event.at)
        elif kind is Joined:
            while (placed := self.places.adopt(cast(Joined, event).host, event.at)) is not None:
                self._place(placed)
        if not last:
            return commands
        if self._retries.delayed:
            self._retries.decide()
        if self.status == "running" or not self.places.active:  # else the slot that checks is missing in its gang
            self.workers.regroup()
        if run.search.changed and not self.ended:
            for decision in run.search.decide(event.at):
                _APPLY[type(decision)](self, decision)
                commands.append(decision)
        if self.status == "running":
            if self.scheduler.changed():
                self._give_out()
            if self.holding.decide():
                self._give_out()  # what was at home with those that are given back
        elif self.status == "checking" and (check := self._preflight.decide()) is not None:
            self._check(check)
        if not run.open or self.status == "failed":
            self._conclude()
        return commands

    def apply(self, line: Line) -> None:
        """Change state by one line of the journal, and decide nothing."""
        self._pass(line)
        _APPLY[type(line)](self, line)

    def _set_status(self, status: RunStatus) -> None:
        self.status = status

    def _pass(self, line: Line) -> None:
        """Note the time of a line. No driver was there before `Resumed`."""
        run = self._run
        run.before, run.at = run.at, line.at
        if self.places.active and self.status == "running" and type(line) is not Resumed:
            self.scheduler.count_idle(run.before, run.at)

    def settle(self) -> None:
        """Drop what a fold noted: the decisions that followed are in the journal themselves.

        A machine that was folded decides again from `Resumed` on.
        """
        self.scheduler.settle()
        self._retries.settle()
        self._run.commands = []

    def earliest(self) -> float | None:
        """Return when a `Tick` changes something next; None: never. Amortized O(log n); O(slots) while a gang waits."""
        first, search = None, None if self.ended else self.search.earliest()
        times = self.leases.earliest(), self._retries.earliest(), self._run.durability.earliest()
        held = self.holding.earliest() if self.status == "running" else None
        for time in (*times, self.places.earliest(), search, held):
            if time is not None and (first is None or time < first):
                first = time
        return first

    def due(self, at: float) -> bool:
        """Whether a `Tick` at this time would change anything; only then it is worth a line in the journal."""
        first = self.earliest()
        return first is not None and first <= at

    def spare(self, at: float, seconds: float) -> list[int]:
        """Return the slots that may be given back at this time, idle for so many seconds (`Scheduler.spare`): none
        while more may be proposed."""
        return self.scheduler.spare(at, seconds) if self.status == "running" and self.exhausted else []

    def kept(self) -> set[Ref]:
        """Return every State that the store must hold."""
        return {state.ref for trial in self.trials.values() for state in trial.durable}

    # ---------------------------------------------------------------- trials and slots come

    def _exhausted(self, event: Exhausted) -> None:
        lifecycle.exhaust(self._run, event)
        if self.status == "checking" and not self._run.open:
            self.status = "failed"

    def _joined(self, event: Joined) -> None:
        self._slots.join(event)
        self.holding.joined()
        if self.status == "running":
            self.places.start(event.at)

    def _checked(self, event: Checked) -> None:
        if not self._preflight.awaits(event):
            return
        self._slots.set_idle(self.slots[event.slot])
        self._run.warned(event.trial, event.warnings)
        self._preflight.checked(event)
        if self.status == "running":
            self.places.start(event.at)
        if event.faults and event.fault == "memory":
            self._slots.replace(event.slot, rules.OUT_OF_MEMORY)
        inexact = ("not exact: " + "; ".join(event.notes),) if event.notes else ()
        for text in (*inexact, *event.advice):
            self._run.warned(event.trial, (Warned(text, "preflight"),))
            self._run.commands.append(Warn(text))

    # ---------------------------------------------------------------- units come and go

    def _dispatch(self, line: Dispatch) -> None:
        unit = line.unit
        slot, trial = self.slots[line.slot], self.trials[unit.trial]
        slot.busy, slot.used = unit.lease, True
        slot.together = bool(slot.members) and unit.kind == "train"
        if slot.together:
            slot.group = slot.group or unit.lease
        self.scheduler.set_busy(slot)
        if trial.isolated == unit.kind:
            trial.refuge = slot.id
        timeout = self._run.spec.timeouts.unit_timeout
        self.leases.grant(line, None if timeout is None else line.at + timeout)
        if unit.kind == "train":
            trial.lease = unit.lease
            trial.queue_version += 1
            trial.status = "running"
            return
        trial.validation_leases.add(unit.lease)
        if unit.kind == "validate":
            record = trial.epochs[unit.epoch]
            record.pending = (record.pending or set()).difference(unit.partitions)
        else:
            self.scheduler.withdraw_fold(unit.trial, unit.epoch)

    def _accept(self, event: Done | Failed) -> Unit | None:
        """Return the unit that a slot answered for, and sets the slot idle; None: the answer counts no longer."""
        slot = self.workers.slot_of(event.slot)
        if slot is None or (slot.id != event.slot and isinstance(event, Done)):
            return None
        if slot.busy == event.lease:
            if slot.together and isinstance(event, Failed):
                self.workers.give_up(slot, event.lease)
            self._slots.set_idle(slot)
        return self.leases.accept(slot.id, event.lease)

    def _done(self, event: Done) -> None:
        since, worker = self.leases.since(event.lease), self.slots.get(event.slot)
        workers = worker.at_work if worker is not None else 1
        unit = self._accept(event)
        partitions = tuple([part.partition for part in event.parts])
        if event.memory_key and event.slot in self.slots and (unit is None or partitions != unit.partitions):
            self._run.commands.append(Release(event.slot, event.memory_key))
        if unit is None:
            return
        trial, slot = self.trials[unit.trial], self.slots[event.slot]
        slot.trial = unit.trial
        trial.worker_seconds += workers * (event.at - (event.at if since is None else since))
        trial.model = event.model or trial.model
        self._run.warned(unit.trial, event.warnings)
        if partitions != unit.partitions:
            self._retries.retry(trial, unit, "system", "it answered for other partitions", "")
            return
        was_isolated = trial.isolated
        if unit.kind == "train":
            self._trained(trial, slot, unit, event)
        else:
            trial.validation_leases.discard(unit.lease)
            rules.well(trial, unit, slot.id)
            if unit.kind == "validate":
                slot.step = unit.step
                epochs.validated(self._run, trial, unit.epoch, event.parts)
            else:
                epochs.folded(self._run, trial, unit.epoch, event.values)
        if was_isolated and not trial.isolated:
            lifecycle.offer(self._run, trial)

    def _trained(self, trial: TrialRecord, slot: SlotRecord, unit: Unit, event: Done) -> None:
        run = self._run
        partitions = run.spec.partitions
        previous_step = trial.step
        step = trial.step = slot.step = previous_step + len(event.parts)
        trial.lease = 0
        rules.well(trial, unit, slot.id)
        ref = Ref(trial.id, step, unit.lease)
        trial.states[step] = StateRecord(ref, slot.id, event.memory_key)
        if step % partitions == 0:
            run.durability.expect(ref, slot.id, event.at)
        slot.memory_only.add(trial.id)
        run.estimates.learn(trial, sum([part.seconds for part in event.parts]), len(event.parts))
        retention.release_memory(trial, previous_step, partitions, run.slots, run.commands)
        run.scheduler.offer(trial)
        epochs.trained(run, trial, unit.epoch, event.parts)

    def _failed(self, event: Failed) -> None:
        unit = self._accept(event)
        if unit is None:
            return
        trial = self.trials[unit.trial]
        self._run.warned(unit.trial, event.warnings)
        if event.missing is not None:
            self._retries.missing(trial, unit, event.missing, event.error)
        elif event.fault == "memory":
            self._retries.out_of_memory(trial, unit, event.error, event.trace, event.device)
            self._slots.replace(event.slot, rules.OUT_OF_MEMORY)
        elif event.fault in ("system", "store"):
            self._retries.retry(trial, unit, event.fault, event.error, event.trace)
        else:
            lifecycle.requeue(self._run, trial, unit)
            lifecycle.fail(self._run, trial, event.fault, event.error, event.trace)

    # ---------------------------------------------------------------- slots and drivers go

    def _resumed(self, event: Resumed) -> None:
        self._slots.renew(event)
        self.holding.clear()
        if self._run.open and (self.status in ("completed", "partial") or (self.status == "failed" and self.names)):
            self.status, self._finishing = "running", False

    def _retried(self, event: Retried) -> None:
        trial = self.trials[event.trial]
        if trial.status == "failed" or event.recipe:  # one that was storing goes on since `Resumed`
            self._finishing = False
            self._preflight.begin_anew(event.recipe)
            lifecycle.try_again(self._run, trial, event.recipe)

    def _extended(self, event: Extended) -> None:
        lifecycle.extend(self._run, event)
        if self.ended:
            self._finishing = False
            self._preflight.begin_anew("")

    def _finished(self, event: Finished) -> None:
        self.status, self._finishing = event.status, True

    # ---------------------------------------------------------------- decisions

    def _expire(self, at: float) -> None:
        self._slots.expire(at)
        self.search.changed = True  # the run's time may be over

    def _tick(self, event: Tick) -> None:
        self._retries.tick(event.at)
        self.holding.tick(event.at)
        if self.places.tick(event.at):
            self.scheduler.offer_again()

    def _placed(self, line: Placed) -> None:
        if self.places.place(line):
            self.scheduler.rebuild()

    def _place(self, line: Placed) -> None:
        """Let a host be home to partitions."""
        self._homes_changed = True
        self._placed(line)
        self._run.commands.append(line)

    def _check(self, check: Check) -> None:
        """Let a slot check a trial, with rows that are at home on its host from now on."""
        host, (train, validate) = self.slots[check.slot].host, check.partitions
        if (placed := self.places.claim(host, "train", train, check.at)) is not None:
            self._place(placed)
        if self.spec.validation and (placed := self.places.claim(host, "validate", validate, check.at)) is not None:
            self._place(placed)
        self._preflight.begin(check)
        self._run.commands.append(check)

    def _give_out(self) -> None:
        """Carry out the scheduler's assignments. Once each block has its homes, hosts without enough to do may become
        homes of any, so they are asked again."""
        while True:
            self._homes_changed = False
            for assignment in self.scheduler.assignments():
                self._assign(assignment)
            if not (self._homes_changed and self.scheduler.idle and self.places.all_placed("train")):
                return
            self.scheduler.offer_again()

    def _assign(self, assignment: Assignment) -> None:
        """Give the unit of an assignment to its slot."""
        slot, _, kind, _, partitions = assignment
        if self.places.active and kind != "fold":
            placed = self.places.claim(slot.home, kind, partitions[0], self._run.at)
            if placed is not None:
                self._place(placed)
        line = Dispatch(at=self._run.at, slot=slot.id, unit=self._slots.unit(assignment))
        self._dispatch(line)
        self._run.commands.append(line)

    def _conclude(self) -> None:
        """Finish the run, if every trial has ended or none can start."""
        over = self.exhausted and (self.status == "running" or self.search.closed)
        if not self._finishing and (self.status == "failed" or over):
            self._finishing = True
            self._run.commands.append(Finish(self._run.outcome()))


def fold(lines: Iterable[Line], machine: Machine | None = None) -> Machine:
    """Return the machine after all lines of a journal. The first line is `Began`.

    Args:
        lines: of the journal; with `machine`, those that follow.
        machine: folded up to there.
    """
    for line in lines:
        if isinstance(line, Began):
            machine = Machine(line.spec)
        elif machine is None:
            raise ValueError(f"a journal begins with Began, not {type(line).__name__}")
        machine.apply(line)
        machine.settle()
    if machine is None:
        raise ValueError("an empty journal has no run")
    return machine


_APPLY: dict[type[Any], Callable[[Machine, Any], None]] = {
    Began: lambda machine, event: machine._run.begin(event),
    Proposed: lambda machine, event: lifecycle.propose(machine._run, event),
    Exhausted: Machine._exhausted,
    Joined: Machine._joined,
    Formed: lambda machine, line: machine.workers.form(line),
    Requested: lambda machine, event: machine.holding.request(event),
    Yielded: lambda machine, line: machine.holding.give_back(line),
    Check: lambda machine, line: machine._preflight.begin(line),
    Placed: Machine._placed,
    Checked: Machine._checked,
    Dispatch: Machine._dispatch,
    Done: Machine._done,
    Durable: lambda machine, event: machine._storing.durable(event),
    Failed: Machine._failed,
    Forgotten: lambda machine, event: machine._storing.forgotten(event),
    StoreAway: lambda machine, event: machine._storing.away(event),
    StoreBack: lambda machine, event: machine._storing.back(event),
    Deferred: lambda machine, line: machine._retries.defer(line),
    Paused: lambda machine, line: lifecycle.pause(machine._run, line),
    Granted: lambda machine, line: lifecycle.grant(machine._run, line),
    Stopped: lambda machine, line: lifecycle.stop(machine._run, line),
    Closed: lambda machine, line: lifecycle.close(machine._run, line),
    Lost: lambda machine, event: machine._slots.remove(event.slot, event.reason, event.fault),
    Left: lambda machine, event: machine._slots.remove(event.slot, event.reason, "data"),
    Tick: Machine._tick,
    Resumed: Machine._resumed,
    Retried: Machine._retried,
    Extended: Machine._extended,
    Shrunk: lambda machine, line: machine.workers.resize(line.members),
    Interrupted: lambda machine, event: None,
    Finished: Machine._finished,
}
"""The whole transition table: what each line of a journal changes."""
