"""Keras on PyTorch, in a process of its own: what its State holds beyond Keras' variables, and
gangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

JOB = """
import keras, numpy as np, torch
from keras_nets import feed, made, INPUTS, TARGETS, with_loss, bits
from hopyard.errors import SpecError
from hopyard.frameworks.tree import capture, restore
from hopyard.frameworks.keras.model import Model
from hopyard.store.tree import decode, encode

def net(width=4):
    norm = keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(width), output_shape=(None, width))
    return with_loss(keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), norm, keras.layers.Dense(3)]))

def model(**more):
    trainable = Model(made(lambda: net(**more)))
    trainable.set_schema(INPUTS, TARGETS)
    return trainable

one, other = model(), model()
for epoch in range(3):
    one.train_partition(feed(1))
restore(other, decode(encode(capture(one))))
assert bits(other) == bits(one)
assert other.evaluate_partition(feed(2)) == one.evaluate_partition(feed(2))
mean = capture(one)["buffers"][0]
one.train_partition(feed(3))
assert not np.array_equal(mean, capture(one)["buffers"][0])

plain = Model(made(lambda: with_loss(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]))))
plain.set_schema(INPUTS, TARGETS)
assert sorted(capture(plain)) == ["model", "optimizer"]
tree = capture(one) | {"buffers": []}
try:
    restore(other, tree)
except SpecError as error:
    assert "0 variables of the buffers, the built one 3" in str(error), error
else:
    raise AssertionError

from gang_threads import partitions, trained
from hopyard.spec import Gang
from hopyard.frameworks import seed_all

def member():
    keras.config.set_floatx("float64")
    seed_all(1)
    net = keras.Sequential([keras.Input((5,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(3, "softmax")])
    trainable = Model(with_loss(net, optimizer=keras.optimizers.SGD(0.3)))
    trainable.set_schema({"inputs": ((5,), "float64")}, TARGETS)
    return trainable

data = partitions([15])
((alone, _),) = trained(member, data, 8)
for size, gang in ((8, Gang(2)), (8, Gang(2, accumulate=2)), (4, Gang(2, "parameters"))):
    for trained_member, _ in trained(member, data, size, gang):
        for a, b in zip(alone.model.variables, trained_member.model.variables, strict=True):
            # here the gradient of a whole batch itself differs by 1e-8 from the mean of those of its halves
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-7)
"""


@pytest.mark.long
def test_buffers_of_torch_modules_hop_and_gangs_are_one_worker() -> None:
    env = {
        **os.environ,
        "KERAS_BACKEND": "torch",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=env, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
