"""`HopyardModel`: a trained model as a pyspark.ml Model, for DataFrames, Pipelines and files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from pyspark.ml import Model
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from hopyard.driver.runs.run import Run
from hopyard.errors import SpecError
from hopyard.spark.inference.bundle import Portable
from hopyard.spark.inference.loaded import PROBES, probe, sample_outputs
from hopyard.spark.inference.predict import check, with_scores
from hopyard.spark.inference.scoring import Meaning, Score, infer_meaning, score_columns
from hopyard.spark.ml.files import FileReader, FileWriter
from hopyard.spark.ml.params import begin, has, value
from hopyard.sparkapi.dataframe import narrowed
from hopyard.text import shown

log = logging.getLogger(__name__)


@has("predictionCol", "probabilityCol", "outputs")
class HopyardModel(Model, MLWritable, MLReadable["HopyardModel"]):
    """What `HopyardEstimator.fit` returns. `transform` adds predictions, and for classes also their probabilities.

    Param `outputs` says what the model's outputs mean. "values": they are the prediction, a double when they are one
    number a row, else an array. "logits", "probabilities": they belong to classes, one to each or a single one to
    class 1 of two; the prediction is the number of the most probable class, as a double. "auto" decides once, when the
    model is made: classes when the label is a column of whole numbers from 0 or of encoded categories, and
    probabilities when the outputs for 64 rows of the data and as many made-up ones add up to 1 (a single output: lie
    within 0 and 1).

    Attributes:
        run: the Run that it comes from; None when it was read from files.
    """

    run: Run | None = None
    _model: Portable
    _sample: Any = None
    """Outputs for two made-up rows, which show the types of columns."""
    _auto_meaning: Meaning = "values"
    """What "auto" decided."""

    def __init__(self, **params: Any) -> None:
        super().__init__()
        begin(self, params)

    @classmethod
    def of(cls, model: Portable, meaning: Meaning | None = None, df: Any = None) -> HopyardModel:
        """Return the Model of a trained model.

        Args:
            model: the trained model.
            meaning: what "auto" decided; None: it is decided here.
            df: the rows that it was trained on, a few of which show what outputs mean; None: made-up rows alone do.
        """
        instance = cls()
        instance._model = model
        instance._auto_meaning = _meaning(model, df) if meaning is None else meaning
        return instance

    @property
    def bestConfig(self) -> dict[str, Any]:
        """The configuration that was chosen."""
        return dict(self._model.about.config)

    @property
    def metrics(self) -> dict[str, float | None]:
        """Metrics of the epoch whose weights these are."""
        return dict(self._model.about.metrics)

    @property
    def labels(self) -> list[Any] | None:
        """The values of an encoded label, by the number that stands for each in predictions; else None."""
        manifest = self._model.about.manifest
        names = [column.name for field in manifest.fields if field.role == "targets" for column in field.columns]
        return list(manifest.vocabularies[names[0]]) if len(names) == 1 and names[0] in manifest.vocabularies else None

    @property
    def meaning(self) -> Meaning:
        """What the outputs mean, as `outputs` says or "auto" decided."""
        outputs = value(self, "outputs")
        return self._auto_meaning if outputs == "auto" else cast(Meaning, outputs)

    def _transform(self, dataset: Any) -> Any:
        check(dataset, self._model)
        if self._sample is None:
            self._sample = _first(probe(self._model))
        probability = value(self, "probabilityCol")
        score = Score(self._model.ticket(dataset.sparkSession), self.meaning, value(self, "predictionCol"), probability)
        if score.meaning != "values" and (isinstance(self._sample, dict) or self._sample.ndim > 2):
            kind = "several outputs" if isinstance(self._sample, dict) else f"rows of shape {self._sample.shape[1:]}"
            raise SpecError(
                f'outputs must be "values" or "auto" where the model gives {kind}, got {shown(self.meaning)}'
            )
        return with_scores(dataset, self._model, score, score_columns(score, self._sample))

    def write(self) -> MLWriter:
        """`model.write().overwrite().save(path)`: Params and, as Parquet, the files of the model. The recipe is among
        them as a pickle: only load what comes from people you trust."""
        return FileWriter(self, {"model": self._model.files}, {"found": self._auto_meaning})

    @classmethod
    def read(cls) -> MLReader[HopyardModel]:
        """`HopyardModel.load(path)`."""

        def restore(files: dict[str, dict[str, bytes]], extra: dict[str, Any]) -> HopyardModel:
            return cls.of(Portable(files["model"]), extra["found"])

        return FileReader(cls, restore)


def _meaning(model: Portable, df: Any) -> Meaning:
    manifest = model.about.manifest
    if manifest.classes is None:
        return "values"
    if df is not None:
        names = [column.name for field in manifest.fields if field.role == "inputs" for column in field.columns]
        try:
            return _meaning_of_rows(model, narrowed(df, names, "the DataFrame").limit(PROBES).toArrow().to_batches())
        except Exception as error:  # noqa: BLE001 - any query may fail, and the model is trained
            log.warning(
                "%d rows of the DataFrame, which show what the model's outputs mean, could not be read or predicted "
                "(%s: %s); made-up rows are taken in their place. Check model.meaning, or set outputs",
                PROBES,
                type(error).__name__,
                error,
            )
    return _meaning_of_rows(model, [])


def _meaning_of_rows(model: Portable, rows: Sequence[Any]) -> Meaning:
    """Return what the outputs for these rows, and for made-up ones, look like."""
    outputs = sample_outputs(model, rows)
    if not outputs or isinstance(outputs[0], dict):
        return "values"
    return infer_meaning(np.concatenate(outputs), model.about.manifest.classes)


def _first(outputs: Any) -> Any:
    """Return the outputs for two rows: the rest is not needed, and may be large."""
    if isinstance(outputs, dict):
        return {name: _first(part) for name, part in outputs.items()}
    return np.array(outputs[:2])
