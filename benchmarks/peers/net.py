"""A small net in NumPy, for Hopyard and its peers alike: 64 inputs, one hidden layer, 10 classes. Needs NumPy alone."""

from __future__ import annotations

from typing import Any

import numpy as np

CONFIGS = [
    {"lr": lr, "width": width, "momentum": momentum}
    for lr in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    for width in (8, 32, 96, 256)
    for momentum in (0.0, 0.9)
]
EPOCHS, ETA, BATCH = 27, 3, 32
TRIALS, TRIALS_OF_RAY = 1000, 60
"""Trials that do nothing."""


def best_so_far(losses: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return those of (seconds, loss) that are better than all before."""
    best: list[tuple[float, float]] = []
    for seconds, loss in sorted(losses):
        if np.isfinite(loss) and (not best or loss < best[-1][1]):
            best.append((seconds, loss))
    return best


class Net:
    """Softmax of two layers, trained by stochastic gradient descent with momentum."""

    def __init__(self, config: dict[str, Any]) -> None:
        drawn, width = np.random.default_rng(0), config["width"]
        self.lr, self.momentum = config["lr"], config["momentum"]
        shapes = {"a": (64, width), "b": (width,), "c": (width, 10), "d": (10,)}
        self.weights = {
            name: drawn.normal(0, 0.1, shape) if len(shape) == 2 else np.zeros(shape) for name, shape in shapes.items()
        }
        self.speed = {name: np.zeros(shape) for name, shape in shapes.items()}

    def forward(self, x: Any) -> tuple[Any, Any]:
        """Return hidden values and probabilities."""
        hidden = np.maximum(x @ self.weights["a"] + self.weights["b"], 0)
        scores = hidden @ self.weights["c"] + self.weights["d"]
        odds = np.exp(scores - scores.max(1, keepdims=True))
        return hidden, odds / odds.sum(1, keepdims=True)

    def loss(self, x: Any, y: Any) -> float:
        """Return the sum of the cross entropy over rows."""
        odds = self.forward(x)[1][np.arange(len(y)), y]
        return float(-np.log(np.maximum(odds, 1e-12)).sum())

    def step(self, x: Any, y: Any) -> float:
        """Take a step. Returns the sum of the loss over rows, before it."""
        hidden, odds = self.forward(x)
        loss = float(-np.log(np.maximum(odds[np.arange(len(y)), y], 1e-12)).sum())
        error = odds
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ self.weights["c"].T) * (hidden > 0)
        gradients = {"a": x.T @ back, "b": back.sum(0), "c": hidden.T @ error, "d": error.sum(0)}
        for name, gradient in gradients.items():
            self.speed[name] = self.momentum * self.speed[name] + gradient
            self.weights[name] -= self.lr * self.speed[name]
        return loss

    def epoch(self, data: Any, number: int) -> float:
        """Go over the training rows in an order of this epoch. Returns the mean loss of the validation rows."""
        x, y = data["x"], data["y"]
        order = np.random.default_rng(number).permutation(len(y))
        for start in range(0, len(y), BATCH):
            rows = order[start : start + BATCH]
            self.step(x[rows], y[rows])
        return self.loss(data["val_x"], data["val_y"]) / len(data["val_y"])
