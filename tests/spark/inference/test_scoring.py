"""What is added to the batches of a DataFrame, without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import hopyard as hy
from hopyard.errors import DataError
from hopyard.frameworks.linear import Linear
from hopyard.spark.inference.bundle import ModelTicket, Portable, portable
from hopyard.spark.inference.scoring import Score, probabilities, raw_predictions, score_batches, score_columns

KINDS = ["blue", "green", "red"]


def rows(count: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    made = pd.DataFrame({"a": rng.standard_normal(count), "kind": [KINDS[n % 3] for n in range(count)]})
    made["x"] = list(rng.standard_normal((count, 2)))
    made["y"] = (made.a > 0).astype(np.int64)
    return made


def trained(directory: Path, width: int = 6, **options: Any) -> hy.Run:
    data = hy.Dataset.pandas(
        rows(), features=["a", "kind", "x"], label="y", partitions=2, **{"encode": {"kind": "one-hot"}, **options}
    )
    recipe = lambda config: Linear(width, 2, lr=0.1, batch_size=16)  # noqa: E731
    return hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), directory=directory)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> hy.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return trained(tmp_path_factory.mktemp("run") / "run")


def ticket(model: Portable) -> ModelTicket:
    return ModelTicket(model.digest, dict(model.files))


def score(run: hy.Run, **options: Any) -> Score:
    return Score(ticket(portable(run)), "values", "p", **options)


def holed() -> tuple[Any, list[int]]:
    """A batch, and which of its rows cannot be encoded."""
    batch = pa.RecordBatch.from_pandas(rows(12), preserve_index=False)
    values = batch.to_pydict()
    values["a"][1], values["a"][2], values["a"][3] = None, float("nan"), float("inf")
    values["kind"][5], values["kind"][6] = "purple", None
    values["x"][8], values["x"][9] = None, [1.0, None]
    values["y"][10] = None  # the label, which no model needs
    return pa.RecordBatch.from_pydict(values, schema=batch.schema), [1, 2, 3, 5, 6, 8, 9]


class TestRowsThatCannotBeEncoded:
    def test_are_an_error_that_says_what_could_be_done(self, run: hy.Run) -> None:
        batch, _ = holed()
        with pytest.raises(DataError) as caught:
            list(score_batches(score(run), iter([batch.slice(0, 1), batch.slice(1, 3)])))
        text = str(caught.value)
        assert "Spark partition -1, " in text and " from its row 1: " in text
        assert "column 'a': 3 of its rows" in text
        assert 'handleInvalid="skip"' in text
        assert "trained" not in text and "transform=" not in text
        with pytest.raises(DataError, match=r"'purple' is not among the 3 values .*handleInvalid=\"skip\""):
            list(score_batches(score(run), iter([batch.slice(5, 1)])))

    def test_no_hint_where_it_would_not_help(self, run: hy.Run) -> None:
        batch = pa.RecordBatch.from_pandas(rows(3), preserve_index=False)
        ragged = batch.set_column(2, "x", pa.array([[1.0], [1.0, 2.0], [1.0]]))
        with pytest.raises(DataError, match="rows differ in length") as caught:
            list(score_batches(score(run), iter([ragged])))
        assert "handleInvalid" not in str(caught.value)

    def test_have_nan_where_they_are_kept(self, run: hy.Run) -> None:
        batch, bad = holed()
        (scored,) = score_batches(score(run, invalid="keep"), iter([batch]))
        found = np.array(scored["p"].to_pylist())
        expected = run.best.predict(rows(12))
        expected[bad] = np.nan
        np.testing.assert_allclose(found, expected)

    def test_are_left_out_where_they_are_skipped(self, run: hy.Run) -> None:
        batch, bad = holed()
        parts = [batch.slice(0, 1), batch.slice(1, 3), batch.slice(4, 8)]
        scored = pa.Table.from_batches(score_batches(score(run, invalid="skip"), iter(parts)))
        good = [n for n in range(12) if n not in bad]
        np.testing.assert_allclose(np.array(scored["p"].to_pylist()), run.best.predict(rows(12))[good])
        assert scored["a"].to_pylist() == rows(12).a[good].tolist()

    def test_behind_a_transform_that_filters_and_sorts(self, tmp_path: Path) -> None:
        def clean(batch: Any) -> Any:
            return batch.filter(pa.compute.not_equal(batch["kind"], "green")).sort_by("y")

        run = trained(tmp_path / "run", 5, transform=clean)
        batch = pa.RecordBatch.from_pandas(rows(12), preserve_index=False)
        values = batch.to_pydict()
        values["a"][3] = None
        batch = pa.RecordBatch.from_pydict(values, schema=batch.schema)
        expected = run.best.predict(rows(12))
        expected[3] = np.nan
        (kept,) = score_batches(score(run, invalid="keep"), iter([batch]))
        np.testing.assert_allclose(np.array(kept["p"].to_pylist()), expected)
        (rest,) = score_batches(score(run, invalid="skip"), iter([batch]))
        np.testing.assert_allclose(np.array(rest["p"].to_pylist()), expected[~np.isnan(expected[:, 0])])
        assert np.isnan(expected[:, 0]).sum() == 5

    def test_values_that_the_encoding_fills_are_no_fault(self, tmp_path: Path) -> None:
        run = trained(tmp_path / "run", encode={"kind": hy.Categories("one-hot")}, impute={"a": "mean"}, width=7)
        batch, _ = holed()
        bad = [3, 6, 8, 9]  # infinity; a category that is missing; lists without a value
        (kept,) = score_batches(score(run, invalid="keep"), iter([batch]))
        found = np.array(kept["p"].to_pylist())
        assert np.flatnonzero(np.isnan(found[:, 0])).tolist() == bad
        (rest,) = score_batches(score(run, invalid="skip"), iter([batch]))
        assert rest.num_rows == 12 - len(bad)

    @pytest.mark.slow
    @pytest.mark.long
    def test_fail_before_the_framework_is_imported(self, tmp_path: Path) -> None:
        def recipe(config: dict[str, Any]) -> Any:
            import torch

            net = torch.nn.Linear(2, 2)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            return hy.torch.Model(net, optimizer=optimizer, loss=torch.nn.functional.cross_entropy)

        data = hy.Dataset.numpy(np.eye(2, dtype=np.float32), np.arange(2), partitions=1)
        hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run").best.save(tmp_path / "model")
        code = f"""
import pathlib, sys, pyarrow as pa
from hopyard.errors import DataError
from hopyard.spark.inference import scoring
from hopyard.spark.inference.bundle import ModelTicket
files = {{path.name: path.read_bytes() for path in pathlib.Path({str(tmp_path / "model")!r}).iterdir()}}
score = scoring.Score(ModelTicket("digest", files), "values", "p")
good, bad = ({{"inputs": pa.array([[1.0, value]])}} for value in (2.0, None))
good, bad = pa.RecordBatch.from_pydict(good), pa.RecordBatch.from_pydict(bad)
def fails(batches):
    try:
        list(scoring.score_batches(score, iter(batches)))
    except DataError:
        return "torch" in sys.modules
assert fails([bad]) is False
assert fails([good, bad]) is True
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def test_are_counted_over_batches_some_of_which_are_empty(self, run: hy.Run) -> None:
        batch = pa.RecordBatch.from_pandas(rows(12), preserve_index=False)
        parts = [batch.slice(0, 5), batch.slice(5, 0), batch.slice(5, 7)]
        scored = pa.Table.from_batches(score_batches(score(run), iter(parts)))
        np.testing.assert_allclose(np.array(scored["p"].to_pylist()), run.best.predict(rows(12)))
        bad, _ = holed()
        with pytest.raises(DataError, match="from its row 5"):
            list(score_batches(score(run), iter([batch.slice(0, 5), bad])))


class TestClasses:
    def test_raw_predictions(self) -> None:
        logits = np.array([[1.0, 3.0], [2.0, -1.0]])
        np.testing.assert_allclose(raw_predictions("logits", logits), [[-2, 2], [3, -3]])
        np.testing.assert_allclose(raw_predictions("logits", np.array([[2.0], [-3.0]])), [[-2, 2], [3, -3]])
        three = np.array([[1.0, 2.0, 3.0]])
        np.testing.assert_allclose(raw_predictions("logits", three), three)
        np.testing.assert_allclose(raw_predictions("probabilities", np.array([0.25])), [[0.75, 0.25]])

    def test_raw_predictions_of_two_classes_give_their_probabilities_and_order(self) -> None:
        logits = np.random.default_rng(0).standard_normal((50, 2)) * 20
        raw, shares = raw_predictions("logits", logits), probabilities("logits", logits)
        np.testing.assert_allclose(1 / (1 + np.exp(-raw[:, 1])), shares[:, 1])
        np.testing.assert_array_equal(np.argsort(raw[:, 1]), np.argsort(logits[:, 1] - logits[:, 0]))

    def columns(self, shares: Any, **options: Any) -> dict[str, Any]:
        score = Score(None, "probabilities", "p", **options)  # type: ignore[arg-type]
        return {name: column.to_pylist() for name, column in score_columns(score, np.array(shares)).items()}

    def test_the_columns_stand_in_the_order_of_pyspark(self) -> None:
        assert list(self.columns([[0.2, 0.8]], probability="q", raw="r")) == ["r", "q", "p"]
        assert list(self.columns([[0.2, 0.8]])) == ["p"]

    def test_thresholds(self) -> None:
        shares = [[0.6, 0.4], [0.9, 0.1], [np.nan, np.nan]]
        assert self.columns(shares)["p"][:2] == [0, 0]
        found = self.columns(shares, thresholds=(0.7, 0.3))["p"]
        assert found[:2] == [1, 0] and np.isnan(found[2])
        # a class of threshold 0 wherever it has any probability
        assert self.columns([[1.0, 0.0], [0.999, 0.001]], thresholds=(1.0, 0.0))["p"] == [0, 1]
