"""Metrics of Keras as sums: partitions put together are what `model.evaluate` gives over all rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import keras
import numpy as np
import pytest

from hopyard.errors import SpecError
from hopyard.frameworks.keras import model as keras_model
from hopyard.frameworks.keras.metrics import is_mean
from hopyard.frameworks.keras.model import Model
from hopyard.spec import Sums
from hopyard.training.steps import gather
from keras_nets import (
    CLASSES,
    INPUTS,
    WIDTH,
    bits,
    data,
    feed,
    feed_of,
    layers,
    losses,
    made,
    metrics,
    model,
    plain,
    small,
)

pytestmark = pytest.mark.tensorflow

CUTS = (0, 24, 48, 61)
"""Of rows into partitions, at ends of batches."""


def together(reports: list[Sums]) -> Sums:
    """As partitions are put together in the driver: numbers and arrays added, rows too."""
    return gather(reports)


def close(found: dict[str, float], wanted: dict[str, float]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-7, nan_ok=True), name


def same_as_evaluate(trainable: Model, x: Any, y: Any, weights: Any = None) -> dict[str, float]:
    """The values, by Keras, after they were compared with those from three partitions."""
    reports = []
    for start, end in pairwise(CUTS):
        cut = [over(lambda array: array[start:end], part) for part in (x, y, weights)]  # noqa: B023
        reports.append(trainable.evaluate_partition(feed_of(*cut)))
    total = together(reports)
    found = {name: trainable.result(name, values, rows) for name, (values, rows) in total.items()}
    wanted = trainable.model.evaluate(x, y, sample_weight=weights, batch_size=8, verbose=0, return_dict=True)
    close(found, wanted)
    return wanted


def over(change: Callable[[Any], Any], part: Any) -> Any:
    if isinstance(part, dict):
        return {name: change(array) for name, array in part.items()}
    return None if part is None else change(part)


def weights_of(count: int) -> Any:
    return np.random.default_rng(5).uniform(0, 2, count).astype(np.float32)


# ------------------------------------------------------------------------------------------------ users' metrics


def margin(y: Any, outputs: Any) -> Any:
    return keras.ops.max(outputs, axis=-1) - keras.ops.min(outputs, axis=-1)


class Hits(keras.metrics.Metric):
    """Sure and right: a count of a count, each a variable."""

    def __init__(self, name: str = "hits", **more: Any) -> None:
        super().__init__(name=name, **more)
        self.sure = self.add_variable((), "zeros", name="sure")
        self.right = self.add_variable((2,), "zeros", name="right")

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        sure = keras.ops.cast(keras.ops.max(outputs, axis=-1) > 0.4, "float32")
        right = keras.ops.cast(
            keras.ops.equal(keras.ops.argmax(outputs, axis=-1), keras.ops.cast(y, "int64")), "float32"
        )
        self.sure.assign_add(keras.ops.sum(sure))
        self.right.assign_add(keras.ops.stack([keras.ops.sum(sure * right), keras.ops.sum(right)]))

    def result(self) -> Any:
        return self.right[0] / (self.sure + 1e-7)


class Peak(keras.metrics.Metric):
    """The largest output: not a sum."""

    def __init__(self, name: str = "peak") -> None:
        super().__init__(name=name)
        self.peak = self.add_variable((), "zeros", name="peak")
        self.low = self.add_variable((), "zeros", name="low")

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(outputs)))
        self.low.assign(keras.ops.maximum(self.low, keras.ops.max(outputs[:, 0])))

    def result(self) -> Any:
        return self.peak + 0.0


class Ratio(Peak):
    """Of two largest values: does not mind that both are doubled, and is no sum all the same."""

    def result(self) -> Any:
        return self.low / self.peak


class Running(Peak):
    """A mean that is kept as such."""

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.low.assign_add(1.0)
        self.peak.assign_add((keras.ops.mean(outputs[:, 0]) - self.peak) / self.low)


class Moving(Peak):
    """A moving average: slow enough to look like a sum where all numbers are small."""

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.peak.assign(0.999 * self.peak + 0.001 * keras.ops.mean(outputs))


class Highest(keras.metrics.Mean):
    """Has the result of a mean, and is none."""

    def __init__(self, name: str = "peak") -> None:
        super().__init__(name=name)

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.total.assign(keras.ops.maximum(self.total, keras.ops.max(outputs)))
        self.count.assign(1.0)


class Both(keras.metrics.Metric):
    """Gives two numbers."""

    def __init__(self, name: str = "both") -> None:
        super().__init__(name=name)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(outputs))

    def result(self) -> Any:
        return keras.ops.stack([self.total + 0.0, self.total * 2.0])


# ------------------------------------------------------------------------------------------------ values

SPARSE: dict[str, Callable[[], Any]] = {
    "accuracy": lambda: "accuracy",
    "function": lambda: margin,
    "subclass": Hits,
    "top": lambda: metrics.SparseTopKCategoricalAccuracy(k=2),
    "intersection": lambda: metrics.MeanIoU(CLASSES, sparse_y_true=True, sparse_y_pred=False),
    "entropy": lambda: "sparse_categorical_crossentropy",
}
BINARY: dict[str, Callable[[], Any]] = {
    "accuracy": lambda: "accuracy",
    "auc": lambda: metrics.AUC(),
    "area under precision and recall": lambda: metrics.AUC(20, "PR", name="pr"),
    "precision": lambda: metrics.Precision(),
    "recall": lambda: metrics.Recall(thresholds=0.3),
    "recall at precision": lambda: metrics.RecallAtPrecision(0.6),
    "f1": lambda: metrics.F1Score(average="macro", threshold=0.5),
    "iou": lambda: metrics.BinaryIoU(),
    "true positives": lambda: metrics.TruePositives(),
    "false negatives": lambda: metrics.FalseNegatives(),
}
REAL: dict[str, Callable[[], Any]] = {
    "root": lambda: metrics.RootMeanSquaredError(),
    "error": lambda: "mae",
    "cosine": lambda: metrics.CosineSimilarity(),
    "r2": lambda: metrics.R2Score(),
    "pearson": lambda: metrics.PearsonCorrelation(),  # as Keras has it: a mean over rows of what is within a row
    "mean": lambda: metrics.MeanSquaredError(),
}


def sparse(chosen: list[Any], **more: Any) -> keras.Model:
    return small(metrics=chosen, **more)


def binary(chosen: list[Any]) -> keras.Model:
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1, activation="sigmoid")])
    net.compile("sgd", "binary_crossentropy", metrics=chosen)
    return net


def real(chosen: list[Any]) -> keras.Model:
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2)])
    net.compile("sgd", losses.Huber(), metrics=chosen)
    return net


def labels(kind: str) -> Any:
    x, y = data(1, CUTS[-1])
    if kind == "sparse":
        return x, y
    if kind == "binary":
        return x, (x[:, :1] + 0.5 * x[:, 1:2] > 0).astype(np.float32)
    return x, np.stack([x[:, 0] * 2, x[:, 1] - x[:, 2]], 1)


def summed() -> keras.Model:
    """`Sum` takes no labels: its place is a layer or a model, not `compile`."""

    class Adds(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.total = metrics.Sum(name="total")

        def call(self, x: Any) -> Any:
            self.total.update_state(x)
            return x

    net = keras.Sequential([keras.Input((WIDTH,)), Adds(), layers.Dense(2)])
    net.compile("sgd", "mse")
    return net


COUNTS = ("true positives", "false negatives")
NETS = {"sparse": (sparse, SPARSE), "binary": (binary, BINARY), "real": (real, REAL)}
KINDS = ["binary", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("sparse", "real"))]
"""A binary one has most kinds of metrics."""


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_put_together_are_what_evaluate_gives(kind: str) -> None:
    """All metrics at once, after some training."""
    net, kinds = NETS[kind]
    chosen = list(kinds.values())
    trainable = Model(made(lambda: net([make() for make in chosen])))
    x, y = labels(kind)
    trainable.train_partition(feed_of(x, y))
    wanted = same_as_evaluate(trainable, x, y)
    assert len(wanted) == 1 + len(chosen)
    assert all(np.isfinite(list(wanted.values())))
    assert trainable.traces == 2


def test_a_sum_that_a_layer_keeps() -> None:
    trainable = Model(made(summed))
    x, y = labels("real")
    wanted = same_as_evaluate(trainable, x, y)
    assert wanted["total"] == pytest.approx(float(x.sum()), rel=1e-5)
    trainable.train(next(iter(feed_of(x, y))))  # not refused


def test_of_two_layer_metrics_with_one_name_the_last_is_reported() -> None:
    class Adds(keras.layers.Layer):
        def __init__(self, times: float) -> None:
            super().__init__()
            self.total, self.times = metrics.Mean(name="total"), times

        def call(self, x: Any) -> Any:
            self.total.update_state(self.times * keras.ops.sum(x, axis=-1))
            return x

    net = keras.Sequential([keras.Input((WIDTH,)), Adds(1.0), Adds(2.0), layers.Dense(2)])
    net.compile("sgd", "mse")
    same_as_evaluate(Model(net), *labels("real"))


def test_weights_weigh_the_weighted_ones_only() -> None:
    weighted: list[Any] = ["accuracy", metrics.SparseCategoricalCrossentropy(name="entropy"), margin]
    trainable = model(partial(sparse, ["accuracy"], weighted_metrics=weighted))
    x, y = labels("sparse")
    wanted = same_as_evaluate(trainable, x, y, weights_of(len(x)))
    assert set(wanted) == {"loss", "accuracy", "weighted_accuracy", "entropy", "margin"}
    assert wanted["accuracy"] != wanted["weighted_accuracy"]


def test_metrics_of_one_name_are_numbered_as_in_keras() -> None:
    trainable = model(partial(sparse, ["accuracy", "accuracy", metrics.SparseCategoricalAccuracy(name="accuracy")]))
    wanted = same_as_evaluate(trainable, *labels("sparse"))
    assert set(wanted) == {"loss", "accuracy", "accuracy_1", "accuracy_2"}


def test_each_output_has_its_metrics() -> None:
    def net() -> keras.Model:
        here = keras.Input((WIDTH,))
        outputs = {
            "kind": layers.Dense(CLASSES, "softmax", name="kind")(here),
            "size": layers.Dense(1, name="size")(here),
        }
        built = keras.Model(here, outputs)
        built.compile(
            "sgd",
            {"kind": "sparse_categorical_crossentropy", "size": "mse"},
            metrics={"kind": ["accuracy", Hits()], "size": [metrics.RootMeanSquaredError()]},
            weighted_metrics={"size": ["mae"]},
        )
        return built

    trainable = Model(made(net))
    x, y = labels("sparse")
    both = {"kind": y, "size": x[:, :1]}
    wanted = same_as_evaluate(trainable, x, both, weights_of(len(x)))
    assert set(wanted) == {
        "loss", "kind_loss", "size_loss", "kind_accuracy", "kind_hits", "size_root_mean_squared_error", "size_mae",
    }  # fmt: skip


def test_several_outputs_without_names_of_their_own() -> None:
    def net() -> keras.Model:
        here = keras.Input((WIDTH,))
        built = keras.Model(here, [layers.Dense(1, name="one")(here), layers.Dense(2, name="two")(here)])
        built.compile("sgd", ["mse", "mae"], metrics=[["mae"], [metrics.RootMeanSquaredError(name="root")]])
        return built

    trainable = Model(made(net))
    x, _ = labels("sparse")
    y = {"two": x[:, :2], "one": x[:, 3:]}
    reports = together(
        [trainable.evaluate_partition(feed_of(x[a:b], over(lambda v, a=a, b=b: v[a:b], y))) for a, b in pairwise(CUTS)]  # type: ignore[misc]
    )
    wanted = trainable.model.evaluate(x, [y["one"], y["two"]], batch_size=8, verbose=0, return_dict=True)
    close({name: trainable.result(name, total, rows) for name, (total, rows) in reports.items()}, wanted)


def test_losses_that_are_added_count_in_the_loss() -> None:
    def net() -> keras.Model:
        dense = layers.Dense(2, kernel_regularizer="l2", activity_regularizer="l1")
        built = keras.Sequential([keras.Input((WIDTH,)), dense])
        built.compile("sgd", "mse", metrics=["mse"])
        return built

    wanted = same_as_evaluate(Model(made(net)), *labels("real"))
    assert wanted["loss"] > wanted["mse"] + 0.01


def test_means_are_numbers_and_all_else_is_an_array() -> None:
    trainable = model(partial(sparse, ["accuracy", Hits(), metrics.MeanIoU(CLASSES, sparse_y_pred=False)]))
    sums = trainable.train_partition(feed(1))
    assert isinstance(sums["loss"][0], float)
    assert isinstance(sums["accuracy"][0], float)
    assert [len(sums[name][0]) for name in ("hits", "mean_io_u")] == [3, 9]  # type: ignore[arg-type]
    assert {rows for _, rows in sums.values()} == {28.0}
    confusion = np.array(sums["mean_io_u"][0]).reshape(3, 3)
    assert confusion.sum() == 28


# ------------------------------------------------------------------------------------------------ result


def test_result_folds_in_a_worker_that_has_seen_no_row() -> None:
    here, there = (model(partial(sparse, ["accuracy", Hits()])) for _ in range(2))
    sums = here.train_partition(feed(1))
    for name, (total, rows) in sums.items():
        assert there.result(name, total, rows) == pytest.approx(here.result(name, total, rows), rel=1e-6)
    assert there.traces == 0
    with pytest.raises(SpecError, match="no metric 'auc'; the model has 'loss', 'accuracy', 'hits'"):
        there.result("auc", [1.0], 1.0)
    assert np.isnan(there.result("loss", 0.0, 0.0))


def test_result_leaves_nothing_behind() -> None:
    trainable = model(partial(sparse, [Hits()]))
    first = trainable.evaluate_partition(feed(1))
    trainable.result("hits", [10.0, 5.0, 5.0], 20.0)
    assert trainable.evaluate_partition(feed(1)) == first


# ------------------------------------------------------------------------------------------------ refused


def not_refused(kind: str, chosen: list[Callable[[], Any]]) -> None:
    net, _ = NETS[kind]
    x, y = labels(kind)
    checked, plain_ = (Model(made(lambda: net([make() for make in chosen]))) for _ in range(2))
    sums = checked.train(next(iter(feed_of(x, y, size=32))))
    assert sums == plain_.train_partition(feed_of(x[:32], y[:32], size=32))


@pytest.mark.parametrize("kind", KINDS)
def test_additive_metrics_are_accepted(kind: str) -> None:
    not_refused(kind, [make for name, make in NETS[kind][1].items() if name not in COUNTS])


def test_counts_are_not_refused() -> None:
    not_refused("binary", [BINARY[name] for name in COUNTS])


@pytest.mark.parametrize("metric", [Peak, Running, Ratio, Moving, Highest])
def test_a_metric_that_is_not_additive_is_refused_at_the_first_batch(metric: Callable[[], Any]) -> None:
    trainable = model(partial(sparse, [metric()]))
    wanted = rf"metric 'peak' \({type(metric()).__name__}\) cannot be added up"
    with pytest.raises(SpecError, match=wanted):
        trainable.train(next(iter(feed(1))))


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("binary", lambda: metrics.Precision(thresholds=[0.3, 0.6], name="many")),
        ("real", lambda: metrics.R2Score(class_aggregation=None, name="many")),
        ("sparse", lambda: Both(name="many")),
    ],
    ids=["thresholds", "classes", "own"],
)
def test_more_than_one_number_is_refused(kind: str, metric: Callable[[], Any]) -> None:
    trainable = Model(made(lambda: NETS[kind][0]([metric()])))
    with pytest.raises(SpecError, match=r"metric 'many' \(\w+\) .*several"):
        trainable.train(next(iter(feed_of(*labels(kind)))))


def test_the_check_happens_once_and_may_not_change_a_step() -> None:
    one, two = (model(partial(sparse, [Hits()])) for _ in range(2))
    batches = list(range(3))
    told = [one.train(next(iter(feed(number)))) for number in batches]
    two._checked = True
    assert told == [two.train(next(iter(feed(number)))) for number in batches]


class Noise(keras.layers.Layer):
    """Draws in inference too."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        return x + 3.0 * keras.random.normal(keras.ops.shape(x), seed=self.generator)


def noisy() -> Model:
    net = keras.Sequential([keras.Input((WIDTH,)), Noise(), layers.Dense(1, activation="sigmoid")])
    net.compile("sgd", "binary_crossentropy", metrics=[metrics.AUC()])
    return Model(net)


def noisy_batch() -> Any:
    x, y = labels("binary")
    return next(iter(feed_of(x, y, size=32)))


def test_a_model_that_draws_in_inference_may_have_any_metric() -> None:
    noisy().train(noisy_batch())


def test_the_check_leaves_the_generators_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras_model, "check_additive", lambda *holdings: None)
    one, two = made(noisy), made(noisy)
    two._checked = True
    for each in (one, two):
        each.train(noisy_batch())
    assert bits(one) == bits(two)


def test_metrics_that_are_means() -> None:
    assert is_mean(metrics.Mean())
    assert is_mean(metrics.SparseCategoricalAccuracy())
    assert not is_mean(metrics.RootMeanSquaredError())
    assert not is_mean(metrics.Sum())
    assert not is_mean(metrics.AUC())


def test_a_metric_may_have_no_variables() -> None:
    class Constant(keras.metrics.Metric):
        def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
            pass

        def result(self) -> Any:
            return keras.ops.convert_to_tensor(3.0)

    trainable = model(partial(sparse, [Constant(name="three")]))
    assert trainable.train(next(iter(feed(1))))["three"] == ([], 8.0)
    assert trainable.result("three", [], 8.0) == 3.0


def test_rows_that_weigh_nothing_have_no_mean() -> None:
    trainable = Model(made(lambda: plain(weighted_metrics=["accuracy"])))
    trainable.set_schema(INPUTS, {"targets": ((), "int64")})
    x, y = data(1, 16)
    sums = trainable.evaluate_partition(feed_of(x, y, np.zeros(16, np.float32)))
    assert sums["accuracy"] == (0.0, 0.0)
    assert sums["loss"] == (0.0, 16.0)
