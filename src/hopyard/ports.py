"""The Protocols of engines, stores, searches, and of what a recipe returns. What one package alone asks for is there
(`data.sources.source`, `driver.links`). Conformance suites are under `tests/ports/`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from numpy.typing import NDArray

from hopyard.spec import Batch, Config, Ref, Sums

Tree = Any
"""What a State is made of: dicts, lists, tuples, strings, numbers, booleans, None, and arrays (NumPy or torch)."""


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An array of a State that is not simply NumPy's.

    Attributes:
        array: the values; dtypes that NumPy lacks as uint16 or uint8 of the same shape.
        dtype: safetensors' name of the real dtype: "F32", "BF16", "F8_E4M3", …; also "C64", "C128".
        kind: whose array it is: "torch" comes back as a torch tensor; "ml_dtypes"; "numpy".
    """

    array: NDArray[Any]
    dtype: str
    kind: str = "numpy"


class PartitionBatches(Protocol):
    """The rows of one partition in a fixed order. Iterating gives Batches; iterating again gives the same.

    `columns` and `order` are for frameworks that run a whole partition in one compiled call: gather
    `columns.inputs[order]` and cut it at `sizes`.
    """

    rows: int
    sizes: Sequence[int]
    """Rows of each batch; a last batch of one row has joined the one before."""
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

    A Trainable that can do more has the methods of the `Supports…` protocols below; it need not name them.
    """

    batch_size: int

    @abstractmethod
    def state(self) -> Tree:
        """Everything that training changes: a tree of tensors, numbers and strings."""

    @abstractmethod
    def load(self, tree: Tree) -> None:
        """Take over what `state` gave, by copying values into the tensors that are there."""

    @abstractmethod
    def train(self, batch: Batch) -> Mapping[str, tuple[Any, float]]:
        """One step."""

    @abstractmethod
    def evaluate(self, batch: Batch) -> Mapping[str, tuple[Any, float]]:
        """The same without changing anything."""


@runtime_checkable
class SupportsWholePartition(Protocol):
    """Goes over a whole partition by itself, faster than batch by batch."""

    def train_partition(self, batches: PartitionBatches) -> Sums: ...

    def evaluate_partition(self, batches: PartitionBatches) -> Sums: ...


def goes_whole(trainable: Trainable) -> TypeGuard[SupportsWholePartition]:
    """Whether it goes whole. Asked for each partition, where `isinstance` with a Protocol takes 17 µs."""
    return all(getattr(trainable, name, None) is not None for name in ("train_partition", "evaluate_partition"))


@runtime_checkable
class SupportsSchema(Protocol):
    """Wants to know what the data looks like, before anything else. Array name → (shape of one row, NumPy dtype); a
    single input is "inputs", a single label "targets"."""

    def set_schema(
        self,
        inputs: Mapping[str, tuple[tuple[int, ...], str]],
        targets: Mapping[str, tuple[tuple[int, ...], str]],
    ) -> None: ...


@runtime_checkable
class SupportsDevice(Protocol):
    """Moves to a device, for example "cuda", before it trains. Not asked where the device is "cpu"."""

    def to_device(self, device: str) -> None: ...


@runtime_checkable
class SupportsSharing(Protocol):
    """Knows which others differ from it in nothing but their State. A worker then builds (compiles) one of them and
    lets the States of all pass through it."""

    @property
    def sharing_key(self) -> str:
        """Equal for such; "": only those of the same trial."""
        ...


@runtime_checkable
class SupportsLabelCheck(Protocol):
    """Knows which labels it can learn."""

    def label_fault(self, batch: Batch, low: float, high: float) -> str:
        """What is wrong with a label column whose values lie in [low, high]; "" when nothing is."""
        ...


@runtime_checkable
class ReportsNondeterminism(Protocol):
    """Knows what of its steps cannot be repeated bit by bit."""

    @property
    def nondeterminism(self) -> tuple[str, ...]:
        """A sentence for each, as far as the steps that it has made tell."""
        ...


@runtime_checkable
class SupportsEpochEnd(Protocol):
    """Wants to know when an epoch of its trial ends (before its State is taken)."""

    def end_epoch(self) -> None: ...


@runtime_checkable
class SupportsResult(Protocol):
    """Has additive arrays among its metrics: the value of metric `name` from its total."""

    def result(self, name: str, total: Any, rows: float) -> float: ...


@runtime_checkable
class SupportsPredict(Protocol):
    """Gives outputs for a batch, as a NumPy array (or dict of arrays) of shape (rows, …)."""

    def predict(self, batch: Batch) -> Any: ...


@runtime_checkable
class LoadCopies(Protocol):
    """Says whether `load` copies all that it is given, which may then be views of shared memory."""

    load_copies: bool


@runtime_checkable
class FrameworkModel(Protocol):
    """Holds a model of a framework, which `frameworks.model_file` takes out, saves and loads."""

    framework: str


@dataclass(frozen=True, slots=True)
class ModelFile:
    """How models of one framework are written to a file and read from it.

    Attributes:
        name: of the file, for example "model.safetensors".
        model: `model(trainable)` gives the framework's own model in a Trainable.
        save: `save(model, path)`; the file is there whole or not at all.
        load: `load(model, path)` reads it into a model of the same build, and returns that.
    """

    name: str
    model: Callable[[Any], Any]
    save: Callable[[Any, Path], None]
    load: Callable[[Any, Path], Any]


@dataclass(frozen=True, slots=True)
class Runtime:
    """What one framework needs done to the process that it trains in. Each has a conformance test.

    Attributes:
        versions: what equal digests may depend on.
        prepare: imports what recipes use, beforehand.
        warm: does what the framework puts off until a first step.
        install: `install(exact, threads)` sets threads (0: as they are) and determinism of the process for a run.
        reseed: `reseed(seed)`, before each recipe and each partition: seeds all generators of the process.
        before_recipe: `before_recipe(seed, named)`; `named`: the recipe's code names the framework.
        after_recipe: as soon as the recipe has returned.
        adopt: what a recipe returned, as a Trainable if it is a model of the framework.
        snapshot: what a run changes in the process.
        restore: `restore(snapshot)` puts it back; None: the framework was imported since, so as it is at first.
        release: gives back memory of devices that is kept for nothing.
        file: of saved models; None: there are none.
    """

    versions: Callable[[], dict[str, Any]]
    prepare: Callable[[], None] = lambda: None
    warm: Callable[[], None] = lambda: None
    install: Callable[[bool | Literal["warn"], int], None] = lambda exact, threads: None
    reseed: Callable[[int], None] = lambda seed: None
    before_recipe: Callable[[int, bool], None] = lambda seed, named: None
    after_recipe: Callable[[], None] = lambda: None
    adopt: Callable[[Any], Any] = lambda value: value
    snapshot: Callable[[], Any] = lambda: None
    restore: Callable[[Any], None] = lambda snapshot: None
    release: Callable[[], None] = lambda: None
    file: ModelFile | None = None


class Sampler(Protocol):
    """Proposes configurations. What it answers is journaled, so it need not be deterministic."""

    total: int | None
    """How many it proposes in all; None when it does not know."""

    def ask(self, trial: int) -> Config | None:
        """The configuration of this trial; None when there is none left."""
        ...


class Store(Protocol):
    """Where States are kept. Put-if-absent: what is stored under an address never changes."""

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync. Raises ResourceError when there is no room, leaving nothing behind."""
        ...

    def get(self, ref: Ref) -> bytearray | memoryview:
        """The bytes as stored, in memory of the caller's own. Raises FileNotFoundError."""
        ...

    def has(self, ref: Ref) -> bool:
        """Whether it is stored."""
        ...

    def delete(self, ref: Ref) -> None:
        """No error when it is not there."""
        ...

    def refs(self) -> set[Ref]:
        """All that is stored."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """What an engine needs to bring up agents."""

    card: Callable[[int], bytes]
    """Slot → one line of JSON that lets the agent in (`core.messages.Card`). It goes by pipe, never by command line,
    environment of others, or log."""
    log: Callable[[int], Path]
    """Slot → the file that takes what the agent prints."""


class OutOfMemory(str):
    """The reason why an agent ended, where the system killed it because the memory of its host ran out."""

    __slots__ = ()


class Agents(Protocol):
    """The agents of one run, as their engine sees them."""

    def start(self, slot: int) -> None:
        """Begin to bring up an agent; returns at once."""
        ...

    def end(self, slot: int) -> None:
        """End an agent for good; after this returns it does nothing more."""
        ...

    def lost(self) -> list[tuple[int, str]]:
        """(slot, reason) of agents that ended since last asked. A reason may be an `OutOfMemory`.

        Raises:
            ResourceError: no agent can ever come up; says why.
        """
        ...

    def watch(self) -> list[int]:
        """File descriptors that become readable when an agent ends."""
        ...

    def waits(self, slot: int) -> bool:
        """Whether there is no place yet where its agent could be started; then its silence means nothing."""
        ...

    def device(self, slot: int) -> str:
        """ "cpu" or "cuda"."""
        ...

    def close(self) -> None:
        """End all; nothing is left behind."""
        ...


@runtime_checkable
class ReleasesCores(Agents, Protocol):
    """Agents that hold cores of a cluster, and can go on without holding them. May be asked by any thread."""

    def release_cores(self, slots: Collection[int]) -> None:
        """Give the cores of these agents back to the cluster, while they go on: others need the room. Returns when
        that is done; also for slots that come up later, until `reacquire_cores`. Blocks for tens of milliseconds.

        Raises:
            ResourceError: the cluster did not take them back within 5 s; names the slots.
        """
        ...

    def reacquire_cores(self) -> None:
        """Ask to hold them again; returns at once, they come when there is room."""
        ...


class Engine(Protocol):
    """Where units run. Workers that are not this very process are agents, which an `AgentEngine` brings up."""

    @property
    def name(self) -> str:
        """One word: "local"."""
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
        """More environment for its workers."""
        ...

    @property
    def apart(self) -> bool:
        """Whether its agents may be on other hosts than this process, and than each other."""
        ...

    @property
    def in_process(self) -> bool:
        """Whether its only worker is this very process. Else it is an `AgentEngine`."""
        ...


class AgentEngine(Engine, Protocol):
    """Where agents run, which are processes of their own."""

    @property
    def address(self) -> tuple[str, int]:
        """(host by which its agents reach this process, port to listen on; 0: any that is free)."""
        ...

    @property
    def states_port(self) -> int:
        """Port to listen on for those who store States through this process; 0: any that is free."""
        ...

    @property
    def start_timeout(self) -> float:
        """Seconds until there must be a slot for each task of a program, unless the program says otherwise."""
        ...

    @property
    def driver_workers(self) -> int:
        """How many of its slots, the last ones, are beside this process, though the others are in a cluster."""
        ...

    def open(self, launch: LaunchInfo) -> Agents:
        """The agents, with nobody started yet."""
        ...


def is_engine(value: object) -> TypeGuard[Engine]:
    """Whether a value of the user's is an engine, and not a class of one, or something else."""
    return hasattr(value, "in_process") and not isinstance(value, type)


def starts_agents(engine: Engine) -> TypeGuard[AgentEngine]:
    """Whether its workers are processes of their own."""
    return not engine.in_process
