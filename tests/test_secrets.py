"""Credentials are in no file, log, error, pickle or command line of ours: they are in environments alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hopyard as hy
from hopyard.errors import DataError, ResourceError
from hopyard.filesystems import line_of

pytestmark = pytest.mark.slow

SECRET = "planted-5f1c"
AWAY = "webhdfs://127.0.0.1:9/rows"
"""Nobody listens there. Its driver's errors have the whole URL, with the token."""


def holding(word: str, *folders: Path) -> list[str]:
    """Return the files with this word in them."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [str(path) for path in files if word.encode() in path.read_bytes()]


def command_lines(word: str) -> list[str]:
    """Return the command lines of all processes with this word in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:  # gone since
            continue
    return [line for line in found if word in line]


def test_errors_of_a_driver_in_a_program(tmp_path: Path) -> None:
    def main(args: Any, ctx: Any) -> None:
        assert os.environ["FSSPEC_WEBHDFS_TOKEN"].startswith("planted")
        ctx.open(args)

    program = hy.launch(
        main, AWAY, roles={"worker": 1}, env={"FSSPEC_WEBHDFS_TOKEN": SECRET}, directory=tmp_path / "program"
    )
    with pytest.raises(hy.ProgramFailed, match="delegation=&op=") as caught:
        program.wait(60)
    assert SECRET not in str(caught.value)
    assert holding("delegation=", tmp_path) and not holding(SECRET, tmp_path)


def test_errors_of_a_driver_in_one_line() -> None:
    error = OSError(f"Max retries exceeded with url: /webhdfs/v1/rows?delegation={SECRET}&op=OPEN (…)")
    assert line_of(error) == "OSError: Max retries exceeded with url: /webhdfs/v1/rows?delegation=&op=OPEN (…)"


@pytest.mark.long
def test_keys_of_a_store_in_use(tmp_path: Path, s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, States and checkpoints on S3: the keys are found, and are nowhere but in environments."""
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    rows, seen = f"{s3.url}/secrets", tmp_path / "seen"
    values = np.arange(80.0)
    pd.DataFrame({"x": values, "y": 2 * values}).to_parquet(f"{rows}/rows.parquet")

    def recipe(config: dict[str, Any]) -> Any:
        from hopyard.frameworks.linear import Linear

        (seen / "run").write_text("\n".join(command_lines(os.environ["AWS_SECRET_ACCESS_KEY"])))
        return Linear(1, 1, lr=0.1, batch_size=8)

    def main(args: Any, ctx: Any) -> None:
        assert len(list(ctx.files(f"{args}/*.parquet"))) == 1
        ctx.checkpoint({"w": 1}, 1)
        (seen / "program").write_text("\n".join(command_lines(os.environ["AWS_SECRET_ACCESS_KEY"])))

    seen.mkdir()
    data = hy.Dataset.parquet(f"{rows}/rows.parquet", features=["x"], label="y", partitions=2)
    keys = {"AWS_SECRET_ACCESS_KEY": secret}
    run = hy.fit(
        recipe,
        {},
        data,
        epochs=1,
        store=f"{rows}/states",
        directory=tmp_path / "run",
        engine=hy.Local(workers=1, devices=None, env=keys),
    )
    assert run.status == "completed"
    program = hy.launch(
        main, rows, roles={"worker": 1}, store=f"{rows}/checkpoints", directory=tmp_path / "program", env=keys
    )
    assert program.wait(60).status == "completed"
    assert {path.name: path.read_text() for path in seen.iterdir()} == {"run": "", "program": ""}
    cache = Path(os.environ["XDG_CACHE_HOME"])
    assert not holding(secret, tmp_path / "run", tmp_path / "program", cache)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    from stores.servers import forget

    forget()
    with pytest.raises((DataError, ResourceError, hy.SpecError)):  # so the server did look at them
        hy.Dataset.parquet(f"{rows}/rows.parquet", features=["x"], label="y", partitions=3).prepare()
