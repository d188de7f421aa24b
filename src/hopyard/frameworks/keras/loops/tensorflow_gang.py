"""A gang's gradients inside a step on TensorFlow: they leave the graph as flat arrays, small ones together, and their
means come back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hopyard.frameworks.keras.gang import Gradients

_TRAVEL = ("float32", "float64")
"""dtypes that NumPy has, and whose sums are good enough; others become float32 on their way."""
_ALONE = 1 << 16
"""A gradient with more numbers travels in an array of its own, as putting it together with others costs two passes
over it."""


class Means:
    """What takes the place of an optimizer's `apply` (`keras.gang.averaging`).

    Args:
        gradients: of the member.
        rows: of the batch: a tensor of the graph, or a function that returns them when the step runs.
    """

    def __init__(self, gradients: Gradients, rows: Any) -> None:
        self._gradients, self._rows = gradients, rows
        self.used = False
        """Whether the step has called it."""

    def __call__(self, own: list[Any], apply: Callable[[list[Any]], None]) -> None:
        """Step along the means of these gradients."""
        self.used = True
        reached = [tf.convert_to_tensor(gradient) for gradient in own if gradient is not None]  # rows of an embedding
        steps, means = self._mean(reached)
        mean = iter(means)
        result = [None if gradient is None else next(mean) for gradient in own]
        if tf.executing_eagerly():
            if steps:
                apply(result)
        elif self._gradients.pieces == 1:
            apply(result)
        else:
            tf.cond(steps, lambda: _then(apply, result), lambda: tf.constant(True))

    def _mean(self, tensors: list[Any]) -> tuple[Any, list[Any]]:
        travel = [tensor.dtype.name if tensor.dtype.name in _TRAVEL else _TRAVEL[0] for tensor in tensors]
        counts = [tensor.shape.num_elements() for tensor in tensors]
        groups = [[n] for n, count in enumerate(counts) if count > _ALONE]
        groups += [
            small
            for dtype in _TRAVEL
            if (small := [n for n, count in enumerate(counts) if count <= _ALONE and travel[n] == dtype])
        ]
        parts = [tf.reshape(tf.cast(tensor, name), [-1]) for tensor, name in zip(tensors, travel, strict=True)]
        flat = [parts[group[0]] if len(group) == 1 else tf.concat([parts[n] for n in group], 0) for group in groups]
        in_graph = tf.is_tensor(self._rows)

        def exchanged(*arguments: Any) -> Any:
            *arrays, rows = arguments if in_graph else (*arguments, self._rows())
            steps, means = self._gradients.mean([np.array(array) for array in arrays], int(rows))
            return (steps, *means)

        arguments = [*flat, self._rows] if in_graph else flat
        if tf.executing_eagerly():
            steps, *means = exchanged(*[tensor.numpy() for tensor in arguments])
            means = [tf.convert_to_tensor(mean) for mean in means]
        else:
            steps, *means = tf.numpy_function(exchanged, arguments, [tf.bool, *(each.dtype for each in flat)])
            steps.set_shape(())
        result: list[Any] = [None] * len(tensors)
        for group, mean, sent in zip(groups, means, flat, strict=True):
            mean.set_shape(sent.shape)
            shares = [mean] if len(group) == 1 else tf.split(mean, [counts[n] for n in group])
            for n, part in zip(group, shares, strict=True):
                result[n] = tf.cast(tf.reshape(part, tensors[n].shape), tensors[n].dtype)
        return steps, result


def _then(apply: Callable[[list[Any]], None], gradients: list[Any]) -> Any:
    apply(gradients)
    return tf.constant(True)
