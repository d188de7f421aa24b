"""The spec of a program, the facts of its life, the commands that follow from them, and their codec.

As `events.py` for runs: a fact happened, at a time, and a program's journal is the list of them. Decisions of the
machine that change its state are facts too, so that an old journal folds to the same state whatever later versions
would decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from hopyard.checks import scalar
from hopyard.core.facts import UNREADABLE, Codec, Fact, Lost, Tick, as_json, nonfinite_from_text
from hopyard.core.programs.placement import CHIEFS, SERVING, Place, Role, Task, roles_of, shares
from hopyard.errors import JournalError, SpecError
from hopyard.text import shown

FORMAT = 1
"""Number of the format of a program's journal. A higher number is for changes that an older Hopyard would misread."""
Status = Literal["completed", "failed", "stopped"]
Phase = Literal["reserving", "running", "failing", "restarting", "closing", "over"]
STARTING: tuple[Phase, ...] = ("failing", "restarting", "reserving")
"""Phases in which a program may come up, or come up again."""


class ProgramSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    roles: dict[str, tuple[int, int, int]]
    """Role → (count, least, GPUs of each), in the order of tasks."""
    until: str
    """Which tasks must end for the program to end: "chief", "workers", "all", or one task: "worker:0"."""
    max_restarts: int = 0
    """Times that tasks are started again after a failure."""
    restart_scope: Literal["program", "task"] = "program"
    """What is started again when a task fails. A slot that is lost takes its address along, and a parameter server the
    variables that it holds: then always the program."""
    max_time: float | None = None
    """Seconds from the launch, waiting and restarts included, after which the program is ended; None: any."""
    grace: float = 5.0
    """Seconds that tasks have to end by themselves when the program is over."""
    start_timeout: float = 120.0
    """Seconds until there must be a slot for each task, and until each task must have begun."""
    name: str = "main"
    script: bool = False
    """Whether `main` is a script: then a process that ends with code 0 ended well wherever it stood."""
    run_id: str = ""
    """Name of this program alone, equal for all tasks and restarts: what torchrun calls the id of the rendezvous."""
    shared_slots: int = 0
    """How many of its slots, the first ones, have places in a cluster that others want too."""

    def awaits(self, task: Task) -> bool:
        """Return whether this task must end for the program to end."""
        if self.until in ("all", "chief"):
            return self.until == "all" or task.role in CHIEFS
        return task.rank >= 0 if self.until == "workers" else f"{task.role}:{task.index}" == self.until

    @property
    def wanted(self) -> dict[str, Role]:
        """Name → role, in the order of tasks."""
        return {name: Role(count, least, gpus) for name, (count, least, gpus) in self.roles.items()}

    @property
    def slots(self) -> int:
        """How many processes it has."""
        return sum(count for count, _, _ in self.roles.values())

    @property
    def least(self) -> int:
        """With how many processes it may go on."""
        return sum(least for _, least, _ in self.roles.values())


def spec_of(roles: object, until: object, **fields: object) -> ProgramSpec:
    """Return the spec, with every value checked.

    Raises:
        SpecError: names the argument, the value, what is allowed.
    """
    parsed = roles_of(roles)
    plain = {name: (role.count, role.min or role.count, role.gpus) for name, role in parsed.items()}
    try:
        return msgspec.convert({"roles": plain, "until": _until(until, parsed), **fields}, ProgramSpec)
    except msgspec.ValidationError as error:
        raise SpecError(f"hy.launch: {error}") from None


def _until(until: object, roles: dict[str, Role]) -> str:
    """Return which tasks must end for the program to end. Without a chief, the task of rank 0 takes its part."""
    has_chief = any(name in roles for name in CHIEFS)
    target = "chief" if until is None and has_chief else "workers" if until is None else until
    target = scalar(target)
    if not isinstance(target, str):
        target = ""
    if target == "all" or (target == "chief" and has_chief):
        return target
    ranked = [name for name in roles if name not in SERVING]
    if target in ("chief", "workers"):
        if not ranked:
            raise SpecError(
                f'until = "{target}": roles have neither a chief nor a worker, so the program would never end; give '
                f'until="all", or the name of a task, such as "{next(iter(roles))}:0"'
            )
        return "workers" if target == "workers" else f"{ranked[0]}:0"
    role, colon, number = target.partition(":")
    if not colon or not number.isdecimal() or not number.isascii():
        raise SpecError(
            f'until must be "chief", "workers", "all" or the name of a task such as "{next(iter(roles))}:0", '
            f"got {shown(until)}"
        )
    if role not in roles:
        raise SpecError(f"until = {until!r}: roles have no {role!r}; there are {', '.join(map(repr, roles))}")
    least = roles[role].min or roles[role].count
    if int(number) >= least:
        elastic = f", as {role!r} may go on with {least}" if least < roles[role].count else ""
        raise SpecError(
            f'until = {until!r}: the number must be from 0 to {least - 1}{elastic}; give until="{role}:{least - 1}" '
            "or less"
        )
    return f"{role}:{int(number)}"


def fitted(spec: ProgramSpec, slots: int, *, own_slots: int | None = None) -> ProgramSpec:
    """Return the spec for an engine with so many slots: elastic roles are cut to them.

    Args:
        spec: what the user asked for.
        slots: how many the engine has.
        own_slots: how many slots, the last ones, have a place that nobody else wants; None: all.
    """
    counts = shares(spec.wanted, slots)
    roles = {name: (counts[name], least, gpus) for name, (_, least, gpus) in spec.roles.items()}
    shared = 0 if own_slots is None else sum(counts.values()) - own_slots
    return msgspec.structs.replace(spec, roles=roles, shared_slots=shared)


# ---------------------------------------------------------------------------------------------------- facts


class Launched(Fact, frozen=True):
    """A program began. Always the first line."""

    spec: ProgramSpec
    format: int = FORMAT
    about: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies it


class Reserved(Fact, frozen=True):
    """An agent has started, and has reserved ports."""

    place: Place

    @property
    def slot(self) -> int:
        """Slot of the agent."""
        return self.place.slot


class Waiting(Fact, frozen=True):
    """While slots are asked for: so many of them have no place in the cluster yet."""

    slots: int


class Yielded(Fact, frozen=True):
    """Decision: slots whose places others may want are given back, as they are too few."""

    turn: int
    """How many times they were given back before."""
    held: int
    """How many slots had a place."""
    seconds: float
    """After which time they are asked for again."""


class AskedAgain(Fact, frozen=True):
    """Decision: slots that were given back are asked for again."""


class Assigned(Fact, frozen=True):
    """Decision: these tasks run, each in its slot. Those whose incarnation is not new go on as they are."""

    restart: int
    """Times that tasks were started again, for whatever reason."""
    tasks: tuple[Task, ...]
    incarnations: tuple[int, ...]
    """For each task in turn, a number that no other start of a task has."""
    spent: int = 0
    """How many of the restarts came after failures: these count against `max_restarts`."""


class Restarting(Fact, frozen=True):
    """Decision: all tasks are ended, to begin again when the last of them has ended."""

    restart: int
    spent: int
    cause: str = ""
    """Which failure led to it; empty: there are more slots now."""
    slot: int = -1
    """Slot of the task that failed first; −1: none."""


class Overdue(Fact, frozen=True):
    """Decision: a task counts as failed, as its `main` has not begun in time."""

    slot: int
    incarnation: int
    cause: str


class Closing(Fact, frozen=True):
    """Decision: the program ends, this way. A second one says that the time to end by oneself is over."""

    status: Status
    halted: bool
    """Whether the tasks are ended now; else they may end by themselves."""
    cause: str = ""
    slot: int = -1
    """Slot of the task that failed first; −1: none."""
    no_slots: bool = False
    """Whether it failed for want of slots."""


class Running(Fact, frozen=True):
    """A task's `main` begins."""

    slot: int
    incarnation: int


class Reported(Fact, frozen=True):
    """A task reported metrics."""

    slot: int
    incarnation: int
    values: dict[str, float]
    step: int | None = None


class Ended(Fact, frozen=True):
    """A task's process ended, or its `main` did."""

    slot: int
    incarnation: int
    code: int = 0
    """Its exit code; negative: the signal that killed it."""
    returned: bool = False
    """Whether `main` came to its end, or a script called sys.exit."""
    error: str = ""
    trace: str = ""
    halted: bool = False
    """Whether it had been commanded to end (`Halt`)."""
    story: str = ""
    """How its process ended: "process 12 on a was killed by SIGKILL"."""


class Stop(Fact, frozen=True):
    """The user, or the engine, ends the program."""

    reason: str
    failed: bool = False
    grace: float = 0.0
    """Seconds that the tasks of a program that runs have to end by themselves before."""


class Over(Fact, frozen=True):
    """Decision: the program is over, nothing of it runs any more."""

    status: Status
    cause: str = ""
    slot: int = -1
    """Slot of the task that failed first; −1: none."""


# ---------------------------------------------------------------------------------------------------- commands


class Begin(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Command: the agent of this slot runs this task."""

    task: Task
    incarnation: int
    restart: int
    environment: dict[str, str]
    peers: dict[str, list[str]]


class Halt(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """Command: end the task of this slot."""

    slot: int
    incarnation: int


class RequestStop(msgspec.Struct, frozen=True):
    """Command: tell the task of this slot that it will be ended soon."""

    slot: int
    incarnation: int


class Renew(msgspec.Struct, frozen=True):
    """Command: this slot needs an agent."""

    slot: int


class GiveBack(msgspec.Struct, frozen=True):
    """Command: end the agents of these slots, and leave their places to others."""

    slots: range


class Finish(msgspec.Struct, frozen=True):
    """Command: nothing runs any more."""

    status: Status


Happened = Launched | Reserved | Waiting | Running | Reported | Ended | Lost | Stop
Decision = Yielded | AskedAgain | Assigned | Restarting | Overdue | Closing | Over | Lost
"""The decisions of the machine, which the journal records. `Lost` names a slot whose agent does not end its task."""
ProgramEvent = Happened | Tick
ProgramLine = Happened | Decision
"""What a line of the journal may hold."""
ProgramCommand = Decision | Begin | Halt | RequestStop | Renew | GiveBack | Finish


def journaled(event: ProgramEvent, commands: Iterable[ProgramCommand]) -> list[ProgramLine]:
    """Return the lines for an event: itself, unless it is a `Tick`, and the decisions behind it."""
    lines: list[ProgramLine] = [] if isinstance(event, Tick) else [event]
    return lines + [command for command in commands if isinstance(command, Fact)]


_decoder: msgspec.json.Decoder[ProgramLine] = msgspec.json.Decoder(ProgramLine)


def encode(line: ProgramLine) -> bytes:
    """Return one line of a program's journal, without its newline."""
    return as_json(line, not isinstance(line, Reported) or all(map(math.isfinite, line.values.values())))


def decode(text: bytes) -> ProgramLine:
    """Return the fact in a line of a program's journal.

    Raises:
        JournalError: the line is no fact of this version.
    """
    try:
        line = _decoder.decode(text)
    except UNREADABLE as error:
        try:  # a metric that is not finite is written as text
            fact = msgspec.json.decode(text)
            if fact["type"] == "Reported":
                fact["values"] = nonfinite_from_text(fact["values"])
            line = msgspec.convert(fact, ProgramLine)
        except (*UNREADABLE, KeyError, TypeError):
            raise JournalError(f"no fact of a program: {error}: {text[:120]!r}") from error
    if not line.at and b'"at":' not in text:
        raise JournalError(f"no fact of a program: it has no time: {text[:120]!r}")
    return line


CODEC: Codec[ProgramLine] = Codec(FORMAT, Launched, encode, decode, "hy.launch(…, resume=True)")
"""For a program's journal."""
