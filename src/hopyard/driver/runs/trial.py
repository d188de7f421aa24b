"""The user's object of one trial: how it went, and its model; and tables of trials, as data frames of pandas."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

from hopyard.checks import flag, one_of
from hopyard.core.runs.records import TrialRecord
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import Labels, Manifest
from hopyard.data.new_rows import WITH_LABEL
from hopyard.driver.export import export
from hopyard.driver.saved_files import place
from hopyard.driver.saved_model import save
from hopyard.errors import Inexact, SpecError, TrialFailed, UsageError
from hopyard.frameworks.tree import restore
from hopyard.ports.states import Store
from hopyard.spec import Config, RunSpec, copied
from hopyard.store.states import address
from hopyard.store.tree import decode, digest
from hopyard.text import escaped, html_table, shell_command, shown
from hopyard.training.build import Plan, build, undisturbed
from hopyard.training.predictor import Predictor
from hopyard.training.recipes import assigned


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a run's models come from."""

    plan: Plan
    store: Store
    url: str
    """URL of the store."""
    directory: Path
    """Run directory."""
    tracker: RowTracker | None = None
    """Runs the data's transform, and remembers from one call to the next how it treats rows; None: there is none."""


class Trial:
    """One trial of a run. Epochs count from 1.

    Attributes:
        id: its number, from 0.
        config: its configuration.
        status: "waiting", "running", "paused" (it waits for a decision of the search), "completed", "stopped" (the
            search ended it) or "failed"; the run's, where the run ended before the trial.
        epoch: the epoch with the best value of the run's metric (without a metric, the last one); None before any is
            all in.
        metrics: metrics of that epoch; {} before any is all in.
        history: epoch → metrics, for all epochs.
        digest: digest of its final State; "" before it is durable.
        error: why it failed, else "".
        reason: the search's newest decision about it, in words: why it waits, goes on or was stopped.
    """

    def __init__(
        self,
        record: TrialRecord,
        spec: RunSpec,
        models: Callable[[], ModelSource],
        manifest: Callable[[], Manifest],
    ) -> None:
        self._record = record
        self._partitions = spec.partitions
        self._models = models
        self._manifest = manifest
        self.id = record.id
        self.config: Config = copied(record.config)
        self.status: str = record.status
        self.epoch = None if record.best is None else record.best + 1
        self.history = {epoch + 1: dict(values) for epoch, values in sorted(record.history.items())}
        self.metrics = {} if self.epoch is None else dict(self.history[self.epoch])
        self.digest = record.digests.get(spec.steps, "") or record.digest()
        self._seconds: float | None = record.worker_seconds
        self.error = record.error
        self.reason = record.reason

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        return escaped(f"<Trial {self.id} {self.status} {self.config} epoch={self.epoch} {metrics}>")

    def _repr_html_(self) -> str:
        """What a notebook shows: the metrics by epoch."""
        names = sorted({name for values in self.history.values() for name in values})
        lines = [["epoch", *names]]
        lines += [
            [str(n), *(f"{values.get(name, math.nan):.4g}" for name in names)] for n, values in self.history.items()
        ]
        return html_table(repr(self), lines)

    @property
    def seconds(self) -> float:
        """Time that workers spent on it: from each unit's dispatch to its end, what was done again included, and all
        members of a gang counted.

        Raises:
            Inexact: a function of `stop=` asks, with exact=True. (The trial goes on then, with a warning, as it does
                wherever that function raises.)
        """
        if self._seconds is None:
            raise Inexact("trial.seconds differ from run to run, so stop= may not look at them with exact=True")
        return self._seconds

    @property
    def classes(self) -> Labels:
        """The values of the label by the number that a model has for each, where encode= made numbers of them: the
        class of `predict(data).argmax(1)`. A dict from label to these, where there are several labels; else None."""
        return self._manifest().label_values

    def model(self, checkpoint: Literal["best", "last"] = "best") -> Any:
        """The trained model: a torch module in evaluation mode, a compiled keras.Model, or the recipe's own Trainable.

        A trial that begins anew with another recipe has the model of its attempt before, until a State of the new one
        is stored.

        Raises:
            TrialFailed: there is no such model.
        """
        return self._predictor(checkpoint).model()

    def predict(self, data: Any, checkpoint: Literal["best", "last"] = "best") -> Any:
        """The model's outputs, one for each row of `data`, in its order.

        Where the run's data had a transform, rows are numbered while they go through it: outputs stand at the places of
        their rows, also where the transform sorts, and those of rows that it drops are NaN. (Whole numbers and booleans
        are float64 then.) A transform that makes a batch of other columns loses the numbers: a warning says so once,
        and that the order is trusted; where it is seen to change the order, it is refused.

        Args:
            data: a Dataset, rows of pandas or Arrow, the path of Parquet files, arrays, or a dict of arrays.
                The transform and the encoding that the run's own data had are applied (a Dataset with a transform has
                its own in its place); a label is not needed.
            checkpoint: whose weights: of the best epoch, or the last ones.

        Returns:
            Array of shape (rows, …), or a dict of such.

        Raises:
            DataError: the rows cannot be encoded as those of the training were; the transform doubles rows, or drops
                or moves some and loses their numbers.
        """
        return self._predictor(checkpoint).predict(data)

    def evaluate(self, data: Any, checkpoint: Literal["best", "last"] = "best") -> dict[str, float]:
        """Loss and metrics over all rows of `data`, which has the label too; all NaN where the loss is not finite. Of
        arrays that is a dict, `{"inputs": x, "targets": y}` for what was trained on `hy.Dataset.numpy(x, y)`.

        Rows that the transform of the run's data drops are left out; a warning says how many.
        """
        if not isinstance(checkpoint, str):
            raise SpecError(f'checkpoint must be "best" or "last", got {shown(checkpoint)}; {WITH_LABEL}')
        return self._predictor(checkpoint).evaluate(data)

    @overload
    def save(self, directory: Path, checkpoint: Literal["best", "last"] = "best", *, base: bool = True) -> Path: ...

    @overload
    def save(
        self, directory: str, checkpoint: Literal["best", "last"] = "best", *, base: bool = True
    ) -> Path | str: ...

    def save(
        self, directory: str | Path, checkpoint: Literal["best", "last"] = "best", *, base: bool = True
    ) -> Path | str:
        """Write a folder that `hy.load_model` and `hy.spark.predict` read: `config.json`, the weights, what else the
        model's State has, the pickled recipe and, where the data had one, its pickled transform.

        A saved model that is there already is replaced in one step: at any moment, also where this process is killed or
        the disk is full, the old one or the new one is there. Other files are left as they are. A folder in which they
        have names that a saved model needs is refused. At a URL a saved model is not replaced.

        The last weights of a run that was interrupted may be of the middle of an epoch: `config.json` names no epoch
        then, and no metrics.

        Args:
            directory: path or URL of the folder.
            checkpoint: whose weights: of the best epoch, or the last ones.
            base: whether frozen parameters of a torch model are written too. Without them `hy.load_model` needs the
                recipe to find them as it does in the run, and compares their digest.

        Returns:
            The folder: a Path, or the text of its URL.

        Raises:
            TrialFailed: there is no such model.
            SpecError: a second build of the recipe, with the saved files loaded into it, is not the same model.
            RunDirectoryError: the folder is a run's, a program's or somebody else's, or cannot be written.
            ResourceError: there is no room.
        """
        base = flag("base", base)
        predictor = self._predictor(checkpoint)
        epochs, remainder = divmod(self._step(checkpoint), self._partitions)
        epoch = None if remainder else epochs
        return save(place("directory", directory), self._plan, self._record.stored, epoch, predictor, base)

    def export(self, path: str | Path, checkpoint: Literal["best", "last"] = "best") -> Path:
        """Write the model in a format that runs without the recipe, for any number of rows, with the encoding of its
        rows as JSON beside it: `model.onnx` and `model.onnx.json`, or `encoding.json` in a folder.

        The end of the path names the format: ".onnx"; ".pt2", a program of `torch.export`, of models on torch; ".keras"
        of Keras models; a folder ("saved_model/"), which is a SavedModel of TensorFlow, of Keras models on TensorFlow
        and JAX. The outputs are those of `predict`, in the precision of the parameters: autocast is left out. A
        transform of the data is code, and stays behind.

        Raises:
            TrialFailed: there is no such model.
            SpecError: the model has no such format, the framework cannot write it, or there is something at the path.
            UsageError: a package that the format needs is not installed (extra `export`).
            ResourceError: there is no room.
        """
        return export(path, self._predictor(checkpoint))

    @property
    def _plan(self) -> Plan:
        """The run's plan with the recipe of this trial."""
        plan: Plan = self._models().plan
        recipe = self._record.stored.recipe
        recipes = {self.id: recipe} if recipe else {}
        return replace(plan, recipe=assigned(plan.recipe, recipes))

    def _step(self, checkpoint: str) -> int:
        checkpoint, record = one_of("checkpoint", checkpoint, ("best", "last")), self._record.stored
        if checkpoint == "last" or record.best is None:
            return record.durable_step
        return (record.best + 1) * self._partitions

    def _predictor(self, checkpoint: str) -> Predictor:
        """Build the model with the weights of that epoch.

        Raises:
            TrialFailed: no State of it is stored, or it is damaged.
            Inexact: a function of `stop=` asks, with exact=True.
        """
        if self._seconds is None:
            raise Inexact("which States are stored by now depends on time, so stop= may use no models with exact=True")
        step = self._step(checkpoint)
        state = self._record.stored.states.get(step)
        if state is None or not state.digest:
            raise TrialFailed(
                f"trial {self.id} ({self.status}) has no stored model" + (f": {self.error}" if self.error else "")
            )
        source: ModelSource = self._models()
        name = f"trial {self.id}: its State {address(source.url, state.ref)}"
        remedy = f"`{shell_command('resume', source.directory)}` makes it again"
        try:
            data = source.store.get(state.ref)
        except FileNotFoundError:
            raise TrialFailed(f"{name} is gone: another run, or somebody, has deleted it; {remedy}") from None
        if (actual := digest(data)) != state.digest:
            raise TrialFailed(
                f"{name} is damaged: its digest is {actual[:16]}, the journal has {state.digest[:16]}; delete it, then "
                f"{remedy}"
            )
        with undisturbed():
            built = build(replace(self._plan, threads=0), self.id, self._record.config)
        restore(built.trainable, decode(data))
        return Predictor(source.plan.manifest, source.tracker, lambda: built)


def without_time(trial: Trial) -> Trial:
    """Return a trial as a function of `stop=` gets it with exact=True: what depends on time raises."""
    trial._seconds = None
    return trial


def by_trial(trials: Sequence[Trial]) -> Any:
    """Return `Run.to_pandas`."""
    own = {"trial", "status", "epoch", "seconds", "digest", "error", "reason"}
    taken = own.union(*[(*_metrics(t.metrics, own), *_metrics(_last(t), own, "last_")) for t in trials])
    return _frame(
        (
            {"trial": t.id, "status": t.status, "epoch": t.epoch, "seconds": t.seconds},
            _config(t.config, taken),
            _metrics(t.metrics, own),
            _metrics(_last(t), own, "last_"),
            {"digest": t.digest, "error": t.error, "reason": t.reason},
        )
        for t in trials
    )


def by_epoch(trials: Sequence[Trial], seconds: Mapping[int, Mapping[int, float]], config: bool) -> Any:
    """Return `Run.history`; `seconds` has those of each trial and epoch (from 1)."""
    own = {"trial", "epoch", "seconds"}
    taken = own.union(*[_metrics(values, own) for t in trials for values in t.history.values()])
    return _frame(
        (
            {"trial": t.id, "epoch": epoch, "seconds": seconds.get(t.id, {}).get(epoch, 0.0)},
            _config(t.config, taken) if config else {},
            _metrics(values, own),
        )
        for t in trials
        for epoch, values in t.history.items()
    )


def _last(trial: Trial) -> dict[str, float]:
    """Return the metrics of the last epoch that is all in."""
    return trial.history[max(trial.history)] if trial.history else {}


def _metrics(values: Mapping[str, float], own: Collection[str], prefix: str = "") -> dict[str, float]:
    """Return column → value. `own`: columns that are no metrics."""
    return {f"metrics/{name}" if (name := prefix + metric) in own else name: v for metric, v in values.items()}


def _config(config: Config, taken: Collection[str]) -> dict[str, Any]:
    """Return column → value of a configuration. `taken`: names of other columns."""
    return {f"config/{name}" if name in taken else name: value for name, value in config.items()}


def _frame(rows: Iterable[tuple[dict[str, Any], ...]]) -> Any:
    """Return rows as a pandas DataFrame, whose columns are in the order of the parts of the rows."""
    try:
        import pandas
    except ImportError:
        raise UsageError("tables of a run need pandas: pip install pandas") from None
    rows = list(rows)
    columns = dict.fromkeys(name for parts in zip(*rows, strict=True) for part in parts for name in part)
    return pandas.DataFrame([{k: v for part in row for k, v in part.items()} for row in rows], columns=list(columns))
