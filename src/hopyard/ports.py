"""The Protocols of engines, stores, searches, and of what a recipe returns. A Protocol that only one package asks for
is in that package (`data.sources.memory`, `driver.commit`). Conformance suites are under `tests/ports/`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, runtime_checkable

from hopyard.spec import Batch, Config, Gang, Ref, Status, Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray  # processes of programs import no NumPy of ours

Tree = Any
"""A State as plain values: dicts, lists, tuples, strings, numbers, booleans, None, and arrays (NumPy or torch)."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An array of a State that NumPy does not have by itself.

    Attributes:
        array: the values; those of a dtype that NumPy lacks as uint16 or uint8 of the same shape.
        dtype: safetensors' name of the real dtype: "F32", "BF16", "F8_E4M3", …; also "C64", "C128".
        kind: the package of the array: "torch" is restored as a torch tensor; "ml_dtypes"; "numpy".
    """

    array: NDArray[Any]
    dtype: str
    kind: str = "numpy"


class PartitionBatches(Protocol):
    """The rows of one partition in a fixed order. Iterating yields Batches; iterating again yields the same ones.

    `columns` and `order` are for frameworks that run a whole partition in one compiled call: they gather
    `columns.inputs[order]` and cut it at `sizes`.
    """

    rows: int
    sizes: Sequence[int]
    """Rows of each batch; a last batch of one row is joined to the one before."""
    columns: Any
    """`.inputs`, `.targets`, `.weights`: memory-mapped arrays (or dicts of arrays) over all rows of the partition."""
    order: Any
    """int64 array of shape (rows,): the visit order; None: as stored."""
    seed: int | None

    def __iter__(self) -> Iterator[Batch]: ...


class Trainable(Protocol):
    """What a recipe returns: something that can train on a batch. Subclass it to write your own step.

    `train`, `evaluate` return metric name → (sum over the rows of this batch, rows); the sum may be a number, a tensor
    of one element, or an additive array (then `result` turns the total into the metric's value).

    A Trainable that can do more has the methods of the `Supports…` protocols below; it need not inherit from them.
    """

    batch_size: Any
    """Rows of a batch, an integer; None: the config's `batch_size`, else 32."""

    @abstractmethod
    def state(self) -> Tree:
        """Return everything that training changes: a tree of tensors, numbers and strings."""

    @abstractmethod
    def load(self, tree: Tree) -> None:
        """Restores what `state` returned, by copying values into the existing tensors."""

    @abstractmethod
    def train(self, batch: Batch) -> Mapping[str, tuple[Any, float]]:
        """Trains for one step."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Mapping[str, tuple[Any, float]]:
        """Return the same for a batch without changing anything."""


@runtime_checkable
class SupportsWholePartition(Protocol):
    """A Trainable that goes over a whole partition by itself, faster than batch by batch."""

    def train_partition(self, batches: PartitionBatches) -> Sums:
        """Train on all batches in their order. Returns what the sums of `train` over them would be."""
        ...

    def evaluate_partition(self, batches: PartitionBatches) -> Sums:
        """Return what the sums of `evaluate` over all batches would be."""
        ...


def goes_whole(trainable: Trainable) -> TypeGuard[SupportsWholePartition]:
    """Whether it goes over whole partitions. Called for each partition: `isinstance` with a Protocol takes 17 µs."""
    return all(getattr(trainable, name, None) is not None for name in ("train_partition", "evaluate_partition"))


@runtime_checkable
class SupportsSchema(Protocol):
    """A Trainable that needs the schema of the data before anything else. Array name → (shape of one row, NumPy
    dtype); a single input is "inputs", a single label "targets"."""

    def set_schema(
        self,
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        targets: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None:
        """Take the schema."""
        ...


@runtime_checkable
class SupportsDevice(Protocol):
    """A Trainable that moves to a device, for example "cuda", before it trains. Not called for the device "cpu"."""

    def to_device(self, device: str) -> None:
        """Move to this device."""
        ...


@runtime_checkable
class SupportsSharing(Protocol):
    """A Trainable that can tell which others differ from it only in their State. A worker then builds (compiles) one
    of them and loads the States of all into it in turn."""

    @property
    def sharing_key(self) -> str:
        """Equal for such Trainables; "": shared within its own trial only."""
        ...


@runtime_checkable
class SupportsLabelCheck(Protocol):
    """A Trainable that can tell which labels it can learn."""

    def label_fault(self, batch: Batch, low: float, high: float) -> str:
        """Return what is wrong with a label column whose values lie in [low, high]; "" when nothing is."""
        ...


@runtime_checkable
class SupportsLossCheck(Protocol):
    """A Trainable that can tell from one batch whether its loss takes its outputs and the labels."""

    def loss_fault(self, batch: Batch, label: str) -> str:
        """Return what is wrong with labels and outputs for the loss; "" when nothing is. `label`: the name of the
        label's column, for the sentence; of several labels, the batch has the names."""
        ...


@runtime_checkable
class ReportsNondeterminism(Protocol):
    """A Trainable that can tell which parts of its steps cannot be repeated bit by bit."""

    @property
    def nondeterminism(self) -> tuple[str, ...]:
        """One sentence for each such part, as far as the steps so far have shown them."""
        ...


@runtime_checkable
class SupportsOutsideState(Protocol):
    """A Trainable whose parts may keep values outside of the State."""

    def outside_state(self) -> dict[str, Any]:
        """Return name → value of such attributes, which is another one once a step has changed it."""
        ...


@runtime_checkable
class SupportsEpochEnd(Protocol):
    """A Trainable that is called at the end of each epoch of its trial (before its State is read)."""

    def end_epoch(self) -> None:
        """End the epoch: step a schedule, for example."""
        ...


@runtime_checkable
class SupportsResult(Protocol):
    """A Trainable with additive arrays among its metrics: `result` computes metric `name` from its total."""

    def result(self, name: str, total: Any, rows: float) -> float:
        """Return the metric. `total`: its array, added up over all rows; `rows`: how many, or their weights."""
        ...


class Exchange(Protocol):
    """What a Trainable has in a gang: the means over all members. All of them call the same methods in the same order.

    Attributes:
        rank, size: which member this is, of how many.
        gang: how the members train together.
    """

    rank: int
    size: int
    gang: Gang

    def mean(self, arrays: Sequence[Any], rows: float, compress: bool = True) -> float:
        """Replace arrays, of NumPy or torch, by their means over all members, weighted by the rows of each. Returns the
        rows of all members; where that is 0 nothing changes. A member without rows takes part too; what is in its
        arrays before does not count. `compress`: whether they travel in fewer bytes, if the gang does that."""
        ...

    def average(self, arrays: Sequence[Any], rows: float) -> None:
        """As `mean`, but numbers that all members have alike stay as they are to the bit, and nothing travels in fewer
        bytes; where no member has rows, the arrays become those of rank 0."""
        ...

    def rounded(self, array: Any) -> Any:
        """Return an array with the precision in which `mean` sends it to the other members."""
        ...

    def broadcast(self, arrays: Sequence[Any]) -> None:
        """Replace arrays, of NumPy or torch and of any dtype, by those of rank 0."""
        ...

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all members, by rank."""
        ...


@runtime_checkable
class SupportsExchange(Protocol):
    """A Trainable that can be a member of a gang whose gradients are averaged: between its backward pass and its step
    it calls `exchange.mean(gradients, rows)`. Its batches may be without rows."""

    def set_exchange(self, exchange: Exchange | None) -> None:
        """Use this exchange in `train` from now on; None: train alone."""
        ...


@runtime_checkable
class SupportsAveraging(SupportsExchange, Protocol):
    """A Trainable that can also be a member of a gang whose parameters are averaged after `exchange.gang.every` steps,
    and at a partition's end. Members then have a part of the State of their own, such as an optimizer."""

    def member_state(self) -> Tree:
        """Return what this member has of its own."""
        ...

    def set_members(self, trees: list[Tree]) -> None:
        """Take what the other members have, by rank, into the State of rank 0, from which `load` gives it back."""
        ...


@runtime_checkable
class SupportsGangCheck(SupportsExchange, Protocol):
    """A Trainable that can tell which gangs it cannot be a member of."""

    def gang_fault(self, gang: Gang) -> str:
        """Return why it cannot be a member of such a gang, in one sentence; "": it can."""
        ...


@runtime_checkable
class SupportsPredict(Protocol):
    """A Trainable that returns outputs for a batch, as a NumPy array (or dict of arrays) of shape (rows, …)."""

    def predict(self, batch: Batch) -> Any:
        """Return the outputs for the rows of the batch, in their order."""
        ...


@runtime_checkable
class LoadCopies(Protocol):
    """A Trainable that tells whether `load` copies all its input, which may then be views of shared memory."""

    load_copies: bool


@runtime_checkable
class FrameworkModel(Protocol):
    """A Trainable that holds a model of a framework, which `frameworks.model_file` extracts, saves and loads."""

    framework: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """How models of one framework are written to a file that others can read, and what of a State such a file lacks.

    Attributes:
        name: the name of the file, for example "model.safetensors".
        parts: the keys of the State on which outputs, loss and metrics depend.
        model: `model(trainable)` returns the framework's own model in a Trainable.
        save: `save(trainable, path)` writes the file.
        rest: `rest(trainable, other, content)` returns what these parts of the State have and a file with this content
            lacks, as tensors or arrays; empty: nothing. `other`: another build, to try what the file restores.
        load: `load(trainable, content, rest)` copies a file's content, and the rest, into a Trainable of the same
            build.
    """

    name: str
    parts: tuple[str, ...]
    model: Callable[[Any], Any]
    save: Callable[[Any, Path], None]
    rest: Callable[[Any, Any, bytes], Tree]
    load: Callable[[Any, bytes, Tree], None]


@dataclass(frozen=True, slots=True)
class Runtime:
    """The settings that one framework needs in the process that it trains in. Each has a conformance test.

    Attributes:
        versions: returns the versions and settings that digests may depend on.
        prepare: imports in advance what recipes use.
        late: modules that the framework itself imports in a first step.
        warm: does what the framework puts off until a first step.
        install: `install(exact, threads)` sets threads (0: unchanged) and determinism of the process for a run.
        reseed: `reseed(seed)`, before each recipe and each partition: seeds all generators of the process.
        before_recipe: `before_recipe(seed, named)`; `named`: the recipe's code names the framework.
        after_recipe: called as soon as the recipe has returned.
        adopt: returns the result of a recipe, as a Trainable if it is a model of the framework.
        parameters: returns what training changes in a net of the framework, as objects that live as long as its memory;
            of anything else, nothing.
        snapshot: returns the settings of the process that a run changes.
        restore: `restore(snapshot)` puts them back; None: the framework was imported since, so to its defaults.
        release: frees memory of devices that holds nothing.
        file: how models are saved; None: they cannot be.
    """

    versions: Callable[[], dict[str, Any]]
    prepare: Callable[[], None] = lambda: None
    late: tuple[str, ...] = ()
    warm: Callable[[], None] = lambda: None
    install: Callable[[bool | Literal["warn"], int], None] = lambda exact, threads: None
    reseed: Callable[[int], None] = lambda seed: None
    before_recipe: Callable[[int, bool], None] = lambda seed, named: None
    after_recipe: Callable[[], None] = lambda: None
    adopt: Callable[[Any], Any] = lambda value: value
    parameters: Callable[[Any], list[Any]] = lambda value: []
    snapshot: Callable[[], Any] = lambda: None
    restore: Callable[[Any], None] = lambda snapshot: None
    release: Callable[[], None] = lambda: None
    file: ModelFile | None = None


class Sampler(Protocol):
    """Proposes configurations. Its answers are journaled, so it need not be deterministic."""

    total: int | None
    """How many configurations it proposes in all; None when it does not know."""

    def ask(self, trial: int) -> Config | None:
        """Return the configuration of this trial; None when there is none left."""
        ...


@dataclass(frozen=True, slots=True)
class Observation:
    """What a sampler that learns sees of one trial.

    Attributes:
        config: its configuration.
        status: of the trial.
        values: epoch, from 1 → the run's metric, for epochs whose metrics are in.
        best: the run's objectives at its best epoch, the first one's value first; empty: there is none where all are
            finite.
        count: how many the sampler had proposed before this one; -1: it comes from somebody else.
        attributes: those of the Proposal.
    """

    config: Config
    status: Status
    values: Mapping[int, float]
    best: tuple[float, ...]
    count: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a sampler that learns proposes.

    Attributes:
        config: the configuration.
        count: as in Observation.
        attributes: what the sampler must find in the trial's Observation: plain values, as JSON has them.
    """

    config: Config
    count: int = -1
    attributes: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class LearningSampler(Protocol):
    """Proposes configurations from what came of those before. It keeps nothing from one call to the next, so that it
    proposes the same after a resume: all that it knows is the history."""

    total: int | None
    """How many configurations it proposes in all."""

    def propose(self, history: Sequence[Observation]) -> Proposal | None:
        """Return the next configuration, given all trials so far; None when there is none left."""
        ...


class Store(Protocol):
    """Stores States. Put-if-absent: what is stored under an address never changes."""

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync; do nothing where the same bytes are stored. Raises ResourceError when there is no room,
        leaving nothing behind, and StateConflict where other bytes are stored under this address."""
        ...

    def get(self, ref: Ref) -> bytearray | memoryview:
        """Return the bytes as stored, in memory that belongs to the caller. Raises FileNotFoundError."""
        ...

    def has(self, ref: Ref) -> bool:
        """Whether a State is stored under this address."""
        ...

    def delete(self, ref: Ref) -> None:
        """Deletes it; no error when it is not stored."""
        ...

    def refs(self) -> set[Ref]:
        """Return the addresses of all stored States."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """What an engine needs to start agents."""

    card: Callable[[int], bytes]
    """Slot → one line of JSON that admits the agent (`core.messages.Card`). It goes by pipe, never by command line,
    environment of others, or log."""
    log: Callable[[int], Path]
    """Slot → the file that receives the output of the agent."""
    frameworks: tuple[str, ...] = ()
    """Names of `hopyard.frameworks.FRAMEWORKS` that agents import before they are ready."""
    open_ended: bool = False
    """The agents may stay until the user ends them, as those of a program that waits for a feed."""


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
    def address(self) -> tuple[str, int]:
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

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, with none started yet."""
        ...


def is_engine(value: object) -> TypeGuard[Engine]:
    """Whether a user's value is an engine, and not the class of one, or something else."""
    return hasattr(value, "in_process") and not isinstance(value, type)


def starts_agents(engine: Engine) -> TypeGuard[AgentEngine]:
    """Whether its workers are processes of their own."""
    return not engine.in_process
