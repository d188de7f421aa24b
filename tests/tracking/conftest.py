"""A run whose trials have trouble, a played server of MLflow, and what it has of the run at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hopyard.driver.runs.run import Run
from hopyard.store.layout import Layout
from jobs import select, troubled
from mlflow_server import MlflowServer, mlflow_server
from tracking.mlflow_runs import CONFIGS, send, tracker


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = select(tmp_path_factory.mktemp("tracked") / "run", troubled, CONFIGS)
    Layout(run.directory).logs.mkdir()  # as whoever starts followers does
    return run


@pytest.fixture
def played() -> Iterator[MlflowServer]:
    with mlflow_server() as server:
        yield server


@pytest.fixture(scope="module")
def expected(run: Run) -> dict[str, Any]:
    """What a server has of the run at the end."""
    with mlflow_server() as played:
        send(run, tracker(run, played))
        return played.content()
