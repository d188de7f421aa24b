"""Around JAX: what of the process its results may depend on."""

from __future__ import annotations

import os
from typing import Any, Literal

import jax

from hopyard.system.processor import processor


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Nothing: JAX reads threads and flags from the environment when it starts, and its CPU kernels are deterministic;
    see `frameworks.environment`."""


def prepare() -> None:
    """Import what recipes use, beforehand."""


def warm() -> None:
    """What JAX puts off until its first operation, done beforehand."""
    jax.jit(lambda x: x + 1.0)(0.0).block_until_ready()


def versions() -> dict[str, Any]:
    """What equal digests may depend on."""
    return {
        "jax": jax.__version__,
        "jax_flags": {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS") if name in os.environ},
        "cpu": processor(),
    }


def held() -> Any:
    """Nothing of the process is changed."""
    return None


def give_back(before: Any) -> None:
    """Nothing to put back."""


def reseed(seed: int) -> None:
    """Nothing: JAX has no global generator; keys are part of a State."""
