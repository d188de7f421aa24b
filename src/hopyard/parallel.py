"""How trials share the workers, and how several workers share one trial: the values of `parallel=`.

Each is a schedule (which trial is where) and a gang (how many workers train it together, and what they exchange). They
are the user's words; what a run keeps of them is in its `RunSpec` (`group`, `group_seconds`, `gang`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from hopyard.checks import one_of, real, scalar, whole
from hopyard.errors import SpecError
from hopyard.spec import Gang, Outer, RunSpec
from hopyard.text import shown

SMALL = 256 << 20
"""Bytes of a table up to which `copies="auto"` lets rows go to all hosts. With 8 partitions of 0.02 to 0.1 s on 8 hosts
and hops of 0.05 to 0.3 s, one home each took 1.7 to 5 times as long."""


@dataclass(frozen=True, slots=True)
class Hopper:
    """Model hopper parallelism: data stays, models hop. Trial i is at partition (s(i) + k) mod P after k
    partitions; s is a permutation that spreads the trials' starts over the table.

    Source: Nakandala, Zhang, Kumar, "Cerebro: A Data System for Optimized Deep Learning Model Selection", VLDB 2020,
    §4. We differ: no barrier between epochs, and order is by partition, never by worker.

    Args:
        group: how many consecutive partitions one unit may cover. "auto": up to about one second of work; "off" or 1:
            one; a whole number: that many. It never changes results.
        gang: how many workers train a trial together, as `AllReduce` does; trials hop from gang to gang.
        copies: on how many hosts each partition is at home. A host works on the partitions that are at home there, so
            1 keeps one copy of the table in all; None: each host fetches whatever it needs, in the end the whole
            table. "auto": 1, but None for a table of at most 256 MiB, which costs less to copy than models to hop.
            It never changes results.
    """

    group: int | Literal["auto", "off"] = "auto"
    gang: int = 1
    copies: int | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        group = scalar(self.group)
        is_count = isinstance(group, int) and not isinstance(group, bool) and group >= 1
        if not is_count and not (isinstance(group, str) and group in ("auto", "off")):
            raise SpecError(f'Hopper(group=…) must be "auto", "off" or an integer >= 1, got {shown(self.group)}')
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "gang", whole("Hopper(gang=)", self.gang, 1))
        copies = scalar(self.copies)
        is_count = isinstance(copies, int) and not isinstance(copies, bool) and copies >= 1
        if not is_count and copies is not None and not (isinstance(copies, str) and copies == "auto"):
            raise SpecError(f'Hopper(copies=…) must be "auto", an integer >= 1 or None, got {shown(self.copies)}')
        object.__setattr__(self, "copies", copies)


@dataclass(frozen=True, slots=True)
class TaskParallel:
    """Each trial goes over all partitions of an epoch in one place, as one unit of work; nothing hops inside an epoch.
    The bits are those of `Hopper`, whose units may be as long as well; a worker that is lost costs up to an epoch. For
    models that take long to move, and for comparisons."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Synchronous data parallelism, as Horovod and DistributedDataParallel do it: each batch is split over the workers
    of a gang, and their gradients are averaged before each step.

    `batch_size` is that of the whole batch. The mean is weighted by rows, so that the gang takes the same steps as one
    worker with the whole batch would, up to rounding; equal numbers of workers give equal bits.

    Args:
        workers: workers of a gang; None: all that the engine has when the run starts.
        accumulate: pieces into which each worker cuts its share of a batch, which take turns in memory; their gradients
            are added up.
        compress: "fp16": gradients travel in half precision; None: as they are.
        min_workers: with how few workers a gang goes on after a loss, where the engine has no more; None: it waits for
            others, or the run ends. What comes out then depends on what happened.

    Source: Sergeev, Del Balso, "Horovod: fast and easy distributed deep learning in TensorFlow", arXiv:1802.05799, §3.
    We differ: shares are weighted by their rows, so the last batch may be uneven.
    """

    workers: int | None = None
    accumulate: int = 1
    compress: Literal["fp16"] | None = None
    min_workers: int | None = None

    def __post_init__(self) -> None:
        _check_workers("AllReduce", self)
        object.__setattr__(self, "accumulate", whole("AllReduce(accumulate=)", self.accumulate, 1))
        object.__setattr__(self, "compress", one_of("AllReduce(compress=)", self.compress, (None, "fp16")))


@dataclass(frozen=True, slots=True)
class Nesterov:
    """The outer optimizer of `LocalSGD`: a step of Nesterov's momentum along what a round has changed. DiLoCo has
    `Nesterov(0.7, 0.9)`; `Nesterov(1.0, 0.0)` is the plain average.

    Args:
        lr: learning rate, > 0.
        momentum: in [0, 1).

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", arXiv:2311.08105,
    algorithm 1.
    """

    lr: float
    momentum: float

    def __post_init__(self) -> None:
        for name in ("lr", "momentum"):
            value = real(getattr(self, name))
            if not (0 < value < math.inf if name == "lr" else 0 <= value < 1):
                allowed = "a finite number > 0" if name == "lr" else "a number in [0, 1)"
                raise SpecError(f"Nesterov({name}=) must be {allowed}, got {shown(getattr(self, name))}")
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Each worker of a gang takes `every` steps on batches of its own; then their parameters are averaged.

    `batch_size` is each worker's own. A round ends after `every` steps, and at each partition's end, so that results do
    not depend on which partitions are grouped into one unit.

    Args:
        workers: workers of a gang; None: all that the engine has when the run starts.
        every: steps between two averages, τ.
        outer: `Nesterov(lr, momentum)`: an optimizer that takes a step along the mean change of a round; None: the mean
            itself. One worker has no use for it.
        inner: what becomes of the workers' optimizers (momenta and the like) after a round: "keep": each goes on with
            its own; "average": all go on with their mean; "reset": all begin anew.
        compress: "bf16" or "int8": how parameters travel; None: as they are.
        warmup: the first so many steps of training are averaged one by one, and without `outer`; only then rounds begin
            (post-local SGD).
        min_workers: as in `AllReduce`. With `inner="keep"`, what the last workers' optimizers had is dropped.

    Source: Moritz et al., "SparkNet: Training Deep Networks in Spark", ICLR 2016, algorithm 1 (τ); Douillard et al.,
    "DiLoCo", arXiv:2311.08105 (outer); Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, §3
    (warmup).
    """

    workers: int | None = None
    every: int = 10
    outer: Nesterov | None = None
    inner: Literal["keep", "average", "reset"] = "keep"
    compress: Literal["bf16", "int8"] | None = None
    warmup: int = 0
    min_workers: int | None = None

    def __post_init__(self) -> None:
        _check_workers("LocalSGD", self)
        object.__setattr__(self, "every", whole("LocalSGD(every=)", self.every, 1))
        object.__setattr__(self, "warmup", whole("LocalSGD(warmup=)", self.warmup, 0))
        if self.outer is not None and not isinstance(self.outer, Nesterov):
            raise SpecError(f"LocalSGD(outer=) must be hy.Nesterov(lr, momentum) or None, got {shown(self.outer)}")
        inner = one_of("LocalSGD(inner=)", self.inner, ("keep", "average", "reset"))
        object.__setattr__(self, "inner", inner)
        compress = one_of("LocalSGD(compress=)", self.compress, (None, "bf16", "int8"))
        object.__setattr__(self, "compress", compress)


Parallel = Hopper | TaskParallel | AllReduce | LocalSGD
MOST = 1 << 20
"""The most copies; more than there are hosts say the same."""
PARALLEL = (Hopper, TaskParallel, AllReduce, LocalSGD)
CHOICES = "hy.Hopper(), hy.TaskParallel(), hy.AllReduce() or hy.LocalSGD()"
"""The values of `parallel=`, for messages."""


def _check_workers(name: str, value: Any) -> None:
    for each in ("workers", "min_workers"):
        if (count := getattr(value, each)) is not None:
            object.__setattr__(value, each, whole(f"{name}({each}=)", count, 1))
    if value.workers is not None and value.min_workers is not None and value.min_workers > value.workers:
        raise SpecError(
            f"{name}(min_workers=) must be at most workers={value.workers}, got {value.min_workers}: gangs only get "
            "smaller"
        )


def any_workers(parallel: Parallel | None) -> bool:
    """Whether a gang has as many workers as the engine."""
    return isinstance(parallel, (AllReduce, LocalSGD)) and parallel.workers is None


def gang_of(parallel: Parallel, workers: int) -> Gang | None:
    """Return the gang that `parallel` asks for, on an engine of so many workers."""
    if isinstance(parallel, TaskParallel):
        return None
    if isinstance(parallel, Hopper):
        return None if parallel.gang == 1 else Gang(parallel.gang)
    size, least = workers if parallel.workers is None else parallel.workers, parallel.min_workers or 0
    if least > size:
        raise SpecError(
            f"min_workers must be at most {size}, the workers of the engine, got {least}: gangs only get smaller"
        )
    if isinstance(parallel, AllReduce):
        return Gang(size, accumulate=parallel.accumulate, compress=parallel.compress or "", least=least)
    outer = None if parallel.outer is None else Outer(parallel.outer.lr, parallel.outer.momentum)
    return Gang(
        size,
        "parameters",
        every=parallel.every,
        warmup=parallel.warmup,
        outer=outer,
        inner=parallel.inner,
        compress=parallel.compress or "",
        least=least,
    )


def grouping(parallel: Parallel) -> dict[str, Any]:
    """Return the fields of a RunSpec that say how partitions are grouped into units. Under `TaskParallel` a unit has
    all, whose number only the data tells (`for_table`)."""
    group = parallel.group if isinstance(parallel, Hopper) else "auto"
    return {"group": group if isinstance(group, int) else 0, "group_seconds": 0.0 if group == "off" else 1.0}


def for_table(parallel: Parallel | None, spec: RunSpec, size: int) -> RunSpec:
    """Return the spec of a run whose table is known: it has `spec.partitions` partitions, and `size` bytes in all."""
    if isinstance(parallel, TaskParallel):
        return msgspec.structs.replace(spec, group=spec.partitions, copies=None)
    copies = parallel.copies if isinstance(parallel, Hopper) else "auto"
    if copies == "auto":
        copies = 1 if size > SMALL else None
    return msgspec.structs.replace(spec, copies=None if copies is None else min(copies, MOST))


def parallel_of(spec: RunSpec) -> Parallel:
    """Return the `parallel=` that a run was started with, as far as its results and its schedule tell."""
    gang, group = spec.gang, spec.group or ("auto" if spec.group_seconds else "off")
    if gang is None or (group != "auto" and gang == Gang(gang.size)):
        return Hopper(group, spec.members)  # type: ignore[arg-type]
    least = gang.least or None
    if gang.exchange == "gradients":
        return AllReduce(gang.size, gang.accumulate, gang.compress or None, least)  # type: ignore[arg-type]
    outer = None if gang.outer is None else Nesterov(gang.outer.lr, gang.outer.momentum)
    compress: Any = gang.compress or None
    return LocalSGD(gang.size, gang.every, outer, gang.inner, compress, gang.warmup, least)
