"""The life of a trial: it waits, goes back to its durable step, completes, is stopped, fails, begins anew.

Functions over one TrialRecord of a run. `retention` has the life of its States, `epochs` how its metrics come in,
`retries` what follows from a fault.
"""

from __future__ import annotations

import msgspec

from hopyard.core.runs import order
from hopyard.core.runs.events import Closed, Delete, Exhausted, Extended, Granted, Keep, Paused, Proposed, Stopped
from hopyard.core.runs.faults import rules
from hopyard.core.runs.records import TrialRecord
from hopyard.core.runs.run_record import RunRecord
from hopyard.core.runs.states import retention
from hopyard.spec import Fault, Ref, Unit


def propose(run: RunRecord, event: Proposed) -> None:
    """Add a trial that the search has proposed."""
    number = event.trial
    trial = run.trials[number] = TrialRecord(number, event.config, run.search.propose(number))
    trial.count, trial.attributes = event.count, event.attributes
    trial.offset = order.start(number, run.spec.partitions) if event.offset < 0 else event.offset
    run.open += 1
    run.estimates.renew(trial)
    run.scheduler.offer(trial)


def offer(run: RunRecord, trial: TrialRecord) -> None:
    """Offer the trial's work to the scheduler, as the cause of its wait may be over."""
    if trial.ended or trial.until:
        return
    run.scheduler.offer(trial)
    folding = {unit.epoch for lease in trial.validation_leases if (unit := run.leases.unit(lease)).kind == "fold"}
    for epoch, record in trial.epochs.items():
        if record.pending:
            run.scheduler.offer_validation(trial, epoch)
        if record.folding and epoch not in folding:
            run.scheduler.offer_fold(trial, epoch)


def requeue(run: RunRecord, trial: TrialRecord, unit: Unit) -> None:
    """Offer a unit again, whose lease stands no longer."""
    if unit.kind == "train":
        trial.lease = 0
        trial.status = "waiting"
        run.scheduler.offer(trial)
        return
    trial.validation_leases.discard(unit.lease)
    record = trial.epochs.get(unit.epoch)
    if record is None:  # its metrics are in, or are no longer needed
        return
    if unit.kind == "fold":
        run.scheduler.offer_fold(trial, unit.epoch)
    elif record.pending is not None:
        record.pending.update(unit.partitions)
        run.scheduler.offer_validation(trial, unit.epoch)


def repair(run: RunRecord, trial: TrialRecord) -> None:
    """Send the trial back to its durable step, if a State that it needs is gone."""
    if trial.storing:
        _settle(run, trial)
    elif not trial.ended and retention.broken(trial, run.spec.partitions, run.slots):
        _rewind(run, trial)


def lose_workers(run: RunRecord, trial: TrialRecord) -> None:
    """Forget what workers had of the trial in memory: another driver took over, and all workers are new. If the trial
    had failed, and States of it were on their way to the store, it goes on from its durable step, up to its error."""
    for state in trial.states.values():
        state.memory_key, state.parked = "", False
    for record in trial.epochs.values():
        record.parked = False
    trial.fresh = 0.0
    if trial.storing:
        try_again(run, trial, "")


def lose_states(run: RunRecord, trial: TrialRecord, gone: set[Ref]) -> None:
    """Remove durable States that are gone: the trial makes them again, from the newest one before them."""
    if (earlier := trial.earlier) is not None:
        left = {step: state for step, state in earlier.states.items() if state.ref not in gone}
        trial.earlier = msgspec.structs.replace(earlier, states=left)
    missing = [step for step, state in trial.states.items() if state.ref in gone]
    if not missing:
        return
    for step in missing:
        del trial.states[step]
    before = [step for step in trial.states if step < min(missing) and step <= trial.durable_step]
    trial.durable_step = max(before, default=0)
    if trial.status == "failed":
        _truncate(run, trial)
        return
    if trial.ended:
        trial.ended = False
        run.open += 1
    _rewind(run, trial)


def advance(run: RunRecord, trial: TrialRecord) -> None:
    """Move the durable step on, as a State of the trial has become durable."""
    partitions = run.spec.partitions
    if retention.advance(trial, partitions):
        if trial.earlier is not None:  # now there is a newer model
            run.commands += [Delete(state.ref) for state in trial.earlier.states.values() if state.digest]
            trial.earlier = None
        trial.forget()
        retention.collect(trial, partitions, run.slots, run.commands)
        if trial.stopped or not trial.durable_step % partitions:
            complete(run, trial)
        if trial.paused and trial.durable_step == trial.step:  # it may wait for long: its memory is for others
            retention.release_memory(trial, trial.step, partitions, run.slots, run.commands)
    if trial.storing:
        _settle(run, trial)


def complete(run: RunRecord, trial: TrialRecord) -> None:
    """Complete the trial if its last State is durable and all its metrics are in; end it, if it was stopped."""
    if trial.ended or trial.durable_step != trial.target:
        return
    if trial.stopped:
        trial.status = "stopped"
    elif trial.durable_step == run.spec.steps and len(trial.history) == run.spec.epochs:
        trial.status = "completed"
    else:
        return
    _end(run, trial)
    _close(run, trial)


def pause(run: RunRecord, line: Paused) -> None:
    """Let the trial wait at its target."""
    trial = run.trials[line.trial]
    trial.paused, trial.status, trial.reason = True, "paused", line.reason
    run.search.pause(trial)
    if trial.durable_step == trial.step:
        retention.release_memory(trial, trial.step, run.spec.partitions, run.slots, run.commands)


def grant(run: RunRecord, line: Granted) -> None:
    """Let the trial go on, up to a target beyond the one that it came to."""
    trial = run.trials[line.trial]
    run.warned(line.trial, line.warnings)
    if trial.ended or trial.stopped or line.target <= trial.target:  # the user's function was asked before that
        return
    run.search.grant(trial)
    trial.target, trial.paused, trial.reason = line.target, False, line.reason
    if not trial.lease:
        trial.status = "waiting"
    run.estimates.renew(trial)
    run.scheduler.offer(trial)


def stop(run: RunRecord, line: Stopped) -> None:
    """End the trial with its newest State, once that is stored; where it goes to its target or its best epoch again, as
    a State was lost, with that one."""
    trial = run.trials[line.trial]
    if trial.ended or trial.stopped:
        return
    waits = trial.paused or trial.id in run.search.standing.undecided
    run.search.end(trial)
    if not waits:
        trial.target = max(trial.step, 0 if trial.best is None else (trial.best + 1) * run.spec.partitions)
    if trial.target == trial.step and trial.lease:
        run.leases.revoke(trial.lease)
        trial.lease = 0
        state = trial.states.get(trial.step)
        if state is not None and not state.digest and state.maker in run.slots:  # else the unit's State may go first
            run.commands.append(Keep(state.maker, state.ref, state.memory_key))
    for lease in sorted(trial.validation_leases):
        run.leases.revoke(lease)
    trial.validation_leases.clear()
    for epoch in trial.epochs:
        run.scheduler.withdraw_fold(trial.id, epoch)
    trial.epochs.clear()
    rules.cleared(trial)
    trial.queue_version += 1
    trial.stopped, trial.paused, trial.reason = True, False, line.reason
    if not trial.lease:
        trial.status = "stopped"
    run.estimates.renew(trial)
    run.scheduler.offer(trial)  # where it makes its last State again
    repair(run, trial)  # its last State may have been lost while a unit had it
    complete(run, trial)


def close(run: RunRecord, line: Closed) -> None:
    """Let the run end with what it has: nothing more is proposed."""
    run.exhausted, run.scheduler.more = True, False
    run.search.closed = line.reason
    run.search.exhausted()


def exhaust(run: RunRecord, line: Exhausted) -> None:
    """Note that the search has no more to propose."""
    run.exhausted, run.scheduler.more = True, False
    run.search.exhausted(line.reason)


def fail(run: RunRecord, trial: TrialRecord, fault: Fault, error: str, trace: str) -> None:
    """End the trial as failed; the run goes on. States at its epochs' ends are its models: while some are on their way
    to the store, the run does not end, unless their makers are gone."""
    for lease in (trial.lease, *sorted(trial.validation_leases)):
        if (unit := run.leases.revoke(lease)) is not None:
            requeue(run, trial, unit)
    if fault == "user" and run.extended and trial.step // run.spec.partitions == run.extended:
        error += (
            f"; the run had {run.extended} epochs before, where a schedule of a fixed length (such as OneCycleLR) "
            "ends: for more epochs, start another run, whose recipe takes the length from ctx.epochs. The models of "
            "the epochs before are there: trial.model()"
        )
    trial.status, trial.paused = "failed", False
    trial.fault, trial.error, trial.trace = fault, error, trace
    trial.lease = 0
    trial.validation_leases.clear()
    for epoch in trial.epochs:
        run.scheduler.withdraw_fold(trial.id, epoch)
    rules.cleared(trial)
    _end(run, trial)
    trial.storing = True
    _settle(run, trial)


def try_again(run: RunRecord, trial: TrialRecord, recipe: str) -> None:
    """Try a failed trial again: from its durable step, or anew with another recipe (its digest). Then the States that
    it has are its models until a new one is durable, even if it fails again before that."""
    if not trial.ended:  # `lose_workers` let it go on, before the user's recipe was known
        trial.status = "failed"
        run.search.end(trial)
    run.open += trial.ended and not trial.storing
    trial.ended = trial.storing = False
    trial.error = trial.fault = trial.trace = ""
    rules.cleared(trial)
    if recipe:
        if trial.states:  # else the last attempt left no model, and the one before it still gives the trial's
            trial.earlier = msgspec.structs.replace(trial)
        trial.recipe, trial.model = recipe, None
        trial.states, trial.digests, trial.step_digests, trial.epochs, trial.history = {}, {}, {}, {}, {}
        trial.best, trial.durable_step, trial.reached = None, 0, 0
        trial.stopped = False
    if not trial.stopped:
        run.search.again(trial, anew=bool(recipe))
    _rewind(run, trial)
    offer(run, trial)


def extend(run: RunRecord, event: Extended) -> None:
    """Give the run more epochs, or more trials."""
    if event.trials != run.spec.trials:
        run.exhausted = run.search.standing.exhausted = False
        run.scheduler.more = True
    if event.epochs != run.spec.epochs:
        run.extended = run.spec.epochs
    run.spec = run.search.spec = msgspec.structs.replace(run.spec, epochs=event.epochs, trials=event.trials)
    for trial in run.trials.values():
        _extend(run, trial)


def _extend(run: RunRecord, trial: TrialRecord) -> None:
    """Let the trial go on to the run's last step, which has moved; one that failed stays as it is."""
    trial.target = trial.target if trial.stopped else run.spec.steps
    if trial.status == "failed" or trial.durable_step == trial.target:
        return
    if trial.ended:
        trial.ended, trial.status = False, "waiting"
        run.open += 1
    run.estimates.renew(trial)
    run.scheduler.offer(trial)


def _rewind(run: RunRecord, trial: TrialRecord) -> None:
    """Go back to the durable step: units that start from States behind it count no longer."""
    if trial.lease:
        run.leases.revoke(trial.lease)
        trial.lease = 0
    for lease in sorted(trial.validation_leases):
        unit = run.leases.unit(lease)
        if unit.kind == "validate" and unit.step > trial.durable_step:
            run.leases.revoke(lease)
            trial.validation_leases.discard(lease)
    for epoch, record in trial.epochs.items():
        if (epoch + 1) * run.spec.partitions > trial.durable_step:
            record.pending, record.parked = None, False
    _truncate(run, trial)
    trial.step = trial.durable_step
    trial.queue_version += 1
    trial.status = "waiting"
    run.estimates.renew(trial)
    run.scheduler.offer(trial)


def _truncate(run: RunRecord, trial: TrialRecord) -> None:
    """Forget the States behind the durable step."""
    for step, state in trial.states.items():
        if step > trial.durable_step and not state.digest:
            run.durability.settled(state.ref)
    retention.truncate(trial, run.slots, run.commands)


def _settle(run: RunRecord, trial: TrialRecord) -> None:
    """Forget what a failed trial has behind its durable step, once no State at an epoch's end is on its way."""
    if retention.on_their_way(trial, run.spec.partitions, run.slots):
        return
    trial.storing = False
    if trial.fault == "user":  # it cannot go on from here; after other faults, a retry needs these sums
        trial.epochs.clear()
    _truncate(run, trial)
    _close(run, trial)


def _end(run: RunRecord, trial: TrialRecord) -> None:
    """End the trial; States of it may still be on their way to the store."""
    trial.ended = True
    run.search.end(trial)
    trial.queue_version += 1
    run.estimates.renew(trial)


def _close(run: RunRecord, trial: TrialRecord) -> None:
    """Let the run end without the trial, which has all the States that it will have."""
    run.open -= 1
    retention.release_all(trial, run.slots, run.commands)
    retention.collect(trial, run.spec.partitions, run.slots, run.commands)
