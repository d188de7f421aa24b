"""The messages between driver and agents: typed, versioned, MessagePack; never a pickle from an agent.

Up go `Hello`, `Ready`, `Unfit`, `NoRoom` and facts of the journal (`Checked`, `Done`, `Durable`, `Failed`, `Forgotten`,
`StoreAway`, `StoreBack`), whose time the driver sets when they arrive. Down go `Setup` once, then `Work`, `StoreState`,
`Examine` and `End`. Members of a gang also send `Publish` and `Broken`, and get `Published` and `GiveUpUnit`. An agent
that is to host a program gets `HostTasks` instead of `Setup`, and then the messages of `programs/messages.py`. All of
these are numbered, and sent again until they are confirmed (`delivery.py`): two numbers, `Header`, stand before them.
`GaveUp` has no number, nor has `Beat`, which has a socket of its own.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from hopyard.core.delivery import Header
from hopyard.core.facts import UNREADABLE
from hopyard.core.programs.events import Begin, Ended, Halt, Reported, Reserved, Running
from hopyard.core.programs.messages import (
    BatchesReady,
    FeedEndpoint,
    FeedOrder,
    HostTasks,
    RowsTaken,
    StopRequested,
    TensorBoardStarted,
)
from hopyard.core.runs.events import Checked, Done, Durable, Failed, Forgotten, StoreAway, StoreBack
from hopyard.errors import HopyardError, SpecError
from hopyard.spec import Array, Config, Encrypt, PartitionRange, Ref, RunSpec, Unit
from hopyard.text import escaped_tree

WIRE = 1
"""Version of the wire. Driver and agents must have the same."""

LIMIT = 64 << 20
"""Bytes of the largest message either side takes; a recipe (with the modules it carries) is the largest there is."""
HEAD_BYTES = 16
"""Bytes of a `Header` on the wire: two numbers of 8 bytes."""
FRAME_LIMIT = LIMIT + 1024
"""Bytes of the largest frame that either side's socket takes. A frame is a message with its head, encrypted, for which
CurveZMQ adds 33 bytes."""


class Card(msgspec.Struct, frozen=True):
    """What an agent receives by pipe when it is started: its slot, the driver's address, and the keys with which it
    may connect. Never on a command line, never in a log."""

    slot: int
    address: str
    server_key: str
    public_key: str
    secret_key: str
    beat: float = 2.5
    """Seconds between heartbeats."""
    stall: float = 0.0
    """Seconds without progress after which the driver ends the agent; 0: it need not make any."""
    incarnation: int = 0
    """Which process of the slot this is: a number that the process draws for itself. Messages of an earlier process of
    the slot that are still on their way are recognized by their socket's name."""

    def name(self, socket: str) -> bytes:
        """Return the name by which the driver knows one of the agent's sockets."""
        return f"{socket}{self.slot}.{self.incarnation}".encode()


class Message(msgspec.Struct, frozen=True, tag=True, tag_field="type", gc=False):
    """The base of all messages; the tag is the class's name."""


class Hello(Message, frozen=True):
    """Up: an agent has connected."""

    slot: int
    format: int = WIRE


class Ready(Message, frozen=True):
    """Up: the agent has its recipe and framework, and can take units."""

    slot: int
    host: str
    pid: int
    fingerprint: dict[str, Any] = {}
    device: str = ""
    """As in `Joined`."""
    memory: str = ""
    """Equal for agents that share memory."""
    peer: str = ""
    """Address at which agents that do not share it can ask for States in it."""
    rows: tuple[PartitionRange, ...] = ()
    """As in `Joined`."""
    entry: bool = False
    """As in `Joined`."""


class Unfit(Message, frozen=True):
    """Up: the agent cannot take units, for example because the recipe does not load there."""

    slot: int
    error: str
    host: bool = False
    """Whether that is a matter of its host: it has no room, or its disk is broken."""


class Beat(Message, frozen=True):
    """Up, from an agent's companion: the agent lives, and has come so far. It may be lost: the next one has more."""

    slot: int
    advanced: int = 0
    """Batches finished, bytes read, and changes of phase so far."""
    phase: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Index into `liveness.PHASES`."""
    cpu_seconds: float = 0.0
    """Processor time of the training thread, compilers and child processes, while a model is built or compiled."""
    taken: int = 0
    """The highest number of a message from the driver that the agent took."""


class GaveUp(Message, frozen=True):
    """Up, as the agent's last message: too much of what it sent was never confirmed, so it ends."""

    slot: int
    reason: str


class NoRoom(Message, frozen=True):
    """Up: there is no room. For States ("store"): the run ends cleanly and can be resumed. For rows ("rows"), or the
    disk is broken where they are: the slot ends, and the run goes on while there is another. An error that nobody
    expects while States are stored ("error") ends the run as well."""

    slot: int
    error: str
    what: Literal["store", "rows", "error"] = "store"


class Bulk(msgspec.Struct, frozen=True):
    """How agents that may be on other hosts store, serve and fetch States through a network."""

    depot: str
    """Address of the driver, for agents that cannot reach the store of the States; peers have their own addresses."""
    token: str
    """The token that all these servers accept."""
    certificate: str = ""
    """Certificate with its key, for encrypted connections; empty: no connection is encrypted."""
    encrypt: Encrypt = "between hosts"


class Setup(Message, frozen=True):
    """Down, once: all that an agent needs to run units."""

    spec: RunSpec
    recipe: bytes
    """cloudpickle of the recipe."""
    manifest: bytes
    """JSON of the data's manifest."""
    store: str
    """URL or path of the States."""
    memory: str
    """Where shared memory is on the host, and the name of this run's part of it."""
    run: str
    threads: int
    device: str = "cpu"
    bulk: Bulk | None = None
    """For agents that may be on other hosts."""


class Membership(msgspec.Struct, frozen=True):
    """A worker's place in the gang that works on a unit."""

    rank: int
    size: int
    group: int
    """The number of their process group: the members that have it are connected already."""
    one_host: bool
    """Whether all members are on one host."""


class Publish(Message, frozen=True):
    """Up: a value for the other members of a group."""

    slot: int
    group: int
    key: str
    value: bytes


class Broken(Message, frozen=True):
    """Up: a member of a gang is out of this unit, because the exchange with the others broke, or as it was told to give
    it up. The cause is for others to say."""

    slot: int
    lease: int
    error: str = ""


class Published(Message, frozen=True):
    """Down: a value that another member has published."""

    group: int
    key: str
    value: bytes


class GiveUpUnit(Message, frozen=True):
    """Down: this unit of a gang counts no longer, or a member is out of it. Answered by `Broken`, or by what the member
    itself found wrong."""

    lease: int
    group: int


class Work(Message, frozen=True):
    """Down: run this unit."""

    unit: Unit
    config: Config
    release: tuple[str, ...] = ()
    """Keys in shared memory that nobody will ask for again."""
    peer: str | None = None
    """Address of the agent that has the unit's State, when it is in memory that this agent does not share."""
    gang: Membership | None = None
    """For a member of a gang; None: the agent works on the unit alone."""
    passing: bool = False
    """True if the unit's partitions are at home on other hosts: the agent unmaps them after the unit."""


class StoreState(Message, frozen=True):
    """Down: store this State next, as others cannot take it out of memory. Answered by `Durable` or `Forgotten`."""

    ref: Ref
    memory_key: str


class Examine(Message, frozen=True):
    """Down: build this trial and put one batch through it (preflight)."""

    trial: int
    config: Config
    partitions: tuple[int, int] = (0, 0)
    """As in `Check`."""


class End(Message, frozen=True):
    """Down: there is no more work."""


Hosted = Reserved | Running | Reported | Ended | FeedEndpoint | TensorBoardStarted | RowsTaken | BatchesReady
"""The messages of an agent that hosts a program."""
Facts = Checked | Done | Durable | Failed | Forgotten | StoreAway | StoreBack
Up = Hello | Ready | Unfit | Beat | GaveUp | NoRoom | Publish | Broken | Facts | Hosted
Down = (
    Setup
    | Work
    | StoreState
    | Published
    | GiveUpUnit
    | Examine
    | End
    | HostTasks
    | Begin
    | Halt
    | StopRequested
    | FeedOrder
)

_encoder = msgspec.msgpack.Encoder()
_up: msgspec.msgpack.Decoder[Up] = msgspec.msgpack.Decoder(Up)
_down: msgspec.msgpack.Decoder[Down] = msgspec.msgpack.Decoder(Down)


def pack(message: Up | Down) -> bytes:
    """Return the bytes of a message.

    Raises:
        SpecError: it is larger than LIMIT, so that nobody would take it; names what is large in it.
    """
    try:
        data = _encoder.encode(message)
    except UnicodeEncodeError:  # the text of an error may hold anything
        if not isinstance(message, (Checked, Failed, NoRoom, Unfit)):
            raise
        data = _encoder.encode(escaped_tree(msgspec.to_builtins(message)))
    if len(data) > LIMIT:
        raise SpecError(
            f"a message to or from a worker ({type(message).__name__}) has {len(data):,} bytes, at most {LIMIT:,} are "
            f"sent: {largest(message)}"
        )
    return data


def largest(message: Up | Down) -> str:
    """Return which part of a message takes most bytes, as text for an error."""
    if isinstance(message, Done):
        sizes: dict[str, int] = {}
        for part in message.parts:
            for name, (total, _) in part.sums.items():
                sizes[name] = sizes.get(name, 0) + (len(total.data) if isinstance(total, Array) else 9)
        name = max(sizes, key=sizes.__getitem__, default="")
        return f"metric {name!r} takes {sizes.get(name, 0):,} of them, in {len(message.parts)} partitions"
    fields = {name: len(_encoder.encode(getattr(message, name))) for name in message.__struct_fields__}
    name = max(fields, key=fields.__getitem__)
    return f"its field {name!r} takes {fields[name]:,} of them"


def framed(head: Header, body: bytes) -> bytes:
    """Return the frame for the wire: two numbers of 8 bytes, then the message, if there is one."""
    return head.number.to_bytes(8, "little") + head.confirmed.to_bytes(8, "little") + body


def unframed(data: bytes) -> tuple[Header, bytes]:
    """Return head and message of a frame.

    Raises:
        HopyardError: the bytes are no message of this version.
    """
    if len(data) < HEAD_BYTES:
        raise HopyardError(f"no head of a message of format {WIRE}: {len(data)} bytes")
    return Header(int.from_bytes(data[:8], "little"), int.from_bytes(data[8:HEAD_BYTES], "little")), data[HEAD_BYTES:]


def unpack_up(data: bytes) -> Up:
    """Return the message of an agent.

    Raises:
        HopyardError: the bytes are no message of this version.
    """
    try:
        return _up.decode(data)
    except UNREADABLE as error:
        raise HopyardError(f"no message of format {WIRE} from an agent: {error}") from error


def unpack_down(data: bytes) -> Down:
    """Return the message of the driver.

    Raises:
        HopyardError: the bytes are no message of this version.
    """
    try:
        return _down.decode(data)
    except UNREADABLE as error:
        raise HopyardError(f"no message of format {WIRE} from the driver: {error}") from error
