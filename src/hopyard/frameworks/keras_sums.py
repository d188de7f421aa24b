"""Metrics of a compiled Keras model as sums over rows, so that partitions add up to what `model.evaluate` gives.

Keras' metrics keep what they have seen in variables. Nearly all of them only ever add to these (mean, accuracy: total
and count; AUC, precision, IoU: counts of a confusion matrix), so the variables of several partitions can be added, and
`result` of the sums is the metric over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hopyard.errors import SpecError
from hopyard.frameworks import on_host
from hopyard.spec import Sums

_NOT_ADDITIVE = ("PearsonCorrelation", "ConcordanceCorrelation")


def named(model: keras.Model) -> dict[str, keras.Metric]:
    """Metric name, as `model.evaluate` has it → the metric. The model must have seen (or been told of) a batch."""
    found: dict[str, keras.Metric] = {}
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None)
        if isinstance(inner, list):  # those given to `compile`, which Keras names by output when there are several
            names = metric.result() if inner else {}
            found |= dict(zip(names, inner, strict=True))
        else:
            found.setdefault(metric.name, metric)
    return found


def is_mean(metric: keras.Metric) -> bool:
    """Whether it is total / count and nothing else."""
    return isinstance(metric, keras.metrics.Mean) and type(metric).result is keras.metrics.Mean.result


def read(found: dict[str, keras.Metric], host: Callable[[Any], Any], rows: float) -> Sums:
    """What the metrics hold: name → (sum, rows); where it is more than a mean, all variables as one additive array."""
    sums: Sums = {}
    for name, metric in found.items():
        if is_mean(metric):
            sums[name] = float(host(metric.total)), float(host(metric.count))
        else:
            arrays = [np.asarray(host(variable), np.float64).reshape(-1) for variable in metric.variables]
            sums[name] = (np.concatenate(arrays).tolist() if arrays else []), rows
    return sums


def result(metric: keras.Metric, total: Any, rows: float) -> float:
    """The metric's value from its sum over all rows."""
    if not isinstance(total, (list, np.ndarray)):
        return total / rows if rows else float("nan")
    flat, start = np.asarray(total, np.float64), 0
    for variable in metric.variables:
        size = int(np.prod(variable.shape))
        variable.assign(flat[start : start + size].reshape(tuple(variable.shape)).astype(variable.dtype))
        start += size
    value = _one(metric)
    metric.reset_state()
    return value


def check(found: dict[str, keras.Metric], rows: int) -> None:
    """Whether what the metrics hold after one batch, taken twice, gives what they give now: additive metrics do not
    mind how often they see the same rows.

    Raises:
        SpecError: a metric that gives more than one number, or that cannot be put together from partitions.
    """
    for name, metric in found.items():
        if is_mean(metric):
            continue
        before = [np.array(on_host(variable)) for variable in metric.variables]
        once = _one(metric)
        twice = result(metric, np.concatenate([2 * np.asarray(a, np.float64).reshape(-1) for a in before]), rows)
        for variable, array in zip(metric.variables, before, strict=True):
            variable.assign(array)
        linear = type(metric).result is keras.metrics.Sum.result  # a sum over the rows doubles
        same = np.isclose(once, twice, rtol=1e-4, atol=1e-6, equal_nan=True) or linear
        if type(metric).__name__ in _NOT_ADDITIVE or not same:
            raise SpecError(
                f"metric {name!r} ({type(metric).__name__}) cannot be added up over partitions: from the sums of two "
                f"equal halves it gives {twice:g}, from one {once:g}. Its variables must only ever be added to, and "
                "`result` must be the same when all are doubled, as for a mean or a confusion matrix"
            )


def _one(metric: keras.Metric) -> float:
    value = metric.result()
    if isinstance(value, dict) or np.size(on_host(value)) != 1:
        raise SpecError(
            f"metric {metric.name!r} ({type(metric).__name__}) gives more than one number: one is needed, for example "
            'average="macro" for a score of several classes'
        )
    return float(on_host(value).reshape(()))
