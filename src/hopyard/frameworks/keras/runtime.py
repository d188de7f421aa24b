"""Around a Keras model: what a recipe may return, a clean slate before it is called, seeds, files."""

from __future__ import annotations

import collections
import os
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from hopyard.errors import SpecError
from hopyard.frameworks.keras.settings import apply, settings
from hopyard.frameworks.tree import on_host

WEIGHTS = "model.keras"
"""The file of a saved model."""


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Nothing of its own: its backend has its own tools."""


def prepare() -> None:
    """Import what recipes use, beforehand."""
    import hopyard.frameworks.keras.model  # noqa: F401


def warm() -> None:
    """Nothing of its own: its backend has its own tools."""


def versions() -> dict[str, Any]:
    """What equal digests may depend on."""
    return {"keras": str(keras.__version__), "keras_backend": keras.backend.backend()}


class _Slate:
    """Keras' global settings as they were before the first recipe, and the generator of `keras.random` that compiled
    steps draw from; changed by `fresh` and `_generator` only."""

    settings: tuple[Any, ...] | None = None
    generator: Any = None


def fresh(seed: int, named: bool) -> None:
    """Before a recipe is called: names count from one again (`auc`, not `auc_3`), the dtype policy and its like are as
    before the first recipe, unnamed randomness begins at `seed`."""
    from keras.src.utils import naming

    if _Slate.settings is None:
        _Slate.settings = settings()
    apply(_Slate.settings)
    naming.reset_uids()  # `keras.utils.clear_session` does so too, and forgets all compiled functions
    reseed(seed)


def held() -> Any:
    """What a run changes in this process."""
    from keras.src.utils import naming

    uids = dict(naming.global_state.get_global_attribute("object_name_uids") or {})
    generator = naming.global_state.get_global_attribute("global_seed_generator")
    # none is made for this: to make one is TensorFlow's first operation, after which it takes no number of threads
    return settings(), uids, None if generator is None else np.array(on_host(generator.state))


def give_back(before: Any) -> None:
    """Put it back."""
    from keras.src.utils import naming

    if before is None:  # Keras came with the recipe
        if _Slate.settings is not None:
            apply(_Slate.settings)
        return
    wanted, uids, state = before
    apply(wanted)
    naming.reset_uids()
    counts = naming.global_state.get_global_attribute(
        "object_name_uids", default=collections.defaultdict(int), set_to_default=True
    )
    counts.update(uids)
    if state is not None:
        _generator().state.assign(state)


def reseed(seed: int) -> None:
    """Start the generator of `keras.random`, where no seed is given, anew."""
    state = _generator().state
    state.assign(np.array([seed & 0x7FFFFFFF, 0], dtype=state.dtype))


def _generator() -> Any:
    """Keras' own generator: always the same one, because compiled steps hold on to it, also after a recipe that called
    `keras.utils.set_random_seed`, which makes Keras forget it."""
    from keras.src.backend.common import global_state
    from keras.src.random import seed_generator

    if _Slate.generator is None:
        _Slate.generator = seed_generator.global_seed_generator()
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, _Slate.generator)
    return _Slate.generator


def adopt(made: Any) -> Any:
    """What a recipe returned, as a Trainable if it is a Keras model.

    Raises:
        SpecError: it is one that cannot be trained here; says why and what to do.
    """
    if isinstance(made, keras.Model):
        if int(keras.__version__.partition(".")[0]) < 3:
            raise SpecError(f"Keras {keras.__version__} is installed, Keras 3 is needed: pip install 'keras>=3.10'")
        from hopyard.frameworks.keras.model import Model

        return Model(made)
    return made


def net(trainable: Any) -> keras.Model:
    """The model of a `Model`."""
    model: keras.Model = trainable.model
    return model


def save_net(model: keras.Model, path: str | Path) -> None:
    """Write Keras' own format, under a temporary name first: `path` is there whole or not at all."""
    target = Path(path)
    part = target.with_name(f".part-{os.getpid()}-{target.name}")
    try:
        try:
            model.save(part)
        except NotImplementedError as error:
            raise SpecError(
                f"{type(model).__name__} cannot be saved as {target.name}: {error}. Give it get_config(), or take "
                "model() and save its weights"
            ) from error
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def load_net(model: keras.Model, path: str | Path) -> keras.Model:
    """Read the variables that `save_net` wrote into a model of the same build."""
    model.load_weights(path)
    return model
