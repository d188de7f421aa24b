"""A process of its own: a session is Connect or classic for the whole process. Started by `spark/test_connect.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hopyard as hy
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import DataError, SpecError
from hopyard.frameworks.linear import Linear
from light_java import warm_settings


def recipe(config: dict[str, Any]) -> Any:
    return Linear(3, 2, lr=config["lr"], batch_size=8)


def predictions(spark: Any, folder: Path) -> None:
    """Of a saved model, of a function and of an estimator."""
    from hopyard.spark.inference.predict import map_batches, predict
    from hopyard.spark.ml.estimator import HopyardEstimator, HopyardModel

    frame = pd.read_pickle(folder / "frame.pkl")
    df = spark.createDataFrame(frame.assign(row=range(len(frame)))).repartition(2)
    scored = predict(folder / "saved", df).orderBy("row").toPandas()
    np.save(folder / "scored.npy", np.stack(scored.prediction.tolist()))
    twice = map_batches(lambda block: {"twice": block["a"] * 2, "row": block["row"]}, df, columns=["a", "row"])
    found = twice.orderBy("row").toPandas()
    np.testing.assert_allclose(found.twice, frame.a * 2)
    model = HopyardModel.load(str(folder / "model"))
    assert model.transform(df).columns[-3:] == ["rawPrediction", "probability", "prediction"]
    classes: Any = model.transform(df).orderBy("row").toPandas()
    np.testing.assert_array_equal(classes.prediction, np.stack(scored.prediction.tolist()).argmax(1))
    model.write().overwrite().save(str(folder / "model"))
    model.write().save(str(folder / "again"))
    assert HopyardModel.load(str(folder / "again")).bestConfig == model.bestConfig
    estimator = HopyardEstimator(
        recipe=recipe,
        config={"lr": 0.3},
        featuresCols=["a", "b", "c"],
        labelCol="label",
        outputs="logits",
        epochs=4,
        partitions=2,
        engine=hy.Inline(),
        runDirectory=str(folder / "runs"),
    )
    fitted = estimator.fit(df.withColumn("label", df.y.cast("double")))
    right: Any = fitted.transform(df).toPandas()
    assert (right.prediction == right.y).mean() > 0.7


def records(spark: Any, folder: Path) -> None:
    """TFRecord files, written and read."""
    from hopyard.spark import load_tfrecords, save_tfrecords

    save_tfrecords(spark.range(0, 100, 1, 2), folder / "rows")
    found = load_tfrecords(spark, folder / "rows")
    assert found.dtypes == [("id", "bigint")]
    assert [row.id for row in found.orderBy("id").collect()] == list(range(100))
    try:
        save_tfrecords(spark.createDataFrame([([None],)], "x array<int>"), folder / "wrong")
    except DataError as error:
        assert "has a null" in str(error)
    else:
        raise AssertionError("a null was written")
    assert not (folder / "wrong").exists()


def data_sets(spark: Any, folder: Path) -> Any:
    """Return one that is not prepared."""
    from pyspark.ml.linalg import Vectors
    from pyspark.sql import functions as F

    store = folder / "store"
    df = spark.range(0, 40, 1, 3).select(
        F.col("id").alias("n"),
        (F.col("id") * 0.5).alias("x"),
        F.when(F.col("id") % 2 == 0, "a").otherwise("b").alias("c"),
        F.col("id").alias("y"),
    )
    given: dict[str, Any] = {
        "features": ["n", "x", "c"], "label": "y", "encode": {"c": "one-hot"}, "validation": 0.2, "partitions": 2,
    }  # fmt: skip
    manifest = hy.Dataset.spark(df, path=store, name="mine", **given).prepare()
    assert manifest.rows == 40 and manifest.vocabularies == {"c": ["a", "b"]}, manifest
    rows: Any = np.concatenate([open_partition(manifest, "train", part).inputs for part in range(2)])
    assert (rows[:, 1] == rows[:, 0] / 2).all() and (rows[:, 2] == (rows[:, 0] % 2 == 0)).all()
    assert hy.Dataset.spark(df, path=store, name="mine", **given).prepare() == manifest
    assert str(hy.Dataset.spark(df, **given).url).startswith(os.environ["XDG_CACHE_HOME"])
    hy.Dataset.spark(df, path="memory://x", **given)
    vectors = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(2, {1: 3.0}),)], ["v"]).coalesce(1)
    found = hy.Dataset.spark(vectors, features="v", partitions=1, path=store).prepare()
    assert open_partition(found, "train", 0).inputs.tolist() == [[1, 2], [0, 3]]
    try:
        bad = df.withColumn("x", F.when(F.col("n") != 3, F.col("x")))
        hy.Dataset.spark(bad, path=store, **given).prepare()
    except DataError as error:
        assert "column 'x': 1 of its rows" in str(error), error
    else:
        raise AssertionError("a null was taken")
    return hy.Dataset.spark(df, path=store, **given)


def main() -> None:
    from pyspark.sql import SparkSession

    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = warm_settings()
    os.environ["PYTHONPATH"] = settings["spark.executorEnv.PYTHONPATH"]  # the server's workers have its own
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").config(map=settings)
    for name in ("spark.local.dir", "spark.sql.warehouse.dir", "spark.sql.artifact.dir"):
        builder = builder.config(name, str(folder / name))
    spark = builder.getOrCreate()
    assert not hasattr(type(spark), "_jvm")
    predictions(spark, folder)
    records(spark, folder)
    late = data_sets(spark, folder)
    spark.stop()
    try:
        late.prepare()
    except SpecError as error:
        assert "session of the DataFrame was stopped" in str(error), error
    else:
        raise AssertionError("a stopped session was taken")


if __name__ == "__main__":
    main()
