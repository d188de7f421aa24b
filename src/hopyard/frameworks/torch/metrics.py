"""Metrics for torch: one value per row, or additive arrays; and their sums over a partition.

A metric is `f(outputs, targets) -> one value per row`, or an object with `update(outputs, targets) -> array`, whose
arrays are added up over all rows of an epoch, and `result(total) -> float`. An object whose `update` also takes
`weights` (or None) counts weighted rows. Both see outputs as the module gave them (logits).
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopyard.checks import flag, scalar, whole
from hopyard.errors import SpecError
from hopyard.spec import Sums
from hopyard.text import shown

_TIES = 0.01
"""Share of ties above which an AUC warns."""
_LOGIT_OCTAVES = 9
"""AUC's bins end where |logit| + 1 is 2 to this power."""
_PROBABILITY_OCTAVES = 64
"""AUC's bins end where twice a probability is 2 to minus this power."""

CHUNK_BYTES = 16 * 2**20
"""Outputs are collected up to about this size and then counted together: computing the metrics for each batch costs
more than the step of a small model."""


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return 1 where the class of a row is right, else 0, and NaN where its outputs are NaN; shape (rows,).

    Args:
        outputs: (rows, classes, …) logits; with more axes, the result is the share of right positions; or (rows,) or
            (rows, 1) logits of class 1.
        targets: class numbers of shape (rows, …), or (rows, classes) probabilities, whose largest is the class.
    """
    for what, value in (("the model gives", outputs), ("the data has for labels", targets)):
        if not isinstance(value, torch.Tensor):
            raise SpecError(
                f"hy.torch.accuracy compares one tensor of outputs with one of labels, but {what} {_several(value)}: "
                "hy.torch.TopK(1, output=…, label=…) scores one of several, or call accuracy with one of each in a "
                "function f(outputs, targets) of your own"
            )
    if outputs.ndim < 2 or outputs.shape[1] == 1:
        logits = outputs.reshape(-1)
        return _unless_nan((logits > 0) == (targets.reshape(-1) > 0.5), logits.isnan())
    predicted = outputs.argmax(1)
    if targets.shape == outputs.shape and targets.is_floating_point():
        targets = targets.argmax(1)
    right = _unless_nan(predicted == targets.reshape(predicted.shape), outputs.isnan().any(1))
    return right if right.ndim == 1 else right.flatten(1).mean(1)


@dataclass(frozen=True, repr=False)
class _Score:
    """A metric of one of the model's outputs, `output`, compared with one of the data's labels, `label`."""

    output: str | int | None = field(default=None, kw_only=True)
    label: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for name in ("output", "label"):
            object.__setattr__(self, name, scalar(getattr(self, name)))

    def __repr__(self) -> str:
        values = [(each.name, getattr(self, each.name)) for each in fields(self)]
        differing = [f"{name}={value!r}" for name, value in values if value != getattr(type(self), name)]
        return f"{type(self).__name__}({', '.join(differing)})"

    def _chosen(self, outputs: Any, targets: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the output and the label that the metric is of."""
        label = self.output if self.label is None and isinstance(self.output, str) else self.label
        return self._part("output", outputs, self.output), self._part("label", targets, label)

    def _part(self, what: str, values: Any, key: str | int | None) -> torch.Tensor:
        """Return one of several tensors; a single one as it is."""
        if isinstance(values, torch.Tensor):
            if what == "output" and key is not None:
                raise SpecError(f"{self}: output={key!r}, but the model gives one tensor: leave output= out")
            return values
        keys = list(values) if isinstance(values, dict) else list(range(len(values)))
        if key not in keys:
            side = "the model gives" if what == "output" else "the data has"
            choices = ", ".join(f"{what}={each!r}" for each in keys)
            raise SpecError(f"{self}: {side} {len(keys)} {what}s, and {what}={key!r} names none: choose {choices}")
        return values[key]  # type: ignore[no-any-return]


@dataclass(frozen=True, repr=False)
class AUC(_Score):
    """Area under the ROC curve of two classes, from counts in fixed bins of the logit.

    Counts are additive, so the area is that of the whole epoch, however its rows are grouped. Rows of one bin count as
    ties. The error is at most half the share of (positive, negative) pairs that are ties, and a share above 1 % is
    warned of. Bins are narrow near 0 (0.002 with 8,192 of them), 0.02 wide at ±8 and end at ±511. NaN when a class is
    missing or an output is NaN.

    Args:
        bins: the number of bins.
        from_logits: whether outputs are logits of shape (rows,), (rows, 1) or (rows, 2); False: probabilities of these
            shapes, two columns as from a softmax. Targets are 0 or 1.
        output: of a model with several outputs, the one that is scored: its key, or its number in a tuple.
        label: the label that it is compared with, where the data has several; None: the one named like the output.
    """

    bins: int = 8192
    from_logits: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bins", whole("AUC(bins=)", self.bins, 2))
        object.__setattr__(self, "from_logits", flag("AUC(from_logits=)", self.from_logits))

    def update(self, outputs: Any, targets: Any, weights: torch.Tensor | None = None) -> NDArray[np.float64]:
        """Return the rows per bin, of class 0 and then of class 1; shape (2 · bins,).

        Raises:
            SpecError: the outputs have another shape, or are no probabilities though `from_logits` is False.
        """
        outputs, targets = self._chosen(outputs, targets)
        outputs = outputs.cpu().double()  # the difference of two logits keeps all digits
        logits = _logit(outputs)
        if logits.isnan().any():
            return np.full(2 * self.bins, math.nan)
        if self.from_logits:
            confidence, is_one = _octaves(logits.abs() + 1) / _LOGIT_OCTAVES, logits >= 0
        else:
            zero, one = self._probabilities(outputs)
            least = torch.minimum(zero, one)  # of the two probabilities it has more digits
            confidence, is_one = -_octaves(2 * least) / _PROBABILITY_OCTAVES, zero <= one
        confidence = confidence.clamp(0, 1)
        bin_ = ((1 + torch.where(is_one, confidence, -confidence)) * (self.bins / 2)).long().clamp(max=self.bins - 1)
        return _count(bin_ + self.bins * (targets.reshape(-1) > 0.5).cpu(), weights, 2 * self.bins)

    def _probabilities(self, outputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probabilities of class 0 and of class 1."""
        if (wrong := outputs[(outputs < 0) | (outputs > 1)]).numel():
            raise SpecError(f"{self}: outputs must be probabilities, 0 to 1, got {wrong[0]:g}")
        if outputs.shape[1:] == (2,):
            return outputs[:, 0], outputs[:, 1]
        one = outputs.reshape(-1)
        return 1 - one, one

    def result(self, total: NDArray[np.float64]) -> float:
        """Return the area: the share of (positive, negative) pairs of rows in which the positive one ranks higher.

        Warns:
            RuntimeWarning: more than 1 % of the pairs are ties.
        """
        negative, positive = np.asarray(total, dtype=np.float64).reshape(2, self.bins)
        pairs = positive.sum() * negative.sum()
        if not pairs > 0:
            return math.nan
        ties = float((positive * negative).sum() / pairs)
        if ties > _TIES:
            other = "if outputs are probabilities give from_logits=False, else give"
            remedy = other if self.from_logits else "score logits with from_logits=True, or give"
            warnings.warn(
                f"{self}: {ties:.1%} of the pairs of a positive and a negative row are ties, as their outputs are "
                f"equal or in one bin, so the area may be wrong by {ties / 2:.3f}; {remedy} more bins than {self.bins}",
                RuntimeWarning,
                stacklevel=2,
            )
        below = np.cumsum(negative) - negative
        return float((positive * (below + negative / 2)).sum() / pairs)


@dataclass(frozen=True, repr=False)
class F1(_Score):
    """2 · right / (predicted + actual): of class 1, or with more than two `classes` the mean over all of them.

    Outputs are logits: for two classes of shape (rows,), (rows, 1) or (rows, 2), else (rows, classes). A class that
    is neither predicted nor present counts as 0, as in scikit-learn. NaN when an output is NaN.

    Args:
        classes: how many there are.
        output: of a model with several outputs, the one that is scored: its key, or its number in a tuple.
        label: the label that it is compared with, where the data has several; None: the one named like the output.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", whole("F1(classes=)", self.classes, 2))

    def update(self, outputs: Any, targets: Any, weights: torch.Tensor | None = None) -> NDArray[np.float64]:
        """Return the rows by class: right, predicted, actual; shape (3 · classes,)."""
        outputs, targets = self._chosen(outputs, targets)
        if self.classes > 2 and outputs.shape[1:] != (self.classes,):
            raise SpecError(f"{self}: outputs must have shape (rows, {self.classes}), got {tuple(outputs.shape)}")
        logits = outputs if self.classes > 2 else _logit(outputs)
        if logits.isnan().any():
            return np.full(3 * self.classes, math.nan)
        predicted = logits.argmax(1) if self.classes > 2 else (logits > 0).long()
        actual = targets.reshape(-1).long()
        right = torch.where(predicted == actual, predicted, self.classes)  # one more class for wrong predictions
        right_counts = _count(right, weights, self.classes + 1)[:-1]
        return np.concatenate(
            [right_counts, _count(predicted, weights, self.classes), _count(actual, weights, self.classes)]
        )

    def result(self, total: NDArray[np.float64]) -> float:
        """Return the score, 0 to 1; NaN where the counts are NaN."""
        right, predicted, actual = np.asarray(total, dtype=np.float64).reshape(3, self.classes)
        rows = predicted + actual
        scores = np.divide(2 * right, rows, out=np.zeros_like(rows), where=rows != 0)
        return float(scores[1] if self.classes == 2 else scores.mean())


@dataclass(frozen=True, repr=False)
class TopK(_Score):
    """Share of the rows whose class is among the k with the largest outputs; of equal outputs the lower class counts as
    larger, so `TopK(1)` is `accuracy`. NaN when an output is NaN.

    Args:
        k: how many classes of a row count.
        output: of a model with several outputs, the one that is scored: its key, or its number in a tuple.
        label: the label that it is compared with, where the data has several; None: the one named like the output.
    """

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "k", whole("TopK(k=)", self.k, 1))

    def __call__(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Return 1 where the class of a row is among them, else 0; shape (rows,).

        Args:
            outputs: (rows, classes) logits.
            targets: class numbers of shape (rows,) or (rows, 1), or (rows, classes) probabilities, whose largest is the
                class.

        Raises:
            SpecError: the outputs have another shape, or fewer than k classes.
        """
        outputs, targets = self._chosen(outputs, targets)
        if outputs.ndim != 2 or outputs.shape[1] < self.k:
            raise SpecError(
                f"TopK(k={self.k}) needs outputs of shape (rows, {self.k} classes or more), got {tuple(outputs.shape)}"
            )
        if targets.shape == outputs.shape and targets.is_floating_point():
            targets = targets.argmax(1)
        actual = targets.reshape(-1, 1).long()
        score = outputs.gather(1, actual)
        classes = torch.arange(outputs.shape[1], device=outputs.device)
        before = (outputs > score) | ((outputs == score) & (classes < actual))
        return _unless_nan(before.sum(1) < self.k, outputs.isnan().any(1))


def _several(value: Any) -> str:
    """Return what stands where one tensor is expected."""
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}"
    return f"a tuple of {len(value)}" if isinstance(value, (list, tuple)) else shown(value)


def _unless_nan(right: torch.Tensor, nan: torch.Tensor) -> torch.Tensor:
    """Return float64: 1 where `right`, else 0; NaN where `nan`. (For NaN, argmax returns the first class.)"""
    return right.double().masked_fill(nan, math.nan)


def _logit(outputs: torch.Tensor) -> torch.Tensor:
    """Return the logit of class 1 against class 0, shape (rows,)."""
    if outputs.ndim == 2 and outputs.shape[1] == 2:
        return outputs[:, 1] - outputs[:, 0]
    if outputs.ndim == 1 or (outputs.ndim == 2 and outputs.shape[1] == 1):
        return outputs.reshape(-1)
    raise SpecError(
        f"outputs for two classes must have shape (rows,), (rows, 1) or (rows, 2), got {tuple(outputs.shape)}"
    )


def _octaves(numbers: torch.Tensor) -> torch.Tensor:
    """Return about the binary logarithm of numbers >= 0: right at powers of 2 and linear between them.

    A logarithm's last bit would depend on the processor, and on how many numbers it takes at once.
    """
    mantissa, exponent = np.frexp(np.maximum(numbers.numpy(), np.finfo(np.float64).tiny))
    return torch.from_numpy(exponent + 2 * mantissa - 2)


def _count(index: torch.Tensor, weights: torch.Tensor | None, size: int) -> NDArray[np.float64]:
    # with NumPy, on the host: torch.bincount has no deterministic form on a GPU
    weight = None if weights is None else weights.reshape(-1).double().cpu().numpy()
    return np.bincount(index.cpu().numpy(), weight, size).astype(np.float64)


class Tally:
    """The sums of one partition. It owns the collected batches of the current chunk; nothing waits for the device until
    a chunk is full or the partition ends.

    The loss of a batch is a mean; its sum is loss · weight, added up in float64, so that batches and partitions of
    different sizes count by what they weigh: by rows, or by tokens.
    """

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._metrics = metrics
        self._losses: list[torch.Tensor] = []
        self._weights: list[float] = []
        self._rows: list[float] = []
        self._chunk: list[tuple[Any, Any, torch.Tensor | None]] = []
        self._chunk_rows: list[float] = []
        self._chunk_bytes = 0
        self._totals: dict[str, Any] = {}

    def add(
        self, loss: torch.Tensor, weight: float, rows: float, outputs: Any, targets: Any, weights: torch.Tensor | None
    ) -> None:
        """Adds one batch; `weight` is that of the loss, `rows` the sum of the rows' weights if they have some. Copies
        what the loader will overwrite."""
        self._losses.append(loss.detach())
        self._weights.append(weight)
        self._rows.append(rows)
        if not self._metrics:
            return
        batch = (
            map_tensors(outputs, torch.Tensor.detach),
            map_tensors(targets, torch.Tensor.clone),
            None if weights is None else weights.clone(),
        )
        if self._chunk and _form(batch) != _form(self._chunk[0]):
            self._count()  # batches that cannot be joined are counted separately
        self._chunk.append(batch)
        self._chunk_rows.append(rows)
        self._chunk_bytes += _size(batch)
        if self._chunk_bytes >= CHUNK_BYTES:
            self._count()

    def sums(self) -> Sums:
        """Return metric name → (sum over rows, rows); an additive array is a list."""
        self._count()
        losses = torch.stack(self._losses).double().cpu().tolist() if self._losses else []
        total = math.fsum(mean * weight for mean, weight in zip(losses, self._weights, strict=True))
        sums: Sums = {"loss": (total, math.fsum(self._weights))}
        rows = math.fsum(self._rows)
        for name, total in self._totals.items():
            sums[name] = (total.tolist() if isinstance(total, np.ndarray) else total, rows)
        return sums

    def _count(self) -> None:
        if not self._chunk:
            return
        outputs, targets, weights = self._chunk[0] if len(self._chunk) == 1 else _join(self._chunk)
        counts = len(self._chunk), self._chunk_rows
        self._chunk, self._chunk_rows, self._chunk_bytes = [], [], 0
        with torch.inference_mode():
            for name, metric in self._metrics.items():
                value: Any
                if hasattr(metric, "update"):
                    value = _array(name, metric, outputs, targets, weights)
                else:
                    value = _sum(name, metric(outputs, targets), weights, counts)
                self._totals[name] = self._totals[name] + value if name in self._totals else value


def _array(name: str, metric: Any, outputs: Any, targets: Any, weights: torch.Tensor | None) -> NDArray[np.float64]:
    """Return the additive array of one chunk."""
    if "weights" in inspect.signature(metric.update).parameters:
        value = metric.update(outputs, targets, weights=weights)
    elif weights is None:
        value = metric.update(outputs, targets)
    else:
        raise SpecError(
            f"metric {name!r}: the rows have weights, which its update(outputs, targets) does not take; give it "
            "update(outputs, targets, weights)"
        )
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
    try:
        if array is not None:  # which NumPy takes for NaN
            return np.asarray(array, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        pass
    raise SpecError(f"metric {name!r}: its update must give an array of numbers, gave {shown(value)}")


def _sum(name: str, values: Any, weights: torch.Tensor | None, counts: tuple[int, list[float]]) -> float:
    """Return the sum of one value per row over a chunk, weighted where rows have weights."""
    if not isinstance(values, torch.Tensor):
        try:
            values = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError):
            raise SpecError(f"metric {name!r} must give a tensor of one value per row, gave {shown(values)}") from None
    flat = values.detach().reshape(-1).double()
    batches, rows = counts
    expected = round(sum(rows)) if weights is None else weights.numel()
    if flat.numel() != expected:
        raise SpecError(
            f"metric {name!r} must give one value per row, gave {flat.numel()} for {expected} rows ({batches} batches "
            "joined), or be an object with update(outputs, targets) -> array and result(total) -> float"
        )
    return float((flat if weights is None else flat * weights.double().reshape(-1)).sum())


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Applies `function` to every tensor in dicts, lists and tuples; anything else stays unchanged."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(map_tensors(item, function) for item in value)
    return value


def _form(value: Any) -> Any:
    """Return a key that is equal for values that `_join` can concatenate along the rows."""
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
