"""`Model`: a partition in one compiled call is what Keras itself computes, and nothing more than that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from hopyard.agent.runs.faults import Blame, blame
from hopyard.errors import HopyardError, SpecError
from hopyard.frameworks import framework_of, seed_all
from hopyard.frameworks.keras import runtime
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.keras.rows import SingleBatch
from hopyard.frameworks.tensorflow import runtime as tensorflow_runtime
from hopyard.frameworks.tree import capture, restore
from hopyard.ports.training import (
    ReportsNondeterminism,
    SupportsEpochEnd,
    SupportsLabelCheck,
    SupportsPredict,
    SupportsResult,
    SupportsSchema,
    SupportsSharing,
    SupportsWholePartition,
)
from hopyard.spec import Batch
from hopyard.store.tree import decode
from jobs import Counter
from keras_nets import (
    CLASSES,
    INPUTS,
    TARGETS,
    WIDTH,
    bits,
    data,
    feed,
    feed_of,
    layers,
    losses,
    made,
    mean,
    metrics,
    mlp,
    model,
    optimizers,
    ordered,
    plain,
    small,
    with_loss,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    before = tensorflow_runtime.snapshot()
    tf.config.experimental.enable_op_determinism()
    yield
    tensorflow_runtime.restore(before)


@pytest.fixture
def policy() -> Iterator[Callable[[str], None]]:
    """Sets Keras' dtype policy, and puts it back."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


def test_offers_what_the_ports_ask() -> None:
    trainable = model(plain)
    for port in (
        SupportsWholePartition,
        SupportsEpochEnd,
        SupportsResult,
        SupportsPredict,
        SupportsSchema,
        SupportsSharing,
        SupportsLabelCheck,
        ReportsNondeterminism,
    ):
        assert isinstance(trainable, port)
    assert trainable.load_copies and framework_of(trainable) == "keras"
    assert trainable.batch_size is None
    assert Model(made(plain), batch_size=8).batch_size == 8


# ------------------------------------------------------------------------------------------------ the same as Keras


def recurrent() -> keras.Model:
    net = [keras.Input((WIDTH,)), layers.Reshape((WIDTH, 1)), layers.GRU(3, dropout=0.3), layers.Dense(CLASSES)]
    return with_loss(keras.Sequential(net), loss=losses.SparseCategoricalCrossentropy(from_logits=True))


def augmented() -> keras.Model:
    net = [
        keras.Input((WIDTH,)),
        layers.Reshape((2, 2, 1)),
        layers.RandomFlip(),
        layers.Conv2D(3, 2),
        layers.SpatialDropout2D(0.2),
        layers.Flatten(),
        layers.GaussianNoise(0.1),
        layers.Dense(CLASSES, activation="softmax"),
    ]
    return with_loss(keras.Sequential(net))


def penalised() -> keras.Model:
    """Losses that layers add: of weights, of activations, and of their own."""

    class Small(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(x**2))
            return x

    net = [
        keras.Input((WIDTH,)),
        layers.Dense(6, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L1(0.01)),
        Small(),
        layers.Dense(CLASSES, activation="softmax"),
    ]
    return with_loss(keras.Sequential(net), metrics=["accuracy"])


def own_loss(y: Any, outputs: Any) -> Any:
    one_hot = keras.ops.one_hot(keras.ops.cast(y, "int32"), CLASSES)
    return keras.ops.mean(keras.ops.square(one_hot - outputs), axis=-1)


NETS: dict[str, Callable[[], keras.Model]] = {
    "adam": partial(mlp, metrics=["accuracy"]),
    "momentum": lambda: small(optimizer=optimizers.SGD(0.1, momentum=0.9, nesterov=True)),
    "schedule": lambda: small(optimizer=optimizers.SGD(optimizers.schedules.ExponentialDecay(0.5, 2, 0.5))),
    "accumulated": lambda: small(optimizer=optimizers.Adam(0.01, gradient_accumulation_steps=2)),
    "clipped": lambda: small(optimizer=optimizers.AdamW(0.01, clipnorm=0.1, weight_decay=0.1)),
    "recurrent": recurrent,
    "augmented": augmented,
    "penalised": penalised,
    "own loss": partial(small, loss=own_loss),
}


COMMON = ("adam", "schedule", "clipped", "augmented")


@pytest.mark.parametrize(
    "name", [name if name in COMMON else pytest.param(name, marks=pytest.mark.long) for name in NETS]
)
def test_a_partition_in_one_call_is_what_fit_gives(name: str) -> None:
    """Bit for bit: every variable of model and optimizer, with the generators of dropout as they were built."""
    whole, fitted = model(NETS[name]), model(NETS[name])
    given = feed(1, draws=None)
    x, y = ordered(given)
    sums = whole.train_partition(given)
    told = fitted.model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    assert bits(whole) == bits(fitted)
    assert {name: total / rows for name, (total, rows) in sums.items()} == {  # type: ignore[operator]
        name: pytest.approx(values[0], rel=1e-6) for name, values in told.items()
    }
    assert sums["loss"][1] == 28.0


def test_a_step_equals_train_on_batch() -> None:
    whole, stepped = model(mlp), model(mlp)
    for number, shuffle in enumerate((5, None)):
        given = feed(number, shuffle=shuffle, draws=None)
        x, y = ordered(given)
        whole.train_partition(given)
        for start in range(0, 28, 8):
            stepped.model.train_on_batch(x[start : start + 8], y[start : start + 8])
    assert bits(whole) == bits(stepped)


@pytest.mark.parametrize("name", ["adam", "penalised"])
def test_evaluation_is_what_evaluate_gives(name: str) -> None:
    trainable = model(NETS[name])
    trainable.train_partition(feed(1))
    x, y = data(2, 28)
    wanted = trainable.model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)
    sums = trainable.evaluate_partition(feed(2, shuffle=None))
    assert {name: total / rows for name, (total, rows) in sums.items()} == pytest.approx(wanted, rel=1e-6)  # type: ignore[operator]


@pytest.mark.parametrize(
    "kind",
    [
        "mixed_float16",
        pytest.param("float64", marks=pytest.mark.campaign),
        pytest.param("mixed_bfloat16", marks=pytest.mark.campaign),
        pytest.param("bfloat16", marks=pytest.mark.long),
    ],
)
def test_other_precisions_are_fits_too(kind: str, policy: Callable[[str], None]) -> None:
    def net() -> keras.Model:  # `made` puts the policy back first
        policy(kind)
        return mlp(optimizer=optimizers.SGD(0.1, momentum=0.5))

    whole, fitted = model(net), model(net)
    policy(kind)
    given = feed(1, draws=None)
    x, y = ordered(given)
    whole.train_partition(given)
    fitted.model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)
    assert whole.model.layers[0].compute_dtype == kind.removeprefix("mixed_")
    assert np.isfinite(mean(whole.evaluate_partition(feed(2))))


def test_as_stored_is_in_the_order_of_the_rows() -> None:
    whole, fitted = model(plain), model(plain)
    whole.train_partition(feed(1, shuffle=None))
    fitted.model.fit(*data(1, 28), batch_size=8, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)


def test_batch_by_batch_is_the_same_as_the_partition() -> None:
    """But for the generators, which begin anew with each call."""
    whole, single = model(small, class_weight={0: 2.0}), model(small, class_weight={0: 2.0})
    sums = whole.train_partition(feed(3, draws=None))
    parts = [single.train(batch) for batch in feed(3, draws=None)]
    assert bits(whole) == bits(single)
    assert sums["loss"][0] == pytest.approx(sum(part["loss"][0] for part in parts))
    assert [single.evaluate(batch)["loss"][1] for batch in feed(3)] == [8, 8, 8, 4]


def test_eager_steps_give_the_same() -> None:
    compiled, eager = model(small), model(partial(small, run_eagerly=True))
    sums = [each.train_partition(feed(1)) for each in (compiled, eager)]
    assert mean(sums[0]) == pytest.approx(mean(sums[1]), rel=1e-5)
    for here, there in zip(compiled.model.variables, eager.model.variables, strict=True):
        np.testing.assert_allclose(here.value, there.value, rtol=1e-4, atol=1e-6)
    seen = [mean(each.evaluate_partition(feed(2))) for each in (compiled, eager)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-4)
    assert eager.traces == 0


@pytest.mark.long
def test_xla_gives_nearly_the_same() -> None:
    tensorflow_runtime.restore(None)  # with deterministic operations on, Keras does without XLA, and warns
    compiled, xla = model(plain), model(partial(plain, jit_compile=True))
    assert xla.model.jit_compile
    sums = [each.train_partition(feed(1)) for each in (compiled, xla)]
    assert mean(sums[0]) == pytest.approx(mean(sums[1]), rel=1e-5)
    seen = [mean(each.evaluate_partition(feed(2))) for each in (compiled, xla)]
    assert seen[0] == pytest.approx(seen[1], rel=1e-4)
    assert xla.traces == 2


# ------------------------------------------------------------------------------------------------ traces


def test_training_and_evaluation_have_one_trace_each() -> None:
    trainable = model(mlp)
    assert trainable.traces == 0
    first = bits(trainable)
    for number, (count, size, shuffle) in enumerate([(28, 8, 1), (40, 8, 2), (28, 8, None), (5, 32, 3), (33, 16, 4)]):
        trainable.train_partition(feed(number, count, size, shuffle))
        trainable.evaluate_partition(feed(number, count, size, None))
        assert trainable.traces == 2
    restore(trainable, decode(first))
    trainable.train(next(iter(feed(1, size=3))))
    trainable.evaluate(next(iter(feed(1, size=1))))
    assert trainable.traces == 2
    assert trainable.nondeterminism == ()


def test_weights_of_rows_are_another_form_of_data() -> None:
    trainable = model(plain)
    x, y = data(1, 28)
    trainable.train_partition(feed_of(x, y))
    trainable.train_partition(feed_of(x, y, np.ones(28, np.float32)))
    assert trainable.traces == 2


@pytest.mark.parametrize("shuffle", [pytest.param(None, marks=pytest.mark.long), 7])
def test_a_large_partition_is_cut_and_nobody_can_tell(monkeypatch: pytest.MonkeyPatch, shuffle: int | None) -> None:
    whole, cut = model(small), model(small)
    sums = [whole.train_partition(feed(1, 60, 8, shuffle)), whole.evaluate_partition(feed(2, 60, 8, None))]
    monkeypatch.setattr("hopyard.frameworks.keras.rows.PART_BYTES", 500)
    assert [cut.train_partition(feed(1, 60, 8, shuffle)), cut.evaluate_partition(feed(2, 60, 8, None))] == sums
    assert bits(whole) == bits(cut)
    assert cut.traces == 2


@pytest.mark.parametrize(("shuffle", "part_bytes"), [(7, 1 << 28), pytest.param(None, 500, marks=pytest.mark.long)])
def test_calls_take_about_ten_seconds_and_nobody_can_tell(
    monkeypatch: pytest.MonkeyPatch, counter: Counter, shuffle: int | None, part_bytes: int
) -> None:
    """A partition in one call would look as if nothing advanced for as long as it takes."""
    monkeypatch.setattr("hopyard.frameworks.keras.rows.PART_BYTES", part_bytes)
    whole, cut = model(small), model(small)
    whole.train_partition(feed(1, 60, 8, shuffle))
    whole.evaluate_partition(feed(2, 60, 8, None))
    assert sum(counter.counts) == 16
    assert len(counter.counts) < 16 or part_bytes == 500
    counter.seen.clear()
    monkeypatch.setattr("hopyard.frameworks.keras.rows.CALL_SECONDS", 1e-9)
    cut.train_partition(feed(1, 60, 8, shuffle))
    cut.evaluate_partition(feed(2, 60, 8, None))
    assert counter.counts == [1] * 16
    assert bits(whole) == bits(cut)
    sums = [
        (one.train_partition(feed(3, 60, 8, 2)), one.evaluate_partition(feed(2, 60, 8, None))) for one in (whole, cut)
    ]
    assert sums[0] == sums[1]
    assert bits(whole) == bits(cut)
    assert cut.traces == 2


def test_a_first_call_may_compile(counter: Counter) -> None:
    trainable = model(small)
    for _ in range(2):
        trainable.train_partition(feed(1, 60, 8))
    trainable.evaluate_partition(feed(2, 60, 8, None))
    assert counter.phases == ["compile", "train", "compile", "validate"]


# ------------------------------------------------------------------------------------------------ what is drawn


def test_a_partition_done_again_draws_the_same() -> None:
    trainable = model(small)
    first = bits(trainable)
    sums = trainable.train_partition(feed(1, draws=5))
    once = bits(trainable)
    trainable.train_partition(feed(2, draws=6))
    restore(trainable, decode(first))
    trainable.train(next(iter(feed(3))))  # as an attempt that failed half-way would
    restore(trainable, decode(first))
    assert trainable.train_partition(feed(1, draws=5)) == sums
    assert bits(trainable) == once


def test_partitions_and_layers_draw_differently() -> None:
    def net() -> keras.Model:
        return with_loss(
            keras.Sequential([keras.Input((WIDTH,)), layers.Dropout(0.5), layers.Dropout(0.5), layers.Dense(CLASSES)])
        )

    trainable = model(net)
    seen = []
    for draws in (1, 2):
        trainable.train_partition(feed(1, size=64, draws=draws))
        generators = [variable for variable in trainable.model.variables if variable.name == "seed_generator_state"]
        seen += [tuple(np.asarray(variable.value)) for variable in generators]
    assert len(set(seen)) == 4
    assert {second for _, second in seen} == {1}  # one batch, one draw of each


class Noise(keras.layers.Layer):
    """Draws whenever it is called, also in inference, from a generator of its own or from Keras' unnamed one."""

    def __init__(self, own: bool = True, **more: Any) -> None:
        super().__init__(**more)
        self.generator = keras.random.SeedGenerator(1) if own else None

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.generator)


def noisy(own: bool = True) -> keras.Model:
    net = [keras.Input((WIDTH,)), Noise(own), layers.BatchNormalization(), layers.Dense(CLASSES, activation="softmax")]
    return with_loss(keras.Sequential(net))


@pytest.mark.parametrize("own", [pytest.param(True, marks=pytest.mark.long), False], ids=["generator", "unnamed"])
def test_evaluation_changes_nothing_also_where_a_layer_draws(own: bool) -> None:
    trainable = model(partial(noisy, own))
    trainable.train_partition(feed(1))
    before = bits(trainable)
    seen = []
    for seed in (1, 1, 2):
        seed_all(seed)
        seen.append(trainable.evaluate_partition(feed(2, draws=seed)))
        trainable.evaluate(next(iter(feed(3))))
    assert bits(trainable) == before
    assert seen[0] == seen[1] != seen[2]


def test_unseeded_draws_begin_with_the_seed_of_the_process() -> None:
    trainable = model(partial(noisy, own=False))
    first = bits(trainable)
    made_: list[bytes] = []
    for seed in (7, 7, 8):
        restore(trainable, decode(first))
        seed_all(seed)
        trainable.train_partition(feed(1))
        made_.append(bits(trainable))
    assert made_[0] == made_[1] != made_[2]
    assert trainable.nondeterminism == ()


@pytest.mark.parametrize(
    "again", [partial(keras.utils.set_random_seed, 1), pytest.param(keras.utils.clear_session, marks=pytest.mark.long)]
)
def test_a_recipe_that_seeds_keras_anew_does_not_disturb_a_model_that_draws(again: Callable[[], None]) -> None:
    trainable = model(partial(noisy, own=False))
    first = bits(trainable)
    seed_all(7)
    trainable.train_partition(feed(1))
    once = bits(trainable)
    again()
    restore(trainable, decode(first))
    seed_all(7)
    trainable.train_partition(feed(1))
    assert bits(trainable) == once


def test_a_recipe_that_clears_the_session_does_not_disturb_a_model_that_is_built() -> None:
    here, there = model(small), model(small)
    for number in range(3):
        here.train_partition(feed(number))
    for number in range(3):
        there.train_partition(feed(number))
        keras.utils.clear_session()
        made(plain)
    assert bits(here) == bits(there)
    assert there.traces == 1


def test_the_settings_of_a_recipe_count_when_its_steps_are_traced() -> None:
    def net() -> keras.Model:
        keras.config.set_epsilon(0.1)
        return with_loss(keras.Sequential([keras.Input((WIDTH,)), layers.Dense(1, "relu")]), loss="poisson")

    here, there = model(net), model(net)
    here.train_partition(feed(1))
    there.train_partition(feed(1))
    wanted = here.evaluate_partition(feed(2))
    made(plain)  # another trial of this worker
    assert there.evaluate_partition(feed(2)) == wanted


def test_state_that_cannot_hop_is_noted() -> None:
    class Step(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.seen = tf.Variable(0.0)

        def call(self, x: Any) -> Any:
            self.seen.assign_add(1.0)
            return x + tf.random.normal(tf.shape(x))

    trainable = model(lambda: with_loss(keras.Sequential([keras.Input((WIDTH,)), Step(), layers.Dense(CLASSES)])))
    trainable.train_partition(feed(1))
    trainable.evaluate_partition(feed(1))
    variable, generator = trainable.nondeterminism
    assert "Keras knows nothing" in variable
    assert "TensorFlow's own generator (RandomStandardNormal)" in generator


def test_a_second_optimizer_is_noted() -> None:
    """Keras does not know of it either, so its variables are not among the model's."""

    class Two(keras.Model):
        def train_step(self, batch: Any) -> Any:
            x, y = batch
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            self.other.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return self.compute_metrics(x, y, self(x))

    def net() -> keras.Model:
        here = keras.Input((WIDTH,))
        made_ = Two(here, layers.Dense(CLASSES, activation="softmax")(here))
        made_.other = optimizers.Adam(0.1)
        return with_loss(made_)

    trainable = model(net)
    trainable.train_partition(feed(1))
    assert sum("velocity" in note for note in trainable.nondeterminism) == 2


# ------------------------------------------------------------------------------------------------ inputs, outputs


def forked(as_dict: bool = True) -> keras.Model:
    """Two inputs, two outputs, a loss of each."""
    left, right = keras.Input((3,), name="left"), keras.Input((2,), name="right")
    hidden = layers.Dense(5, activation="relu")(layers.Concatenate()([left, right]))
    size = layers.Dense(1, name="size")(hidden)
    kind = layers.Dense(CLASSES, activation="softmax", name="kind")(hidden)
    inputs: Any = {"left": left, "right": right} if as_dict else [left, right]
    net = keras.Model(inputs, {"size": size, "kind": kind})
    net.compile(
        optimizers.Adam(0.01),
        loss={"size": "mse", "kind": "sparse_categorical_crossentropy"},
        loss_weights={"size": 0.3, "kind": 1.0},
        metrics={"size": ["mae"], "kind": ["accuracy"]},
        weighted_metrics={"kind": ["accuracy"]},
    )
    return net


FORKED = ({"left": ((3,), "float32"), "right": ((2,), "float32")}, {"size": ((1,), "float32"), "kind": ((), "int64")})


def forked_rows(count: int = 28) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    draw = partial(rng.standard_normal, dtype=np.float32)
    x = {"right": draw((count, 2)), "left": draw((count, 3))}
    y = {"kind": rng.integers(0, CLASSES, count), "size": draw((count, 1))}
    return x, y, rng.uniform(0, 2, count).astype(np.float32)


@pytest.mark.parametrize(
    ("as_dict", "weighted"),
    [pytest.param(True, False, marks=pytest.mark.long, id="dict"), pytest.param(False, True, id="list, weighted")],
)
def test_several_inputs_and_outputs(as_dict: bool, weighted: bool) -> None:
    whole, fitted = (Model(made(partial(forked, as_dict))) for _ in range(2))
    x, y, weights = forked_rows()
    for each in (whole, fitted):
        each.set_schema(*FORKED)
    given = weights if weighted else None
    whole.train_partition(feed_of(x, y, given))
    fitted.model.fit(x, y, batch_size=8, shuffle=False, verbose=0, sample_weight=given)
    assert bits(whole) == bits(fitted)
    wanted = whole.model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True, sample_weight=given)
    sums = whole.evaluate_partition(feed_of(x, y, given))
    assert set(wanted) == {
        "loss", "size_loss", "kind_loss", "size_mae", "kind_accuracy", "kind_weighted_accuracy",
    }  # fmt: skip
    assert {name: total / rows for name, (total, rows) in sums.items()} == pytest.approx(wanted, rel=1e-5)  # type: ignore[operator]
    predicted = whole.predict(Batch(x, None, None, 28))
    assert {name: values.shape for name, values in predicted.items()} == {"size": (28, 1), "kind": (28, CLASSES)}
    assert all(type(values) is np.ndarray for values in predicted.values())


def test_predictions_are_arrays_by_the_names_of_the_outputs() -> None:
    trainable = model(plain)
    x, _ = data(1, 5)
    outputs = trainable.predict(Batch(x, None, None, 5))
    np.testing.assert_array_equal(outputs, trainable.model.predict(x, verbose=0))
    here = keras.Input((WIDTH,))
    listed = keras.Model(here, [layers.Dense(1, name="one")(here), layers.Dense(2, name="two")(here)])
    listed.compile("sgd", "mse")
    found = Model(listed).predict(Batch(x, None, None, 5))
    assert {name: values.shape for name, values in found.items()} == {"one": (5, 1), "two": (5, 2)}


def test_weights_of_rows_are_fits_sample_weight() -> None:
    net = partial(small, weighted_metrics=["accuracy"])
    whole, fitted = model(net), model(net)
    x, y = data(1, 28)
    weights = np.random.default_rng(0).uniform(0, 2, 28).astype(np.float32)
    weights[8:16] = 0  # a whole batch that counts for nothing
    sums = whole.train_partition(feed_of(x, y, weights, seed=None))
    told = fitted.model.fit(x, y, sample_weight=weights, batch_size=8, shuffle=False, verbose=0).history
    assert bits(whole) == bits(fitted)
    assert mean(sums) == pytest.approx(told["loss"][0], rel=1e-6)
    assert mean(sums, "accuracy") == pytest.approx(told["accuracy"][0], rel=1e-6)
    assert sums["accuracy"][1] == pytest.approx(float(weights.sum()))


def test_numbers_of_numpy_are_python_s() -> None:
    ones = [Model(made(small), batch_size=8, class_weight={0: 0.5, 1: 2.0})]
    of_numpy: dict[str, Any] = {
        "batch_size": np.int64(8),
        "class_weight": {np.int64(0): np.float32(0.5), 1: np.float64(2)},
    }
    ones += [Model(made(small), **of_numpy)]
    assert len({f"{one.sharing_key} {one.batch_size!r} {one.class_weight!r}" for one in ones}) == 1


@pytest.mark.parametrize("labels", ["numbers", pytest.param("column", marks=pytest.mark.long), "one-hot"])
def test_class_weight_is_fits(labels: str) -> None:
    loss = "categorical_crossentropy" if labels == "one-hot" else "sparse_categorical_crossentropy"
    weight = {0: 3.0, 2: 0.25}  # class 1 is not named
    whole, fitted = (Model(made(partial(small, loss=loss)), class_weight=weight) for _ in range(2))
    x, y = data(1, 28)
    y = {"numbers": y, "column": y[:, None], "one-hot": np.eye(CLASSES, dtype=np.float32)[y]}[labels]
    for each in (whole, fitted):
        each.set_schema(INPUTS, {"targets": (y.shape[1:], str(y.dtype))})
    whole.train_partition(feed_of(x, y, seed=None))
    fitted.model.fit(x, y, class_weight=weight, batch_size=8, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)
    wanted = whole.model.evaluate(x, y, batch_size=8, verbose=0)  # validation is not weighted
    assert mean(whole.evaluate_partition(feed_of(x, y))) == pytest.approx(wanted, rel=1e-6)


def test_without_labels_and_without_a_loss() -> None:
    class Spread(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(keras.ops.mean((x - 1) ** 2))
            return x

    def net() -> keras.Model:
        made_ = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2), Spread()])
        made_.compile(optimizers.SGD(0.1))
        return made_

    whole, fitted = Model(made(net)), Model(made(net))
    for each in (whole, fitted):
        each.set_schema(INPUTS, {})
    x, _ = data(1, 28)
    sums = whole.train_partition(feed_of(x, None))
    fitted.model.fit(x, batch_size=8, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)
    assert whole.evaluate_partition(feed_of(x, None))["loss"][0] < sums["loss"][0]  # type: ignore[operator]
    assert whole.train(SingleBatch(next(iter(feed_of(x, None)))).columns)["loss"][1] == 8.0


# ------------------------------------------------------------------------------------------------ steps of users


class Tracked(keras.Model):
    """As in Keras' guide: a step of one's own, with a tracker of one's own."""

    def __init__(self, listed: bool) -> None:
        super().__init__()
        self.dense = layers.Dense(CLASSES, activation="softmax")
        self.tracker = metrics.Mean(name="loss")
        self.error = metrics.MeanAbsoluteError(name="mae")
        self.listed = listed

    def call(self, x: Any) -> Any:
        return self.dense(x)

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker, self.error] if self.listed else super().metrics

    def told(self, y: Any, outputs: Any, loss: Any) -> dict[str, Any]:
        self.tracker.update_state(loss)
        self.error.update_state(keras.ops.one_hot(keras.ops.cast(y, "int32"), CLASSES), outputs)
        return {"loss": self.tracker.result(), "mae": self.error.result()}

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return self.told(y, outputs, loss)

    def test_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        outputs = self(x, training=False)
        return self.told(y, outputs, keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs)))


def tracked(listed: bool = True, kind: type[Tracked] = Tracked) -> keras.Model:
    net = kind(listed)
    net.compile(optimizer=optimizers.Adam(0.01))
    return net


@pytest.mark.parametrize(
    "listed",
    [
        pytest.param(True, id="listed"),
        pytest.param(False, id="not listed"),
    ],
)
def test_a_step_and_a_tracker_of_ones_own(listed: bool) -> None:
    whole, fitted = model(partial(tracked, listed)), model(partial(tracked, listed))
    given = feed(1)
    x, y = ordered(given)
    sums = whole.train_partition(given)
    told = fitted.model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    assert bits(whole) == bits(fitted)
    wanted = whole.model.evaluate(*data(2, 28), batch_size=8, verbose=0, return_dict=True)
    seen = whole.evaluate_partition(feed(2, shuffle=None))
    for name in ("loss", "mae"):
        assert mean(sums, name) == pytest.approx(told[name][0], rel=1e-6)
        assert mean(seen, name) == pytest.approx(wanted[name], rel=1e-6)


def test_a_step_that_keeps_its_loss_nowhere_is_refused() -> None:
    class Silent(Tracked):
        def told(self, y: Any, outputs: Any, loss: Any) -> dict[str, Any]:
            return {"loss": loss}

    trainable = model(partial(tracked, False, Silent))
    with pytest.raises(SpecError, match="loss"):
        trainable.train(next(iter(feed(1))))


def test_a_loss_computed_by_the_model() -> None:
    class Ours(keras.Model):
        def compute_loss(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None, training: bool = True) -> Any:
            return keras.ops.mean(own_loss(y, y_pred))

    def net(kind: type[keras.Model], loss: Any) -> keras.Model:
        here = keras.Input((WIDTH,))
        return with_loss(kind(here, layers.Dense(CLASSES)(here)), loss=loss)

    ours, theirs = model(partial(net, Ours, None)), model(partial(net, keras.Model, own_loss))
    sums = [each.train_partition(feed(1)) for each in (ours, theirs)]
    assert sums[0] == sums[1]
    assert bits(ours) == bits(theirs)
    assert ours.evaluate_partition(feed(2)) == theirs.evaluate_partition(feed(2))


def test_a_model_that_waits_for_data() -> None:
    """No Input, and a part that is built when it is called."""

    class Late(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.Sequential([layers.Dense(4), layers.Dropout(0.2), layers.BatchNormalization()])
            self.outer = layers.Dense(CLASSES, activation="softmax")

        def call(self, x: Any, training: bool = False) -> Any:
            return self.outer(self.inner(x, training=training))

    def net() -> keras.Model:
        return with_loss(Late())

    unseen = Model(made(net))
    with pytest.raises(SpecError, match="no variables yet"):
        unseen.state()
    whole, fitted = model(net), model(net)
    given = feed(1, draws=None)
    x, y = ordered(given)
    whole.train_partition(given)
    fitted.model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)
    seed_all(3)
    unseen.train_partition(given)  # without `expect` too
    assert len(unseen.state()["model"]) == len(whole.state()["model"]) == 9


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer")
def test_a_layer_that_is_never_called_does_no_harm() -> None:
    class Spare(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = layers.Dense(CLASSES, activation="softmax"), layers.Dense(2)

        def call(self, x: Any) -> Any:
            return self.used(x)

    trainable = model(lambda: with_loss(Spare()))
    trainable.train_partition(feed(1))
    assert len(trainable.state()["model"]) == 2


# ------------------------------------------------------------------------------------------------ what cannot be


def averaged(scaled: bool = False, **more: Any) -> keras.Model:
    optimizer = optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, **more)
    return plain(optimizer=optimizers.LossScaleOptimizer(optimizer) if scaled else optimizer)


def test_averages_that_come_in_as_it_trains_are_those_of_keras() -> None:
    trainable, reference = Model(made(partial(averaged, ema_overwrite_frequency=2))), made(averaged)
    reference.optimizer.ema_overwrite_frequency = 2
    trainable.set_schema(INPUTS, TARGETS)
    trainable.train_partition(feed(1, count=32, shuffle=None))
    x, y = data(1, 32)
    for at in range(0, 32, 8):
        reference.train_on_batch(x[at : at + 8], y[at : at + 8])
    for mine, its in zip(trainable.model.weights, reference.weights, strict=True):
        assert np.array_equal(mine.numpy(), its.numpy())


def faulty() -> dict[str, tuple[Callable[[], Any], str]]:
    bare = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    without = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    without.compile(optimizer=None, loss="mse")
    return {
        "object": (lambda: Model(3), r"model must be a compiled keras\.Model, got builtins\.int"),
        "layer": (lambda: Model(layers.Dense(1)), r"model must be a compiled keras\.Model, got keras\..*Dense"),
        "bare": (lambda: Model(bare), r"is not compiled: call model\.compile\(optimizer=…"),
        "optimizer": (lambda: Model(without), "compiled without an optimizer"),
        "averages": (lambda: Model(made(averaged)), "use_ema=True without ema_overwrite_frequency"),
        "scaled averages": (lambda: Model(made(partial(averaged, scaled=True))), "use_ema=True without ema_overwrite"),
        "weights": (
            lambda: Model(made(plain), class_weight=[1.0, 2.0]),  # type: ignore[arg-type]
            r"class_weight must be .*, got \[1\.0, 2\.0\]",
        ),
        "names": (lambda: Model(made(plain), class_weight={"a": 1.0}), r"class_weight must be .*, got \{'a': 1\.0\}"),  # type: ignore[dict-item]
        "negative": (lambda: Model(made(plain), class_weight={0: 1.0, 1: -1.0}), "a number >= 0, got"),
        "nan": (lambda: Model(made(plain), class_weight={0: math.nan}), "a number >= 0, got"),
        "infinite": (lambda: Model(made(plain), class_weight={0: math.inf}), "a number >= 0, got"),
        "text": (lambda: Model(made(plain), class_weight={0: "2"}), "a number >= 0, got"),  # type: ignore[dict-item]
    }


@pytest.mark.parametrize("name", faulty())
def test_arguments_that_cannot_be(name: str) -> None:
    make, message = faulty()[name]
    with pytest.raises(SpecError, match=message):
        make()


def test_a_failed_operation_is_one_line() -> None:
    net = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x, _ = data(1, 8)
    with pytest.raises(HopyardError, match=r"^InvalidArgumentError: .*indices\[0\] = 5 is not in") as caught:
        model(lambda: with_loss(net, loss=loss)).train_partition(feed_of(x, np.full(8, 5)))
    assert "\n" not in str(caught.value)


def test_an_out_of_memory_kill_is_reported_as_such() -> None:
    class Greedy(layers.Layer):
        def call(self, x: Any) -> Any:
            rows = tf.shape(x)[0]
            return x + tf.reduce_sum(tf.fill((rows, 1 << 30, 1 << 16), 1.0))

    net = keras.Sequential([keras.Input((WIDTH,)), Greedy(), layers.Dense(1)])
    x, y = data(1, 8)
    with pytest.raises(HopyardError, match=r"^ResourceExhaustedError: .*OOM when allocating") as caught:
        model(lambda: with_loss(net)).train_partition(feed_of(x, y))
    assert "\n" not in str(caught.value)
    assert blame(caught.value, accelerated=True) == Blame("memory", device=False)


@pytest.mark.long
def test_a_fixed_number_of_rows_in_a_batch() -> None:
    def net() -> keras.Model:
        built = keras.Sequential(
            [keras.Input(batch_shape=(4, WIDTH, 1)), layers.GRU(2, stateful=True), layers.Dense(1)]
        )
        built.compile(optimizers.SGD(0.1), "mse")
        return built

    whole, fitted = Model(made(net)), Model(made(net))
    x, y = data(1, 28)
    whole.train_partition(feed_of(x[..., None], y, size=4, seed=None))
    fitted.model.fit(x[..., None], y, batch_size=4, shuffle=False, verbose=0)
    assert bits(whole) == bits(fitted)


def test_class_weight_needs_one_label() -> None:
    trainable = Model(made(forked), class_weight={0: 2.0})
    x, y, _ = forked_rows()
    with pytest.raises(SpecError, match=r"one label, has 2"):
        trainable.train_partition(feed_of(x, y))
    with pytest.raises(SpecError, match="one label, has none"):
        Model(made(plain), class_weight={0: 2.0}).train_partition(feed_of(data(1, 8)[0], None))


def test_data_that_a_model_cannot_take_is_reported() -> None:
    with pytest.raises(SpecError, match=r"shape \(4,\), .*shape \(5,\)"):
        Model(made(plain)).set_schema({"inputs": ((5,), "float32")}, TARGETS)


def test_states_are_copies() -> None:
    one, two = model(plain), model(plain, 4)
    tree = capture(one)
    restore(two, tree)
    assert bits(one) == bits(two)
    one.train_partition(feed(1))
    assert bits(one) != bits(two)
    buffer = bytearray(bits(one))
    restore(two, decode(buffer))
    buffer[:] = bytes(len(buffer))  # shared memory is used again
    assert bits(one) == bits(two)


class Passing(keras.layers.Layer):
    """A layer that was made with an object of the user's."""

    def __init__(self, thing: object) -> None:
        super().__init__()
        self.thing = thing

    def call(self, inputs: Any) -> Any:
        return inputs


class Telling(Passing):
    """One that says so."""

    def get_config(self) -> dict[str, Any]:
        return {"thing": self.thing}


@pytest.mark.parametrize("kind", [Passing, Telling])
def test_a_model_that_keras_cannot_write_says_which_class_is_to_blame(kind: type[Passing], tmp_path: Path) -> None:
    """Bug: the message held a page of Keras' with an example, or was a TypeError."""
    net = keras.Sequential([keras.layers.Input((2,)), kind(object())])
    with pytest.raises(SpecError) as raised:
        runtime.save(SimpleNamespace(model=net), tmp_path / "model.keras")
    text = str(raised.value)
    assert text.startswith("Sequential cannot be saved as model.keras: ") and text.endswith(" save its weights")
    assert "get_config()" in text and "\n" not in text and "class CustomLayer" not in text
