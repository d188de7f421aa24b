"""A model in a folder: `config.json` (configuration, metrics, encoding), the weights (`model.safetensors`, or Keras'
`model.keras`), what its State has beside them (`state.safetensors`), the pickled recipe and, where the training data
had one, the pickled transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from hopyard.checks import flag
from hopyard.core.runs.records import TrialRecord
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.encoding.transform import Transform
from hopyard.data.manifest import Labels
from hopyard.driver.export import export
from hopyard.driver.pickling import PYTHON, dump, unpickle
from hopyard.driver.saved_files import (
    CONFIG,
    OWN,
    RECIPE,
    STATE,
    TRANSFORM,
    WEIGHTS,
    Saved,
    parse,
    place,
    read,
    replacing_files,
    uploading_files,
)
from hopyard.errors import HopyardError, RunDirectoryError, SpecError
from hopyard.filesystems import line_of
from hopyard.frameworks import framework_of, model_file, quiet, runtime
from hopyard.frameworks.tree import capture, lower, restore
from hopyard.ports.frameworks import ModelFile
from hopyard.ports.states import Tree
from hopyard.spec import Config, copied
from hopyard.store.journal import write_whole
from hopyard.store.tree import decode, encode
from hopyard.text import escaped, shown
from hopyard.training.build import Built, Plan, build, undisturbed
from hopyard.training.predictor import Predictor
from hopyard.training.recipes import recipe_of

OWN_FILE = ModelFile(
    WEIGHTS,
    (),
    model=lambda trainable: trainable,
    save=lambda trainable, path: write_whole(path, bytes(encode(capture(trainable)))),
    rest=lambda trainable, other, content: {},
    load=lambda trainable, content, rest: restore(trainable, decode(content)),
)
"""How a Trainable of the user's own is saved: its whole State."""


def save(
    directory: Path | str, plan: Plan, record: TrialRecord, epoch: int | None, predictor: Predictor, base: bool = True
) -> Path | str:
    """Write the folder; the files of another saved model there are replaced, all at once.

    Args:
        directory: its path or URL, made when missing.
        plan: recipe and data.
        record: the trial.
        epoch: the epoch at whose end the model had its weights, from 1; None: they are from the middle of one.
        predictor: the model.
        base: whether its frozen parameters are written too.

    Raises:
        SpecError: what is written does not give the model back: a second build, with the files loaded into it, differs.
            Models of this framework are written with their frozen parameters only.
        RunDirectoryError: the folder is somebody else's, or cannot be written.
        ResourceError: there is no room. The folder is in all these cases as it was.
    """
    if (suffix := Path(directory).suffix) in (".keras", ".h5", ".safetensors", ".pt"):
        raise SpecError(
            f"save({str(directory)!r}): a folder is written, with {CONFIG}, the weights and the recipe; give it a name "
            f"without {suffix}"
        )
    metrics: dict[str, float | None] = {} if epoch is None else dict(record.history.get(epoch - 1, {}))
    trainable = predictor.built.trainable
    framework = framework_of(trainable) or OWN
    file = _file(framework)
    if not base:
        if file.without_base is None:
            raise SpecError(
                "save(base=False): frozen parameters can be left out of models of torch only, and this one is "
                f"{'a Trainable of your own' if framework == OWN else f'of {framework}'}: save it whole"
            )
        file = file.without_base
    writing = uploading_files(directory) if isinstance(directory, str) else replacing_files(directory)
    with writing as part:
        files = _write_model(part, file, trainable, lambda: _built(replace(plan, threads=0), record.id, record.config))
        functions = {RECIPE: recipe_of(plan.recipe, record.id)}
        if predictor.tracker is not None:
            functions[TRANSFORM] = predictor.tracker.transform
        for name, function in functions.items():
            files[name] = _pickled(name, function)
            write_whole(part / name, files[name], private=True)
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
            digests={name: blake3(content).hexdigest() for name, content in files.items()},
        )
        write_whole(part / CONFIG, msgspec.json.format(msgspec.json.encode(about), indent=1) + b"\n")
    return directory


def _file(framework: str) -> ModelFile:
    return OWN_FILE if framework == OWN else model_file(framework)


def _write_model(folder: Path, file: ModelFile, trainable: Any, rebuild: Callable[[], Built]) -> dict[str, bytes]:
    """Write the files with the State of a model; return name → content.

    Raises:
        SpecError: another build into which they are loaded is not the same model.
    """
    file.save(trainable, folder / file.name)
    files = {file.name: (folder / file.name).read_bytes()}
    try:
        with undisturbed():
            other = rebuild().trainable
            if rest := file.rest(trainable, other, files[file.name]):
                files[STATE] = bytes(encode(lower(rest)))
                write_whole(folder / STATE, files[STATE])
            _restore(other, file, files)
            place = _difference(_parts(file, trainable), _parts(file, other))
    except (HopyardError, OSError):
        raise
    except Exception as error:
        raise SpecError(
            f"save: the model cannot be built and loaded again: {line_of(error)}; nothing was saved"
        ) from error
    if place:
        raise SpecError(
            f"save: a model that the recipe builds, with what was saved loaded into it, differs from the trained one "
            f"in {place}; nothing was saved. The recipe must build the same for the same config, and what a part of "
            "the model gives as its state it must take back"
        )
    return files


def _parts(file: ModelFile, trainable: Any) -> Tree:
    """Return what the State of a model has on which outputs, loss and metrics depend."""
    tree = capture(trainable)
    return {name: tree[name] for name in file.parts if name in tree} if file.parts else tree


def _difference(one: Tree, other: Tree, place: str = "State") -> str:
    """Return where two States differ first, such as "State['module']['buffers']"; "": they are equal, bit for bit."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        pairs = [(key, one[key], other[key]) for key in one]
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = [(number, *pair) for number, pair in enumerate(zip(one, other, strict=True))]
    else:
        return "" if encode(one) == encode(other) else place
    return next(filter(None, (_difference(a, b, f"{place}[{key!r}]") for key, a, b in pairs)), "")


def _pickled(name: str, function: Callable[..., Any]) -> bytes:
    what = Path(name).stem
    return dump(function, what, f"the {what}")


def _built(plan: Plan, trial: int, config: Config) -> Built:
    """Build a model. Raises SpecError with what the recipe raises as its cause."""
    try:
        return build(plan, trial, config)
    except HopyardError:
        raise
    except Exception as error:
        raise SpecError(
            f"recipe: {line_of(error)}; it must build the model that is saved, as it does in the run"
        ) from error


def _restore(trainable: Any, file: ModelFile, files: Mapping[str, bytes]) -> None:
    """Load the files of a saved model into a model that was just built."""
    file.load(trainable, files[file.name], decode(files[STATE]) if STATE in files else {})


def predictor_of(
    files: Mapping[str, bytes],
    root: Path | str = "the saved model",
    recipe: Callable[..., Any] | None = None,
    transform: Transform | None = None,
    threads: int = 0,
) -> Predictor:
    """Return what predicts from the files of a saved model. Its net is built when it is first needed.

    Args:
        files: name → content.
        root: where they are from, for messages.
        recipe, transform: used in place of the pickled ones.
        threads: of its framework; 0: unchanged.

    Raises:
        RunDirectoryError: the transform does not load. The first use of the net raises it where the recipe does not
            load or the weights do not fit what it builds, and SpecError where the recipe raises.
    """
    about = parse(files[CONFIG])
    if transform is None and TRANSFORM in files:
        transform = unpickle(files[TRANSFORM], f"{root}/{TRANSFORM}", about.python, "the transform")

    def net() -> Built:
        quiet(about.backend)
        function = unpickle(files[RECIPE], f"{root}/{RECIPE}", about.python) if recipe is None else recipe
        built = _built(Plan(function, about.manifest, about.spec, threads=threads), about.trial, about.config)
        try:
            _restore(built.trainable, _file(about.framework), files)
        except Exception as error:
            raise RunDirectoryError(
                f"{root}: its weights do not fit the model that the recipe builds ({type(error).__name__}: {error}); "
                "give the recipe of the run"
            ) from error
        return built

    return Predictor(about.manifest, None if transform is None else RowTracker(transform), net)


class SavedModel:
    """A model that `run.best.save(directory)` wrote, with the encoding and the transform of its training data.

    Attributes:
        directory: its folder, or the URL of it.
        trial: the number of its trial.
        config: the configuration of that trial.
        epoch: the epoch at whose end it had these weights, from 1; None: they are from the middle of one.
        metrics: those of that epoch.
    """

    def __init__(self, directory: Path | str, about: Saved, predictor: Predictor, given: Mapping[str, Any]) -> None:
        self._about = about
        self._predictor = predictor
        self._given = given
        """Name of a pickle → what the user gave in its place."""
        self.directory: Path | str = directory if isinstance(directory, str) else directory.absolute()
        self.trial = about.trial
        self.config: Config = copied(about.config)
        self.epoch = about.epoch
        self.metrics = dict(about.metrics)

    def __repr__(self) -> str:
        return escaped(f"<SavedModel {self.directory}: trial {self.trial}, epoch {self.epoch}, {self.config}>")

    @property
    def classes(self) -> Labels:
        """The values of the label by the number that the model has for each, where encode= made numbers of them: the
        class of `predict(data).argmax(1)`. A dict from label to these, where there are several labels; else None."""
        return self._predictor.manifest.label_values

    def model(self) -> Any:
        """The model itself: a torch module in evaluation mode, a keras.Model, or the recipe's own Trainable. Each call
        returns the same object, which `predict` uses too."""
        return self._predictor.model()

    def predict(self, data: Any) -> Any:
        """The model's outputs, one for each row of `data`, in its order: as `Trial.predict`, from the folder alone.

        Args:
            data: a Dataset, rows of pandas or Arrow, the path of Parquet files, arrays, a dict of arrays, or
                a list of dicts.

        Returns:
            Array of shape (rows, …), or a dict of such.

        Raises:
            DataError: the rows cannot be encoded as those of the training were.
            RunDirectoryError: the transform was not opened, because recipe= was given.
        """
        self._require_transform()
        return self._predictor.predict(data)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Loss and metrics over all rows of `data`, which has the label too (of arrays `{"inputs": x, "targets": y}`):
        as `Trial.evaluate`, from the folder alone. Raises as `predict`, and SpecError where the label is not there."""
        self._require_transform()
        return self._predictor.evaluate(data)

    def export(self, path: str | Path) -> Path:
        """Write the model in a format that runs without the recipe, with the encoding of its rows beside it: as
        `Trial.export`, from the folder alone."""
        self._require_transform()
        return export(path, self._predictor)

    def files(self) -> dict[str, bytes]:
        """Return name → content of the files of such a folder, with the recipe and the transform that are used here.

        Raises:
            RunDirectoryError: the transform was not opened, because recipe= was given; files are gone, or another
                model was saved there since.
        """
        self._require_transform()
        about, files = read(self.directory, trust=True, without=self._given.keys())  # digests say that it was opened
        if about != self._about:
            raise RunDirectoryError(f"{self.directory}: another model was saved here since; hy.load_model loads it")
        files[CONFIG] = msgspec.json.encode(msgspec.structs.replace(about, python=PYTHON, digests={}))
        return files | {name: _pickled(name, value) for name, value in self._given.items()}

    def _require_transform(self) -> None:
        if self._predictor.tracker is None and TRANSFORM in self._about.digests:
            raise RunDirectoryError(
                f"{self.directory}/{TRANSFORM}: rows go through this pickled transform, which was not opened, as "
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
        directory: the folder, or its URL.
        recipe: used in place of the pickled one; then no pickle of the folder is opened: opening a pickle runs code,
            so give it for folders from people you do not trust.
        transform: used in place of the pickled one, where the training data had one.
        trust: open pickles even where others than this user and root may write them, which cannot be seen at a URL.

    Raises:
        RunDirectoryError: not such a folder, or of another Python version; others may write it; it was saved with
            base=False, and the recipe builds other frozen parameters.
        SpecError: the recipe raised; the cause of the SpecError is what it raised.
    """
    root = place("directory", directory)
    trust = flag("trust", trust)
    if transform is not None and not callable(transform):
        raise SpecError(f"transform must be a function of a record batch, or None, got {shown(transform)}")
    given = {name: value for name, value in ((RECIPE, recipe), (TRANSFORM, transform)) if value is not None}
    about, files = read(root, trust, without=given if recipe is None else (RECIPE, TRANSFORM))
    quiet(about.backend)  # a transform may import Keras too
    predictor = predictor_of(files, root, recipe, transform)
    with undisturbed():
        predictor.built  # noqa: B018 - a model that cannot be built is an error here
    return SavedModel(root, about, predictor, given)
