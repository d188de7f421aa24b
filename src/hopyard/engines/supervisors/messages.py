"""The messages between the driver and its supervisors: one line of JSON for each.

A supervisor sends `SupervisorHello`; then the driver orders it to start and to end agents, and it reports what becomes
of them. What its agents need comes before that: with its ticket, or by `Prepare`, of each run anew where supervisors
outlive a run. Both ends have one version of Hopyard: a supervisor with another one is refused, and told why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec


class SupervisorHello(msgspec.Struct, frozen=True):
    """The first line of a supervisor. It has no tag, so that one of any version is understood."""

    token: str
    host: str = ""
    executor: str = ""
    """Host, and process there to which it belongs: the executor, where Spark placed it."""
    gpus: tuple[str, ...] = ()
    job: int = -1
    """Number of what placed it: the job whose task started it, where Spark did."""
    version: str = ""
    """Of Hopyard."""
    python: str = ""
    """Major and minor version."""
    process: int = 0
    """Its own number on its host."""
    node: str = ""
    """The node that runs its pod, for messages to people."""


class SupervisorMessage(msgspec.Struct, frozen=True, tag=True, tag_field="type"):
    """The base of all other messages."""


class Prepare(SupervisorMessage, frozen=True):
    """To a supervisor: what its agents get. It has keys and secrets, so it goes in TLS only, or with the ticket."""

    card: str
    """JSON of a `core.messages.Card`, for any slot."""
    threads: int
    env: Mapping[str, str]
    frameworks: tuple[str, ...] = ()
    """What agents import before they are ready, see `ports.engines.LaunchInfo`."""
    warm: bool = False
    """Whether agents are forks of a template that the supervisor keeps."""
    required: tuple[str, ...] = ()
    """Those of `frameworks` without which no agent can work, see `ports.engines.LaunchInfo`."""

    def __repr__(self) -> str:
        return "Prepare(…)"


class Start(SupervisorMessage, frozen=True):
    """To a supervisor: start an agent for this slot."""

    slot: int


class EndAgent(SupervisorMessage, frozen=True):
    """To a supervisor: end the agent of this slot, then report `Free`."""

    slot: int


class EndTask(SupervisorMessage, frozen=True):
    """To a supervisor: let the task end alone, and go on."""


class Leave(SupervisorMessage, frozen=True):
    """To a supervisor: end all."""


class Refuse(SupervisorMessage, frozen=True):
    """To a supervisor: the driver does not take it, for this reason, and hangs up. Supervisors of every version read
    this one: its name and its field never change."""

    reason: str


class AgentBegan(SupervisorMessage, frozen=True):
    """To the driver: the process of the agent of this slot is there. One that is to be a fork comes after its template
    has imported what it needs."""

    slot: int


class HostWarning(SupervisorMessage, frozen=True):
    """To the driver: what people are to know of this host."""

    text: str


class Printed(SupervisorMessage, frozen=True):
    """To the driver: the agent of this slot printed this text."""

    slot: int
    text: str


class Free(SupervisorMessage, frozen=True):
    """To the driver: the agent of this slot was ended."""

    slot: int


class AgentEnded(SupervisorMessage, frozen=True):
    """To the driver: the agent of this slot ended by itself. `memory`: the system killed it, as memory ran out."""

    slot: int
    reason: str
    memory: bool = False


class Leaving(SupervisorMessage, frozen=True):
    """To the driver: the supervisor leaves, for this reason. `unfit`: its host lacks what the run requires."""

    reason: str
    unfit: bool = False


Order = Prepare | Start | EndAgent | EndTask | Leave | Refuse
Report = AgentBegan | HostWarning | Printed | Free | AgentEnded | Leaving

_encoder = msgspec.json.Encoder()
hello_of = msgspec.json.Decoder(SupervisorHello).decode
order_of = msgspec.json.Decoder(Order).decode
report_of = msgspec.json.Decoder(Report).decode
"""Bytes of a line → the message. They raise one of `core.facts.UNREADABLE`."""


def line_of(message: SupervisorHello | Order | Report) -> bytes:
    """Return the message as a line."""
    return _encoder.encode(message) + b"\n"


class Lines:
    """Puts lines together from the pieces that a socket brings."""

    def __init__(self) -> None:
        self._buffer = b""

    def __len__(self) -> int:
        """Return how many bytes wait for the end of their line."""
        return len(self._buffer)

    def add(self, data: bytes) -> Iterator[bytes]:
        """Add these bytes, and yield the lines that are whole now."""
        self._buffer += data
        while b"\n" in self._buffer:
            line, _, self._buffer = self._buffer.partition(b"\n")
            yield line
