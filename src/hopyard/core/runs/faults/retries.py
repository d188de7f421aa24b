"""Units that did not come back, through no fault of their own: they are given out again, at once or after a wait, until
their trial ends. The rules are in `rules`; whether and how long a trial waits is a decision (`Deferred`).
"""

from __future__ import annotations

from typing import Literal

from hopyard.core.runs import lifecycle
from hopyard.core.runs.events import Deferred, Keep, Warn
from hopyard.core.runs.faults import rules
from hopyard.core.runs.records import StateRecord, TrialRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.core.runs.states import retention
from hopyard.spec import Fault, Ref, Unit
from hopyard.text import numbered


class Retries:
    """The units to try again, and when. Owner: `Machine`.

    Attributes:
        delayed: (trial, fault, reason) of trials that must wait because of the present event.
    """

    def __init__(self, run: RunRecord) -> None:
        self._run = run
        self.delayed: list[tuple[TrialRecord, Fault, str]] = []
        self._waiting: dict[int, TrialRecord] = {}
        """Trials that wait; those whose wait something else has ended are dropped at the next `tick`."""

    # ---------------------------------------------------------------- a unit did not come back

    def retry(
        self, trial: TrialRecord, unit: Unit, fault: Literal["lost", "system", "store"], error: str, trace: str
    ) -> None:
        """Give out again a unit, whose lease stands no longer, that did not come back through no fault of its own."""
        run = self._run
        count = rules.strike(trial, rules.key(fault, unit))
        lifecycle.requeue(run, trial, unit)
        if not rules.ends(fault, count, run.spec):
            if fault != "lost":
                self.delay(trial, fault, error)
            lifecycle.repair(run, trial)
            return
        where = f", {numbered('partition', unit.partitions)}" if unit.partitions else ""
        text = f"its unit ({unit.kind}, epoch {unit.epoch + 1}{where}) failed {count} times, the last one so: {error}"
        if fault == "lost":
            text = f"{rules.POISON}{text}; `hopyard logs` shows where it was"
        lifecycle.fail(run, trial, "system", text, trace)

    def lost(self, unit: Unit | None, reason: str, fault: Literal["system", "memory", "data", "store"]) -> None:
        """Give out again the unit of a slot that is gone, if it had one, because of this fault."""
        if unit is None:
            return
        trial = self._run.trials[unit.trial]
        if fault == "memory":
            self.out_of_memory(trial, unit, reason, "", on_device=False)
        elif fault in ("data", "store"):
            lifecycle.requeue(self._run, trial, unit)
            lifecycle.repair(self._run, trial)
        else:
            self.retry(trial, unit, "lost", reason, "")

    def out_of_memory(self, trial: TrialRecord, unit: Unit, error: str, trace: str, on_device: bool) -> None:
        """Handle a unit that ran out of memory, of the device or of the host; its slot is gone, or will be."""
        run = self._run
        count = rules.strike(trial, rules.key("memory", unit))
        lifecycle.requeue(run, trial, unit)
        if rules.ends("memory", count, run.spec):
            lifecycle.fail(run, trial, "memory", rules.out_of_memory(error, on_device), trace)
            return
        if unit.kind != "fold":
            trial.isolated, trial.refuge = unit.kind, -1
            run.scheduler.isolated[trial.id] = None
        self.delay(trial, "memory", error)
        lifecycle.repair(run, trial)

    def missing(self, trial: TrialRecord, unit: Unit, ref: Ref, error: str) -> None:
        """Handle a unit whose State could not be fetched: no fault counts, while it can be stored or made again."""
        run = self._run
        lifecycle.requeue(run, trial, unit)
        state = trial.states.get(ref.step)
        if state is not None and state.ref == ref:
            if not state.digest and state.maker in run.slots:
                retention.park(trial, state, run.spec.partitions)
                run.scheduler.offer(trial)  # for units that do not start from it
                run.commands.append(Keep(state.maker, ref, state.memory_key))
            elif state.digest and unit.lease > state.sealed:  # it was stored before the unit was given out
                if rules.strike(trial, ("gone", "", ref.step, ref.attempt)) >= rules.UNSTORED:
                    run.commands.append(Warn(f"{error}; trial {trial.id} makes it again from the State before it"))
                    lifecycle.lose_states(run, trial, {ref})
                    return
                self.delay(trial, "store", error)
        lifecycle.repair(run, trial)

    def unpark(self, trial: TrialRecord, state: StateRecord) -> None:
        """End the parking of a State: it is durable, or its maker no longer has it."""
        run = self._run
        retention.unpark(trial, state, run.spec.partitions, run.slots, run.commands)
        lifecycle.offer(run, trial)

    def not_stored(self, trial: TrialRecord) -> None:
        """Count a slot that was replaced because it owed a State of this trial. If that repeats, it is not the slots:
        States are large, or the store is slow, and none would ever be stored."""
        trial.unstored += 1
        if trial.unstored >= rules.UNSTORED and not trial.ended:
            timeout = self._run.spec.timeouts.durable_timeout
            text = (
                f"{trial.unstored} workers in a row stored nothing for durable_timeout={timeout:g} seconds; if the "
                "place that store= names is slow, hy.resume(run, failed=True, durable_timeout=…) with a greater one "
                "goes on with the trial"
            )
            lifecycle.fail(self._run, trial, "store", text, "")

    # ---------------------------------------------------------------- waits

    def delay(self, trial: TrialRecord, fault: Fault, error: str) -> None:
        """Note that the trial must wait; `decide` says how long."""
        trial.troubles += 1
        self.delayed.append((trial, fault, error))

    def decide(self) -> None:
        """Defer the noted trials, which failed through no fault of their own; the others go on meanwhile."""
        run = self._run
        for trial, fault, error in self.delayed:
            if not trial.ended:
                wait = rules.FRESH if fault == "memory" else rules.pause(trial.troubles)
                reason = rules.brief(error)
                line = Deferred(at=run.at, trial=trial.id, until=run.at + wait, fault=fault, reason=reason)
                self.defer(line)
                run.commands.append(line)
        self.delayed.clear()

    def defer(self, line: Deferred) -> None:
        """Apply the decision, as it was made or as the journal has it."""
        trial = self._run.trials[line.trial]
        if line.fault == "memory":
            trial.fresh = line.until
        else:
            trial.until = max(trial.until, line.until)
            trial.waits_for = f"{line.fault}: {line.reason}"
            trial.queue_version += 1
            for epoch in trial.epochs:
                self._run.scheduler.withdraw_fold(trial.id, epoch)
        self._waiting[trial.id] = trial

    def wake(self, trial: TrialRecord) -> None:
        """End the trial's wait."""
        trial.until, trial.waits_for = 0.0, ""
        lifecycle.offer(self._run, trial)

    def tick(self, at: float) -> None:
        """Let the trials go on that waited until now."""
        for number, trial in list(self._waiting.items()):
            if trial.fresh <= at:
                trial.fresh = 0.0
            if 0 < trial.until <= at:
                self.wake(trial)
            if not (trial.fresh or trial.until):
                del self._waiting[number]

    def earliest(self) -> float | None:
        """Return when the next wait is over; None: no trial waits. O(trials that wait)."""
        times = [time for each in self._waiting.values() if not each.ended for time in (each.until, each.fresh) if time]
        return min(times, default=None)

    def settle(self) -> None:
        """Drop what a fold noted: the decisions that followed are in the journal."""
        self.delayed.clear()

    def clear(self) -> None:
        """Drop all waits, as another driver takes over."""
        self._waiting.clear()
