"""TensorFlow's `Runtime`: threads, determinism and seeds of the process.

What is global to the process is changed here only, by `install`, `before_recipe`, `after_recipe`, `reseed` and
`restore`.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import Any, Literal

import tensorflow as tf

from hopyard.frameworks.tensorflow import internals
from hopyard.ports.frameworks import Runtime
from hopyard.system.limits import processor

log = logging.getLogger(__name__)


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Sets this process up for a run: `threads` for one operation and between operations (0: unchanged); deterministic
    kernels unless `exact` is False (an operation without one raises). TensorFlow's threads can be set only before its
    first operation; when it has begun with others, this is logged, once, and `versions` returns the actual number."""
    threading = tf.config.threading
    for get_threads, set_threads in (
        (threading.get_intra_op_parallelism_threads, threading.set_intra_op_parallelism_threads),
        (threading.get_inter_op_parallelism_threads, threading.set_inter_op_parallelism_threads),
    ):
        if threads and get_threads() != threads:
            try:
                set_threads(threads)
            except RuntimeError:
                _warn_threads(get_threads(), threads)
    if exact is not False and not internals.deterministic():
        tf.config.experimental.enable_op_determinism()


@lru_cache
def _warn_threads(current: int, threads: int) -> None:
    log.warning(
        "TensorFlow has begun in this process with %s threads, the run asks for %d: its results may differ in the last "
        "bits from those of workers of their own (hy.Local). Start the run before TensorFlow's first operation",
        current or "the default number of",
        threads,
    )


def snapshot() -> Any:
    """Return what a run changes in this process."""
    return internals.deterministic(), *internals.generator()


def restore(before: Any) -> None:
    """Restores what `snapshot` returned."""
    _Drawn.by_step = _Drawn.by_step or _advanced()
    deterministic, seed, generator = before or (False, None, None)
    internals.set_generator(seed, generator)
    internals.set_deterministic(deterministic)


def before_recipe(seed: int, named: bool) -> None:
    """Seeds before a recipe is called. A recipe that names TensorFlow may draw first weights from TensorFlow's
    generators, also with a seed of its own, and must not depend on what they have drawn before."""
    if named or _Drawn.by_recipe:
        tf.random.set_seed(seed)
        _Drawn.seed = seed
    else:
        reseed(seed)


def after_recipe() -> None:
    """Notes after a recipe was called whether it drew from TensorFlow's generators, and seeds them again."""
    if _advanced():
        _Drawn.by_recipe = True
        seed = _Drawn.seed
        assert seed is not None
        internals.set_generator(seed, internals.seeded(seed))


def reseed(seed: int) -> None:
    """Seeds TensorFlow's generators.

    `tf.random.set_seed` also has every compiled function prepared again. That is only worth it where a recipe or a step
    draws from these generators; Keras does not (`keras.random` has its own).
    """
    _Drawn.by_step = _Drawn.by_step or _advanced()
    if _Drawn.by_step:
        tf.random.set_seed(seed)
    else:
        internals.set_generator(seed, internals.seeded(seed))
    _Drawn.seed = seed


class _Drawn:
    """Whether a recipe or a step drew from TensorFlow's generators in this process, and the last seed of these;
    changed by the functions above only."""

    by_recipe = False
    by_step = False
    seed: int | None = None


def _advanced() -> bool:
    """Whether the generators have drawn since `reseed`; False where the user's code has set another seed since."""
    seed, generator = internals.generator()
    if _Drawn.seed is None or seed != _Drawn.seed or generator is None:
        return False
    return generator.getstate() != internals.seeded(_Drawn.seed).getstate()


def warm() -> None:
    """Does in advance what TensorFlow puts off until its first operation."""
    step = tf.function(lambda x: x + 1.0, autograph=False)
    float(step(tf.constant(0.0)))


def versions() -> dict[str, Any]:
    """Return the versions and settings that digests may depend on."""
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

RUNTIME = Runtime(
    versions,
    warm=warm,
    install=install,
    reseed=reseed,
    before_recipe=before_recipe,
    after_recipe=after_recipe,
    snapshot=snapshot,
    restore=restore,
)
