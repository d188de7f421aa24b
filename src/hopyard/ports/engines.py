"""Engines, and the agents that they start. `tests/ports/test_engine.py` is their conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeGuard, runtime_checkable


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """What an engine needs to start agents."""

    card: Callable[[int], bytes]
    """Slot → one line of JSON that admits the agent (`core.messages.Card`). It goes by pipe, never by command line,
    environment of others, or log."""
    log: Callable[[int], Path]
    """Slot → the file that receives the output of the agent."""
    frameworks: tuple[str, ...] = ()
    """Names of `hopyard.frameworks.FRAMEWORKS` that agents import before they are ready, as far as they are there: code
    that names a framework may never reach the line."""
    open_ended: bool = False
    """The agents may stay until the user ends them, as those of a program that waits for a feed."""
    required: tuple[str, ...] = ()
    """Those of `frameworks` without which no agent can work: the recipe does not load where one is missing."""
    together: int = 1
    """How many agents must be up for any of them to be of use."""


class OutOfMemory(str):
    """The reason why an agent ended, when the system killed it because the memory of its host ran out."""

    __slots__ = ()


class Agents(Protocol):
    """The agents of one run, as their engine sees them."""

    def start(self, slot: int) -> None:
        """Begins to start an agent; returns at once."""
        ...

    def end(self, slot: int) -> None:
        """Ends an agent for good; after this returns it does nothing more."""
        ...

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of agents that ended since the last call. A reason may be an `OutOfMemory`.

        Raises:
            ResourceError: no agent can ever start; says why.
        """
        ...

    def watch(self) -> list[int]:
        """Return file descriptors that become readable when an agent ends."""
        ...

    def waits(self, slot: int) -> bool:
        """Whether its agent cannot have begun: there is no place for it yet, or what it is to be forked of is still
        importing. Then a missing heartbeat means nothing."""
        ...

    def device(self, slot: int) -> str:
        """Return "cpu" or "cuda"."""
        ...

    def close(self) -> None:
        """Ends all agents; nothing is left behind."""
        ...


@runtime_checkable
class ReleasesCores(Agents, Protocol):
    """Agents that hold cores of a cluster, and can go on without holding them. Any thread may call it."""

    def release_cores(self, slots: Collection[int]) -> None:
        """Gives the cores of these agents back to the cluster, for others to use, while the agents go on. Returns when
        that is done; holds for slots that start later too, until `reacquire_cores`. Blocks for tens of milliseconds.

        Raises:
            ResourceError: the cluster did not take the cores back within 5 s; names the slots.
        """
        ...

    def reacquire_cores(self) -> None:
        """Asks to hold the cores again; returns at once, the cores come when they are free."""
        ...


@runtime_checkable
class GivesBack(Agents, Protocol):
    """Agents whose places in a cluster others may want."""

    def waiting(self) -> int:
        """Return how many slots wait for a place that the cluster has not granted yet. A slot whose agent is still
        being brought up has its place."""
        ...

    def give_back(self, slots: Collection[int]) -> None:
        """Ends the agents of these slots, withdraws what was asked for and has not come, and leaves the places to
        others; those of other slots stay. Returns at once; the places are free within seconds. A later `start` asks for
        a place again."""
        ...


class Engine(Protocol):
    """Runs units. Workers other than this process are agents, which an `AgentEngine` starts."""

    @property
    def name(self) -> str:
        """The name in one word, for example "local"."""
        ...

    @property
    def workers(self) -> int:
        """How many slots the run keeps up."""
        ...

    @property
    def threads(self) -> int:
        """Intra-op threads of each worker; recorded, because results may depend on it."""
        ...

    @property
    def env(self) -> Mapping[str, str]:
        """Additional environment variables of its workers."""
        ...

    @property
    def apart(self) -> bool:
        """Whether its agents may be on other hosts than this process, and than each other."""
        ...

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """Workers of each host, where that is known before they are up; empty: it is not."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether its only worker is this process. Otherwise it is an `AgentEngine`."""
        ...


class AgentEngine(Engine, Protocol):
    """An engine whose workers are agents, which are processes of their own."""

    @property
    def endpoint(self) -> tuple[str, int]:
        """(host by which its agents reach this process, port to listen on; 0: any that is free). Supervisors dial the
        next port; the one after that is for States."""
        ...

    @property
    def start_timeout(self) -> float:
        """Seconds within which each task of a program must have a slot, unless the program sets another limit."""
        ...

    @property
    def driver_workers(self) -> int:
        """How many of its slots, the last ones, are on the host of this process while the others are in a cluster."""
        ...

    @property
    def shared_places(self) -> bool:
        """Whether others may want the places of its agents, but for those of `driver_workers`. Its agents are
        `GivesBack` then."""
        ...

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, with none started yet."""
        ...


def is_engine(value: object) -> TypeGuard[Engine]:
    """Whether a user's value is an engine, and not the class of one, or something else."""
    return hasattr(value, "in_process") and not isinstance(value, type)


def starts_agents(engine: Engine) -> TypeGuard[AgentEngine]:
    """Whether its workers are processes of their own."""
    return not engine.in_process
