"""What the user holds: the best trial, its model, its metrics, tables; `fit`, `load`, `wait`, `stop`."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

import hopyard as hy
import machines
from hopyard.cli import app
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Began, Dispatch, Failed, Interrupted, Proposed
from hopyard.core.runs.machine import fold
from hopyard.core.runs.records import TrialRecord
from hopyard.driver.runs.loop import RunLoop
from hopyard.driver.runs.run import Run, reasons
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch, RunSpec
from hopyard.store.layout import Layout
from hopyard.views import words
from jobs import (
    CONFIGS,
    WIDTH,
    agents,
    dataset,
    digests,
    driver,
    first_time,
    gone,
    journal,
    linear,
    script,
    select,
    states,
    table,
    troubled,
)

LOCAL = hy.Local(1, devices=None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> hy.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return select(tmp_path_factory.mktemp("run") / "run")


# ------------------------------------------------------------------------------------------------ the best


def told(mode: str, *values: list[float | None], metric: str | None = "val_loss", statuses: Sequence[str] = ()) -> Run:
    """A run that never was: trial → value of its metric in each epoch. All of its trials are completed, or have these
    statuses."""
    spec = RunSpec(epochs=max(len(values[0]), 1), partitions=1, validation=1, metric=metric, mode=mode)  # type: ignore[arg-type]
    machine = fold([Began(at=0.0, spec=spec), *(Proposed(at=0.0, trial=n, config={}) for n in range(len(values)))])
    for n, (trial, history) in enumerate(zip(machine.trials.values(), values, strict=True)):
        record: TrialRecord = trial
        record.status = statuses[n] if statuses else "completed"  # type: ignore[assignment]
        for epoch, value in enumerate(history):
            record.add_epoch(epoch, {} if value is None else {"val_loss": value}, spec)
    return Run(Layout(Path("nowhere")), machine)


NAN = math.nan


@pytest.mark.parametrize(
    ("mode", "values", "best"),
    [
        ("min", ([3.0, 1.0], [2.0, 2.0]), (0, 2)),
        ("max", ([3.0, 1.0], [2.0, 4.0]), (1, 2)),
        ("max", ([3.0, 1.0], [2.0, 2.0]), (0, 1)),
        ("min", ([1.0, 1.0], [1.0, 1.0]), (0, 1)),
        ("min", ([NAN, 2.0], [NAN, NAN]), (0, 2)),
        ("min", ([NAN, NAN], [NAN, 9.0]), (1, 2)),
        ("max", ([NAN, NAN], [-9.0, NAN]), (1, 1)),
        ("min", ([math.inf, math.inf], [NAN, 5.0]), (1, 2)),
        ("min", ([None, None], [None, 5.0]), (1, 2)),
        ("max", ([math.inf, 1.0], [2.0, NAN]), (1, 1)),
        ("min", ([-math.inf, 2.0], [3.0, 4.0]), (0, 2)),
    ],
)
def test_the_best_trial_and_epoch(mode: str, values: Any, best: tuple[int, int]) -> None:
    found = told(mode, *values).best
    assert (found.id, found.epoch) == best


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_trial_with_only_nan_never_wins(mode: str) -> None:
    run = told(mode, [NAN, math.inf], [-math.inf, NAN])
    with pytest.raises(hy.RunFailed, match=r"no trial has a finite val_loss.*checkpoint=.last"):
        run.best  # noqa: B018
    assert run.trials[0].status == "completed"
    assert told(mode, [NAN], [NAN], metric=None).best.id == 0


def test_without_a_metric_the_best_is_the_last_epoch() -> None:
    assert told("min", [1.0, 2.0, 3.0], metric=None).best.epoch == 3


def test_every_trial_has_the_metrics_of_its_best_epoch() -> None:
    run = told("min", [1.0, 2.0], [5.0, 4.0])
    assert [(t.epoch, t.metrics) for t in run.trials] == [(1, {"val_loss": 1.0}), (2, {"val_loss": 4.0})]
    assert run.best.metrics == run.trials[0].metrics
    assert run.trials[0].history == {1: {"val_loss": 1.0}, 2: {"val_loss": 2.0}}


def test_a_trial_without_an_epoch_has_no_metrics() -> None:
    (trial,) = told("min", []).trials
    assert (trial.epoch, trial.metrics, trial.history) == (None, {}, {})


def test_of_a_run(run: hy.Run) -> None:
    assert run.status == "completed"
    assert repr(run) == f"<Run {run.directory} completed: 4 of 4 trials completed>"
    assert [trial.config for trial in run.trials] == CONFIGS
    values = {(t.id, e): t.history[e]["val_loss"] for t in run.trials for e in (1, 2)}
    assert (run.best.id, run.best.epoch) == min(values, key=lambda key: (values[key], key))
    assert run.best.metrics["val_loss"] == min(values.values())
    assert set(run.best.metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert repr(run.trials[0]).startswith("<Trial 0 completed {'lr': 0.1} epoch=2 ")


def test_as_a_table(run: hy.Run) -> None:
    frame = run.to_pandas()
    assert list(frame["trial"]) == [0, 1, 2, 3]
    assert list(frame["lr"]) == [config["lr"] for config in CONFIGS]
    assert list(frame["digest"]) == digests(run)
    assert list(frame["epoch"]) == [trial.epoch for trial in run.trials]
    names = list(run.best.metrics)
    for trial, row in zip(run.trials, frame.to_dict("records"), strict=True):
        assert {name: row[name] for name in names} == trial.history[trial.epoch] == trial.metrics  # type: ignore[index]
        assert {name: row[f"last_{name}"] for name in names} == trial.history[2]
        assert row["seconds"] > 0
    assert (frame["status"] == "completed").all() and (frame["error"] == "").all()


def test_the_order_of_columns_does_not_depend_on_trials_that_failed(tmp_path: Path) -> None:
    configs = [{**CONFIGS[0], "at": 1, "do": "raise"}, CONFIGS[1], {**CONFIGS[2], "width": 3}]
    run = select(tmp_path / "run", troubled, configs)
    metrics = ["loss", "accuracy", "val_loss", "val_accuracy"]
    first = ["trial", "status", "epoch", "seconds", "lr", "at", "do", "width"]
    frame = run.to_pandas()
    assert list(frame["status"]) == ["failed", "completed", "completed"]
    assert list(frame) == [*first, *metrics, *(f"last_{name}" for name in metrics), "digest", "error", "reason"]
    assert list(run.history(config=True)) == ["trial", "epoch", "seconds", "lr", "width", *metrics]


def test_equal_errors_are_reported_once_with_their_trials() -> None:
    run = machines.Run(trials=16, partitions=1)
    for number in range(16):
        error = "no label" if number < 12 else f"error {number}"
        run.give(Failed(at=0.0, slot=0, lease=run.unit(0).lease, fault="user", error=error))
    text = reasons(run.machine)
    assert text.startswith(
        ":\n  trials 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more: no label\n  trial 12, config {}: error 12\n"
    )
    assert text.endswith("\n  and 2 other errors") and text.count("\n") == 4


def test_every_epoch_as_a_table(run: hy.Run) -> None:
    frame = run.history()
    assert list(frame)[:3] == ["trial", "epoch", "seconds"] and "lr" not in frame
    assert [*zip(frame["trial"], frame["epoch"], strict=True)] == [(t, e) for t in range(4) for e in (1, 2)]
    for row in frame.to_dict("records"):
        metrics = run.trials[row["trial"]].history[row["epoch"]]
        assert {name: row[name] for name in metrics} == metrics
    total = run.to_pandas()["seconds"]
    assert list(frame.groupby("trial")["seconds"].sum()) == pytest.approx(list(total))
    joined = run.history(config=True)
    assert list(joined["lr"]) == [config["lr"] for config in CONFIGS for _ in range(2)]
    with pytest.raises(hy.SpecError, match="config must be True or False, got 'yes'"):
        run.history("yes")  # type: ignore[arg-type]


def test_no_column_of_a_table_takes_the_place_of_another(tmp_path: Path) -> None:
    class Odd(Linear):
        def train(self, batch: Batch) -> Any:
            return {**super().train(batch), "error": (1.0 * batch.rows, batch.rows)}

    configs = [{"lr": 0.1, "loss": "hinge", "last_loss": 7, "trial": "first"}]
    run = select(tmp_path / "run", lambda config: Odd(WIDTH, 2, lr=config["lr"], batch_size=16), configs)
    (row,) = run.to_pandas().to_dict("records")
    assert (row["trial"], row["error"], row["metrics/error"], row["last_error"]) == (0, "", 1.0, 1.0)
    assert (row["config/loss"], row["config/last_loss"], row["config/trial"]) == ("hinge", 7, "first")
    assert row["loss"] == run.best.metrics["loss"] and row["last_loss"] == run.best.history[2]["loss"]
    assert {"config/trial", "config/loss", "last_loss", "error"} <= set(run.history(config=True))


def test_as_charts_and_report(run: hy.Run, tmp_path: Path) -> None:
    assert run.gantt(tmp_path / "chart.html").read_text().startswith("<!")
    assert run.gantt(tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(run.trace(tmp_path / "trace.json").read_text())["traceEvents"]
    assert run.report() == Layout(run.directory).report.read_text()
    assert Layout(run.directory).gantt.exists()


def test_of_a_run_in_the_midst_the_best_is_that_of_what_there_is() -> None:
    run = told("min", [3.0, 2.0], [4.0, 1.0], [5.0, 0.5], statuses=("completed", "running", "failed"))
    assert (run.status, run.best.id, run.best.epoch) == ("interrupted", 1, 2)
    assert [trial.status for trial in run.trials] == ["completed", "interrupted", "failed"]
    assert run.best.status == "interrupted"
    assert repr(run).startswith("<Run nowhere interrupted: 1 of 3 ")


# ------------------------------------------------------------------------------------------------ its model


def test_predict_and_evaluate_are_what_plain_arithmetic_gives(run: hy.Run) -> None:
    x, y = table(100, seed=5)
    model = run.best.model()
    outputs = x.astype(np.float64) @ model.weights + model.bias
    np.testing.assert_array_equal(run.best.predict(x).argmax(1), outputs.argmax(1))
    np.testing.assert_allclose(run.best.predict(x), outputs, rtol=1e-12)
    found = run.best.evaluate(hy.Dataset.numpy(x, y, partitions=2))
    shares = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    assert found["loss"] == pytest.approx(-np.log(shares[np.arange(100), y]).mean(), rel=1e-12)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1) == y).mean())


def test_best_and_last_model_of_a_trial(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=[{"lr": 3.0}], epochs=4)
    best, last = run.best.model(), run.best.model("last")
    assert run.best.epoch != 4
    assert not np.array_equal(best.weights, last.weights)
    assert last.steps == 4 * 12
    assert best.steps == run.best.epoch * 12  # type: ignore[operator]
    with pytest.raises(hy.SpecError, match='checkpoint must be "best" or "last"'):
        run.best.model("first")  # type: ignore[arg-type]
    with pytest.raises(hy.SpecError, match=r'checkpoint must be "best" or "last", got .*{"inputs": x, "targets": y}'):
        run.best.evaluate(np.zeros((2, 6)), np.zeros(2))  # type: ignore[arg-type]


def clean(batch: Any) -> Any:
    """Drops rows, sorts the others, and makes a column."""
    batch = batch.filter(pc.greater(batch["a"], -0.5)).sort_by("a")
    return batch.append_column("twice", pc.multiply(batch["a"], 2))


def rows_of(count: int = 200) -> pa.Table:
    a, b = np.random.default_rng(0).standard_normal((2, count)).astype(np.float32)
    return pa.table({"a": a, "b": b, "y": (a + b > 0).astype(np.int64)})


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> hy.Run:
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: cache)
        data = hy.Dataset.arrow(rows_of(), features=["twice", "b"], label="y", transform=clean, partitions=2)
        return hy.fit(
            lambda config: Linear(2, 2, lr=0.1, batch_size=16), {}, data,
            epochs=1, engine=hy.Inline(), directory=tmp_path_factory.mktemp("run") / "run",
        )  # fmt: skip


def test_answers_stand_at_their_rows_whatever_the_transform_drops_and_sorts(
    cleaned: hy.Run, caplog: pytest.LogCaptureFixture
) -> None:
    table = rows_of()
    a, b = (table[name].to_numpy().astype(np.float64) for name in "ab")
    model, left = cleaned.best.model(), table["a"].to_numpy() > -0.5
    wanted = np.column_stack([2 * a, b]) @ model.weights + model.bias
    wanted[~left] = np.nan
    for data in (table, table.to_pandas(), cleaned._for_models.data, table.to_reader(max_chunksize=11)):
        np.testing.assert_allclose(cleaned.best.predict(data), wanted, rtol=1e-5)
    assert caplog.records == []
    found = cleaned.best.evaluate(table)
    assert found["accuracy"] == pytest.approx((wanted[left].argmax(1) == table["y"].to_numpy()[left]).mean())
    said = f"evaluate: the Dataset's transform dropped {(~left).sum()} of 200 rows"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_of_rows_that_are_all_dropped(cleaned: hy.Run) -> None:
    table = rows_of().filter(pc.less(rows_of()["a"], -1))
    answers = cleaned.best.predict(table.slice(0, 3))
    assert answers.shape == (3, 2) and answers.dtype == np.float64 and np.isnan(answers).all()
    with pytest.raises(hy.DataError, match=r"evaluate: .*transform .*3 rows"):
        cleaned.best.evaluate(table.slice(0, 3))


def test_evaluating_without_labels_is_refused(run: hy.Run) -> None:
    with pytest.raises(hy.HopyardError):
        run.best.evaluate(table(10)[0])


def test_a_stored_state_that_was_changed_is_not_given(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1], epochs=1)
    (path,) = Layout(run.directory).states.glob("*.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(hy.TrialFailed, match=r"State .*0-4-\d+.* is damaged"):
        run.best.model()


# ------------------------------------------------------------------------------------------------ load and move


def test_a_run_is_loaded_as_it_was(run: hy.Run) -> None:
    again = hy.load(run.directory)
    assert digests(again) == digests(run)
    assert [trial.history for trial in again.trials] == [trial.history for trial in run.trials]
    x, _ = table(20, seed=6)
    np.testing.assert_array_equal(again.best.predict(x), run.best.predict(x))


def test_by_name_under_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = select(None, configs=CONFIGS[:1])
    assert run.directory.parent == tmp_path / "runs"
    assert repr(run).startswith("<Run runs/")
    assert f"hy.load('runs/{run.directory.name}')" in run.report()
    assert digests(hy.load(run.directory.name)) == digests(run)


def test_the_working_directory_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: relative directories, also the default one, were looked for in the folder of the moment."""
    monkeypatch.chdir(tmp_path)
    run = select(None, configs=CONFIGS[:1], store="states")
    again = hy.load(run.directory.name)
    saved = hy.load_model(run.best.save("saved"))
    weights, files = run.best.model().weights, saved.files()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    for each in (run, again):
        np.testing.assert_array_equal(each.best.model().weights, weights)
        assert each.report().startswith(f"Hopyard run {run.directory}: completed")
        assert (each.status, each.summary()["completed"], len(each.to_pandas())) == ("completed", 1, 1)
        assert each.plot().parent == each.gantt().parent == run.directory
    assert saved.files() == files
    assert hy.resume(run.directory, epochs=3).best.epoch == 3
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.slow
def test_the_working_directory_may_change_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [{**CONFIGS[0], "at": 14, "do": f"wait for {tmp_path / 'go'}"}]
    monkeypatch.chdir(tmp_path)
    run = select(None, troubled, configs, engine=LOCAL, wait=False)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    (tmp_path / "go").touch()
    assert run.wait(60).status == "completed"
    layout = Layout(run.directory)
    assert layout.report.exists() and layout.gantt.exists() and layout.summary.exists()
    assert run.best.model().steps == 24
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.slow
@pytest.mark.programs
def test_the_working_directory_may_change_while_a_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = hy.launch(print, "hello", roles={"worker": 1}, directory="program")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert program.wait(60).status == "completed" and program.directory == tmp_path / "program"
    assert program.logs() and list((tmp_path / "there").iterdir()) == []


def test_a_run_that_was_moved_still_has_its_models(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1])
    run.directory.rename(tmp_path / "elsewhere")
    assert hy.load(tmp_path / "elsewhere").best.model().steps == 24
    assert not run.directory.exists()


def test_a_store_named_from_here_is_found_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    select(tmp_path / "run", configs=CONFIGS[:1], store="states of mine")
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert hy.load(tmp_path / "run").best.model().steps == 24
    assert list((tmp_path / "there").iterdir()) == []


@pytest.mark.parametrize("local", [True, False], ids=["path", "url"])
def test_two_runs_may_have_one_store(tmp_path: Path, local: bool) -> None:
    """Their States have the same addresses, and each deletes what it does not need."""
    store = str(tmp_path / "store") if local else "memory://two-runs"
    runs = [select(tmp_path / name, configs=CONFIGS[:2], store=store, seed=seed) for seed, name in enumerate("ab")]
    models = [hy.load(run.directory).best.model() for run in runs]
    assert not np.array_equal(models[0].weights, models[1].weights)


# ------------------------------------------------------------------------------------------------ wait and stop


def test_inline_in_the_background_is_refused(tmp_path: Path) -> None:
    """Bug: units drew from the generators of the user's own thread, and put them back: the bits of both differed."""
    with pytest.raises(hy.SpecError, match=r"wait = False: hy\.Inline\(\).*hy\.Local\(workers=1\)"):
        select(tmp_path / "run", wait=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupts)
    before = journal(tmp_path / "run")
    with pytest.raises(hy.SpecError, match="wait = False"):
        hy.resume(tmp_path / "run", wait=False)
    assert journal(tmp_path / "run") == before


def interrupts(config: dict[str, Any]) -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_wait_gives_the_run_that_ended(tmp_path: Path) -> None:
    run = select(tmp_path / "run", engine=LOCAL, wait=False)
    assert run.wait(1e17) is run  # more seconds than a lock can wait for
    assert run.status == "completed"
    assert run.wait() is run


@pytest.mark.slow
def test_a_run_that_has_just_begun_has_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, begin = RunLoop.run, threading.Event()
    monkeypatch.setattr(RunLoop, "run", lambda self: (begin.wait(60), loop(self)))
    run = select(tmp_path / "run", engine=LOCAL, wait=False)
    try:
        assert not Layout(run.directory).journal.read_bytes()
        assert (run.summary()["status"], run.summary()["trials"]) == ("running", 0)
        assert run._repr_html_().startswith("<p>&lt;Run ")  # type: ignore[union-attr]
    finally:
        begin.set()
    assert run.wait().summary()["completed"] == len(CONFIGS)


def test_a_notebook_shows_the_trials_of_a_run(run: hy.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run._repr_html_()
    assert shown is not None and shown.startswith(
        f"<p>&lt;Run {run.directory} completed: 4 of 4 trials completed&gt;</p>"
    )
    assert shown.count("<tr") == 1 + len(CONFIGS) and "<th>val_loss</th>" in shown
    assert run.trials[0].digest[:8] not in shown, "64 characters that say nothing to a reader"
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    assert run._repr_html_() is None


def test_a_notebook_shows_the_epochs_of_a_trial(run: hy.Run) -> None:
    shown = run.trials[0]._repr_html_()
    assert shown.startswith("<p>&lt;Trial 0 completed ")
    assert shown.count("<tr>") == 1 + len(run.trials[0].history) and "<th>val_loss</th>" in shown


def test_a_report_of_what_has_no_epoch_yet(tmp_path: Path) -> None:
    select(tmp_path / "run", configs=CONFIGS[:2])
    path = Layout(tmp_path / "run").journal
    lines = path.read_bytes().splitlines(keepends=True)
    first = next(n for n, line in enumerate(lines) if b'"Dispatch"' in line)
    path.write_bytes(b"".join(lines[: first + 1]))
    report = hy.load(tmp_path / "run").report()
    assert "val_loss" in report and "val_val" not in report
    assert [line.split()[0] for line in report.split("Trials,")[1].splitlines()[2:4]] == ["–", "–"]


@pytest.mark.slow
def test_wait_raises_what_the_run_raised(tmp_path: Path) -> None:
    run = select(tmp_path / "run", metric="auc", engine=LOCAL, wait=False)
    for _ in range(2):
        with pytest.raises(hy.PreflightError, match="metric = 'auc'"):
            run.wait()


def test_wait_raises_of_a_failed_run_that_was_read_too(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed) as told:
        select(tmp_path / "run", troubled, [{**CONFIGS[0], "at": 5, "do": "raise"}])
    for _ in range(2):
        with pytest.raises(hy.RunFailed, match="every trial failed") as again:
            hy.load(tmp_path / "run").wait()
        assert str(told.value).startswith(str(again.value))


@pytest.mark.slow
def test_the_summary_says_what_workers_of_a_host_have_moved(tmp_path: Path) -> None:
    """Both train; a host fetches no rows from itself. Inline, the memory of a worker is that of the driver."""
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    configs = [{**config, "at": 3, "do": f"meet {meeting}"} for config in CONFIGS[:3]]
    run = select(tmp_path / "run", troubled, configs, engine=hy.Local(2, devices=None), parallel=hy.Hopper(group="off"))
    summary = run.summary()
    (record,) = summary["hosts"].values()
    manifest = dataset().prepare()
    assert (record["workers"], record["partitions"], record["rows_bytes"]) == (2, 8, manifest.bytes)
    assert record["fetched_bytes"] == record["exchanged_bytes"] == summary["home_idle_seconds"] == 0
    assert record["hop_bytes"] == summary["hop_bytes"] > 0
    assert (record["states"], record["state_bytes"]) == (summary["states"], summary["state_bytes"])
    assert 10 << 20 < record["peak_bytes"] < 10 << 30
    assert "\nHosts" not in run.report() and "\n  workers       up to " in run.report()
    (record,) = select(tmp_path / "inline").summary()["hosts"].values()
    assert record["peak_bytes"] == 0 and record["rows_bytes"] == manifest.bytes
    shown = json.loads(CliRunner().invoke(app, ["show", str(run.directory), "--json"]).stdout)
    assert shown["hosts"] == summary["hosts"]


@pytest.mark.slow
def test_stop_ends_it_and_resume_goes_on(tmp_path: Path) -> None:
    configs = [{**config, "at": 14, "do": "hang", "once": str(tmp_path / "once")} for config in CONFIGS]
    run = select(tmp_path / "run", troubled, configs, engine=hy.Local(1, devices=None), wait=False)
    end = time.monotonic() + 20
    while not (tmp_path / "once").exists():
        assert time.monotonic() < end
        time.sleep(0.005)
    run.stop()
    assert run.wait() is run  # it was asked to end: no error
    last = journal(run.directory)[-1]
    assert isinstance(last, Interrupted)
    assert (last.reason, last.stopped) == ("stopped by the user", True)
    assert run.status == hy.load(run.directory).status == "stopped"
    assert gone(agents(run.directory))
    assert hy.resume(run.directory).status == "completed"


def test_to_wait_for_a_run_that_has_ended_since_it_was_read(tmp_path: Path) -> None:
    select(tmp_path / "run", configs=CONFIGS[:2])
    path = Layout(tmp_path / "run").journal
    whole = path.read_bytes()
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:8]))
    run = hy.load(tmp_path / "run")
    path.write_bytes(whole)
    assert run.wait(60).summary()["completed"] == 2 and all(trial.digest for trial in run.trials)


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_done(tmp_path: Path) -> None:
    """Whether this process drives it or another one."""
    configs = [{**config, "at": 14, "do": f"wait for {tmp_path / 'go'}"} for config in CONFIGS[:2]]
    body = f"select(Path('theirs'), troubled, {configs!r}, engine=hy.Local(1, devices=None))"
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    mine = select(tmp_path / "mine", troubled, configs, engine=hy.Local(1, devices=None), wait=False)
    end = time.monotonic() + 60
    while not (agents(tmp_path / "theirs") if Layout(tmp_path / "theirs").journal.exists() else ()):
        assert time.monotonic() < end
        time.sleep(0.01)
    theirs = hy.load(tmp_path / "theirs")
    for run in (mine, theirs):
        assert (run.status, run.done) == ("running", False)
        for timeout in (0, 0.1):
            with pytest.raises(TimeoutError, match=r"not over after 0(\.1)? seconds; it goes on"):
                run.wait(timeout)
    with pytest.raises(hy.UsageError, match=r"theirs: .*SIGTERM"):
        theirs.stop()
    (tmp_path / "go").touch()
    for run in (mine, theirs):
        assert run.wait(60) is run and run.done
        assert (run.status, run.summary()["completed"], run.summary()["status"]) == ("completed", 2, "completed")
    assert digests(mine) == digests(theirs)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err


@pytest.mark.slow
def test_a_run_is_done_when_its_driver_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: it was done as soon as its journal said so, and to resume it then was refused: it was in use."""
    drive, ended, go = RunLoop.run, threading.Event(), threading.Event()

    def drive_and_wait(self: RunLoop) -> None:
        drive(self)
        ended.set()
        assert go.wait(60)

    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "run", drive_and_wait)
        run = select(tmp_path / "run", configs=CONFIGS[:1], engine=LOCAL, wait=False)
        assert ended.wait(60)
        assert (run.status, run.done, hy.load(run.directory).done) == ("completed", False, False)
        for each in (run, hy.load(run.directory)):
            with pytest.raises(TimeoutError, match="it goes on"):
                each.wait(0)
        go.set()
        assert run.wait().done
    assert hy.resume(run.directory, epochs=4).status == "completed"


def test_a_run_that_has_just_begun_says_so(tmp_path: Path) -> None:
    """Bug: "the driver ended before anything happened", though it lived."""
    (tmp_path / "journal.jsonl").touch()
    with contextlib.closing(os.fdopen(os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT))) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(hy.RunDirectoryError, match="try again"):
            hy.load(tmp_path)
    with pytest.raises(hy.RunDirectoryError, match="journal is empty"):
        hy.load(tmp_path)


def test_objects_that_raise_are_refused_and_not_raised(tmp_path: Path) -> None:
    """Bug: the error of its own repr was raised."""

    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("a rude object")

        def __len__(self) -> int:
            raise RuntimeError("a rude object")

        def __getitem__(self, row: int) -> Any:
            raise RuntimeError("a rude object")

    with pytest.raises(hy.DataError, match=r"items: .*__len__ .*RuntimeError: a rude object"):
        hy.Dataset.torch(Rude())
    with pytest.raises(hy.SpecError, match=r"standardize names .*Rude"):
        hy.Dataset.numpy(*table(), standardize=[Rude()])  # type: ignore[list-item]
    with pytest.raises(hy.SpecError, match=r"metric = .*Rude.* needs"):
        select(tmp_path / "run", metric=[Rude()])


def test_a_run_whose_directory_is_removed_ends(tmp_path: Path) -> None:
    def removing(config: dict[str, Any]) -> Any:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return linear(config)

    with pytest.raises(hy.RunDirectoryError, match="was removed while its driver lives"):
        select(tmp_path / "run", removing, engine=hy.Local(1, devices=None))


def test_paths_that_cannot_be_are_refused(run: hy.Run, tmp_path: Path) -> None:
    with pytest.raises(hy.SpecError, match="path must be"):
        run.gantt("\ud800")
    with pytest.raises(hy.RunDirectoryError, match="File name too long"):
        run.best.save(tmp_path / ("x" * 5000))
    with pytest.raises(hy.RunDirectoryError, match="File name too long"):
        hy.load("x" * 100_000)


@pytest.mark.slow
def test_the_logs_of_a_run(tmp_path: Path, run: hy.Run) -> None:
    def recipe(config: dict[str, Any]) -> Any:
        print("a worker built", config)
        return linear(config)

    local = select(tmp_path / "local", recipe, CONFIGS[:1], engine=hy.Local(1, devices=None))
    assert "a worker built {'lr': 0.1}" in local.logs() and local.logs() == local.logs(0)
    with pytest.raises(hy.SpecError, match=r"logs\(slot=7\): .*: 0"):
        local.logs(7)
    assert run.logs() == ""  # nothing was printed


@pytest.mark.slow
def test_stop_at_once_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the driver has not come so far that there is a loop to stop."""
    from hopyard.driver.runs import session as runs

    sweep = runs.sweep  # type: ignore[attr-defined]
    monkeypatch.setattr(runs, "sweep", lambda root: (time.sleep(0.3), sweep(root))[1])
    run = select(tmp_path / "run", troubled, [{**CONFIGS[0], "at": 14, "do": "raise"}], engine=LOCAL, wait=False)
    run.stop()
    assert run.status == "stopped"
    assert not [line for line in journal(run.directory) if isinstance(line, Dispatch)]


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path, run: hy.Run) -> None:
    both = [select(tmp_path / name, engine=hy.Local(1, devices=None), wait=False) for name in "ab"]
    assert [digests(each.wait()) for each in both] == [digests(run)] * 2


@pytest.mark.slow
def test_a_run_that_died_says_so_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object in the same process, whoever loads it, and the command line; and the best of what there is can be
    had."""
    turn = RunLoop.turn

    def until_an_epoch(self: RunLoop) -> None:
        turn(self)
        record = words.best(self.machine)
        if record is not None and record.durable_step >= (record.best + 1) * self.machine.spec.partitions:  # type: ignore[operator]
            raise hy.ResourceError("no room at all")

    with monkeypatch.context() as patch:
        patch.setattr(RunLoop, "turn", until_an_epoch)
        run = select(tmp_path / "run", parallel=hy.Hopper("off"), engine=LOCAL, wait=False)
        with pytest.raises(hy.ResourceError, match="no room at all"):
            run.wait()
    assert (run.status, hy.load(run.directory).status) == ("interrupted", "interrupted")
    best = hy.load(run.directory).best
    assert best.status in ("waiting", "interrupted", "completed")
    assert best.model().steps == 12 * best.epoch  # type: ignore[operator]
    assert "interrupted (ResourceError: no room at all)" in run.report()
    rows = CliRunner().invoke(app, ["ls", str(tmp_path), "--json"]).stdout
    assert [row["status"] for row in json.loads(rows)] == ["interrupted"]
    shown = CliRunner().invoke(app, ["show", str(run.directory)]).stdout
    assert "interrupted (ResourceError: no room at all)" in shown and "running" not in shown
    assert hy.resume(run.directory).status == "completed"


# ------------------------------------------------------------------------------------------------ kinds of recipes


def test_fit_is_a_run_of_one_trial(tmp_path: Path, run: hy.Run) -> None:
    one = hy.fit(linear, CONFIGS[0], dataset(), epochs=2, engine=hy.Inline(), directory=tmp_path / "run")
    assert digests(one) == digests(run)[:1]
    assert one.best.epoch == 2
    with pytest.raises(hy.SpecError, match=r"config must be .*, got \[1\]"):
        hy.fit(linear, [1], dataset(), epochs=2)  # type: ignore[arg-type]


class Perceptron(hy.Trainable):
    """Written by hand, in torch, from the docstring of Trainable: tensors in its reports, an array to be folded."""

    def __init__(self, inputs: int, classes: int, seed: int) -> None:
        import torch

        self.batch_size = 16
        self.net = torch.nn.Linear(inputs, classes)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.seed = seed

    def state(self) -> Any:
        return {"net": self.net.state_dict(), "seed": self.seed}

    def load(self, tree: Any) -> None:
        assert tree["seed"] == self.seed
        self.net.load_state_dict(tree["net"])

    def _report(self, batch: Batch) -> Any:
        import torch

        outputs = self.net(torch.as_tensor(np.array(batch.inputs)))
        targets = torch.as_tensor(np.array(batch.targets))
        loss = torch.nn.functional.cross_entropy(outputs, targets)
        right = (outputs.argmax(1) == targets).sum().reshape(1)
        counts = torch.bincount(targets, minlength=2).double()
        return loss, {
            "loss": (loss * batch.rows, batch.rows),
            "right": (right, batch.rows),
            "balance": (counts, batch.rows),
        }

    def train(self, batch: Batch) -> Any:
        loss, report = self._report(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return report

    def evaluate(self, batch: Batch) -> Any:
        return self._report(batch)[1]

    def result(self, name: str, total: Any, rows: float) -> float:
        assert name == "balance"
        assert sum(total) == rows
        return float(total[1] / rows)


def perceptron(config: dict[str, Any], ctx: hy.RecipeContext) -> Perceptron:
    ((shape, _),) = ctx.inputs.values()
    assert ctx.device == "cpu"
    return Perceptron(shape[0], ctx.classes or 0, ctx.seed)


def test_a_trainable_by_hand_with_tensors_and_arrays(tmp_path: Path) -> None:
    run = select(tmp_path / "run", perceptron, [{}, {}], metric="val_balance", mode="max")
    _, y = table()
    last = run.trials[0].metrics
    held = dataset().prepare()
    rows = sum(part.rows for part in held.validate), sum(part.rows for part in held.train)
    assert last["val_balance"] * rows[0] + last["balance"] * rows[1] == pytest.approx(y.sum())
    assert 0.5 < last["val_right"] <= 1
    assert digests(run)[0] != digests(run)[1]  # seeded by trial
    x, _ = table()
    assert run.best.evaluate(hy.Dataset.numpy(x, y, partitions=3))["balance"] == pytest.approx(y.mean())
    with pytest.raises(hy.HopyardError, match=r"Perceptron has no method predict\(batch\)"):
        run.best.predict(x)


def test_an_array_without_a_result_method_fails_its_trial(tmp_path: Path) -> None:
    class Odd(Linear):
        def evaluate(self, batch: Batch) -> Any:
            return {**super().evaluate(batch), "bins": ([1.0, 2.0], batch.rows)}

    with pytest.raises(hy.RunFailed, match=r"metric 'val_bins' is an array of 2 numbers; .*result\(name"):
        select(tmp_path / "run", lambda config: Odd(WIDTH, 2, lr=0.1, batch_size=16))


def test_nan_in_validation_is_worst_and_fails_nothing(tmp_path: Path) -> None:
    class Odd(Linear):
        def evaluate(self, batch: Batch) -> Any:
            found = super().evaluate(batch)
            odd = {"loss": (math.nan, batch.rows), "accuracy": (batch.rows, batch.rows)}
            return {**found, **odd} if self.lr == 0.1 else found

    run = select(
        tmp_path / "run", lambda config: Odd(WIDTH, 2, lr=config["lr"], batch_size=16), CONFIGS[:2],
        metric="val_accuracy", mode="max",
    )  # fmt: skip
    assert run.status == "completed"
    assert run.best.id == 1
    loaded = hy.load(run.directory)
    assert loaded.best.id == 1
    assert set(loaded.trials[0].metrics) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert all(math.isnan(value) for epoch in loaded.trials[0].history.values() for value in epoch.values())
    assert all(math.isnan(value) for value in run.trials[0].evaluate(dataset()).values())
    assert run.trials[0].save(tmp_path / "model").exists()


class NeverFinite(Linear):
    """Trains well, and has no validation loss."""

    def evaluate(self, batch: Batch) -> Any:
        return {**super().evaluate(batch), "loss": (math.nan, batch.rows)}


def test_a_run_without_a_finite_metric_has_failed(tmp_path: Path) -> None:
    """Bug: it was completed, with exit code 0."""

    def recipe(config: dict[str, Any]) -> Linear:
        return NeverFinite(WIDTH, 2, lr=config["lr"], batch_size=16)

    with pytest.raises(hy.RunFailed, match="no trial has a finite val_loss"):
        select(tmp_path / "run", recipe, CONFIGS[:2])
    run = hy.load(tmp_path / "run")
    assert run.status == "failed" and {trial.status for trial in run.trials} == {"completed"}
    with pytest.raises(hy.RunFailed, match="no trial has a finite val_loss"):
        run.best  # noqa: B018
    assert "no trial has a finite val_loss" in run.report()
    assert run.trials[0].model("last").steps and hy.resume(tmp_path / "run").status == "failed"  # nothing is left to do
    states(tmp_path / "run").delete(next(iter(states(tmp_path / "run").refs())))
    with pytest.raises(hy.RunFailed, match="no trial has a finite val_loss"):
        hy.resume(tmp_path / "run")  # what is lost is made again all the same
    assert states(tmp_path / "run").refs() == fold(journal(tmp_path / "run")).kept()
    one: dict[str, Any] = {"config": CONFIGS[0], "data": dataset(), "epochs": 1, "engine": hy.Inline()}
    with pytest.raises(hy.RunFailed, match="no trial has a finite val_loss"):
        hy.fit(recipe, metric="val_loss", mode="min", directory=tmp_path / "fit", **one)
    assert hy.fit(recipe, directory=tmp_path / "any", **one).status == "completed"  # it has no metric to compare by


def test_epoch_ends_are_reported(tmp_path: Path) -> None:
    class Told(Linear):
        def end_epoch(self) -> None:
            self.lr *= 0.5

        def state(self) -> Any:
            return {**super().state(), "lr": self.lr}

        def load(self, tree: Any) -> None:
            super().load(tree)
            self.lr = tree["lr"]

    run = select(tmp_path / "run", lambda config: Told(WIDTH, 2, lr=0.8, batch_size=16), [{}], epochs=3)
    assert run.best.model("last").lr == 0.1


def test_the_users_environment_is_not_changed(run: hy.Run) -> None:
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ or os.environ["CUBLAS_WORKSPACE_CONFIG"]
    (began,) = [line for line in journal(run.directory) if isinstance(line, Began)]
    assert began.spec.exact == "warn"


def hanging_store(config: dict[str, Any]) -> Any:
    """The first worker never comes back from storing a State."""
    from hopyard.store.states import LocalStore

    put = LocalStore.put

    def hang(self: LocalStore, *arguments: Any) -> None:
        if first_time(config["once"]):
            time.sleep(1000)
        put(self, *arguments)

    if put.__name__ == "put":
        LocalStore.put = hang  # type: ignore[assignment, method-assign]
    return linear(config)


@pytest.mark.slow
def test_a_worker_that_does_not_store_its_states_is_replaced(tmp_path: Path) -> None:
    config = {"lr": 0.1, "once": str(tmp_path / "once")}
    run = select(
        tmp_path / "run",
        hanging_store,
        [config],
        engine=hy.Local(1, devices=None),
        epochs=1,
        timeouts=hy.Timeouts(durable_timeout=2.0),
    )
    assert run.status == "completed"
    (lost,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    said = r"it stored nothing for durable_timeout=2 seconds, though State 0-4-\d was to be stored"
    assert re.fullmatch(said, lost.reason) and lost.fault == "store"
    assert digests(run) == digests(select(tmp_path / "other", configs=[{"lr": 0.1}], epochs=1))
