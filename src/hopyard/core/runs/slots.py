"""Slots: joining, getting units, becoming idle, being lost."""

from __future__ import annotations

from typing import Literal

import msgspec

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Joined, Replace, Resumed
from hopyard.core.runs.faults.retries import Retries
from hopyard.core.runs.gangs import Gangs
from hopyard.core.runs.preflight import Preflight
from hopyard.core.runs.records import SlotRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.core.runs.scheduling.homes import GRACE
from hopyard.core.runs.scheduling.scheduler import Assignment
from hopyard.core.runs.states.durability import Durability
from hopyard.spec import Unit


class Slots:
    """Adds and removes slots. Owner: `Machine`."""

    def __init__(self, run: RunRecord, workers: Gangs, retries: Retries, preflight: Preflight) -> None:
        self._run = run
        self._workers = workers
        self._retries = retries
        self._preflight = preflight

    def join(self, event: Joined) -> None:
        """Add a worker, which is a slot of its own."""
        run = self._run
        slot = run.slots[event.slot] = SlotRecord(event.slot, event.host, event.pid, event.device, event.at, event.host)
        slot.trains = run.spec.members == 1
        run.places.join("validate", event.host, event.rows)
        if slot.trains:
            run.places.join("train", event.host)
        run.scheduler.set_idle(slot)
        run.scheduler.offer_again(event.host)
        run.search.changed = True

    def renew(self, event: Resumed) -> None:
        """Take over with a new driver: drop all slots of the old one."""
        run = self._run
        run.search.resumed(event.at, run.before)
        if event.timeouts is not None:
            run.spec = msgspec.structs.replace(run.spec, timeouts=event.timeouts)
        units = [unit for _, unit in run.leases.standing().values()]
        run.leases.clear()
        run.leases.last += event.skipped
        run.slots.clear()
        run.mark = event.mark
        self._workers.clear()
        if event.members:
            self._workers.resize(event.members)
        if event.copies >= 0:
            run.spec = msgspec.structs.replace(run.spec, copies=event.copies or None)
        run.places.begin(event.workers, run.spec)
        run.scheduler.clear()
        self._preflight.clear()
        for unit in units:
            lifecycle.requeue(run, run.trials[unit.trial], unit)
        for trial in run.trials.values():
            lifecycle.lose_workers(run, trial)
            if trial.until:  # the user who resumed has waited
                self._retries.wake(trial)
            lifecycle.repair(run, trial)
        self._retries.clear()
        run.durability = Durability(run.spec.timeouts.durable_timeout)
        deleted = set(event.gone)
        for trial in run.trials.values() if deleted else ():
            lifecycle.lose_states(run, trial, deleted)

    def unit(self, assignment: Assignment) -> Unit:
        """Return the unit of an assignment, with a lease of its own, and where the State lies that it starts from."""
        run, (_, trial, kind, epoch, partitions) = self._run, assignment
        start, memory_key, digest, totals = None, "", "", None
        step = trial.step if kind == "train" else (epoch + 1) * run.spec.partitions
        if kind == "fold":
            totals = trial.epochs[epoch].totals()[1]
        elif step:
            state = trial.states[step]
            start, digest = state.ref, state.digest
            memory_key = state.memory_key if state.maker in run.slots else ""
        lease = run.leases.last + 1
        return Unit(lease, trial.id, kind, epoch, partitions, start, memory_key, digest, totals, trial.model)

    def set_idle(self, slot: SlotRecord) -> None:
        """Let the slot be idle from now on."""
        slot.busy, slot.together, slot.idle_since = 0, False, self._run.at
        self._run.leases.answered(slot.id)
        self._run.scheduler.set_idle(slot)

    def expire(self, at: float) -> None:
        """Replace slots whose time is over. The journal names them (`Lost`): no fold decides it again."""
        run, timeouts = self._run, self._run.spec.timeouts
        for number in run.leases.expired(at):
            self.replace(number, f"its unit took longer than unit_timeout={timeouts.unit_timeout} seconds")
        for number, ref in run.durability.expired(at):
            seconds = f"durable_timeout={timeouts.durable_timeout:g} seconds"
            self.replace(number, f"it stored nothing for {seconds}, though State {ref} was to be stored", "store")

    def replace(self, number: int, reason: str, fault: Literal["system", "store"] = "system") -> None:
        """End a slot for good: all of its workers."""
        slot = self._workers.slot_of(number)
        for worker in () if slot is None else slot.members or (slot.id,):
            self._run.commands.append(Replace(worker, reason, fault))
            self.remove(worker, reason, fault)

    def remove(self, number: int, reason: str, fault: Literal["system", "memory", "data", "store"]) -> None:
        """Remove a worker, which is gone, and the States that only it had. Its gang is dissolved, and their unit given
        out again; what the first member does alone goes on, if it is another one that is gone."""
        run, slot, worker = self._run, self._workers.slot_of(number), self._workers.record(number)
        if slot is None or worker is None:
            return
        together = slot.together
        if slot.members:
            self._workers.dissolve(slot, number)
        since = run.at - GRACE if fault == "data" else run.at  # after that, no other worker of this host comes
        run.places.leave("validate", worker.host, since)
        if worker.trains and number in run.slots:
            run.places.leave("train", worker.host, since)
        run.scheduler.offer_again()
        if number != slot.id:
            run.durability.gone(number)
            if together:
                unit = run.leases.revoke(slot.busy)
                self.set_idle(slot)
                self._retries.lost(unit, reason, fault)
            return
        del run.slots[number]
        run.scheduler.remove(slot)
        run.leases.answered(number)
        if fault == "store" and (overdue_ref := run.durability.oldest(number)) is not None:
            self._retries.not_stored(run.trials[overdue_ref.trial])
        run.durability.gone(number)
        self._preflight.lost(number, reason, fault)
        self._retries.lost(run.leases.revoke(slot.busy), reason, fault)
        for trial_number in sorted(slot.memory_only):
            lifecycle.repair(run, run.trials[trial_number])
