"""A linear model in NumPy: the framework of the tests, and the shortest example of a Trainable.

It has only the required methods of a Trainable (and `predict`), so it is run batch by batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopyard.errors import DataError, SpecError
from hopyard.spec import Batch

Array = NDArray[np.float64]
_NAMES = ("weights", "bias", "weights_velocity", "bias_velocity")


class Linear:
    """Softmax regression with cross-entropy, or with one class linear regression with squared error; SGD with
    momentum. All in float64; results do not depend on where in memory the inputs lie.

    Args:
        inputs: numbers in a row; rows of more axes are flattened.
        classes: 1 for regression on targets of shape (rows,) or (rows, 1); else targets are class numbers.
        lr: step size.
        batch_size: rows of a batch.
        momentum: 0 for plain SGD.
        seed: the seed of the first weights.
    """

    load_copies = True

    def __init__(
        self, inputs: int, classes: int, lr: float, batch_size: int, momentum: float = 0.9, *, seed: int = 0
    ) -> None:
        if inputs < 1 or classes < 1:
            raise SpecError(f"Linear(…): inputs and classes must be >= 1, got inputs={inputs}, classes={classes}")
        self.classes = classes
        self.lr = lr
        self.batch_size = batch_size
        self.momentum = momentum
        self.steps = 0
        self.weights: Array = np.random.default_rng(seed).normal(0.0, 0.01, (inputs, classes))
        self.bias: Array = np.zeros(classes)
        self.weights_velocity: Array = np.zeros((inputs, classes))
        self.bias_velocity: Array = np.zeros(classes)

    def state(self) -> dict[str, Any]:
        """Return the live arrays and the number of steps."""
        return {name: getattr(self, name) for name in _NAMES} | {"steps": self.steps}

    def load(self, tree: dict[str, Any]) -> None:
        """Copies a State into the model. Raises SpecError when it is of a model of another shape."""
        for name in _NAMES:
            array = getattr(self, name)
            if array.shape != tree[name].shape:
                raise SpecError(
                    f"{name} of the State has shape {tree[name].shape}, the built model's has {array.shape}: the "
                    "recipe must build the same for the same config"
                )
            np.copyto(array, tree[name])
        self.steps = tree["steps"]

    def train(self, batch: Batch) -> dict[str, tuple[float, float]]:
        """Trains for one step."""
        inputs, error, sums = self._pass(batch)
        for name, gradient in (("weights", inputs.T @ error), ("bias", error.sum(0))):
            velocity = getattr(self, f"{name}_velocity")
            velocity *= self.momentum
            velocity += gradient
            getattr(self, name)[...] -= self.lr * velocity
        self.steps += 1
        return sums

    def evaluate(self, batch: Batch) -> dict[str, tuple[float, float]]:
        """Return the loss and, for classes, the accuracy; changes nothing."""
        return self._pass(batch)[2]

    def predict(self, batch: Batch) -> Array:
        """Return logits, or values, of shape (rows, classes)."""
        return np.asarray(self._flat(batch) @ self.weights + self.bias)

    def _flat(self, batch: Batch) -> Array:
        return np.asarray(batch.inputs, dtype=np.float64).reshape(batch.rows, -1)

    def _pass(self, batch: Batch) -> tuple[Array, Array, dict[str, tuple[float, float]]]:
        """Return (inputs, gradient of the mean loss by the outputs (rows, classes), sums)."""
        inputs = self._flat(batch)
        outputs = inputs @ self.weights + self.bias
        weight = np.ones(batch.rows) if batch.weights is None else np.asarray(batch.weights, dtype=np.float64)
        rows = float(weight.sum())
        share = (weight / (rows or 1.0))[:, None]
        if self.classes == 1:
            error = outputs - np.asarray(batch.targets, dtype=np.float64).reshape(-1, 1)
            return inputs, 2 * error * share, {"loss": (float((weight * error[:, 0] ** 2).sum()), rows)}
        labels = np.asarray(batch.targets).reshape(-1)
        if labels.min() < 0 or labels.max() >= self.classes:
            raise DataError(f"labels from {labels.min()} to {labels.max()}: 0 to {self.classes - 1} are allowed")
        outputs -= outputs.max(1, keepdims=True)
        probabilities = np.exp(outputs)
        probabilities /= probabilities.sum(1, keepdims=True)
        index = np.arange(batch.rows)
        loss = -np.log(np.maximum(probabilities[index, labels], 1e-300))
        correct = np.where(np.isnan(probabilities).any(1), np.nan, probabilities.argmax(1) == labels)
        probabilities[index, labels] -= 1
        sums = {"loss": (float((weight * loss).sum()), rows), "accuracy": (float((weight * correct).sum()), rows)}
        return inputs, probabilities * share, sums
