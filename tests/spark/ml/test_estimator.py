"""The pyspark.ml Estimator and its Model, on real executors."""

from __future__ import annotations

import gc
import itertools
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import hopyard as hy
from hopyard.data.shared.needed import need
from hopyard.driver.runs.about import manifest_of
from hopyard.driver.runs.loop import RunLoop
from hopyard.errors import DataError, RunDirectoryError, SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spark.inference.scoring import infer_meaning, probabilities
from hopyard.spark.ml import files
from hopyard.spark.ml.dataset import Prepared, Rows
from hopyard.spark.ml.estimator import HopyardEstimator, HopyardModel, _FitIterator
from hopyard.store.layout import Layout
from jobs import classes
from spark_rows import NAME, spark_rows

pytestmark = pytest.mark.spark


def frame(rows: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(rng.standard_normal((rows, 3)), columns=["a", "b", "c"])
    made["label"] = (made.a + made.b > 0).astype(np.float64)
    made["text"] = np.where(made.label > 0, "yes", "no")
    made["amount"] = made.a * 2 - made.c
    made["day"] = date(2026, 1, 1)
    made["held"] = np.arange(rows) % 4 == 0
    made["row"] = range(rows)
    return made


def numbers(config: dict[str, Any]) -> Any:
    return Linear(3, 1, lr=config["lr"], batch_size=16)


def accuracy(scored: Any, label: str = "label") -> float:
    found = scored.toPandas()
    return float((found.prediction == found[label]).mean())


class TestFit:
    @pytest.mark.long
    @pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")  # pyspark's own
    def test_fits_of_a_cross_validator_at_once(self, df: Any, make: Any, spark: Any) -> None:
        """Each asks for all slots of the session."""
        from pyspark.ml.evaluation import MulticlassClassificationEvaluator
        from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

        folds = df.withColumn("fold", (df["row"] % 2).cast("int"))
        estimator = make(engine=None, config=None)
        grid = ParamGridBuilder().addGrid(estimator.config, [{"lr": 0.3}, {"lr": 1e-4}]).build()
        metrics = [
            CrossValidator(
                estimator=estimator,
                estimatorParamMaps=grid,
                evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
                numFolds=2,
                foldCol="fold",
                parallelism=parallelism,
            )
            .fit(folds)
            .avgMetrics
            for parallelism in (1, 2)
        ]
        assert metrics[0] == metrics[1] and metrics[0][0] > 0.8

    def test_search_on_executors(self, df: Any, make: Any) -> None:
        search: dict[str, Any] = {
            "config": None,
            "search": hy.Random(3),
            "space": hy.Space(lr=hy.loguniform(0.01, 1.0)),
        }
        search |= {"stop": hy.ASHA(2, sync=True), "metric": "val_accuracy", "mode": "max"}
        model = make(**search, engine=None, workers=2, validationCol="held").fit(df)
        assert model.run.status == "completed"
        assert sorted(trial.status for trial in model.run.trials) == ["completed", "stopped", "stopped"]
        assert model.bestConfig == model.run.best.config
        assert model.metrics["val_accuracy"] == model.run.best.metrics["val_accuracy"] > 0.7
        scored = model.transform(df)
        assert scored.columns == [*frame().columns, "rawPrediction", "probability", "prediction"]
        found = scored.orderBy("row").toPandas()
        logits = model.run.best.predict(frame())
        np.testing.assert_allclose(np.stack([v.toArray() for v in found.probability]), probabilities("logits", logits))
        assert (found.prediction == logits.argmax(1)).all()
        assert found.prediction.dtype == np.float64

    def test_regression_and_evaluator(self, df: Any, make: Any) -> None:
        from pyspark.ml.evaluation import RegressionEvaluator

        model = make(recipe=numbers, outputs="auto", labelCol="amount", config={"lr": 0.05}, epochs=4).fit(df)
        scored = model.setPredictionCol("guess").transform(df)
        assert scored.columns[-1] == "guess"
        assert scored.schema["guess"].dataType.simpleString() == "double"
        assert RegressionEvaluator(labelCol="amount", predictionCol="guess", metricName="r2").evaluate(scored) > 0.9

    def test_text_labels(self, df: Any, make: Any) -> None:
        model = make(labelCol="text", encode={"text": "index"}, outputs=None, epochs=4).fit(df)
        assert model.labels == ["no", "yes"]
        assert model.meaning == "logits"
        assert accuracy(model.transform(df)) > 0.8

    def test_missing_values_and_other_categories(self, spark: Any, make: Any, tmp_path: Path) -> None:
        rows = frame()[["a", "b", "label", "text"]]
        rows.loc[::7, "a"], rows.loc[::5, "text"] = np.nan, None
        rows.loc[::60, "text"] = [f"rare {n}" for n in range(4)]
        df = spark.createDataFrame(rows)
        encode = {"text": hy.Categories(min_frequency=10)}
        impute = {"a": "mean", "text": ("constant", "?")}
        estimator = make(
            recipe=lambda config: Linear(6, 2, lr=0.3, batch_size=16),
            featuresCols=["a", "b", "text"], encode=encode, impute=impute,
        )  # fmt: skip
        estimator.write().save(str(tmp_path / "estimator"))
        loaded = HopyardEstimator.load(str(tmp_path / "estimator")).setEngine(hy.Inline())  # type: ignore[attr-defined]
        assert (loaded.getEncode(), loaded.getImpute()) == (encode, impute)
        model = loaded.fit(df)
        manifest = manifest_of(Layout(model.run.directory))
        assert manifest.vocabularies == {"text": ["?", "no", "yes"]} and manifest.fills["text"] == "?"
        assert manifest.fills["a"] == pytest.approx(rows["a"].mean())
        assert model.transform(df).where("prediction is null or isnan(prediction)").count() == 0
        with pytest.raises(SpecError, match=r"impute must be .* 'mean'"):
            make(impute="mean")

    def test_rows_go_by_a_key(self, df: Any, make: Any) -> None:
        names = Rows.of(make(keyCol="row", validation=0.2)).dataset(df).prepare().row_names
        assert names is not None and names.key == ["row"]

    def test_param_maps(self, df: Any, make: Any) -> None:
        estimator = make()
        models = estimator.fit(df, [{estimator.config: {"lr": 0.001}}, {estimator.predictionCol: "p"}])
        assert [model.bestConfig["lr"] for model in models] == [0.001, 0.3]
        assert [model.getPredictionCol() for model in models] == ["prediction", "p"]
        assert len({model.run.directory for model in models}) == 2
        assert len({model.run._inputs.data.url for model in models}) == 1  # read once

    def test_the_rows_go_when_the_fits_end_also_when_one_fails(self, df: Any, make: Any, tmp_path: Path) -> None:
        store = tmp_path / "rows"
        estimator = make(store=str(store))
        seen = []

        def watched(config: dict[str, Any]) -> Any:
            seen.append(len(list(store.glob("spark-*/manifest.json"))))
            if config["lr"] > 1:
                raise RuntimeError("too fast")
            return classes(config)

        estimator.setRecipe(watched)
        estimator.fit(df)
        assert list(store.glob("spark-*")) == []
        with pytest.raises(hy.PreflightError, match="too fast"):
            estimator.setConfig({"lr": 2.0}).fit(df)
        assert list(store.glob("spark-*")) == []
        assert set(seen) == {1}

    def test_the_rows_of_an_interrupted_fit_stay_for_its_run(
        self, df: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from pyspark.ml import PipelineModel

        turn = RunLoop.turn

        def stopped(loop: RunLoop) -> None:
            turn(loop)
            if loop.machine.status == "running":
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(RunLoop, "turn", stopped)
            make(store=str(tmp_path / "rows")).fit(df)
        (run,) = (tmp_path / "runs").iterdir()
        (rows,) = (tmp_path / "rows").glob("spark-*")
        assert f"the rows in {rows} stay there: `hopyard resume {run}` goes on with them" in caplog.text
        resumed = hy.resume(run)
        assert resumed.status == "completed"
        model = HopyardModel.of(resumed)
        assert model.run is resumed and model.meaning == "logits"
        assert (model.getFeaturesCols(), model.getLabelCol()) == (["a", "b", "c"], "label")  # type: ignore[attr-defined]
        saved = resumed.best.save(tmp_path / "saved")
        scored = [
            PipelineModel([HopyardModel.of(each)]).transform(df).orderBy("row").select("probability").collect()
            for each in (resumed, resumed.best, saved, hy.load_model(saved))
        ]
        assert all(each == scored[0] for each in scored) and accuracy(model.transform(df)) > 0.7
        for wrong in (resumed.best.model(), None):
            with pytest.raises(SpecError, match="must be a Run, a Trial, a SavedModel or the directory"):
                HopyardModel.of(wrong)
        with pytest.raises(RunDirectoryError, match=r"hopyard\.load\("):
            HopyardModel.of(run)


def folder(name: str) -> str:
    """Of the rows with the name "a", "b", …; those of "d" are bad."""
    return NAME.format(int(name, 16))


class TestWhatIsWritten:
    """Of the rows, without Spark."""

    @pytest.fixture
    def prepared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        class Written:
            def __init__(self, name: str) -> None:
                self.url = str(tmp_path / folder(name))

            def prepare(self) -> Any:
                spark_rows(str(tmp_path), int(self.url[-1], 16), half=self.url == str(tmp_path / folder("d")))
                if self.url == str(tmp_path / folder("d")):
                    raise DataError("bad rows")

        monkeypatch.setattr(Rows, "dataset", lambda self, df: Written(self.params["name"]))
        return Prepared(None)

    def test_with_the_last_fit(self, prepared: Any, tmp_path: Path) -> None:
        def fitted(name: str) -> Any:
            prepared.get(Rows({"name": name}))
            return sorted(path.name for path in tmp_path.iterdir())

        each = _FitIterator([lambda name=name: fitted(name) for name in "aba"], prepared.close)  # type: ignore[misc]
        assert next(each) == (0, [folder("a")])
        assert next(each) == (1, [folder("a"), folder("b")])
        assert next(each) == (2, [folder("a"), folder("b")])
        assert list(tmp_path.iterdir()) == []
        assert list(each) == []

    def test_with_one_that_fails(self, prepared: Any, tmp_path: Path) -> None:
        each = _FitIterator(
            [lambda name=name: prepared.get(Rows({"name": name})) for name in ("a", "d", "c")],  # type: ignore[misc]
            prepared.close,
        )
        next(each)
        with pytest.raises(DataError, match="bad rows"):
            next(each)
        assert list(tmp_path.iterdir()) == []

    def test_files_of_a_run_stay(self, prepared: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name in "ab":
            prepared.get(Rows({"name": name}))
        (tmp_path / "run").mkdir()
        manifest: Any = SimpleNamespace(key="k", path=str(tmp_path / folder("a")), stored=None)
        need(manifest, tmp_path / "run")
        prepared.close()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run", folder("a")]
        assert f"`hopyard resume {tmp_path / 'run'}` goes on with them" in caplog.text


def test_rows_go_with_their_owner(tmp_path: Path) -> None:
    prepared = Prepared(None)
    prepared._urls.append(spark_rows(str(tmp_path)))
    del prepared
    gc.collect()
    assert list(tmp_path.iterdir()) == []


class TestInsidePysparkMl:
    def test_predictions_have_the_values_that_string_indexer_gave_the_label(
        self, df: Any, make: Any, tmp_path: Path
    ) -> None:
        from pyspark.ml.feature import IndexToString

        attributes = {"type": "nominal", "name": "label", "vals": ["no", "yes"]}
        model = make(outputs="auto").fit(df.withMetadata("label", {"ml_attr": attributes}))
        model.save(str(tmp_path / "model"))
        back = IndexToString(inputCol="prediction", outputCol="answer")
        for each in (model, HopyardModel.load(str(tmp_path / "model"))):
            assert each.labels == ["no", "yes"]
            rows = back.transform(each.transform(df)).select("prediction", "answer").distinct().collect()
            assert {(row.prediction, row.answer) for row in rows} == {(0.0, "no"), (1.0, "yes")}

    @pytest.mark.long
    def test_pipeline_and_files(self, spark: Any, df: Any, make: Any, tmp_path: Path) -> None:
        from pyspark.ml import Pipeline, PipelineModel
        from pyspark.ml.evaluation import BinaryClassificationEvaluator
        from pyspark.ml.feature import StringIndexer, VectorAssembler

        indexer = StringIndexer(inputCol="text", outputCol="number", stringOrderType="alphabetAsc")
        assembler = VectorAssembler(inputCols=["a", "b", "c"], outputCol="features")
        estimator = make(featuresCols=None, labelCol="number", outputs="auto", standardize=True, validation=0.2)
        model = Pipeline(stages=[indexer, assembler, estimator]).fit(df)
        scored = model.transform(df)
        assert accuracy(scored, "number") > 0.8
        evaluator = BinaryClassificationEvaluator(labelCol="number", rawPredictionCol="probability")
        assert evaluator.evaluate(scored) > 0.9
        model.write().overwrite().save(str(tmp_path / "pipeline"))
        again = PipelineModel.load(str(tmp_path / "pipeline"))
        assert again.stages[-1].uid == model.stages[-1].uid
        one, other = (made.transform(df).select("row", "prediction", "probability") for made in (model, again))
        assert one.orderBy("row").collect() == other.orderBy("row").collect()

    @pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")  # pyspark's own
    def test_cross_validation(self, df: Any, make: Any) -> None:
        from pyspark.ml.evaluation import MulticlassClassificationEvaluator
        from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

        estimator = make()
        grid = ParamGridBuilder().addGrid(estimator.config, [{"lr": 1e-6}, {"lr": 0.3}]).build()
        evaluator = MulticlassClassificationEvaluator(metricName="logLoss")  # type: ignore[arg-type]
        made: Any = CrossValidator(
            estimator=estimator, estimatorParamMaps=grid, evaluator=evaluator, numFolds=2, seed=1, parallelism=2
        ).fit(df)
        assert made.avgMetrics[0] > made.avgMetrics[1]
        assert made.bestModel.bestConfig == {"lr": 0.3}
        gc.collect()  # that pool, here


class TestFiles:
    def test_model(self, df: Any, make: Any, tmp_path: Path) -> None:
        model = make(featuresCols=["a", "b", "c"]).fit(df).setProbabilityCol("")
        model.save(str(tmp_path / "model"))
        again = HopyardModel.load(str(tmp_path / "model"))
        assert again.run is None
        assert again.bestConfig == model.bestConfig
        assert again.metrics == model.metrics
        scored = again.transform(df)
        assert scored.columns[-1] == "prediction"
        assert scored.orderBy("row").collect() == model.transform(df).orderBy("row").collect()
        with pytest.raises(
            RunDirectoryError, match=r"holds a hopyard\.spark\.ml\.model\.HopyardModel, not a HopyardEst"
        ):
            HopyardEstimator.load(str(tmp_path / "model"))

    def test_a_model_in_a_shared_directory_needs_trust(self, spark: Any, df: Any, make: Any, tmp_path: Path) -> None:
        path = tmp_path / "a model"
        make().fit(df).save(str(path))
        file = next((path / "files").glob("part-*"))
        for place in (file, path / "files", path):
            before = place.stat().st_mode
            place.chmod(0o777)
            with pytest.raises(RunDirectoryError, match=r"all users may write .* spark\.hopyard\.trust=true"):
                HopyardModel.load(str(path))
            with pytest.raises(RunDirectoryError, match="all users may write"):
                HopyardModel.load(f"file:{path}")
            place.chmod(before)
        path.chmod(0o777)
        spark.conf.set("spark.hopyard.trust", "true")
        try:
            for name in (str(path), f"file:{path}", f"file://{path}"):
                assert HopyardModel.load(name).bestConfig == {"lr": 0.3}
        finally:
            spark.conf.unset("spark.hopyard.trust")

    def test_estimator(self, df: Any, make: Any, tmp_path: Path) -> None:
        space = hy.Space(lr=hy.choice([0.1, 0.3]))
        estimator = make(config=None, space=space, search=hy.Grid(), engine=None)
        path = str(tmp_path / "estimator")
        estimator.save(path)
        again: Any = HopyardEstimator.load(path)
        assert again.uid == estimator.uid
        assert repr(again.getSpace()) == repr(space)
        assert again.getEpochs() == 2
        assert again.getFeaturesCols() == ["a", "b", "c"]
        assert len(again.setEngine(hy.Inline()).fit(df).run.trials) == 2
        estimator.write().overwrite().save(path)


class TestOverwritten:
    """The old or the new version is there, whatever ends the writer, and whoever reads meanwhile."""

    @pytest.mark.long
    def test_a_writer_that_is_killed(self, df: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each write of Spark is a point, before it, halfway in and after it."""
        from pyspark.sql import DataFrameWriter

        class Killed(BaseException):
            pass

        old, new = [make(config={"lr": lr}).fit(df) for lr in (0.3, 0.1)]
        path, points, at = tmp_path / "a model", itertools.count(), -1

        def killed_at_a_point(real: Any) -> Any:
            def call(first: Any, target: str) -> None:
                if next(points) == at:
                    raise Killed
                if next(points) == at:
                    if real.__name__ == "parquet":  # what a killed job leaves
                        (Path(target) / "_temporary").mkdir(parents=True)
                        (Path(target) / "part-0.parquet").write_bytes(b"half")
                    raise Killed
                real(first, target)
                if next(points) == at:
                    raise Killed

            return call

        for owner, name in ((DataFrameWriter, "parquet"), (DataFrameWriter, "text"), (files, "_delete")):
            monkeypatch.setattr(owner, name, killed_at_a_point(getattr(owner, name)))
        old.save(str(path))
        before = shutil.copytree(path, tmp_path / "before")
        found = []
        for point in range(50):
            points, at = itertools.count(), point
            try:
                new.write().overwrite().save(str(path))
            except Killed:
                pass
            else:
                break
            loaded = HopyardModel.load(str(path))
            assert loaded._model.digest in (old._model.digest, new._model.digest)
            assert loaded.uid == (old if loaded._model.digest == old._model.digest else new).uid
            found.append(loaded.uid == old.uid)
            if point % 2:  # every other one goes on from what the kill left
                shutil.rmtree(path)
                shutil.copytree(before, path)
        assert found.count(True) >= 4 and found.count(False) >= 4
        assert HopyardModel.load(str(path)).uid == new.uid
        assert len(list(path.iterdir())) == 2 and len(list((path / "metadata").glob("part-*"))) == 1

    @pytest.mark.long
    def test_a_reader_meanwhile(self, df: Any, make: Any, tmp_path: Path) -> None:
        models = [make(config={"lr": lr}).fit(df) for lr in (0.3, 0.1)]
        path = str(tmp_path / "model")
        models[0].save(path)
        with ThreadPoolExecutor(1) as pool:
            writes = pool.submit(lambda: [models[n % 2].write().overwrite().save(path) for n in range(4)])
            while not writes.done():
                assert HopyardModel.load(path).uid in (models[0].uid, models[1].uid)
            writes.result()

    def test_overwriting_foreign_files_follows_pyspark(self, df: Any, make: Any, tmp_path: Path) -> None:
        from pyspark.ml.feature import StandardScaler

        path = str(tmp_path / "model")
        StandardScaler(inputCol="a", outputCol="b").save(path)
        with pytest.raises(RunDirectoryError, match=r"holds a .*StandardScaler"):
            HopyardModel.load(path)
        model = make().fit(df)
        model.write().overwrite().save(path)
        assert HopyardModel.load(path).uid == model.uid


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"epoch": 3}, r"HopyardEstimator\(epoch=…\): .* 'epochs'\?"),
            ({"epochs": 0}, r"epochs must be .*, got 0"),
            ({"recipe": 3}, r"recipe must be .*, got 3"),
            ({"validation": 1.5}, r"validation must be .*, got 1\.5"),
            ({"outputs": "odds"}, "outputs must be .*, got 'odds'"),
            ({"search": "random"}, r"search must be .*, got 'random'"),
            ({"featuresCols": "a"}, "featuresCols must be .*, got 'a'"),
            ({"engine": hy.Local}, "engine must be .*, got <class"),
        ],
    )
    def test_values(self, make: Any, given: dict[str, Any], match: str) -> None:
        with pytest.raises(SpecError, match=match):
            make(**given)

    @pytest.mark.parametrize(
        ("given", "match"),
        [
            ({"recipe": None}, "recipe must be set"),
            ({"metric": "accuracy"}, 'mode is not set: metric = \'accuracy\' needs "min" or "max"'),
            ({"search": hy.Random(2)}, "set config alone"),
            ({"config": None}, "set config alone"),
            ({"space": hy.Space(lr=hy.choice([1]))}, "set config alone"),
            ({"config": None, "search": hy.Random(2)}, r"search = Random.* needs a space"),
            ({"labelCol": "lable"}, r"labelCol = 'lable' .*'label'\?"),
            (
                {"featuresCols": ["a", "z", "qq"], "labelCol": "lable"},
                r"has no columns 'z', 'qq', 'lable' \(did you mean 'label'\?\); there are: 'a', 'b'(.|\n)*They are\n"
                r"  featuresCols\[1\] = 'z'\n  featuresCols\[2\] = 'qq'\n  labelCol = 'lable'",
            ),
            ({"keyCol": "rows"}, r"keyCol = 'rows' .*'row'\?"),
            ({"featuresCols": None}, "featuresCol = 'features' "),
            (
                {"featuresCols": ["a", "text", "day"]},
                r"2 features cannot be used:\n  column 'text' .* type string(.|\n)*\n  column 'day' .* type date",
            ),
            ({"featuresCols": None, "featuresCol": "text"}, "featuresCol names 'text', which has type string"),
            ({"validation": 0.2, "validationCol": "held"}, "validation and validationCol are both set"),
        ],
    )
    def test_before_anything_is_trained(
        self, df: Any, make: Any, given: dict[str, Any], match: str, tmp_path: Path
    ) -> None:
        with pytest.raises((SpecError, DataError), match=match):
            make(**given).fit(df)
        assert not (tmp_path / "runs").exists()

    def test_of_a_session_that_was_stopped(self, make: Any, tmp_path: Path) -> None:
        """Bug: Python's and pyspark's own errors came: 'NoneType' object has no attribute 'sc'."""
        rows = frame(40).assign(label=lambda each: each.label.astype(int))
        data = hy.Dataset.pandas(rows, features=["a", "b", "c"], label="label", partitions=2)
        run = hy.fit(classes, {"lr": 0.3}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
        stopped = SimpleNamespace(
            mapInArrow=None, sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)), columns=["a"]
        )
        for act in (
            make(engine=None).fit, HopyardModel.of(run).transform, partial(hy.spark.predict, run),
            partial(hy.spark.map_batches, dict),
        ):  # fmt: skip
            with pytest.raises(SpecError, match=r"session .*was stopped"):
                act(stopped)  # type: ignore[arg-type]

    def test_nulls_lead_to_what_a_data_frame_has(self, df: Any, make: Any) -> None:
        from pyspark.sql import functions as f

        holed = df.withColumn("b", f.when(f.col("row") != 7, f.col("b")))
        with pytest.raises(DataError, match=r"'b': 1 of .* null(.|\n)*df\.na\.drop\(subset=\['b'\]\)") as e:
            make().fit(holed)
        assert "transform=" not in str(e.value)

    def test_param_maps_are_checked(self, df: Any, make: Any) -> None:
        estimator = make()
        with pytest.raises(SpecError, match=r"epochs .* 'many'"):
            estimator.fit(df, {estimator.epochs: "many"})
        with pytest.raises(ValueError, match=r"epochs .* -1"):
            estimator.set(estimator.epochs, -1)

    def test_decimals_number_classes_like_doubles(self, df: Any, make: Any) -> None:
        """Bug: they were taken for values, which was a fault of shapes."""
        decimal = df.withColumn("label", df.label.cast("decimal(3,0)"))
        assert accuracy(make().fit(decimal).transform(decimal)) == accuracy(make().fit(df).transform(df))

    def test_labels_of_classes_are_whole(self, df: Any, make: Any) -> None:
        with pytest.raises(DataError, match=r"labelCol 'amount' holds -?\d+\.\d+, .* set outputs=\"values\""):
            make(labelCol="amount").fit(df)

    def test_outputs_that_are_no_classes(self, df: Any, make: Any) -> None:
        model = make(featuresCols=["a", "b", "c"]).fit(df)
        model._sample = {"one": np.zeros((2, 2)), "two": np.zeros(2)}
        with pytest.raises(SpecError, match="several outputs"):
            model.transform(df)


class Lookup(Linear):
    """A probability of class 1, for a whole number that is 0, 1 or 2; other numbers are no rows of its table."""

    def predict(self, batch: Any) -> Any:
        if not np.isin(batch.inputs, (0, 1, 2)).all():
            raise IndexError("no such row")
        return np.where(batch.inputs == 2, 0.9, 0.2)


class TestMeaning:
    @pytest.mark.parametrize("kind", ["long", "double"])
    def test_meaning_is_inferred_from_rows_of_the_data(self, spark: Any, make: Any, kind: str) -> None:
        df = spark.range(30).selectExpr(f"cast(id % 3 as {kind}) code", "cast(id % 3 = 2 as int) label")
        recipe = {
            "recipe": lambda config: Lookup(1, 2, lr=0.1, batch_size=16),
            "outputs": "auto",
            "featuresCols": ["code"],
            "partitions": 1,
        }
        model = make(**recipe).fit(df)
        assert model.meaning == "probabilities"
        assert accuracy(model.transform(df)) == 1.0

    @pytest.mark.parametrize("lost", [True, False], ids=["query", "values"])
    def test_meaning_is_inferred_from_generated_rows_where_real_ones_fail(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: bool
    ) -> None:
        class Few:
            def limit(self, rows: int) -> Few:
                return self

            def toArrow(self) -> pa.Table:
                if lost:
                    raise RuntimeError("the executor is lost")
                return pa.table({"x": ["no number"]})

        rows = frame(40)
        data = hy.Dataset.numpy(rows[["a", "b", "c"]].to_numpy(), rows.label.astype(int).to_numpy(), partitions=2)
        run = hy.fit(classes, {"lr": 0.3}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
        monkeypatch.setattr("hopyard.spark.ml.model.narrowed", lambda *_: Few())
        assert HopyardModel.of(run, object()).meaning == "logits"
        assert "made-up rows" in caplog.text
        assert ("RuntimeError: the executor is lost" in caplog.text) == lost

    def test_rows_that_say_nothing(self) -> None:
        assert infer_meaning(np.full((64, 1), 0.37), 2) == "probabilities"  # of a model that makes no difference
        assert infer_meaning(np.array([np.nan, np.inf, 0.2, 0.9]), 2) == "probabilities"
        assert infer_meaning(np.array([[np.nan, 0.5], [0.25, 0.75]]), 2) == "probabilities"
        assert infer_meaning(np.full((4, 1), np.nan), 2) == "logits"

    def test_meaning_is_inferred_from_generated_rows(self) -> None:
        rng = np.random.default_rng(0)
        logits = rng.standard_normal((64, 3))
        shares = probabilities("logits", logits)
        assert infer_meaning(logits, 3) == "logits"
        assert infer_meaning(shares, 3) == "probabilities"
        assert infer_meaning(shares, None) == "values"
        assert infer_meaning(shares[:, :1], 2) == "probabilities"
        assert infer_meaning(logits[:, 0], 2) == "logits"
        assert infer_meaning(logits[:, 0], 3) == "values"
        assert infer_meaning({"a": logits}, 3) == "values"
        assert infer_meaning(rng.standard_normal((64, 3, 2)), 3) == "values"

    def test_probabilities(self) -> None:
        np.testing.assert_allclose(probabilities("logits", np.array([-1e3, 0.0, 1e3])), [[1, 0], [0.5, 0.5], [0, 1]])  # type: ignore[arg-type]
        np.testing.assert_allclose(probabilities("probabilities", np.array([[0.25]])), [[0.75, 0.25]])
        np.testing.assert_allclose(probabilities("logits", np.array([[1e3, 0.0, 0.0]])), [[1, 0, 0]])
