"""An estimator trains on a cluster, its model answers for a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from example_modules import needs
from hopyard.compat.tensorflowonspark import compat, pipeline
from hopyard.compat.tensorflowonspark.scoring import Scoring
from hopyard.errors import DataError, SpecError
from late import Late

pytestmark = [
    pytest.mark.spark,
    pytest.mark.tensorflow,
    needs("pyspark", "tensorflow", "keras"),
    pytest.mark.skipif(os.environ.get("KERAS_BACKEND", "tensorflow") != "tensorflow", reason="SavedModels are its own"),
]
keras: Any = Late("keras")

WEIGHTS = np.array([3.0, 1.5])


def train(args: Any, ctx: Any) -> None:
    import numpy as np
    import tensorflow as tf

    from hopyard.compat.tensorflowonspark import compat

    feed = ctx.get_data_feed(input_mapping=args.input_mapping)
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, name="price")])
    model.compile(optimizer=tf.keras.optimizers.Adam(learning_rate=0.1), loss="mse")
    while not feed.should_stop():
        batch = feed.next_batch(args.batch_size)
        if len(batch["x"]):
            model.train_on_batch(np.array(batch["x"]), np.array(batch["y"]))
    compat.export_saved_model(model, args.export_dir, ctx.job_name == "chief")


def test_a_pipeline_learns_and_its_model_is_read_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    features = np.random.default_rng(0).random((1000, 2))
    rows = [(x.tolist(), [float(x @ WEIGHTS)]) for x in features]
    df = spark.createDataFrame(rows, ["col1", "col2"]).repartition(4)
    estimator = (
        pipeline.TFEstimator(train, {})
        .setInputMapping({"col1": "x", "col2": "y"})  # type: ignore[attr-defined]
        .setExportDir(str(tmp_path / "export"))
        .setClusterSize(1)
        .setBatchSize(20)
        .setEpochs(6)
    )
    model = estimator.fit(df)
    assert isinstance(model, pipeline.TFModel)
    model.setInputMapping({"c": "price_input"}).setOutputMapping({"price": "p"})  # type: ignore[attr-defined]
    made = model.transform(spark.createDataFrame([([1.0, 1.0], 5)], ["c", "other"]))
    assert made.dtypes == [("p", "array<double>")]
    assert made.collect()[0].p[0] == pytest.approx(WEIGHTS.sum(), abs=0.1)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], str]:
    """Writes a function as a SavedModel, with the signature "serving_default"."""
    import tensorflow as tf

    def write(function: Any) -> str:
        module = tf.Module()
        module.serve = function
        folder = str(tmp_path / "saved")
        tf.saved_model.save(module, folder, signatures={"serving_default": function.get_concrete_function()})
        return folder

    return write


@pytest.mark.parametrize("wrong", [1.7, 300.0, -1.0, float("nan")])
def test_numbers_that_a_tensor_cannot_hold_are_refused(saved: Callable[[Any], str], wrong: float) -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8, name="x")])
    def serve(x: Any) -> Any:
        return {"y": x}

    scoring = Scoring(saved(serve), ("serve",), "serving_default", (("a", "x"),), (("y", "b"),), 100)

    def scores(*values: float) -> list[int]:
        batch = pa.record_batch([pa.array(values)], ["a"])
        return [value for outputs in scoring._scores(iter([batch])) for value in outputs["y"].tolist()]

    assert scores(2.0, 255.0) == [2, 255]
    with pytest.raises(DataError, match=f"column 'a' holds {wrong}, but the tensor 'x' takes uint8"):
        scores(2.0, wrong)


@pytest.mark.long
def test_types_and_dimensions_follow_the_signature(spark: Any, saved: Callable[[Any], str]) -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None, 2, 2], name="m"), tf.TensorSpec([None], tf.string, name="s")])
    def serve(m: Any, s: Any) -> Any:
        return {"sum": tf.reduce_sum(m, [1, 2]), "same": m, "count": tf.strings.length(s), "s": s}

    model: Any = pipeline.TFModel({}).setExportDir(saved(serve)).setBatchSize(3)  # type: ignore[attr-defined]
    model.setInputMapping({"flat": "m", "text": "s"})
    model.setOutputMapping({"sum": "total", "same": "matrix", "count": "n", "s": "bytes"})
    df = spark.createDataFrame([([float(n), 1.0, 2.0, 3.0], "x" * n) for n in range(10)], ["flat", "text"])
    made = model.transform(df)
    assert dict(made.dtypes) == {"total": "double", "matrix": "array<array<double>>", "n": "bigint", "bytes": "binary"}
    rows = made.collect()
    assert [row.total for row in rows] == [n + 6.0 for n in range(10)]
    assert rows[4].matrix == [[4.0, 1.0], [2.0, 3.0]]
    assert [row.n for row in rows] == list(range(10))
    assert bytes(rows[2].bytes) == b"xx"


@pytest.mark.long
def test_an_output_of_unknown_rank_is_found_out_by_a_row(spark: Any, saved: Callable[[Any], str]) -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec(None, name="x")])
    def serve(x: Any) -> Any:
        return {"y": x + 1}

    model: Any = pipeline.TFModel({}).setExportDir(saved(serve))  # type: ignore[attr-defined]
    model.setInputMapping({"a": "x"}).setOutputMapping({"y": "b"})
    made = model.transform(spark.createDataFrame([([1.0, 2.0],)], ["a"]))
    assert made.dtypes == [("b", "array<double>")]
    assert made.collect()[0].b == [2.0, 3.0]


@pytest.mark.long
def test_missing_signature_inputs_are_named(spark: Any, tmp_path: Path) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="out")])
    compat.export_saved_model(model, str(tmp_path / "m"), True)
    made: Any = pipeline.TFModel({}).setExportDir(str(tmp_path / "m"))  # type: ignore[attr-defined]
    made.setInputMapping({"a": "out_input"}).setOutputMapping({"wrong": "p"})
    df = spark.createDataFrame([([1.0, 2.0],)], ["a"])
    with pytest.raises(SpecError, match="output_mapping names the tensor 'wrong'"):
        made.transform(df)
    made.setOutputMapping({"out": "p"}).setSignatureDefKey("mine")
    with pytest.raises(SpecError, match="has no signature 'mine', only 'serving_default'"):
        made.transform(df)
    with pytest.raises(SpecError, match="export_dir is not set"):
        pipeline.TFModel({}).setInputMapping({"a": "b"}).setOutputMapping({"b": "c"}).transform(df)  # type: ignore[attr-defined]
