"""Takes a Trainable over a partition, step by step or in its own way, and sums its metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from hopyard import meter
from hopyard.checks import scalar
from hopyard.errors import HopyardError, SpecError
from hopyard.meter import StepMeter
from hopyard.ports.training import PartitionBatches, goes_whole
from hopyard.spec import Batch, Sums
from hopyard.training.build import Built

LARGEST_ARRAY = 1 << 20
"""The most numbers in an additive metric: for each batch they are added one by one, exactly."""


class NotFinite(HopyardError):
    """The loss is NaN or infinite."""


class _CountedBatches:
    """A partition whose batches count as progress when the model iterates over them."""

    def __init__(self, batches: PartitionBatches, steps: StepMeter, phase: str) -> None:
        self.rows, self.sizes = batches.rows, batches.sizes
        self.order, self.seed = batches.order, batches.seed
        self._batches, self._steps, self._phase = batches, steps, phase

    @property
    def columns(self) -> Any:
        return self._batches.columns

    def __iter__(self) -> Iterator[Batch]:
        return self._steps.over(self._batches, self._phase)


def over(built: Built, batches: PartitionBatches, train: bool) -> Sums:
    """Takes the model over a partition: in its own way if it has one, else batch by batch.

    Sums of several batches are added exactly (`math.fsum`), so their order does not matter.
    """
    phase = "train" if train else "validate"
    meter.enter(phase)
    trainable, batches = built.trainable, _CountedBatches(batches, built.steps, phase)
    if goes_whole(trainable):
        sums = trainable.train_partition(batches) if train else trainable.evaluate_partition(batches)
        if not isinstance(sums, Mapping):
            raise SpecError(f"train_partition and evaluate_partition return {{name: (sum, rows)}}, not {sums!r:.200}")
        return {scalar(name): total for name, total in sums.items()}
    step = trainable.train if train else trainable.evaluate
    return gather(step(batch) for batch in batches)


def gather(reports: Iterable[Mapping[str, tuple[Any, float]]]) -> Sums:
    """Return metric → (sum, rows) over batches. A sum may be a number, a one-element tensor, or an additive array,
    which the model may fill anew for the next batch."""
    numbers: dict[str, list[Any]] = {}
    rows: dict[str, float] = {}
    for report in reports:
        if not isinstance(report, Mapping) or not all(isinstance(v, tuple) and len(v) == 2 for v in report.values()):
            raise SpecError(f"train and evaluate return {{name: (sum over the rows, rows)}}, not {report!r:.200}")
        for key, (total, count) in report.items():
            name = scalar(key)
            if (count_of_numbers := size_of(total)) > LARGEST_ARRAY:
                raise SpecError(
                    f"metric {name!r} is an array of {count_of_numbers:,} numbers; at most {LARGEST_ARRAY:,} are added "
                    "up: report fewer bins, or a number"
                )
            detach = getattr(total, "detach", None)  # otherwise it keeps the graph of its batch alive
            value = total if detach is None else detach()
            numbers.setdefault(name, []).append(deepcopy(value) if count_of_numbers > 1 else value)
            rows[name] = rows.get(name, 0.0) + float(count)
    return {name: (_total(totals), rows[name]) for name, totals in numbers.items()}


def size_of(total: Any) -> int:
    """Return how many numbers the sum of a metric has."""
    if (shape := getattr(total, "shape", None)) is not None:
        return math.prod(shape)
    return len(total) if isinstance(total, (list, tuple)) else 1


def _total(totals: list[Any]) -> float | list[float]:
    first = totals[0]
    if getattr(first, "shape", ()) not in ((), (1,)) or isinstance(first, (list, tuple)):
        columns = zip(*[[float(x) for x in total] for total in totals], strict=True)
        return [math.fsum(column) for column in columns]
    values = [float(total) for total in totals]
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def finite(sums: Sums, location: str) -> None:
    """Raise NotFinite when the loss is NaN or infinite, because training on would be in vain."""
    loss = sums.get("loss")
    if loss is not None and not isinstance(loss[0], list) and not math.isfinite(loss[0]):
        raise NotFinite(
            f"the loss is {loss[0]} in {location}: this configuration diverged (a lower learning rate, clipped "
            "gradients or another initialisation may help)"
        )
