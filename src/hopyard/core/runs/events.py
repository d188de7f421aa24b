"""Facts and commands.

A *fact* happened, at a time; the journal is the list of them. `Dispatch`, `Check`, `Placed`, `Deferred`, `Formed`,
`Yielded` and what a search decides (`Paused`, `Granted`, `Stopped`, `Closed`) are decisions of the machine that change
its state (`DECISIONS`), so they are facts too and enter the journal: an old journal folds to the same state whatever
later versions would decide. The other commands only ask the driver for something and are not written down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Literal

import msgspec

from hopyard.core.facts import Fact, Lost, Tick
from hopyard.spec import (
    FORMAT,
    Config,
    Fault,
    ModelInfo,
    Part,
    PartitionRange,
    Ref,
    RunSpec,
    Timeouts,
    Unit,
    Warned,
)


class Began(Fact, frozen=True):
    """A run began. Always the first line."""

    spec: RunSpec
    format: int = FORMAT
    fingerprint: dict[str, Any] = {}
    """Versions, threads, machine: what equal digests may depend on."""
    mark: str = ""
    """Id of the mark that this driver put into the folder of the States. The journal with the newest one owns it."""
    directory: str = ""
    """The run directory, with its host: a journal that lies in another one was copied or moved."""
    workers: int = 0
    """Workers of an engine whose hosts do not share rows, by which partitions are cut into blocks with a home each
    (`core/runs/scheduling/homes.py`); 0: all workers are on one host, or partitions have no homes."""


class Proposed(Fact, frozen=True, omit_defaults=True):
    """The search proposed a configuration."""

    trial: int
    config: Config
    count: int = -1
    """How many its sampler had proposed before, where it learns from results; -1: it does not, or somebody else
    proposed this one."""
    attributes: dict[str, Any] = {}
    """What the sampler must find again when it is asked the next time."""
    offset: int = -1
    """Where in the rotation over the partitions it begins; -1: where `order.start` says."""


class Exhausted(Fact, frozen=True, omit_defaults=True):
    """The search has no more to propose. `reason`: why, where it is not that all was proposed."""

    reason: str = ""


class Joined(Fact, frozen=True):
    """A slot has joined."""

    slot: int
    host: str
    pid: int
    fingerprint: dict[str, Any] = {}
    """Versions and processor, as the agent found them."""
    device: str = ""
    """Equal for slots of one host that share an accelerator; empty: the slot has none."""
    rows: tuple[PartitionRange, ...] = ()
    """The partitions that its host has already."""
    entry: bool = False
    """Whether these are in the driver's own entry of the data cache, which the host sees."""


class Checked(Fact, frozen=True, omit_defaults=True):
    """An agent built a trial and put one batch through it. `names`: the metrics it reports; `notes`: what cannot be
    exact; `advice`: what the user should know; `fault`: whose the faults are, where there are some; `device`: as in
    Failed; `model`: what its recipe gave; `trace`: the traceback of a fault that was raised, at most about 8,000
    characters."""

    slot: int
    trial: int
    faults: tuple[str, ...]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    fault: Fault = "user"
    device: bool = False
    model: ModelInfo | None = None
    trace: str = ""
    warnings: tuple[Warned, ...] = ()
    advice: tuple[str, ...] = ()
    fetched_bytes: int = 0
    """As in Done."""
    peak_bytes: int = 0
    """As in Done."""
    hop_bytes: int = 0
    """Bytes of a State of the trial, where parts of its model are frozen; else 0."""
    frozen_bytes: int = 0
    """Bytes of these parts, which are in no State."""


EDGES = 2047 * 8
"""The number of the edge above all finite numbers."""


def edge(number: int) -> float:
    """Return an edge of the fine buckets: eight from each power of two to the next, of equal width, up to the largest
    float64. Edge 0 is 0.0, and edges of opposite numbers are opposite."""
    if number < 0:
        return -edge(-number)
    if number >= EDGES:
        return math.nextafter(math.inf, 0.0)
    exponent, eighths = divmod(number, 8)
    return math.ldexp(8 + eighths, exponent - 1026) if exponent else math.ldexp(eighths, -1025)


class Histogram(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The arrays that a recipe logged under one name in a partition. TensorBoard's `HistogramProto` has the same
    fields, with `edges()[1:]` for `bucket_limit`."""

    min: float
    max: float
    count: int
    """Numbers in the buckets."""
    sum: float
    sum_squares: float
    first: int = 0
    """Number of the lowest edge (`edge`)."""
    widths: tuple[int, ...] = ()
    """Fine buckets in each bucket; at most 64 buckets."""
    counts: tuple[int, ...] = ()
    """Numbers in each. A bucket of positive numbers has its lower edge, one of negative numbers its upper."""
    nonfinite: int = 0
    """NaN and infinities, which the rest leaves out."""

    def edges(self) -> list[float]:
        """Return the edges of the buckets: one more than there are buckets."""
        return [edge(number) for number in accumulate(self.widths, initial=self.first)]


LoggedValue = float | Histogram
"""The value logged under one name in a partition: the mean of its numbers, or the histogram of its arrays."""


class Done(Fact, frozen=True, omit_defaults=True):
    """A unit ended well. `memory_key`: where its new State lies in shared memory."""

    slot: int
    lease: int
    parts: tuple[Part, ...]
    seconds: float
    """From the unit's arrival to the answer, the hop included."""
    memory_key: str = ""
    hop_seconds: float = 0.0
    hop_bytes: int = 0
    values: dict[str, float] = {}
    """Metric name → value, where it is a fold unit."""
    model: ModelInfo | None = None
    """What the recipe gave, where the worker called it and the driver did not know the result."""
    warnings: tuple[Warned, ...] = ()
    """Those that the worker did not tell of this trial before."""
    fetched_bytes: int = 0
    """Bytes of rows that the worker has brought to its host since its last answer: columns of the partitions that were
    not in the host's cache."""
    exchanged_bytes: int = 0
    """Bytes that each member of a gang has sent to the others in this unit (`exchange.group.Group.sent`)."""
    peak_bytes: int = 0
    """The most memory that the worker's process has had resident, where that has grown by 1 % or more since an answer
    had it; 0 inline, where the process is the driver's."""
    others: tuple[tuple[int, int], ...] = ()
    """(fetched_bytes, peak_bytes) of the other members of a gang, which answer nothing themselves, by rank; empty where
    all are 0."""
    logged: dict[int, dict[str, LoggedValue]] = {}
    """Partition → name → what the recipe logged (`ctx.log`), for trackers; the machine does not keep it. A unit that is
    done again has the same."""


class Durable(Fact, frozen=True):
    """A State is stored and synced. `digest`: BLAKE3 of its bytes, in hexadecimal."""

    slot: int
    ref: Ref
    digest: str
    bytes: int


class Failed(Fact, frozen=True):
    """A unit ended badly. "user" and "data" faults end the trial, others are tried again (`core/runs/faults/`).
    `slot`: the worker where it did; in a gang any of its members."""

    slot: int
    lease: int
    fault: Fault
    error: str
    trace: str = ""
    missing: Ref | None = None
    """The State that the unit needed and that nobody could hand over."""
    device: bool = False
    """Whether a "memory" fault is one of the slot's device, whose memory ran out, not that of its host."""
    warnings: tuple[Warned, ...] = ()


class Forgotten(Fact, frozen=True):
    """The slot that made a State was asked to store it, and does not have it any longer."""

    slot: int
    ref: Ref


class StoreAway(Fact, frozen=True):
    """A slot cannot store States at present; it tries again until it can. Written once, until `StoreBack`."""

    slot: int
    error: str


class StoreBack(Fact, frozen=True):
    """The slot can store States again."""

    slot: int


class Left(Fact, frozen=True):
    """A slot was given back: there was nothing for it to do. Nothing was lost with it."""

    slot: int
    reason: str


class Resumed(Fact, frozen=True, omit_defaults=True):
    """Another driver took over: all slots are gone, and only durable States remain."""

    fingerprint: dict[str, Any] = {}
    mark: str = ""
    """As in Began."""
    directory: str = ""
    timeouts: Timeouts | None = None
    """Those from now on; None: as they were."""
    gone: tuple[Ref, ...] = ()
    """Durable States that are in the store no longer: another run, or somebody, has deleted them."""
    members: int = 0
    """Workers of a gang from now on; 0: as many as before."""
    workers: int = 0
    """As in Began."""
    copies: int = -1
    """Homes of each partition from now on; 0: rows go everywhere; -1: as before."""
    skipped: int = 0
    """Leases that are never given out: an end of the journal that was lost on its way to a URL may have used them, and
    the name of a State has its lease."""


class Retried(Fact, frozen=True):
    """A trial that had failed is tried again, because the user asked for it: from its last durable State, or anew
    where `recipe` (the digest of another recipe than it was trained with) is not empty."""

    trial: int
    recipe: str = ""


class Extended(Fact, frozen=True):
    """The user gave the run more: epochs, or trials, where its search proposes more than it did."""

    epochs: int
    """Passes of each trial from now on, those that it has made included."""
    trials: int | None
    """As in RunSpec."""


class Requested(Fact, frozen=True):
    """The number of workers that were requested and have not joined: without a place yet (`unplaced`), and with one
    (`starting`). Written where others want the places of gangs too."""

    unplaced: int
    starting: int


class Shrunk(Fact, frozen=True):
    """The engine has too few workers for a gang, and the user allows smaller ones: they have `members` from now on."""

    members: int


class Interrupted(Fact, frozen=True):
    """The driver ended before the run did."""

    reason: str
    stopped: bool = False
    """Whether `run.stop()` asked for it."""


class Finished(Fact, frozen=True):
    """The run ended. "completed": no trial failed; "failed": all did, or none has a finite value of the metric."""

    status: Literal["completed", "partial", "failed"]


class Dispatch(Fact, frozen=True):
    """Decision: `slot` gets `unit`. The journal has what decides: lease, trial, kind, epoch, partitions, start."""

    slot: int
    unit: Unit


class Check(Fact, frozen=True):
    """Decision: `slot` builds `trial` and puts one batch through it, before any unit runs."""

    slot: int
    trial: int
    partitions: tuple[int, int] = (0, 0)
    """The training and the validation partition whose first batch it reads."""


class Placed(Fact, frozen=True):
    """Decision: `host` is home to these partitions from now on."""

    host: str
    partitions: PartitionRange


class Deferred(Fact, frozen=True):
    """Decision: after this fault, no unit of `trial` is given out before `until`. After a "memory" fault, only a
    worker that has done nothing yet may take the failed unit until then."""

    trial: int
    until: float
    fault: Fault
    reason: str


class Formed(Fact, frozen=True):
    """Decision: these workers train together from now on. Their slot has the number of the first, which is rank 0."""

    slot: int
    members: tuple[int, ...]


class Yielded(Fact, frozen=True):
    """Decision: these workers, too few for a gang, are given back until then, and so are those that were requested."""

    slots: tuple[int, ...]
    until: float


class AskAgain(msgspec.Struct, frozen=True, gc=False):
    """Command: ask for as many workers again as were given back."""


class GiveUp(msgspec.Struct, frozen=True, gc=False):
    """Command: these members of a gang give up the unit with this lease, if they still work on it, and with it their
    process group."""

    members: tuple[int, ...]
    lease: int
    group: int


class Paused(Fact, frozen=True):
    """Decision: `trial`, which has come to its target, waits there; its State is kept."""

    trial: int
    reason: str


class Granted(Fact, frozen=True, omit_defaults=True):
    """Decision, or the answer of the user's function: `trial` goes on, up to the step `target`."""

    trial: int
    target: int
    reason: str
    warnings: tuple[Warned, ...] = ()
    """What the user's function raised in place of an answer."""


class Stopped(Fact, frozen=True):
    """Decision, or the answer of the user's function: `trial` ends with the newest State that it has."""

    trial: int
    reason: str


class Closed(Fact, frozen=True):
    """Decision: the run has what it needs, or its time is over. Nothing more is proposed, and open trials are
    stopped."""

    reason: str


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Command: the maker `slot` stores this State next, because others cannot take it out of its memory."""

    slot: int
    ref: Ref
    memory_key: str


class Release(msgspec.Struct, frozen=True, gc=False):
    """Command: nobody will ask the maker `slot` for the State at `memory_key` again."""

    slot: int
    memory_key: str


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Command: the stored State is not kept any longer (the rule is in docs/architecture.md)."""

    ref: Ref


class Replace(msgspec.Struct, frozen=True, gc=False):
    """Command: end this slot for good, start another in its place. The machine has removed it already; the journal
    gets a `Lost` with the same reason and fault."""

    slot: int
    reason: str
    fault: Literal["system", "store"] = "system"


class Warn(msgspec.Struct, frozen=True, gc=False):
    """Command: tell the user. `defect`: a promise was broken."""

    text: str
    defect: bool = False


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Command: every trial has ended."""

    status: Literal["completed", "partial", "failed"]


Event = (
    Began
    | Proposed
    | Exhausted
    | Joined
    | Checked
    | Done
    | Durable
    | Failed
    | Forgotten
    | StoreAway
    | StoreBack
    | Lost
    | Left
    | Tick
    | Resumed
    | Retried
    | Extended
    | Requested
    | Shrunk
    | Granted
    | Stopped
    | Interrupted
    | Finished
)
Decision = Dispatch | Check | Placed | Deferred | Formed | Yielded | Paused | Granted | Stopped | Closed
DECISIONS = (Dispatch, Check, Placed, Deferred, Formed, Yielded, Paused, Granted, Stopped, Closed)
"""Commands that change the machine's state: they are written behind the event that led to them."""
Line = Event | Decision
"""What a line of the journal may hold."""
Command = Decision | AskAgain | GiveUp | Keep | Release | Delete | Replace | Warn | Finish


def journaled(event: Event, commands: Iterable[Command]) -> list[Line]:
    """Return the lines for an event: itself, and the commands behind it that change the machine's state."""
    lines: list[Line] = [event]
    for command in commands:
        if isinstance(command, DECISIONS):
            lines.append(command)
        elif isinstance(command, Replace):  # the machine knows it; the journal must say it too
            lines.append(Lost(at=event.at, slot=command.slot, reason=command.reason, fault=command.fault))
    return lines
