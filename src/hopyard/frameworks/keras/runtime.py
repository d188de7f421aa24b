"""Keras' `Runtime`: what a recipe may return, the settings before it is called, seeds, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np

from hopyard.errors import SpecError
from hopyard.frameworks.frozen import KEY
from hopyard.frameworks.keras import internals
from hopyard.frameworks.tree import on_host
from hopyard.ports.frameworks import Export, ModelFile, Runtime
from hopyard.ports.states import Tree
from hopyard.system.scratch import scratch_folder

FILE, PARTS = "model.keras", ("model", "buffers")


def prepare() -> None:
    """Imports in advance what recipes use."""
    import hopyard.frameworks.keras.model  # noqa: F401


def versions() -> dict[str, Any]:
    """Return the versions and settings that digests may depend on."""
    return {"keras": str(keras.__version__), "keras_backend": keras.backend.backend()}


class _Initial:
    """Keras' global settings as they were before the first recipe, and the generator of `keras.random` that compiled
    steps draw from; changed by `before_recipe` and `_generator` only."""

    settings: tuple[Any, ...] | None = None
    generator: Any = None


def before_recipe(seed: int, named: bool) -> None:
    """Resets Keras before a recipe is called: names count from one again (`auc`, not `auc_3`), the dtype policy and
    other settings are as before the first recipe, random numbers without a seed of their own begin at `seed`."""
    if _Initial.settings is None:
        _Initial.settings = internals.global_settings()
    internals.apply_settings(_Initial.settings)
    internals.set_name_counts({})
    reseed(seed)


def snapshot() -> Any:
    """Return what a run changes in this process."""
    generator = internals.existing_generator()
    state = None if generator is None else np.array(on_host(generator.state))
    return internals.global_settings(), internals.name_counts(), state


def restore(before: Any) -> None:
    """Restores what `snapshot` returned."""
    if before is None:  # the recipe imported Keras
        if _Initial.settings is not None:
            internals.apply_settings(_Initial.settings)
        return
    settings, counts, state = before
    internals.apply_settings(settings)
    internals.set_name_counts(counts)
    if state is not None:
        _generator().state.assign(state)


def reseed(seed: int) -> None:
    """Restarts the generator of `keras.random`, which is used where no seed is set."""
    state = _generator().state
    state.assign(np.array([seed & 0x7FFFFFFF, 0], dtype=state.dtype))


def _generator() -> Any:
    """Return Keras' own generator: always the same one, because compiled steps refer to it, also after a recipe that
    called `keras.utils.set_random_seed`, which makes Keras forget it."""
    if _Initial.generator is None:
        _Initial.generator = internals.global_generator()
    internals.set_global_generator(_Initial.generator)
    return _Initial.generator


def adopt(value: Any) -> Any:
    """Return the result of a recipe, as a Trainable if it is a Keras model.

    Raises:
        SpecError: it is a Keras model that cannot be trained here; says why and what to do.
    """
    if isinstance(value, keras.Model):
        if int(keras.__version__.partition(".")[0]) < 3:
            raise SpecError(f"Keras must be version 3, {keras.__version__} is installed: pip install 'keras>=3.10'")
        from hopyard.frameworks.keras.model import Model

        return Model(value)
    return value


def parameters(value: Any) -> list[Any]:
    """Return the variables of a model that training changes; [] for anything else."""
    return list(value.trainable_variables) if isinstance(value, keras.Model) else []


def model(trainable: Any) -> keras.Model:
    """Return the model of a `Model`."""
    result: keras.Model = trainable.model
    return result


def save(trainable: Any, path: Path) -> None:
    """Write Keras' own format.

    Raises:
        SpecError: Keras cannot write the model: a class of it does not say, by `get_config`, with what it was made, or
            says it with objects that are not plain. (Keras writes with what each layer was made.)
    """
    try:
        trainable.model.save(path)
    except OSError:
        raise
    except Exception as error:
        reason = " ".join(str(error).partition("Example:")[0].split()).rstrip(".") or type(error).__name__
        raise SpecError(
            f"{type(trainable.model).__name__} cannot be saved as {path.name}: {reason}. Give its class a get_config() "
            "of plain values, and define classes of torch modules in it at the top of a module; or take model(), and "
            "save its weights"
        ) from error


def rest(trainable: Any, other: Any, content: bytes) -> Tree:
    """Return what the file does not restore, such as seed generators and buffers of torch modules that are not
    persistent: part of the State → position → values."""
    load(other, content, {})
    here, there = trainable.whole(), other.whole()
    lost = {
        part: {
            number: value
            for number, (value, other) in enumerate(zip(here[part], there[part], strict=True))
            if not np.array_equal(getattr(value, "array", value), getattr(other, "array", other))
        }
        for part in PARTS
        if part in here
    }
    return {part: values for part, values in lost.items() if values}


def load(trainable: Any, content: bytes, rest: Tree) -> None:
    """Copy a file of `save`, and its rest, into a model of the same build."""
    with scratch_folder("model") as folder:
        (folder / FILE).write_bytes(content)
        trainable.model.load_weights(folder / FILE)
    whole = trainable.whole()
    for part, values in rest.items():
        for number, value in values.items():
            whole[part][number] = value
    trainable.load_whole(whole)


def exports() -> dict[str, Export]:
    """Return the formats that models are exported in, by the end of a path."""
    from hopyard.frameworks.keras.export import formats

    return {".keras": Export(lambda trainable, path, inputs: save(trainable, path)), **formats()}


RUNTIME = Runtime(
    versions,
    prepare=prepare,
    reseed=reseed,
    before_recipe=before_recipe,
    adopt=adopt,
    parameters=parameters,
    snapshot=snapshot,
    restore=restore,
    file=ModelFile(FILE, (*PARTS, KEY), model, save, rest, load),
    exports=exports,
)
