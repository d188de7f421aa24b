"""Collects what a recipe logs by `ctx.log` while a model trains on a partition, and makes one point of each name.

A point is the mean of numbers or the histogram of arrays. It does not depend on the order of the calls: sums are exact
or those of one call, and values are counted in the fixed fine buckets of `Histogram`, whose counts add up over calls,
threads and the members of a gang. Only then are neighbours merged.
"""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from hopyard.checks import scalar
from hopyard.core.runs.events import Histogram, LoggedValue, edge
from hopyard.errors import SpecError
from hopyard.spec import RunSpec
from hopyard.text import shown

if TYPE_CHECKING:
    import numpy as np

BUCKETS = 64
"""The most buckets of a histogram."""
NAME = 100
"""The most characters of a name."""
PARTITION_BYTES, TRIAL_BYTES = 4 << 10, 4 << 20
"""The most bytes that the points of a partition, and those of a trial, take in the journal."""
NUMBER_BYTES, HISTOGRAM_BYTES = 32, 1000
"""Bytes counted for a point, beside its name. They are fixed, so that the same names fit in each partition."""

_pack = struct.Struct("d").pack
_muted = ContextVar("_muted", default=False)


@contextmanager
def muted() -> Iterator[None]:
    """A context manager and decorator in which this thread logs nothing: it calls a model, but trains none."""
    token = _muted.set(True)
    try:
        yield
    finally:
        _muted.reset(token)


class Tally(msgspec.Struct, array_like=True):
    """The arrays that were logged under one name."""

    count: int = 0
    """Finite numbers."""
    nonfinite: int = 0
    """NaN and infinities, which are in no sum and no bucket."""
    min: float = math.inf
    max: float = -math.inf
    sums: list[float] = []
    """The sum of each array."""
    squares: list[float] = []
    """The sum of the squares of each array."""
    buckets: dict[int, int] = {}
    """Fine bucket → numbers in it."""

    def add(self, values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        """Add an array of shape (numbers,)."""
        import numpy as np

        finite = values[np.isfinite(values)]
        self.nonfinite += values.size - finite.size
        if not finite.size:
            return
        self.count += finite.size
        self.min, self.max = min(self.min, float(finite.min())), max(self.max, float(finite.max()))
        with np.errstate(over="ignore", invalid="ignore"):
            self.sums.append(float(finite.sum()))
            self.squares.append(float(np.square(finite).sum()))
        bucket = np.abs(finite).view(np.int64) >> 49  # the exponent and three bits of the mantissa
        signed = np.where(finite < 0, -1 - bucket, bucket).astype(np.int16)  # sorted in a tenth of int64's time
        self._count(zip(*[each.tolist() for each in np.unique(signed, return_counts=True)], strict=True))

    def merge(self, other: Tally) -> None:
        """Add the arrays of another tally."""
        self.count += other.count
        self.nonfinite += other.nonfinite
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)
        self.sums += other.sums
        self.squares += other.squares
        self._count(other.buckets.items())

    def _count(self, counts: Iterable[tuple[int, int]]) -> None:
        for bucket, count in counts:
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def histogram(self) -> Histogram:
        """Return the point."""
        if not self.count:
            return Histogram(0.0, 0.0, 0, 0.0, 0.0, nonfinite=self.nonfinite)
        edges, counts = merged(self.buckets, BUCKETS)
        widths = tuple([end - begin for begin, end in pairwise(edges)])
        sums = _sum(self.sums), _sum(self.squares)
        return Histogram(self.min, self.max, self.count, *sums, edges[0], widths, tuple(counts), self.nonfinite)


class Collected(msgspec.Struct):
    """The values logged in one partition."""

    numbers: dict[str, bytearray] = {}
    """Name → its numbers, as float64."""
    arrays: dict[str, Tally] = {}


class Collector:
    """Takes what one worker's recipes log. Owner of what was logged in the partition on which the worker trains.

    Built models are shared between trials, so a recipe's context may be that of another trial; but a worker trains one
    trial at a time, and its recipes have one collector. While it does not train, nothing is collected. A copy of a
    context, in a copied net for example, has the same collector, and a pickled one an idle collector.
    """

    def __init__(self) -> None:
        self._collected: Collected | None = None
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> Collector:
        return self

    def __reduce__(self) -> tuple[type[Collector], tuple[()]]:
        return Collector, ()

    @contextmanager
    def collecting(self, collected: Collected) -> Iterator[None]:
        """A context manager that collects what is logged, in any thread, while it is open."""
        self._collected = collected
        try:
            yield
        finally:
            self._collected = None

    def log(self, name: Any, value: Any) -> None:
        """Log a number or an array, as `RecipeContext.log` says."""
        collected = self._collected
        if collected is None or _muted.get():
            return
        if type(value) is float and type(name) is str and (numbers := collected.numbers.get(name)) is not None:
            numbers.extend(_pack(value))
            return
        name = _checked_name(name)
        values = _values(name, value)
        if isinstance(values, float):
            collected.numbers.setdefault(name, bytearray()).extend(_pack(values))
        elif values.size:
            with self._lock:
                collected.arrays.setdefault(name, Tally()).add(values)


def joined(members: Sequence[Collected]) -> Collected:
    """Return what all members of a gang have logged in a partition."""
    total = Collected()
    for member in members:
        for name, numbers in member.numbers.items():
            total.numbers.setdefault(name, bytearray()).extend(numbers)
        for name, tally in member.arrays.items():
            total.arrays.setdefault(name, Tally()).merge(tally)
    return total


def room(spec: RunSpec) -> int:
    """Return how many bytes the points of a partition may take. It follows from the run, so that the same points are
    left out whatever workers train and however units are grouped."""
    return min(PARTITION_BYTES, TRIAL_BYTES // spec.steps)


def points_of(collected: Collected, limit: int) -> tuple[dict[str, LoggedValue], list[str]]:
    """Return the points of a partition, and the names for whose points there was no room.

    Means come before histograms, and each in the order of their names. Numbers of a name that also has arrays, as an
    array of one number may be, are counted in its histogram.
    """
    logged: dict[str, LoggedValue] = {}
    left_out = []
    for name in [*sorted(collected.numbers.keys() - collected.arrays.keys()), *sorted(collected.arrays)]:
        size = len(msgspec.json.encode(name)) + (HISTOGRAM_BYTES if name in collected.arrays else NUMBER_BYTES)
        point = _point(collected, name) if size <= limit else None
        if point is None or (size := max(size, len(msgspec.json.encode({name: point})))) > limit:
            left_out.append(name)
        else:
            logged[name] = point
            limit -= size
    return logged, left_out


def _point(collected: Collected, name: str) -> LoggedValue:
    numbers = collected.numbers.get(name, b"")
    if (tally := collected.arrays.get(name)) is None:
        return _mean(memoryview(numbers).cast("d"))
    if numbers:
        import numpy as np

        tally.add(np.frombuffer(numbers))
    return tally.histogram()


def left_out_text(names: Sequence[str], limit: int) -> str:
    """Return the warning about names for whose points there was no room."""
    some = ", ".join(repr(name if len(name) <= 24 else f"{name[:23]}…") for name in names[:3])
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (
        f"ctx.log: no room for {some}{more}. A partition's points take at most {limit:,} bytes "
        f"({TRIAL_BYTES >> 20} MB a trial), {HISTOGRAM_BYTES:,} for each histogram: log fewer names, numbers in place "
        "of arrays, or choose fewer partitions="
    )


def merged(buckets: dict[int, int], most: int) -> tuple[list[int], list[int]]:
    """Return edges and counts of at most `most` buckets that follow each other, made of fine ones with these counts.

    Neighbours are merged, those first whose union has the least of numbers × width; of equal ones the lower.
    """
    edges, sizes = [min(buckets)], []
    for bucket in sorted(buckets):
        if edges[-1] != bucket:  # a gap
            sizes.append(0)
            edges.append(bucket)
        sizes.append(buckets[bucket])
        edges.append(bucket + 1)
    limits = [edge(each) for each in edges]
    counts = dict(enumerate(sizes))
    following = {begin: begin + 1 for begin in counts}
    preceding = {begin + 1: begin for begin in counts}

    def union(begin: int) -> tuple[float, int, int, int]:
        middle = following[begin]
        end = following[middle]
        return (counts[begin] + counts[middle]) * (limits[end] - limits[begin]), begin, middle, end

    heap = [union(begin) for begin in range(len(counts) - 1)]
    heapify(heap)
    while len(counts) > most:
        _, begin, middle, end = heappop(heap)
        if following.get(begin) != middle or following.get(middle) != end:
            continue  # one of the two has been merged since
        counts[begin] += counts.pop(middle)
        del following[middle]
        following[begin], preceding[end] = end, begin
        if end in counts:
            heappush(heap, union(begin))
        if begin:
            heappush(heap, union(preceding[begin]))
    begins = sorted(counts)
    return [edges[begin] for begin in begins] + [edges[-1]], [counts[begin] for begin in begins]


def _checked_name(name: Any) -> str:
    text = scalar(name)
    if isinstance(text, str) and 0 < len(text) <= NAME and text.isprintable():
        return text
    raise SpecError(f"ctx.log: a name must be 1 to {NAME} printable characters, got {shown(name)}")


def _values(name: str, value: Any) -> float | np.ndarray[Any, np.dtype[np.float64]]:
    """Return a number, or an array as one of shape (numbers,)."""
    try:
        if not hasattr(value, "shape"):
            if isinstance(value, (str, bytes, bytearray)) or not hasattr(value, "__float__"):
                raise TypeError(f"a {type(value).__name__} is no number")
            return float(value)
        import numpy as np

        if hasattr(value, "detach"):  # a tensor of torch: NumPy knows neither its devices nor all its floats
            value = value.detach().cpu()
            value = value.double() if value.is_floating_point() else value
        array = np.asarray(value)
        if array.dtype.kind in "cOSUMm":
            raise TypeError(f"an array of {array.dtype} has no real numbers")
        array = np.asarray(array, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        raise SpecError(
            f"ctx.log({name!r}, …) takes a number, or an array or tensor of numbers, got {shown(value)}. Inside a "
            "compiled step (tf.function, jax.jit, jax.grad) a tensor has no value yet: report it as a metric, log it "
            "between the steps, in a callback for example, or do not compile the step (Keras: run_eagerly=True)"
        ) from error
    return float(array[0]) if array.size == 1 else array


def _mean(values: Sequence[float] | memoryview[float]) -> float:
    total = _sum(values)
    return _sum([value / len(values) for value in values]) if math.isinf(total) else total / len(values)


def _sum(values: Sequence[float] | memoryview[float]) -> float:
    """Return the sum, rounded once; NaN or an infinity where a number is none, or where it is too large."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # too large; infinities of both signs
        return sum(values)
