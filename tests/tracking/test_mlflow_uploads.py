"""Report, pictures and the best model in MLflow, and what is left out."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api_servers import Handler
from hopyard.driver.runs.run import Run
from hopyard.driver.saved_files import CONFIG, parse
from hopyard.store.layout import Layout
from hopyard.trackers import REGISTER
from hopyard.tracking.mlflow import model, pyfunc
from hopyard.tracking.mlflow.tracker import connect
from jobs import select, table
from mlflow_server import MlflowServer
from tracking.mlflow_runs import EXPERIMENT, cut, news, send, tracker


def test_artifacts_that_the_server_does_not_pass_on_are_left_out(
    run: Run, played: MlflowServer, expected: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    proper = played._run

    def elsewhere(run: dict[str, Any]) -> Any:
        fields = proper(run)
        fields["info"]["artifact_uri"] = "s3://bucket/0"
        return fields

    played._run = elsewhere  # type: ignore[method-assign]
    send(run, tracker(run, played))
    content = played.content()
    assert content["files"] == content["models"] == [] and "s3://bucket/0" in caplog.text
    assert content["runs"]["run"]["status"] == "FINISHED" and content["runs"]["trial 0"] == expected["runs"]["trial 0"]


@pytest.mark.parametrize(
    ("large", "left"), [("report.txt", "report, pictures and model are"), ("model", "the best mo")]
)
def test_what_is_too_large_is_left_out_until_it_is_not(
    run: Run, played: MlflowServer, expected: dict[str, Any], caplog: pytest.LogCaptureFixture, large: str, left: str
) -> None:
    def refuse(number: int, handler: Handler) -> bool:
        if handler.command == "PUT" and large in handler.path:
            handler.send(413, b"too large")
            return True
        return False

    played.before = refuse
    mlflow = tracker(run, played)
    send(run, mlflow)
    (*_, last) = news(run)
    count = played.requests
    mlflow.update(last._replace(records=()))
    assert left in caplog.text and "413: too large" in caplog.text
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    assert played.requests == count  # nor is it tried again
    played.before = lambda number, handler: False
    send(run, tracker(run, played))
    assert played.content() == expected


def test_the_status_does_not_wait_for_uploads(run: Run, played: MlflowServer, expected: dict[str, Any]) -> None:
    played.before = lambda number, handler: handler.command == "PUT" and cut(handler)
    with pytest.raises(ConnectionError):
        send(run, tracker(run, played))
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    played.before = lambda number, handler: False
    send(run, tracker(run, played))
    assert played.content() == expected


@pytest.mark.parametrize("name", ["flights", "Ann's"])
def test_a_model_is_registered_after_the_run_too(run: Run, played: MlflowServer, name: str) -> None:
    send(run, tracker(run, played))
    assert not played.versions
    for own in (name, name, "another"):
        send(run, tracker(run, played, **{REGISTER: own}))
    count = played.requests
    send(run, tracker(run, played))
    assert [each["name"] for each in played.versions] == [name, "another"] and len(played.models) == 1
    assert played.requests == count + 2  # nothing is left to be done


def test_the_model_predicts_what_the_best_trial_does(run: Run, played: MlflowServer, tmp_path: Path) -> None:
    for _ in range(2):
        mlflow = connect(played.url, Layout(run.directory), {**EXPERIMENT, REGISTER: "flights"})
        send(run, mlflow)
    (model,) = played.models.values()
    assert played.content()["versions"] == [("flights", model["tags"])]
    for path, content in played.artifacts.items():
        if "/models/" in path:
            file = tmp_path / path.partition("/artifacts/")[2]
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
    x, _ = table(8)
    assert (pyfunc._load_pyfunc(str(tmp_path / "data")).predict(x) == run.best.predict(x)).all()


def test_a_model_that_cannot_be_built_is_left_out_and_said(
    played: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = select(tmp_path / "run")
    recipe = Layout(run.directory).recipe
    whole = recipe.read_bytes()
    recipe.write_bytes(b"nonsense")
    send(run, tracker(run, played))
    assert not played.models and "the best model is left out" in caplog.text
    assert played.content()["runs"]["run"]["status"] == "FINISHED"
    recipe.write_bytes(whole)
    send(run, tracker(run, played))  # by a follower elsewhere, or later
    assert played.content()["models"] == ["LOGGED_MODEL_READY"]


def test_a_model_is_tried_again_once_there_is_room(
    run: Run, played: MlflowServer, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, every = tracker(run, played), list(news(run))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no room"):
        patch.setattr("hopyard.driver.saved_files.sync", full)
        mlflow.update(every[0])
    mlflow.update(every[0])
    assert played.content() == expected


def full(path: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("versions", "framework", "expected"),
    [
        ({"torch": "2.13.0+cpu"}, "torch", "torch==2.13.0"),
        ({"tensorflow-cpu": "2.21.0"}, "tensorflow", "tensorflow-cpu==2.21.0"),
        ({"tensorflow": "2.21.0"}, "tensorflow", "tensorflow==2.21.0"),
        ({}, "jax", "jax"),
    ],
)
def test_requirements_can_be_installed(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], framework: str, expected: str
) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert model.requirement(framework) == expected


def test_a_model_of_keras_needs_its_backend_and_is_as_old_as_its_run(run: Run, tmp_path: Path) -> None:
    run.best.save(tmp_path / model.DATA)
    config = tmp_path / model.DATA / CONFIG
    config.write_bytes(
        msgspec.json.encode(msgspec.structs.replace(parse(config.read_bytes()), framework="keras", backend="jax"))
    )
    model.describe(tmp_path, "run", "model", at=86400.5)
    names = [line.partition("==")[0] for line in (tmp_path / "requirements.txt").read_text().splitlines()]
    assert names == ["hopyard", "mlflow", "pandas", "keras", "jax"]
    assert json.loads((tmp_path / "MLmodel").read_text())["utc_time_created"] == "1970-01-02 00:00:00.500000"
