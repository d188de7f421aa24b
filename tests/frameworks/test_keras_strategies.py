"""Keras 3's fit under strategies that it does not know: seen in the text of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hopyard.frameworks.keras.strategies import foreseen

pytestmark = pytest.mark.tensorflow

SCRIPT = """
import tensorflow as tf
strategy = tf.distribute.{strategy}()
with strategy.scope():
    model = {keras}.Sequential([])
    model.compile("sgd", "mse")
model.{call}([1.0])
"""


def script(
    folder: Path, strategy: str = "MultiWorkerMirroredStrategy", keras: str = "tf.keras", call: str = "fit"
) -> Path:
    path = folder / "script.py"
    path.write_text(SCRIPT.format(strategy=strategy, keras=keras, call=call))
    return path


@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ({}, True),
        ({"strategy": "experimental.ParameterServerStrategy"}, True),
        ({"strategy": "MirroredStrategy"}, False),
        ({"call": "predict"}, False),
        ({"keras": "tf_keras"}, False),
        ({"keras": "sonnet"}, False),
    ],
)
def test_in_a_script(tmp_path: Path, how: dict[str, str], seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    assert foreseen(script(tmp_path, **how), {}) is seen


def test_keras_2_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not foreseen(script(tmp_path), {"TF_USE_LEGACY_KERAS": "1"})
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert not foreseen(script(tmp_path), {})
    assert foreseen(script(tmp_path), {"TF_USE_LEGACY_KERAS": "0"})


def fits(args: Any, ctx: Any) -> None:
    import keras
    import tensorflow as tf

    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        keras.Sequential([]).fit([1.0])


def does_not(args: Any, ctx: Any) -> None:
    print("fit(), keras, MultiWorkerMirroredStrategy")


def test_in_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    assert foreseen(fits, {})
    assert not foreseen(does_not, {})


@pytest.mark.parametrize("main", [print, object(), eval("lambda: 1")])
def test_a_main_without_source(main: Any) -> None:
    assert not foreseen(main, {})


def test_a_script_that_is_not_python(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(b"\xff\xfe def")
    assert not foreseen(path, {})
