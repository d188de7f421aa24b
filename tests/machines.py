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
from hopyard.spec import Part, Ref, RunSpec, packed


class Run:
    """A machine, the lines that it saw, and words for what happens to it."""

    def __init__(self, trials=1, slots=1, holds=None, checked=True, **spec):
        spec = {"epochs": 1, "partitions": 2, "validation": 0, "trials": trials, "group": 1} | spec
        self.machine = Machine(RunSpec(**spec))
        self.lines = []
        self.at = 0.0
        self.give(Began(at=0.0, spec=self.machine.spec))
        for trial in range(trials):
            self.give(Proposed(at=0.0, trial=trial, config={}))
        self.give(Exhausted(at=0.0))
        self.first = []
        for slot in range(slots):
            self.first += self.join(slot, holds(slot) if holds else None)
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
        assert fold(self.lines).snapshot() == self.machine.snapshot()
        return commands

    def join(self, slot, holds=None):
        return self.give(Joined(at=self.at, slot=slot, host="h", pid=slot, holds=holds))

    def unit(self, slot):
        lease = self.machine.slots[slot].busy
        return self.machine.leases.standing()[lease][1]

    def done(self, slot, lease=None, sums=None, where=None, **more):
        unit = self.unit(slot) if lease is None else None
        lease = unit.lease if unit else lease
        partitions = unit.partitions if unit else more.pop("partitions")
        parts = tuple(Part(p, packed(sums or {"loss": (1.0, 1.0)}), 1.0) for p in partitions)
        where = f"m{lease}" if where is None else where
        return self.give(Done(at=self.at, slot=slot, lease=lease, parts=parts, seconds=1.0, where=where, **more))

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
