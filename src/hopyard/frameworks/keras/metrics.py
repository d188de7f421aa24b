"""Metrics of a compiled Keras model as sums over rows, so that partitions add up to what `model.evaluate` gives.

Keras' metrics keep their state in variables. Nearly all of them only ever add to these (mean, accuracy: total and
count; AUC, precision, IoU: counts of a confusion matrix), so the variables of several partitions can be added, and
`result` of the sums is the metric over all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hopyard.errors import SpecError
from hopyard.frameworks.tree import on_host
from hopyard.spec import Sums


def metrics_by_name(model: keras.Model) -> dict[str, keras.Metric]:
    """Return metric name, as `model.evaluate` has it → the metric. The model must have been built with a batch."""
    metrics: dict[str, keras.Metric] = {}
    for metric in model.metrics:
        inner = getattr(metric, "metrics", None)
        if isinstance(inner, list):  # the metrics of `compile`, which Keras names by output when there are several
            names = metric.result() if inner else {}
            metrics |= dict(zip(names, inner, strict=True))
        else:  # the last one of a name, as in Keras: a custom step may keep its loss in it
            metrics[metric.name] = metric
    return metrics


def is_mean(metric: keras.Metric) -> bool:
    """Whether the metric is total / count and nothing else."""
    return isinstance(metric, keras.metrics.Mean) and type(metric).result is keras.metrics.Mean.result


def is_additive(metric: keras.Metric) -> bool:
    """Whether it is a mean that only code of Keras updates, so that its additivity need not be tested."""
    return is_mean(metric) and type(metric).update_state.__module__.startswith("keras.")


def read_sums(metrics: dict[str, keras.Metric], host: Callable[[Any], Any], rows: float) -> Sums:
    """Reads the metrics: name → (sum, rows); for more than a mean, the sum is all variables as one additive array."""
    sums: Sums = {}
    for name, metric in metrics.items():
        if is_mean(metric):
            sums[name] = float(host(metric.total)), float(host(metric.count))
        else:
            arrays = [np.asarray(host(variable), np.float64).reshape(-1) for variable in metric.variables]
            sums[name] = (np.concatenate(arrays).tolist() if arrays else []), rows
    return sums


def metric_result(metric: keras.Metric, total: Any, rows: float) -> float:
    """Return the metric's value from its sum over all rows."""
    if not isinstance(total, (list, np.ndarray)):
        return total / rows if rows else float("nan")
    flat, start = np.asarray(total, np.float64), 0
    for variable in metric.variables:
        size = int(np.prod(variable.shape))
        variable.assign(flat[start : start + size].reshape(tuple(variable.shape)).astype(variable.dtype))
        start += size
    value = _number(metric)
    metric.reset_state()
    return value


def variables_of(metrics: dict[str, keras.Metric], host: Callable[[Any], Any]) -> dict[str, list[Any]]:
    """Return copies of the values of the metrics' variables."""
    return {
        name: [np.asarray(host(variable), np.float64).copy() for variable in metric.variables]
        for name, metric in metrics.items()
    }


def check_additive(
    metrics: dict[str, keras.Metric], one: dict[str, Any], two: dict[str, Any], both: dict[str, Any]
) -> None:
    """Checks that after two batches, the metrics' variables are the sums of their values after each batch alone.

    Args:
        metrics: the metrics.
        one: the values of their variables after the first batch.
        two: the values after the second batch.
        both: the values after the first and then the second batch.

    Raises:
        SpecError: a metric gives more than one number, or cannot be added up over partitions.
    """
    for name, metric in metrics.items():
        _number(metric)
        relative = 1e-4 if metric.dtype in ("float32", "float64") else 1e-2  # a moving average may move by 0.1% a batch
        for first, second, together in zip(one[name], two[name], both[name], strict=True):
            scale = np.abs(np.concatenate([first.ravel(), second.ravel()]))
            absolute = relative * np.max(scale, initial=0.0, where=np.isfinite(scale))
            if not np.allclose(first + second, together, rtol=relative, atol=absolute, equal_nan=True):
                raise SpecError(
                    f"metric {name!r} ({type(metric).__name__}) cannot be added up over partitions: after two batches "
                    "its variables are not the sums of what they are after each. Let update_state only ever add to "
                    "them, and `result` turn them into the value, as for a mean or a confusion matrix"
                )


def _number(metric: keras.Metric) -> float:
    value = metric.result()
    if isinstance(value, dict) or np.size(on_host(value)) != 1:
        raise SpecError(
            f"metric {metric.name!r} ({type(metric).__name__}) must give one number, gives several: set for example "
            'average="macro" for a score of several classes'
        )
    return float(on_host(value).reshape(()))
