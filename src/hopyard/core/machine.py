"""The machine: events in, commands out; the only owner of a run's state.

**Theory of operation.** `apply` changes state and is a plain fold: given the lines of a journal it ends where the live
machine stood. `handle` applies one event and then decides what follows; the decisions that change state (`Dispatch`,
`Check`) are applied like events and belong in the journal behind the event that led to them. So an old journal folds
to the same state for ever, whatever later versions would decide.

A trial is a chain: State k, a unit over partition (i + k) mod P, State k+1, … At most one unit of a trial trains at a
time; the validations of its epochs' ends are units of their own and may run beside it. A State is used as soon as it
exists, and *owed* by the slot that made it until it is durable. When a slot is lost, a trial goes back to its *safe*
step (durable, and so is every epoch's end before it) if a State that it needs went with the slot, and else stays.
What is done again must give the same digest; sums are kept by (epoch, partition), so nothing is counted twice.

No clock, no I/O, no randomness: time is in the events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from hopyard.core import policy
from hopyard.core.books import EpochBook, SlotBook, StateBook, TrialBook
from hopyard.core.events import (
    Began,
    Check,
    Checked,
    Command,
    Delete,
    Dispatch,
    Done,
    Durable,
    Event,
    Exhausted,
    Failed,
    Finish,
    Finished,
    Interrupted,
    Joined,
    Line,
    Lost,
    Proposed,
    Release,
    Replace,
    Resumed,
    Tick,
    Warn,
)
from hopyard.core.lease import Leases
from hopyard.core.policy import Pool
from hopyard.spec import Fault, Ref, RunSpec, Unit

CHECKS = 3
"""Preflight tries the first trials in turn: when this many cannot start, nothing runs."""
SMOOTH = 0.5
"""Weight of the newest measurement in a trial's seconds per partition."""


class Machine:
    """The state of one run.

    Args:
        spec: what was asked for.

    Attributes:
        trials: number → TrialBook, in the order of proposal.
        slots: number → SlotBook of those that are there.
        status: "checking" until preflight passed, then "running", at last "completed", "partial" or "failed".
        faults: what preflight found, when nothing could start.
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
        self._pools: dict[tuple[int, ...] | None, Pool] = {}
        self._serving: list[list[Pool]] = [[] for _ in range(spec.partitions)]
        self._folds: dict[tuple[int, int], None] = {}
        self._checking: tuple[int, int] | None = None
        self._checked = 0
        self._left = 0.0
        """Seconds of training left in all trials, by the newest estimates."""
        self._open = 0
        """Trials that have not ended."""
        self._work = 0.0
        self._parts = 0
        self._wake: dict[int, None] = {}
        self._ready: list[int] = []
        self._opened: list[tuple[int, int]] = []
        self._out: list[Command] = []
        self._at = 0.0

    # ---------------------------------------------------------------- the two doors

    def handle(self, event: Event) -> list[Command]:
        """Apply one event, decide what follows. Costs O(log n) for n trials."""
        out = self._out = []
        self.apply(event)
        self._decide()
        return out

    def apply(self, line: Line) -> None:
        """Change state by one line of the journal, deciding nothing."""
        self._at = line.at
        _APPLY[type(line)](self, line)

    def due(self, at: float) -> bool:
        """Whether a `Tick` at this time would change anything; only then it is worth a line in the journal."""
        first = self.leases.earliest()
        return first is not None and first <= at

    # ---------------------------------------------------------------- trials and slots come

    def _began(self, event: Began) -> None:
        self.spec = event.spec

    def _proposed(self, event: Proposed) -> None:
        trial = TrialBook(event.trial, event.config, self.spec.steps)
        self.trials[event.trial] = trial
        self._open += 1
        if self._parts:
            trial.remaining = self.spec.steps * self._work / self._parts
        self._left += trial.remaining
        self._offer(trial)

    def _exhausted(self, event: Exhausted) -> None:
        self.exhausted = True

    def _joined(self, event: Joined) -> None:
        slot = SlotBook(event.slot, event.host, event.pid, event.holds)
        self.slots[event.slot] = slot
        pool = self._pools.get(slot.holds)
        if pool is None:
            pool = self._pools[slot.holds] = Pool(slot.holds)
            held = range(self.spec.partitions) if slot.holds is None else slot.holds
            for partition in held:
                if partition < self.spec.partitions:
                    self._serving[partition].append(pool)
            for trial in self.trials.values():
                if self._trains(trial) and pool.serves(self._next(trial)):
                    pool.offer(trial)
                for epoch, book in trial.epochs.items():
                    if book.left:
                        pool.checks.append((trial.id, epoch))
        pool.slots += 1
        self._rest(slot)

    def _check(self, line: Check) -> None:
        slot = self.slots[line.slot]
        slot.busy = -1
        self._pools[slot.holds].idle.pop(slot.id, None)
        self._checking = line.slot, line.trial

    def _checked_(self, event: Checked) -> None:
        if self._checking != (event.slot, event.trial):
            return
        self._checking = None
        slot = self.slots[event.slot]
        slot.busy = 0
        self._rest(slot)
        if not event.faults:
            self.status = "running"
            self.names = event.names
            self._wake.update(dict.fromkeys(s.id for s in self.slots.values() if not s.busy))
            return
        self.faults += [fault for fault in event.faults if fault not in self.faults]
        self._unfit(event.trial, "user", "; ".join(event.faults), "")

    def _unfit(self, number: int, fault: Fault, error: str, trace: str) -> None:
        """A trial did not pass preflight. When the first few do not, nobody will."""
        self._end(self.trials[number], fault, error, trace)
        self._checked += 1
        if self._checked >= CHECKS or (self.exhausted and not self._open):
            self.status = "failed"

    # ---------------------------------------------------------------- units come and go

    def _dispatch(self, line: Dispatch) -> None:
        unit = line.unit
        trial = self.trials[unit.trial]
        slot = self.slots[line.slot]
        slot.busy = unit.lease
        del self._pools[slot.holds].idle[slot.id]
        spec = self.spec
        each = trial.seconds if unit.kind == "train" else trial.check_seconds or trial.seconds
        if each:
            allowed = max(spec.deadline_least, spec.deadline_factor * each * len(unit.partitions))
        else:
            allowed = spec.deadline_first
        self.leases.grant(line.slot, unit, line.at + allowed)
        if unit.kind == "train":
            trial.lease = unit.lease
            trial.stamp += 1
            trial.status = "running"
        elif unit.kind == "validate":
            left = trial.epochs[unit.epoch].left
            assert left is not None
            left.difference_update(unit.partitions)
        else:
            self._folds.pop((unit.trial, unit.epoch), None)

    def _done(self, event: Done) -> None:
        slot = self.slots.get(event.slot)
        if slot is None:
            return
        if slot.busy == event.lease:
            slot.busy = 0
            self._rest(slot)
        unit = self.leases.accept(event.slot, event.lease)
        if unit is None:
            if event.where:
                self._out.append(Release(event.slot, event.where))
            return
        trial = self.trials[unit.trial]
        slot.trial = unit.trial
        if unit.kind == "train":
            self._trained(trial, slot, unit, event)
        elif unit.kind == "validate":
            slot.step = unit.step
            book = trial.epochs[unit.epoch]
            for part in event.parts:
                book.validate[part.partition] = part.sums
            each = sum([part.seconds for part in event.parts]) / len(event.parts)
            trial.check_seconds += (each - trial.check_seconds) * (SMOOTH if trial.check_seconds else 1.0)
            self._close(trial, unit.epoch, book)
        else:
            self._enter(trial, unit.epoch, {**trial.epochs[unit.epoch].totals()[0], **event.values})

    def _trained(self, trial: TrialBook, slot: SlotBook, unit: Unit, event: Done) -> None:
        spec = self.spec
        parts = event.parts
        count = len(parts)
        before = trial.step
        step = trial.step = before + count
        epoch = unit.epoch
        trial.lease = 0
        trial.stamp += 1
        again = epoch in trial.history
        book = trial.epochs.get(epoch)
        if book is None:
            book = EpochBook()
            if not again:
                trial.epochs[epoch] = book
        seconds = 0.0
        for part in parts:
            book.train[part.partition] = part.sums
            seconds += part.seconds
        each = seconds / count
        trial.seconds += (each - trial.seconds) * (SMOOTH if trial.seconds else 1.0)
        self._work += seconds
        self._parts += count
        left = (spec.steps - step) * trial.seconds
        self._left += left - trial.remaining
        trial.remaining = left
        trial.states[step] = StateBook(Ref(trial.id, step, unit.lease), slot.id, event.where)
        slot.step = step
        slot.owes.add((trial.id, step))
        self._spend(trial, before)
        if step % spec.partitions == 0 and not again:
            book.left = set(range(spec.validation))
            if book.left:
                for pool in self._pools.values():
                    pool.checks.append((trial.id, epoch))
                self._opened.append((trial.id, epoch))
            self._close(trial, epoch, book)
        if step < spec.steps:
            self._offer(trial)

    def _close(self, trial: TrialBook, epoch: int, book: EpochBook) -> None:
        """All sums of an epoch may be in: turn them into metrics, or ask a slot to (additive arrays)."""
        spec = self.spec
        if book.left is None or len(book.validate) < spec.validation or len(book.train) < spec.partitions:
            return
        values, arrays = book.totals()
        if not arrays:
            self._enter(trial, epoch, values)
        elif not book.folding:
            book.folding = True
            self._folds[trial.id, epoch] = None

    def _enter(self, trial: TrialBook, epoch: int, values: dict[str, float]) -> None:
        trial.enter(epoch, values, self.spec)
        self._spend(trial, (epoch + 1) * self.spec.partitions)
        self._collect(trial)
        self._complete(trial)

    def _durable(self, event: Durable) -> None:
        ref = event.ref
        trial = self.trials.get(ref.trial)
        if trial is None:
            return
        maker = self.slots.get(event.slot)
        if maker is not None:
            maker.owes.discard((ref.trial, ref.step))
        known = trial.digests.setdefault(ref.step, event.digest)
        if known != event.digest:
            self._out.append(
                Warn(
                    f"defect: trial {ref.trial}, step {ref.step} was done again and gave another State: digest "
                    f"{event.digest[:16]} after {known[:16]}. The recipe is not deterministic, or Hopyard is at fault; "
                    "the newer State is used",
                    defect=True,
                )
            )
            trial.digests[ref.step] = event.digest
        state = trial.states.get(ref.step)
        if state is None or state.ref != ref or trial.status == "failed":
            self._out.append(Delete(ref))
            return
        state.digest = event.digest
        state.bytes = event.bytes
        self._collect(trial)
        self._complete(trial)

    def _failed(self, event: Failed) -> None:
        slot = self.slots.get(event.slot)
        if slot is None:
            return
        if slot.busy == event.lease:
            slot.busy = 0
            self._rest(slot)
        unit = self.leases.accept(event.slot, event.lease)
        if unit is None:
            return
        trial = self.trials[unit.trial]
        if event.fault == "system":
            self._again(trial, unit, event.error, event.trace)
        else:
            self._end(trial, event.fault, event.error, event.trace)

    def _lost(self, event: Lost) -> None:
        slot = self.slots.pop(event.slot, None)
        if slot is None:
            return
        pool = self._pools[slot.holds]
        pool.idle.pop(slot.id, None)
        pool.slots -= 1
        self._wake.pop(slot.id, None)
        if self._checking is not None and self._checking[0] == slot.id:
            number = self._checking[1]
            self._checking = None
            trial = self.trials[number]
            strikes = trial.strikes[("check", 0, 0)] = trial.strikes.get(("check", 0, 0), 0) + 1
            if strikes >= self.spec.strikes:
                error = f"poison: building the trial ended {strikes} workers, the last one so: {event.reason}"
                self.faults.append(error)
                self._unfit(number, "system", error, "")
        unit = self.leases.revoke(slot.busy) if slot.busy > 0 else None
        for number, step in sorted(slot.owes):
            trial = self.trials[number]
            state = trial.states.get(step)
            if state is None or state.digest or state.maker != slot.id or trial.ended:
                continue
            state.gone = True
            if step % self.spec.partitions == 0:
                self._back(trial)
            elif step < trial.step:
                del trial.states[step]
        if unit is not None and not self.trials[unit.trial].ended:
            self._again(self.trials[unit.trial], unit, event.reason, "")
        for number, step in sorted(slot.owes):
            trial = self.trials[number]
            state = trial.states.get(step)
            if state is not None and state.gone and not trial.lease and not trial.ended:
                self._back(trial)

    def _tick(self, event: Tick) -> None:
        for number, lease in self.leases.expired(event.at):
            reason = "its unit took longer than its deadline"
            self._out.append(Replace(number, reason))
            if number in self.slots:
                self._lost(Lost(at=event.at, slot=number, reason=reason))
            else:
                self.leases.revoke(lease)

    def _resumed(self, event: Resumed) -> None:
        for number in list(self.slots):
            unit = self.leases.revoke(self.slots[number].busy)
            if unit is not None and not self.trials[unit.trial].ended:
                self._undo(self.trials[unit.trial], unit)
        self.slots.clear()
        self._pools.clear()
        self._serving = [[] for _ in range(self.spec.partitions)]
        self._checking = None
        for trial in self.trials.values():
            for state in trial.states.values():
                state.gone = state.gone or not state.digest
                state.where = ""
            if not trial.ended and any(state.gone for state in trial.states.values()):
                self._back(trial)
        self._wake.clear()

    def _interrupted(self, event: Interrupted) -> None:
        pass

    def _finished(self, event: Finished) -> None:
        self.status = event.status

    # ---------------------------------------------------------------- what a trial goes through

    def _trains(self, trial: TrialBook) -> bool:
        return not trial.lease and not trial.ended and trial.step < self.spec.steps

    def _next(self, trial: TrialBook) -> int:
        return (trial.id + trial.step) % self.spec.partitions

    def _offer(self, trial: TrialBook) -> None:
        """The trial can train: it waits in every pool that holds its next partition."""
        for pool in self._serving[(trial.id + trial.step) % self.spec.partitions]:
            pool.offer(trial)
        self._ready.append(trial.id)

    def _rest(self, slot: SlotBook) -> None:
        """The slot is idle."""
        self._pools[slot.holds].idle[slot.id] = None
        self._wake[slot.id] = None

    def _again(self, trial: TrialBook, unit: Unit, error: str, trace: str) -> None:
        """A unit did not come back, through no fault of its own; after the third time it is poison."""
        key = unit.kind, unit.epoch, unit.partitions[0] if unit.partitions else 0
        strikes = trial.strikes[key] = trial.strikes.get(key, 0) + 1
        if strikes >= self.spec.strikes:
            where = f"epoch {unit.epoch}, partitions {list(unit.partitions)}" if unit.partitions else f"epoch {unit.epoch}"
            self._end(trial, "system", f"poison: its unit ({unit.kind}, {where}) ended {strikes} workers: {error}", trace)
            return
        self._undo(trial, unit)
        state = trial.states.get(unit.step)
        if unit.start is not None and (state is None or state.gone):
            self._back(trial)

    def _undo(self, trial: TrialBook, unit: Unit) -> None:
        """The unit is to be given out again."""
        if unit.kind == "train":
            trial.lease = 0
            trial.stamp += 1
            trial.status = "waiting"
            self._offer(trial)
        elif unit.epoch in trial.epochs:
            book = trial.epochs[unit.epoch]
            if unit.kind == "fold":
                self._folds[trial.id, unit.epoch] = None
            elif book.left is not None:
                book.left.update(unit.partitions)
                for pool in self._pools.values():
                    pool.checks.append((trial.id, unit.epoch))
                self._opened.append((trial.id, unit.epoch))

    def _back(self, trial: TrialBook) -> None:
        """Back to the safe step: a State that the trial needs is gone."""
        if trial.lease:
            self.leases.revoke(trial.lease)
            trial.lease = 0
        for step in [step for step in trial.states if step > trial.safe]:
            state = trial.states.pop(step)
            if state.digest:
                self._out.append(Delete(state.ref))
            if state.where and state.maker in self.slots:
                self._out.append(Release(state.maker, state.where))
        for epoch in [epoch for epoch in trial.epochs if (epoch + 1) * self.spec.partitions > trial.safe]:
            book = trial.epochs[epoch]
            book.left = None
            book.folding = False
            book.validate.clear()
            self._folds.pop((trial.id, epoch), None)
        for lease, (_, unit) in self.leases.standing().items():
            if unit.trial == trial.id and unit.step > trial.safe:
                self.leases.revoke(lease)
        trial.step = trial.safe
        trial.stamp += 1
        trial.status = "waiting"
        left = (self.spec.steps - trial.step) * (trial.seconds or 1.0)
        self._left += left - trial.remaining
        trial.remaining = left
        if trial.step < self.spec.steps:
            self._offer(trial)

    def _spend(self, trial: TrialBook, step: int) -> None:
        """Nobody will start from this State again unless from the store: its maker may use the memory for others."""
        state = trial.states.get(step)
        if state is None or not state.where or (step == trial.step and not trial.ended and step < self.spec.steps):
            return
        if step % self.spec.partitions == 0 and step // self.spec.partitions - 1 in trial.epochs:
            return
        if state.maker in self.slots:
            self._out.append(Release(state.maker, state.where))
        state.where = ""

    def _collect(self, trial: TrialBook) -> None:
        """Move the safe step on; delete what the stated rule does not keep."""
        partitions = self.spec.partitions
        safe = trial.safe
        for step in sorted(trial.states):
            if step <= safe:
                continue
            if trial.states[step].digest:
                safe = step
            elif step % partitions == 0:
                break
        trial.safe = safe
        best = None if trial.best is None else (trial.best + 1) * partitions
        for step in [step for step in trial.states if step < safe]:
            if step == best or (step % partitions == 0 and step // partitions - 1 not in trial.history):
                continue
            state = trial.states.pop(step)
            if state.digest:
                self._out.append(Delete(state.ref))

    def _complete(self, trial: TrialBook) -> None:
        spec = self.spec
        if trial.safe == spec.steps and len(trial.history) == spec.epochs and not trial.ended:
            trial.status = "completed"
            self._ended(trial)

    def _end(self, trial: TrialBook, fault: Fault, error: str, trace: str) -> None:
        """The trial failed; the run goes on."""
        if trial.ended:
            return
        trial.status = "failed"
        trial.fault, trial.error, trial.trace = fault, error, trace
        for lease, (_, unit) in self.leases.standing().items():
            if unit.trial == trial.id:
                self.leases.revoke(lease)
        trial.lease = 0
        trial.epochs.clear()
        for key in [key for key in self._folds if key[0] == trial.id]:
            del self._folds[key]
        self._ended(trial)

    def _ended(self, trial: TrialBook) -> None:
        trial.stamp += 1
        self._open -= 1
        self._left -= trial.remaining
        trial.remaining = 0.0
        for step in list(trial.states):
            self._spend(trial, step)

    # ---------------------------------------------------------------- decisions

    def _decide(self) -> None:
        wake, self._wake = self._wake, {}
        ready, self._ready = self._ready, []
        opened, self._opened = self._opened, []
        if self.status == "running":
            for number in wake:
                self._serve(number)
            for number in ready:
                self._place(self.trials[number])
            for number, epoch in opened:
                self._spread(number, epoch)
            for number, epoch in list(self._folds):
                if not self._fold(number, epoch):
                    break
            if self.exhausted and not self._open:
                good = sum([trial.status == "completed" for trial in self.trials.values()])
                status: Literal["completed", "partial", "failed"] = (
                    "completed" if good == len(self.trials) else "partial" if good else "failed"
                )
                self._out.append(Finish(status))
        elif self.status == "checking" and self._checking is None:
            trial = next((trial for trial in self.trials.values() if not trial.ended), None)
            slot = next((slot for slot in self.slots.values() if not slot.busy), None)
            if trial is not None and slot is not None:
                self._decided(Check(at=self._at, slot=slot.id, trial=trial.id))
        elif self.status == "failed" and self.faults:
            self._out.append(Finish("failed"))

    def _decided(self, decision: Dispatch | Check) -> None:
        self.apply(decision)
        self._out.append(decision)

    def _serve(self, number: int) -> None:
        """Find work for an idle slot."""
        slot = self.slots.get(number)
        if slot is None or slot.busy:
            return
        if self._folds:
            trial_, epoch_ = next(iter(self._folds))
            self._fold(trial_, epoch_, slot)
            return
        pool = self._pools[slot.holds]
        trials = self.trials
        mine = trials.get(slot.trial)
        if mine is not None and not mine.ended:
            partitions = self.spec.partitions
            if slot.step > 0 and slot.step % partitions == 0 and mine.epochs:
                epoch = slot.step // partitions - 1
                if left := pool.leftover(mine, epoch):
                    self._validate(slot, mine, epoch, left)
                    return
            if (
                not mine.lease
                and mine.step < self.spec.steps
                and pool.serves((mine.id + mine.step) % partitions)
                and not policy.critical(pool.longest(trials), mine, self._left, len(self.slots))
            ):
                self._train(slot, mine, pool)
                return
        if pool.checks and (found := pool.check(trials)) is not None:
            self._validate(slot, found[0], found[1], pool.leftover(*found))
            return
        longest = pool.longest(trials)
        if longest is not None:
            self._train(slot, longest, pool)

    def _place(self, trial: TrialBook) -> None:
        """Find an idle slot for a trial that can train."""
        if not self._trains(trial):
            return
        pools = self._serving[self._next(trial)]
        if any([pool.idle for pool in pools]):
            state = trial.states.get(trial.step)
            slot = policy.idle_for(pools, trial, self.slots, state.maker if state is not None else -1)
            if slot is not None:
                self._train(slot, trial, self._pools[slot.holds])

    def _spread(self, number: int, epoch: int) -> None:
        """Find idle slots for a validation."""
        for pool in self._pools.values():
            while pool.idle and (left := pool.leftover(self.trials[number], epoch)):
                self._validate(self.slots[next(iter(pool.idle))], self.trials[number], epoch, left)

    def _train(self, slot: SlotBook, trial: TrialBook, pool: Pool) -> None:
        spec = self.spec
        taken = policy.span(pool, trial, spec.partitions, spec.group, spec.group_seconds, self._left, len(self.slots))
        self._give(slot, trial, "train", trial.step // spec.partitions, taken, trial.step)

    def _validate(self, slot: SlotBook, trial: TrialBook, epoch: int, left: list[int]) -> None:
        spec = self.spec
        taken = policy.share(left, trial.check_seconds or trial.seconds, spec.group, spec.group_seconds)
        self._give(slot, trial, "validate", epoch, taken, (epoch + 1) * spec.partitions)

    def _fold(self, number: int, epoch: int, slot: SlotBook | None = None) -> bool:
        if slot is None:
            idle = next((pool.idle for pool in self._pools.values() if pool.idle), None)
            if idle is None:
                return False
            slot = self.slots[next(iter(idle))]
        trial = self.trials[number]
        self._give(slot, trial, "fold", epoch, (), 0, trial.epochs[epoch].totals()[1])
        return True

    def _give(
        self,
        slot: SlotBook,
        trial: TrialBook,
        kind: Literal["train", "validate", "fold"],
        epoch: int,
        partitions: tuple[int, ...],
        step: int,
        totals: dict[str, tuple[list[float], float]] | None = None,
    ) -> None:
        lease = self.leases.last + 1
        state = trial.states[step] if step else None
        if state is None:
            unit = Unit(lease, trial.id, kind, epoch, partitions, None, totals=totals)
        else:
            unit = Unit(lease, trial.id, kind, epoch, partitions, state.ref, state.where, state.digest)
        decision = Dispatch(at=self._at, slot=slot.id, unit=unit)
        self._dispatch(decision)
        self._out.append(decision)

    # ---------------------------------------------------------------- looking in

    def snapshot(self) -> dict[str, Any]:
        """All state that matters, as plain values: equal for equal journals. For tests and for `hopyard show`."""
        trials = {
            trial.id: {
                name: getattr(trial, name) for name in TrialBook.__slots__ if name not in ("stamp", "states", "epochs")
            }
            | {"states": {step: (s.ref, s.maker, s.where, s.digest, s.gone) for step, s in sorted(trial.states.items())}}
            | {
                "epochs": {
                    epoch: (book.train, book.validate, book.left, book.folding)
                    for epoch, book in sorted(trial.epochs.items())
                }
            }
            for trial in self.trials.values()
        }
        slots = {
            slot.id: (slot.host, slot.pid, slot.holds, slot.busy, slot.trial, slot.step, sorted(slot.owes))
            for slot in self.slots.values()
        }
        return {
            "trials": trials,
            "slots": slots,
            "leases": self.leases.standing(),
            "status": self.status,
            "exhausted": self.exhausted,
            "faults": self.faults,
            "names": self.names,
            "checking": self._checking,
            "folds": list(self._folds),
        }

    def kept(self) -> set[Ref]:
        """Every State that the store should hold."""
        return {state.ref for trial in self.trials.values() for state in trial.states.values() if state.digest}

    def settle(self) -> None:
        """Forget what a fold stirred up: the decisions that followed are in the journal themselves."""
        self._wake.clear()
        self._ready.clear()
        self._opened.clear()
        self._out = []


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
    Checked: Machine._checked_,
    Dispatch: Machine._dispatch,
    Done: Machine._done,
    Durable: Machine._durable,
    Failed: Machine._failed,
    Lost: Machine._lost,
    Tick: Machine._tick,
    Resumed: Machine._resumed,
    Interrupted: Machine._interrupted,
    Finished: Machine._finished,
}
"""The whole transition table: what each line of a journal changes."""
