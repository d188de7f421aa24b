"""`HopyardModel`: a trained model as a pyspark.ml Model, for DataFrames, Pipelines and files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Unpack, cast

import numpy as np
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from hopyard.driver.runs.run import Run
from hopyard.driver.saved_files import TRANSFORM
from hopyard.errors import SpecError
from hopyard.spark.inference.bundle import Portable, portable
from hopyard.spark.inference.loaded import PROBES, probe, sample_outputs
from hopyard.spark.inference.predict import check, with_scores
from hopyard.spark.inference.scoring import Meaning, Score, infer_meaning, probabilities, score_columns
from hopyard.spark.ml.files import FileReader, FileWriter
from hopyard.spark.ml.params import ClassifierParams, ModelParams, begin, has, value
from hopyard.sparkapi.dataframe import narrowed, new_columns
from hopyard.spec import copied
from hopyard.text import shown

log = logging.getLogger(__name__)


NEW_COLUMNS = ("rawPredictionCol", "probabilityCol", "predictionCol")
"""Params that name the columns that `transform` adds."""


@has(ModelParams)
class HopyardModel(Model, ClassifierParams, MLWritable, MLReadable["HopyardModel"]):
    """What `HopyardEstimator.fit` returns. `transform` adds predictions, and for classes also their raw predictions
    and probabilities.

    Param `outputs` says what the model's outputs mean. "values": they are the prediction, a double when they are one
    number a row, else an array. "logits", "probabilities": they belong to classes, one to each or a single one to
    class 1 of two; the prediction is the number of the most probable class, as a double. "auto" decides once, when the
    model is made: classes when the label is a column of whole numbers from 0 or of encoded categories, or when the
    model has an output for each of several classes and 64 rows of the data hold no other label than their numbers; and
    probabilities when the outputs for these rows and as many made-up ones add up to 1 (a single output: lie within 0
    and 1).

    Raw predictions are, as in pyspark.ml, the logits: of two classes (−m, m), where m is the log-odds of class 1; of
    more classes the outputs themselves. Where outputs are probabilities, raw predictions are those.

    Attributes:
        run: the Run that it comes from; None when it was made of a Trial or read from files.
    """

    run: Run | None = None
    _model: Portable
    _sample: Any = None
    """Outputs for two made-up rows, which show the types of columns."""
    _auto_meaning: Meaning = "values"
    """What "auto" decided."""
    _indexed: list[str] | None = None
    """The values that StringIndexer made numbers of, by the metadata of the label."""

    def __init__(self, **params: Unpack[ModelParams]) -> None:
        super().__init__()
        begin(self, params)

    @classmethod
    def of(cls, model: Any, df: Any = None, *, meaning: Meaning | None = None) -> HopyardModel:
        """Return the Model of what was trained elsewhere: after `hy.resume`, by `hy.select`, in another process.

        Its feature and label columns are those of the training (of arrays "inputs" and "targets"); the other Params
        have their defaults.

        Args:
            model: a Run (its best trial), a Trial, or the folder that `run.best.save(folder)` wrote, by path or as
                `hy.load_model(folder)` returned it.
            df: rows like those that it was trained on, a few of which show what outputs mean, and the metadata of the
                label its values; None: made-up rows do.
            meaning: what "auto" decided; None: it is decided here.

        Raises:
            SpecError: `model` is none of these.
            TrialFailed, RunFailed, RunDirectoryError: there is no trained model.
        """
        instance = cls()
        instance._model = portable(model)
        instance._auto_meaning = _meaning(instance._model, df) if meaning is None else meaning
        instance.run = model if isinstance(model, Run) else None
        if TRANSFORM not in instance._model.files:  # only a transform knows the columns that it reads
            manifest = instance._model.about.manifest
            inputs, targets = manifest.column_names("inputs"), manifest.column_names("targets")
            instance._set(**({"featuresCol": inputs[0]} if len(inputs) == 1 else {"featuresCols": inputs}))
            if len(targets) == 1:
                instance._set(labelCol=targets[0])
                instance._indexed = _values(df, targets[0])
        return instance

    @property
    def bestConfig(self) -> dict[str, Any]:
        """The configuration that was chosen."""
        return copied(self._model.about.config)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Metrics of the epoch whose weights these are."""
        return dict(self._model.about.metrics)

    @property
    def labels(self) -> list[Any] | None:
        """The values of a label that encode= or StringIndexer made numbers of, by the number that stands for each in
        predictions; else None. They are in the metadata of these, where IndexToString looks for them."""
        manifest = self._model.about.manifest
        vocabularies, names = manifest.vocabularies, manifest.column_names("targets")
        return list(vocabularies[names[0]]) if len(names) == 1 and names[0] in vocabularies else self._indexed

    @property
    def meaning(self) -> Meaning:
        """What the outputs mean, as `outputs` says or "auto" decided."""
        outputs = value(self, "outputs")
        return self._auto_meaning if outputs == "auto" else cast(Meaning, outputs)

    def _transform(self, dataset: Any) -> Any:
        check(dataset, self._model)
        self._check_features()
        if self._sample is None:
            self._sample = probe(self._model)
        raw, probability, prediction = (value(self, name) for name in NEW_COLUMNS)
        score = Score(
            self._model.ticket(dataset.sparkSession),
            self.meaning,
            prediction,
            probability,
            raw,
            tuple(value(self, "thresholds") or ()),
            value(self, "handleInvalid"),
        )
        if score.meaning != "values":
            self._check_classes(score)
            new_columns(
                dataset, [name for name in (raw, probability, prediction) if name], f"by {', '.join(NEW_COLUMNS)}"
            )
        labels = None if score.meaning == "values" else self.labels
        return with_scores(dataset, self._model, score, score_columns(score, self._sample), labels)

    def _check_classes(self, score: Score) -> None:
        """Raise SpecError unless the outputs can belong to classes, and there is a threshold for each or for none."""
        if isinstance(self._sample, dict) or self._sample.ndim > 2:
            kind = "several outputs" if isinstance(self._sample, dict) else f"rows of shape {self._sample.shape[1:]}"
            raise SpecError(
                f'outputs must be "values" or "auto" where the model gives {kind}, got {shown(self.meaning)}'
            )
        classes = probabilities(score.meaning, self._sample).shape[1]
        if score.thresholds and len(score.thresholds) != classes:
            raise SpecError(
                f"thresholds must be one number for each of the {classes} classes, got {shown(list(score.thresholds))}"
            )

    def _check_features(self) -> None:
        """Raise SpecError when a Param names other feature columns than the model was trained on."""
        trained = self._model.about.manifest.column_names("inputs")
        name = "featuresCols" if self.isSet("featuresCols") else "featuresCol"
        allowed = [trained, *(trained if len(trained) == 1 else [])]
        if self.isSet(name) and value(self, name) not in allowed:
            raise SpecError(
                f"{name} of a model must stay as it was trained, {shown(trained)}, got {shown(value(self, name))}; "
                "rename the columns of the DataFrame"
            )

    def write(self) -> MLWriter:
        """`model.write().overwrite().save(path)`: Params and, as Parquet, the files of the model. The recipe is among
        them as a pickle: only load what comes from people you trust."""
        return FileWriter(self, {"model": self._model.files}, {"found": self._auto_meaning, "indexed": self._indexed})

    @classmethod
    def read(cls) -> MLReader[HopyardModel]:
        """`HopyardModel.load(path)`."""

        def restore(files: dict[str, dict[str, bytes]], extra: dict[str, Any]) -> HopyardModel:
            model = cls.of(Portable(files["model"]), meaning=extra["found"])
            model._indexed = extra["indexed"]
            return model

        return FileReader(cls, restore)


def _values(df: Any, label: str) -> list[str] | None:
    """Return the values that the metadata of the label column has, as StringIndexer writes them; None: none."""
    fields = {field.name: field for field in getattr(df, "schema", ())}
    values = fields[label].metadata.get("ml_attr", {}).get("vals") if label in fields else None
    return None if values is None else list(values)


def _meaning(model: Portable, df: Any) -> Meaning:
    """Return what "auto" decides, by some rows of the DataFrame, if there is one, and made-up rows."""
    manifest = model.about.manifest
    classes, targets = manifest.classes, manifest.column_names("targets")
    is_value = classes is None
    if is_value and (df is None or len(targets) != 1):
        return "values"
    if df is not None:
        names = [*manifest.column_names("inputs"), *(targets if is_value else [])]
        try:
            table = narrowed(df, list(dict.fromkeys(names)), "the DataFrame").limit(PROBES).toArrow()
            if is_value and (classes := _classes(table[targets[0]])) is None:
                return "values"
            return _meaning_of_rows(model, table.to_batches(), classes, is_value)
        except Exception as error:  # noqa: BLE001 - any query may fail, and the model is trained
            log.warning(
                "%d rows of the DataFrame, which show what the model's outputs mean, could not be read or predicted "
                "(%s: %s); made-up rows are taken in their place. Check model.meaning, or set outputs",
                PROBES,
                type(error).__name__,
                error,
            )
    return _meaning_of_rows(model, [], classes, is_value)


def _classes(labels: Any) -> int | None:
    """Return how many classes these labels number, an Arrow column of doubles; None where they number none."""
    values = np.asarray(labels, np.float64)
    are_numbers = len(values) > 0 and bool(((values >= 0) & (values == np.floor(values))).all())
    return int(values.max()) + 1 if are_numbers else None


def _meaning_of_rows(model: Portable, rows: Sequence[Any], classes: int | None, is_value: bool) -> Meaning:
    """Return what the outputs for these rows, and for made-up ones, look like. `classes`: how many the label numbers;
    None: none. `is_value`: whether it was trained on as a value: then only an output for each class says otherwise."""
    if classes is None or not (parts := sample_outputs(model, rows)) or isinstance(parts[0], dict):
        return "values"
    outputs = np.concatenate(parts)
    if is_value and not (outputs.ndim == 2 and outputs.shape[1] >= max(2, classes)):
        if classes <= 2:
            log.warning(
                "the label of some rows is 0.0 or 1.0 only, and outputs='auto' takes it for a value: the prediction is "
                "what the model gives. If it is a class, set outputs to 'logits' or 'probabilities'"
            )
        return "values"
    return infer_meaning(outputs, classes)
