"""A program whose machine is told one fact after the other."""

from __future__ import annotations

from typing import Any

import msgspec

from hopyard.core.facts import Fact, Tick
from hopyard.core.programs.events import (
    Begin,
    Ended,
    Halt,
    Launched,
    ProgramLine,
    Reserved,
    Running,
    decode,
    encode,
    spec_of,
)
from hopyard.core.programs.machine import ProgramMachine
from hopyard.core.programs.placement import Place
from snapshots import program_fold, program_snapshot


def place(slot: int, host: str = "a", gpus: tuple[str, ...] = ()) -> Place:
    return Place(slot, host, 100 + slot, f"10.0.0.{host}", (1000 + slot, 2000 + slot, 3000 + slot), gpus)


class Play:
    """A machine, the clock that its facts carry, and the journal that a driver would have: it always folds to the
    machine's own state. `said` is what the machine commands but its decisions, which are in `decided`."""

    def __init__(self, roles: Any, until: str | None = None, **more: Any) -> None:
        self.now = 0.0
        self.machine = ProgramMachine(spec_of(roles, until, **more))
        self.lines: list[ProgramLine] = []
        self.decided: list[Any] = []
        self.said: list[Any] = []
        self.tell(Launched(at=0.0, spec=self.machine.spec), 0.0)

    def tell(self, fact: Any, after: float = 0.01) -> list[Any]:
        self.now += after
        fact = msgspec.structs.replace(fact, at=self.now)
        if not isinstance(fact, Tick):
            self.lines.append(fact)
        commands = self.machine.handle(fact)
        self.decided = [command for command in commands if isinstance(command, Fact)]
        self.said = [command for command in commands if not isinstance(command, Fact)]
        self.lines += self.decided
        assert program_snapshot(program_fold(decode(encode(line)) for line in self.lines)) == program_snapshot(
            self.machine
        )
        return self.said

    def up(self, *slots: int) -> list[Any]:
        for slot in slots or range(self.machine.spec.slots):
            self.tell(Reserved(at=0, place=place(slot)))
        begun = [c for c in self.said if isinstance(c, Begin)]
        for command in begun:
            self.tell(Running(at=0, slot=command.task.slot, incarnation=command.incarnation))
        return begun

    def end(self, name: str, **how: Any) -> list[Any]:
        record = next(record for record in self.machine.tasks.values() if record.task.name == name)
        how = {"returned": True, **how}
        return self.tell(Ended(at=0, slot=record.task.slot, incarnation=record.incarnation, **how))

    def halted(self) -> list[Any]:
        said = []
        for halt in [c for c in self.said if isinstance(c, Halt)]:
            said += self.tell(Ended(at=0, slot=halt.slot, incarnation=halt.incarnation, code=-15, halted=True))
        return said

    def kinds(self) -> list[str]:
        return [type(command).__name__ for command in self.said]
