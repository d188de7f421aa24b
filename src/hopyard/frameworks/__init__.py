"""What trains: Trainables for torch, Keras and NumPy, and how their States become plain arrays and come back.

    tree.py      States as plain arrays, and back
    linear.py    a linear model in NumPy, the framework of the tests
    torch/       `Model`; its state, metrics, tensors ↔ NumPy arrays, files
    keras/       `Model`, a compiled Keras model as a Trainable; its state, metrics, rows, and loops on each backend
    tensorflow/  jax/: their processes
    runtime.py   in each: seeds, threads, determinism of the process

This module imports no framework: it looks for one only among the modules that are imported already.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from contextlib import suppress
from types import ModuleType

import numpy as np

from hopyard.frameworks.tensorflow import onednn

TOOLS = {name: f"hopyard.frameworks.{name}.runtime" for name in ("torch", "tensorflow", "jax", "keras")}
"""Framework → the module with its tools. Each has `prepare()` and `warm()`, which import and do what is put off until a
first step, `install(exact, threads)`, which sets the process up, `reseed(seed)`, called before each recipe and each
partition, `versions()`, and `held()` and `give_back(held)`, for what a run changes in the process (None: as it is at
first). Some have `fresh(seed, named)` and `settle()`, called before and after each recipe, `adopt(made)`, for what it
returned, `release()`, which gives back memory of a device that is kept for nothing, and WEIGHTS, `net`, `save_net`,
`load_net`, for models in files."""


def imported() -> list[str]:
    """The frameworks that this process has imported."""
    return [name for name in TOOLS if name in sys.modules]


def tools(framework: str) -> ModuleType:
    """The module with the framework's tools; imports the framework."""
    return importlib.import_module(TOOLS[framework])


def release() -> None:
    """Give back the memory of devices that frameworks keep though nothing is in it: others share the device."""
    for framework in imported():
        if give_back := getattr(tools(framework), "release", None):
            give_back()


def quiet(backend: str = "") -> None:
    """Before TensorFlow or Keras is imported on behalf of the user: no chatter about instruction sets and missing GPUs
    unless the environment asks for it, and Keras' `backend` if one is known."""
    if "tensorflow" not in sys.modules and os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") != "0":
        onednn.hush()
    if backend and "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = backend
        with suppress(ImportError):  # whoever asked for the model will hear of it
            importlib.import_module("keras")
        del os.environ["KERAS_BACKEND"]  # the next run may have another


def environment(threads: int) -> dict[str, str]:
    """What the environment of a worker's process should have before a framework is imported, where the user has not
    said otherwise: the number of threads for those that cannot be told later, and GPUs that can be shared."""
    flags = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NPROC": str(threads)}
    return flags | ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {})


def seed_all(seed: int) -> None:
    """Seed `random`, NumPy's global generator, and those of every framework that is imported, on every device."""
    for framework in imported():  # first: Keras draws from `random` when it makes its own generator
        tools(framework).reseed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
