"""What a run must give, whatever happens: computed here independently of the machine that decides.

A State's content is the list of what its trial went over, so a State that was made from the wrong one is noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Literal

from hopyard.core.runs.codec import decode
from hopyard.core.runs.machine import Machine, fold
from hopyard.core.runs.order import spread
from hopyard.core.runs.records import SlotRecord
from hopyard.spec import Ref, RunSpec, Sums, better
from hopyard.stopping import ASHA
from snapshots import checking, folds, homes, snapshot

Content = tuple[tuple[int, int], ...]
"""The (epoch, partition) that a State's trial went over, in order."""


class Broken(AssertionError):
    """A promise was broken."""


def hold(true: object, message: str) -> None:
    """Raise Broken unless it is true."""
    if not true:
        raise Broken(message)


def offset(spec: RunSpec, trial: int) -> int:
    """Return where in the rotation a trial begins: in half of the worlds where the search says."""
    if spec.seed % 2:
        return 3 * trial + 1
    return spread(spec.partitions)[trial % spec.partitions]


def sums_of(arrays: bool, kind: str, trial: int, epoch: int, partition: int) -> Sums:
    """Return sums that this partition gives and no other; with an additive array, if `arrays`."""
    value = float(Random(f"{kind}/{trial}/{epoch}/{partition}").randrange(1 << 20))
    sums: Sums = {"loss": (value, 1.0 + partition)}
    if arrays:
        sums["bins"] = [value, value + 1, 2.0], 1.0 + partition
    return sums


def expected(spec: RunSpec, arrays: bool, trial: int, epoch: int) -> dict[str, float]:
    """Return the metrics of this epoch, by one pass in the order of partitions."""
    metrics: dict[str, float] = {}
    for prefix, kind, count in (("", "train", spec.partitions), ("val_", "validate", spec.validation)):
        all_sums = [sums_of(arrays, kind, trial, epoch, partition) for partition in range(count)]
        for name in all_sums[0] if all_sums else ():
            total, rows = 0.0, 0.0
            for sums in all_sums:
                values, row_count = sums[name]
                total += sum(values) if isinstance(values, list) else values
                rows += row_count
            metrics[prefix + name] = total / rows
    return metrics


def between_events(machine: Machine, arrays: bool, stored: Collection[Ref], journal: Iterable[bytes]) -> None:
    """Check what must hold between any two events.

    Args:
        machine: the live machine.
        arrays: as for `sums_of`.
        stored: the States that are in the store.
        journal: the lines of all that happened and was decided.

    Raises:
        Broken: a promise was broken.
    """
    spec = machine.spec
    standing = machine.leases.standing()
    trains = [unit.trial for _, unit in standing.values() if unit.kind == "train"]
    hold(len(trains) == len(set(trains)), "a trial is in two places")
    owners = [slot for slot, _ in standing.values()]
    hold(len(owners) == len(set(owners)), "a slot has two leases")
    for lease, (owner, unit) in standing.items():
        hold(owner in machine.slots and machine.slots[owner].busy == lease, f"lease {lease} of a slot without it")
        trial = machine.trials[unit.trial]
        leases = {trial.lease} if unit.kind == "train" else trial.validation_leases
        hold(lease in leases, f"lease {lease} astray")
    gangs = [slot for slot in machine.slots.values() if slot.members]
    for slot in gangs:
        hold(len(slot.members) == spec.members and slot.members[0] == slot.id, f"gang {slot.members} of slot {slot.id}")
    workers = [number for slot in machine.slots.values() for number in slot.members or (slot.id,)]
    hold(len(workers) == len(set(workers)) == len(machine.workers), f"a worker is in two slots, or none: {workers}")
    for trial in machine.trials.values():
        hold(list(trial.states) == sorted(trial.states), "States out of order")
        hold(
            trial.ended or trial.durable_step <= trial.step <= trial.target <= spec.steps,
            f"trial {trial.id} is behind its durable step, or beyond its target",
        )
        hold(not (trial.paused and trial.ended), f"trial {trial.id} waits, and has ended")
        hold(not trial.durable_step or trial.durable_step in trial.states, f"trial {trial.id} lost its durable State")
        for epoch, values in trial.history.items():
            hold(values == expected(spec, arrays, trial.id, epoch), f"trial {trial.id}, epoch {epoch}: {values}")
        for epoch in trial.history:
            hold(epoch not in trial.epochs, "an epoch that is in comes in")
    missing = machine.kept() - set(stored)
    hold(not missing, f"not stored, but needed: {missing}")
    _nobody_waits_for_nothing(machine)
    folded = snapshot(fold([decode(line) for line in journal]))
    live = snapshot(machine)
    hold(folded == live, "the journal folds to another state")


def _nobody_waits_for_nothing(machine: Machine) -> None:
    idle = [slot for slot in machine.slots.values() if not slot.busy]
    if machine.status == "checking" and idle:
        used = all(slot.used for slot in idle)
        fit = any(not (trial.ended or trial.until or (trial.fresh and used)) for trial in machine.trials.values())
        hold(not fit or checking(machine), "nobody checks")
    if machine.status != "running":
        return
    waiting = folds(machine)
    resting = machine.scheduler.resting
    withheld = machine.scheduler.withheld
    idle = [slot for slot in idle if slot.id not in withheld]
    hold(not (waiting and any(slot.id not in resting for slot in idle)), "a fold waits, and a slot")
    for slot in idle:
        if slot.id in resting:
            hold(
                any(trial.isolated and not trial.ended for trial in machine.trials.values()),
                "a slot rests for nobody",
            )
            continue
        for trial in machine.trials.values():
            state = trial.states.get(trial.step)
            ready = slot.trains and not trial.lease and not trial.ended and trial.step < trial.target
            held_up = trial.until or trial.isolated == "train" or (state is not None and state.parked)
            elsewhere = not _may_visit(machine, slot, "train", (trial.offset + trial.step) % machine.spec.partitions)
            hold(not ready or held_up or elsewhere, f"slot {slot.id} and trial {trial.id} wait for each other")
            for epoch, record in trial.epochs.items():
                held_up = trial.ended or trial.until or trial.isolated == "validate" or record.parked
                here = any(_may_visit(machine, slot, "validate", partition) for partition in record.pending or ())
                hold(
                    not here or held_up,
                    f"slot {slot.id} and the validation of {trial.id}, {epoch} wait for each other",
                )


def _may_visit(machine: Machine, slot: SlotRecord, kind: Literal["train", "validate"], partition: int) -> bool:
    """Return whether the partition is at home on the slot's host, or free for it: no home has a worker, and the host is
    new or has waited long enough."""
    places = machine.places
    if not places.active or slot.home is None or places.at_home(slot.host, kind, partition):
        return True
    block = places.block(kind, partition)
    count = machine.spec.partitions if kind == "train" else machine.spec.validation
    new = not any(places.at_home(slot.host, kind, other) for other in range(count))
    return not places.homes(kind, block) and (new or block in homes(places)["vacant"][kind][1])


def at_the_end(
    machine: Machine,
    store: Mapping[Ref, Content],
    excused: Collection[int],
    forfeit: Collection[int] = (),
    retried: bool = False,
) -> None:
    """Check what must hold when the run has ended.

    Args:
        machine: the run's.
        store: State → what its trial went over.
        excused: trials whose recipe may have failed them.
        forfeit: trials of which a State was lost with its maker, or is gone.
        retried: whether trials that had failed were tried again.

    Raises:
        Broken: a promise was broken.
    """
    spec = machine.spec
    completed = stopped = 0
    for trial in machine.trials.values():
        hold(trial.ended or machine.faults, f"trial {trial.id} is {trial.status}")
        steps = set()
        if trial.status == "completed":
            completed += 1
            hold(sorted(trial.history) == list(range(spec.epochs)), f"trial {trial.id}: {sorted(trial.history)}")
            steps = {spec.steps, (best_epoch(spec, trial.history) + 1) * spec.partitions}
            hold(trial.best == best_epoch(spec, trial.history), f"trial {trial.id}: best {trial.best}")
            hold(set(trial.states) == steps, f"trial {trial.id} keeps {list(trial.states)}, not {steps}")
        elif trial.status == "stopped":
            stopped += 1
            best = -1 if trial.best is None else (trial.best + 1) * spec.partitions
            steps = {trial.target, best}.difference([0, -1])
            hold(trial.reason, f"trial {trial.id} was stopped for no reason")
            hold(set(trial.states) == steps, f"trial {trial.id}, stopped, keeps {list(trial.states)}, not {steps}")
        elif trial.ended:
            excusable = trial.fault in ("system", "memory") or trial.id in excused
            hold(excusable and trial.fault != "store", f"trial {trial.id} ({trial.fault}): {trial.error}")
            steps = {trial.durable_step, -1 if trial.best is None else (trial.best + 1) * spec.partitions}
            steps |= {(epoch + 1) * spec.partitions for epoch in trial.epochs}
            hold(set(trial.states) <= steps, f"trial {trial.id}, failed, keeps {list(trial.states)}")
            kept = trial.best is None or (trial.best + 1) * spec.partitions in trial.states
            hold(kept or trial.id in forfeit, f"trial {trial.id}, failed, has no model of its best epoch")
        for step, state in trial.states.items():  # the rotation is written out: an expectation of its own
            order = tuple([(k // spec.partitions, (offset(spec, trial.id) + k) % spec.partitions) for k in range(step)])
            hold(store.get(state.ref) == order, f"{state.ref} went over {store.get(state.ref)}")
    hold(set(store) == machine.kept(), f"stored {set(store)}, kept {machine.kept()}")
    well = completed + stopped
    trials = [trial for trial in machine.trials.values() if trial.status in ("completed", "stopped")]
    worth = [trial for trial in trials if not spec.metric or (trial.history and trial.earlier is None)]
    status = "failed" if not worth else "completed" if well == len(machine.trials) else "partial"
    standing = machine.search.standing
    left = [*standing.active, *standing.undecided, *standing.paused]
    hold(not left or machine.faults, f"trials {left} are still in the search")
    if not retried:
        _halved(machine)
    hold(machine.status == status, f"the run is {machine.status}, not {status}")
    hold(not len(machine.leases), "a lease stands")


def _halved(machine: Machine) -> None:
    """Check the choices of synchronous successive halving over one cohort, in which no trial failed: written out."""
    spec, rule = machine.spec, machine.spec.stop
    failed = any(trial.status == "failed" for trial in machine.trials.values())
    if not isinstance(rule, ASHA) or not rule.sync or spec.batch or failed or machine.search.closed:
        return
    survivors, epochs = sorted(machine.trials), 1
    sign = 1 if spec.mode == "min" else -1
    lengths: dict[int, int] = {}
    while epochs < spec.epochs:
        ranked = sorted(survivors, key=lambda n: (sign * machine.trials[n].history[epochs - 1][spec.metric or ""], n))
        quota = max(1, len(machine.trials) // (rule.reduction_factor * epochs))
        lengths |= dict.fromkeys(ranked[quota:], epochs)
        survivors, epochs = ranked[:quota], epochs * rule.reduction_factor
    lengths |= dict.fromkeys(survivors, spec.epochs)
    reached = {trial.id: len(trial.history) for trial in machine.trials.values()}
    hold(reached == lengths, f"trials have {reached} epochs, not {lengths}")


def best_epoch(spec: RunSpec, history: dict[int, dict[str, float]]) -> int:
    """Return the best epoch, by a plain search."""
    best = None
    for epoch in sorted(history):
        metric = spec.metric
        if metric is None or best is None or better(spec.mode, history[epoch][metric], history[best][metric]):
            best = epoch
    hold(best is not None, "no epoch")
    return best or 0
