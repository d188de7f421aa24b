"""Detects Keras 3's `fit` under strategies that it does not support (keras-team/keras 20585), before or after a run."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
import traceback
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

SENTENCE = (
    "Keras 3's fit does not run under MultiWorkerMirroredStrategy or ParameterServerStrategy (keras-team/keras 20585). "
    "What works: a custom training loop, tf_keras (pip install tf_keras, TF_USE_LEGACY_KERAS=1), or hy.fit"
)
STRATEGIES = ("MultiWorkerMirroredStrategy", "ParameterServerStrategy", "ParameterServerStrategyV2")
_FILES = ("collective_all_reduce_strategy", "parameter_server_strategy")
"""TensorFlow's modules of these strategies."""


def foreseen(main: Any, environment: Mapping[str, str]) -> bool:
    """Whether the text of a program shows that it calls Keras 3's `fit` under such a strategy.

    Only its own text is checked: for names of a strategy, of Keras, and a call of `.fit(…)`. A program that imports
    `tf_keras`, or sets TF_USE_LEGACY_KERAS, has Keras 2.

    Args:
        main: a function, or the path of a script.
        environment: environment variables of its processes in addition to this process's.
    """
    legacy = environment.get("TF_USE_LEGACY_KERAS", os.environ.get("TF_USE_LEGACY_KERAS", ""))
    try:
        text = main.read_text() if isinstance(main, Path) else textwrap.dedent(inspect.getsource(main))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError, ValueError, TokenError, RecursionError):
        # defined in a console, edited since, or not Python at all
        return False
    names, calls_fit = set(), False
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.Constant(value=str(name)):
                names.add(name)
            case ast.alias(name=name):
                names.update(name.split("."))
            case ast.ImportFrom(module=str(name)):
                names.update(name.split("."))
            case ast.Call(func=ast.Attribute(attr="fit")):
                calls_fit = True
            case _:
                pass
    keras2 = {"tf_keras", "TF_USE_LEGACY_KERAS"} & names or legacy in ("1", "true", "True")
    return calls_fit and not keras2 and "keras" in names and not names.isdisjoint(STRATEGIES)


def failed_by_it(error: BaseException, message: str) -> bool:
    """Whether the error is what Keras 3 raises in this case."""
    frames = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    in_keras = any("/keras/src/" in name for name in frames)
    distributed = any(module in name for name in frames for module in _FILES)
    return in_keras and (distributed or any(name in message for name in (*STRATEGIES, "CollectiveAllReduce")))
