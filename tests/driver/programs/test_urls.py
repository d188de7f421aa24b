"""Programs whose directory is at a URL."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.store.urls import mirror, working
from jobs import until
from programs import values

pytestmark = [pytest.mark.programs, pytest.mark.slow]


def shown(url: str) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return json.loads(CliRunner().invoke(app, ["show", url, "--json"], catch_exceptions=False).stdout)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_at_a_url_is_read_and_begun_again_from_there(tmp_path: Path) -> None:
    url = f"local://{tmp_path}/bucket/program"

    def counts(args: Any, ctx: Any) -> None:
        tree, step = ctx.restored() or ({"count": 0}, 0)
        ctx.checkpoint({"count": tree["count"] + 1}, step + 1)
        ctx.report({"count": tree["count"] + 1})

    program = hy.launch(counts, roles={"worker": 2}, directory=url).wait()
    assert values(program, "count") == [1, 1]
    shutil.rmtree(program.directory)
    assert shown(url)["status"] == "completed" and len(shown(url)["tasks"]) == 2
    with pytest.raises(hy.RunDirectoryError, match="resume=True"):
        hy.launch(counts, roles={"worker": 1}, directory=url)
    again = hy.launch(counts, roles={"worker": 1}, directory=url, resume=True).wait()
    assert values(again, "count") == [2]
    shutil.rmtree(again.directory)
    assert len(shown(url)["tasks"]) == 1
    assert (working.folder_of(url) / "program-1.jsonl").exists()
    assert not (tmp_path / "bucket/program/driver.json").exists()


def test_a_program_whose_directory_another_driver_has_taken_over_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.1)

    def waits(args: Any, ctx: Any) -> None:
        import time

        time.sleep(600)

    url = f"local://{tmp_path}/bucket/program"
    program = hy.launch(waits, roles={"worker": 1}, directory=url)
    (tmp_path / "link").symlink_to(tmp_path / "bucket")
    other, taken = working.made(f"local://{tmp_path}/link/program"), list[Any]()

    def take_over() -> bool:  # it fails while the program copies its next segment
        working.fetch(other, driving=True)
        with contextlib.suppress(hy.RunDirectoryError):
            taken.append(mirror.claim(other, "program.jsonl", take_over=True))
        return bool(taken)

    until(take_over)
    with pytest.raises(hy.RunDirectoryError, match="has gone on with this run"):
        program.wait(60)
    taken[0].close()
