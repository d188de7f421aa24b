"""What a Keras State holds, that it can be swapped into a model that is built, and which models are alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.frameworks.keras.model import Model
from hopyard.frameworks.keras.state import reseed_variables, seed_variables
from hopyard.frameworks.tensorflow import runtime as tensorflow_runtime
from hopyard.frameworks.tree import capture, restore
from hopyard.ports.states import Leaf
from hopyard.spec import RunSpec
from hopyard.store.tree import decode, encode
from hopyard.training.build import Plan, build
from keras_nets import (
    CLASSES,
    INPUTS,
    TARGETS,
    WIDTH,
    bits,
    data,
    feed,
    layers,
    losses,
    made,
    metrics,
    mlp,
    model,
    optimizers,
    plain,
    small,
    with_loss,
)

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    before, policy = tensorflow_runtime.snapshot(), keras.config.dtype_policy()
    tf.config.experimental.enable_op_determinism()
    yield
    tensorflow_runtime.restore(before)
    keras.config.set_dtype_policy(policy)


def under(policy: str, net: Callable[..., keras.Model], **compiled: Any) -> keras.Model:
    keras.config.set_dtype_policy(policy)
    return net(**compiled)


def tied() -> keras.Model:
    """A layer that is used twice, in a model within a model."""
    shared = layers.Dense(WIDTH, activation="relu")
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dropout(0.2), shared])
    here = keras.Input((WIDTH,))
    return with_loss(keras.Model(here, layers.Dense(CLASSES, activation="softmax")(shared(inner(here)))))


def recurrent() -> keras.Model:
    net = [keras.Input((WIDTH,)), layers.Reshape((WIDTH, 1)), layers.LSTM(3, recurrent_dropout=0.3)]
    return with_loss(keras.Sequential([*net, layers.Dense(CLASSES, activation="softmax")]))


class Mask(keras.layers.Layer):
    """Variables of other kinds than floating point."""

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(shape=(shape[-1],), dtype="bool", initializer="ones", trainable=False)
        self.seen = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.seen.assign(self.seen + 1)
            self.kept.assign(keras.ops.any(x > 1.0, axis=0))
        return x * keras.ops.cast(self.kept, x.dtype)


def masked() -> keras.Model:
    return with_loss(keras.Sequential([keras.Input((WIDTH,)), Mask(), layers.Dense(CLASSES, activation="softmax")]))


def decaying() -> Any:
    return optimizers.SGD(optimizers.schedules.CosineDecay(0.5, 20), momentum=0.9)


def scaled() -> Any:
    return optimizers.LossScaleOptimizer(optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=3)


CASES: dict[str, Callable[[], keras.Model]] = {
    "adam": mlp,
    "amsgrad, clipped": lambda: small(optimizer=optimizers.Adam(0.01, amsgrad=True, global_clipnorm=0.5)),
    "momentum": small,
    "schedule": lambda: small(optimizer=decaying()),
    "average": lambda: small(optimizer=optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)),
    "accumulated": lambda: small(optimizer=optimizers.Adam(0.01, gradient_accumulation_steps=3)),
    "scaled": lambda: under("mixed_float16", small, optimizer=scaled()),
    "scaled by itself": lambda: under("mixed_float16", small),
    "mixed_bfloat16": lambda: under("mixed_bfloat16", small),
    "bfloat16": lambda: under("bfloat16", mlp),
    "float64": lambda: under("float64", small),
    "tied": tied,
    "recurrent": recurrent,
    "masked": masked,
    "eager": partial(small, run_eagerly=True),
}


LONG = ("average", "bfloat16", "scaled by itself", "accumulated", "tied")
FURTHER = ("amsgrad, clipped", "momentum", "mixed_bfloat16", "float64", "recurrent")
"""As "adam", "schedule", "bfloat16", "bfloat16", and "tied", which draws as well."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[*[pytest.mark.long] * (name in LONG), *[pytest.mark.campaign] * (name in FURTHER)])
        for name in CASES
    ],
)
def test_swapped_training_is_bitwise_equal(name: str) -> None:
    """Two models of other first weights, dirtied by other rows, against one that is never swapped."""
    alone = model(CASES[name])
    one, two = model(CASES[name], 5), model(CASES[name], 6)
    assert len({bits(each) for each in (alone, one, two)}) == 3
    state = bits(alone)
    for number in range(5):
        sums = alone.train_partition(feed(number, draws=number))
        here = one if number % 2 else two
        here.train_partition(feed(50 + number))
        restore(here, decode(state))
        assert bits(here) == state
        assert here.train_partition(feed(number, draws=number)) == sums
        state = bits(here)
        assert state == bits(alone)
    assert here.evaluate_partition(feed(9)) == alone.evaluate_partition(feed(9))


def names(variables: Any) -> list[str]:
    return [variable.name for variable in variables]


def test_a_state_holds_every_variable_and_nothing_of_metrics() -> None:
    trainable = model(partial(mlp, metrics=["accuracy"]))
    trainable.train_partition(feed(1))
    tree = trainable.state()
    assert set(tree) == {"model", "optimizer"}
    assert names(trainable.model.variables) == [
        "kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance", "seed_generator_state", "kernel", "bias",
    ]  # fmt: skip
    assert [array.shape for array in tree["model"]] == [(4, 6), (6,), (6,), (6,), (6,), (6,), (2,), (6, 3), (3,)]
    assert names(trainable.model.optimizer.variables)[:2] == ["iteration", "learning_rate"]
    assert len(tree["optimizer"]) == 2 + 2 * 6
    assert tree["optimizer"][0] == 4


def test_the_state_of_a_scaled_optimizer_holds_the_scale_and_what_is_within() -> None:
    trainable = model(CASES["scaled"])
    trainable.train_partition(feed(1, 32))
    held = trainable.state()["optimizer"]
    assert names(trainable.model.optimizer.variables)[2:6] == [
        "step_counter",
        "dynamic_scale",
        "iteration",
        "learning_rate",
    ]
    assert held[2:5] == [1, 16.0, 4]  # doubled at the third step of four
    automatic = model(CASES["scaled by itself"])
    assert isinstance(automatic.model.optimizer, optimizers.LossScaleOptimizer)


def test_bfloat16_is_stored_as_such() -> None:
    trainable = model(CASES["bfloat16"])
    tree = trainable.state()
    assert [(leaf.dtype, leaf.kind) for leaf in tree["model"] if isinstance(leaf, Leaf)] == [("BF16", "ml_dtypes")] * 8
    back = decode(encode(tree))
    assert all(isinstance(leaf, Leaf) for leaf in back["model"][:6])
    mixed = model(CASES["mixed_bfloat16"])
    assert not any(isinstance(leaf, Leaf) for leaf in mixed.state()["model"])  # variables stay float32


def test_the_learning_rate_hops_and_a_schedule_follows_the_step() -> None:
    one, two = model(small), model(small, 5)
    one.model.optimizer.learning_rate = 0.25
    restore(two, decode(encode(capture(one))))
    assert float(two.model.optimizer.learning_rate) == 0.25
    one, two = model(CASES["schedule"]), model(CASES["schedule"], 5)
    rate = float(two.model.optimizer.learning_rate)
    one.train_partition(feed(1))
    restore(two, decode(encode(capture(one))))
    assert float(two.model.optimizer.learning_rate) == float(one.model.optimizer.learning_rate) < rate


def test_seeds_of_generators_are_numbers_of_their_own() -> None:
    def three() -> keras.Model:
        drawing = [layers.Dropout(0.1), layers.GaussianNoise(0.1), layers.Dropout(0.1)]
        return with_loss(keras.Sequential([keras.Input((WIDTH,)), *drawing, layers.Dense(CLASSES)]))

    trainable = model(three)
    found = seed_variables(trainable.model)
    assert len(found) == 3
    reseed_variables(found, 7)
    first = [tuple(np.asarray(variable.value)) for variable in found]
    assert len(set(first)) == 3
    assert all(number >= 0 and count == 0 for number, count in first)
    reseed_variables(found, 8)
    assert not set(first) & {tuple(np.asarray(variable.value)) for variable in found}
    reseed_variables(found, 7)
    assert [tuple(np.asarray(variable.value)) for variable in found] == first


# ------------------------------------------------------------------------------------------------ refused


def wider() -> keras.Model:
    net = [keras.Input((WIDTH,)), layers.Dropout(0.4), layers.Dense(CLASSES + 1, activation="softmax")]
    return with_loss(keras.Sequential(net), optimizer=optimizers.SGD(0.1, momentum=0.5))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (mlp, r"State has 3 variables of the model, .* 9"),
        (
            wider,
            r"model variable '.*kernel' has shape \(4, 4\), .*\(4, 3\)",
        ),
        (partial(small, optimizer="adam"), r"State has 4 variables of the optimizer, .* 6"),
    ],
    ids=["number", "shape", "optimizer"],
)
def test_a_state_of_another_build_is_refused_and_changes_nothing(other: Any, message: str) -> None:
    one, two = model(small), model(other, 5)
    one.train_partition(feed(1))
    before = bits(two)
    with pytest.raises(SpecError, match=message):
        restore(two, decode(encode(capture(one))))
    assert bits(two) == before


def test_a_misfit_of_the_last_variable_changes_nothing_either() -> None:
    trainable = model(small)
    before = bits(trainable)
    tree = decode(encode(capture(model(small, 5))))
    tree["optimizer"][-1] = np.zeros((7,), np.float32)
    with pytest.raises(SpecError, match=r"optimizer variable '.*momentum' has shape \(3,\), the State's has \(7,\)"):
        trainable.load(tree)
    assert bits(trainable) == before


def test_a_state_of_another_dtype_is_refused() -> None:
    one, two = model(small), model(lambda: under("bfloat16", small))
    with pytest.raises(SpecError, match=r"model variable '.*kernel' is of bfloat16, the State's of float32"):
        restore(two, decode(encode(capture(one))))


def test_a_state_without_the_epochs_of_callbacks_is_refused() -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
    one, two = model(small), model(small, 5, callbacks=[schedule])
    before = bits(two)
    with pytest.raises(SpecError, match="model without callbacks"):
        restore(two, decode(encode(capture(one))))
    assert bits(two) == before


# ------------------------------------------------------------------------------------------------ sharing keys


def of(recipe: Callable[[dict[str, Any]], Any], trial: int = 0, **config: Any) -> str:
    """The sharing key of what a worker builds."""
    manifest = hy.Dataset.numpy(*data(0, 40), partitions=2).prepare()
    plan = Plan(recipe, manifest, RunSpec(epochs=1, partitions=2, validation=0))
    key = build(plan, trial, config).sharing_key
    assert isinstance(key, str)
    return key


def net(config: dict[str, Any]) -> keras.Model:
    """A config may say anything about it."""
    more = dict(config)
    units, rate, activation = more.pop("units", 5), more.pop("rate", 0.3), more.pop("activation", "relu")
    regularizer, frozen, dtype = more.pop("regularizer", None), more.pop("frozen", False), more.pop("dtype", None)
    seed = more.pop("seed", None)
    if more.pop("precise", False):
        keras.config.set_epsilon(1e-3)
    dense = layers.Dense(
        units, activation=activation, kernel_regularizer=regularizer, dtype=dtype, trainable=not frozen
    )
    built = [keras.Input((WIDTH,)), dense, layers.Dropout(rate, seed=seed), layers.Dense(CLASSES, activation="softmax")]
    return with_loss(keras.Sequential(built), **{"optimizer": "adam"} | more)


def given(name: str, value: Any) -> Callable[[dict[str, Any]], keras.Model]:
    """A recipe in which `value()` is made anew, as recipes do."""
    return lambda config: net({**config, name: value()})


def test_models_are_alike_wherever_and_however_often_they_are_built() -> None:
    first = of(net)
    for _ in range(3):
        made(mlp)  # names count up: dense_3
    layers.Dense(2)
    assert of(net, trial=4) == first != ""
    assert of(lambda config: Model(net(config), batch_size=7)) == first


@pytest.mark.parametrize(
    "other",
    [
        given("optimizer", lambda: optimizers.Adam(0.3)),
        given("optimizer", lambda: optimizers.Adam(learning_rate=1e-5)),
        lambda config: net({"seed": 7}),
        lambda config: net({"loss": "sparse_categorical_crossentropy"}),
    ],
    ids=["rate", "small rate", "seed", "same"],
)
def test_values_in_the_state_may_differ(other: Any) -> None:
    assert of(other) == of(net)


def test_the_rate_of_a_scaled_optimizer_may_differ_where_keras_scales_it() -> None:
    def recipe(config: dict[str, Any]) -> keras.Model:
        keras.config.set_dtype_policy("mixed_float16")
        return net({"optimizer": optimizers.Adam(config["lr"])})

    assert of(recipe, lr=0.1) == of(recipe, lr=0.2) != ""
    assert of(recipe, lr=0.1) != of(net)
    one, two = (
        given("optimizer", lambda r=rate: optimizers.LossScaleOptimizer(optimizers.SGD(r))) for rate in (0.1, 0.2)
    )
    assert of(one) == of(two) != ""


def two_of(kind: Callable[..., Any], **both: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """`kind` with each of the two values of its one argument."""
    ((name, values),) = both.items()
    one, two = (partial(kind, **{name: value}) for value in values)
    return one, two


def in_list(kind: Callable[..., Any], **both: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    one, two = two_of(kind, **both)
    return lambda: [one()], lambda: [two()]


schedules: Any = optimizers.schedules
DIFFERENT: dict[str, tuple[str, Any, Any]] = {
    "dropout": ("rate", lambda: 0.3, lambda: 0.31),
    "hidden": ("units", lambda: 5, lambda: 6),
    "activation": ("activation", lambda: "relu", lambda: "tanh"),
    "regularizer": ("regularizer", *two_of(keras.regularizers.L2, l2=(0.1, 0.2))),
    "frozen": ("frozen", lambda: False, lambda: True),
    "dtype": ("dtype", lambda: "float32", lambda: "mixed_bfloat16"),
    "epsilon": ("precise", lambda: False, lambda: True),
    "clip": ("optimizer", *two_of(optimizers.Adam, clipnorm=(1.0, 2.0))),
    "beta": ("optimizer", *two_of(optimizers.Adam, beta_1=(0.9, 0.8))),
    "momentum": ("optimizer", *two_of(optimizers.SGD, momentum=(0.5, 0.6))),
    "decay": ("optimizer", *two_of(optimizers.AdamW, weight_decay=(0.1, 0.2))),
    "average": ("optimizer", *two_of(partial(optimizers.Adam, ema_overwrite_frequency=3), use_ema=(False, True))),
    "accumulation": ("optimizer", *two_of(optimizers.Adam, gradient_accumulation_steps=(2, 3))),
    "optimizer": ("optimizer", optimizers.Adam, optimizers.Nadam),
    "schedule": (
        "optimizer",
        lambda: optimizers.Adam(schedules.ExponentialDecay(0.1, 5, 0.5)),
        lambda: optimizers.Adam(schedules.ExponentialDecay(0.2, 5, 0.5)),
    ),
    "schedule or not": (
        "optimizer",
        lambda: optimizers.Adam(0.1),
        lambda: optimizers.Adam(schedules.ExponentialDecay(0.1, 5, 0.5)),
    ),
    "loss": ("loss", lambda: "sparse_categorical_crossentropy", lambda: "mse"),
    "logits": ("loss", *two_of(losses.SparseCategoricalCrossentropy, from_logits=(False, True))),
    "smoothing": ("loss", *two_of(losses.CategoricalCrossentropy, label_smoothing=(0.0, 0.1))),
    "reduction": ("loss", *two_of(losses.MeanSquaredError, reduction=("sum", "mean"))),
    "focus": ("loss", *two_of(losses.BinaryFocalCrossentropy, gamma=(1.0, 2.0))),
    "huber": ("loss", *two_of(losses.Huber, delta=(1.0, 0.1))),
    "axis of a loss": ("loss", *two_of(losses.CosineSimilarity, axis=(-1, 0))),
    "dtype of a loss": ("loss", *two_of(losses.MeanSquaredError, dtype=("float32", "float64"))),
    "metrics": ("metrics", lambda: ["accuracy"], lambda: ["accuracy", "mse"]),
    "metric": ("metrics", *in_list(metrics.TopKCategoricalAccuracy, k=(1, 2))),
    "thresholds": ("metrics", *in_list(metrics.AUC, thresholds=([0.3], [0.4]))),
    "axis of a metric": ("metrics", *in_list(metrics.CosineSimilarity, axis=(-1, 0))),
    "weighted metrics": ("weighted_metrics", lambda: ["accuracy"], lambda: ["mse"]),
    "loss weights": ("loss_weights", lambda: [1.0], lambda: [0.5]),
    "eager": ("run_eagerly", lambda: False, lambda: True),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_constants_compiled_into_the_step_must_be_equal(name: str) -> None:
    argument, one, two = DIFFERENT[name]
    here, again, there = of(given(argument, one)), of(given(argument, one)), of(given(argument, two))
    assert here == again != ""
    assert there not in ("", here)


def test_the_weights_of_classes_must_be_equal() -> None:
    made_ = [of(lambda config, w=weight: Model(net(config), class_weight=w)) for weight in (None, {0: 1.5}, {0: 2.5})]  # type: ignore[misc]
    assert len(set(made_)) == 3


def test_trainable_flags_set_after_compile_must_be_equal() -> None:
    def recipe(config: dict[str, Any]) -> keras.Model:
        built = net({})
        built.layers[0].trainable = config["trains"]
        built.compile("adam", "mse")
        return built

    assert of(recipe, trains=True) != of(recipe, trains=False) != ""


class Ours(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2.0


class OurModel(keras.Model):
    pass


class OurMetric(metrics.Mean):
    pass


class OurLoss(losses.Loss):
    def call(self, y: Any, outputs: Any) -> Any:
        return keras.ops.mean(outputs, axis=-1)


class OurRate(schedules.LearningRateSchedule):
    def __call__(self, step: Any) -> Any:
        return 0.1

    def get_config(self) -> dict[str, Any]:
        return {}


class OurOptimizer(optimizers.SGD):
    pass


class OurRegularizer(keras.regularizers.Regularizer):
    def __call__(self, x: Any) -> Any:
        return keras.ops.sum(x)

    def get_config(self) -> dict[str, Any]:
        return {}


@keras.saving.register_keras_serializable("hopyard_tests")
class OurRegistered(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * 2.0


def our_function(y: Any, outputs: Any) -> Any:
    return keras.ops.mean(keras.ops.cast(y, outputs.dtype) - outputs[:, 0])


class OurDense(layers.Dense):
    pass


def with_slope(slope: float) -> Callable[[Any], Any]:
    def ours(x: Any) -> Any:
        return keras.activations.leaky_relu(x, slope)

    return ours


def leaky(slope: float) -> Callable[[Any], Any]:
    def leaky_relu(x: Any) -> Any:
        return keras.activations.leaky_relu(x, slope)

    return leaky_relu


def between(layer: Callable[[], Any]) -> Callable[[dict[str, Any]], keras.Model]:
    def recipe(config: dict[str, Any]) -> keras.Model:
        return with_loss(keras.Sequential([keras.Input((WIDTH,)), layer(), layers.Dense(CLASSES)]))

    return recipe


def adapted() -> Any:
    layer = layers.Normalization()
    layer.adapt(data(0, 10)[0])
    return layer


def subclassed(config: dict[str, Any]) -> keras.Model:
    here = keras.Input((WIDTH,))
    return with_loss(OurModel(here, layers.Dense(CLASSES)(here)))


def patched(name: str, of_layer: bool = False) -> Callable[[dict[str, Any]], keras.Model]:
    def recipe(config: dict[str, Any]) -> keras.Model:
        built = net({})
        part = built.layers[0] if of_layer else built
        before = getattr(part, name)
        setattr(part, name, lambda *given, **more: before(*given, **more))
        return built

    return recipe


def scheduled(config: dict[str, Any]) -> Model:
    return Model(net({}), callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])


class OurCallable:
    def __call__(self, *tensors: Any) -> Any:
        return keras.ops.mean(tensors[-1], axis=-1, keepdims=True)

    method = __call__


def as_it_is(optimizer: Any) -> Any:
    return optimizer


def stepping(config: dict[str, Any], around: Callable[[Any], Any] = as_it_is) -> keras.Model:
    optimizer = optimizers.SGD(0.1)
    before = optimizer.update_step
    optimizer.update_step = lambda gradient, variable, rate: before(2.0 * gradient, variable, rate)
    return net({"optimizer": around(optimizer)})


def excluded(config: dict[str, Any], around: Callable[[Any], Any] = as_it_is) -> keras.Model:
    optimizer = optimizers.AdamW(0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return net({"optimizer": around(optimizer)})


def of_script(kind: Any) -> Any:
    """As if it was defined in a script or notebook: Keras then serializes it without a module."""
    return type(f"Script{kind.__name__}", (kind,), {"__module__": "__main__"})


OfScript, ScriptRate, ScriptRegularizer, ScriptLoss = map(of_script, (OurOptimizer, OurRate, OurRegularizer, OurLoss))
UNLIKE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "lambda layer": between(lambda: layers.Lambda(lambda x: x * 2)),
    "layer": between(Ours),
    "registered layer": between(OurRegistered),
    "layer within": between(lambda: keras.Sequential([Ours()])),
    "layer in a wrapper": between(lambda: layers.SpectralNormalization(OurDense(3))),
    "model": subclassed,
    "loss function": lambda config: net({"loss": our_function}),
    "loss": given("loss", OurLoss),
    "loss object": lambda config: net({"loss": OurCallable()}),
    "loss method": lambda config: net({"loss": OurCallable().method}),
    "partial loss": lambda config: net({"loss": partial(keras.losses.huber, delta=0.1)}),
    "activation object": lambda config: net({"activation": OurCallable()}),
    "partial activation": lambda config: net({"activation": partial(keras.activations.elu, alpha=0.1)}),
    "update_step": stepping,
    "update_step within": lambda config: stepping(config, optimizers.LossScaleOptimizer),
    "excluded within": lambda config: excluded(config, optimizers.LossScaleOptimizer),
    "optimizer within": given("optimizer", lambda: optimizers.LossScaleOptimizer(OurOptimizer(0.1))),
    "optimizer of a script within": given("optimizer", lambda: optimizers.LossScaleOptimizer(OfScript(0.1))),
    "rate of a script within": given(
        "optimizer", lambda: optimizers.LossScaleOptimizer(optimizers.SGD(ScriptRate()))
    ),
    "regularizer of a script": given("regularizer", lambda: ScriptRegularizer()),
    "loss of a script": given("loss", lambda: ScriptLoss()),
    "metric function": given("metrics", lambda: [our_function]),
    "metric": given("metrics", lambda: [OurMetric()]),
    "weighted metric": given("weighted_metrics", lambda: [our_function]),
    "rate": given("optimizer", lambda: optimizers.SGD(OurRate())),
    "callable rate": given("optimizer", lambda: optimizers.SGD(lambda: 0.1)),
    "optimizer": given("optimizer", lambda: OurOptimizer(0.1)),
    "activation": lambda config: net({"activation": lambda x: x * 2}),
    "activation function": lambda config: net({"activation": with_slope(0.1)}),
    "regularizer": given("regularizer", OurRegularizer),
    "normalization": between(adapted),
    "excluded": excluded,
    "train_step": patched("train_step"),
    "test_step": patched("test_step"),
    "compute_loss": patched("compute_loss"),
    "call": patched("call", of_layer=True),
    "callbacks": scheduled,
}  # fmt: skip


@pytest.mark.parametrize("name", UNLIKE)
def test_code_of_the_user_is_like_nothing(name: str) -> None:
    assert of(UNLIKE[name]) == ""


def test_a_function_of_the_user_that_has_the_name_of_one_of_keras_is_the_users() -> None:
    """Keras serializes it by that name alone."""
    assert of(lambda config: net({"activation": leaky(0.1)})) == ""
    assert of(lambda config: net({"activation": "leaky_relu"})) != ""


def functional(shift: Callable[[Any], Any], slope: float = 0.1) -> keras.Model:
    here = keras.Input((WIDTH,))
    return with_loss(keras.Model(here, layers.Dense(CLASSES)(layers.LeakyReLU(slope)(shift(here)))))


def test_functional_models_are_alike_too() -> None:
    first = of(lambda config: functional(lambda x: x * 2.0))
    assert of(lambda config: functional(lambda x: x * 2.0), trial=3) == first != ""
    inner = of(lambda config: with_loss(keras.Sequential([keras.Input((WIDTH,)), functional(lambda x: x)])))
    assert inner not in ("", first)


@pytest.mark.parametrize(
    "other",
    [
        lambda: functional(lambda x: x * 3.0),
        lambda: functional(lambda x: x * np.array([2, 2, 2, 3], np.float32)),
        lambda: functional(lambda x: x + 2.0),
        lambda: functional(lambda x: keras.ops.clip(x, -1, 1)),
        lambda: functional(lambda x: x[:, :2]),
        lambda: functional(lambda x: x * 2.0, slope=0.2),
    ],
    ids=["number", "array", "operation", "clip", "slice", "layer"],
)
def test_functional_models_must_compute_the_same(other: Any) -> None:
    assert of(lambda config: other()) not in ("", of(lambda config: functional(lambda x: x * 2.0)))


def test_a_model_that_was_fitted_in_the_recipe_is_not_shared() -> None:
    """Its own `train_function` was made, of which nobody knows what was in it."""

    def recipe(config: dict[str, Any]) -> keras.Model:
        built = net({})
        built.fit(*data(0, 8), verbose=0)
        return built

    assert of(recipe) == ""


def test_building_leaves_the_settings_of_keras_to_the_next_recipe() -> None:
    """A recipe that sets the policy, or epsilon, changes no other trial."""

    def recipe(config: dict[str, Any]) -> keras.Model:
        keras.config.set_dtype_policy("bfloat16")
        keras.config.set_epsilon(0.5)
        return net({})

    first = of(net)
    assert of(recipe) not in ("", first)
    assert of(net) == first


def test_expected_shapes_do_not_matter_to_a_likeness() -> None:
    one, two = Model(made(plain)), Model(made(plain))
    two.set_schema(INPUTS, TARGETS)
    two.train_partition(feed(1))
    assert two.sharing_key
    one.set_schema(INPUTS, TARGETS)
    assert one.sharing_key == two.sharing_key
