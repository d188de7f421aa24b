"""The board: what waits, which slots are idle, and how they find each other. The choices themselves are `policy`'s.

Slots that hold the same partitions share a Pool. A trial that can train waits in the heap of every pool that holds
its next partition, longest remaining time first; validations wait in the pool's queue. Entries are never searched for
or removed in the middle; those that went stale are dropped when they come up. Each choice costs O(log n).

What an event stirs up is only noted (`rest`, `offer`, `open`); `match` brings it together when the event is over. A
fold of a journal never matches: the decisions are in the journal themselves, and `settle` forgets the notes.
"""

from __future__ import annotations

from collections.abc import Callable

from hopyard.core.runs import memory as alone
from hopyard.core.runs import policy
from hopyard.core.runs.records import Pool, SlotBook, TrialBook
from hopyard.spec import Kind, RunSpec

SMOOTH = 0.5
"""Weight of the newest measurement in a trial's seconds per partition, of training and of validation."""

Give = Callable[[SlotBook, TrialBook, Kind, int, tuple[int, ...]], None]
"""(slot, trial, kind, epoch, partitions): this slot gets this unit."""


class Board:
    """Pools, queues and estimates of one run. Owner: `Machine`.

    Args:
        spec: of the run.
        trials: the machine's, by number.
        slots: the machine's, by number.
        give: carries out a choice.

    Attributes:
        folds: (trial, epoch) whose arrays wait to be turned into values.
        alone: trials that ran out of memory, whose next unit runs while other slots rest.
        resting: those slots.
    """

    def __init__(self, spec: RunSpec, trials: dict[int, TrialBook], slots: dict[int, SlotBook], give: Give) -> None:
        self.spec = spec
        self._give = give
        self._steps = spec.steps
        self.folds: dict[tuple[int, int], None] = {}
        self.alone: dict[int, None] = {}
        self.resting: set[int] = set()
        self._trials = trials
        self._slots = slots
        self._left = 0.0
        """Seconds of training left in all trials, by the newest estimates."""
        self._work = 0.0
        """Seconds of training done, in `_parts` partitions."""
        self._parts = 0
        self.clear()

    def clear(self) -> None:
        """All slots are gone, and nothing waits for them."""
        self._pools: dict[tuple[int, ...] | None, Pool] = {}
        self._serving: list[list[Pool]] = [[] for _ in range(self.spec.partitions)]
        """Partition → the pools that hold it."""
        self._new: list[Pool] = []
        self._wake: dict[int, None] = {}
        self._ready: list[TrialBook] = []
        self._opened: list[tuple[TrialBook, int]] = []
        self.resting.clear()

    # ---------------------------------------------------------------- what an event stirs up

    def join(self, slot: SlotBook) -> None:
        """A slot is there, and idle."""
        pool = self._pools.get(slot.holds)
        if pool is None:
            pool = self._pools[slot.holds] = Pool(slot.holds)
            self._new.append(pool)
            for partition in range(self.spec.partitions) if slot.holds is None else slot.holds:
                if partition < self.spec.partitions:
                    self._serving[partition].append(pool)
        pool.slots += 1
        slot.pool = pool
        self.rest(slot)

    def leave(self, slot: SlotBook) -> None:
        """A slot is gone; with the last of its pool goes the pool."""
        pool = slot.pool
        pool.idle.pop(slot.id, None)
        self._wake.pop(slot.id, None)
        self.resting.discard(slot.id)
        pool.slots -= 1
        if not pool.slots:
            del self._pools[slot.holds]
            for pools in self._serving:
                if pool in pools:
                    pools.remove(pool)
            if pool in self._new:
                self._new.remove(pool)

    def rest(self, slot: SlotBook) -> None:
        """The slot is idle."""
        slot.pool.idle[slot.id] = None
        self._wake[slot.id] = None

    def take(self, slot: SlotBook) -> None:
        """The slot is not idle any longer."""
        slot.pool.idle.pop(slot.id, None)

    def offer(self, trial: TrialBook) -> None:
        """The trial may be able to train."""
        self._ready.append(trial)

    def open(self, trial: TrialBook, epoch: int) -> None:
        """Validation partitions of this epoch are to be given out."""
        self._opened.append((trial, epoch))

    def settle(self) -> None:
        """Forget what was stirred up."""
        self._new.clear()
        self._wake.clear()
        self._ready.clear()
        self._opened.clear()

    # ---------------------------------------------------------------- how long things take

    def learn(self, trial: TrialBook, seconds: float, count: int) -> None:
        """The trial went over `count` partitions in so many seconds; its step has moved on already."""
        each = seconds / count
        trial.seconds += (each - trial.seconds) * (SMOOTH if trial.seconds else 1.0)
        self._work += seconds
        self._parts += count
        left = (self._steps - trial.step) * trial.seconds
        self._left += left - trial.remaining
        trial.remaining = left

    def expect(self, trial: TrialBook, steps: int) -> None:
        """The trial has so many partitions left to train; an unknown trial is like the mean of the others."""
        each = trial.seconds or (self._work / self._parts if self._parts else 1.0)
        self._left += steps * each - trial.remaining
        trial.remaining = steps * each

    def _share(self) -> float:
        return self._left / len(self._slots)

    # ---------------------------------------------------------------- matching

    def match(self) -> None:
        """Bring idle slots and waiting work together, as far as the last event made a new pair possible."""
        if self.alone or self.resting:
            self._isolate()
        wake, ready = self._wake, self._ready
        for number in wake:
            self._go_on(self._slots[number])
        if self._new or ready or self._opened:
            self._queue()
        if wake:
            for number in wake:
                self._pick(self._slots[number])
            wake.clear()
        if ready:
            for trial in ready:
                self._place(trial)
            ready.clear()
        if self._opened:
            for trial, epoch in self._opened:
                self._spread(trial, epoch)
            self._opened.clear()
        while self.folds and (idle := self._idle()) is not None:
            self._fold(self._slots[idle])

    def _go_on(self, slot: SlotBook) -> None:
        """A fold first; else the slot goes on with what it has in memory."""
        if slot.busy:
            return
        if self.folds:
            self._fold(slot)
            return
        trial = self._trials.get(slot.trial)
        if trial is None or trial.ended:
            return
        pool = slot.pool
        partitions = self.spec.partitions
        if slot.step > 0 and slot.step % partitions == 0:
            epoch = slot.step // partitions - 1
            if left := pool.leftover(trial, epoch):
                self._validate(slot, trial, epoch, left)
                return
        if (
            self._trains(trial, slot.id)
            and (pool.holds is None or (trial.id + trial.step) % partitions in pool.holds)
            and not (pool.heap and policy.critical(pool.longest(self._trials), trial, self._share()))
        ):
            self._train(slot, trial, pool)

    def _queue(self) -> None:
        """What can be given out enters the queues of the pools that can take it."""
        for pool in self._new:
            for trial in self._trials.values():
                if self._trains(trial) and pool.serves(self._next(trial)):
                    pool.offer(trial)
                pool.checks.extend([(trial.id, epoch) for epoch, book in trial.epochs.items() if book.left])
        self._new.clear()
        for trial in self._ready:
            if self._trains(trial):
                for pool in self._serving[self._next(trial)]:
                    pool.offer(trial)
        for trial, epoch in self._opened:
            for pool in self._pools.values():
                pool.checks.append((trial.id, epoch))

    def _pick(self, slot: SlotBook) -> None:
        """The slot, if it is still idle, takes what waits in its pool."""
        if slot.busy:
            return
        pool = slot.pool
        if pool.checks and (found := pool.check(self._trials)) is not None:
            self._validate(slot, found[0], found[1], pool.leftover(*found))
        elif pool.heap and (trial := pool.longest(self._trials)) is not None:
            self._train(slot, trial, pool)

    def _place(self, trial: TrialBook) -> None:
        """Find an idle slot for a trial that can train: the one that has it in memory, else the first."""
        if not self._trains(trial):
            return
        pools = [pool for pool in self._serving[self._next(trial)] if pool.idle]
        if not pools:
            return
        state = trial.states.get(trial.step)
        maker = self._slots.get(state.maker) if state is not None else None
        if maker is not None and not maker.busy and maker.trial == trial.id and maker.pool in pools:
            slot = maker
        else:
            slot = self._slots[next(iter(pools[0].idle))]
        self._train(slot, trial, slot.pool)

    def _spread(self, trial: TrialBook, epoch: int) -> None:
        """Find idle slots for a validation."""
        for pool in self._pools.values():
            while pool.idle and (left := pool.leftover(trial, epoch)):
                self._validate(self._slots[next(iter(pool.idle))], trial, epoch, left)

    def _idle(self) -> int | None:
        return next((number for pool in self._pools.values() for number in pool.idle), None)

    def _trains(self, trial: TrialBook, slot: int = -1) -> bool:
        """Whether its next training unit may be given out; `slot`: to this one, which has the State in memory."""
        if trial.lease or trial.step >= self._steps or trial.ended or trial.until or trial.alone == "train":
            return False
        state = trial.states.get(trial.step)
        return state is None or not state.parked or state.maker == slot

    def _next(self, trial: TrialBook) -> int:
        return (trial.id + trial.step) % self.spec.partitions

    def _train(self, slot: SlotBook, trial: TrialBook, pool: Pool) -> None:
        taken = policy.span(trial, pool.holds, self.spec, self._share())
        self._give(slot, trial, "train", trial.step // self.spec.partitions, taken)

    def _validate(self, slot: SlotBook, trial: TrialBook, epoch: int, left: list[int]) -> None:
        taken = policy.portion(left, trial.check_seconds or trial.seconds, self.spec)
        self._give(slot, trial, "validate", epoch, taken)

    def _isolate(self) -> None:
        """Units that ran out of memory, each on a slot of its own while those that share the memory rest."""
        slots, refuges, resting = self._slots, set[int](), set[int]()
        waiting = []
        for number in list(self.alone):
            trial = self._trials[number]
            if not trial.alone or trial.ended:
                del self.alone[number]
                continue
            slot = slots.get(trial.refuge)
            if slot is not None and slot.busy and (slot.busy == trial.lease or slot.busy in trial.aside):
                refuges.add(slot.id)
                resting |= alone.sharers(slot, slots, trial.on_device)
            elif not trial.until:
                waiting.append(trial)
        for trial in waiting:
            able = {
                number: slot
                for number, slot in slots.items()
                if number not in resting and self._next_alone(trial, slot)
            }
            slot = alone.choose(able, bool(trial.fresh))
            if slot is None:
                continue
            others = alone.sharers(slot, slots, trial.on_device)
            if slot.id in refuges or others & refuges:
                continue  # its turn comes
            refuges.add(slot.id)
            resting |= others
            if slot.busy or any(slots[number].busy for number in others):
                resting.add(slot.id)
                continue
            if (unit := self._next_alone(trial, slot)) is not None:
                self._give(slot, trial, *unit)
        for number in self.resting - resting:
            if number in slots and not slots[number].busy:
                self.rest(slots[number])
        for number in resting:
            slots[number].pool.idle.pop(number, None)
            self._wake.pop(number, None)
        self.resting = resting

    def _next_alone(self, trial: TrialBook, slot: SlotBook) -> tuple[Kind, int, tuple[int, ...]] | None:
        """The unit of the trial that runs alone, if this slot can take it."""
        pool = slot.pool
        if trial.alone == "train":
            state = trial.states.get(trial.step)
            if trial.lease or trial.step >= self._steps or (state is not None and state.parked):
                return None
            if not pool.serves(self._next(trial)):
                return None
            return "train", trial.step // self.spec.partitions, (self._next(trial),)
        for epoch, book in trial.epochs.items():
            if left := pool.validates(book):
                return "validate", epoch, (left[0],)
        return None

    def _fold(self, slot: SlotBook) -> None:
        number, epoch = next(iter(self.folds))
        self._give(slot, self._trials[number], "fold", epoch, ())
