"""The NumPy model that engine and driver tests train."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hopyard.errors import DataError, SpecError
from hopyard.frameworks import framework_of
from hopyard.frameworks.linear import Linear
from hopyard.frameworks.tree import capture, restore
from hopyard.ports.training import SupportsPredict, SupportsWholePartition
from hopyard.spec import Batch
from hopyard.store.tree import decode, encode
from rows import Rows, aligned, rows


def go(model: Linear, feed: Any) -> list[dict[str, tuple[float, float]]]:
    return [model.train(batch) for batch in feed]


def test_linear_is_the_smallest_trainable() -> None:
    model = Linear(20, 5, 0.1, 16)
    assert isinstance(model, SupportsPredict) and not isinstance(model, SupportsWholePartition)
    assert framework_of(model) is None
    assert model.batch_size == 16


def test_learns_classes_and_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((500, 4)).astype(np.float32)
    y = (x @ rng.standard_normal((4, 3))).argmax(1)
    model = Linear(4, 3, 0.1, 32)
    for _ in range(20):
        go(model, Rows(x, y, 32))
    batch = Batch(x, y, None, 500)
    assert model.evaluate(batch)["accuracy"][0] / 500 > 0.95
    assert model.predict(batch).shape == (500, 3)
    line = Linear(4, 1, 0.05, 32)
    z = (x @ np.array([1.0, -2.0, 0.5, 3.0]) + 0.25).astype(np.float32)
    for _ in range(20):
        go(line, Rows(x, z, 32))
    assert line.evaluate(Batch(x, z, None, 500))["loss"][0] / 500 < 1e-4
    assert line.bias[0] == pytest.approx(0.25, abs=0.01)


def test_the_class_of_nan_is_not_the_first() -> None:
    model = Linear(2, 3, 0.1, 4)
    x = np.zeros((4, 2), np.float32)
    assert model.evaluate(Batch(x, np.zeros(4, np.int64), None, 4))["accuracy"] == (
        4.0 * (model.bias.argmax() == 0),
        4.0,
    )
    model.weights[:, 1] = np.nan
    sums = model.evaluate(Batch(x, np.zeros(4, np.int64), None, 4))
    assert np.isnan([total for total, _ in sums.values()]).all() and set(sums) == {"loss", "accuracy"}


def test_gradients_are_right() -> None:
    rng = np.random.default_rng(1)
    for classes, targets in ((3, rng.integers(0, 3, 6)), (1, rng.normal(size=6))):
        batch = Batch(rng.normal(size=(6, 2, 2)), targets, rng.uniform(0, 2, 6), 6)
        model = Linear(4, classes, 1.0, 6, momentum=0.0)
        before = model.weights.copy()

        def mean(weights: Any, model: Linear = model, batch: Batch = batch) -> float:
            model.weights[...] = weights
            total, rows = model.evaluate(batch)["loss"]
            return total / rows

        numeric = np.zeros_like(before)
        for at in np.ndindex(before.shape):
            for sign in (1, -1):
                moved = before.copy()
                moved[at] += sign * 1e-6
                numeric[at] += sign * mean(moved) / 2e-6
        model.weights[...] = before
        model.train(batch)
        assert np.allclose(before - model.weights, numeric, atol=1e-6)


def test_swapped_training_is_bitwise_equal() -> None:
    wanted, one, two = (Linear(20, 5, 0.1, 16, seed=seed) for seed in (0, 1, 2))
    data = encode(capture(wanted))
    for number in range(6):
        go(wanted, rows(number))
        model = (one, two)[number % 2]
        go(model, rows(99))
        restore(model, decode(data))
        go(model, rows(number))
        data = encode(capture(model))
    assert data == encode(capture(wanted)) and wanted.steps == 24


def test_alignment_does_not_matter() -> None:
    def trained(offset: int) -> bytes:
        model, feed = Linear(33, 5, 0.1, 16), rows(0, width=33)
        for batch in feed:
            moved = aligned(batch.inputs.shape, np.float32, offset)
            moved[...] = batch.inputs
            batch.inputs = moved
            model.train(batch)
        return bytes(encode(capture(model)))

    assert len({trained(offset) for offset in (0, 4, 8, 16, 36)}) == 1


def test_refusals_of_linear() -> None:
    with pytest.raises(SpecError, match="classes=0"):
        Linear(3, 0, 0.1, 4)
    with pytest.raises(SpecError, match=r"shape \(4, 3\).*\(5, 3\)"):
        Linear(5, 3, 0.1, 4).load(Linear(4, 3, 0.1, 4).state())
    for label in (-1, 3):
        with pytest.raises(DataError, match="0 to 2 are allowed"):
            Linear(4, 3, 0.1, 4).train(Batch(np.zeros((2, 4)), np.array([0, label]), None, 2))
