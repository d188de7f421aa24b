"""A DataFrame of the test's module, and Estimators of its classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from jobs import classes


@pytest.fixture(scope="module")
def df(request: pytest.FixtureRequest, spark: Any) -> Any:
    return spark.createDataFrame(request.module.frame()).repartition(2, "row").cache()


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """An Estimator for the classes of `frame`, trained in this process; what is None is not given."""
    from hopyard.spark.ml.estimator import HopyardEstimator

    def made(**more: Any) -> HopyardEstimator:
        given: dict[str, Any] = {
            "recipe": classes,
            "config": {"lr": 0.3},
            "outputs": "logits",
            "featuresCols": ["a", "b", "c"],
            "epochs": 2,
            "partitions": 2,
            "engine": hy.Inline(),
            "runDirectory": str(tmp_path / "runs"),
        }
        return HopyardEstimator(**{name: value for name, value in {**given, **more}.items() if value is not None})

    return made
