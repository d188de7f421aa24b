"""Metrics for torch: one value per row, or additive arrays; and their sums over a partition.

A metric is `f(outputs, targets) -> one value per row`, or an object with `update(outputs, targets) -> array`, whose
arrays are added up over all rows of an epoch, and `result(total) -> float`. An object whose `update` also takes
`weights` (or None) counts weighted rows. Both see outputs as the module gave them (logits).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopyard.errors import SpecError
from hopyard.spec import Sums

CHUNK_BYTES = 16 * 2**20
"""Outputs are kept up to about this much and then counted in one go: a metric for each batch costs more than the step
of a small model."""


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """1 where the class of a row is right, else 0; NaN where its outputs are NaN; shape (rows,).

    Args:
        outputs: (rows, classes, …) logits, with more axes the share of right positions; or (rows,) or (rows, 1)
            logits of class 1.
        targets: class numbers of shape (rows, …), or (rows, classes) probabilities, of which the largest counts.
    """
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        logits = outputs.reshape(-1)
        return _unless_nan((logits > 0) == (targets.reshape(-1) > 0.5), logits.isnan())
    chosen = outputs.argmax(1)
    if targets.shape == outputs.shape and targets.is_floating_point():
        targets = targets.argmax(1)
    right = _unless_nan(chosen == targets.reshape(chosen.shape), outputs.isnan().any(1))
    return right if right.ndim == 1 else right.flatten(1).mean(1)


@dataclass(frozen=True, slots=True)
class AUC:
    """Area under the ROC curve of two classes, from counts in bins of equal width over the probability.

    Additive, so it is exact for the whole epoch up to the bins: rows of one bin count as ties, which errs by at most
    half the share of (positive, negative) pairs that meet in one bin. NaN when a class is missing, or an output is NaN.

    Args:
        bins: how many. Outputs are logits of shape (rows,), (rows, 1) or (rows, 2); targets are 0 or 1.
    """

    bins: int = 512

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise SpecError(f"AUC(bins=…) must be >= 2, got {self.bins}")

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> NDArray[np.float64]:
        """Rows per bin, of class 0 and then of class 1; shape (2 · bins,)."""
        logits = _logit(outputs)
        if logits.isnan().any():
            return np.full(2 * self.bins, math.nan)
        probability = torch.sigmoid(logits.double())
        bin_ = (probability * self.bins).long().clamp_(max=self.bins - 1)
        return _count(bin_ + self.bins * (targets.reshape(-1) > 0.5), weights, 2 * self.bins)

    def result(self, total: NDArray[np.float64]) -> float:
        """The area: of all pairs of a positive and a negative row, the share with the positive one above."""
        negative, positive = np.asarray(total, dtype=np.float64).reshape(2, self.bins)
        pairs = positive.sum() * negative.sum()
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs) if pairs > 0 else math.nan


@dataclass(frozen=True, slots=True)
class F1:
    """2 · right / (predicted + there): of class 1, or with more than two `classes` the mean over all of them.

    Outputs are logits: for two classes of shape (rows,), (rows, 1) or (rows, 2), else (rows, classes). A class that
    is neither predicted nor there counts as 0, as in scikit-learn. NaN when an output is NaN.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise SpecError(f"F1(classes=…) must be >= 2, got {self.classes}")

    def update(
        self, outputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> NDArray[np.float64]:
        """Rows by class: right, predicted, there; shape (3 · classes,)."""
        logits = outputs if self.classes > 2 else _logit(outputs)
        if logits.isnan().any():
            return np.full(3 * self.classes, math.nan)
        chosen = logits.argmax(1) if self.classes > 2 else (logits > 0).long()
        there = targets.reshape(-1).long()
        right = torch.where(chosen == there, chosen, self.classes)  # one more class for what is wrong
        right_counts = _count(right, weights, self.classes + 1)[:-1]
        return np.concatenate(
            [right_counts, _count(chosen, weights, self.classes), _count(there, weights, self.classes)]
        )

    def result(self, total: NDArray[np.float64]) -> float:
        """The score, 0 to 1; NaN where the counts are."""
        right, predicted, there = np.asarray(total, dtype=np.float64).reshape(3, self.classes)
        rows = predicted + there
        scores = np.divide(2 * right, rows, out=np.zeros_like(rows), where=rows != 0)
        return float(scores[1] if self.classes == 2 else scores.mean())


def _unless_nan(right: torch.Tensor, nan: torch.Tensor) -> torch.Tensor:
    """float64: 1 where `right`, else 0; NaN where `nan`. (The largest of NaN is, to argmax, the first class.)"""
    return right.double().masked_fill(nan, math.nan)


def _logit(outputs: torch.Tensor) -> torch.Tensor:
    """The logit of class 1 against class 0, shape (rows,)."""
    if outputs.ndim == 2 and outputs.shape[1] == 2:
        return outputs[:, 1] - outputs[:, 0]
    if outputs.ndim == 1 or (outputs.ndim == 2 and outputs.shape[1] == 1):
        return outputs.reshape(-1)
    raise SpecError(
        f"outputs for two classes must have shape (rows,), (rows, 1) or (rows, 2), got {tuple(outputs.shape)}"
    )


def _count(index: torch.Tensor, weights: torch.Tensor | None, size: int) -> NDArray[np.float64]:
    # by NumPy, on the host: torch.bincount has no deterministic form on a GPU
    weight = None if weights is None else weights.reshape(-1).double().cpu().numpy()
    return np.bincount(index.cpu().numpy(), weight, size).astype(np.float64)


class Tally:
    """The sums of one partition. It owns what was kept of its batches; nothing waits for the device until a chunk is
    full or the partition ends.

    The loss of a batch is a mean; its sum is loss · rows, added up in float64, so that batches of different size and
    partitions of different size weigh as their rows do.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics
        self._losses: list[torch.Tensor] = []
        self._rows: list[float] = []
        self._kept: list[tuple[Any, Any, torch.Tensor | None]] = []
        self._kept_rows: list[float] = []
        self._bytes = 0
        self._totals: dict[str, Any] = {}

    def add(self, loss: torch.Tensor, rows: float, outputs: Any, targets: Any, weights: torch.Tensor | None) -> None:
        """One batch; `rows` is the sum of its weights if it has some. What the loader will overwrite is copied."""
        self._losses.append(loss.detach())
        self._rows.append(rows)
        if not self._metrics:
            return
        batch = (
            _each(outputs, torch.Tensor.detach),
            _each(targets, torch.Tensor.clone),
            None if weights is None else weights.clone(),
        )
        if self._kept and _form(batch) != _form(self._kept[0]):
            self._count()  # what cannot be joined is counted apart
        self._kept.append(batch)
        self._kept_rows.append(rows)
        self._bytes += _size(batch)
        if self._bytes >= CHUNK_BYTES:
            self._count()

    def sums(self) -> Sums:
        """Metric name → (sum over rows, rows); an additive array is a list."""
        self._count()
        losses = torch.stack(self._losses).double().cpu().tolist() if self._losses else []
        rows = math.fsum(self._rows)
        made: Sums = {"loss": (math.fsum(mean * n for mean, n in zip(losses, self._rows, strict=True)), rows)}
        for name, total in self._totals.items():
            made[name] = (total.tolist() if isinstance(total, np.ndarray) else total, rows)
        return made

    def _count(self) -> None:
        if not self._kept:
            return
        outputs, targets, weights = self._kept[0] if len(self._kept) == 1 else _join(self._kept)
        counts = len(self._kept), self._kept_rows
        self._kept, self._kept_rows, self._bytes = [], [], 0
        with torch.inference_mode():
            for name, metric in self._metrics.items():
                value: Any
                if hasattr(metric, "update"):
                    value = _array(name, metric, outputs, targets, weights)
                else:
                    value = _sum(name, metric(outputs, targets), weights, counts)
                self._totals[name] = self._totals[name] + value if name in self._totals else value


def _array(name: str, metric: Any, outputs: Any, targets: Any, weights: torch.Tensor | None) -> NDArray[np.float64]:
    """The additive array of one chunk."""
    if "weights" in inspect.signature(metric.update).parameters:
        made = metric.update(outputs, targets, weights=weights)
    elif weights is None:
        made = metric.update(outputs, targets)
    else:
        raise SpecError(
            f"metric {name!r}: the rows have weights, which its update(outputs, targets) does not take; give it "
            "update(outputs, targets, weights)"
        )
    array = made.detach().cpu().numpy() if isinstance(made, torch.Tensor) else made
    return np.asarray(array, dtype=np.float64).reshape(-1)


def _sum(name: str, values: Any, weights: torch.Tensor | None, counts: tuple[int, list[float]]) -> float:
    """The sum of one value per row over a chunk, weighted where rows have weights."""
    flat = torch.as_tensor(values).detach().reshape(-1).double()
    batches, rows = counts
    wanted = round(sum(rows)) if weights is None else weights.numel()
    if flat.numel() != wanted:
        raise SpecError(
            f"metric {name!r} must give one value per row, gave {flat.numel()} for {wanted} rows ({batches} batches "
            "joined), or be an object with update(outputs, targets) -> array and result(total) -> float"
        )
    return float((flat if weights is None else flat * weights.double().reshape(-1)).sum())


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`change` of every tensor in dicts, lists and tuples; anything else as it is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_each(item, change) for item in value)
    return value


def _form(value: Any) -> Any:
    """Equal for values that `_join` can put together along the rows."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape[1:]) if value.ndim else object()
    if isinstance(value, dict):
        return {key: _form(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_form(item) for item in value]
    return None if value is None else object()


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, dict):
        return {key: _join([part[key] for part in parts]) for key in first}
    return None if first is None else tuple(_join(items) for items in zip(*parts, strict=True))


def _size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, tuple) else 0
