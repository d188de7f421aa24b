"""The private parts of TensorFlow that Hopyard uses. No other module of `frameworks` may name them.

tests/frameworks/test_internals.py tries each of these and names the versions for which they hold.
"""

from __future__ import annotations

import random

from tensorflow.python.eager import context as eager
from tensorflow.python.util import _pywrap_determinism as _determinism


def deterministic() -> bool:
    """Whether operations without a deterministic kernel raise."""
    return bool(_determinism.is_enabled())


def set_deterministic(enabled: bool) -> None:
    """Switches this on or off; `tf.config.experimental.enable_op_determinism` can only switch it on."""
    _determinism.enable(enabled)


def generator() -> tuple[int | None, random.Random | None]:
    """Return the global seed, and the generator from which operations without a seed take theirs."""
    context = eager.context()
    return context._seed, getattr(context, "_rng", None)


def set_generator(seed: int | None, generator: random.Random | None) -> None:
    """Sets both. `tf.random.set_seed` also has every compiled function prepared again, in 130 ms and more."""
    context = eager.context()
    context._seed, context._rng = seed, generator


def seeded(seed: int) -> random.Random:
    """Return the generator that `tf.random.set_seed(seed)` creates."""
    return random.Random(seed)  # noqa: S311 - as TensorFlow does
