"""The scheduler: what waits, which slots are idle, and in what order they take what waits. `policy` has the predicates.

What waits is kept by the block of partitions that it goes over next (`waiting`): a slot takes what is at home on its
host (`homes`).

An event only notes what it changed (`set_idle`, `offer`, `offer_validation`); `assignments` pairs slots and work when
the event is over. A fold of a journal never asks for assignments: the decisions are in the journal themselves, and
`settle` forgets the notes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from hopyard.core.runs import order
from hopyard.core.runs.records import EpochRecord, SlotRecord, TrialRecord
from hopyard.core.runs.scheduling import policy
from hopyard.core.runs.scheduling.estimates import Estimates
from hopyard.core.runs.scheduling.homes import Homes
from hopyard.core.runs.scheduling.waiting import Waiting
from hopyard.core.runs.states import retention
from hopyard.spec import Kind, PartitionRange, RowKind, RunSpec

BEYOND = 2
"""The first tier of `Homes` beyond a host's share: what any host may take, if it has nothing else to do."""
COUNT_SECONDS = 1e-4
"""Least seconds of a run between two counts of idle slots, for each trial."""
EVERYWHERE = (0,)
"""The blocks where partitions have no homes."""


class Assignment(NamedTuple):
    """A slot and the unit that it gets."""

    slot: SlotRecord
    trial: TrialRecord
    kind: Kind
    epoch: int
    partitions: tuple[int, ...]


class Scheduler:
    """Queues and idle slots of one run. Owner: `Machine`.

    Args:
        spec: the run's.
        trials: the machine's, by number.
        slots: the machine's, by number.
        places: the homes of the run's partitions.
        estimates: how long its trials take.

    Attributes:
        spec: the run's, also when its gangs have another size.
        idle: slots that have nothing to do and do not rest, in the order in which they became so.
        isolated: trials that ran out of memory, whose next unit runs while other slots rest.
        resting: those slots.
        withheld: idle workers that wait for others to form a gang with.
        more: whether more trials may be proposed, so that slots need not end together.
        home_idle: slot-seconds in which slots were idle while trials waited, because no partition that these trials
            visit next was at home there.
    """

    def __init__(
        self,
        spec: RunSpec,
        trials: dict[int, TrialRecord],
        slots: dict[int, SlotRecord],
        places: Homes,
        estimates: Estimates,
    ) -> None:
        self.idle: dict[int, None] = {}
        self.isolated: dict[int, None] = {}
        self.resting: set[int] = set()
        self.withheld: set[int] = set()
        self.more = True
        self.home_idle = 0.0
        self._unmatched, self._counted = 0, -math.inf
        """Number of idle slots that could train a waiting trial if homes did not matter, and when it was counted."""
        self.spec = spec
        self._trials = trials
        self._slots = slots
        self._places = places
        self._estimates = estimates
        self._waiting = Waiting(trials)
        self._idle_of: dict[str | None, dict[int, None]] = {}
        """Host → its idle slots, where partitions have homes; None: gangs over several hosts."""
        self._folds: dict[tuple[int, int], None] = {}
        """(trial, epoch) whose arrays wait to be turned into values."""
        self.clear()

    def clear(self) -> None:
        """Drop queues and idle slots, as all slots are gone."""
        self.idle.clear()
        self._idle_of.clear()
        self._waiting.clear()
        self._rebuild = True
        """Whether what waits must be gathered from the records: a fold does not."""
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
        if self._places.active:
            self._idle_of.setdefault(slot.home, {})[slot.id] = None

    def set_busy(self, slot: SlotRecord) -> None:
        """Note that the slot is not idle any longer."""
        self.idle.pop(slot.id, None)
        if self._places.active and (idle := self._idle_of.get(slot.home)):
            idle.pop(slot.id, None)

    def set_home(self, slot: SlotRecord, home: str | None) -> None:
        """Note on which host's partitions the slot works; None: a gang over several hosts works on all."""
        idle = slot.id in self._idle_of.get(slot.home, ())
        if idle:
            del self._idle_of[slot.home][slot.id]
        slot.home = home
        if idle:
            self._idle_of.setdefault(home, {})[slot.id] = None

    def rebuild(self) -> None:
        """Gather what waits anew, as blocks have other numbers."""
        self._rebuild = True

    def offer_again(self, host: str = "") -> None:
        """Offer all that waits to the idle slots again, or to those of one host, as homes have changed."""
        if self._places.active:
            self._newly_idle.update(self._idle_of.get(host, {}) if host else self.idle)

    def remove(self, slot: SlotRecord) -> None:
        """Remove a slot, which is gone."""
        self._rest(slot)
        self.resting.discard(slot.id)
        self.withheld.discard(slot.id)

    def withhold(self, numbers: set[int]) -> None:
        """Give these idle slots nothing for now, and those that were withheld before whatever there is."""
        self.withheld = self._hold(numbers, self.withheld)

    def _hold(self, numbers: set[int], before: set[int]) -> set[int]:
        """Give these slots nothing for now, and those of `before` whatever there is. Returns these."""
        for number in before - numbers:
            if number in self._slots and not self._slots[number].busy:
                self.set_idle(self._slots[number])
        for number in numbers:
            self._rest(self._slots[number])
        return numbers

    def _rest(self, slot: SlotRecord) -> None:
        """Give the slot nothing."""
        self.set_busy(slot)
        self._newly_idle.pop(slot.id, None)

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

    def settle(self) -> None:
        """Drop all notes."""
        self._newly_idle.clear()
        self._ready_trials.clear()
        self._new_validations.clear()

    # ---------------------------------------------------------------- asked

    def _share(self) -> float:
        """Return the seconds of training that remain for each slot that trains."""
        if self.more:
            return math.inf
        if self.spec.members == 1:
            return self._estimates.remaining / len(self._slots)
        return self._estimates.remaining / max(1, sum([slot.trains for slot in self._slots.values()]))

    def _helped(self, slot: SlotRecord) -> bool:
        """Whether it is a gang, and there are workers without a gang for validations and folds."""
        return bool(slot.members) and not all(other.trains for other in self._slots.values())

    def _first_of(self, idle: dict[int, None], kind: Kind) -> SlotRecord | None:
        """Return a slot, out of idle ones, for a unit of this kind: to train, one that may; for all else a worker
        without a gang, if there is one."""
        if self.spec.members == 1 or kind != "train":
            small = None if self.spec.members == 1 else next((n for n in idle if not self._slots[n].trains), None)
            number = next(iter(idle), None) if small is None else small
        else:
            number = next((number for number in idle if self._slots[number].trains), None)
        return None if number is None else self._slots[number]

    def _idle_for(self, kind: RowKind, block: int) -> SlotRecord | None:
        """Return an idle slot for a unit over this block: on a host that is home to it, else on the host that
        ranks it highest."""
        places = self._places
        if not places.active:
            return self._first_of(self.idle, kind)
        for home in places.homes(kind, block, present=False):
            if (idle := self._idle_of.get(home)) and (slot := self._first_of(idle, kind)) is not None:
                return slot
        best, found = -1, None
        for host in places.takers(kind):
            idle = self._idle_of.get(host)
            rank = places.rank(host, kind, block) if idle else -1
            if idle and rank >= 0 and (found is None or rank < best) and (slot := self._first_of(idle, kind)):
                best, found = rank, slot
        return found

    def count_idle(self, before: float, at: float) -> None:
        """Add the time from `before` to `at` to `home_idle`. Slots are counted only now and then, in O(trials)."""
        if at >= self._counted + COUNT_SECONDS * len(self._trials):
            idle = sum(self._slots[number].trains for number in self.idle)
            self._unmatched = min(idle, sum(map(self.is_ready, self._trials.values()))) if idle else 0
            self._counted = at
        self.home_idle += self._unmatched * (at - before)

    def spare(self, at: float, seconds: float) -> list[int]:
        """Return the slots that may be given back at this time: those idle for so many seconds, with no State in their
        memory alone. Never all of them, nor the last one of a host whose partitions open trials must still visit, and
        none while a trial waits for something other than a slot. The work that remains only gets less, so no other slot
        is needed again; but workers of gangs may be, for a member that is lost."""
        idle = [
            slot
            for slot in self._slots.values()
            if not slot.busy
            and at - slot.idle_since >= seconds
            and not any(retention.in_memory_only(self._trials[number], slot.id) for number in slot.memory_only)
        ]
        if self.spec.members > 1 or self.isolated or not idle or any(map(_held_up, self._trials.values())):
            return []
        needed = self._places.needed(self._ahead()) if self._places.active else set()
        left = Counter([slot.host for slot in self._slots.values()])
        spare: list[int] = []
        for slot in idle[: len(self._slots) - 1]:
            if left[slot.host] > 1 or slot.host not in needed:
                left[slot.host] -= 1
                spare.append(slot.id)
        return spare

    def _ahead(self) -> set[PartitionRange]:
        """Return the partitions that open trials must still visit."""
        partitions, ahead = self.spec.partitions, set[PartitionRange]()
        for trial in self._trials.values():
            if trial.ended:
                continue
            ahead.add(PartitionRange("validate", 0, self.spec.validation))
            end = trial.target if trial.stopped or self.spec.stop is None else self.spec.steps  # it may be promoted
            for step in range(trial.step, min(end, trial.step + partitions)):
                _, partition = order.visit(trial.offset, step, partitions)
                ahead.add(PartitionRange("train", partition, partition + 1))
        return ahead

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
        if newly_idle:
            self._enqueue()
            for number in newly_idle:
                slot = self._slots[number]
                if not slot.busy and (assignment := self._longest_waiting(slot)) is not None:
                    yield assignment
        for trial in ready_trials if self.idle else ():
            if self.idle and self.is_ready(trial) and (nearest := self._nearest(trial)) is not None:
                yield self._train(nearest, trial)
        if not newly_idle:
            self._enqueue()  # what has found no slot
        newly_idle.clear()
        ready_trials.clear()
        if new_validations:
            for trial, epoch in new_validations:
                yield from self._validations_of(trial, epoch)
            new_validations.clear()
        while self._folds and (idle := self._first_of(self.idle, "fold")):
            yield self._fold(idle)

    def _validations_of(self, trial: TrialRecord, epoch: int) -> Iterator[Assignment]:
        """Yield assignments of an epoch's validation to idle slots."""
        given = True
        while given and self.idle:
            pending = self._unvalidated(trial, epoch)
            given = False
            for block in dict.fromkeys(self._places.block("validate", partition) for partition in pending):
                if (slot := self._idle_for("validate", block)) is not None:
                    yield self._validate(slot, trial, epoch, pending)
                    given = True
                    break

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
        epoch, rest = divmod(slot.step, self.spec.partitions)
        if epoch > 0 and not rest and not helped and (pending := self._unvalidated(trial, epoch - 1)):
            if self._places.active:
                pending = [n for n in pending if 0 <= self._rank(slot, "validate", n) < BEYOND]
            if pending:
                return self._validate(slot, trial, epoch - 1, pending)
        if not slot.trains or not self.is_ready(trial, slot.id):
            return None
        if self._places.active and not 0 <= self._rank(slot, "train", self._next(trial)) < BEYOND:
            return None
        if self._waiting.heaps:
            longest = self._longest(slot) if self._places.active else self._waiting.longest(EVERYWHERE)
            if policy.critical(longest, trial, self._share()):
                return None
        return self._train(slot, trial)

    def _enqueue(self) -> None:
        """Add all that can be given out to what waits."""
        ready, validations = self._ready_trials, self._new_validations
        if self._rebuild:
            self._rebuild = False
            self._waiting.clear()
            ready = list(self._trials.values())
            validations = [(trial, epoch) for trial in ready for epoch, each in trial.epochs.items() if each.pending]
        for trial in ready:
            if self.is_ready(trial):
                self._waiting.add(trial, self._places.block("train", self._next(trial)))
        for trial, epoch in validations:
            pending = self._unvalidated(trial, epoch)
            blocks = dict.fromkeys(self._places.block("validate", partition) for partition in pending)
            self._waiting.add_validation(trial.id, epoch, blocks)

    def _longest_waiting(self, slot: SlotRecord) -> Assignment | None:
        """Return what an idle slot takes of what waits: the oldest validation, else the longest trial. Gangs train
        first, where others can validate."""
        if self._rebuild:  # the assignment before this one has divided a block
            self._enqueue()
        trial = self._longest(slot) if slot.trains else None
        if trial is not None and self._helped(slot):
            return self._train(slot, trial)
        for tier in self._places.tiers(slot.home, "validate") if self._waiting.validations else ():
            if (entry := self._waiting.oldest(tier, self._waits)) is not None:
                number, epoch = entry
                return self._validate(slot, self._trials[number], epoch, self._unvalidated(self._trials[number], epoch))
        return None if trial is None else self._train(slot, trial)

    def _waits(self, number: int, epoch: int, block: int) -> bool:
        """Return whether a validation partition of this block can be given out."""
        pending = self._unvalidated(self._trials[number], epoch)
        return any(self._places.block("validate", partition) == block for partition in pending)

    def _longest(self, slot: SlotRecord) -> TrialRecord | None:
        """Return the waiting trial with the longest remaining time, of those that are for this slot's host first."""
        if not self._places.active:
            return self._waiting.longest(EVERYWHERE)
        if self._waiting.heaps:
            for tier in self._places.tiers(slot.home, "train"):
                if tier and (trial := self._waiting.longest(tier)) is not None:
                    return trial
        return None

    def _rank(self, slot: SlotRecord, kind: RowKind, partition: int) -> int:
        return self._places.rank(slot.home, kind, self._places.block(kind, partition))

    def _next(self, trial: TrialRecord) -> int:
        """Return the partition that the trial trains on next."""
        return (trial.offset + trial.step) % self.spec.partitions  # `order.visit`; this is asked after each event

    def _nearest(self, trial: TrialRecord) -> SlotRecord | None:
        """Return the idle slot for a trial that can train: the one that has it in memory, else the first that works on
        its next partition; None: there is none."""
        block = self._places.block("train", self._next(trial))
        state = trial.states.get(trial.step)
        if state is not None and state.maker in self.idle:
            maker = self._slots[state.maker]
            if maker.trains and maker.trial == trial.id and 0 <= self._places.rank(maker.home, "train", block) < BEYOND:
                return maker
        return self._idle_for("train", block)

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
        partitions = policy.span(trial, self.spec, self._share())
        if self._places.active and len(partitions) > 1:
            partitions = partitions[: self._places.run_length(slot.home, partitions[0], len(partitions))]
        return Assignment(slot, trial, "train", trial.step // self.spec.partitions, partitions)

    def _validate(self, slot: SlotRecord, trial: TrialRecord, epoch: int, pending: list[int]) -> Assignment:
        pending = self._places.together(slot.home, "validate", pending)
        partitions = policy.portion(pending, trial.check_seconds or trial.seconds, self.spec)
        return Assignment(slot, trial, "validate", epoch, partitions)

    def _fold(self, slot: SlotRecord) -> Assignment:
        number, epoch = next(iter(self._folds))
        return Assignment(slot, self._trials[number], "fold", epoch, ())

    # ---------------------------------------------------------------- units that ran out of memory

    def _isolate(self) -> Iterator[Assignment]:
        """Yield the assignment of a unit that ran out of memory, one at a time, to a slot while others of its host
        rest."""
        slots, trials, resting = self._slots, self._trials, set[int]()
        for number in [n for n in self.isolated if not trials[n].isolated or trials[n].ended]:
            del self.isolated[number]
        candidates = [trials[number] for number in self.isolated if not trials[number].until]
        for trial in sorted(candidates, key=self._in_refuge, reverse=True):  # one that runs already comes first
            if self._in_refuge(trial):
                resting = policy.neighbours(slots[trial.refuge], slots)
                break
            unit = self._isolated_unit(trial)
            able = [slot for slot in slots.values() if slot.trains or trial.isolated != "train"]
            slot = policy.slot_for_retry(able, bool(trial.fresh))
            if unit is not None and slot is not None:
                resting = policy.neighbours(slot, slots)
                if slot.busy or any(slots[number].busy for number in resting):
                    resting.add(slot.id)
                else:
                    yield Assignment(slot, trial, *unit)
                break
        self.resting = self._hold(resting, self.resting)

    def _in_refuge(self, trial: TrialRecord) -> bool:
        """Return True while the isolated unit of a trial that ran out of memory is running."""
        slot = self._slots.get(trial.refuge)
        return slot is not None and bool(slot.busy) and slot.busy in (trial.lease, *trial.validation_leases)

    def _isolated_unit(self, trial: TrialRecord) -> tuple[Kind, int, tuple[int, ...]] | None:
        """Return the unit of the trial that runs while other slots rest."""
        if trial.isolated == "train":
            state = trial.states.get(trial.step)
            if trial.lease or trial.step >= trial.target or (state is not None and state.parked):
                return None
            epoch, partition = order.visit(trial.offset, trial.step, self.spec.partitions)
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
