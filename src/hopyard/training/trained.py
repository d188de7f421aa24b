"""A model with the weights that training gave it, and all that turns a user's rows into what it was trained on."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopyard.data.apply import WITH_LABEL, apply
from hopyard.data.columns import Columns
from hopyard.data.encoding.row_tracker import RowTracker
from hopyard.data.manifest import Manifest
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.errors import DataError, HopyardError, SpecError
from hopyard.frameworks import framework_of, model_file
from hopyard.ports import SupportsLabelCheck, SupportsPredict, SupportsResult
from hopyard.training.build import Built, undisturbed
from hopyard.training.predicting import answers
from hopyard.training.steps import over

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A trained model and how its rows are encoded.

    Attributes:
        built: the model.
        manifest: of the training data: its encoding.
        tracker: runs the transform of the training data; None: it had none.
    """

    built: Built
    manifest: Manifest
    tracker: RowTracker | None = None

    def model(self) -> Any:
        """Return the framework's own model, in evaluation mode, or the recipe's own Trainable."""
        trainable = self.built.trainable
        framework = framework_of(trainable)
        return trainable if framework is None else model_file(framework).model(trainable)

    def predict(self, data: Any) -> Any:
        """Return outputs as `Trial.predict` describes them; raises the same."""
        trainable = self.built.trainable
        if not isinstance(trainable, SupportsPredict):
            raise HopyardError(f"{type(trainable).__name__} has no method predict(batch)")
        columns = apply(self.manifest, data, self.tracker, targets=False)
        with undisturbed():
            return answers(trainable, columns, self.built.batch_size)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return loss and metrics as `Trial.evaluate` describes them; raises the same."""
        trainable = self.built.trainable
        columns = apply(self.manifest, data, self.tracker, targets=True)
        dropped = (columns.source_rows or 0) - columns.rows
        if not columns.rows:
            raise DataError(f"evaluate: the Dataset's transform dropped all of the {dropped} rows")
        if dropped:
            log.warning("evaluate: the Dataset's transform dropped %d of %d rows", dropped, columns.source_rows)
        if columns.targets is None and self.manifest.targets:
            names = [
                column.name for field in self.manifest.fields if field.role == "targets" for column in field.columns
            ]
            raise SpecError(f"evaluate: the data lacks the label ({', '.join(names)}); {WITH_LABEL}")
        with undisturbed():
            self._check_labels(columns)
            sums = over(self.built, PartitionLoader(columns, self.built.batch_size), train=False)
        loss, rows = sums.get("loss", (0.0, 1.0))
        if not isinstance(loss, list) and not (rows and math.isfinite(loss)):
            return dict.fromkeys(sums, math.nan)
        values = {}
        for name, (total, rows) in sums.items():
            if isinstance(total, list):
                if not isinstance(trainable, SupportsResult):
                    raise HopyardError(f"metric {name!r} is an array and the model has no result(name, total, rows)")
                values[name] = float(trainable.result(name, total, rows))
            else:
                values[name] = total / rows if rows else math.nan
        return values

    def _check_labels(self, columns: Columns) -> None:
        """Raise DataError for a label that the model has no output for, where it can tell."""
        trainable, labels = self.built.trainable, columns.targets
        if not isinstance(trainable, SupportsLabelCheck) or not isinstance(labels, np.ndarray) or labels.ndim != 1:
            return
        batch = next(iter(PartitionLoader(columns, self.built.batch_size)))
        if fault := trainable.label_fault(batch, float(labels.min()), float(labels.max())):
            (field,) = (field for field in self.manifest.fields if field.role == "targets")
            raise DataError(f"evaluate: column {field.columns[0].name!r}: {fault}; or drop such rows")
