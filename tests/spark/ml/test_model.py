"""What the Model of pyspark.ml adds to a DataFrame, on real executors."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark")

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.frameworks.linear import Linear
from hopyard.spark.ml.estimator import HopyardModel
from jobs import classes

pytestmark = pytest.mark.spark


def frame(rows: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame(rng.standard_normal((rows, 3)), columns=["a", "b", "c"])
    made["label"] = (made.a + made.b + rng.standard_normal(rows) > 0).astype(np.float64)
    made["amount"] = made.a * 2 - made.c
    made["row"] = range(rows)
    return made


class OneLogit(Linear):
    """The log-odds of class 1."""

    def predict(self, batch: Any) -> Any:
        logits = super().predict(batch)
        return logits[:, 1:] - logits[:, :1]


def area(scored: Any, label: str = "label") -> float:
    """Under the ROC curve, computed from all pairs of rows."""
    found = scored.toPandas()
    raw = np.array([vector[1] for vector in found.rawPrediction])
    above = raw[found[label] == 1][:, None] - raw[found[label] == 0][None, :]
    return float(((above > 0) + 0.5 * (above == 0)).mean())


class TestBinaryClassificationEvaluator:
    @pytest.mark.parametrize("recipe", [classes, lambda config: OneLogit(3, 2, lr=0.3, batch_size=16)])
    def test_with_its_defaults(self, df: Any, make: Any, recipe: Any) -> None:
        from pyspark.ml.evaluation import BinaryClassificationEvaluator

        scored = make(recipe=recipe).fit(df).transform(df)
        assert scored.columns == [*df.columns, "rawPrediction", "probability", "prediction"]
        found = BinaryClassificationEvaluator().evaluate(scored)
        assert found == pytest.approx(area(scored), abs=1e-9)
        assert found > 0.7
        rows = scored.toPandas()
        raw, shares = (np.stack([one.toArray() for one in rows[name]]) for name in ("rawPrediction", "probability"))
        np.testing.assert_allclose(1 / (1 + np.exp(-raw)), shares)

    @pytest.mark.campaign  # `test_estimator.py` has another evaluator in one
    @pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")  # pyspark's own
    def test_inside_a_cross_validator(self, df: Any, make: Any) -> None:
        from pyspark.ml.evaluation import BinaryClassificationEvaluator
        from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

        estimator = make()
        grid = ParamGridBuilder().addGrid(estimator.config, [{"lr": 1e-6}, {"lr": 0.3}]).build()
        made: Any = CrossValidator(
            estimator=estimator,
            estimatorParamMaps=grid,
            evaluator=BinaryClassificationEvaluator(),
            numFolds=2,
            seed=1,
        ).fit(df)
        assert made.avgMetrics[1] > 0.7
        assert made.bestModel.bestConfig in ({"lr": 1e-6}, {"lr": 0.3})
        gc.collect()  # that pool, here


def test_a_regression_gets_a_prediction_only(df: Any, make: Any) -> None:
    recipe = lambda config: Linear(3, 1, lr=0.05, batch_size=16)  # noqa: E731
    model = make(recipe=recipe, labelCol="amount", outputs="auto").fit(df)
    assert model.transform(df).columns == [*df.columns, "prediction"]


def test_thresholds_decide_what_is_predicted(df: Any, make: Any) -> None:
    model = make(thresholds=[1.0, 0.0]).fit(df)
    assert {row.prediction for row in model.transform(df).select("prediction").distinct().collect()} == {1.0}
    with pytest.raises(SpecError, match=r"2 classes, got \[0.2, 0.3, 0.5\]"):
        model.setThresholds([0.2, 0.3, 0.5]).transform(df)


def test_rows_that_cannot_be_encoded(spark: Any, df: Any, make: Any) -> None:
    from pyspark.errors import PythonException
    from pyspark.sql import functions as f

    model = make(handleInvalid="skip").fit(df)
    holed = df.withColumn("b", f.when(f.col("row") % 10 != 3, f.col("b")).when(f.col("row") % 20 == 3, float("nan")))
    scored = model.transform(holed)
    assert scored.count() == 216
    assert {row.row % 10 for row in scored.select("row").collect()} == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    kept = model.setHandleInvalid("keep").transform(holed).toPandas()
    bad = kept.row % 10 == 3
    assert kept.prediction.isna().tolist() == bad.tolist()
    assert np.isnan(np.stack([one.toArray() for one in kept.probability[bad]])).all()
    with pytest.raises(PythonException, match=r'column .b.: \d+ of .* null(.|\n)*handleInvalid="skip"'):
        model.setHandleInvalid("error").transform(holed).collect()


class TestNewColumns:
    @pytest.mark.parametrize("param", ["predictionCol", "probabilityCol", "rawPredictionCol"])
    def test_output_columns_that_are_features_are_refused(self, df: Any, make: Any, param: str) -> None:
        with pytest.raises(SpecError, match=f"{param} = 'B' is the feature column 'b' to Spark"):
            make(**{param: "B"}).fit(df)

    def test_output_columns_with_one_name_are_refused(self, df: Any, make: Any) -> None:
        with pytest.raises(SpecError, match="predictionCol = 'p' is probabilityCol = 'p' to Spark"):
            make(predictionCol="p", probabilityCol="p").fit(df)
        model = make().fit(df).setPredictionCol("probability")
        with pytest.raises(SpecError, match="there is 'probability' already"):
            model.transform(df)

    def test_of_classes_may_be_features_of_a_regression(self, df: Any, make: Any) -> None:
        recipe = lambda config: Linear(3, 1, lr=0.05, batch_size=16)  # noqa: E731
        model = make(recipe=recipe, labelCol="amount", outputs="auto", probabilityCol="a").fit(df)
        assert model.transform(df).columns == [*df.columns, "prediction"]

    def test_may_be_left_out(self, df: Any, make: Any) -> None:
        model = make(rawPredictionCol="", probabilityCol="").fit(df)
        assert model.transform(df).columns == [*df.columns, "prediction"]


def test_features_stay_those_of_the_training(df: Any, make: Any, tmp_path: Path) -> None:
    model = make().fit(df)
    model.save(str(tmp_path / "model"))
    again: Any = HopyardModel.load(str(tmp_path / "model"))
    assert again.getFeaturesCols() == ["a", "b", "c"]
    assert again.transform(df).count() == 240
    with pytest.raises(SpecError, match=r"featuresCols .*\['a', 'b', 'c'\], got \['a'\]"):
        again.setFeaturesCols(["a"]).transform(df)


class TestDoubleLabels:
    def test_auto_sees_classes_where_there_is_an_output_for_each(self, df: Any, make: Any) -> None:
        class Doubles(Linear):
            """Trains on labels that are doubles, as Keras' sparse losses do."""

            def _pass(self, batch: Any) -> Any:
                return super()._pass(hy.Batch(batch.inputs, batch.targets.astype(int), batch.weights, batch.rows))

        model = make(recipe=lambda config: Doubles(3, 2, lr=0.3, batch_size=16), outputs="auto").fit(df)
        assert model.meaning == "logits"
        assert "rawPrediction" in model.transform(df).columns

    def test_auto_says_what_it_took_for_values(self, df: Any, make: Any, caplog: pytest.LogCaptureFixture) -> None:
        recipe = lambda config: Linear(3, 1, lr=0.05, batch_size=16)  # noqa: E731
        assert make(recipe=recipe, outputs="auto").fit(df).meaning == "values"
        assert "set outputs to 'logits'" in caplog.text
        caplog.clear()
        assert make(recipe=recipe, outputs="auto", labelCol="amount").fit(df).meaning == "values"
        assert caplog.text == ""

    def test_a_loss_of_classes_leads_to_outputs(self, df: Any, make: Any) -> None:
        def recipe(config: dict[str, Any]) -> Any:
            import torch

            net = torch.nn.Linear(3, 2)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            return hy.torch.Model(net, optimizer=optimizer, loss=torch.nn.functional.cross_entropy)

        with pytest.raises(hy.PreflightError, match=r"labelCol 'label' is of type double.*set outputs=\"logits\""):
            make(recipe=recipe, outputs="auto").fit(df)
        with pytest.raises(hy.PreflightError) as caught:
            make(recipe=recipe, outputs="auto", labelCol="amount").fit(df)
        assert "outputs=" not in str(caught.value)
        assert make(recipe=recipe).fit(df).meaning == "logits"
