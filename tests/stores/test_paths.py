"""Wherever a path can stand, a URL of HDFS or S3 can."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.errors import RunDirectoryError
from hopyard.filesystems import open_url
from hopyard.formats.tfrecord import framed, records
from hopyard.frameworks.linear import Linear
from stores.servers import KINDS, URLS

X = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](request, tmp_path)


def put(url: str, data: bytes) -> None:
    system, path = open_url(url)
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, data)


def recipe(config: Any) -> Linear:
    return Linear(2, 2, lr=0.1, batch_size=4)


def test_parquet(url: str) -> None:
    for name, rows in (("a", slice(0, 40)), ("b", slice(40, 64))):
        stream = io.BytesIO()
        pq.write_table(pa.table({"x0": X[rows, 0], "x1": X[rows, 1], "y": Y[rows]}), stream, row_group_size=10)
        put(f"{url}/{name}.parquet", stream.getvalue())
    digests = set()
    for source in (url, f"{url}/*.parquet", [f"{url}/a.parquet", f"{url}/b.parquet"]):
        data = hy.Dataset.parquet(source, features=["x0", "x1"], label="y", partitions=2)
        digests.add(data.prepare().digest)
    table = pa.table({"x0": X[:, 0], "x1": X[:, 1], "y": Y})
    data = hy.Dataset.arrow(table, features=["x0", "x1"], label="y", partitions=2)
    assert digests == {data.prepare().digest}


def test_tfrecord(url: str) -> None:
    written = [b"record %d" % n for n in range(300)]
    put(f"{url}/a.tfrecord", b"".join(map(framed, written)))
    assert [bytes(record) for record in records(f"{url}/a.tfrecord")] == written


@pytest.mark.slow
def test_states_and_a_saved_model(url: str, tmp_path: Path) -> None:
    data = hy.Dataset.numpy(X, Y, partitions=2)
    run = hy.fit(recipe, {}, data, epochs=2, engine=hy.Inline(), store=f"{url}/states", directory=tmp_path / "run")
    local = hy.fit(recipe, {}, data, epochs=2, engine=hy.Inline(), directory=tmp_path / "local")
    assert run.status == "completed" and run.best.digest == local.best.digest
    saved = run.best.save(f"{url}/model")
    model = hy.load_model(saved, trust=True)
    np.testing.assert_array_equal(model.predict(X), run.best.predict(X))
    np.testing.assert_array_equal(hy.load_model(saved, recipe).predict(X), run.best.predict(X))


@pytest.mark.parametrize("kind", ["memory"])
def test_a_saved_model_at_a_url_is_whole_and_trusted(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = URLS[kind](request, tmp_path)
    data = hy.Dataset.numpy(X, Y, partitions=2)
    run = hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
    assert run.best.save(url) == url
    with pytest.raises(RunDirectoryError, match=r"recipe\.pkl: .* trust=True"):
        hy.load_model(url)
    with pytest.raises(RunDirectoryError, match="not replaced"):
        run.best.save(url)
    with pytest.raises(RunDirectoryError, match=r"cannot read .*/none/config\.json"):
        hy.load_model(f"{url}/none")
    put(f"{url}/model.safetensors", b"another")
    with pytest.raises(RunDirectoryError, match=r"model\.safetensors: changed"):
        hy.load_model(url, trust=True)
