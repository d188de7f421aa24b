"""Predictions for DataFrames, and functions over their blocks, on real executors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark")

import hopyard as hy
import model_parts
from hopyard.errors import DataError, RunDirectoryError, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spark.inference.predict import map_batches, predict
from hopyard.spark.ml.model import HopyardModel

pytestmark = pytest.mark.spark

KINDS = ["red", "green", "blue"]


def frame(rows: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(rng.standard_normal((rows, 3)), columns=["a", "b", "c"])
    made["kind"] = [KINDS[i % 3] for i in range(rows)]
    made["y"] = (made.a + made.b > 0).astype(np.int64)
    made["v"] = made.a * 2 - made.c
    return made


def data(label: str = "y", **more: Any) -> hy.Dataset:
    given = {"features": ["a", "b", "c", "kind"], "encode": {"kind": "one-hot"}, "standardize": True, "partitions": 2}
    return hy.Dataset.pandas(frame(), label=label, **{**given, **more})


def classes(config: dict[str, Any]) -> Any:
    return Linear(6, 2, lr=0.1, batch_size=16)


def numbers(config: dict[str, Any]) -> Any:
    return Linear(6, 1, lr=0.05, batch_size=16)


def perceptron(config: dict[str, Any]) -> Any:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return hy.torch.Model(net, optimizer=optimizer, loss=torch.nn.functional.cross_entropy)


def sigmoid(config: dict[str, Any]) -> Any:
    import keras

    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, activation="sigmoid")])
    net.compile(optimizer="sgd", loss="binary_crossentropy")
    return net


def positive(batch: Any) -> Any:
    """Drops rows, and makes a column."""
    import pyarrow.compute as pc

    batch = batch.filter(pc.greater(batch["b"], 0))
    return batch.append_column("twice", pc.multiply(batch["b"], 2.0))


red = ("constant", "red")


def fit(recipe: Any, directory: Path, rows: hy.Dataset | None = None) -> hy.Run:
    return hy.fit(recipe, {}, rows or data(), epochs=1, engine=hy.Inline(), directory=directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> hy.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return fit(classes, tmp_path_factory.mktemp("run") / "classes")


def spread(spark: Any, made: pd.DataFrame, slices: int = 5) -> Any:
    return spark.createDataFrame(made.assign(row=range(len(made)))).repartition(slices, "row")


def column(df: Any, name: str = "prediction") -> np.ndarray:
    return np.array(df.orderBy("row").toPandas()[name].tolist())


class TestPredict:
    def test_equals_the_trials_own(self, spark: Any, run: hy.Run) -> None:
        df = predict(run, spread(spark, frame()))
        assert df.columns == [*frame().columns, "row", "prediction"]
        assert df.schema["prediction"].dataType.simpleString() == "array<double>"
        np.testing.assert_allclose(column(df), run.best.predict(frame()), rtol=1e-12)

    def test_from_a_directory_with_torch(self, spark: Any, tmp_path: Path) -> None:
        run = fit(perceptron, tmp_path / "run")
        saved = run.best.save(tmp_path / "saved")
        rows = spread(spark, frame(), 1)  # each executor that has some imports PyTorch
        df = predict(saved, rows, predictionCol=np.str_("p"))
        assert df.schema["p"].dataType.simpleString() == "array<float>"
        np.testing.assert_allclose(column(df, "p"), run.best.predict(frame()), rtol=1e-4, atol=1e-6)
        (saved / "recipe.pkl").chmod(0o666)
        with pytest.raises(hy.RunDirectoryError, match=r"recipe\.pkl: .* trust=True"):
            predict(saved, rows)
        df = predict(saved, rows, trust=True)
        np.testing.assert_allclose(column(df), run.best.predict(frame()), rtol=1e-4, atol=1e-6)

    def test_a_directory_has_the_transform_and_fills_what_is_missing(self, spark: Any, tmp_path: Path) -> None:
        options: dict[str, Any] = {
            "encode": {"kind": hy.Categories("one-hot", ["red", "blue"])},
            "impute": {"a": "mean", "kind": red},
        }
        rows = data(**options, features=["twice", "a", "b", "kind"], transform=positive)
        run = fit(classes, tmp_path / "run", rows)
        holed = frame()
        holed.loc[::5, "a"], holed.loc[::7, "kind"], holed.loc[::9, "kind"] = np.nan, None, "purple"
        wanted = run.best.predict(holed)
        assert 0 < np.isnan(wanted).any(1).sum() < len(holed)
        saved = run.best.save(tmp_path / "saved")
        for model in (saved, hy.load_model(saved), hy.load_model(saved, recipe=classes, transform=positive)):
            np.testing.assert_allclose(column(predict(model, spread(spark, holed))), wanted, rtol=1e-12)
        with pytest.raises(RunDirectoryError, match=r"recipe= was given: give hy\.load_model\(…, transform=…\) too"):
            predict(hy.load_model(saved, recipe=classes), spread(spark, holed))
        (saved / "transform.pkl").chmod(0o666)
        with pytest.raises(RunDirectoryError, match=r"transform\.pkl: .* trust=True"):
            predict(saved, spread(spark, holed))

    def test_other_columns_may_have_any_name(self, spark: Any, run: hy.Run) -> None:
        from pyspark.sql.functions import lit

        df = spread(spark, frame()).withColumn("a.b", lit(1)).withColumn("c`d", lit("x"))
        found = predict(run, df)
        assert found.columns[-3:] == ["a.b", "c`d", "prediction"]
        np.testing.assert_allclose(column(found), run.best.predict(frame()), rtol=1e-12)
        with pytest.raises(DataError, match=r"has 2 columns named 'row': rename all but one"):
            predict(run, spread(spark, frame()).select("*", "row"))

    def test_a_single_number_is_a_double(self, spark: Any, tmp_path: Path) -> None:
        run = fit(numbers, tmp_path / "run", data("v"))
        df = predict(run.best, spread(spark, frame()), checkpoint="last")
        assert df.schema["prediction"].dataType.simpleString() == "double"
        np.testing.assert_allclose(column(df), run.best.predict(frame())[:, 0], rtol=1e-12)

    @pytest.mark.long
    def test_keras_sigmoid(self, spark: Any, tmp_path: Path) -> None:
        pytest.importorskip("keras")
        pytest.importorskip("tensorflow")
        from hopyard.spark.ml.model import HopyardModel

        run = fit(sigmoid, tmp_path / "run")
        df = predict(run, spread(spark, frame(), 1))
        assert df.schema["prediction"].dataType.simpleString() == "double"
        np.testing.assert_allclose(column(df), run.best.predict(frame())[:, 0], rtol=1e-4)
        assert HopyardModel.of(run).meaning == "probabilities"

    def test_several_outputs_are_a_struct(self, spark: Any, tmp_path: Path) -> None:
        class Two(Linear):
            def predict(self, batch: Any) -> Any:
                made = super().predict(batch)
                return {"first": made[:, 0], "all": made.astype(np.float32)}

        run = fit(lambda config: Two(6, 2, lr=0.1, batch_size=16), tmp_path / "run")
        df = predict(run, spread(spark, frame(30)))
        assert df.schema["prediction"].dataType.simpleString() == "struct<first:double,all:array<float>>"
        expected = run.best.predict(frame(30))
        found = df.orderBy("row").collect()
        np.testing.assert_allclose([row.prediction.first for row in found], expected["first"])
        np.testing.assert_allclose([row.prediction.all for row in found], expected["all"])

    def test_the_transform_comes_along(self, spark: Any, tmp_path: Path) -> None:
        import pyarrow as pa

        def doubled(batch: Any) -> Any:
            names = batch.schema.names
            return (
                pa.record_batch([pa.compute.multiply(batch["a"], 2.0), batch["b"], batch["y"]], ["a2", "b", "y"])
                if ("y" in names)
                else pa.record_batch([pa.compute.multiply(batch["a"], 2.0), batch["b"]], ["a2", "b"])
            )

        rows = hy.Dataset.pandas(frame(), features=["a2", "b"], label="y", transform=doubled, partitions=2)
        run = fit(lambda config: Linear(2, 2, lr=0.1, batch_size=16), tmp_path / "run", rows)
        df = predict(run, spread(spark, frame().drop(columns="y")))
        np.testing.assert_allclose(column(df), run.best.predict(frame()), rtol=1e-12)

    def test_rows_that_the_transform_drops_have_nan(self, spark: Any, tmp_path: Path) -> None:
        import pyarrow as pa

        def clean(batch: Any) -> Any:
            batch = batch.filter(pa.compute.greater(batch["a"], 0.3)).sort_by("b")
            return batch.append_column("a2", pa.compute.multiply(batch["a"], 2.0))

        rows = hy.Dataset.pandas(frame(), features=["a2", "b"], label="y", transform=clean, partitions=2)
        run = fit(lambda config: Linear(2, 2, lr=0.1, batch_size=16), tmp_path / "run", rows)
        expected = run.best.predict(frame())
        assert np.array_equal(np.isnan(expected[:, 0]), frame().a <= 0.3)
        some = frame().drop(columns="y").head(30)
        df = predict(run, spread(spark, some, 15))  # of some partitions all rows are dropped
        np.testing.assert_allclose(column(df), expected[:30], rtol=1e-12)

    def test_vectors_and_arrays(self, spark: Any, tmp_path: Path) -> None:
        from pyspark.ml.linalg import Vectors

        lists = np.random.default_rng(1).standard_normal((60, 4))
        lists[lists < 0] = 0
        y = (lists.sum(1) > 1).astype(np.int64)
        made = pd.DataFrame({"x": lists.tolist(), "y": y})
        run = fit(
            lambda config: Linear(4, 2, lr=0.1, batch_size=16),
            tmp_path / "run",
            hy.Dataset.pandas(made, features=["x"], label="y", partitions=2),
        )
        expected = run.best.predict(made)
        np.testing.assert_allclose(column(predict(run, spread(spark, made))), expected, rtol=1e-12)
        rows = [
            (n, Vectors.dense(x) if n % 3 else Vectors.sparse(4, {int(i): float(x[i]) for i in np.flatnonzero(x)}))
            for n, x in enumerate(lists)
        ]
        df = spark.createDataFrame(rows, ["row", "x"]).repartition(3)
        scored = predict(run, df)
        np.testing.assert_allclose(column(scored), expected, rtol=1e-12)
        assert scored.orderBy("row").first()["x"] == rows[0][1]  # passes as it came

    def test_no_rows_and_empty_partitions(self, spark: Any, run: hy.Run) -> None:
        df = spread(spark, frame(20), 16)
        assert predict(run, df.where("false")).collect() == []
        assert predict(run, df.where("row < 3")).count() == 3

    @pytest.mark.long
    def test_rows_that_cannot_be_encoded(self, spark: Any, run: hy.Run) -> None:
        from pyspark.errors import PythonException
        from pyspark.sql import functions as f

        df = spread(spark, frame(20), 2)
        holed = df.withColumn("b", f.when(f.col("row") != 7, f.col("b")))
        with pytest.raises(PythonException, match=r"DataError: Spark partition \d.*\n?.*column 'b': 1 of its rows"):
            predict(run, holed).collect()
        with pytest.raises(PythonException, match="'purple' is not among the 3 values"):
            predict(run, df.withColumn("kind", f.lit("purple"))).collect()

    def test_rows_that_cannot_be_encoded_may_be_left_out_or_kept(self, spark: Any, run: hy.Run) -> None:
        from pyspark.sql import functions as f

        df = spread(spark, frame(20), 2)
        holed = df.withColumn("b", f.when(f.col("row") != 7, f.col("b")))
        holed = holed.withColumn("kind", f.when(f.col("row") != 9, f.col("kind")).otherwise("purple"))
        expected = run.best.predict(frame(20))
        rest = [n for n in range(20) if n not in (7, 9)]
        np.testing.assert_allclose(column(predict(run, holed, handleInvalid="skip")), expected[rest], rtol=1e-12)
        expected[[7, 9]] = np.nan
        np.testing.assert_allclose(column(predict(run, holed, handleInvalid="keep")), expected, rtol=1e-12)

    def test_refusals_before_anything_runs(self, spark: Any, run: hy.Run, tmp_path: Path) -> None:
        df = spread(spark, frame(5))
        with pytest.raises(DataError, match=r"has no columns 'b', 'kind'; there are: 'a', 'c'"):
            predict(run, df.drop("b", "kind", "y", "v", "row"))
        with pytest.raises(DataError, match=r"column 'a' of the DataFrame .*string"):
            predict(run, df.withColumn("a", df.a.cast("string")))
        with pytest.raises(SpecError, match=r"handleInvalid must be .*, got 'drop'"):
            predict(run, df, handleInvalid="drop")
        for name in (None, "", "\ud800"):
            with pytest.raises(SpecError, match="predictionCol must be"):
                predict(run, df, predictionCol=name)
        with pytest.raises(SpecError, match=r"named 'Prediction', and there is 'prediction' already"):
            predict(run, df.withColumnRenamed("v", "prediction"), predictionCol="Prediction")
        with pytest.raises(SpecError, match="bare model"):
            predict(object(), df)
        with pytest.raises(RunDirectoryError, match=r"no config\.json here"):
            predict(tmp_path, df)
        with pytest.raises(SpecError, match="must be a Spark DataFrame"):
            predict(run, frame())


class TestMapBatches:
    def test_numbers_arrays_and_vectors(self, spark: Any) -> None:
        from pyspark.ml.linalg import Vectors

        rows = [(n, [float(n), 1.0], Vectors.sparse(2, {1: 2.0}), f"t{n}") for n in range(30)]
        df = spark.createDataFrame(rows, ["row", "x", "v", "s"])

        def program(block: dict[str, Any]) -> dict[str, Any]:
            assert block["x"].shape == (len(block["row"]), 2) == block["v"].shape
            return {
                "sum": (block["x"] @ block["v"].T).sum(1).astype(np.float32) / len(block["row"]),
                "outer": block["x"][:, :, None] * np.ones((1, 1, 3), np.float16),
                "text": block["s"],
                "row": block["row"],
            }

        made = map_batches(program, df.repartition(3))
        assert made.schema.simpleString() == ("struct<sum:float,outer:array<array<double>>,text:string,row:bigint>")
        found = made.orderBy("row").collect()
        assert [row.text for row in found] == [f"t{n}" for n in range(30)]
        assert found[5].outer == [[5.0] * 3, [1.0] * 3]
        np.testing.assert_allclose([row["sum"] for row in found], 2.0)

    def test_rows_may_differ_and_schemas_fit(self, spark: Any) -> None:
        df = spark.range(100).repartition(4)
        made = map_batches(lambda block: {"total": [block["id"].sum()]}, df, "total double")
        assert made.schema.simpleString() == "struct<total:double>"
        assert sum(row.total for row in made.collect()) == 4950

    def test_workers_go_on_with_what_they_have(self, spark: Any, tmp_path: Path) -> None:
        """Two executors of one core: the job that finds the schema ends no worker, which may have opened a model."""

        def process(block: dict[str, Any]) -> dict[str, Any]:
            (tmp_path / str(os.getpid())).touch()
            return {"id": block["id"]}

        for _ in range(3):
            assert map_batches(process, spark.range(0, 4, 1, 2)).count() == 4
        assert len(list(tmp_path.iterdir())) <= 2

    def test_columns_are_kept(self, spark: Any) -> None:
        df = spread(spark, frame(20))
        made = map_batches(lambda block: {"twice": block["a"] * 2}, df, columns=np.array(["a"]), keep=np.True_)
        assert made.columns == [*df.columns, "twice"]
        np.testing.assert_allclose(column(made, "twice"), frame(20).a * 2)

    def test_columns_that_nobody_reads_may_hold_anything(self, spark: Any) -> None:
        df = spark.createDataFrame(
            [(1, None, [1.0], (5,)), (2, 0.5, [1.0, 2.0], (6,))],
            "n long, score double, ragged array<double>, st struct<k:int>",
        ).coalesce(1)

        def twice(block: Any) -> Any:
            assert isinstance(block, dict) and list(block) == ["n", "score", "ragged", "st"]
            return {"twice": block.pop("n") * 2}

        assert [row.twice for row in map_batches(twice, df).collect()] == [2, 4]
        kept = map_batches(twice, df, "twice long", keep=True).collect()
        assert [(row.twice, row.score, row.st.k) for row in kept] == [(2, None, 5), (4, 0.5, 6)]

        def wrong(block: Any) -> Any:
            return block["m"]

        from pyspark.errors import PythonException

        with pytest.raises(PythonException, match=r"KeyError: 'm'\n(.*\n)*.*columns 'n', "):
            map_batches(wrong, df, "n long").collect()

        def of_its_own(block: Any) -> Any:
            raise KeyError(np.arange(3))  # has no hash, and no single truth

        with pytest.raises(PythonException, match=r"KeyError: array\(\[0, 1, 2\]\)"):
            map_batches(of_its_own, df, "n long").collect()

    def test_bad_input(self, spark: Any) -> None:
        from pyspark.errors import PythonException

        df = spark.createDataFrame([(1, [1.0]), (None, [1.0, 2.0])], "n long, x array<double>").coalesce(1)
        with pytest.raises(PythonException, match=r"partition 0, block 0: column 'n' of the block: 1 of 2 rows hold"):
            map_batches(lambda block: block, df, columns=["n"])
        with pytest.raises(PythonException, match=r"column 'x' .* length"):
            map_batches(lambda block: block, df, "x array<double>", columns=["x"]).collect()
        with pytest.raises(SpecError, match=r"df is a stream, .* give schema="):
            map_batches(lambda block: block, spark.readStream.format("rate").load())
        with pytest.raises(SpecError, match=r"columns = \['m'\]: the DataFrame has no column 'm'; there are: 'n', 'x'"):
            map_batches(lambda block: block, df, columns=["m"])
        with pytest.raises(SpecError, match="no rows to try"):
            map_batches(lambda block: block, df.where("false"))
        with pytest.raises(PythonException, match=r"with keep=True all need 2"):
            map_batches(lambda b: {"z": [1]}, df, "z long", columns=[], keep=True).collect()
        with pytest.raises(SpecError, match=r"named 'N', .*'n' already"):
            map_batches(lambda b: {"N": [1, 2]}, df, "N long", columns=[], keep=True).collect()


class TestWholeState:
    """What a model keeps beside its weights is in every way to its outputs, bit for bit."""

    @pytest.mark.parametrize(
        "parts",
        [
            [*model_parts.BUFFERS, *model_parts.OTHERS],
            pytest.param(["hidden"], marks=pytest.mark.long),
            pytest.param(["extra-tree", "tied"], marks=pytest.mark.long),
        ],
    )
    def test_outputs_are_those_of_the_run(self, spark: Any, parts: list[str], tmp_path: Path) -> None:
        run, (x, _) = model_parts.trained({"parts": parts}, tmp_path / "run"), model_parts.data(seed=1)
        df = spark.createDataFrame([(row.tolist(), n) for n, row in enumerate(x)], "inputs array<float>, row int")
        df = df.coalesce(1)  # one batch, as below
        expected = run.best.predict(x)
        saved = hy.load_model(run.best.save(tmp_path / "model"))
        np.testing.assert_array_equal(saved.predict(x), expected)
        HopyardModel.of(run).save(str(tmp_path / "of Spark"))
        models: list[Any] = [
            HopyardModel.of(run),
            HopyardModel.of(saved),
            HopyardModel.load(str(tmp_path / "of Spark")),
        ]
        scored = [predict(each, df) for each in (run, saved, tmp_path / "model")]
        scored += [each.setOutputs("values").transform(df) for each in models]
        for each in scored:
            found = each.orderBy("row").select("prediction").collect()
            np.testing.assert_array_equal(np.array([row[0] for row in found], np.float32), expected)
