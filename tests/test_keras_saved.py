"""Saved Keras models are the whole of what their States have, on each backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.long]


@pytest.mark.parametrize("backend", ["torch", "tensorflow", pytest.param("jax", marks=pytest.mark.jax)])
def test_a_saved_model_is_the_whole_state(backend: str, tmp_path: Path) -> None:
    """In a process of its own: a process has one backend."""
    pytest.importorskip(backend)
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("keras_parts.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
