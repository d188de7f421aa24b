"""Run directories at URLs: drivers that are killed and lose their disk, drivers that race, stores that fail."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.events import Dispatch, Finished, Line, Resumed
from hopyard.driver.runs.fold import dispatched_refs, recover
from hopyard.spec import Ref, Unit
from hopyard.store.layout import Layout, find
from hopyard.store.states import open_store
from hopyard.store.urls import working
from jobs import SLOW, children, digests, driver, gone, journal, linear, script, select, until
from shaky import faults

pytestmark = pytest.mark.slow

JOB = """
import shaky
run = hy.select(
    slow, None, dataset(rows=800), search=hy.Configs(CONFIGS), epochs=int(sys.argv[2]), metric="val_loss", mode="min",
    seed=1, engine=hy.Local(workers=2), directory=sys.argv[1], resume=True, trust=True,
)
print(run.status)
"""
OTHER = "from hopyard.store.urls import working\nworking.LOOK = 1.0\n"
"""Before the same job: a driver that soon takes another one, which was stopped, for dead."""
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts drivers that end with the test, whatever becomes of it."""
    started: list[subprocess.Popen[str]] = []

    def start(job: Path, *arguments: str) -> subprocess.Popen[str]:
        started.append(driver([str(job), *arguments], job.parent))
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"shaky://{tmp_path}/bucket/run"


@pytest.fixture
def local(tmp_path: Path) -> str:
    """The same, with States where workers, which know no `shaky`, reach them."""
    (tmp_path / "bucket").mkdir()
    return f"local://{tmp_path}/bucket/run"


def lose_disk(url: str) -> None:
    """Remove the working folder, as the end of a machine does."""
    shutil.rmtree(working.folder_of(url), ignore_errors=True)


def missing(url: str) -> set[Ref]:
    """The States that the journal at a URL names, and that are not there."""
    root = working.made(url)
    working.fetch(root)
    layout = Layout(root)
    if not layout.exists or not layout.journal.stat().st_size:  # its driver was killed before
        return set()
    return recover(layout)[0].kept() - open_store(f"{url}/states").refs()


def dispatched(stored: Path) -> int:
    """How many units were given out, as the segments in this folder have it."""
    return sum(path.read_bytes().count(b'"Dispatch"') for path in stored.glob("0*"))


def grown(stored: Path, before: int) -> bool:
    return dispatched(stored) > before


def final(url: str) -> list[str]:
    """The digests of a run that completed."""
    run = hy.load(url)
    assert run.status == "completed"
    return digests(run)


@pytest.mark.parametrize(("kills", "epochs"), [(2, 2), pytest.param(30, 16, marks=pytest.mark.long)])
def test_a_driver_that_loses_its_disk_goes_on_to_the_same_bits(
    tmp_path: Path, local: str, start: Start, kills: int, epochs: int
) -> None:
    job, moments = script(tmp_path / "job.py", SLOW + JOB), random.Random(kills)
    stored = tmp_path / "bucket/run/journal.jsonl"
    for _ in range(kills):
        before, process = dispatched(stored), start(job, local, str(epochs))
        until(partial(grown, stored, before))
        time.sleep(1.5 * moments.random())
        pids = children(process)
        for pid in (process.pid, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        assert gone(pids)
        lose_disk(local)
        assert not missing(local)
        lose_disk(local)
    out, err = start(job, local, str(epochs)).communicate(timeout=300)
    assert out == "completed\n", err
    lose_disk(local)
    start(job, str(tmp_path / "here"), str(epochs)).communicate(timeout=300)
    assert final(local) == digests(hy.load(tmp_path / "here"))
    resumed = sum(isinstance(line, Resumed) for line in journal(find(local).root))
    assert resumed == kills


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


def test_a_run_whose_end_is_not_copied_yet_has_not_ended(url: str, tmp_path: Path) -> None:
    """What others must not see waits for its segment: the end of select, the summary, the status."""
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
    time.sleep(0.5)
    assert thread.is_alive() and not (root / "summary.json").exists()
    faults(tmp_path / "bucket")
    thread.join(60)
    assert outcome[0].status == "completed" == hy.load(url).status
    assert (tmp_path / "bucket/run/summary.json").exists()


def test_a_slow_store_that_fails_and_loses_answers_changes_no_bit(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    faults(tmp_path / "bucket", delay=0.005, fail=0.15, lose=0.15)
    run = select(url, store=tmp_path / "states")
    faults(tmp_path / "bucket")
    lose_disk(url)
    assert final(url) == digests(run) == digests(select(tmp_path / "run"))


# ------------------------------------------------------------------------------------------ two drivers


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Processes that are started from now on have their working folders here, as those of another machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


@pytest.mark.parametrize("race", [0, *(pytest.param(race, marks=pytest.mark.long) for race in range(1, 100))])
def test_a_driver_that_was_stopped_ends_when_another_one_has_gone_on(
    tmp_path: Path, local: str, start: Start, monkeypatch: pytest.MonkeyPatch, race: int
) -> None:
    job, other = script(tmp_path / "job.py", SLOW + JOB), script(tmp_path / "other.py", SLOW + OTHER + JOB)
    elsewhere(monkeypatch, tmp_path / "a")
    first = start(job, local, "3")
    elsewhere(monkeypatch, tmp_path / "here")
    moments = random.Random(race)
    stored = tmp_path / "bucket/run/journal.jsonl"
    until(lambda: dispatched(stored))
    time.sleep(moments.random())
    os.kill(first.pid, signal.SIGSTOP)
    elsewhere(monkeypatch, tmp_path / "b")
    second = start(other, local, "3")
    elsewhere(monkeypatch, tmp_path / "here")
    count = len(list(stored.iterdir()))
    until(lambda: len(list(stored.iterdir())) > count)
    time.sleep(2 * moments.random())
    os.kill(first.pid, signal.SIGCONT)
    out, err = first.communicate(timeout=120)
    assert not out and f"process {second.pid} on host" in err and "has gone on with this run" in err
    out, err = second.communicate(timeout=120)
    assert out == "completed\n", err
    assert not missing(local)
    lines = journal(find(local).root)
    assert [type(line).__name__ for line in lines if isinstance(line, (Resumed, Finished))] == ["Resumed", "Finished"]
    leases = [line.unit.lease for line in lines if isinstance(line, Dispatch)]
    assert leases == sorted(set(leases))
    assert len(final(local)) == 4
