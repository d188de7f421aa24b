"""The frozen values that all packages share: Ref, Unit, Part, RunSpec, Batch.

They have no behaviour beyond their own validation, and know nothing of clocks, files or frameworks. Those that are sent
or journaled are msgspec Structs; their field names are part of the journal's format and never change meaning.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar, cast

import msgspec

from hopyard.checks import number, one_of, scalar, seconds, whole
from hopyard.errors import SpecError
from hopyard.stopping import RULES, Rule
from hopyard.text import shown, unwritable

T = TypeVar("T")
FORMAT = 1
"""Version of the journal. A reader refuses a newer journal than it knows."""

Config = dict[str, Any]
"""One point of a Space: parameter name → number, string, boolean, None, or a list of these."""

Values = float | list[float]
"""The sum of a metric over rows: one number, or an additive array (AUC's bins)."""

Sums = dict[str, tuple[Values, float]]
"""Metric name → (sum over rows, rows). Rows are a float because weighted rows add up to one."""


def copied(value: T) -> T:
    """Return a copy of a plain value. All values that go to user code or come from it are copies: a recipe may insert
    into a list of its configuration, and the journal must not see it."""
    if isinstance(value, dict):
        return cast(T, {name: copied(item) for name, item in value.items()})
    return cast(T, [copied(item) for item in value]) if isinstance(value, list) else value


class Array(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An additive array as messages, the journal and the machine hold it. (In a list, a number takes 32 bytes of memory
    and up to 20 of text.) In JSON `data` is base64.
    """

    size: int
    """How many numbers."""
    data: bytes
    """float64, little endian; compressed by zlib where that has fewer than 8 * size bytes."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Array:
        """Packs these numbers, to the last bit."""
        data = struct.pack(f"<{len(numbers)}d", *numbers)
        compressed = zlib.compress(data, 6)
        return cls(len(numbers), compressed if len(compressed) < len(data) else data)

    def numbers(self) -> list[float]:
        """Return the numbers as they were packed."""
        data = self.data
        if len(data) != 8 * self.size:
            data = zlib.decompressobj().decompress(data, 8 * self.size)
        return list(struct.unpack(f"<{self.size}d", data))


PackedSums = dict[str, tuple[float | Array, float]]
"""Sums with packed arrays."""


def packed(sums: Sums) -> PackedSums:
    """Return the sums with their arrays packed."""
    return {name: (Array.of(total) if isinstance(total, list) else total, rows) for name, (total, rows) in sums.items()}


RowKind = Literal["train", "validate"]
"""Which rows of a Dataset."""
Kind = Literal["train", "validate", "fold"]
Fault = Literal["user", "data", "system", "store", "memory"]
"""The cause of a fault: the recipe, the rows, the system (network, disk, a lost worker), the store of States, or that
memory ran out."""
Encrypt = bool | Literal["between hosts"]
"""Whether States are encrypted when they are sent over the network."""
Status = Literal["waiting", "running", "paused", "completed", "stopped", "failed"]


class Ref(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The address of a State, which has it from the moment it is produced; a digest seals the State later."""

    trial: int
    step: int
    """Partitions finished."""
    attempt: int
    """The lease that produced it: a State that is produced again gets another address and the same digest."""

    def __str__(self) -> str:
        return f"{self.trial}-{self.step}-{self.attempt}"


class PartitionRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive partitions of one kind."""

    kind: RowKind
    first: int
    end: int
    """One more than the last."""


class ModelInfo(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The model that a trial's recipe returned, for workers that have built one of equal key already."""

    sharing_key: str
    """Equal for models that differ only in their State; "": equal to no model of another trial."""
    batch_size: int
    reads_epochs: bool = False
    """Whether the recipe asked for the run's number of epochs (`RecipeContext.epochs`), so that a run of more epochs
    trains another model."""


class Unit(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One piece of work: from State `start`, go over `partitions` of `epoch`; produce a new State and metric sums.

    `start` None is a fresh build, seeded by (run seed, trial). A "train" unit produces
    `Ref(trial, start.step + len(partitions), lease)`; "validate" only sums; "fold" has no partitions and turns
    additive arrays into metric values (`totals`).
    """

    lease: int
    trial: int
    kind: Kind
    epoch: int
    partitions: tuple[int, ...]
    start: Ref | None
    memory_key: str = ""
    """Where the State is in shared memory, if it still is; an opaque key of the agent that produced it."""
    digest: str = ""
    """BLAKE3 of the stored State when it is durable, otherwise empty."""
    totals: dict[str, tuple[Array, float]] | None = None
    model: ModelInfo | None = None
    """The model that the trial's recipe returns, if a worker has reported it."""

    @property
    def step(self) -> int:
        """Partitions finished when the unit starts."""
        return 0 if self.start is None else self.start.step


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The result of one partition of a unit."""

    partition: int
    sums: PackedSums
    seconds: float


class Warned(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A warning (of Python's `warnings`) that a recipe, its model or its loss gave."""

    text: str
    """Its class and text: "UserWarning: Using a target size …"."""
    place: str
    """The innermost line of the user's code, and the line of a library that it came from."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits after which a worker counts as lost. They do not affect results, so a resume may change them.

    A lost worker is replaced, and its unit done again; a unit that loses three workers ends its trial. With
    `hy.Inline()`, whose worker is this process, only `unit_timeout` means anything, once the unit has ended.

    Args:
        heartbeat_timeout: seconds without a heartbeat: the process was stopped, or its host is gone. A worker that
            ended is noticed at once.
        stall_timeout: seconds without progress. Progress is a batch that is finished, bytes that are read, a change of
            phase; while a model is built or compiled, processor time as well.
        unit_timeout: seconds that one unit may take, whatever progress it makes; None: any number.
        durable_timeout: seconds in which a worker that owes the State at the end of an epoch must store something. The
            time in which the store is away, as the worker then says, does not count, unless other workers store their
            States meanwhile. A trial ends when three of its workers in a row were replaced.

    Example:
        >>> import hopyard as hy
        >>> hy.Timeouts(stall_timeout=60).heartbeat_timeout
        15.0
    """

    heartbeat_timeout: float = 15.0
    stall_timeout: float = 600.0
    unit_timeout: float | None = None
    durable_timeout: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, none = getattr(self, name), "for any" if name == "unit_timeout" else ""
            if value is not None or not none:
                msgspec.structs.force_setattr(self, name, seconds(name, value, none=none))


class Outer(msgspec.Struct, frozen=True, array_like=True):
    """The optimizer that takes a step with what a round of local steps has changed (`parallel.Nesterov`)."""

    lr: float
    momentum: float


class Gang(msgspec.Struct, frozen=True, omit_defaults=True):
    """How several workers train one model: a value of the whole run, which decides its results."""

    size: int = 1
    """Members of a gang, k."""
    exchange: Literal["gradients", "parameters"] = "gradients"
    """What they exchange: gradients in each step, or parameters after each round of local steps."""
    accumulate: int = 1
    """Pieces into which a member cuts its share of a batch; their gradients are added up."""
    every: int = 1
    """Steps of a round, τ."""
    warmup: int = 0
    """The first steps of training, each of which is a round."""
    outer: Outer | None = None
    """The outer optimizer of a round; None: parameters are averaged."""
    inner: Literal["keep", "average", "reset"] = "keep"
    """What becomes of the members' own optimizers at a round's end."""
    compress: Literal["", "fp16", "bf16", "int8"] = ""
    """The numbers that travel; empty: those that are there."""
    least: int = 0
    """With how few members gangs go on where the engine has no more; 0: with no fewer than `size`."""

    @property
    def serial(self) -> bool:
        """Whether it trains as one worker without a gang does."""
        return self.size == 1 and self.accumulate == 1


Mode = Literal["min", "max"]
"""Which values of a metric are better."""

SECONDS = "seconds"
"""The objective that no recipe reports: the time that workers spent on a trial."""


class Objective(msgspec.Struct, frozen=True, array_like=True):
    """A metric that decides which trials are good."""

    metric: str
    mode: Mode

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "metric", scalar(self.metric))
        if not isinstance(self.metric, str) or not self.metric or unwritable(self.metric):
            raise SpecError(f'metric must be the name of a metric (for example "val_loss"), got {shown(self.metric)}')
        msgspec.structs.force_setattr(self, "mode", one_of("mode", self.mode, ("min", "max")))


def _metric(name: str, value: Any) -> Any:
    metric = scalar(value)
    if fault := unwritable(metric):
        raise SpecError(f"{name} = {metric!a}: {fault}")
    return metric


CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("epochs", "partitions", "strikes"), partial(whole, least=1)),
    **dict.fromkeys(("validation", "group", "retries", "batch"), partial(whole, least=0)),
    "seed": whole,
    "metric": _metric,
    "mode": partial(one_of, allowed=("min", "max")),
    "exact": partial(one_of, allowed=(True, False, "warn")),
    "max_time": lambda name, value: None if value is None else seconds(name, value, none="for any"),
    "goal": lambda name, value: None if value is None else number(name, value),
}
"""Field of RunSpec → its check, (name, value) → the value to use."""


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides the results and the schedule of a run; the first line of its journal holds it."""

    epochs: int
    partitions: int
    """Training partitions, P."""
    validation: int
    """Validation partitions; 0 when there is no validation data."""
    trials: int | None = None
    """How many trials the search proposes in all; None when it does not know."""
    seed: int = 0
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    exact: bool | Literal["warn"] = "warn"
    group_seconds: float = 1.0
    """Units over consecutive partitions are grouped up to about this much work; 0: never."""
    group: int = 0
    """Partitions of each unit; 0: by `group_seconds`."""
    strikes: int = 3
    """A unit that lost this many slots ends its trial as poison."""
    stop: Rule | None = None
    """Stops, pauses and promotes trials; None: each is trained to the end."""
    batch: int = 0
    """Trials are proposed so many at a time, the next ones when all of these have ended; 0: as others end."""
    max_time: float | None = None
    """Seconds, with a driver at work, after which the run ends with what it has."""
    goal: float | None = None
    """The value of `metric` at which the run ends."""
    retries: int = 8
    """How often a unit is retried after faults of the system, each time after a longer wait."""
    timeouts: Timeouts = Timeouts()
    """Timeouts of this run's first driver; later ones may have others (`Resumed.timeouts`)."""
    gang: Gang | None = None
    """How several workers train one model; None: each worker trains alone."""
    copies: int | None = None
    """Hosts that are home to each partition (`core/runs/scheduling/homes.py`); None: rows go to every host that needs
    them. It never changes results."""
    also: tuple[Objective, ...] = ()
    """Objectives beside `metric`, which is the first."""

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            msgspec.structs.force_setattr(self, name, check(name, getattr(self, name)))
        if self.goal is not None and self.metric is None:
            raise SpecError(f"goal = {self.goal:g} needs metric= and mode=, whose value it is, got metric=None")
        if isinstance(self.stop, RULES) and self.metric is None:
            raise SpecError(
                f"stop = hy.{type(self.stop).__name__}(…) needs metric= and mode=, by which it compares: "
                'metric="val_loss", mode="min" for example, got metric=None'
            )
        if self.stop is not None:
            self.stop.check(self.epochs, self.metric or "")

    @property
    def steps(self) -> int:
        """Partitions that a trial goes over in the whole run."""
        return self.epochs * self.partitions

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What decides, the first one first; empty: the run has no metric."""
        return () if self.metric is None else (Objective(self.metric, self.mode), *self.also)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Which values of the objectives are better, for a sampler."""
        return tuple([each.mode for each in self.objectives]) or (self.mode,)

    @property
    def members(self) -> int:
        """How many workers train one model together, k."""
        return 1 if self.gang is None else self.gang.size

    @property
    def own_batches(self) -> int:
        """How many workers have batches of their own in a step: k where parameters are averaged, else 1."""
        return self.gang.size if self.gang is not None and self.gang.exchange == "parameters" else 1


def with_members(spec: RunSpec, members: int) -> RunSpec:
    """Return the spec with so many workers in a gang."""
    assert spec.gang is not None
    return msgspec.structs.replace(spec, gang=msgspec.structs.replace(spec.gang, size=members))


def better(mode: str, a: float | None, b: float | None) -> bool:
    """Whether metric value `a` is strictly better than `b` (`mode` "min" or "max"); None and values that are not finite
    are worst."""
    if a is None or not math.isfinite(a):
        return False
    if b is None or not math.isfinite(b):
        return True
    return a < b if mode == "min" else a > b


@dataclass(slots=True)
class Batch:
    """Rows in the order of training. Arrays are NumPy, C-contiguous, 64-byte aligned; copy what you keep, because their
    memory is used again for later batches.

    Attributes:
        inputs: array of shape (rows, …), or a dict of such by input name.
        targets: array of shape (rows, …), a dict of such, or None.
        weights: float32 array of shape (rows,), or None.
        rows: how many rows.
        seed: keyed by (run seed, trial, epoch, partition); None when nothing about it is random (validation).
    """

    inputs: Any
    targets: Any
    weights: Any
    rows: int
    seed: int | None = None


def _ignore(name: Any, value: Any) -> None:
    pass


@dataclass(slots=True)
class RecipeContext:
    """What a `recipe(config, ctx)` receives in addition to its config.

    A schedule of the learning rate over the whole run, which steps after each batch, has
    `total_steps=ctx.epochs * ctx.batches(config["batch_size"])`.

    Attributes:
        device: "cpu" or "cuda".
        inputs: input name → (shape of one row, NumPy dtype name); a single input has the name "inputs". The shape of
            rows of any length is (None,), and that of their mask.
        classes: number of classes when the label is one column of whole numbers ≥ 0 (largest + 1) or of categories that
            encode= made numbers or one-hot rows of; else None.
        seed: the seed of this trial's build; torch, NumPy and random are already seeded with it.
        trial: the number of the trial.
        partition_rows: training rows of each partition.
        categories: feature that encode= made categories of → how many codes it has, that of other values
            (`hy.Categories`) included: `num_embeddings` of an embedding of an "index".
    """

    device: str
    inputs: dict[str, tuple[tuple[Any, ...], str]]
    classes: int | None
    seed: int
    trial: int
    partition_rows: tuple[int, ...] = ()
    _epochs: int = field(default=1, repr=False)
    _own_batches: int = field(default=1, repr=False)
    """How many workers have batches of their own in a step."""
    categories: dict[str, int] = field(default_factory=dict)
    _log: Callable[[Any, Any], None] = field(default=_ignore, repr=False, compare=False)
    """Takes what is logged: the worker's `logged.Collector`."""
    _asked: set[str] = field(default_factory=set, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(self, "_asked"):  # the last that is set when it is made
            object.__setattr__(self, name, value)
            return
        raise SpecError(
            f"ctx.{name} = {shown(value)}: "
            + (
                "the number of epochs is set by select(epochs=)"
                if name == "epochs"
                else "a recipe's context is read only"
            )
        )

    @property
    def rows(self) -> int:
        """Training rows of all partitions."""
        return sum(self.partition_rows)

    @property
    def epochs(self) -> int:
        """Epochs of the run. A recipe that asks for them trains another model where the run has more: it is noted that
        it did."""
        self._asked.add("epochs")
        return self._epochs

    @property
    def epochs_read(self) -> bool:
        """Whether `epochs` was asked for."""
        return "epochs" in self._asked

    def batches(self, batch_size: int) -> int:
        """Return the number of optimizer steps in one epoch: each partition ends with a short batch of its own, but for
        a last batch of one row, which joins the batch before it. (`hy.torch.Model` takes no step for a batch in which
        all rows weigh 0.) Under `hy.LocalSGD` they are the steps of each worker, which has batches of its own.

        Args:
            batch_size: rows of a batch: that of `hy.torch.Model` or the config; 32 where neither names one.

        Raises:
            SpecError: it is not an integer >= 1.
        """
        size = whole("batch_size", batch_size, 1) * self._own_batches
        return sum(rows // size + (rows % size > 1 or rows == 1 < size) for rows in self.partition_rows)

    def log(self, name: str, value: Any) -> None:
        """Log a number or an array while the model trains, for trackers: from a loss, a step of your own, a callback of
        Keras or a hook of torch. Each partition has one point of each name, the mean of the numbers or a histogram of
        the arrays, of all members of a gang. A mean is NaN or infinite if one of its numbers is; histograms count those
        apart. While the model does not train (in validation, for example), calls are ignored.

        Args:
            name: 1 to 100 printable characters.
            value: a number of Python or NumPy, or an array or tensor on any device. One of a single element is a
                number, an empty one is ignored.

        Raises:
            SpecError: it is no such name or value; inside a compiled step (tf.function, jax.jit) tensors have none.
        """
        self._log(name, value)
