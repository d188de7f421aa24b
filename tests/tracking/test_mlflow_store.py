"""MLflow on a database, by its own client: a follower that dies at any call, a locked database, and the model."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.driver.runs.run import Run
from hopyard.engines.local import python_path
from hopyard.frameworks.linear import Linear
from hopyard.store.layout import Layout
from hopyard.trackers import REGISTER
from hopyard.tracking.follower import Refused
from hopyard.tracking.mlflow.tracker import Mlflow, connect
from jobs import script, select, table, troubled
from tracking.mlflow_runs import CONFIGS, DRIVER, news

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # importing it and making its tables takes 8 s


METHODS = (
    *("create_run", "log_batch", "set_terminated", "log_inputs", "log_artifacts", "create_logged_model"),
    *("log_model_artifacts", "log_outputs", "finalize_logged_model", "create_model_version"),
)
"""Those of the client that write."""


@pytest.fixture(scope="module", autouse=True)
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """MLflow's client, beside which a test makes no telemetry and leaves no folder."""
    before = Path.cwd()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.chdir(tmp_path_factory.mktemp("mlruns"))
    yield pytest.importorskip("mlflow")
    os.chdir(before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return select(tmp_path_factory.mktemp("tracked") / "run", troubled, CONFIGS)


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('database')}/mlflow.db"


def tracker(run: Run, uri: str, name: str) -> Mlflow:
    return connect(uri, Layout(run.directory), {"MLFLOW_EXPERIMENT_NAME": name, REGISTER: "flights"})


def send(run: Run, mlflow: Mlflow, lines: int = 2000) -> None:
    for each in news(run, lines):
        mlflow.update(each)


def content(client: Any, uri: str, name: str) -> dict[str, Any]:
    """What is there, by names of runs."""
    mlflow = client.MlflowClient(uri)
    experiment = mlflow.get_experiment_by_name(name).experiment_id
    found = list(mlflow.search_runs([experiment]))
    names = {each.info.run_id: each.info.run_name for each in found}
    runs = {}
    for each in found:
        info, data = each.info, each.data
        points = [
            (key, point.timestamp, point.step, point.value)
            for key in data.metrics
            for point in mlflow.get_metric_history(info.run_id, key)
        ]
        tags = {key: names.get(value, value) for key, value in data.tags.items()}
        outputs = len(each.outputs.model_outputs) if each.outputs else 0
        facts = info.status, info.start_time, info.end_time, data.params, tags, sorted(points), outputs
        assert info.run_name not in runs
        runs[info.run_name] = facts
    models = [model.status for model in mlflow.search_logged_models([experiment])]
    return {"runs": runs, "models": models}


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_follower_that_dies_at_any_call_loses_and_doubles_nothing(
    run: Run, client: Any, uri: str, place: str
) -> None:
    send(run, tracker(run, uri, "whole"))
    expected = content(client, uri, "whole")
    assert set(expected["runs"]) == {"run", "trial 0", "trial 1", "trial 2"} and len(expected["models"]) == 1
    for at in itertools.count():
        name = f"{place} {at}"
        mlflow = tracker(run, uri, name)
        calls = itertools.count()
        for method in METHODS:
            proper = getattr(mlflow._service._client, method)  # type: ignore[attr-defined]

            def dying(*arguments: Any, proper: Any = proper, calls: Any = calls, at: int = at, **more: Any) -> Any:
                number = next(calls)
                if number == at and place == "before":
                    raise KeyboardInterrupt
                result = proper(*arguments, **more)
                if number == at:
                    raise KeyboardInterrupt
                return result

            setattr(mlflow._service._client, method, dying)  # type: ignore[attr-defined]
        try:
            send(run, mlflow, 15)
        except KeyboardInterrupt:
            send(run, tracker(run, uri, name))
            assert content(client, uri, name) == expected, name
        else:
            break
    assert at > 12


def test_the_model_predicts_what_the_best_trial_does(run: Run, client: Any, uri: str) -> None:
    send(run, tracker(run, uri, "model"))
    client.set_tracking_uri(uri)
    (found,) = client.MlflowClient(uri).search_model_versions("name = 'flights'", order_by=["version_number DESC"])[:1]
    x, _ = table(8)
    for place in (f"models:/flights/{found.version}", f"runs:/{found.run_id}/model"):
        assert (client.pyfunc.load_model(place).predict(x) == run.best.predict(x)).all()


def test_a_database_that_is_locked_or_not_there_may_pass(run: Run, uri: str, tmp_path: Path) -> None:
    every = list(news(run))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        tracker(run, f"sqlite:///{tmp_path}/file/mlflow.db", "x").update(every[0])
    mlflow = tracker(run, uri, "locked")
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked"):
            mlflow.update(every[0])
        other.rollback()
    mlflow.update(every[0])


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("foo://me:s3cret@host/db", "unsupported URI 'foo://me@host/db'"),
        ("file:///nowhere", "filesystem tracking backend"),
        ("mysql://me:s3cret@host/db", "MySQLdb.*install its driver"),
        ("postgresql+foo://me:s3cret@host/db", "postgresql.foo"),
    ],
)
def test_targets_that_cannot_be_opened_are_final(
    run: Run, monkeypatch: pytest.MonkeyPatch, uri: str, match: str
) -> None:
    monkeypatch.setitem(sys.modules, "MySQLdb", None)
    with pytest.raises(Refused, match=match) as refused:
        send(run, tracker(run, uri, "x"))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(("method", "left"), [("log_artifacts", "report"), ("log_model_artifacts", "the best model")])
@pytest.mark.parametrize("error", [ImportError("No module named 'boto3'"), PermissionError("/mlruns"), Exception("S3")])
def test_artifacts_that_cannot_be_written_are_left_out(
    run: Run, client: Any, uri: str, caplog: pytest.LogCaptureFixture, method: str, left: str, error: Exception
) -> None:
    name = f"{method} {type(error).__name__}"
    mlflow = tracker(run, uri, name)

    def fail(*arguments: Any) -> None:
        raise error

    setattr(mlflow._service._client, method, fail)  # type: ignore[attr-defined]
    send(run, mlflow)
    assert left in caplog.text and str(error) in caplog.text
    assert content(client, uri, name)["runs"]["run"][0] == "FINISHED"
    send(run, tracker(run, uri, name))
    assert content(client, uri, name)["models"] == ["READY"]


def test_a_deleted_experiment_is_final(run: Run, client: Any, uri: str) -> None:
    mlflow = client.MlflowClient(uri)
    mlflow.delete_experiment(mlflow.create_experiment("gone"))
    with pytest.raises(Refused, match="'gone' was deleted"):
        send(run, tracker(run, uri, "gone"))


def test_a_model_of_encoded_columns_takes_frames_as_its_signature_says(client: Any, uri: str, tmp_path: Path) -> None:
    import numpy as np
    import pandas as pd

    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "delay": generator.standard_normal(80),
            "seats": generator.integers(1, 9, 80),
            "carrier": generator.choice(["UA", "AA"], 80),
            "late": generator.choice(["yes", "no"], 80),
        }
    )
    features = ["delay", "seats", "carrier"]
    encode = {"carrier": "one-hot", "late": "index"}
    data = hy.Dataset.pandas(
        frame, features=features, label="late", encode=encode, standardize=["delay"], validation=0.25, partitions=2
    )
    run = select(tmp_path / "run", four, [{"lr": 0.1}], data=data)
    send(run, tracker(run, uri, "frames"))
    client.set_tracking_uri(uri)
    (parent,) = client.MlflowClient(uri).search_runs(
        [client.get_experiment_by_name("frames").experiment_id], "tags.`hopyard.best` = '0'"
    )
    model = client.pyfunc.load_model(f"runs:/{parent.info.run_id}/model")
    columns = [(column.name, column.type.name) for column in model.metadata.signature.inputs]
    assert columns == [("delay", "double"), ("seats", "long"), ("carrier", "string")]
    rows = frame.drop(columns="late")[:7]
    assert (model.predict(rows[features[::-1]]) == run.best.predict(rows)).all()
    with pytest.raises(client.MlflowException, match="carrier"):
        model.predict(rows.drop(columns="carrier"))


def four(config: dict[str, Any]) -> Any:
    return Linear(4, 2, lr=config["lr"], batch_size=16)


def test_drivers_and_followers_that_are_killed_fifty_times(client: Any, uri: str, tmp_path: Path) -> None:
    directory, program, draws = tmp_path / "run", script(tmp_path / "program.py", DRIVER), random.Random(3)
    layout, kills, within = Layout(directory), {"driver": 0, "follower": 0}, 0
    environ = {**os.environ, "PYTHONPATH": python_path(), "MLFLOW_EXPERIMENT_NAME": "killed"}
    drive = [sys.executable, str(program), str(directory), "300"]
    track = [sys.executable, "-P", "-m", "hopyard.tracking", f"mlflow={uri}", str(directory)]

    def points() -> int:
        with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
            return int(database.execute("SELECT COUNT(*) FROM metrics").fetchone()[0])

    client.MlflowClient(uri).search_experiments()  # makes the tables
    while sum(kills.values()) < 50:
        driver = subprocess.Popen(drive, env=environ)
        end = time.monotonic() + draws.uniform(15, 30)
        while not (layout.exists and layout.journal.stat().st_size):
            time.sleep(0.05)
        layout.logs.mkdir(exist_ok=True)
        while time.monotonic() < end and sum(kills.values()) < 49:
            before, follower = points(), subprocess.Popen(track, env=environ)
            longest = time.monotonic() + draws.choice([5, 60, 60, 60])
            while follower.poll() is None and time.monotonic() < longest and points() == before:
                time.sleep(0.02)
            within += points() > before
            with contextlib.suppress(subprocess.TimeoutExpired):
                follower.wait(draws.uniform(0, 1))
            kills["follower"] += follower.poll() is None
            follower.kill()
            follower.wait()
        kills["driver"] += driver.poll() is None
        driver.kill()
        driver.wait()
    subprocess.run(drive, check=True, env=environ)
    subprocess.run(track, check=True, env=environ)
    assert within > 10 and kills["driver"] > 3
    run = hy.load(directory)
    send(run, connect(uri, layout, {"MLFLOW_EXPERIMENT_NAME": "once"}))
    expected = content(client, uri, "once")
    assert len(expected["runs"]) == 9 and content(client, uri, "killed") == expected
