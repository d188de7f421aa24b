"""Ends of runs at URLs that their drivers could not copy there, and lists of runs of which one is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.store.urls import working
from jobs import digests, select
from url_drivers import lose_disk

JOURNAL = "journal.jsonl"


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
