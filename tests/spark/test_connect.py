"""Data sets, predictions, estimators and TFRecord files by Spark Connect, with one server for all of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark")

import connect_session
import hopyard as hy
from hopyard.frameworks.linear import Linear
from hopyard.spark.ml.model import HopyardModel

pytestmark = pytest.mark.spark


@pytest.mark.long
def test_connect(spark: Any, tmp_path: Path) -> None:
    """The model is of this process, whose session is classic."""
    pytest.importorskip("grpc")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((40, 3)), columns=["a", "b", "c"])
    frame["kind"] = [["red", "green", "blue"][row % 3] for row in range(40)]
    frame["y"] = (frame.a + frame.b > 0).astype(np.int64)
    features: dict[str, Any] = {"features": ["a", "b", "c", "kind"], "encode": {"kind": "one-hot"}}
    data = hy.Dataset.pandas(frame, label="y", standardize=True, partitions=2, **features)
    run = hy.fit(
        lambda config: Linear(6, 2, lr=0.1, batch_size=16), {}, data, epochs=1, engine=hy.Inline(),
        directory=tmp_path / "run",
    )  # fmt: skip
    frame.to_pickle(tmp_path / "frame.pkl")
    run.best.save(tmp_path / "saved")
    HopyardModel.of(run).save(str(tmp_path / "model"))
    own = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    done = subprocess.run(
        [sys.executable, connect_session.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,  # Connect makes a folder `artifacts`
        env={**own, "XDG_CACHE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    np.testing.assert_allclose(np.load(tmp_path / "scored.npy"), run.best.predict(frame), rtol=1e-12)
    names = sorted(path.name for path in (tmp_path / "rows").iterdir())
    assert names == ["_SUCCESS", "part-r-00000", "part-r-00001"]
    assert not list((tmp_path / "store").rglob("*probe"))
