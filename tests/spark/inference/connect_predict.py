"""A process of its own: a session is Connect or classic for the whole process. Started by `test_predict.py`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import hopyard as hy
from hopyard.frameworks.linear import Linear


def recipe(config: dict[str, Any]) -> Any:
    return Linear(3, 2, lr=config["lr"], batch_size=8)


def main() -> None:
    from pyspark.sql import SparkSession

    from hopyard.spark.inference.predict import map_batches, predict
    from hopyard.spark.ml.estimator import HopyardEstimator, HopyardModel

    folder = Path(sys.argv[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
    for name in ("spark.local.dir", "spark.sql.warehouse.dir", "spark.sql.artifact.dir"):
        builder = builder.config(name, str(folder / name))
    spark = builder.getOrCreate()
    assert not hasattr(type(spark), "_jvm")
    frame = pd.read_pickle(folder / "frame.pkl")
    df = spark.createDataFrame(frame.assign(row=range(len(frame)))).repartition(2)
    scored = predict(folder / "saved", df).orderBy("row").toPandas()
    np.save(folder / "scored.npy", np.stack(scored.prediction.tolist()))
    twice = map_batches(lambda block: {"twice": block["a"] * 2, "row": block["row"]}, df, columns=["a", "row"])
    found = twice.orderBy("row").toPandas()
    np.testing.assert_allclose(found.twice, frame.a * 2)
    model = HopyardModel.load(str(folder / "model"))
    assert model.transform(df).columns[-3:] == ["rawPrediction", "probability", "prediction"]
    classes = model.transform(df).orderBy("row").toPandas()
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
    right = fitted.transform(df).toPandas()
    assert (right.prediction == right.y).mean() > 0.7
    spark.stop()


if __name__ == "__main__":
    main()
