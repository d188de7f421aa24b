"""Run directories at URLs: drivers that are killed and lose their disk, drivers that race, stores that fail."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.events import Dispatch, Line, Resumed
from hopyard.driver.runs import loop
from hopyard.driver.runs.fold import dispatched_refs
from hopyard.spec import Ref, Unit
from hopyard.store.urls import working
from jobs import digests, linear, select, until
from shaky import faults
from url_drivers import final, is_overtaken, lives_through_lost_disks, lose_disk

pytestmark = pytest.mark.slow


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"shaky://{tmp_path}/bucket/run"


@pytest.fixture
def local(tmp_path: Path) -> str:
    """The same, with States where workers, which know no `shaky`, reach them."""
    (tmp_path / "bucket").mkdir()
    return f"local://{tmp_path}/bucket/run"


@pytest.mark.parametrize(
    ("kills", "epochs"), [pytest.param(1, 2, marks=pytest.mark.long), pytest.param(30, 16, marks=pytest.mark.long)]
)
def test_a_driver_that_loses_its_disk_goes_on_to_the_same_bits(
    tmp_path: Path, local: str, kills: int, epochs: int
) -> None:
    lives_through_lost_disks(tmp_path, local, kills, epochs)


@pytest.mark.parametrize("race", [0, *(pytest.param(race, marks=pytest.mark.long) for race in range(1, 100))])
def test_a_driver_that_was_stopped_ends_when_another_one_has_gone_on(
    tmp_path: Path, local: str, monkeypatch: pytest.MonkeyPatch, race: int
) -> None:
    is_overtaken(tmp_path, local, monkeypatch, race)


def test_states_of_a_lost_end_belong_to_the_run_and_others_do_not() -> None:
    """Of the States in a folder, a run may delete those that it made, and those that an end of its journal made."""

    def dispatch(lease: int) -> Dispatch:
        return Dispatch(at=1.0, slot=0, unit=Unit(lease, 0, "train", 0, (0,), None))

    lines: list[Line] = [dispatch(5), Resumed(at=2.0, skipped=10), dispatch(16)]
    own, lost, unknown, after = Ref(0, 1, 5), Ref(3, 2, 15), Ref(0, 1, 4), Ref(0, 2, 26)
    refs = {own, lost, unknown, after, Ref(0, 1, 16)}
    assert dispatched_refs(lines, refs) == {own, lost, Ref(0, 1, 16)}
    assert dispatched_refs(lines, refs, lost=10) == {own, lost, Ref(0, 1, 16), after}
    assert dispatched_refs([dispatch(5), Resumed(at=2.0), dispatch(6)], refs) == {own}


# ------------------------------------------------------------------------------------------ who reads and goes on


def call(*words: str) -> Any:
    before = signal.getsignal(signal.SIGTERM)
    try:
        return CliRunner().invoke(app, list(words), catch_exceptions=False)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_command_line_takes_urls(local: str) -> None:
    run = select(local)
    assert run.url == local and local in repr(run)
    other = select(f"{local}-2", resume=True)
    lose_disk(local)
    listed = json.loads(call("ls", local.rpartition("/")[0], "--json").stdout)
    assert [(row["directory"], row["status"]) for row in listed] == [(run.url, "completed"), (other.url, "completed")]
    assert [row["directory"] for row in json.loads(call("ls", local, "--json").stdout)] == [local]
    shown = json.loads(call("show", local, "--json").stdout)
    assert (shown["directory"], shown["status"], len(shown["trials"])) == (local, "completed", 4)
    assert "val_loss" in call("show", local).stdout
    assert call("logs", local).exit_code == 0
    assert call("track", local, "--tensorboard", str(working.folder_of(local).parent / "events")).exit_code == 0
    refused = call("resume", local, "--epochs", "3")
    assert refused.exit_code == 2 and "who may write there cannot be seen" in refused.output
    went_on = call("resume", local, "--epochs", "3", "--trust", "--take-over")
    assert went_on.exit_code == 0 and f"{local}: completed" in went_on.stdout
    lose_disk(local)
    assert {max(trial.history) for trial in hy.load(local).trials} == {3}


def test_a_model_of_a_run_at_a_url_needs_trust(local: str) -> None:
    best = select(local).best
    lose_disk(local)
    with pytest.raises(hy.RunDirectoryError, match="trust=True"):
        hy.load(local).best.model()
    assert hy.load(local, trust=True).best.digest == best.digest
    hy.load(local, trust=True).best.model()


def test_a_run_in_memory_is_one_of_this_process(tmp_path: Path) -> None:
    url = f"memory://{tmp_path}/run"
    run = select(url)
    lose_disk(url)
    assert digests(hy.load(url)) == digests(run)
    with pytest.raises(hy.SpecError, match="memory of one process"):
        select(f"{url}-2", engine=hy.Local(workers=1))


def test_a_run_that_is_there_is_refused_and_left_as_it_is(local: str, tmp_path: Path) -> None:
    select(local)
    before = sorted(path.name for path in (tmp_path / "bucket/run/journal.jsonl").iterdir())
    with pytest.raises(hy.RunDirectoryError, match="resume=True"):
        select(local)
    with pytest.raises(hy.RunDirectoryError, match="seed"):
        select(local, seed=7, resume=True, trust=True)
    assert sorted(path.name for path in (tmp_path / "bucket/run/journal.jsonl").iterdir()) == before


def test_a_run_that_trained_nothing_begins_anew(local: str) -> None:
    with pytest.raises(hy.PreflightError):
        select(local, metric="los")
    run = select(local)
    lose_disk(local)
    again = hy.load(local)
    assert digests(again) == digests(run) and (again.directory / "journal-1.jsonl").exists()


def test_a_run_whose_end_is_not_copied_yet_has_not_ended(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What others must not see waits for its segment: the end of select, the summary, the status."""
    monkeypatch.setattr(loop, "LONG_LOOKS", 1)
    outcome: list[Any] = []

    def goes_away(config: dict[str, Any]) -> Any:
        faults(tmp_path / "bucket", away=True)
        return linear(config)

    thread = threading.Thread(target=lambda: outcome.append(select(url, goes_away, store=tmp_path / "states")))
    thread.start()
    root = working.folder_of(url)
    journaled = root / "journal.jsonl"
    until(lambda: journaled.exists() and b'"Finished"' in journaled.read_bytes())
    assert hy.load(root).status == "running"
    until(lambda: "the run has ended; waiting until its end is at" in caplog.text)
    assert thread.is_alive() and not (root / "summary.json").exists()
    faults(tmp_path / "bucket")
    thread.join(60)
    assert outcome[0].status == "completed" == hy.load(url).status
    assert (tmp_path / "bucket/run/summary.json").exists()


def test_a_slow_store_that_fails_and_loses_answers_changes_no_bit(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def gets_worse(config: dict[str, Any]) -> Any:
        faults(tmp_path / "bucket", delay=0.005, fail=0.15, lose=0.15)
        return linear(config)

    run = select(url, gets_worse, store=tmp_path / "states")
    faults(tmp_path / "bucket")
    lose_disk(url)
    assert final(url) == digests(run) == digests(select(tmp_path / "run"))
