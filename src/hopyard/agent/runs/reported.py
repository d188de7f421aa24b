"""The contents of a worker's answers: checked sums of metrics, and the bytes and memory that a unit took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hopyard.checks import metric_fault
from hopyard.core.messages import LIMIT
from hopyard.data.manifest import Manifest
from hopyard.data.partitions.mapped import fetched_bytes
from hopyard.errors import SpecError
from hopyard.spec import Array
from hopyard.stopping import ASHA, Rule
from hopyard.system.processes import peak_memory
from hopyard.text import sendable

ROOM = 1 << 20
"""Bytes of an answer for everything that is no array."""
GROWTH = 1.01
"""Factor of growth from which on the peak is reported again. Every small rise would be in the journal otherwise."""

Costs = tuple[int, int]
"""Bytes of rows, and the peak of memory where it has grown, as in `core.runs.events.Done`."""


def check_names(names: Iterable[Any]) -> None:
    """Raise SpecError when a metric has a name that stands for something else."""
    for name in names:
        if fault := metric_fault(name):
            raise SpecError(f"the recipe reports a metric named {name!a}: {fault}")


def unfit_for(rule: Rule | None, metric: str | None, sums: Mapping[str, tuple[Any, float]]) -> list[str]:
    """Return why a rule of stopping cannot compare trials by the metric: within an epoch, an array has no value yet."""
    early = isinstance(rule, ASHA) and rule.min_partitions is not None
    if not early or not isinstance(sums.get(metric or "", (0.0,))[0], list):
        return []
    return [
        f"metric = {metric!r}: hy.ASHA(min_partitions=…) compares trials within an epoch, where this metric, an array "
        'until the epoch\'s end, has no value; give a metric of one number a row, such as "loss" or "accuracy", or '
        "hy.ASHA(min_epochs=1), whose rungs are at the ends of epochs"
    ]


def check_sizes(sums: Sequence[Mapping[str, tuple[Any, float]]]) -> None:
    """Raise SpecError when the sums of a unit, one for each partition, are too large for one answer, or the name of a
    metric cannot be sent. Sizes are those before packing: what packs well in one epoch may not in the next."""
    sizes: dict[str, int] = {}
    for partition_sums in sums:
        for name, (total, _) in partition_sums.items():
            count = total.size if isinstance(total, Array) else len(total) if isinstance(total, list) else 1
            sizes[name] = sizes.get(name, 0) + 8 * count
    for name in sizes:
        if not isinstance(name, str) or not sendable(name):
            raise SpecError(f"the recipe reports a metric named {name!a}: a name is text that UTF-8 can write")
    if sum(sizes.values()) > LIMIT - ROOM:
        largest = max(sizes, key=sizes.__getitem__)
        count = sizes[largest] // 8 // len(sums)
        raise SpecError(
            f"metric {largest!r} is an array of {count:,} numbers, in each of the {len(sums)} partitions of a unit: "
            f"{sizes[largest]:,} bytes. All metrics of a unit have room for {LIMIT - ROOM:,}. Report fewer numbers"
            + (", or choose hy.Hopper(group=1)" if len(sums) > 1 else "")
        )


class CostCounter:
    """Counts the costs that no answer has reported yet. The next answer reports those of a failed unit.

    Args:
        manifest: the one by which the worker opens partitions.
        own_process: whether the process is the worker's. Else its memory is that of the driver.
    """

    def __init__(self, manifest: Manifest, own_process: bool) -> None:
        self._manifest, self._own_process = manifest, own_process
        self._fetched = self._peak = 0
        """The costs reported so far."""

    def unreported(self) -> Costs:
        """Return the costs since the last report."""
        peak = peak_memory() if self._own_process else 0
        return fetched_bytes(self._manifest) - self._fetched, peak if peak > GROWTH * self._peak else 0

    def mark_reported(self, costs: Costs) -> None:
        """Record that an answer reports these costs."""
        fetched, peak = costs
        self._fetched += fetched
        self._peak = max(self._peak, peak)
