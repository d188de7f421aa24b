"""SavedModels of Keras 3 have the names that Keras 2 gave them; graphs of TensorFlow 1 are written too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from example_modules import needs
from hopyard.compat.tensorflowonspark import TFNode, compat
from hopyard.compat.tensorflowonspark.pipeline import get_meta_graph_def
from hopyard.errors import SpecError
from late import Late

pytestmark = [
    pytest.mark.tensorflow,
    needs("tensorflow", "keras"),
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow", reason="SavedModels are its own"),
]
keras: Any = Late("keras")
tf: Any = Late("tensorflow")


def signature(folder: Path) -> Any:
    model = tf.saved_model.load(str(folder))
    found = model.signatures["serving_default"]
    found.kept = model
    return found


def test_of_a_sequential_model_input_and_output_are_named_after_its_layers(tmp_path: Path) -> None:
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(3, name="first"), keras.layers.Dense(1, name="last")]
    )
    compat.export_saved_model(model, str(tmp_path / "m"), True)
    serve = signature(tmp_path / "m")
    given = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    made = serve(first_input=tf.constant(given))
    assert list(made) == ["last"]
    np.testing.assert_allclose(made["last"].numpy(), model(given).numpy(), rtol=1e-6)


def test_of_a_functional_model_after_its_inputs_and_outputs(tmp_path: Path) -> None:
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    both = keras.layers.Concatenate()([a, b])
    outputs = [keras.layers.Dense(1, name="price")(both), keras.layers.Dense(4, name="kind")(both)]
    compat.export_saved_model(keras.Model([a, b], outputs), str(tmp_path / "m"), True)
    made = signature(tmp_path / "m")(a=tf.zeros([5, 2]), b=tf.zeros([5, 3]))
    assert {name: tuple(part.shape) for name, part in made.items()} == {"price": (5, 1), "kind": (5, 4)}


def test_inputs_and_outputs_by_name_keep_their_names(tmp_path: Path) -> None:
    b, a = keras.Input((1,), name="b"), keras.Input((1,), name="a")
    double, same = keras.layers.Rescaling(2.0, name="double"), keras.layers.Identity(name="same")
    model = keras.Model({"b": b, "a": a}, {"y": double(b), "x": same(a)})
    compat.export_saved_model(model, str(tmp_path / "m"), True)
    made = signature(tmp_path / "m")(a=tf.constant([[1.0]]), b=tf.constant([[5.0]]))
    assert {name: part.numpy().item() for name, part in made.items()} == {"double": 10.0, "same": 1.0}


def test_a_class_of_its_own_is_written_by_keras(tmp_path: Path) -> None:
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

    model = Net()
    model(np.zeros((1, 2), np.float32))
    compat.export_saved_model(model, str(tmp_path / "m"), True)
    assert "serving_default" in tf.saved_model.load(str(tmp_path / "m")).signatures


def test_only_the_chief_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    compat.export_saved_model(model, str(tmp_path / "m"), False)
    assert list(tmp_path.iterdir()) == []


def test_datasets_are_not_sharded() -> None:
    options = tf.data.Options()
    compat.disable_auto_shard(options)
    assert options.experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert compat.is_gpu_available() is bool(tf.config.list_physical_devices("GPU"))


def test_a_graph_of_tensorflow_1_is_written_with_its_signatures(tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], "x")
        tf.multiply(x, v1.get_variable("w", initializer=3.0, use_resource=True), name="y")
        session.run(v1.global_variables_initializer())
        names = {"inputs": {"x": "x"}, "outputs": {"y": "y:0"}, "method_name": "predict"}
        TFNode.export_saved_model(session, str(tmp_path / "m"), "serve,mine", {"serving_default": names})
    model = tf.saved_model.load(str(tmp_path / "m"), tags=["serve", "mine"])
    made = model.signatures["serving_default"](x=tf.constant([1.0, 2.0]))
    assert made["y"].numpy().tolist() == [3.0, 6.0]
    assert "serving_default" in get_meta_graph_def(str(tmp_path / "m"), "mine,serve").signature_def
    with pytest.raises(SpecError, match="has the graphs"):
        get_meta_graph_def(str(tmp_path / "m"), "serve")
