"""Wherever a path can stand, a URL of HDFS or S3 can."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.data.from_spark.source import MaterializedSource
from hopyard.driver.saved_files import uploading_files
from hopyard.errors import RunDirectoryError
from hopyard.filesystems import Directory, open_url
from hopyard.formats.tfrecord import framed, records
from hopyard.frameworks.linear import Linear
from hopyard.system.scratch import sweep
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


def test_a_saved_model_at_a_url_is_whole_and_trusted(tmp_path: Path) -> None:
    url, built = f"memory://{uuid.uuid4().hex}/model", 0

    def counted(config: Any) -> Linear:
        nonlocal built
        built += 1
        return recipe(config)

    run = hy.fit(counted, {}, hy.Dataset.numpy(X, Y, partitions=2), epochs=1, engine=hy.Inline(), directory=tmp_path)
    with pytest.raises(hy.SpecError, match=re.escape(f"save('{url}.keras'): a folder is written")):
        run.best.save(f"{url}.keras")
    assert run.best.save(f"{url}/") == url
    with pytest.raises(RunDirectoryError, match=r"recipe\.pkl: .* trust=True"):
        hy.load_model(url)
    run.best.predict(X)
    before = built
    with pytest.raises(RunDirectoryError, match="not replaced"):
        run.best.save(url)
    assert built == before, "it was built again although the name is taken"
    with pytest.raises(RunDirectoryError, match=r"cannot read .*/none/config\.json"):
        hy.load_model(f"{url}/none")
    put(f"{url}/model.safetensors", b"another")
    with pytest.raises(RunDirectoryError, match=r"model\.safetensors: changed"):
        hy.load_model(url, trust=True)


def test_of_two_that_save_at_a_url_at_once_one_succeeds() -> None:
    url = f"memory://{uuid.uuid4().hex}/model"
    with pytest.raises(RunDirectoryError, match="not replaced"), uploading_files(url) as late:
        with uploading_files(url) as first:
            (first / "config.json").write_text("first")
        (late / "config.json").write_text("late")
    assert Directory(url).get("config.json") == b"first"


def test_a_killed_save_at_a_url_leaves_no_pickle(tmp_path: Path) -> None:
    script = """
import os
from hopyard.driver.saved_files import uploading_files
with uploading_files("memory://model") as folder:
    (folder / "recipe.pkl").write_bytes(b"")
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -9 and list(tmp_path.rglob("recipe.pkl"))
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_half_a_manifest_is_none_yet(tmp_path: Path) -> None:
    """Where files cannot be renamed, a manifest is seen while it is written."""
    whole = b'{\n "format": 1\n}\n'
    source = MaterializedSource(str(tmp_path))
    for length in range(len(whole)):
        (tmp_path / "manifest.json").write_bytes(whole[:length])
        assert source.find(half=False) is None
    (tmp_path / "manifest.json").write_bytes(whole)
    with pytest.raises(hy.DataError, match="cannot be read as a manifest"):
        source.find(half=False)
