"""Drivers of runs at URLs that are killed with their disks, and that race: for tests over any store."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.runs.events import Dispatch, Finished, Resumed
from hopyard.driver.runs.fold import recover
from hopyard.spec import Ref
from hopyard.store.layout import Layout, find
from hopyard.store.states import open_store
from hopyard.store.urls import working
from hopyard.store.urls.segments import Segments
from jobs import SLOW, children, digests, driver, gone, journal, script, until

JOB = """
import shaky
run = hy.select(
    slow, None, dataset(rows=800), search=hy.Configs(CONFIGS), epochs=int(sys.argv[2]), metric="val_loss", mode="min",
    seed=1, engine=eval(sys.argv[3]), directory=sys.argv[1], resume=True, trust=True,
)
print(run.status)
"""
OTHER = "from hopyard.store.urls import working\nworking.LOOK = 1.0\n"
"""Before the same job: a driver that soon takes another one, which was stopped, for dead."""
WORKERS, INLINE = "hy.Local(workers=2)", "hy.Inline()"
EPOCHS = {WORKERS: "4", INLINE: "2"}
"""So many that a driver which is to be stopped is not done before, however busy the machine is."""
Start = Callable[..., subprocess.Popen[str]]


@contextmanager
def drivers() -> Iterator[Start]:
    """Starts drivers that end with the test, whatever becomes of it."""
    started: list[subprocess.Popen[str]] = []

    def start(job: Path, url: str, epochs: str = "1", engine: str = WORKERS) -> subprocess.Popen[str]:
        started.append(driver([str(job), url, epochs, engine], job.parent))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


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


def dispatched(url: str) -> int:
    """How many units were given out, as the journal at the URL has it."""
    return sum(data.count(b'"Dispatch"') for _, data in Segments(url, "journal.jsonl").read(0))


def final(url: str) -> list[str]:
    """The digests of a run that completed."""
    run = hy.load(url)
    assert run.status == "completed"
    return digests(run)


def lives_through_lost_disks(folder: Path, url: str, kills: int, epochs: int) -> None:
    """Kill driver and workers at random moments, each time with the driver's disk: the digests are those of a run that
    nobody disturbed, and no State that the journal at the URL names is ever missing."""
    job, moments = script(folder / "job.py", SLOW + JOB), random.Random(kills)
    with drivers() as start:
        for _ in range(kills):
            before, process = dispatched(url), start(job, url, str(epochs))
            until(lambda before=before: dispatched(url) > before)  # type: ignore[misc]
            time.sleep(1.5 * moments.random())
            pids = children(process)
            for pid in (process.pid, *pids):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()
            assert gone(pids)
            lose_disk(url)
            assert not missing(url)
            lose_disk(url)
        out, err = start(job, url, str(epochs)).communicate(timeout=300)
        assert out == "completed\n", err
        lose_disk(url)
        start(job, str(folder / "here"), str(epochs)).communicate(timeout=300)
    assert final(url) == digests(hy.load(folder / "here"))
    assert sum(isinstance(line, Resumed) for line in journal(find(url).root)) == kills


@functools.cache
def undisturbed(engine: str) -> list[str]:
    """The digests of the job that nobody disturbs."""
    with tempfile.TemporaryDirectory() as folder, drivers() as start:
        start(script(Path(folder, "job.py"), SLOW + JOB), f"{folder}/run", EPOCHS[engine], engine).communicate(
            timeout=300
        )
        return digests(hy.load(f"{folder}/run"))


def is_overtaken(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch, race: int, engine: str = WORKERS) -> None:
    """Stop a driver (SIGSTOP) at a random moment, let another one on another host go on, and wake the first: it ends
    and says who went on, no line is lost or doubled, and no State of the winner is deleted."""
    job, other = script(folder / "job.py", SLOW + JOB), script(folder / "other.py", SLOW + OTHER + JOB)
    moments = random.Random(race)

    def elsewhere(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(folder / name))

    with drivers() as start:
        elsewhere("a")
        first = start(job, url, EPOCHS[engine], engine)
        elsewhere("here")
        until(lambda: dispatched(url))
        time.sleep(moments.random())
        os.kill(first.pid, signal.SIGSTOP)
        elsewhere("b")
        count = Segments(url, "journal.jsonl").count()
        stored = b"".join(data for _, data in Segments(url, "journal.jsonl").read(0))
        second = start(other, url, EPOCHS[engine], engine)
        elsewhere("here")
        until(lambda: Segments(url, "journal.jsonl").count() > count)
        time.sleep(2 * moments.random())
        os.kill(first.pid, signal.SIGCONT)
        out, err = first.communicate(timeout=300)
        assert not out and f"process {second.pid} on host" in err and "has gone on with this run" in err, err
        out, err = second.communicate(timeout=300)
        assert out == "completed\n", err
    lines = journal(find(url).root)
    assert isinstance(lines[-1], Finished)
    assert find(url).journal.read_bytes().startswith(stored)
    assert not missing(url)
    assert [type(line) for line in lines if isinstance(line, (Resumed, Finished))] == [Resumed, Finished]
    leases = [line.unit.lease for line in lines if isinstance(line, Dispatch)]
    assert leases == sorted(set(leases))
    assert final(url) == undisturbed(engine)
