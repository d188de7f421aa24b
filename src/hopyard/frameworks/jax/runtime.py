"""JAX's `Runtime`: what of the process its results may depend on.

JAX has no global generator (keys are part of a State), reads threads and flags from the environment when it starts (see
`frameworks.environment`), and its CPU kernels are deterministic: nothing is set, and nothing put back.
"""

from __future__ import annotations

import os
from typing import Any

import jax

from hopyard.ports import Runtime
from hopyard.system.processor import processor


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


RUNTIME = Runtime(versions, warm=warm)
