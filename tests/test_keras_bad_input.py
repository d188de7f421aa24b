"""What a Keras user may get wrong: told in words before any unit runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from hopyard.core.runs.events import Dispatch, Joined
from hopyard.frameworks.linear import Linear
from jobs import journal
from keras_jobs import WIDTH, dataset, local, net, select, table

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy"),  # Keras' own, of NumPy 2
]


@pytest.fixture(autouse=True, scope="module")
def framework() -> Iterator[None]:
    """TensorFlow is imported once, outside of the tests' times."""
    import keras  # noqa: F401

    yield


def refused(directory: Path, recipe: Any, *words: str, **more: Any) -> str:
    """Preflight finds it, says these words, and nothing is trained; what it said."""
    config = {"width": 8, "lr": 0.01, "batch_size": 16}
    with pytest.raises(hy.PreflightError) as caught:
        select(directory, recipe, [config], **more)
    assert caught.value.exit_code == 2
    (fault,) = caught.value.faults
    for word in words:
        assert word in fault
    assert not [line for line in journal(directory) if isinstance(line, Dispatch)]
    return fault


def compiled(model: Any, loss: Any = "sparse_categorical_crossentropy", **more: Any) -> Any:
    model.compile(optimizer="adam", loss=loss, **more)
    return model


def sequence(*more: Any, width: int = WIDTH, classes: int = 2) -> Any:
    """Input, what there is more, probabilities; not compiled."""
    import keras

    activation = "softmax" if classes > 1 else "sigmoid"
    return keras.Sequential([keras.Input((width,)), *more, keras.layers.Dense(classes, activation=activation)])


def two_inputs(config: dict[str, Any]) -> Any:
    import keras

    left, right = keras.Input((4,), name="left"), keras.Input((2,), name="right")
    joined = keras.layers.Concatenate()([left, right])
    return compiled(keras.Model([left, right], keras.layers.Dense(2, activation="softmax")(joined)))


def two_outputs(config: dict[str, Any]) -> Any:
    import keras

    x = keras.Input((WIDTH,))
    sign = keras.layers.Dense(2, activation="softmax", name="sign")(x)
    size = keras.layers.Dense(1, name="size")(x)
    return compiled(
        keras.Model(x, {"sign": sign, "size": size}), {"sign": "sparse_categorical_crossentropy", "size": "mse"}
    )


def numpy(x: Any, y: Any = None, **more: Any) -> hy.Dataset:
    return hy.Dataset.numpy(x, y, validation=0.25, partitions=4, **more)


def halves(left: str = "left", right: str = "right", cut: int = 4) -> hy.Dataset:
    x, y = table(200)
    return numpy({left: x[:, :cut], right: x[:, cut:]}, y)


# ------------------------------------------------------------------------------------------------ what comes back


def test_an_uncompiled_model(tmp_path: Path) -> None:
    refused(tmp_path / "run", lambda config: sequence(), "is not compiled", "model.compile(optimizer=")
    refused(
        tmp_path / "other", lambda config: hy.keras.Model(sequence()), "is not compiled", "model.compile(optimizer="
    )


@pytest.mark.parametrize(
    "recipe",
    [lambda config: None, lambda config: sequence().compile("adam", "mse")],
    ids=["nothing", "what compile returns"],
)
def test_a_recipe_that_forgets_return(tmp_path: Path, recipe: Any) -> None:
    refused(tmp_path / "run", recipe, "the recipe returned None (is a `return` missing?)", "a compiled keras.Model")


def test_a_model_of_keras_2(tmp_path: Path) -> None:
    """tf_keras as if it were there: only where a class comes from counts."""

    def recipe(config: Any) -> Any:
        kind = type("Sequential", (), {"__module__": "tf_keras.src.engine.sequential", "evaluate": lambda self: None})
        return kind()

    words = [
        "a tf_keras.src.engine.sequential.Sequential, a model of Keras 2",
        "Say `import keras`",
        "TF_USE_LEGACY_KERAS",
    ]
    refused(tmp_path / "run", recipe, *words)


@pytest.mark.parametrize("kind", ["layer", "history"])
def test_another_thing_of_keras_3(tmp_path: Path, kind: str) -> None:
    def recipe(config: Any) -> Any:
        import keras

        return keras.layers.Dense(2) if kind == "layer" else keras.callbacks.History()

    assert "Keras 2" not in refused(tmp_path / "run", recipe, "a compiled keras.Model")


def test_something_else(tmp_path: Path) -> None:
    words = ["the recipe returned a builtins.tuple, which cannot train", "return a compiled keras.Model"]
    refused(tmp_path / "run", lambda config: (compiled(sequence()), 32), *words)
    words = ["hopyard.keras.Model: model must be a compiled keras.Model, got builtins.str"]
    refused(tmp_path / "other", lambda config: hy.keras.Model("resnet"), *words)


def test_no_loss(tmp_path: Path) -> None:
    refused(tmp_path / "run", lambda config: compiled(sequence(), None), "Provide a `loss` argument in `compile()`")


def test_a_batch_size_of_nothing(tmp_path: Path) -> None:
    def recipe(config: Any) -> Any:
        return hy.keras.Model(compiled(sequence()), batch_size=0)

    refused(tmp_path / "run", recipe, "batch_size must be an integer >= 1, got 0")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("EarlyStopping", "run.best.epoch"),
        ("ReduceLROnPlateau", "a learning-rate schedule"),
        ("TensorBoard", "run.to_pandas()"),
    ],
)
def test_a_callback_of_no_use(tmp_path: Path, name: str, words: str) -> None:
    def recipe(config: Any) -> Any:
        import keras

        return hy.keras.Model(compiled(sequence()), callbacks=[getattr(keras.callbacks, name)()])

    refused(tmp_path / "run", recipe, f"{name} has no use here", words)


def test_a_metric_that_is_not_compiled(tmp_path: Path) -> None:
    words = ["metric = 'val_accuracy'", "the recipe reports 'loss', 'val_loss'"]
    refused(tmp_path / "run", lambda config: compiled(sequence()), *words, metric="val_accuracy", mode="max")


# ------------------------------------------------------------------------------------------------ inputs


def test_an_input_of_another_shape(tmp_path: Path) -> None:
    words = [
        "takes rows of shape (5,), those of the data have shape (6,)",
        "keras.Input(shape=ctx.inputs['inputs'][0])",
    ]
    refused(tmp_path / "run", lambda config: compiled(sequence(width=5)), *words)


def test_an_input_of_a_name_that_the_data_has_not(tmp_path: Path) -> None:
    words = ["input 'right' is not in the data, which has 'left', 'rihgt'", "name each keras.Input as the Dataset does"]
    refused(tmp_path / "run", two_inputs, *words, data=halves(right="rihgt"))


def test_several_inputs_of_which_one_has_another_shape(tmp_path: Path) -> None:
    words = ["input 'left' takes rows of shape (4,), those of the data have shape (3,)", "ctx.inputs['left'][0]"]
    refused(tmp_path / "run", two_inputs, *words, data=halves(cut=3))


def test_a_single_array_for_a_model_of_two_inputs(tmp_path: Path) -> None:
    words = ["the model has 2 inputs (left, right), the data has one", "give the Dataset features as a dict"]
    refused(tmp_path / "run", two_inputs, *words)


@pytest.mark.parametrize("name", ["left", "other"])
@pytest.mark.filterwarnings("error:The structure of `inputs`")
def test_a_named_input_fits_a_sequential_model(tmp_path: Path, name: str) -> None:
    """As it fits a functional one, whatever its name."""

    def recipe(config: Any) -> Any:
        import keras

        return compiled(keras.Sequential([keras.Input((WIDTH,), name="left"), keras.layers.Dense(2, "softmax")]))

    x, y = table(200)
    run = select(tmp_path / "run", recipe, [{}], data=numpy({name: x}, y), epochs=1)
    assert run.status == "completed"


# ------------------------------------------------------------------------------------------------ labels


@pytest.mark.parametrize("logits", [False, True])
def test_labels_out_of_range(tmp_path: Path, logits: bool) -> None:
    """Only one, in the last row: no batch of preflight has it."""

    def recipe(config: Any) -> Any:
        import keras

        return compiled(sequence(), keras.losses.SparseCategoricalCrossentropy(from_logits=logits))

    x, y = table(200)
    y[-1] = 2
    words = ["labels go from 0 to 2, but the model has 2 outputs, for labels 0 to 1: label 2 has none", "3 outputs"]
    refused(tmp_path / "run", recipe, *words, data=numpy(x, y))


def test_labels_that_are_not_numbered_from_0(tmp_path: Path) -> None:
    x, y = table(200)
    words = ["labels go from -1 to 1", "label -1 has none", "number the labels from 0"]
    refused(tmp_path / "run", lambda config: compiled(sequence()), *words, data=numpy(x, 2 * y - 1))


def test_labels_out_of_range_for_a_model_without_an_input(tmp_path: Path) -> None:
    def recipe(config: Any) -> Any:
        import keras

        return compiled(keras.Sequential([keras.layers.Dense(2, activation="softmax")]))

    x, y = table(200)
    refused(tmp_path / "run", recipe, "labels go from 1 to 2", "label 2 has none", data=numpy(x, y + 1))


def test_labels_out_of_range_for_binary_cross_entropy(tmp_path: Path) -> None:
    x, y = table(200)
    words = ["labels go from 0 to 2, binary cross-entropy takes 0 to 1"]
    refused(
        tmp_path / "run",
        lambda config: compiled(sequence(classes=1), "binary_crossentropy"),
        *words,
        data=numpy(x, 2 * y),
    )


def test_labels_that_are_no_classes(tmp_path: Path) -> None:
    x, _ = table(200)
    fault = refused(tmp_path / "run", lambda config: compiled(sequence()), "whole numbers", data=numpy(x, x[:, 0]))
    assert "outputs" not in fault.partition(":")[2]


def subclass(config: dict[str, Any]) -> Any:
    """Of which Keras does not know the outputs."""
    import keras

    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.last = keras.layers.Dense(2, activation="softmax")

        def call(self, x):
            return self.last(x)

    return compiled(Net())


@pytest.mark.parametrize("recipe", [subclass, two_outputs], ids=["subclass", "two outputs"])
def test_labels_out_of_range_that_only_a_step_finds(tmp_path: Path, recipe: Any) -> None:
    x, y = table(200)
    data = numpy(x, 2 * y if recipe is subclass else {"sign": 2 * y, "size": x[:, 0]})
    fault = refused(tmp_path / "run", recipe, "2", data=data)
    assert len(fault.splitlines()) < 4
    assert "work.py" not in fault


@pytest.mark.parametrize("names", [["sign", "szie"], ["sign"], []], ids=["misspelt", "missing", "no label"])
def test_labels_by_names_that_do_not_fit(tmp_path: Path, names: list[str]) -> None:
    x, y = table(200)
    labels = {name: y if name == "sign" else x[:, 0] for name in names}
    refused(tmp_path / "run", two_outputs, "'size'", "label", data=numpy(x, labels or None))


def test_a_net_that_was_built_outside_of_the_recipe(tmp_path: Path) -> None:
    model = sequence()

    def compiled_anew(config: Any) -> Any:
        return compiled(model)

    refused(tmp_path / "run", compiled_anew, "the same parameters each time it is called")


def test_a_metric_that_is_named_as_one_of_validation(tmp_path: Path) -> None:
    import keras

    def recipe(config: Any) -> Any:
        return compiled(sequence(), metrics=[keras.metrics.SparseCategoricalAccuracy(name="val_accuracy")])

    refused(tmp_path / "run", recipe, "'val_accuracy'", 'call it "accuracy"')


def test_no_labels(tmp_path: Path) -> None:
    refused(tmp_path / "run", lambda config: compiled(sequence()), "label", data=numpy(table(200)[0]))


def test_metrics_that_do_not_add_up(tmp_path: Path) -> None:
    def recipe(config: Any) -> Any:
        import keras

        class Largest(keras.metrics.Metric):
            def __init__(self) -> None:
                super().__init__(name="largest")
                self.seen = self.add_weight(name="seen", initializer="zeros")

            def update_state(self, y_true, y_pred, sample_weight=None):
                self.seen.assign(keras.ops.maximum(self.seen, keras.ops.max(y_pred)))

            def result(self):
                return self.seen + 0.0

        return compiled(sequence(), metrics=[Largest()])

    refused(tmp_path / "run", recipe, "metric 'largest' (Largest) cannot be added up over partitions")


def test_metrics_of_several_numbers(tmp_path: Path) -> None:
    def recipe(config: Any) -> Any:
        import keras

        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2, activation="sigmoid")])
        return compiled(model, "mse", metrics=[keras.metrics.F1Score(name="f1")])

    x, y = table(200)
    words = ["metric 'f1' (F1Score) must give one number, gives several", 'average="macro"']
    refused(tmp_path / "run", recipe, *words, data=numpy(x, np.eye(2, dtype=np.float32)[y]))


# ------------------------------------------------------------------------------------------------ what is not there


HIDE = """
import sys
from importlib.machinery import PathFinder

class Without:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name in {names!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""


@pytest.fixture
def without(tmp_path: Path) -> Callable[..., hy.Local]:
    """An engine whose workers find no such packages, as if they were not installed. Their PYTHONPATH is one folder with
    a `sitecustomize`, which Python imports first of all; what is installed, Hopyard too, is behind it."""

    def engine(*names: str, **env: str) -> hy.Local:
        folder = tmp_path / "without"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HIDE.format(names=names))
        return local(1, PYTHONPATH=str(folder), **env)

    return engine


def words_of(recipe: Any, package: str, *more: str) -> tuple[Any, ...]:
    return recipe, f"the recipe needs {package}, which is not installed where the workers run", "pip install", *more


def test_tensorflow_is_not_installed(tmp_path: Path, without: Callable[..., hy.Local]) -> None:
    """But Keras is, and its backend is TensorFlow where nobody says otherwise."""
    words = words_of(net, "tensorflow", "hopyard[tensorflow]", "hy.Local(env={'KERAS_BACKEND': 'torch'})")
    refused(tmp_path / "run", *words, engine=without("tensorflow"))
    (joined,) = [line for line in journal(tmp_path / "run") if isinstance(line, Joined)]
    assert "tensorflow" not in joined.fingerprint


def test_keras_is_not_installed(tmp_path: Path, without: Callable[..., hy.Local]) -> None:
    refused(tmp_path / "run", *words_of(net, "keras", "hopyard[keras]"), engine=without("keras"))


def test_jax_is_not_installed(tmp_path: Path, without: Callable[..., hy.Local]) -> None:
    words = words_of(net, "jax", "hopyard[jax]")
    refused(tmp_path / "run", *words, engine=without("jax", KERAS_BACKEND="jax"))


def test_a_backend_that_keras_does_not_know(tmp_path: Path) -> None:
    refused(tmp_path / "run", net, "theano", engine=local(1, KERAS_BACKEND="theano"))


# ------------------------------------------------------------------------------------------------ what is not exact


def counting() -> Any:
    """A layer with a variable of TensorFlow's own."""
    import keras
    import tensorflow as tf

    class Counting(keras.layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.calls = tf.Variable(0.0, name="calls")

        def call(self, x):
            self.calls.assign_add(1.0)
            return x * (1 + 0.001 * self.calls)

    return Counting()


def drawing() -> Any:
    """A layer that draws from TensorFlow's own generator while training."""
    import keras
    import tensorflow as tf

    class Drawing(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    return Drawing()


def sampling() -> Any:
    """A layer that draws from the operating system, by a function of Python."""
    import keras
    import tensorflow as tf

    def drawn() -> np.float32:
        return np.float32(int.from_bytes(os.urandom(3)) / 2**24)

    class Sampling(keras.layers.Layer):
        def call(self, x):
            return x + tf.ensure_shape(tf.numpy_function(drawn, [], tf.float32), ())

    return Sampling()


INEXACT = {
    counting: ["the step uses tf.Variable 'calls:0', of which Keras knows nothing", "self.add_weight("],
    drawing: ["the step draws from TensorFlow's own generator (RandomStandardNormal)", "keras.random.SeedGenerator()"],
}


@pytest.mark.parametrize(
    "layer",
    [pytest.param(layer, marks=[pytest.mark.long] * (layer is drawing)) for layer in INEXACT],
    ids=lambda layer: layer.__name__,
)
def test_a_model_that_cannot_be_exact(
    tmp_path: Path, layer: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def recipe(config: Any) -> Any:
        return compiled(sequence(layer()))

    refused(tmp_path / "run", recipe, "exact=True: ", *INEXACT[layer], exact=True)
    assert not caplog.records
    run = select(tmp_path / "warned", recipe, [{}], epochs=1)  # exact="warn"
    assert run.status == "completed"
    (record,) = caplog.records
    assert record.message.startswith("not exact: ")
    for words in INEXACT[layer]:
        assert words in record.message
    caplog.clear()
    select(tmp_path / "silent", recipe, [{}], epochs=1, exact=False)
    assert not caplog.records


@pytest.mark.parametrize(
    ("layer", "eager"), [(sampling, False), (counting, True)], ids=["a sampler", "a variable, eagerly"]
)
def test_differences_that_only_a_repeated_step_shows(tmp_path: Path, layer: Callable[[], Any], eager: bool) -> None:
    """No graph says so, or there is none."""

    def recipe(config: Any) -> Any:
        return compiled(sequence(layer()), run_eagerly=eager)

    refused(tmp_path / "run", recipe, "exact=True: ", "gives other bits", exact=True)


# ------------------------------------------------------------------------------------------------ pickled functions


def test_a_class_in_a_recipe_may_use_names_of_its_module(tmp_path: Path) -> None:
    """A default, a decorator, an annotation."""

    def recipe(config: Any) -> Any:
        class Plain(Linear):
            default = WIDTH

        return Plain(Plain.default, 2, lr=0.1, batch_size=16)

    assert select(tmp_path / "run", recipe, [{}], epochs=1, engine=local(1)).status == "completed"


def test_the_model_is_fine_otherwise(tmp_path: Path) -> None:
    """What these tests spoil."""
    for recipe in (lambda config: compiled(sequence()), subclass):
        run = select(tmp_path / recipe.__name__, recipe, [{}], epochs=1, data=dataset(), exact=True)
        assert run.status == "completed"
    x, y = table(200)
    data = numpy(x, {"sign": y, "size": np.abs(x).sum(1)})
    assert select(tmp_path / "outputs", two_outputs, [{}], epochs=1, data=data, exact=True).status == "completed"
    assert select(tmp_path / "inputs", two_inputs, [{}], epochs=1, data=halves(), exact=True).status == "completed"
