"""What the tests of the machine share: one that is told what happens, and whose journal must fold to the same state."""

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import (
    DECISIONS,
    Began,
    Checked,
    Deferred,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Joined,
    Proposed,
    Replace,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.core.runs.order import visit
from hopyard.spec import Part, Ref, RunSpec, Unit, packed
from snapshots import snapshot


class Run:
    """A machine, the lines that it saw, and words for what happens to it."""

    def __init__(self, trials=1, slots=1, checked=True, offsets=None, **spec):
        spec = {"epochs": 1, "partitions": 2, "validation": 0, "trials": trials, "group": 1} | spec
        self.machine = Machine(RunSpec(**spec))
        self.lines = []
        self.folds = True
        self.at = 0.0
        self.give(Began(at=0.0, spec=self.machine.spec))
        for trial in range(trials):
            self.give(Proposed(at=0.0, trial=trial, config={}, offset=-1 if offsets is None else offsets[trial]))
        self.give(Exhausted(at=0.0))
        self.first = []
        for slot in range(slots):
            self.first += self.join(slot)
        if checked:
            self.first += self.give(Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",)))

    def give(self, event):
        commands = self.machine.handle(event)
        self.lines.append(event)
        for command in commands:  # as driver/runs/loop.py does
            if isinstance(command, DECISIONS):
                self.lines.append(command)
            elif isinstance(command, Replace):
                self.lines.append(Lost(at=event.at, slot=command.slot, reason=command.reason, fault=command.fault))
        assert not self.folds or snapshot(fold(self.lines)) == snapshot(self.machine)
        return commands

    def join(self, slot):
        return self.give(Joined(at=self.at, slot=slot, host="h", pid=slot))

    def unit(self, slot):
        lease = self.machine.slots[slot].busy
        return self.machine.leases.standing()[lease][1]

    def done(self, slot, lease=None, sums=None, memory_key=None, **more):
        unit = self.unit(slot) if lease is None else None
        lease = unit.lease if unit else lease
        partitions = unit.partitions if unit else more.pop("partitions")
        parts = tuple(Part(p, packed(sums or {"loss": (1.0, 1.0)}), 1.0) for p in partitions)
        memory_key = f"m{lease}" if memory_key is None else memory_key
        return self.give(
            Done(at=self.at, slot=slot, lease=lease, parts=parts, seconds=1.0, memory_key=memory_key, **more)
        )

    def hop(self, slot, to):
        """The unit of `slot` is done, and `to` gets the next one of its trial: the scheduler would leave it there."""
        unit = self.unit(slot)
        parts = tuple(Part(p, packed({"loss": (1.0, 1.0)}), 1.0) for p in unit.partitions)
        step = unit.step + len(parts)
        epoch, partition = visit(self.machine.trials[unit.trial].offset, step, self.machine.spec.partitions)
        start, key = Ref(unit.trial, step, unit.lease), f"m{unit.lease}"
        following = Unit(self.machine.leases.last + 1, unit.trial, "train", epoch, (partition,), start, key)
        for line in (
            Done(at=self.at, slot=slot, lease=unit.lease, parts=parts, seconds=1.0, memory_key=key),
            Dispatch(at=self.at, slot=to, unit=following),
        ):
            self.machine.apply(line)
            self.machine.settle()
            self.lines.append(line)
        assert snapshot(fold(self.lines)) == snapshot(self.machine)

    def durable(self, slot, trial, step, attempt, digest="d"):
        return self.give(
            Durable(at=self.at, slot=slot, ref=Ref(trial, step, attempt), digest=f"{digest}{trial}/{step}", bytes=1)
        )

    def failed(self, slot, fault="system", **more):
        lease = self.unit(slot).lease
        return self.give(Failed(at=self.at, slot=slot, lease=lease, fault=fault, error="broke", **more))

    def missed(self, slot):
        """Nobody could hand the State of its unit over."""
        return self.failed(slot, "store", missing=self.unit(slot).start)

    def lost(self, slot, fault="system"):
        return self.give(Lost(at=self.at, slot=slot, reason="gone", fault=fault))

    def tick(self):
        """Until the next time at which something changes."""
        self.at = self.machine.earliest()
        return self.give(Tick(at=self.at))


def dispatched(commands):
    return [
        (c.slot, c.unit.trial, c.unit.kind, c.unit.epoch, c.unit.partitions) for c in commands if type(c) is Dispatch
    ]


def deferred(commands):
    return [(c.trial, c.until, c.fault) for c in commands if type(c) is Deferred]
