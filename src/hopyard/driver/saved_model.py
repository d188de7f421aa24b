"""A model in a folder: `config.json` (configuration, metrics, encoding), the weights (`model.safetensors`, or Keras'
`model.keras`), the pickled recipe and, where the training data had one, the pickled transform."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.checks import flag, path
from hopyard.core.runs.records import TrialRecord
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.encoding.transform import Transform
from hopyard.data.manifest import Labels, Manifest
from hopyard.driver.pickling import PYTHON, dump, load
from hopyard.errors import HopyardError, RunDirectoryError, SpecError
from hopyard.filesystems import line_of
from hopyard.frameworks import framework_of, model_file, quiet, runtime
from hopyard.frameworks.tree import capture, restore
from hopyard.spec import Config, RunSpec
from hopyard.store.journal import write_whole
from hopyard.store.layout import Layout
from hopyard.store.tree import decode, encode
from hopyard.text import escaped, shown
from hopyard.training.build import Plan, build, undisturbed
from hopyard.training.recipes import recipe_of
from hopyard.training.trained import TrainedModel

CONFIG, WEIGHTS, RECIPE, TRANSFORM = "config.json", "model.safetensors", "recipe.pkl", "transform.pkl"
OWN = "trainable"
"""Stands for the framework when the recipe returned a Trainable of the user's own."""
FORMAT = 2
"""Version of the folder. In version 1 epochs counted from 0, and there was no transform."""


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `config.json`."""

    format: int = FORMAT
    python: str
    trial: int
    config: Config
    epoch: int | None
    """The epoch at whose end the weights were these, from 1; None: they are from the middle of one."""
    metrics: dict[str, float | None]
    framework: str
    backend: str = ""
    """Keras' backend."""
    spec: RunSpec
    manifest: Manifest
    digests: dict[str, str] = {}
    """File → BLAKE3 of its content, in hexadecimal; earlier versions wrote none."""


def parse(content: bytes, name: str | Path = CONFIG) -> Saved:
    """Return the contents of a `config.json`, of this or an earlier version.

    Raises:
        RunDirectoryError: `save` did not write it, or that of a later version did.
    """
    try:
        about = msgspec.json.decode(content, type=Saved)
    except msgspec.MsgspecError as error:
        raise RunDirectoryError(f"{name}: not written by run.best.save(…): {error}") from error
    if about.format > FORMAT:
        raise RunDirectoryError(
            f"{name}: a saved model of version {about.format}, this Hopyard reads up to {FORMAT}: upgrade it"
        )
    if about.format < FORMAT and about.epoch is not None:
        about = msgspec.structs.replace(about, epoch=about.epoch + 1)
    return about


def save(directory: Path, plan: Plan, record: TrialRecord, epoch: int | None, trained: TrainedModel) -> Path:
    """Write the folder; the files of another saved model there are replaced.

    Args:
        directory: made when missing.
        plan: recipe and data.
        record: the trial.
        epoch: the epoch at whose end the model had its weights, from 1; None: they are from the middle of one.
        trained: the model.
    """
    if directory.suffix in (".keras", ".h5", ".safetensors", ".pt"):
        raise SpecError(
            f"save({str(directory)!r}): a folder is written, with {CONFIG}, the weights and the recipe; give it a name "
            f"without {directory.suffix}"
        )
    try:
        _require_own(directory)
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise RunDirectoryError(
            f"save({shown(str(directory))}): {error.strerror}; give a folder that this user may write to"
        ) from error
    metrics: dict[str, float | None] = {} if epoch is None else dict(record.history.get(epoch - 1, {}))
    framework = framework_of(trained.built.trainable)
    if framework is not None:
        file = model_file(framework)
        file.save(trained.model(), directory / file.name)
    else:  # a Trainable of the user's own: its whole State
        framework = OWN
        (directory / WEIGHTS).write_bytes(encode(capture(trained.built.trainable)))
    write_whole(directory / RECIPE, dump(recipe_of(plan.recipe, record.id), "recipe"), private=True)
    if trained.tracker is None:
        (directory / TRANSFORM).unlink(missing_ok=True)
    else:
        write_whole(directory / TRANSFORM, _dumped(trained.tracker), private=True)
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
        digests={
            name: blake3((directory / name).read_bytes()).hexdigest()
            for name in (weights_name(framework), TRANSFORM)
            if (directory / name).exists()
        },
    )
    (directory / CONFIG).write_bytes(msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")
    return directory


def _dumped(tracker: RowTracker) -> bytes:
    return dump(tracker.transform, "transform", "the transform")


def weights_name(framework: str) -> str:
    """Return the name of the file with the weights of a model of this framework."""
    return WEIGHTS if framework == OWN else model_file(framework).name


def _require_own(directory: Path) -> None:
    """Raise RunDirectoryError where files that `save` would replace are those of a run or a program, or of somebody
    else."""
    layout = Layout(directory)
    if layout.exists or layout.program.exists():
        raise RunDirectoryError(f"{directory}: holds a run or a program, which this would damage: give another folder")
    config = directory / CONFIG
    try:
        parse(config.read_bytes())
    except FileNotFoundError:
        others = [name for name in (RECIPE, WEIGHTS, TRANSFORM) if (directory / name).exists()]
        if others:
            raise RunDirectoryError(
                f"{directory}: {others[0]} there is not of a saved model, and would be replaced: give another folder"
            ) from None
    except RunDirectoryError:
        raise RunDirectoryError(
            f"{config}: not written by run.best.save(…), and would be replaced: give another folder"
        ) from None


class SavedModel:
    """A model that `run.best.save(directory)` wrote, with the encoding and the transform of its training data.

    Attributes:
        directory: its folder.
        trial: the number of its trial.
        config: the configuration of that trial.
        epoch: the epoch at whose end it had these weights, from 1; None: they are from the middle of one.
        metrics: those of that epoch.
    """

    def __init__(
        self, directory: Path, about: Saved, recipe: Callable[..., Any], trained: TrainedModel, unopened: bool
    ) -> None:
        self._about = about
        self._recipe = recipe
        self._trained = trained
        self._unopened = unopened
        """Whether there is a transform, which was not opened."""
        self.directory = directory.absolute()
        self.trial = about.trial
        self.config: Config = about.config
        self.epoch = about.epoch
        self.metrics = about.metrics

    def __repr__(self) -> str:
        return escaped(f"<SavedModel {self.directory}: trial {self.trial}, epoch {self.epoch}, {self.config}>")

    @property
    def classes(self) -> Labels:
        """The values of the label by the number that the model has for each, where encode= made numbers of them: the
        class of `predict(data).argmax(1)`. A dict from label to these, where there are several labels; else None."""
        return self._trained.manifest.label_values

    def model(self) -> Any:
        """The model itself: a torch module in evaluation mode, a keras.Model, or the recipe's own Trainable. Each call
        returns the same object, which `predict` uses too."""
        return self._trained.model()

    def predict(self, data: Any) -> Any:
        """The model's outputs, one for each row of `data`, in its order: as `Trial.predict`, from the folder alone.

        Args:
            data: a Dataset, a pandas DataFrame, an Arrow table, the path of Parquet files, arrays, a dict of arrays, or
                a list of dicts.

        Returns:
            Array of shape (rows, …), or a dict of such.

        Raises:
            DataError: the rows cannot be encoded as those of the training were.
            RunDirectoryError: the transform was not opened, because recipe= was given.
        """
        self._require_transform()
        return self._trained.predict(data)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Loss and metrics over all rows of `data`, which has the label too (of arrays `{"inputs": x, "targets": y}`):
        as `Trial.evaluate`, from the folder alone. Raises as `predict`, and SpecError where the label is not there."""
        self._require_transform()
        return self._trained.evaluate(data)

    def files(self) -> dict[str, bytes]:
        """Return name → content of the files of such a folder, with the recipe and the transform that are used here.

        Raises:
            RunDirectoryError: the transform was not opened, because recipe= was given.
            OSError: the weights are gone.
        """
        self._require_transform()
        if parse((self.directory / CONFIG).read_bytes(), self.directory / CONFIG) != self._about:
            raise RunDirectoryError(f"{self.directory}: another model was saved here since; hy.load_model loads it")
        weights = weights_name(self._about.framework)
        files = {
            CONFIG: msgspec.json.encode(msgspec.structs.replace(self._about, format=FORMAT, python=PYTHON, digests={})),
            weights: (self.directory / weights).read_bytes(),
            RECIPE: dump(self._recipe, "recipe"),
        }
        if self._trained.tracker is not None:
            files[TRANSFORM] = _dumped(self._trained.tracker)
        return files

    def _require_transform(self) -> None:
        if self._unopened:
            raise RunDirectoryError(
                f"{self.directory / TRANSFORM}: rows go through this pickled transform, which was not opened, as "
                "recipe= was given: give hy.load_model(…, transform=…) too"
            )


def load_model(
    directory: str | Path,
    recipe: Callable[..., Any] | None = None,
    *,
    transform: Transform | None = None,
    trust: bool = False,
) -> SavedModel:
    """Open the model that `run.best.save(directory)` wrote, to predict, to evaluate, or to have the model itself.

    Args:
        directory: the folder.
        recipe: used in place of the pickled one; then no pickle of the folder is opened: opening a pickle runs code,
            so give it for folders from people you do not trust.
        transform: used in place of the pickled one, where the training data had one.
        trust: open pickles even where others than this user and root may write them.

    Raises:
        RunDirectoryError: not such a folder, or of another Python version; others may write it.
        SpecError: the recipe raised; the cause of the SpecError is what it raised.
    """
    root = Path(path("directory", directory))
    trust = flag("trust", trust)
    if transform is not None and not callable(transform):
        raise SpecError(f"transform must be a function of a record batch, or None, got {shown(transform)}")
    try:
        about = parse((root / CONFIG).read_bytes(), root / CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        how = "; this is a run directory: hopyard.load(…) opens it, and .best.model() is its model"
        raise RunDirectoryError(
            f"{root}: no {CONFIG} here; it must be a folder that run.best.save(…) wrote"
            + (how if Layout(root).exists else "")
        ) from None
    require_intact(root, about, unused=[TRANSFORM] if transform is not None or recipe is not None else [])
    quiet(about.backend)
    unopened = transform is None and (root / TRANSFORM).exists()
    if recipe is None:
        recipe = load(root / RECIPE, about.python, trust)
        if unopened:
            transform, unopened = load(root / TRANSFORM, about.python, trust, "the transform"), False
    assert recipe is not None
    try:
        with undisturbed():
            built = build(Plan(recipe, about.manifest, about.spec, threads=0), about.trial, about.config)
    except HopyardError:
        raise
    except Exception as error:
        raise SpecError(
            f"recipe: {line_of(error)}; it must build the model that was saved in {root}, as it does in the run"
        ) from error
    try:
        restore_weights(built.trainable, about.framework, root)
    except Exception as error:
        raise RunDirectoryError(
            f"{root}: its weights do not fit the model that the recipe builds ({type(error).__name__}: {error}); "
            "give the recipe of the run"
        ) from error
    tracker = None if transform is None else RowTracker(transform)
    return SavedModel(root, about, recipe, TrainedModel(built, about.manifest, tracker), unopened)


def require_intact(root: Path, about: Saved, unused: Sequence[str] = ()) -> None:
    """Raise RunDirectoryError where a file is gone or was changed: a model without its transform, or with another's
    weights, would predict something else."""
    for name, digest in about.digests.items():
        if name in unused:
            continue
        try:
            changed = blake3((root / name).read_bytes()).hexdigest() != digest
        except OSError as error:
            raise RunDirectoryError(f"{root / name}: {error.strerror}; copy or save the whole folder again") from error
        if changed:
            raise RunDirectoryError(
                f"{root / name}: changed since run.best.save(…) wrote it; copy or save the whole folder again"
            )


def restore_weights(trainable: Any, framework: str, root: Path) -> None:
    """Give a model that was just built the weights of the saved model in `root`."""
    if framework == OWN:
        restore(trainable, decode((root / WEIGHTS).read_bytes()))
    else:
        file = model_file(framework)
        file.load(file.model(trainable), root / file.name)
