"""TensorFlow 1 programs, as they were written, in processes of their own (a process imports TensorFlow once)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

HERE = [
    pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="not installed: tensorflow"),
]


def run(text: str, *, before: str = "", path: Path | None = None, **environment: str) -> str:
    """What a program printed whose `tensorflow` is version 1."""
    whole = f"{before}\nfrom hopyard.agent.programs.tensorflow1 import present\npresent()\n{text}"
    named = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment}
    if path is not None:
        named["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=150, env=named, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


TRAINS = """
import sys
assert "tensorflow" not in sys.modules, "it was imported before it was asked for"
present()  # a second time changes nothing
assert sum(type(finder).__module__ == "hopyard.agent.programs.tensorflow1" for finder in sys.meta_path) == 1

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import array_ops
from tensorflow.train import GradientDescentOptimizer
from tensorflow.core.framework import graph_pb2
import tensorflow.compat.v2 as newer
import tensorflow.compat.v1 as older

assert GradientDescentOptimizer is tf.train.GradientDescentOptimizer
assert tf.python.framework.ops is ops and isinstance(tf.get_default_graph(), ops.Graph)
assert older.Session is tf.Session and tf.compat.v1.Session is tf.Session and newer.function
assert not tf.executing_eagerly() and tf.train.Server and tf.app.flags and tf.logging.INFO
assert "placeholder" in dir(tf)

import cloudpickle
assert cloudpickle.loads(cloudpickle.dumps(tf)) is tf

x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
loss = tf.reduce_mean(tf.square(x * w - y))
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(50):
        session.run(train, {x: [1, 2], y: [3, 6]})
    print("w", round(float(session.run(w)), 3))

cells = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(3), tf.nn.rnn_cell.GRUCell(2)])
outputs, _ = tf.nn.dynamic_rnn(cells, tf.zeros([2, 5, 4]), dtype=tf.float32)
print("rnn", outputs.shape.as_list())
print("keras", tf.keras.utils.to_categorical([1], 2).tolist())
import tensorflow.keras
from tensorflow.keras.layers import Dense
print("dense", Dense(3)(tf.placeholder(tf.float32, [None, 4])).shape.as_list())
"""

WAITS = """
import inspect
from tensorflow.train import SessionManager, Supervisor
waits = [SessionManager()._recovery_wait_secs, SessionManager(recovery_wait_secs=7)._recovery_wait_secs]
with tf.Graph().as_default():
    tf.train.get_or_create_global_step()
    with tf.train.MonitoredTrainingSession() as session:
        waits.append(session._sess._sess._stop_grace_period_secs)
    waits += [Supervisor(logdir=None)._stop_grace_secs, Supervisor(stop_grace_secs=3)._stop_grace_secs]
print(*waits, "class SessionManager" in inspect.getsource(SessionManager))
"""

GONE = [
    "import tensorflow as tf; tf.contrib.slim",
    "from tensorflow.contrib import slim",
    "import tensorflow.contrib.layers",
    "import tensorflow as tf; tf.estimator.Estimator",
    "from tensorflow.examples.tutorials.mnist import input_data",
    "import tensorflow as tf; tf.nothing",
    "import tensorflow.nothing",
]
ASKS = f"""
for line in {GONE!r}:
    try:
        exec(line, {{}})
    except (AttributeError, ImportError) as error:
        print(type(error).__name__, error)
    else:
        print("nothing")
"""
WITHOUT_KERAS_2 = """
import os
import tensorflow as tf
assert "TF_USE_LEGACY_KERAS" not in os.environ
assert not hasattr(tf, "layers")
try:
    tf.layers.dense
except AttributeError as error:
    print(error)
try:
    from tensorflow.layers import dense
except ImportError as error:
    print(error)
from tensorflow import *  # which has a print of its own
assert placeholder.__name__ == "placeholder"
"""


class TestTensorFlow:
    pytestmark = HERE

    def test_a_program_of_version_1_trains_and_its_waits_are_short(self) -> None:
        """TensorFlow's own values of waits become ours, those of the user stay."""
        said = run(
            TRAINS + WAITS, before="from hopyard.agent.programs.patches import patch_frameworks\npatch_frameworks()"
        )
        *trained, waits = said.splitlines()
        assert trained == ["w 3.0", "rnn [2, 5, 2]", "keras [[0.0, 1.0]]", "dense [None, 3]"]
        assert waits.split() == ["1", "7", "5", "5", "3", "True"]

    @pytest.mark.long
    def test_removed_apis_raise_a_one_sentence_error(self) -> None:
        without = importlib.util.find_spec("tf_keras") is None
        said = run(ASKS + (WITHOUT_KERAS_2 if without else "")).splitlines()
        for line in said[:3]:
            assert "tf.contrib ended with TensorFlow 1" in line and "tf_slim" in line
        assert [line.split()[0] for line in said[: len(GONE)]] == [
            "AttributeError",
            "ModuleNotFoundError",
            "ModuleNotFoundError",
            "AttributeError",
            "ModuleNotFoundError",
            "AttributeError",
            "ModuleNotFoundError",
        ]
        assert "MonitoredTrainingSession" in said[3] and "tf.keras.datasets.mnist" in said[4]
        assert "'nothing'" in said[5] and "'tensorflow.nothing'" in said[6]
        layers = said[len(GONE) :]
        assert all("tf.layers is part of Keras 2" in line and "pip install" in line for line in layers)
        assert len(layers) == (2 if without else 0)

    @pytest.mark.skipif(importlib.util.find_spec("tf_keras") is None, reason="not installed: tf_keras")
    def test_with_keras_2_layers_are_there(self) -> None:
        said = run("""
import warnings
warnings.simplefilter("ignore")
import numpy as np
import tensorflow as tf
from tensorflow.layers import dense
print(dense(tf.placeholder(tf.float32, [None, 4]), 3).shape.as_list())
print(tf.nn.rnn_cell.BasicLSTMCell.__module__.split(".")[0])
net = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=(3,))])
net.compile("sgd", "mse")
net.fit(np.zeros((8, 3)), np.zeros((8, 2)), verbose=0)
""")
        assert said.splitlines() == ["[None, 3]", "tf_keras"]

    @pytest.mark.long
    def test_tensorflow_that_is_there_already_is_changed(self) -> None:
        said = run(
            "import tensorflow as again\nprint(again.executing_eagerly(), hasattr(again, 'placeholder'))",
            before="import tensorflow as tf",
        )
        assert said.split() == ["False", "True"]


def test_without_tensorflow_the_import_fails_as_ever(tmp_path: Path) -> None:
    """And Keras 2 is asked for only where it is."""
    said = run("""
import os
import sys
sys.path[:] = [entry for entry in sys.path if "site-packages" not in entry]
try:
    import tensorflow
except ModuleNotFoundError as error:
    print(error)
""")
    assert said.strip() == "No module named 'tensorflow'"


def test_keras_2_is_taken_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "tf_keras.py").touch()
    ask = "import os; print(os.environ.get('TF_USE_LEGACY_KERAS'))"
    assert run(ask, path=tmp_path).strip() == "1"
    assert run(ask, path=tmp_path, TF_USE_LEGACY_KERAS="0").strip() == "0"
