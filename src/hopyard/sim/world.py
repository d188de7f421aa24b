"""A world for the machine: slots that take time, and a clock that jumps from event to event.

Nothing here decides anything; it answers the machine's commands as agents would, so that schedules of 10,000 slots can
be looked at on a laptop. Equal seeds give equal traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hopyard.core.runs.events import (
    DECISIONS,
    RULES,
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Event,
    Finish,
    Finished,
    Joined,
    Line,
)
from hopyard.core.runs.machine import Machine
from hopyard.search.listed import Listed
from hopyard.search.proposer import Proposer
from hopyard.spec import PackedSums, Part, Ref, RunSpec, Unit

Seconds = Callable[[Unit, int], float]
"""(unit, partition) → seconds that it takes."""

Sums = Callable[[Unit, int], PackedSums]
"""(unit, partition) → the sums of its metrics."""

_SUMS: PackedSums = {"loss": (1.0, 1.0)}


def lengths(trials: int, sigma: float, noise: float, seed: int, check: float = 0.3) -> Seconds:
    """Return the times of trials whose partitions take lognormal(0, `sigma`) seconds on average, each unit with normal
    noise of relative width `noise`; a validation partition takes `check` of a training one."""
    stream = random.Random(seed)  # noqa: S311
    mean = [stream.lognormvariate(0, sigma) if sigma else 1.0 for _ in range(trials)]
    cache: dict[tuple[int, str, int, int], float] = {}

    def seconds(unit: Unit, partition: int) -> float:
        key = unit.trial, unit.kind, unit.epoch, partition
        if key not in cache:
            generator = random.Random(f"{seed}/{key}")  # noqa: S311
            scale = 1.0 if unit.kind == "train" else check
            cache[key] = scale * mean[unit.trial] * max(0.2, 1 + generator.gauss(0, noise))
        return cache[key]

    return seconds


@dataclass
class World:
    """Slots and a clock.

    Args:
        spec: the run's; its `trials` are proposed at the start.
        slots: number of slots.
        seconds: how long a partition of a unit takes.
        keep: whether to keep the journal.
        sums: the sums of metrics that a partition of a unit gives.
    """

    spec: RunSpec
    slots: int
    seconds: Seconds
    keep: bool = False
    sums: Sums = lambda unit, partition: _SUMS
    clock: float = 0.0
    journal: list[Line] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    """Slot → seconds of work it did."""
    units: int = 0

    def __post_init__(self) -> None:
        self.machine = Machine(self.spec)
        self._proposer = Proposer(self.machine, Listed([{}] * (self.spec.trials or 0)), self.slots)
        self._queue: list[tuple[float, int, Event]] = []
        self._count = 0

    def run(self) -> float:
        """Run to the end. Returns the makespan: seconds from when the slots are there to the last result."""
        self.feed(Began(at=0.0, spec=self.spec, rules=RULES))
        self._propose()
        for slot in range(self.slots):
            self.feed(Joined(at=0.0, slot=slot, host="sim", pid=slot))
        while self._queue:
            self.clock, _, event = heappop(self._queue)
            self.feed(event)
            self._propose()
        return self.clock

    def _propose(self) -> None:
        """Let the search propose what it would propose now."""
        while not self.machine.ended and (events := self._proposer.events(self.clock)):
            for event in events:
                self.feed(event)

    def feed(self, event: Event) -> None:
        """Handle one event, and answer the commands that follow from it."""
        if self.keep:
            self.journal.append(event)
        for command in self.machine.handle(event):
            if self.keep and isinstance(command, DECISIONS):
                self.journal.append(command)
            if isinstance(command, Dispatch):
                self._work(command.slot, command.unit)
            elif isinstance(command, Check):
                checked = Checked(at=self.clock, slot=command.slot, trial=command.trial, faults=(), names=("loss",))
                self.later(0.0, checked)
            elif isinstance(command, Finish) and self.machine.status == "running":
                self.feed(Finished(at=self.clock, status=command.status))

    def later(self, seconds: float, event: Event) -> None:
        """Let an event happen `seconds` from now; its `at` must be that time."""
        self._count += 1
        heappush(self._queue, (self.clock + seconds, self._count, event))

    def _work(self, slot: int, unit: Unit) -> None:
        parts = tuple([Part(p, self.sums(unit, p), self.seconds(unit, p)) for p in unit.partitions])
        seconds = sum([part.seconds for part in parts])
        at = self.clock + seconds
        self.busy[slot] = self.busy.get(slot, 0.0) + seconds
        self.units += len(parts)
        self.later(seconds, Done(at=at, slot=slot, lease=unit.lease, parts=parts, seconds=seconds))
        if unit.kind == "train":
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            self.later(seconds, Durable(at=at, slot=slot, ref=ref, digest=f"{ref.trial}/{ref.step}", bytes=1))
