"""Runs at URLs: ends that were not copied, lists with a damaged run, other files there, drivers that are taken over."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.store.urls import mirror, working
from jobs import SLOW, digests, linear, script, select, until
from url_drivers import JOB, dispatched, drivers, lose_disk

JOURNAL = "journal.jsonl"
TAKE_OVER = """
run = hy.resume(sys.argv[1], trust=True, take_over=True, wait=False, engine=hy.Local(workers=1))
print("taken")
run.stop()
"""
"""A driver that stops soon after it has taken a run over."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"local://{tmp_path}/bucket/run"


def test_resume_copies_the_end_of_a_run_that_only_this_host_has(url: str, tmp_path: Path) -> None:
    run = select(url)
    root, stored = working.folder_of(url), sorted((tmp_path / "bucket/run" / JOURNAL).iterdir())
    working.fetch(root)
    copied = working.copied(root, JOURNAL)
    assert copied is not None and copied.end == (root / JOURNAL).stat().st_size
    head, _, _ = stored[-1].read_bytes().partition(b"\n")
    stored[-1].unlink()  # as if the store had been away at the end
    working.note(root, JOURNAL, working.Copied(copied.first, copied.count - 1, json.loads(head)["start"]))
    resumed = hy.resume(url, trust=True)
    assert resumed.status == "completed"
    lose_disk(url)
    again = hy.load(url)
    assert again.status == "completed" and digests(again) == digests(run)
    before = sorted((tmp_path / "bucket/run" / JOURNAL).iterdir())
    hy.resume(url, trust=True)
    assert sorted((tmp_path / "bucket/run" / JOURNAL).iterdir()) == before  # there is nothing to copy


def test_a_damaged_run_takes_one_row_of_a_list(url: str, tmp_path: Path) -> None:
    select(url)
    select(f"{url}-2")
    (tmp_path / "bucket/run" / JOURNAL / "00000001").write_bytes(b"{}")
    lose_disk(url)
    listed = CliRunner().invoke(app, ["ls", url.rpartition("/")[0], "--json"], catch_exceptions=False)
    rows = {row["directory"]: row["status"] for row in json.loads(listed.stdout)}
    assert rows == {url: "damaged", f"{url}-2": "completed"}
    secret = CliRunner().invoke(app, ["ls", "webhdfs://host:1/runs?delegation=SECRET"], catch_exceptions=False)
    assert secret.exit_code == 2 and "SECRET" not in secret.output


def test_a_url_that_holds_something_else_is_refused(url: str, tmp_path: Path) -> None:
    run = select(url)
    for inside in (url.rpartition("/")[0], f"{url}/states"):
        with pytest.raises(hy.RunDirectoryError, match="other files"):
            select(inside)
        with pytest.raises(hy.RunDirectoryError, match="other files"):
            select(inside, resume=True)
    assert digests(hy.load(url)) == digests(run)


def test_a_live_driver_that_copies_each_second_is_taken_over(url: str, tmp_path: Path) -> None:
    with drivers() as start:
        first = start(script(tmp_path / "job.py", SLOW + JOB), url, "40")
        until(lambda: dispatched(url) > 0)
        (tmp_path / "link").symlink_to(tmp_path / "bucket")  # another working folder, as on another host
        other = script(tmp_path / "other.py", "import sys, shaky, hopyard as hy\n" + TAKE_OVER)
        second = start(other, f"local://{tmp_path}/link/run")
        out, err = second.communicate(timeout=120)
        assert out == "taken\n", err
        _, told = first.communicate(timeout=60)
        assert first.returncode and "has gone on with this run" in told


def test_a_driver_tells_that_its_files_were_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.05)

    def removes(config: dict[str, Any]) -> Any:
        for name in ("journal.jsonl/00000000", "driver.json"):
            (tmp_path / "bucket/run" / name).unlink(missing_ok=True)
        time.sleep(0.5)
        return linear(config)

    select(url, removes, store=tmp_path / "states")
    assert caplog.text.count("files of this run were removed there") == 1
