"""The scheduler: what waits, which slots are idle, and which go together. The choices themselves are `policy`'s.

Trials that can train wait in a heap, longest remaining time first; validations wait in a queue. Entries are never
searched for or removed in the middle; those that are out of date are dropped when they come up. Each choice costs
O(log n).

An event only notes what it changed (`set_idle`, `offer`, `offer_validation`); `assignments` pairs slots and work when
the event is over. A fold of a journal never asks for assignments: the decisions are in the journal themselves, and
`settle` forgets the notes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from hopyard.core.runs import order, policy
from hopyard.core.runs.records import EpochRecord, SlotRecord, TrialRecord
from hopyard.core.runs.states import retention
from hopyard.spec import Kind, RunSpec

SMOOTH = 0.5
"""Weight of the newest measurement in a trial's seconds per partition, for training and for validation."""


class Assignment(NamedTuple):
    """A slot and the unit that it gets."""

    slot: SlotRecord
    trial: TrialRecord
    kind: Kind
    epoch: int
    partitions: tuple[int, ...]


class Scheduler:
    """Queues, idle slots and estimates of one run. Owner: `Machine`.

    Args:
        spec: the run's.
        trials: the machine's, by number.
        slots: the machine's, by number.

    Attributes:
        idle: slots that have nothing to do and do not rest, in the order in which they became so.
        isolated: trials that ran out of memory, whose next unit runs while other slots rest.
        resting: those slots.
        withheld: idle workers that wait for others to form a gang with.
        more: whether more trials may be proposed, so that slots need not end together.
    """

    def __init__(self, spec: RunSpec, trials: dict[int, TrialRecord], slots: dict[int, SlotRecord]) -> None:
        self.idle: dict[int, None] = {}
        self.isolated: dict[int, None] = {}
        self.resting: set[int] = set()
        self.withheld: set[int] = set()
        self.more = True
        self._spec = spec
        self._trials = trials
        self._slots = slots
        self._folds: dict[tuple[int, int], None] = {}
        """(trial, epoch) whose arrays wait to be turned into values."""
        self._remaining = 0.0
        """Seconds of training left in all trials, by the newest estimates."""
        self._work = 0.0
        """Seconds of training done, in `_parts` partitions."""
        self._parts = 0
        self.clear()

    def set_spec(self, spec: RunSpec) -> None:
        """Go by this spec from now on: gangs have another size."""
        self._spec = spec

    def clear(self) -> None:
        """Drop queues and idle slots, as all slots are gone."""
        self.idle.clear()
        self._heap: list[tuple[float, int, int]] = []
        """(−remaining seconds, trial, its queue version)."""
        self._validations: deque[tuple[int, int]] = deque()
        """(trial, epoch) with validation partitions to give out."""
        self._rebuild = True
        """Whether heap and queue must be built from the records: a fold does not fill them."""
        self._newly_idle: dict[int, None] = {}
        self._ready_trials: list[TrialRecord] = []
        self._new_validations: list[tuple[TrialRecord, int]] = []
        self.resting.clear()
        self.withheld.clear()

    # ---------------------------------------------------------------- what an event changes

    def set_idle(self, slot: SlotRecord) -> None:
        """Note that the slot is idle."""
        self.idle[slot.id] = None
        self._newly_idle[slot.id] = None

    def set_busy(self, slot: SlotRecord) -> None:
        """Note that the slot is not idle any longer."""
        self.idle.pop(slot.id, None)

    def remove(self, slot: SlotRecord) -> None:
        """Remove a slot, which is gone."""
        self.idle.pop(slot.id, None)
        self._newly_idle.pop(slot.id, None)
        self.resting.discard(slot.id)
        self.withheld.discard(slot.id)

    def withhold(self, numbers: set[int]) -> None:
        """Give these idle slots nothing for now, and those that were withheld before whatever there is."""
        for number in self.withheld - numbers:
            if number in self._slots and not self._slots[number].busy:
                self.set_idle(self._slots[number])
        for number in numbers:
            self.idle.pop(number, None)
            self._newly_idle.pop(number, None)
        self.withheld = numbers

    def offer(self, trial: TrialRecord) -> None:
        """Note that the trial may be able to train."""
        self._ready_trials.append(trial)

    def offer_validation(self, trial: TrialRecord, epoch: int) -> None:
        """Note that validation partitions of this epoch can be given out."""
        self._new_validations.append((trial, epoch))

    def offer_fold(self, trial: TrialRecord, epoch: int) -> None:
        """Queue the fold that turns the arrays of this epoch into values."""
        self._folds[trial.id, epoch] = None

    def withdraw_fold(self, trial: int, epoch: int) -> None:
        """Remove that fold: a slot has it, or it is not needed for now."""
        self._folds.pop((trial, epoch), None)

    def isolate(self, trial: TrialRecord) -> None:
        """Let the next unit of this trial, of the kind `trial.isolated`, run while other slots rest."""
        self.isolated[trial.id] = None

    def settle(self) -> None:
        """Drop all notes."""
        self._newly_idle.clear()
        self._ready_trials.clear()
        self._new_validations.clear()

    def folds(self) -> list[tuple[int, int]]:
        """Return (trial, epoch) whose arrays wait to be turned into values. For tests."""
        return list(self._folds)

    # ---------------------------------------------------------------- how long things take

    def learn(self, trial: TrialRecord, seconds: float, count: int) -> None:
        """Learn that the trial trained on `count` partitions in so many seconds; its step has moved on already."""
        each = seconds / count
        trial.seconds += (each - trial.seconds) * (SMOOTH if trial.seconds else 1.0)
        self._work += seconds
        self._parts += count
        remaining = (trial.target - trial.step) * trial.seconds
        self._remaining += remaining - trial.remaining
        trial.remaining = remaining

    def learn_validation(self, trial: TrialRecord, seconds: float, count: int) -> None:
        """Learn that the trial was validated on `count` partitions in so many seconds."""
        each = seconds / count
        trial.check_seconds += (each - trial.check_seconds) * (SMOOTH if trial.check_seconds else 1.0)

    def estimate(self, trial: TrialRecord) -> None:
        """Estimate how long the trial still takes; one without measurements is like the mean of the others."""
        each = trial.seconds or (self._work / self._parts if self._parts else 1.0)
        remaining = 0.0 if trial.ended else (trial.target - trial.step) * each
        self._remaining += remaining - trial.remaining
        trial.remaining = remaining

    def _share(self) -> float:
        """Return the seconds of training that remain for each slot that trains."""
        if self.more:
            return math.inf
        if self._spec.members == 1:
            return self._remaining / len(self._slots)
        return self._remaining / max(1, sum([slot.trains for slot in self._slots.values()]))

    def _helped(self, slot: SlotRecord) -> bool:
        """Whether it is a gang, and there are workers without a gang for validations and folds."""
        return bool(slot.members) and not all(other.trains for other in self._slots.values())

    def _first_idle(self, kind: Kind) -> SlotRecord | None:
        """Return an idle slot for a unit of this kind: to train, one that may; for all else a worker without a gang,
        if there is one."""
        if self._spec.members == 1 or kind != "train":
            small = None if self._spec.members == 1 else next((n for n in self.idle if not self._slots[n].trains), None)
            number = next(iter(self.idle), None) if small is None else small
        else:
            number = next((number for number in self.idle if self._slots[number].trains), None)
        return None if number is None else self._slots[number]

    def spare(self, at: float, seconds: float) -> list[int]:
        """Return the slots that may be given back at this time: those idle for so many seconds, with no State in their
        memory alone. Never all of them, and none while a trial waits for something other than a slot. The work that
        remains only gets less, so no slot is needed again; but workers of gangs may be, for a member that is lost."""
        idle = [
            slot.id
            for slot in self._slots.values()
            if not slot.busy
            and at - slot.idle_since >= seconds
            and not any(retention.in_memory_only(self._trials[number], slot.id) for number in slot.memory_only)
        ]
        spare = idle[: len(self._slots) - 1]
        if self._spec.members > 1 or self.isolated or not spare or any(map(_held_up, self._trials.values())):
            return []
        return spare

    # ---------------------------------------------------------------- which slot gets what

    def changed(self) -> bool:
        """Whether the last event made an assignment possible, so that `assignments` must be asked."""
        return bool(
            self._newly_idle
            or self._ready_trials
            or self._new_validations
            or self._folds
            or self.isolated
            or self.resting
            or self._rebuild
        )

    def assignments(self) -> Iterator[Assignment]:
        """Yield assignments of idle slots, as far as the last event made new pairs possible. Each choice depends
        on the one before it: carry out an assignment before asking for the next."""
        if self.isolated or self.resting:
            yield from self._isolate()
        newly_idle, ready_trials, new_validations = self._newly_idle, self._ready_trials, self._new_validations
        for number in newly_idle:
            if (assignment := self._go_on(self._slots[number])) is not None:
                yield assignment
        self._enqueue()
        if newly_idle:
            for number in newly_idle:
                slot = self._slots[number]
                if not slot.busy and (assignment := self._longest_waiting(slot)) is not None:
                    yield assignment
            newly_idle.clear()
        if ready_trials:
            for trial in ready_trials:
                if self.idle and not trial.lease and self.is_ready(trial):
                    nearest = self._nearest(trial)
                    if nearest is not None:
                        yield self._train(nearest, trial)
            ready_trials.clear()
        if new_validations:
            for trial, epoch in new_validations:
                while (idle := self._first_idle("validate")) and (pending := self._unvalidated(trial, epoch)):
                    yield self._validate(idle, trial, epoch, pending)
            new_validations.clear()
        while self._folds and (idle := self._first_idle("fold")):
            yield self._fold(idle)

    def _go_on(self, slot: SlotRecord) -> Assignment | None:
        """Return a fold, if one waits; else what the slot can do with the State that it has in memory."""
        if slot.busy:
            return None
        helped = self._helped(slot)
        if self._folds and not helped:
            return self._fold(slot)
        trial = self._trials.get(slot.trial)
        if trial is None or trial.ended:
            return None
        epoch, rest = divmod(slot.step, self._spec.partitions)
        if epoch > 0 and not rest and not helped and (pending := self._unvalidated(trial, epoch - 1)):
            return self._validate(slot, trial, epoch - 1, pending)
        if not slot.trains or not self.is_ready(trial, slot.id):
            return None
        critical = self._heap and policy.critical(self._longest(), trial, self._share())
        return None if critical else self._train(slot, trial)

    def _enqueue(self) -> None:
        """Add all that can be given out to heap and queue."""
        ready = self._ready_trials
        if self._rebuild:
            self._rebuild = False
            ready = list(self._trials.values())
            self._validations = deque(
                [(trial.id, epoch) for trial in ready for epoch, record in trial.epochs.items() if record.pending]
            )
        for trial in ready:
            if not trial.lease and self.is_ready(trial):
                heappush(self._heap, (-trial.remaining, trial.id, trial.queue_version))
        if self._new_validations:
            self._validations.extend([(trial.id, epoch) for trial, epoch in self._new_validations])

    def _longest_waiting(self, slot: SlotRecord) -> Assignment | None:
        """Return what an idle slot takes out of the queues: the oldest validation, else the longest trial. Gangs train
        first, where others can validate."""
        trial = self._longest() if slot.trains else None
        if trial is not None and self._helped(slot):
            return self._train(slot, trial)
        while self._validations:
            number, epoch = self._validations[0]
            if pending := self._unvalidated(self._trials[number], epoch):
                return self._validate(slot, self._trials[number], epoch, pending)
            self._validations.popleft()
        return None if trial is None else self._train(slot, trial)

    def _longest(self) -> TrialRecord | None:
        """Return the waiting trial with the longest remaining time. It stays in the heap until it is dispatched."""
        heap = self._heap
        while heap:
            _, number, version = heap[0]
            trial = self._trials[number]
            if trial.queue_version == version:
                return trial
            heappop(heap)
        return None

    def _nearest(self, trial: TrialRecord) -> SlotRecord | None:
        """Return the idle slot for a trial that can train: the one that has it in memory, else the first; None: no
        idle slot trains."""
        state = trial.states.get(trial.step)
        if state is not None and state.maker in self.idle:
            maker = self._slots[state.maker]
            if maker.trains and maker.trial == trial.id:
                return maker
        return self._first_idle("train")

    def is_ready(self, trial: TrialRecord, slot: int = -1) -> bool:
        """Whether the trial's next training unit may be given out; `slot`: to this one, with the State in memory."""
        if trial.lease or trial.step >= trial.target or trial.ended or trial.until or trial.isolated == "train":
            return False
        state = trial.states.get(trial.step)
        return state is None or not state.parked or state.maker == slot

    def _unvalidated(self, trial: TrialRecord, epoch: int) -> list[int]:
        """Return the validation partitions of this epoch that can be given out, sorted."""
        record = trial.epochs.get(epoch)
        if trial.ended or trial.until or trial.isolated == "validate" or record is None:
            return []
        return _pending(record)

    def _train(self, slot: SlotRecord, trial: TrialRecord) -> Assignment:
        partitions = policy.span(trial, self._spec, self._share())
        return Assignment(slot, trial, "train", trial.step // self._spec.partitions, partitions)

    def _validate(self, slot: SlotRecord, trial: TrialRecord, epoch: int, pending: list[int]) -> Assignment:
        partitions = policy.portion(pending, trial.check_seconds or trial.seconds, self._spec)
        return Assignment(slot, trial, "validate", epoch, partitions)

    def _fold(self, slot: SlotRecord) -> Assignment:
        number, epoch = next(iter(self._folds))
        return Assignment(slot, self._trials[number], "fold", epoch, ())

    # ---------------------------------------------------------------- units that ran out of memory

    def _isolate(self) -> Iterator[Assignment]:
        """Yield assignments of units that ran out of memory, each to a slot while those that share its memory rest."""
        slots, refuges, resting = self._slots, set[int](), set[int]()
        waiting = []
        for number in list(self.isolated):
            trial = self._trials[number]
            if not trial.isolated or trial.ended:
                del self.isolated[number]
                continue
            slot = slots.get(trial.refuge)
            if slot is not None and slot.busy and (slot.busy == trial.lease or slot.busy in trial.validation_leases):
                refuges.add(slot.id)
                resting |= policy.sharers(slot, slots, trial.on_device)
            elif not trial.until:
                waiting.append(trial)
        for trial in waiting:
            unit = self._isolated_unit(trial)
            trains = unit is not None and unit[0] == "train"
            candidates = {n: slot for n, slot in slots.items() if n not in resting and (slot.trains or not trains)}
            slot = policy.slot_for_retry(candidates, bool(trial.fresh))
            if slot is None or unit is None:
                continue
            others = policy.sharers(slot, slots, trial.on_device)
            if slot.id in refuges or others & refuges:
                continue  # it waits for its turn
            refuges.add(slot.id)
            resting |= others
            if slot.busy or any(slots[number].busy for number in others):
                resting.add(slot.id)
            else:
                yield Assignment(slot, trial, *unit)
        for number in self.resting - resting:
            if number in slots and not slots[number].busy:
                self.set_idle(slots[number])
        for number in resting:
            self.idle.pop(number, None)
            self._newly_idle.pop(number, None)
        self.resting = resting

    def _isolated_unit(self, trial: TrialRecord) -> tuple[Kind, int, tuple[int, ...]] | None:
        """Return the unit of the trial that runs while other slots rest."""
        if trial.isolated == "train":
            state = trial.states.get(trial.step)
            if trial.lease or trial.step >= trial.target or (state is not None and state.parked):
                return None
            epoch, partition = order.visit(trial.offset, trial.step, self._spec.partitions)
            return "train", epoch, (partition,)
        for epoch, record in trial.epochs.items():
            if pending := _pending(record):
                return "validate", epoch, (pending[0],)
        return None


def _held_up(trial: TrialRecord) -> bool:
    """Whether the trial waits for time to pass, or for a State to be stored."""
    return not trial.ended and (trial.until > 0 or any(state.parked for state in trial.states.values()))


def _pending(record: EpochRecord) -> list[int]:
    """Return the validation partitions that can be given out, sorted."""
    return sorted(record.pending) if record.pending and not record.parked else []
