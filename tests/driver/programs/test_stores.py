"""Programs whose rows and checkpoints are elsewhere: `hy.launch(store=)`, `ctx.files`, `ctx.shard`, `ctx.open`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

import hopyard as hy
from hopyard.compat.tensorflowonspark import TFNode

pytestmark = [pytest.mark.slow, pytest.mark.programs]

FILES = 7


def main(url: str, ctx: Any) -> None:
    """Keeps a tree and a folder, is killed in the first attempt, and reads its files in the second."""
    import os
    import signal
    import tempfile

    import numpy as np

    if ctx.restart == 0:
        ctx.checkpoint({"w": np.arange(3.0), "rank": ctx.rank}, 7)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "net").write_bytes(bytes([ctx.rank]) * 3_000_000)
            ctx.checkpoint(Path(folder), 8)
        next(ctx.files(f"{url}/rows"))
        while len(list(ctx.directory.glob("kept-*"))) < 2:
            Path(ctx.path(f"kept-{ctx.rank}")).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with ctx.open(f"{url}/rows/part-3") as file:
        assert file.seek(0, 2) == 1 and file.seek(0) == 0 and list(file) == [b"3"]
    folder, step = ctx.restored()
    with ctx.open(f"{url}/told/{ctx.rank}", "w") as file:
        json.dump(
            {
                "step": step,
                "net": (folder / "net").read_bytes() == bytes([ctx.rank]) * 3_000_000,
                "of another": int((ctx.restored("worker", 1 - ctx.rank)[0] / "net").read_bytes()[0]),
                "files": [Path(path).read_text() for path in ctx.files(f"{url}/rows/part-*")],
                "shard": [path.rpartition("/")[2] for path in ctx.shard(f"{url}/rows")],
            },
            file,
        )


def goes_on(url: str, tmp_path: Path) -> None:
    system, root = fsspec.core.url_to_fs(url)
    for folder in ("rows", "told"):
        system.makedirs(f"{root}/{folder}", exist_ok=True)
    for number in range(FILES):
        system.pipe_file(f"{root}/rows/part-{number}", str(number).encode())
    arguments: dict[str, Any] = {"roles": {"worker": 2}, "until": "all", "store": f"{url}/checkpoints"}
    program = hy.launch(main, url, directory=tmp_path / "program", max_restarts=1, **arguments)
    assert program.wait(120).status == "completed"
    for rank in (0, 1):
        told = json.loads(system.cat_file(f"{root}/told/{rank}"))
        assert told["step"] == 8 and told["net"] and told["of another"] == 1 - rank
        assert told["files"] == [str(number) for number in range(rank, FILES, 2)]
        assert told["shard"] == [f"part-{number}" for number in range(rank, FILES, 2)]
    assert not (tmp_path / "program" / "checkpoints").exists()
    with pytest.raises(hy.RunDirectoryError, match=r"is not empty \(it has worker-0, worker-1\)"):
        hy.launch(main, url, directory=tmp_path / "other", **arguments)

    def reads(args: Any, ctx: Any) -> None:
        ctx.report({"step": ctx.restored()[1]})

    again = hy.launch(reads, directory=tmp_path / "other", resume=True, **arguments).wait(60)
    assert [task["values"]["step"] for task in again.summary()["tasks"]] == [8, 8]


def test_a_folder(tmp_path: Path) -> None:
    goes_on(str(tmp_path / "store"), tmp_path)


@pytest.mark.long
def test_hdfs(hdfs: Any, tmp_path: Path) -> None:
    goes_on(TFNode.hdfs_path(SimpleNamespace(defaultFS=hdfs.url), "/programs"), tmp_path)


@pytest.mark.long
def test_webhdfs(hdfs: Any, tmp_path: Path) -> None:
    goes_on(f"{hdfs.web}/programs-by-web", tmp_path)


@pytest.mark.long
def test_s3(s3: Any, tmp_path: Path) -> None:
    goes_on(f"{s3.url}/programs", tmp_path)


def test_a_later_launch_takes_a_store_over(tmp_path: Path) -> None:
    """As a cluster does that starts a driver again, while the tasks of the first one still run."""
    store = tmp_path / "store"

    def writes(args: Any, ctx: Any) -> None:
        step = 0
        while True:
            ctx.checkpoint({"by": "first"}, step := step + 1)
            time.sleep(0.02)

    def goes_on(args: Any, ctx: Any) -> None:
        _, step = ctx.restored()
        ctx.checkpoint({"by": "second"}, step)
        while not Path(args).exists():
            time.sleep(0.02)
        ctx.report({"kept": ctx.restored()[0]["by"] == "second"})

    arguments: dict[str, Any] = {"roles": {"worker": 1}, "store": store}
    first = hy.launch(writes, directory=tmp_path / "first", **arguments)
    with pytest.raises(hy.RunDirectoryError, match=r"belongs to another program|is not empty"):
        hy.launch(writes, directory=tmp_path / "other", **arguments)
    while len(list(store.glob("worker-0/*.safetensors"))) < 2:
        time.sleep(0.02)
    second = hy.launch(goes_on, str(tmp_path / "failed"), directory=tmp_path / "second", resume=True, **arguments)
    with pytest.raises(hy.ProgramFailed, match="belongs to a later launch"):
        first.wait(60)
    (tmp_path / "failed").touch()
    second.wait(60)
    assert second.summary()["tasks"][0]["values"] == {"kept": 1.0}
    assert [path.name for path in store.iterdir()] == ["worker-0"], "no mark is left"


def test_a_launch_that_fails_leaves_no_mark(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    arguments: dict[str, Any] = {"roles": {"worker": 1}, "store": tmp_path / "store"}
    with pytest.raises(hy.RunDirectoryError):
        hy.launch(main, directory=tmp_path / "file", **arguments)
    assert list((tmp_path / "store").iterdir()) == []


@pytest.mark.parametrize(
    ("store", "error", "said"),
    [
        ("memory://checkpoints", hy.SpecError, "lives in the memory of one process"),
        ("nosuch://checkpoints", hy.SpecError, "there is no file system 'nosuch'"),
        ("webhdfs://127.0.0.1:9/checkpoints", hy.SpecError, "nobody listens there"),
        ("", hy.SpecError, "store must be a path or URL"),
        ("webhdfs://host:1/a?b", hy.SpecError, "for something else"),
    ],
)
def test_a_store_is_looked_at_before_anything_starts(
    store: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        hy.launch(main, roles={"worker": 1}, store=store, directory=tmp_path / "program")
    assert not (tmp_path / "program").exists()
