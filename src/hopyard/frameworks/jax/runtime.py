"""JAX's `Runtime`: the settings of the process that its results may depend on.

JAX has no global generator (keys are part of a State), reads threads and flags from the environment when it starts (see
`frameworks.environment`), and its CPU kernels are deterministic: nothing is set or restored.
"""

from __future__ import annotations

import os
from typing import Any

import jax

from hopyard.ports.frameworks import Runtime
from hopyard.system.limits import processor


def warm() -> None:
    """Does in advance what JAX puts off until its first operation."""
    jax.jit(lambda x: x + 1.0)(0.0).block_until_ready()


def versions() -> dict[str, Any]:
    """Return the versions and settings that digests may depend on."""
    return {
        "jax": jax.__version__,
        "jax_flags": {name: os.environ[name] for name in ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS") if name in os.environ},
        "cpu": processor(),
    }


RUNTIME = Runtime(versions, warm=warm)
