"""Around TensorFlow: threads, determinism and seeds of the process.

What is global to the process is changed here only, by `install`, which the agent calls, `fresh` and `reseed`.
"""

from __future__ import annotations

import logging
import os
import random
from functools import lru_cache
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.eager import context as eager
from tensorflow.python.util import _pywrap_determinism as determinism

from hopyard.system.processor import processor

log = logging.getLogger(__name__)


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Set this process up for a run: `threads` for one operation and between operations (0: as it is); deterministic
    kernels unless `exact` is False (an operation without one raises). TensorFlow takes its threads only before its
    first operation; when it has begun with others, that is said, once, and `versions` tells which it has."""
    threading = tf.config.threading
    for get, put in (
        (threading.get_intra_op_parallelism_threads, threading.set_intra_op_parallelism_threads),
        (threading.get_inter_op_parallelism_threads, threading.set_inter_op_parallelism_threads),
    ):
        if threads and get() != threads:
            try:
                put(threads)
            except RuntimeError:
                _begun(get(), threads)
    if exact is not False and not determinism.is_enabled():
        tf.config.experimental.enable_op_determinism()


@lru_cache
def _begun(here: int, threads: int) -> None:
    log.warning(
        "TensorFlow has begun in this process with %s threads, the run asks for %d: its results may differ in the last "
        "bits from those of workers of their own (hy.Local). Start the run before TensorFlow's first operation",
        here or "the default number of",
        threads,
    )


def held() -> Any:
    """What a run changes in this process."""
    context = eager.context()
    return determinism.is_enabled(), context._seed, getattr(context, "_rng", None)


def give_back(before: Any) -> None:
    """Put it back."""
    context = eager.context()
    _Drawn.by_step = _Drawn.by_step or _advanced(context)
    enabled, context._seed, context._rng = before or (False, None, None)
    determinism.enable(enabled)


def fresh(seed: int, named: bool) -> None:
    """Before a recipe is called. When it names TensorFlow, it may draw first weights from TensorFlow's generators, also
    with a seed of its own, and what they have drawn before must not show."""
    if named or _Drawn.by_recipe:
        tf.random.set_seed(seed)
        _Drawn.seed = seed
    else:
        reseed(seed)


def settle() -> None:
    """After a recipe was called."""
    context = eager.context()
    if _advanced(context):
        _Drawn.by_recipe = True
        context._rng = random.Random(_Drawn.seed)  # noqa: S311 - as TensorFlow does


def reseed(seed: int) -> None:
    """Seed TensorFlow's generators.

    `tf.random.set_seed` also makes every compiled function be prepared again, in 130 ms and more. That is only worth it
    where somebody draws from these generators; Keras does not (`keras.random` has its own).
    """
    context = eager.context()
    _Drawn.by_step = _Drawn.by_step or _advanced(context)
    if _Drawn.by_step:
        tf.random.set_seed(seed)
    else:
        context._seed, context._rng = seed, random.Random(seed)  # noqa: S311 - as TensorFlow does
    _Drawn.seed = seed


class _Drawn:
    """Whether a recipe or a step drew from TensorFlow's generators in this process, and the seed they were given last;
    changed by the functions above only."""

    by_recipe = False
    by_step = False
    seed: int | None = None


def _advanced(context: Any) -> bool:
    """Whether somebody drew since `reseed`; who set another seed since has generators of their own."""
    seed = _Drawn.seed
    if seed is None or context._seed != seed:
        return False
    return bool(context._rng.getstate() != random.Random(seed).getstate())  # noqa: S311 - as TensorFlow does


def prepare() -> None:
    """Import what recipes use, beforehand."""


def warm() -> None:
    """What TensorFlow puts off until its first operation, done beforehand."""
    step = tf.function(lambda x: x + 1.0, autograph=False)
    float(step(tf.constant(0.0)))


def versions() -> dict[str, Any]:
    """What equal digests may depend on."""
    threading = tf.config.threading
    return {
        "tensorflow": str(tf.__version__),
        "tensorflow_threads": [
            threading.get_intra_op_parallelism_threads(),
            threading.get_inter_op_parallelism_threads(),
        ],
        "tensorflow_flags": {name: os.environ[name] for name in FLAGS if name in os.environ},
        "cpu": processor(),
    }


FLAGS = ("XLA_FLAGS", "TF_XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS")
