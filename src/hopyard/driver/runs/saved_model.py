"""A model in a folder: `config.json` (configuration, metrics, encoding), the weights (`model.safetensors`, or Keras'
`model.keras`), the pickled recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hopyard.checks import flag, path
from hopyard.core.runs.records import TrialRecord
from hopyard.data.manifest import Manifest
from hopyard.driver.pickling import PYTHON, dump, load
from hopyard.errors import RunDirectoryError, SpecError
from hopyard.frameworks import framework_of, model_file, quiet, runtime
from hopyard.frameworks.tree import capture, restore
from hopyard.spec import Config, RunSpec
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout
from hopyard.store.tree import decode, encode
from hopyard.training.build import Built, Plan, build, undisturbed
from hopyard.training.recipes import recipe_of

CONFIG, WEIGHTS, RECIPE = "config.json", "model.safetensors", "recipe.pkl"
OWN = "trainable"
"""Stands for the framework when the recipe returned a Trainable of the user's own."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `config.json`."""

    format: int = 1
    python: str
    trial: int
    config: Config
    epoch: int | None
    metrics: dict[str, float | None]
    framework: str
    backend: str = ""
    """Keras' backend."""
    spec: RunSpec
    manifest: Manifest


def save(directory: Path, plan: Plan, record: TrialRecord, epoch: int | None, built: Built) -> Path:
    """Write the folder; the files of another saved model there are replaced.

    Args:
        directory: made when missing.
        plan: recipe and data.
        record: the trial.
        epoch: the epoch at whose end `built` had its weights; None: they are from the middle of one.
        built: the model.
    """
    if directory.suffix in (".keras", ".h5", ".safetensors", ".pt"):
        raise SpecError(
            f"save({str(directory)!r}): a folder is written, with {CONFIG}, the weights and the recipe; give it a name "
            f"without {directory.suffix}"
        )
    _require_own(directory)
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    metrics: dict[str, float | None] = dict(record.history.get(-1 if epoch is None else epoch, {}))
    framework = framework_of(built.trainable)
    if framework is not None:
        file = model_file(framework)
        file.save(file.model(built.trainable), directory / file.name)
    else:  # a Trainable of the user's own: its whole State
        framework = OWN
        (directory / WEIGHTS).write_bytes(encode(capture(built.trainable)))
    write_whole(directory / RECIPE, dump(recipe_of(plan.recipe, record.id), "recipe"), private=True)
    about = Saved(
        python=PYTHON,
        trial=record.id,
        config=record.config,
        epoch=epoch,
        metrics=metrics,
        framework=framework,
        backend="" if framework == OWN else runtime(framework).versions().get("keras_backend", ""),
        spec=plan.spec,
        manifest=plan.manifest,
    )
    (directory / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")
    return directory


def _require_own(directory: Path) -> None:
    """Raise RunDirectoryError where files that `save` would replace are those of a run or a program, or of somebody
    else."""
    layout = Layout(directory)
    if layout.exists or layout.program.exists():
        raise RunDirectoryError(f"{directory}: holds a run or a program, which this would damage: give another folder")
    config = directory / CONFIG
    try:
        msgspec.json.decode(config.read_bytes(), type=Saved)
    except FileNotFoundError:
        others = [name for name in (RECIPE, WEIGHTS) if (directory / name).exists()]
        if others:
            raise RunDirectoryError(
                f"{directory}: {others[0]} there is not of a saved model, and would be replaced: give another folder"
            ) from None
    except msgspec.MsgspecError:
        raise RunDirectoryError(
            f"{config}: not written by run.best.save(…), and would be replaced: give another folder"
        ) from None


def load_model(directory: str | Path, recipe: Callable[..., Any] | None = None, *, trust: bool = False) -> Any:
    """The model that `save` wrote: a torch module in evaluation mode, a keras.Model, or the recipe's own Trainable.

    Args:
        directory: the folder.
        recipe: used in place of the pickled one, which then is not loaded: loading a pickle runs code, so give it for
            folders from people you do not trust.
        trust: load the pickle even where others than this user and root may write it.

    Raises:
        RunDirectoryError: not such a folder, or of another Python version; others may write it.
    """
    root = Path(path("directory", directory))
    flag("trust", trust)
    try:
        about = msgspec.json.decode((root / CONFIG).read_bytes(), type=Saved)
    except FileNotFoundError:
        raise RunDirectoryError(f"{root}: no {CONFIG} here; it must be a folder that run.best.save(…) wrote") from None
    except msgspec.MsgspecError as error:
        raise RunDirectoryError(f"{root / CONFIG}: not written by run.best.save(…): {error}") from error
    quiet(about.backend)
    if recipe is None:
        recipe = load(root / RECIPE, about.python, trust)
    assert recipe is not None
    with undisturbed():
        built = build(Plan(recipe, about.manifest, about.spec, threads=0), about.trial, about.config)
    if about.framework != OWN:
        file = model_file(about.framework)
        return file.load(file.model(built.trainable), root / file.name)
    restore(built.trainable, decode((root / WEIGHTS).read_bytes()))
    return built.trainable
