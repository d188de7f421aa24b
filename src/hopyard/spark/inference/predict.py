"""Predictions for a DataFrame, of any Spark session: a lazy transformation, computed in executors through Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from hopyard.checks import column_name, flag, one_of
from hopyard.data.new_rows import check_types
from hopyard.driver.saved_files import TRANSFORM
from hopyard.errors import SpecError
from hopyard.formats.vectors import is_vector
from hopyard.spark.inference.bundle import Portable, portable
from hopyard.spark.inference.loaded import Invalid, probe
from hopyard.spark.inference.map_batches import map_batches
from hopyard.spark.inference.scoring import Score, score_batches, score_columns
from hopyard.sparkapi.dataframe import alive, mapped, narrowed, new_columns, schema
from hopyard.text import shown, unwritable

__all__ = ["map_batches", "predict", "with_scores"]


def predict(
    model: Any,
    df: Any,
    *,
    predictionCol: str = "prediction",
    handleInvalid: Invalid = "error",
    checkpoint: Literal["best", "last"] = "best",
    trust: bool = False,
) -> Any:
    """Return the DataFrame with one more column: the model's outputs, as `run.best.predict` gives them.

    It is lazy, as any transformation. The model goes to executors once, and each Python worker opens it once. The
    encoding of the training data is applied; vectors of pyspark.ml may stand for lists. The model gets rows in blocks
    of at least its own batch size and at most spark.sql.execution.arrow.maxRecordsPerBatch; each task uses one thread.
    Rows that the data's transform= drops stay, and have NaN for a prediction.

    Args:
        model: a Run (its best trial), a Trial, or the directory that `run.best.save(directory)` wrote, by path or as
            `hy.load_model(directory)` returned it. The `transform=` of the training data is applied in each case.
        df: a DataFrame, classic or Connect, with the feature columns of the training data.
        predictionCol: name of the new column: a double where the model gives one number a row, else an array; for a
            model of several outputs a struct of these.
        handleInvalid: what becomes of rows that hold null, NaN, infinity or a category that training never saw:
            "error"; "skip": they are left out, and so are those that transform= drops; "keep": they have NaN for a
            prediction.
        checkpoint: whose weights of a trial, the best or the last.
        trust: open the pickle in a directory even where others than this user and root may write it.

    Raises:
        SpecError, DataError: there is no such model, or a column is missing or exists already. What is wrong with rows
            (nulls, other shapes, categories that training never saw) is found when they are computed; the message names
            the column.
    """
    handleInvalid = one_of("handleInvalid", handleInvalid, get_args(Invalid))
    predictionCol = column_name(predictionCol)
    if not isinstance(predictionCol, str) or not predictionCol or unwritable(predictionCol):
        raise SpecError(f"predictionCol must be text of at least one character, in UTF-8, got {shown(predictionCol)}")
    bundle = portable(model, checkpoint, flag("trust", trust))
    check(df, bundle)
    score = Score(bundle.ticket(df.sparkSession), "values", predictionCol, invalid=handleInvalid)
    return with_scores(df, bundle, score, score_columns(score, probe(bundle)))


def with_scores(df: Any, model: Portable, score: Score, fields: dict[str, Any], labels: list[Any] | None = None) -> Any:
    """Return `df` with the columns of a Score.

    Args:
        df: the DataFrame.
        model: the model that predicts.
        score: the columns that are added.
        fields: what `score_columns` returned for some rows: name → Arrow array of the column's type.
        labels: the value of each class, for the metadata of the prediction, where IndexToString looks for them.
    """
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructField, StructType

    check(df, model)
    new_columns(df, fields, "with predictionCol=")
    metadata: dict[str, Any] = {}
    if labels is not None:
        attributes = {"type": "nominal", "name": score.prediction, "vals": [str(label) for label in labels]}
        metadata[score.prediction] = {"ml_attr": attributes}
    added = [StructField(n, _type(a, from_arrow_type), metadata=metadata.get(n)) for n, a in fields.items()]

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        return score_batches(score, batches)

    return mapped(df, run, StructType([*df.schema.fields, *added]))


def check(df: Any, model: Portable) -> None:
    """Raise SpecError or DataError unless `df` is a DataFrame with the columns that the model's encoding needs."""
    if not hasattr(df, "mapInArrow"):
        raise SpecError(
            f"df must be a Spark DataFrame, got {type(df).__name__}; for others there are "
            "run.best.predict(data) and hy.load_model(directory).predict(data)"
        )
    alive(df)
    if TRANSFORM in model.files:
        return  # only the transform knows which columns it makes the features from
    manifest = model.about.manifest
    names = manifest.column_names("inputs")
    columns = narrowed(df, list(dict.fromkeys(names)), "the DataFrame")
    check_types(manifest, schema(columns), "the DataFrame")  # Spark would try a task that fails four times


def _type(array: Any, from_arrow_type: Any) -> Any:
    """Return Spark's type of an Arrow array; that of a vector of pyspark.ml is VectorUDT, not a struct."""
    from pyspark.ml.linalg import VectorUDT

    return VectorUDT() if is_vector(array.type) else from_arrow_type(array.type)
