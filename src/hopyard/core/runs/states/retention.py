"""Which States of a trial are durable, which are still needed, and which are gone.

Functions over one TrialRecord; commands for agents and store are appended to `out`. `partitions` is P: a step that it
divides is an epoch's end. A State is *available* if it is durable or its maker is alive.
"""

from __future__ import annotations

from hopyard.core.runs.events import Command, Delete, Release
from hopyard.core.runs.records import SlotRecord, StateRecord, TrialRecord

Slots = dict[int, SlotRecord]


def advance(trial: TrialRecord, partitions: int) -> bool:
    """Move the durable step on, up to the newest durable State before which no epoch's end is missing. Returns whether
    it moved."""
    before = trial.durable_step
    for step, state in trial.states.items():
        if step > trial.durable_step:
            if state.digest:
                trial.durable_step = step
            elif step % partitions == 0:
                break
    return trial.durable_step != before


def collect(trial: TrialRecord, partitions: int, slots: Slots, out: list[Command]) -> None:
    """Delete and release the States before the durable step, except the best epoch's and those that await
    validation."""
    best = -1 if trial.best is None else (trial.best + 1) * partitions
    before = [step for step in trial.states if step < trial.durable_step and step != best]
    for step in before:
        if step % partitions == 0 and step // partitions - 1 in trial.epochs:
            continue
        state = trial.states.pop(step)
        if state.digest:
            out.append(Delete(state.ref))
        _release(state, slots, out)


def truncate(trial: TrialRecord, slots: Slots, out: list[Command]) -> None:
    """Remove and delete the States behind the durable step."""
    for step in [step for step in trial.states if step > trial.durable_step]:
        state = trial.states.pop(step)
        if state.digest:
            out.append(Delete(state.ref))
        _release(state, slots, out)


def broken(trial: TrialRecord, partitions: int, slots: Slots) -> bool:
    """Return whether a State that the trial needs is not available: that of an epoch's end, or the newest one while no
    unit trains from it.

    (A unit that trains from the newest may have fetched it before it was lost; if not, the unit fails and asks again.)
    """
    for step, state in trial.states.items():
        if state.digest or state.maker in slots:
            continue
        if step % partitions == 0 or (step == trial.step and not trial.lease):
            return True
    return False


def on_their_way(trial: TrialRecord, partitions: int, slots: Slots) -> bool:
    """Return whether the maker of a State at an epoch's end is alive and has not yet stored it."""
    return any(
        not state.digest and state.maker in slots and step % partitions == 0 for step, state in trial.states.items()
    )


def park(trial: TrialRecord, state: StateRecord, partitions: int) -> None:
    """Park a State that only its maker can take: no unit starts from it before it is durable."""
    state.parked = True
    trial.queue_version += 1
    if state.ref.step % partitions == 0 and (record := trial.epochs.get(state.ref.step // partitions - 1)) is not None:
        record.parked = True


def unpark(trial: TrialRecord, state: StateRecord, partitions: int, slots: Slots, out: list[Command]) -> None:
    """End the parking of a State: it is durable, and read from the store from now on, or its maker no longer has it."""
    state.parked = False
    if state.ref.step % partitions == 0 and (record := trial.epochs.get(state.ref.step // partitions - 1)) is not None:
        record.parked = False
    _release(state, slots, out)


def release_all(trial: TrialRecord, slots: Slots, out: list[Command]) -> None:
    """Release the memory of all States of a trial that has ended."""
    for state in trial.states.values():
        _release(state, slots, out)


def _release(state: StateRecord, slots: Slots, out: list[Command]) -> None:
    if state.memory_key and state.maker in slots:
        out.append(Release(state.maker, state.memory_key))
    state.memory_key = ""


def in_memory_only(trial: TrialRecord, slot: int) -> bool:
    """Return whether a State that the trial needs is in this slot's memory alone."""
    needed = trial.storing or not trial.ended
    return needed and any(state.maker == slot and not state.digest for state in trial.states.values())


def release_memory(trial: TrialRecord, step: int, partitions: int, slots: Slots, out: list[Command]) -> None:
    """Let the maker of a State use its memory for others: units that still start from the State read it from the store.

    The State at an epoch's end that awaits validation stays in memory.
    """
    state = trial.states.get(step)
    if state is None or not state.memory_key or (step % partitions == 0 and step // partitions - 1 in trial.epochs):
        return
    _release(state, slots, out)
