"""What a recipe returns, which can train on a batch, and what else it may offer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeGuard, runtime_checkable

from hopyard.ports.states import Tree
from hopyard.spec import Batch, Gang, Sums


class PartitionBatches(Protocol):
    """The rows of one partition in a fixed order. Iterating yields Batches; iterating again yields the same ones.

    `columns` and `order` are for frameworks that run a whole partition in one compiled call: they gather
    `columns.inputs[order]` and cut it at `sizes`.
    """

    rows: int
    sizes: Sequence[int]
    """Rows of each batch; a last batch of one row is joined to the one before."""
    order: Any
    """int64 array of shape (rows,): the visit order; None: as stored."""
    seed: int | None

    @property
    def columns(self) -> Any:
        """`.inputs`, `.targets`, `.weights`: memory-mapped arrays (or dicts of arrays) over all rows of the partition,
        and padded ones where rows have any length."""
        ...

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
    dtype); a single input is "inputs", a single label "targets". The shape of rows of any length is (None,)."""

    def set_schema(
        self,
        inputs: Mapping[str, tuple[tuple[Any, ...], str]],
        targets: Mapping[str, tuple[tuple[Any, ...], str]],
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
class SupportsFrozen(Protocol):
    """A Trainable whose State leaves out what is frozen, and has a digest of it."""

    def frozen_bytes(self) -> int:
        """Return the bytes of what is frozen; 0: nothing is."""
        ...

    def changed_frozen(self) -> list[str]:
        """Return the names of frozen parts that have changed since the model was built. It reads all of them."""
        ...

    def declared_state(self) -> list[Any]:
        """Return the parts that training changes though they need no gradients: no two trials may share them."""
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
