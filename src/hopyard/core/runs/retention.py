"""What a trial goes through: the chain of its States, which of them are safe, which are still needed.

Functions over one TrialBook; what must be told to agents and store is appended to `out`. `partitions` is P: a step
that it divides is an epoch's end. "There" means durable, or made by a slot that is still there.
"""

from __future__ import annotations

from hopyard.core.runs.events import Command, Delete, Release
from hopyard.core.runs.records import SlotBook, StateBook, TrialBook

Slots = dict[int, SlotBook]


def advance(trial: TrialBook, partitions: int) -> bool:
    """Move the safe step on, up to the newest durable State behind which no epoch's end is missing."""
    safe = trial.safe
    for step, state in trial.states.items():
        if step > safe:
            if state.digest:
                safe = step
            elif step % partitions == 0:
                break
    moved = safe != trial.safe
    trial.safe = safe
    return moved


def collect(trial: TrialBook, partitions: int, out: list[Command]) -> None:
    """Forget and delete the States before the safe one, but the best epoch's and those that await validation."""
    best = -1 if trial.best is None else (trial.best + 1) * partitions
    safe = trial.safe
    spent = [
        step
        for step in trial.states
        if step < safe and step != best and (step % partitions or step // partitions - 1 not in trial.epochs)
    ]
    for step in spent:
        state = trial.states.pop(step)
        if state.digest:
            out.append(Delete(state.ref))


def cut(trial: TrialBook, slots: Slots, out: list[Command]) -> None:
    """Forget and delete the States behind the safe one."""
    for step in [step for step in trial.states if step > trial.safe]:
        state = trial.states.pop(step)
        if state.digest:
            out.append(Delete(state.ref))
        if state.where and state.maker in slots:
            out.append(Release(state.maker, state.where))


def broken(trial: TrialBook, partitions: int, slots: Slots) -> bool:
    """Whether a State that the trial needs is not there: an epoch's end, or the newest while nobody trains from it.

    (Whoever trains from the newest may have fetched it before it went; if not, the unit fails and asks again.)
    """
    for step, state in trial.states.items():
        if state.digest or state.maker in slots:
            continue
        if step % partitions == 0 or (step == trial.step and not trial.lease):
            return True
    return False


def park(trial: TrialBook, state: StateBook, partitions: int) -> None:
    """Nobody but its maker can take this State: no unit starts from it before it is durable."""
    state.parked = True
    trial.stamp += 1
    if state.ref.step % partitions == 0 and (book := trial.epochs.get(state.ref.step // partitions - 1)) is not None:
        book.parked = True


def unpark(trial: TrialBook, state: StateBook, partitions: int, slots: Slots, out: list[Command]) -> None:
    """It is durable, and taken from the store from now on; or its maker does not have it any longer."""
    state.parked = False
    if state.ref.step % partitions == 0 and (book := trial.epochs.get(state.ref.step // partitions - 1)) is not None:
        book.parked = False
    _release(state, slots, out)


def released(trial: TrialBook, slots: Slots, out: list[Command]) -> None:
    """The trial has ended: nobody starts from any State of it."""
    for state in trial.states.values():
        _release(state, slots, out)


def _release(state: StateBook, slots: Slots, out: list[Command]) -> None:
    if state.where and state.maker in slots:
        out.append(Release(state.maker, state.where))
    state.where = ""


def held(trial: TrialBook, slot: int) -> bool:
    """Whether a State of the trial is in this slot's memory alone."""
    return not trial.ended and any(state.maker == slot and not state.digest for state in trial.states.values())


def spend(trial: TrialBook, step: int, partitions: int, slots: Slots, out: list[Command]) -> None:
    """Nobody will start from this State unless from the store: its maker may use the memory for others.

    Kept back is an epoch's end that awaits validation.
    """
    state = trial.states.get(step)
    if state is None or not state.where or (step % partitions == 0 and step // partitions - 1 in trial.epochs):
        return
    _release(state, slots, out)
