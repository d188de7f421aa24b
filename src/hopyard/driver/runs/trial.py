"""The user's object of one trial: how it went, and its model."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from hopyard.checks import one_of, path
from hopyard.core.runs.records import TrialRecord
from hopyard.data.apply import apply
from hopyard.data.columns import Columns
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.driver.runs.saved_model import save
from hopyard.errors import DataError, HopyardError, SpecError, TrialFailed
from hopyard.frameworks import framework_of, model_file
from hopyard.frameworks.tree import restore
from hopyard.ports import Store, SupportsPredict, SupportsResult
from hopyard.spec import Config
from hopyard.store.states import address
from hopyard.store.tree import decode, digest
from hopyard.text import escaped
from hopyard.training.build import Built, Plan, build, undisturbed
from hopyard.training.predicting import answers
from hopyard.training.recipes import assigned
from hopyard.training.steps import over

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a run's models come from."""

    plan: Plan
    store: Store
    url: str
    """URL of the store."""
    directory: Path
    """Run directory."""
    transform: Any
    tracker: RowTracker | None = None
    """Remembers from one call to the next how the transform treats rows."""


class Trial:
    """One trial of a run.

    Attributes:
        id: its number.
        config: its configuration.
        status: "waiting", "running", "completed" or "failed"; the run's, where the run ended before the trial.
        epoch: the epoch with the best value of the run's metric, from 0; None before any is all in. (Texts for people
            count epochs from 1.)
        metrics: metrics of the last epoch that is all in; in `run.best`, of its best epoch.
        history: epoch → metrics.
        state: digest of its final State; "" before it is durable.
        error: why it failed, else "".
    """

    def __init__(
        self, record: TrialRecord, steps: int, partitions: int, models: Callable[[], ModelSource], best: bool = False
    ) -> None:
        self._record = record
        self._steps = steps
        self._partitions = partitions
        self._models = models
        self.id = record.id
        self.config: Config = dict(record.config)
        self.status: str = record.status
        self.epoch = record.best
        self.history = {epoch: dict(values) for epoch, values in sorted(record.history.items())}
        self.metrics = dict(self.history[record.best] if best and record.best is not None else record.metrics)
        self.state = record.digests.get(steps, "")
        self.error = record.error

    def __repr__(self) -> str:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in self.metrics.items())
        epoch = None if self.epoch is None else self.epoch + 1  # as in the report, which counts from 1
        return escaped(f"<Trial {self.id} {self.status} {self.config} epoch={epoch} {metrics}>")

    def model(self, which: Literal["best", "last"] = "best") -> Any:
        """The trained model: a torch module in evaluation mode, a compiled keras.Model, or the recipe's own Trainable.

        Raises:
            TrialFailed: there is no such model.
        """
        trainable = self._built(which).trainable
        framework = framework_of(trainable)
        return trainable if framework is None else model_file(framework).model(trainable)

    def predict(self, data: Any, which: Literal["best", "last"] = "best") -> Any:
        """The model's outputs, one for each row of `data`, in its order.

        Where the run's data had a transform, rows are numbered while they go through it: outputs stand at the places of
        their rows, also where the transform sorts, and those of rows that it drops are NaN. (Whole numbers and booleans
        are float64 then.) A transform that makes a batch of other columns loses the numbers: a warning says so once,
        and that the order is trusted; where it is seen to change the order, it is refused.

        Args:
            data: a Dataset, a pandas DataFrame, an Arrow table, arrays, or a dict of arrays. The transform and the
                encoding that the run's own data had are applied (a Dataset with a transform has its own in its place);
                a label is not needed.
            which: whose weights.

        Returns:
            Array of shape (rows, …), or a dict of such.

        Raises:
            DataError: the rows cannot be encoded as those of the training were; the transform doubles rows, or drops
                or moves some and loses their numbers.
        """
        built = self._built(which)
        if not isinstance(built.trainable, SupportsPredict):
            raise HopyardError(f"{type(built.trainable).__name__} has no method predict(batch)")
        columns = self._columns(data, targets=False)
        with undisturbed():
            return answers(built.trainable, columns, built.batch_size)

    def evaluate(self, data: Any, which: Literal["best", "last"] = "best") -> dict[str, float]:
        """Loss and metrics over all rows of `data`, which has the label too; all NaN where the loss is not finite.

        Rows that the transform of the run's data drops are left out; a warning says how many.
        """
        built = self._built(which)
        columns = self._columns(data, targets=True)
        dropped = (columns.source_rows or 0) - columns.rows
        if not columns.rows:
            raise DataError(f"evaluate: the Dataset's transform dropped all of the {dropped} rows")
        if dropped:
            log.warning("evaluate: the Dataset's transform dropped %d of %d rows", dropped, columns.source_rows)
        if columns.targets is None and self._models().plan.manifest.targets:
            raise SpecError(f"evaluate: the data lacks the label ({', '.join(self._models().plan.manifest.targets)})")
        with undisturbed():
            sums = over(built, PartitionLoader(columns, built.batch_size), train=False)
        loss, rows = sums.get("loss", (0.0, 1.0))
        if not isinstance(loss, list) and not (rows and math.isfinite(loss)):
            return dict.fromkeys(sums, math.nan)
        values = {}
        for name, (total, rows) in sums.items():
            if isinstance(total, list):
                if not isinstance(built.trainable, SupportsResult):
                    raise HopyardError(f"metric {name!r} is an array and the model has no result(name, total, rows)")
                values[name] = float(built.trainable.result(name, total, rows))
            else:
                values[name] = total / rows if rows else float("nan")
        return values

    def save(self, directory: str | Path, which: Literal["best", "last"] = "best") -> Path:
        """Write `config.json`, the weights, and the pickled recipe; `hy.load_model` reads them.

        The last weights of a run that was interrupted may be of the middle of an epoch: `config.json` names no epoch
        then, and no metrics.
        """
        built = self._built(which)
        epochs, remainder = divmod(self._step(which), self._partitions)
        epoch = None if remainder else epochs - 1
        return save(Path(path("directory", directory)), self._plan, self._record, epoch, built)

    @property
    def _plan(self) -> Plan:
        """The run's plan with the recipe of this trial."""
        plan: Plan = self._models().plan
        recipes = {self.id: self._record.recipe} if self._record.recipe else {}
        return replace(plan, recipe=assigned(plan.recipe, recipes))

    def _step(self, which: str) -> int:
        one_of("which", which, ("best", "last"))
        if which == "last" or self._record.best is None:
            return self._record.durable_step
        return (self._record.best + 1) * self._partitions

    def _built(self, which: str) -> Built:
        """Build the model with the weights of that epoch.

        Raises:
            TrialFailed: no State of it is stored, or it is damaged.
        """
        step = self._step(which)
        state = self._record.states.get(step)
        if state is None or not state.digest:
            raise TrialFailed(
                f"trial {self.id} ({self.status}) has no stored model" + (f": {self.error}" if self.error else "")
            )
        source: ModelSource = self._models()
        name = f"trial {self.id}: its State {address(source.url, state.ref)}"
        remedy = f"`hopyard resume {source.directory}` makes it again"
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
            built = build(replace(self._plan, threads=0), self.id, self.config)
        restore(built.trainable, decode(data))
        return built

    def _columns(self, data: Any, targets: bool) -> Columns:
        source: ModelSource = self._models()
        return apply(source.plan.manifest, data, source.tracker, targets=targets)
