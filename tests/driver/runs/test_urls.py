"""Run directories at URLs: drivers that are killed and lose their disk, drivers that race, stores that fail."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.runs.events import Dispatch, Finished, Resumed
from hopyard.driver.runs.fold import recover
from hopyard.spec import Ref
from hopyard.store.layout import Layout, find
from hopyard.store.states import open_store
from hopyard.store.urls import working
from jobs import SLOW, children, digests, driver, gone, journal, script, until

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
        until(lambda before=before: dispatched(stored) > before)
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
