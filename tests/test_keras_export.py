"""Exported Keras models predict as they did in their runs, on each backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hopyard as hy

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy"),  # Keras' own, of NumPy 2
]


def test_an_exported_model_predicts_as_the_trial(tmp_path: Path) -> None:
    for package in ("tensorflow", "onnxruntime"):
        pytest.importorskip(package)
    from keras_exports import ENDINGS, check

    run = check(tmp_path, "mlp", ENDINGS["tensorflow"])
    with pytest.raises(hy.SpecError, match=r"on tensorflow .* \.keras, \.onnx, / .* got \.pt2"):
        run.best.export(tmp_path / "mlp.pt2")


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", "tensorflow", pytest.param("jax", marks=pytest.mark.jax)])
def test_all_formats_of_a_backend(backend: str, tmp_path: Path) -> None:
    """In a process of its own: a process has one backend."""
    for package in (backend, "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    env = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = Path(__file__).with_name("keras_exports.py")
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
