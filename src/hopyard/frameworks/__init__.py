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

import numpy as np

from hopyard.frameworks.tensorflow import onednn
from hopyard.ports import FrameworkModel, ModelFile, Runtime, Trainable

FRAMEWORKS = ("torch", "tensorflow", "jax", "keras")
"""Each has a module `runtime` with a `ports.Runtime`, named RUNTIME."""


def imported() -> list[str]:
    """The frameworks that this process has imported."""
    return [name for name in FRAMEWORKS if name in sys.modules]


def runtime(framework: str) -> Runtime:
    """What the framework needs done to a process; imports the framework."""
    found: Runtime = importlib.import_module(f"{__name__}.{framework}.runtime").RUNTIME
    return found


def runtimes() -> dict[str, Runtime]:
    """Those of the frameworks that this process has imported, by name."""
    return {framework: runtime(framework) for framework in imported()}


def model_file(framework: str) -> ModelFile:
    """How models of the framework are saved.

    Raises:
        ValueError: the framework saves none.
    """
    file = runtime(framework).file if framework in FRAMEWORKS else None
    if file is None:
        raise ValueError(f"framework = {framework!r}: there are files for torch and keras")
    return file


def framework_of(trainable: Trainable) -> str | None:
    """The framework whose model the Trainable holds; None: it is of the user's own."""
    return trainable.framework if isinstance(trainable, FrameworkModel) and trainable.framework in FRAMEWORKS else None


def release() -> None:
    """Give back the memory of devices that frameworks keep though nothing is in it: others share the device."""
    for one in runtimes().values():
        one.release()


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
    for one in runtimes().values():  # first: Keras draws from `random` when it makes its own generator
        one.reseed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
