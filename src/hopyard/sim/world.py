"""A world for the machine: slots that take time, and a clock that jumps from event to event.

Nothing here decides anything; it answers the machine's commands as agents would, so that schedules of 10,000 slots can
be looked at on a laptop. Slots may be on hosts: a State takes time from one to another, and so do rows that a host does
not have; hosts join late, are lost and return. Equal seeds give equal traces.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import (
    DECISIONS,
    Began,
    Check,
    Checked,
    Command,
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


class Host(NamedTuple):
    """One host.

    Attributes:
        workers: its workers, each of which is a slot.
        joins: when they join.
        lost: when they are lost; None: never.
        returns: when as many join again, with the rows that the host had; None: never.
        pace: how long a partition takes there, over how long it takes elsewhere.
    """

    workers: int = 1
    joins: float = 0.0
    lost: float | None = None
    returns: float | None = None
    pace: float = 1.0


@dataclass
class World:
    """Slots and a clock.

    Args:
        spec: the run's; its `trials` are proposed at the start.
        slots: number of slots, where they are on one host.
        seconds: how long a partition of a unit takes.
        keep: whether to keep the journal.
        sums: the sums of metrics that a partition of a unit gives.
        hosts: the hosts of the slots; empty: they are all on one.
        hop: seconds that a State takes from one host to another.
        fetch: seconds that a host takes to fetch a partition that it does not have.
    """

    spec: RunSpec
    slots: int
    seconds: Seconds
    keep: bool = False
    sums: Sums = lambda unit, partition: _SUMS
    hosts: tuple[Host, ...] = ()
    hop: float = 0.0
    fetch: float = 0.0
    clock: float = 0.0
    journal: list[Line] = field(default_factory=list)
    busy: dict[int, float] = field(default_factory=dict)
    """Slot → seconds of work it did."""
    units: int = 0
    hops: int = 0
    """Training units whose State came from another host."""
    fetched: int = 0
    """Partitions that hosts fetched."""
    rows: dict[int, set[tuple[str, int]]] = field(default_factory=dict)
    """Host → (kind, partition) that it has."""

    def __post_init__(self) -> None:
        self.slots = sum(host.workers for host in self.hosts) or self.slots
        self.machine = Machine(self.spec)
        self._host_of: dict[int, int] = {}
        """Slot → its host."""
        self._made: dict[Ref, int] = {}
        """State → the host that has it."""
        self._ticks: set[float] = set()
        self._proposer = Proposer(self.machine, Listed([{}] * (self.spec.trials or 0)), self.slots)
        self._queue: list[tuple[float, int, Event]] = []
        self._count = 0

    def run(self) -> float:
        """Run to the end. Returns the makespan: seconds from when the slots are there to the last result."""
        workers = self.slots if self.hosts else 0
        self.feed(Began(at=0.0, spec=self.spec, workers=workers))
        self._propose()
        first = 0
        for number, host in enumerate(self.hosts or (Host(self.slots),)):
            for slot in range(first, first + host.workers):
                self._join(number, slot, host.joins)
                if host.lost is not None:
                    self.later(host.lost, Lost(at=host.lost, slot=slot, reason="its host is gone"))
                if host.returns is not None:
                    self._join(number, self.slots + slot, host.returns)
            first += host.workers
        last = 0.0
        while self._queue and not self.machine.ended:
            self.clock, _, event = heappop(self._queue)
            if isinstance(event, Done):
                last = self.clock
            self.happen(event)
        return last

    def happen(self, event: Event) -> None:
        """Handle an event whose time has come, and let the machine have a `Tick` when it needs one next."""
        if isinstance(event, Tick) and not self.machine.due(self.clock):
            return
        self.feed(event)
        self._propose()
        if (time := self.machine.earliest()) is not None and time not in self._ticks:
            self._ticks.add(time)
            self.later(time - self.clock, Tick(at=time))

    def _join(self, host: int, slot: int, at: float) -> None:
        self._host_of[slot] = host
        joined = Joined(at=at, slot=slot, host=f"host{host}" if self.hosts else "sim", pid=slot)
        self.later(at, joined)

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
            self.obey(command)

    def obey(self, command: Command) -> None:
        """Answer a command, as agents and the driver would."""
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
        number = self._host_of[slot]
        pace = self.hosts[number].pace if self.hosts else 1.0
        parts = tuple([Part(p, self.sums(unit, p), pace * self.seconds(unit, p)) for p in unit.partitions])
        seconds = sum([part.seconds for part in parts])
        moved = 0.0
        if self.hosts:
            rows = self.rows.setdefault(number, set())
            missing = {(unit.kind, partition) for partition in unit.partitions} - rows
            rows |= missing
            self.fetched += len(missing)
            moved = self.fetch * len(missing)
            if unit.start is not None and self._made.get(unit.start, number) != number:
                moved += self.hop
                self.hops += unit.kind == "train"
        at = self.clock + seconds + moved
        self.busy[slot] = self.busy.get(slot, 0.0) + seconds
        self.units += len(parts)
        self.later(at - self.clock, Done(at=at, slot=slot, lease=unit.lease, parts=parts, seconds=seconds + moved))
        if unit.kind == "train":
            ref = Ref(unit.trial, unit.step + len(parts), unit.lease)
            self._made[ref] = number
            self.later(at - self.clock, Durable(at=at, slot=slot, ref=ref, digest=f"{ref.trial}/{ref.step}", bytes=1))
