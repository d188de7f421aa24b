"""What is asked of a program, the facts of its life, and the commands that follow from them; their codec.

As `events.py` for runs: a fact happened, at a time, and a program's journal is the list of them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from hopyard.core.cluster import CHIEFS, SERVING, Place, Role, Task, roles_of, shares
from hopyard.core.events import UNREADABLE, Fact, Lost, Tick, reworded
from hopyard.errors import JournalError, SpecError

Until = Literal["chief", "workers", "all"]
Status = Literal["done", "failed", "stopped"]


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    roles: dict[str, tuple[int, int, int]]
    """Role → (count, least, GPUs of each), in the order of tasks."""
    until: Until
    restarts: int = 0
    restart: Literal["program", "task"] = "program"
    """What is restarted when a task fails. A slot that is lost takes its address along: then always the program."""
    grace: float = 5.0
    """Seconds that tasks have to end by themselves when the program is over."""
    patience: float = 120.0
    """Seconds until there must be a slot for each task, and until each task must have begun."""
    name: str = "main"
    script: bool = False
    """Whether `main` is a script: then a process that ends with code 0 ended well wherever it stood."""

    @property
    def wanted(self) -> dict[str, Role]:
        """The roles."""
        return {name: Role(count, least, gpus) for name, (count, least, gpus) in self.roles.items()}

    @property
    def slots(self) -> int:
        """How many processes."""
        return sum(count for count, _, _ in self.roles.values())

    @property
    def least(self) -> int:
        """With how many it may go on."""
        return sum(least for _, least, _ in self.roles.values())


def spec_of(roles: object, until: str | None, **more: object) -> ProgramSpec:
    """The spec, with every value checked.

    Raises:
        SpecError: names the argument, the value, what is allowed.
    """
    wanted = roles_of(roles)
    led = any(name in wanted for name in CHIEFS)
    chosen = until if until is not None else "chief" if led else "workers"
    if chosen not in ("chief", "workers", "all"):
        raise SpecError(f'until = {until!r}: "chief", "workers" or "all" is needed')
    if chosen == "chief" and not led:
        raise SpecError('until = "chief": roles have no chief; give roles={"chief": 1, …}, or until="workers"')
    if chosen == "workers" and set(wanted) <= set(SERVING):
        raise SpecError('until = "workers": roles have none, so the program would never end; give until="all"')
    plain = {name: (role.count, role.least or role.count, role.gpus) for name, role in wanted.items()}
    try:
        return msgspec.convert({"roles": plain, "until": chosen, **more}, ProgramSpec)
    except msgspec.ValidationError as error:
        raise SpecError(f"hy.launch: {error}") from None


def fitted(spec: ProgramSpec, slots: int) -> ProgramSpec:
    """The spec for an engine with so many slots: elastic roles are cut to them."""
    counts = shares(spec.wanted, slots)
    roles = {name: (counts[name], least, gpus) for name, (_, least, gpus) in spec.roles.items()}
    return msgspec.structs.replace(spec, roles=roles)


# ---------------------------------------------------------------------------------------------------- facts


class Launched(Fact, frozen=True):
    """A program began. Always the first line."""

    spec: ProgramSpec
    about: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class Reserved(Fact, frozen=True):
    """An agent is there, and has reserved ports."""

    place: Place

    @property
    def slot(self) -> int:
        """Whose."""
        return self.place.slot


class Assigned(Fact, frozen=True):
    """Decision: these tasks run, each in its slot."""

    restart: int
    tasks: tuple[Task, ...]


class Running(Fact, frozen=True):
    """A task's `main` begins."""

    slot: int
    life: int


class Reported(Fact, frozen=True):
    """A task told of its metrics."""

    slot: int
    life: int
    values: dict[str, float]
    step: int | None = None


class Ended(Fact, frozen=True):
    """A task's process ended, or its `main` did."""

    slot: int
    life: int
    code: int = 0
    """Its exit code; negative: the signal that killed it."""
    returned: bool = False
    """Whether `main` came to its end, or a script called sys.exit."""
    error: str = ""
    trace: str = ""
    halted: bool = False
    """Whether it was told to end."""
    story: str = ""
    """How its process ended: "process 12 on a was killed by SIGKILL"."""


class Stop(Fact, frozen=True):
    """The user, or the engine, ends the program."""

    reason: str
    failed: bool = False


class Over(Fact, frozen=True):
    """The program is over."""

    status: Status
    cause: str = ""
    slot: int = -1
    """Of the task that failed first."""


# ---------------------------------------------------------------------------------------------------- commands


class Begin(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Command: the agent of this slot runs this task."""

    task: Task
    life: int
    restart: int
    environment: dict[str, str]
    peers: dict[str, list[str]]


class Halt(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Command: end the task of this slot."""

    slot: int
    life: int


class Warned(msgspec.Struct, frozen=True):
    """Command: tell the task of this slot that it will be ended soon."""

    slot: int
    life: int


class Renew(msgspec.Struct, frozen=True):
    """Command: this slot needs an agent."""

    slot: int


class Finish(msgspec.Struct, frozen=True):
    """Command: nothing runs any more."""

    status: Status


ProgramEvent = Launched | Reserved | Running | Reported | Ended | Lost | Tick | Stop
ProgramLine = ProgramEvent | Assigned | Over
ProgramCommand = Assigned | Over | Begin | Halt | Warned | Renew | Finish

_decoder: msgspec.json.Decoder[ProgramLine] = msgspec.json.Decoder(ProgramLine)


def decode(text: bytes) -> ProgramLine:
    """The fact that a line of a program's journal holds.

    Raises:
        JournalError: no fact of this version.
    """
    try:
        return _decoder.decode(text)
    except UNREADABLE as strict:
        try:  # a metric that is not finite stands as a word
            found = msgspec.json.decode(text)
            if found["type"] == "Reported":
                found["values"] = reworded(found["values"])
            line: ProgramLine = msgspec.convert(found, ProgramLine)
        except (*UNREADABLE, KeyError, TypeError):
            raise JournalError(f"no fact of a program: {strict}: {text[:120]!r}") from strict
        return line
