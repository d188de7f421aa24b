"""Trainables for torch, Keras and NumPy, and the conversion of their States to plain arrays and back.

    tree.py      States as plain arrays, and back
    linear.py    a linear model in NumPy, the framework of the tests
    torch/       `Model`; its state, metrics, tensors ↔ NumPy arrays, files
    keras/       `Model`, a compiled Keras model as a Trainable; its state, metrics, rows, and loops on each backend
    tensorflow/  jax/: settings of their processes
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

from hopyard.ports.frameworks import FrameworkModel, ModelFile, Runtime
from hopyard.ports.training import Trainable

FRAMEWORKS = ("torch", "tensorflow", "jax", "keras")
"""Each has a module `runtime` with a `ports.frameworks.Runtime`, named RUNTIME."""


def imported() -> list[str]:
    """Return the frameworks that this process has imported."""
    return [name for name in FRAMEWORKS if name in sys.modules]


def runtime(framework: str) -> Runtime:
    """Return the `Runtime` of the framework; imports the framework."""
    result: Runtime = importlib.import_module(f"{__name__}.{framework}.runtime").RUNTIME
    return result


def runtimes() -> dict[str, Runtime]:
    """Return the `Runtime` of each framework that this process has imported, by name."""
    return {framework: runtime(framework) for framework in imported()}


def model_file(framework: str) -> ModelFile:
    """Return how models of the framework are saved.

    Raises:
        ValueError: models of this framework cannot be saved.
    """
    file = runtime(framework).file if framework in FRAMEWORKS else None
    if file is None:
        raise ValueError(f"framework = {framework!r}: there are files for torch and keras")
    return file


def framework_of(trainable: Trainable) -> str | None:
    """Return the framework whose model the Trainable holds; None for a Trainable of the user's own."""
    return trainable.framework if isinstance(trainable, FrameworkModel) and trainable.framework in FRAMEWORKS else None


def release() -> None:
    """Frees device memory that frameworks reserve without using it, as others share the device."""
    for each in runtimes().values():
        each.release()


def quiet(backend: str = "") -> None:
    """Prepares to import TensorFlow or Keras for the user: suppresses messages about instruction sets and missing GPUs,
    unless the environment asks for them, and sets Keras' `backend` if one is known."""
    if "tensorflow" not in sys.modules:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if backend and "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = backend
        with suppress(ImportError):  # the caller raises it when it imports Keras for the model
            importlib.import_module("keras")
        del os.environ["KERAS_BACKEND"]  # the next run may have another


def environment(threads: int) -> dict[str, str]:
    """Return environment variables that a worker needs before it imports a framework, where the user has not set them:
    the number of threads for frameworks that cannot change it later, and sharing of GPUs."""
    flags = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NPROC": str(threads)}
    return flags | ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {})


def seed_all(seed: int) -> None:
    """Seeds `random`, NumPy's global generator, and those of every imported framework, on every device."""
    for each in runtimes().values():  # first: Keras draws from `random` when it makes its own generator
        each.reseed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
