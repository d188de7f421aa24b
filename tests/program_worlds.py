"""Programs whose agents, tasks and users do what a seed says: the journals that a driver would have written."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from hopyard.core.facts import Fact, Lost, Tick
from hopyard.core.programs.events import (
    Begin,
    Ended,
    GiveBack,
    Halt,
    Launched,
    ProgramLine,
    Renew,
    Reported,
    Reserved,
    Running,
    Stop,
    Waiting,
    spec_of,
)
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.placement import Place

ROLES: list[tuple[dict[str, Any], str | None]] = [
    ({"worker": 2}, None),
    ({"worker": 3, "ps": 1}, "chief"),
    ({"chief": 1, "worker": 2, "ps": 2, "evaluator": 1}, None),
    ({"worker": (2, 4)}, None),
    ({"worker": 2, "ps": 1}, "all"),
    ({"worker": 2, "ps": 1}, "worker:1"),
]


class World:
    """One program, from its launch to its end.

    Args:
        seed: says all.
        shared: others want the places of its agents too, but for that of the last slot.

    Attributes:
        machine: of the program.
        lines: its journal so far.
        now: the time.
    """

    def __init__(self, seed: int, shared: bool = False) -> None:
        self._draw = draw = random.Random(seed)
        roles, until = draw.choice(ROLES)
        spec = spec_of(
            roles,
            until,
            max_restarts=draw.choice([0, 1, 3, 6]),
            restart_scope=draw.choice(["program", "task"]),
            max_time=draw.choice([None, None, 30.0, 90.0]),
            start_timeout=draw.choice([5.0, 120.0]),
            grace=draw.choice([0.0, 3.0]),
            run_id=f"{seed:016x}",
        )
        if shared:
            spec = msgspec.structs.replace(spec, shared_slots=spec.slots - 1)
        self.now = 1_000_000.0 + seed
        self._trouble = draw.choice([0.0, 0.02, 0.1])
        self._brisk = draw.choice([0.7, 0.3, 0.05])
        self.machine = ProgramMachine(spec)
        self.lines: list[ProgramLine] = []
        self._agents: dict[int, bool] = {}
        """Slot → whether its agent has reserved."""
        self._at_work: dict[int, tuple[int, bool]] = {}
        """Slot → (life, whether its main has begun)."""
        self._hang: set[int] = set()
        """Lives whose main never begins."""

    def run(self) -> Iterator[None]:
        """Step by step."""
        self._tell(Launched(at=0.0, spec=self.machine.spec, about={"engine": "world"}))
        yield
        while self.machine.phase != "over":
            self.now += self._draw.choice([0.01, 0.1, 0.3, 1.0, 3.0])
            self._tell(self._event())
            yield

    def _event(self) -> Any:
        draw, serving = self._draw, ("ps", "evaluator")
        coming = [slot for slot, there in self._agents.items() if not there]
        starting = [
            slot for slot, (incarnation, begun) in self._at_work.items() if not begun and incarnation not in self._hang
        ]
        working = [slot for slot, (_, begun) in self._at_work.items() if begun]
        spec, reservation = self.machine.spec, self.machine.reservation
        if spec.shared_slots and reservation.asks_at is None and draw.random() < 0.2:
            waiting = draw.randint(0, sum(slot < spec.shared_slots for slot in coming))
            if self.machine.phase == "reserving" and waiting != reservation.waiting:
                return Waiting(at=0.0, slots=waiting)
        if draw.random() < self._trouble / 4:
            return Stop(at=0.0, reason="stopped by the user", failed=draw.random() < 0.3)
        if self._agents and draw.random() < self._trouble:
            slot = draw.choice(list(self._agents))
            del self._agents[slot]
            self._at_work.pop(slot, None)
            return Lost(at=0.0, slot=slot, reason="said nothing for 16 seconds")
        if coming and draw.random() < self._brisk:
            slot = draw.choice(coming)
            self._agents[slot] = True
            return Reserved(at=0.0, place=Place(slot, f"host-{slot // 2}", 100 + slot, "10.0.0.1", (slot, 50, 70)))
        if starting and draw.random() < 0.7:
            slot = draw.choice(starting)
            self._at_work[slot] = self._at_work[slot][0], True
            return Running(at=0.0, slot=slot, incarnation=self._at_work[slot][0])
        if working and draw.random() < 0.3:
            slot = draw.choice(working)
            incarnation = self._at_work[slot][0]
            if draw.random() < 0.6:
                values = {"loss": draw.choice([0.5, 0.25, float("nan")])}
                return Reported(at=0.0, slot=slot, incarnation=incarnation, values=values, step=draw.choice([None, 7]))
            if draw.random() < 0.2 + self._trouble:
                del self._at_work[slot]
                return Ended(
                    at=0.0, slot=slot, incarnation=incarnation, code=-9, story="process 9 was killed by SIGKILL"
                )
            if self.machine.tasks[slot].task.role not in serving or draw.random() < 0.05:
                del self._at_work[slot]
                return Ended(at=0.0, slot=slot, incarnation=incarnation, returned=True)
        return Tick(at=0.0)

    def _tell(self, fact: Any) -> None:
        fact = msgspec.structs.replace(fact, at=self.now)
        if not isinstance(fact, Tick):
            self.lines.append(fact)
        halts = []
        for command in self.machine.handle(fact):
            if isinstance(command, Fact):
                self.lines.append(command)
            if isinstance(command, Renew):
                self._agents[command.slot] = False
                self._at_work.pop(command.slot, None)
            if isinstance(command, GiveBack):
                for slot in command.slots:
                    self._agents.pop(slot, None)
            if isinstance(command, Begin):
                assert command.task.slot not in self._at_work, "two tasks in one slot"
                self._at_work[command.task.slot] = command.incarnation, False
                if self._draw.random() < self._trouble:
                    self._hang.add(command.incarnation)
            if isinstance(command, Halt) and self._draw.random() > self._trouble:
                halts.append(command)
        for halt in halts:
            if self._at_work.get(halt.slot, (-1,))[0] == halt.incarnation:
                del self._at_work[halt.slot]
                self._tell(Ended(at=0.0, slot=halt.slot, incarnation=halt.incarnation, code=-15, halted=True))
