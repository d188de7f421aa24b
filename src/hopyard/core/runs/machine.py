"""The machine: events in, commands out; the only owner of a run's state.

**Theory of operation.** `apply` changes state and is a plain fold: given the lines of a journal it ends where the live
machine stood. `handle` applies one event and then decides what follows; the decisions that change state (`Dispatch`,
`Check`, `Deferred`) are applied like events and belong in the journal behind the event that led to them; a slot whose
time is over is written as `Lost` behind its `Tick`. So an old journal folds to the same state for ever, whatever later
versions would decide. The table at the end of this file holds every
transition; `retention` says what a trial's States go through, `scheduler` and `policy` who gets what next, `leases`
whose answers count.

A trial is a chain: State k, a unit over partition (i + k) mod P, State k+1, … At most one unit of a trial trains at a
time; the validations of its epochs' ends are units of their own and may run beside it. A State is used as soon as its
`Done` is in, long before its `Durable` (the driver holds back a `Durable` that overtook its `Done`). When a slot is
lost, a trial goes back to its *safe* step (durable, and so is every epoch's end before it) if a State that it needs
went with the slot, and else stays. What is done again must give the same digest; sums are kept by (epoch, partition),
so nothing is counted twice. `faults` says when a trial that failed is tried again: that it waits, and how long, is a
decision too (`Deferred`). A State that a slot could not take from its maker is *parked*: its maker stores it next, and
units start from it when it is durable.

No clock, no I/O, no randomness: time is in the events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs import faults, retention
from hopyard.core.runs.durability import Durability
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Command,
    Deferred,
    Delete,
    Dispatch,
    Done,
    Durable,
    Event,
    Exhausted,
    Failed,
    Finish,
    Finished,
    Forgotten,
    Interrupted,
    Joined,
    Keep,
    Left,
    Line,
    Proposed,
    Release,
    Replace,
    Resumed,
    Retried,
    StoreAway,
    StoreBack,
    Warn,
)
from hopyard.core.runs.leases import Leases
from hopyard.core.runs.records import EpochBook, SlotBook, StateBook, TrialBook
from hopyard.core.runs.scheduler import SMOOTH, Board
from hopyard.spec import Fault, Kind, Ref, RunSpec, Unit

CHECKS = 3
"""Preflight tries the first trials in turn: when this many cannot start, nothing runs."""


class Machine:
    """The state of one run.

    Args:
        spec: what was asked for.

    Attributes:
        trials: number → TrialBook, in the order of proposal.
        slots: number → SlotBook of those that are there.
        leases: who works on what, and until when.
        status: "checking" until preflight passed, then "running", at last "completed", "partial" or "failed".
        faults: what preflight found, when nothing could start.
        names: the metrics that preflight saw.
        exhausted: whether the search has no more to propose.
        defects: what was promised to be equal and is not, one sentence each.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.trials: dict[int, TrialBook] = {}
        self.slots: dict[int, SlotBook] = {}
        self.leases = Leases()
        self.status: Literal["checking", "running", "completed", "partial", "failed"] = "checking"
        self.faults: list[str] = []
        self.names: tuple[str, ...] = ()
        self.exhausted = False
        self.defects: list[str] = []
        self._board = Board(spec, self.trials, self.slots, self._give)
        self._steps = spec.steps
        self._checking: tuple[int, int] | None = None
        """(slot, trial) of the check that is under way."""
        self._unfit = 0
        """Trials that did not pass preflight."""
        self._recipe = ""
        """Digest of the newest recipe; empty: there is only the first one."""
        self._open = 0
        """Trials that have not ended."""
        self._waits = faults.Waits(self.trials)
        self._durability = Durability(spec.timeouts.durable_timeout)
        self._troubled: list[tuple[TrialBook, Fault, str]] = []
        """Trials that the last event made wait, with fault and reason."""
        self._told = False
        """`Finish` was commanded."""
        self._out: list[Command] = []
        self._at = 0.0

    # ---------------------------------------------------------------- asked by the loop

    def handle(self, event: Event) -> list[Command]:
        """Apply one event, decide what follows. Costs O(log n) for n trials, and O(n) when a slot is lost."""
        out = self._out = []
        self._at = event.at
        _APPLY[type(event)](self, event)
        if type(event) is Tick:
            self._expire(event.at)
        if self._troubled:
            self._put_off()
        if self.status == "running":
            self._board.match()
        elif self.status == "checking":
            self._preflight()
        if not self._open or self.status == "failed":
            self._conclude()
        return out

    def apply(self, line: Line) -> None:
        """Change state by one line of the journal, deciding nothing."""
        self._at = line.at
        _APPLY[type(line)](self, line)

    def settle(self) -> None:
        """Forget what a fold stirred up: the decisions that followed are in the journal themselves.

        A machine that was folded decides again from `Resumed` on.
        """
        self._board.settle()
        self._troubled.clear()
        self._out = []

    def earliest(self) -> float | None:
        """When a `Tick` changes something next; None: never. Amortized O(log n)."""
        first = None
        for time in (self.leases.earliest(), self._waits.earliest(), self._durability.earliest()):
            if time is not None and (first is None or time < first):
                first = time
        return first

    def due(self, at: float) -> bool:
        """Whether a `Tick` at this time would change anything; only then it is worth a line in the journal."""
        first = self.earliest()
        return first is not None and first <= at

    def spare(self, at: float, patience: float) -> list[int]:
        """The slots that may be given back at this time: with nothing to do for `patience` seconds, and nothing in
        their memory alone. Never all of them, and none while a trial waits for something other than a slot. What is
        left to do only gets less, so nobody is called back."""
        found = [
            slot.id
            for slot in self.slots.values()
            if not slot.busy
            and at - slot.since >= patience
            and not any(retention.held(self.trials[made], slot.id) for made in slot.made)
        ]
        found = found[: len(self.slots) - 1] if self.status == "running" and not self._board.alone else []
        return [] if found and any(map(_held_up, self.trials.values())) else found

    @property
    def resting(self) -> set[int]:
        """The slots that are given nothing, because a unit that ran out of memory is tried again without them."""
        return self._board.resting

    @property
    def open(self) -> int:
        """How many trials have not ended."""
        return self._open

    def kept(self) -> set[Ref]:
        """Every State that the store should hold."""
        return {state.ref for trial in self.trials.values() for state in trial.states.values() if state.digest}

    def snapshot(self) -> dict[str, Any]:
        """All state that matters, as plain values: equal for equal journals. For tests and for `hopyard show`. (Where
        a State lies in shared memory is not in the journal.)"""
        apart = ("stamp", "states", "epochs")
        return {
            "trials": {
                trial.id: {name: getattr(trial, name) for name in TrialBook.__slots__ if name not in apart}
                | {"states": {step: (s.ref, s.maker, s.digest, s.parked) for step, s in trial.states.items()}}
                | {
                    "epochs": {
                        epoch: (book.train, book.validate, book.left, book.folding, book.parked)
                        for epoch, book in sorted(trial.epochs.items())
                    }
                }
                for trial in self.trials.values()
            },
            "slots": {
                slot.id: (
                    *(slot.host, slot.pid, slot.device, slot.holds, slot.busy, slot.trial, slot.step),
                    *(sorted(slot.made), slot.used, slot.away),
                )
                for slot in self.slots.values()
            },
            "leases": {
                lease: (slot, unit.trial, unit.kind, unit.epoch, unit.partitions, unit.start)
                for lease, (slot, unit) in self.leases.standing().items()
            },
            "deadlines": self.leases.deadlines(),
            "awaited": self._durability.awaited(),
            "status": self.status,
            "exhausted": self.exhausted,
            "faults": self.faults,
            "defects": self.defects,
            "names": self.names,
            "checking": self._checking,
            "folds": list(self._board.folds),
            "alone": sorted(number for number, trial in self.trials.items() if trial.alone and not trial.ended),
        }

    # ---------------------------------------------------------------- trials and slots come

    def _began(self, event: Began) -> None:
        pass  # its spec made this machine

    def _proposed(self, event: Proposed) -> None:
        trial = self.trials[event.trial] = TrialBook(event.trial, event.config)
        self._open += 1
        self._board.expect(trial, self._steps)
        self._board.offer(trial)

    def _exhausted(self, event: Exhausted) -> None:
        self.exhausted = True
        if self.status == "checking" and not self._open:
            self.status = "failed"

    def _joined(self, event: Joined) -> None:
        slot = self.slots[event.slot] = SlotBook(event.slot, event.host, event.pid, event.holds, event.device)
        slot.since = event.at
        self._board.join(slot)

    # ---------------------------------------------------------------- preflight

    def _check(self, line: Check) -> None:
        slot = self.slots[line.slot]
        slot.busy, slot.used = -1, True
        self._board.take(slot)
        self._checking = line.slot, line.trial

    def _checked(self, event: Checked) -> None:
        if self._checking != (event.slot, event.trial):
            return
        self._checking = None
        self._rest(self.slots[event.slot])
        trial = self.trials[event.trial]
        if event.faults and event.fault in faults.TRANSIENT:
            self._recheck(trial, event.fault, "; ".join(event.faults), event.device)
            if event.fault == "memory":
                self._replace(event.slot, faults.STARVED)
        elif event.faults:
            self._refuse(trial, event.fault, list(event.faults))
        else:
            faults.cleared(trial)
            self.status = "running"
            self.names = event.names
        self._out += [Warn(f"not exact: {note}") for note in event.notes]

    def _recheck(self, trial: TrialBook, fault: Fault, error: str, on_device: bool = False) -> None:
        """A trial could not be checked, which may be no fault of its own. `on_device`: as of `_starved`."""
        count = faults.strike(trial, (fault, "check", 0, 0))
        if not faults.ends(fault, count, self.spec):
            self._trouble(trial, fault, error)
            return
        text = faults.starved(error, on_device) if fault == "memory" else f"{error} (tried {count} times)"
        self._refuse(trial, fault, [text])

    def _refuse(self, trial: TrialBook, fault: Fault, found: list[str]) -> None:
        """A trial did not pass preflight. When the first few do not, nobody will; unless the run went on before, and it
        is only another recipe that is not fit: then whoever is left is tried for himself."""
        self.faults += [text for text in found if text not in self.faults]
        self._fail(trial, fault, "; ".join(found), "")
        self._unfit += 1
        if self._unfit >= CHECKS or (self.exhausted and not self._open):
            self.status = "running" if self.names else "failed"

    # ---------------------------------------------------------------- units come and go

    def _dispatch(self, line: Dispatch) -> None:
        self._lend(line, self.slots[line.slot], self.trials[line.unit.trial])

    def _lend(self, line: Dispatch, slot: SlotBook, trial: TrialBook) -> None:
        unit = line.unit
        slot.busy, slot.used = unit.lease, True
        self._board.take(slot)
        if trial.alone == unit.kind:
            trial.refuge = slot.id
        allowed = self.spec.timeouts.unit_timeout
        self.leases.grant(line, None if allowed is None else line.at + allowed)
        if unit.kind == "train":
            trial.lease = unit.lease
            trial.stamp += 1
            trial.status = "running"
            return
        trial.aside.add(unit.lease)
        if unit.kind == "validate":
            book = trial.epochs[unit.epoch]
            book.left = (book.left or set()).difference(unit.partitions)
        else:
            self._board.folds.pop((unit.trial, unit.epoch), None)

    def _done(self, event: Done) -> None:
        slot = self.slots.get(event.slot)
        if slot is None:
            return
        if slot.busy == event.lease:
            self._rest(slot)
        unit = self.leases.accept(event.slot, event.lease)
        if unit is None:
            if event.where:
                self._out.append(Release(event.slot, event.where))
            return
        trial = self.trials[unit.trial]
        slot.trial = unit.trial
        if tuple([part.partition for part in event.parts]) != unit.partitions:
            if event.where:
                self._out.append(Release(event.slot, event.where))
            self._again(
                trial, unit, "system", f"it answered for partitions {[part.partition for part in event.parts]}", ""
            )
            return
        isolated = trial.alone
        if unit.kind == "train":
            self._trained(trial, slot, unit, event)
        else:
            trial.aside.discard(unit.lease)
            faults.well(trial, unit, slot.id)
            if unit.kind == "validate":
                self._validated(trial, slot, unit, event)
            elif (book := trial.epochs.get(unit.epoch)) is not None:
                self._enter(trial, unit.epoch, {**book.totals()[0], **event.values})
        if isolated and not trial.alone:
            self._awaken(trial)

    def _trained(self, trial: TrialBook, slot: SlotBook, unit: Unit, event: Done) -> None:
        partitions = self.spec.partitions
        parts = event.parts
        epoch = unit.epoch
        before = trial.step
        step = trial.step = slot.step = before + len(parts)
        trial.lease = 0
        faults.well(trial, unit, slot.id)
        ref = Ref(trial.id, step, unit.lease)
        trial.states[step] = StateBook(ref, slot.id, event.where)
        if step % partitions == 0:
            self._durability.made(ref, slot.id, event.at, trial.patience)
        slot.made.add(trial.id)
        self._board.learn(trial, sum([part.seconds for part in parts]), len(parts))
        retention.spend(trial, before, partitions, self.slots, self._out)
        if step < self._steps:
            self._board.offer(trial)
        if epoch in trial.history:  # it was done again, for its States
            return
        book = trial.epochs.get(epoch)
        if book is None:
            book = trial.epochs[epoch] = EpochBook()
        for part in parts:
            book.train[part.partition] = part.sums
        if step % partitions == 0:
            book.left = set(range(self.spec.validation)).difference(book.validate)
            if book.left:
                self._board.open(trial, epoch)
            self._close(trial, epoch, book)

    def _validated(self, trial: TrialBook, slot: SlotBook, unit: Unit, event: Done) -> None:
        slot.step = unit.step
        book = trial.epochs.get(unit.epoch)
        if book is None:  # its metrics are in, or are not wanted any longer
            return
        for part in event.parts:
            book.validate[part.partition] = part.sums
        each = sum([part.seconds for part in event.parts]) / len(event.parts)
        trial.check_seconds += (each - trial.check_seconds) * (SMOOTH if trial.check_seconds else 1.0)
        self._close(trial, unit.epoch, book)

    def _close(self, trial: TrialBook, epoch: int, book: EpochBook) -> None:
        """All sums of an epoch may be in: turn them into metrics, or ask a slot to (additive arrays)."""
        if book.folding or book.left is None or len(book.validate) < self.spec.validation:
            return
        try:
            values, arrays = book.totals()
        except ValueError as error:
            self._fail(trial, "user", str(error), "")
            return
        loss = values.get("val_loss", 0.0)
        if self.spec.void_epochs and not math.isfinite(loss):
            self._void(trial, epoch, loss, [*values, *arrays])
        elif arrays:
            book.folding = True
            self._board.folds[trial.id, epoch] = None
        else:
            self._enter(trial, epoch, values)

    def _void(self, trial: TrialBook, epoch: int, loss: float, names: list[str]) -> None:
        """The outputs of such an epoch are not numbers, so what else was counted of them (a class for NaN, a bin) is
        worth nothing. The trial goes on: another epoch may be its best."""
        if not any(math.isnan(values.get("val_loss", 0.0)) for values in trial.history.values()):
            self._out.append(
                Warn(
                    f"trial {trial.id}, epoch {epoch + 1}: the validation loss is {loss}; all metrics of such an epoch "
                    "are NaN"
                )
            )
        self._enter(trial, epoch, dict.fromkeys(names, math.nan))

    def _enter(self, trial: TrialBook, epoch: int, values: dict[str, float]) -> None:
        """The metrics of an epoch are all in."""
        spec = self.spec
        trial.enter(epoch, values, spec)
        step = (epoch + 1) * spec.partitions
        if step < trial.step or step == self._steps:
            retention.spend(trial, step, spec.partitions, self.slots, self._out)
        retention.collect(trial, spec.partitions, self._out)
        self._complete(trial)

    def _durable(self, event: Durable) -> None:
        ref = event.ref
        trial = self.trials.get(ref.trial)
        if trial is None:
            return
        self._durability.stored(event.slot, event.at)
        self._durability.settled(ref)
        trial.unstored = 0
        known = trial.seal(ref.step, event.digest, self.spec.partitions)
        if known != event.digest:
            self.defects.append(
                f"trial {ref.trial}, step {ref.step} was done again and gave another State: digest "
                f"{event.digest[:16]} after {known[:16]}"
            )
            self._out.append(
                Warn(
                    f"defect: {self.defects[-1]}. The recipe is not deterministic, or Hopyard is at fault; "
                    "the newer State is used",
                    defect=True,
                )
            )
        state = trial.states.get(ref.step)
        if state is None or state.ref != ref:
            self._out.append(Delete(ref))
            return
        state.digest = event.digest
        state.bytes = event.bytes
        state.sealed = self.leases.last
        if state.parked:
            self._unpark(trial, state)
        if retention.advance(trial, self.spec.partitions):
            trial.forget()
            retention.collect(trial, self.spec.partitions, self._out)
            self._complete(trial)

    def _failed(self, event: Failed) -> None:
        slot = self.slots.get(event.slot)
        if slot is None:
            return
        if slot.busy == event.lease:
            self._rest(slot)
        unit = self.leases.accept(event.slot, event.lease)
        if unit is None:
            return
        trial = self.trials[unit.trial]
        if event.missing is not None:
            self._missed(trial, unit, event.missing, event.error)
        elif event.fault == "memory":
            self._starved(trial, unit, event.error, event.trace, event.device)
            self._replace(event.slot, faults.STARVED)
        elif event.fault in ("system", "store"):
            self._again(trial, unit, event.fault, event.error, event.trace)
        else:
            self._undo(trial, unit)
            self._fail(trial, event.fault, event.error, event.trace)

    def _missed(self, trial: TrialBook, unit: Unit, ref: Ref, error: str) -> None:
        """The State that a unit starts from could not be had: nobody's fault, as long as it can be stored or made."""
        self._undo(trial, unit)
        state = trial.states.get(ref.step)
        if state is not None and state.ref == ref:
            if not state.digest and state.maker in self.slots:
                retention.park(trial, state, self.spec.partitions)
                self._board.offer(trial)  # what does not start from it
                self._out.append(Keep(state.maker, ref, state.where))
            elif state.digest and unit.lease > state.sealed:  # it was stored before the unit was given out
                if faults.strike(trial, ("gone", "", ref.step, ref.attempt)) >= faults.UNSTORED:
                    self._out.append(Warn(f"{error}; trial {trial.id} makes it again from the State before it"))
                    self._without(trial, {ref})
                    return
                self._trouble(trial, "store", error)
        self._mend(trial)

    def _unpark(self, trial: TrialBook, state: StateBook) -> None:
        retention.unpark(trial, state, self.spec.partitions, self.slots, self._out)
        self._awaken(trial)

    def _forgotten(self, event: Forgotten) -> None:
        """Its maker does not have a State any longer, and did not store it: as if the maker were gone."""
        trial = self.trials.get(event.ref.trial)
        state = None if trial is None else trial.states.get(event.ref.step)
        if trial is None or state is None or state.ref != event.ref or state.maker != event.slot or state.digest:
            return
        state.where, state.maker = "", -1
        self._durability.settled(event.ref)
        self._unpark(trial, state)
        self._mend(trial)

    def _store_away(self, event: StoreAway) -> None:
        slot = self.slots.get(event.slot)
        if slot is not None:
            slot.away, slot.away_since = event.error, event.at
            self._durability.away(event.slot, event.at)

    def _store_back(self, event: StoreBack) -> None:
        """Those that wait for the store need not wait longer."""
        slot = self.slots.get(event.slot)
        if slot is None or not slot.away:
            return
        slot.away = ""
        self._durability.back(event.slot, event.at)
        for trial in self.trials.values():
            if trial.until and trial.waits_for.startswith("store:"):
                self._awaken(trial, over=True)

    # ---------------------------------------------------------------- slots and drivers go

    def _lost(self, event: Lost | Left) -> None:
        self._gone(event.slot, event.reason, event.fault if isinstance(event, Lost) else "data")

    def _tick(self, event: Tick) -> None:
        for trial in self._waits.over(event.at):
            if trial.fresh and trial.fresh <= event.at:
                trial.fresh = 0.0
            if trial.until and trial.until <= event.at:
                self._awaken(trial, over=True)

    def _replace(self, number: int, reason: str, fault: Literal["system", "store"] = "system") -> None:
        if number in self.slots:
            self._out.append(Replace(number, reason, fault))
            self._gone(number, reason, fault)

    def _unstored(self, trial: TrialBook) -> None:
        """A slot that owed a State of this trial was replaced. If that happens again and again it is not the slots:
        States are large, or the store is slow, and none would ever be stored."""
        trial.unstored += 1
        if trial.unstored < faults.UNSTORING:
            return
        before = trial.patience * self.spec.timeouts.durable_timeout
        self._out.append(
            Warn(
                f"trial {trial.id}: {trial.unstored} workers in a row were replaced because they stored nothing for "
                f"{before:g} seconds (durable_timeout={self.spec.timeouts.durable_timeout:g}); from now on its States "
                f"may take {2 * before:g} seconds. If the place that store= names is slow, give a greater "
                "durable_timeout, also to hy.resume; if it is broken, give another store="
            )
        )
        trial.unstored = 0
        trial.patience *= 2.0

    def _gone(self, number: int, reason: str, fault: Literal["system", "memory", "data", "store"] = "system") -> None:
        """A slot is not there any longer, nor are the States that only it had."""
        slot = self.slots.pop(number, None)
        if slot is None:
            return
        self._board.leave(slot)
        self.leases.answered(number)
        if fault == "store" and (owed := self._durability.oldest(number)) is not None:
            self._unstored(self.trials[owed.trial])
        self._durability.gone(number)
        if self._checking is not None and self._checking[0] == number:
            self._uncheck(self.trials[self._checking[1]], reason, fault)
        unit = self.leases.revoke(slot.busy)
        if unit is not None:
            trial = self.trials[unit.trial]
            if fault == "memory":
                self._starved(trial, unit, reason, "", on_device=False)
            elif fault in ("data", "store"):
                self._undo(trial, unit)
                self._mend(trial)
            else:
                self._again(trial, unit, "lost", reason, "")
        for made in sorted(slot.made):
            self._mend(self.trials[made])

    def _uncheck(self, trial: TrialBook, reason: str, fault: Literal["system", "memory", "data", "store"]) -> None:
        """The slot that checked a trial is gone; after the third the trial is poison."""
        self._checking = None
        if fault == "memory":
            self._recheck(trial, "memory", reason)
        elif fault == "system" and faults.ends("lost", faults.strike(trial, ("lost", "check", 0, 0)), self.spec):
            text = (
                f"{faults.POISON}building trial {trial.id} ended {self.spec.strikes} workers, the last one so: {reason}"
            )
            self._refuse(trial, "system", [text])

    def _resumed(self, event: Resumed) -> None:
        if event.timeouts is not None:
            if event.timeouts.durable_timeout != self.spec.timeouts.durable_timeout:
                for trial in self.trials.values():
                    trial.patience = 1.0
            self.spec = msgspec.structs.replace(self.spec, timeouts=event.timeouts)
        units = [unit for _, unit in self.leases.standing().values()]
        self.leases.clear()
        self.slots.clear()
        self._board.clear()
        self._checking = None
        for unit in units:
            self._undo(self.trials[unit.trial], unit)
        for trial in self.trials.values():
            for state in trial.states.values():
                state.where, state.parked = "", False
            for book in trial.epochs.values():
                book.parked = False
            trial.fresh = 0.0  # every worker is new
            if trial.until:  # whoever resumed has waited
                self._awaken(trial, over=True)
            self._mend(trial)
        self._waits.clear()
        self._durability = Durability(self.spec.timeouts.durable_timeout)
        gone = set(event.gone)
        for trial in self.trials.values() if gone else ():
            self._without(trial, gone)
        if self._open and self.status in ("completed", "partial"):
            self.status, self._told = "running", False

    def _retried(self, event: Retried) -> None:
        trial = self.trials[event.trial]
        if trial.status != "failed":
            return
        trial.ended = False
        trial.error = trial.fault = trial.trace = ""
        faults.cleared(trial)
        self._open += 1
        self._unfit, self.faults = 0, []
        self._told = False
        self.status = "running" if self.names and not event.recipe else "checking"
        if event.recipe:
            trial.recipe = self._recipe = event.recipe
            for state in trial.states.values():
                if state.digest:
                    self._out.append(Delete(state.ref))
            for known in (trial.states, trial.digests, trial.recent, trial.epochs, trial.history):
                known.clear()
            trial.best, trial.safe, trial.reached = None, 0, 0
        self._rewind(trial)
        self._awaken(trial)

    def _interrupted(self, event: Interrupted) -> None:
        pass

    def _finished(self, event: Finished) -> None:
        self.status = event.status
        self._told = True

    # ---------------------------------------------------------------- what a trial goes through

    def _rest(self, slot: SlotBook) -> None:
        slot.busy, slot.since = 0, self._at
        self.leases.answered(slot.id)
        self._board.rest(slot)

    def _again(
        self, trial: TrialBook, unit: Unit, fault: Literal["lost", "system", "store"], error: str, trace: str
    ) -> None:
        """A unit, whose lease stands no longer, did not come back, through no fault of its own."""
        count = faults.strike(trial, faults.key(fault, unit))
        self._undo(trial, unit)
        if not faults.ends(fault, count, self.spec):
            if fault != "lost":
                self._trouble(trial, fault, error)
            self._mend(trial)
            return
        where = f"{unit.kind}, epoch {unit.epoch + 1}, partitions {list(unit.partitions)}"
        text = f"its unit ({where}) failed {count} times, the last one so: {error}"
        if fault == "lost":
            text = f"{faults.POISON}{text}; `hopyard logs` shows where it was"
        self._fail(trial, "system", text, trace)

    def _starved(self, trial: TrialBook, unit: Unit, error: str, trace: str, on_device: bool) -> None:
        """A unit ran out of memory; its slot is gone, or goes."""
        count = faults.strike(trial, faults.key("memory", unit))
        self._undo(trial, unit)
        if faults.ends("memory", count, self.spec):
            self._fail(trial, "memory", faults.starved(error, on_device), trace)
            return
        if unit.kind != "fold":
            trial.alone, trial.on_device, trial.refuge = unit.kind, on_device, -1
            self._board.alone[trial.id] = None
        self._trouble(trial, "memory", error)
        self._mend(trial)

    def _trouble(self, trial: TrialBook, fault: Fault, error: str) -> None:
        """The trial is to wait: `_put_off` decides how long."""
        trial.troubles += 1
        self._troubled.append((trial, fault, error))

    def _defer(self, line: Deferred) -> None:
        trial = self.trials[line.trial]
        if line.fault == "memory":
            trial.fresh = line.until
        else:
            trial.until = max(trial.until, line.until)
            trial.waits_for = f"{line.fault}: {line.reason}"
            trial.stamp += 1
            for epoch in trial.epochs:
                self._board.folds.pop((trial.id, epoch), None)
        self._waits.add(trial.fresh if line.fault == "memory" else trial.until, trial.id)

    def _awaken(self, trial: TrialBook, over: bool = False) -> None:
        """What held the trial up may be over (`over`: its wait is): what it has to do can be given out."""
        if over:
            trial.until, trial.waits_for = 0.0, ""
        if trial.ended or trial.until:
            return
        self._board.offer(trial)
        folded = {unit.epoch for lease in trial.aside if (unit := self.leases.unit(lease)).kind == "fold"}
        for epoch, book in trial.epochs.items():
            if book.left:
                self._board.open(trial, epoch)
            if book.folding and epoch not in folded:
                self._board.folds[trial.id, epoch] = None

    def _undo(self, trial: TrialBook, unit: Unit) -> None:
        """The unit is to be given out again."""
        if unit.kind == "train":
            trial.lease = 0
            trial.status = "waiting"
            self._board.offer(trial)
            return
        trial.aside.discard(unit.lease)
        book = trial.epochs.get(unit.epoch)
        if book is None:  # its metrics are in, or are not wanted any longer
            return
        if unit.kind == "fold":
            self._board.folds[trial.id, unit.epoch] = None
        elif book.left is not None:
            book.left.update(unit.partitions)
            self._board.open(trial, unit.epoch)

    def _mend(self, trial: TrialBook) -> None:
        """If a State that the trial needs is gone: back to the safe step."""
        partitions = self.spec.partitions
        if trial.ended or not retention.broken(trial, partitions, self.slots):
            return
        self._revoke(trial)
        self._rewind(trial)

    def _revoke(self, trial: TrialBook) -> None:
        """The trial goes back to its safe step: the units that start from States behind it count no longer."""
        if trial.lease:
            self.leases.revoke(trial.lease)
            trial.lease = 0
        for lease in sorted(trial.aside):
            unit = self.leases.unit(lease)
            if unit.kind == "validate" and unit.step > trial.safe:
                self.leases.revoke(lease)
                trial.aside.discard(lease)

    def _without(self, trial: TrialBook, gone: set[Ref]) -> None:
        """These durable States are there no longer: the trial makes them again, from the newest one before them."""
        missing = [step for step, state in trial.states.items() if state.ref in gone]
        if not missing:
            return
        for step in missing:
            del trial.states[step]
        trial.safe = max([step for step in trial.states if step < min(missing) and step <= trial.safe], default=0)
        if trial.status == "failed":
            self._cut(trial)
            return
        if trial.ended:
            trial.ended = False
            self._open += 1
        self._revoke(trial)
        self._rewind(trial)

    def _rewind(self, trial: TrialBook) -> None:
        """Back to the safe step."""
        for epoch, book in trial.epochs.items():
            if (epoch + 1) * self.spec.partitions > trial.safe:
                book.left, book.parked = None, False
        self._cut(trial)
        trial.step = trial.safe
        trial.stamp += 1
        trial.status = "waiting"
        self._board.expect(trial, self._steps - trial.step)
        self._board.offer(trial)

    def _cut(self, trial: TrialBook) -> None:
        """Forget the States behind the safe one."""
        for step, state in trial.states.items():
            if step > trial.safe and not state.digest:
                self._durability.settled(state.ref)
        retention.cut(trial, self.slots, self._out)

    def _complete(self, trial: TrialBook) -> None:
        if trial.safe == self._steps and len(trial.history) == self.spec.epochs and not trial.ended:
            trial.status = "completed"
            self._end(trial)

    def _fail(self, trial: TrialBook, fault: Fault, error: str, trace: str) -> None:
        """The trial failed; the run goes on."""
        for lease in (trial.lease, *sorted(trial.aside)):
            if (unit := self.leases.revoke(lease)) is not None:
                self._undo(trial, unit)
        trial.status = "failed"
        trial.fault, trial.error, trial.trace = fault, error, trace
        trial.lease = 0
        trial.aside.clear()
        for epoch in trial.epochs:
            self._board.folds.pop((trial.id, epoch), None)
        if fault == "user":  # it does not go on from here; of others, these sums are needed if they are tried again
            trial.epochs.clear()
        faults.cleared(trial)
        self._cut(trial)
        self._end(trial)

    def _end(self, trial: TrialBook) -> None:
        trial.ended = True
        trial.stamp += 1
        self._open -= 1
        self._board.expect(trial, 0)
        retention.released(trial, self.slots, self._out)
        retention.collect(trial, self.spec.partitions, self._out)

    # ---------------------------------------------------------------- decisions

    def _preflight(self) -> None:
        """Before any unit runs, a slot checks the first trial that may be fit: one of the newest recipe and without a
        State, where there is such. A trial that ran out of memory needs a new slot."""
        idle = [slot for slot in self.slots.values() if not slot.busy]
        if self._checking is not None or not idle:
            return
        ready = [trial for trial in self.trials.values() if not (trial.ended or trial.until)]
        for trial in sorted(ready, key=lambda trial: (trial.recipe != self._recipe, bool(trial.states))):
            slot = next((slot for slot in idle if not (slot.used and trial.fresh)), None)
            if slot is not None:
                check = Check(at=self._at, slot=slot.id, trial=trial.id)
                self._check(check)
                self._out.append(check)
                return

    def _expire(self, at: float) -> None:
        """Slots whose time is over are replaced. The journal names them (`Lost`): no fold decides it again."""
        limit = self.spec.timeouts.unit_timeout
        for number in self.leases.expired(at):
            self._replace(number, f"its unit took longer than unit_timeout={limit} seconds")
        seconds = self.spec.timeouts.durable_timeout
        for number, ref in self._durability.expired(at):
            times = self._durability.times(ref)
            self._replace(
                number,
                f"it stored nothing for {f'{times:g} times ' if times > 1 else ''}durable_timeout={seconds:g} seconds, "
                f"though State {ref} was to be stored",
                "store",
            )

    def _put_off(self) -> None:
        """Those that failed through no fault of their own are tried again later, the others go on meanwhile."""
        for trial, fault, error in self._troubled:
            if not trial.ended:
                wait = faults.FRESH if fault == "memory" else faults.pause(trial.troubles)
                line = Deferred(
                    at=self._at, trial=trial.id, until=self._at + wait, fault=fault, reason=faults.brief(error)
                )
                self._defer(line)
                self._out.append(line)
        self._troubled.clear()

    def _give(self, slot: SlotBook, trial: TrialBook, kind: Kind, epoch: int, partitions: tuple[int, ...]) -> None:
        """This slot gets this unit."""
        lease = self.leases.last + 1
        step = trial.step if kind == "train" else (epoch + 1) * self.spec.partitions
        if kind == "fold":
            totals = trial.epochs[epoch].totals()[1]
            unit = Unit(lease, trial.id, kind, epoch, partitions, None, totals=totals)
        elif step == 0:
            unit = Unit(lease, trial.id, kind, epoch, partitions, None)
        else:
            state = trial.states[step]
            where = state.where if state.maker in self.slots else ""
            unit = Unit(lease, trial.id, kind, epoch, partitions, state.ref, where, state.digest)
        line = Dispatch(at=self._at, slot=slot.id, unit=unit)
        self._lend(line, slot, trial)
        self._out.append(line)

    def _conclude(self) -> None:
        """Every trial that there is has ended, or none can start."""
        if self._told or not (self.status == "failed" or (self.status == "running" and self.exhausted)):
            return
        good = sum([trial.status == "completed" for trial in self.trials.values()])
        self._told = True
        self._out.append(Finish("failed" if not good else "completed" if good == len(self.trials) else "partial"))


def _held_up(trial: TrialBook) -> bool:
    """Whether the trial waits for time to pass, or for a State to be stored."""
    return not trial.ended and (trial.until > 0 or any(state.parked for state in trial.states.values()))


def fold(lines: Iterable[Line]) -> Machine:
    """The machine at the end of a journal. The first line is `Began`."""
    machine: Machine | None = None
    for line in lines:
        if machine is None:
            if not isinstance(line, Began):
                raise ValueError(f"a journal begins with Began, not {type(line).__name__}")
            machine = Machine(line.spec)
        machine.apply(line)
        machine.settle()
    if machine is None:
        raise ValueError("an empty journal has no run")
    return machine


_APPLY: dict[type[Any], Callable[[Machine, Any], None]] = {
    Began: Machine._began,
    Proposed: Machine._proposed,
    Exhausted: Machine._exhausted,
    Joined: Machine._joined,
    Check: Machine._check,
    Checked: Machine._checked,
    Dispatch: Machine._dispatch,
    Done: Machine._done,
    Durable: Machine._durable,
    Failed: Machine._failed,
    Forgotten: Machine._forgotten,
    StoreAway: Machine._store_away,
    StoreBack: Machine._store_back,
    Deferred: Machine._defer,
    Lost: Machine._lost,
    Left: Machine._lost,
    Tick: Machine._tick,
    Resumed: Machine._resumed,
    Retried: Machine._retried,
    Interrupted: Machine._interrupted,
    Finished: Machine._finished,
}
"""The whole transition table: what each line of a journal changes."""
