"""Runs with their States, or all, on HDFS and S3: workers, drivers and the servers themselves are killed."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Done, Joined
from hopyard.spec import Ref
from hopyard.store.guard import Guarded, StoreUnreachable
from hopyard.store.states import open_store
from jobs import SLOW, agents, digests, driver, gone, journal, script, select, states, until
from stores.proxy import proxy
from stores.servers import client, hdfs, s3
from url_drivers import final, lose_disk

pytestmark = pytest.mark.slow

REF = Ref(0, 1, 1)
SERVED = ["s3", pytest.param("hdfs", marks=pytest.mark.long)]


@pytest.fixture(params=SERVED)
def store(request: pytest.FixtureRequest) -> str:
    return f"{request.getfixturevalue(request.param).url}/{uuid.uuid4().hex}/states"


def test_a_killed_worker(store: str, tmp_path: Path, undisturbed: list[str]) -> None:
    run = select(tmp_path / "run", engine=hy.Local(2), store=store, wait=False)
    pids = until(lambda: [line.pid for line in journal(run.directory) if isinstance(line, Joined)])
    until(lambda: any(isinstance(line, Done) for line in journal(run.directory)))
    os.kill(pids[0], signal.SIGKILL)
    assert digests(run.wait()) == undisturbed
    assert any(isinstance(line, Lost) for line in journal(run.directory))
    assert len(states(run.directory).refs()) >= len(run.trials)


@pytest.mark.long
@pytest.mark.parametrize("kills", [3])
def test_killed_drivers_and_workers_resume(store: str, kills: int, tmp_path: Path) -> None:
    body = f"""
{SLOW}
hy.select(slow, None, dataset(), search=hy.Configs(CONFIGS), epochs=3, metric="val_loss", mode="min",
          engine=hy.Local(2), directory="DIRECTORY", store="STORE", resume=True)
"""
    place = tmp_path / "run"
    text = body.replace("DIRECTORY", str(place)).replace("STORE", store)
    for number in range(kills):
        before = len(journal(place)) if place.exists() else 0
        process = driver([str(script(tmp_path / f"{number}.py", text))], tmp_path)
        try:
            until(lambda before=before: (place / "journal.jsonl").exists() and len(journal(place)) > before + 12)  # type: ignore[misc]
            os.kill(process.pid, signal.SIGKILL)
            assert gone(agents(place), 60)
        finally:
            process.kill()
            process.communicate()
    process = driver([str(script(tmp_path / "last.py", text))], tmp_path)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, out + errors
    local = body.replace("DIRECTORY", str(tmp_path / "local")).replace("STORE", str(tmp_path / "states"))
    process = driver([str(script(tmp_path / "local.py", local))], tmp_path)
    assert process.wait(300) == 0
    process.communicate()
    assert digests(hy.load(place)) == digests(hy.load(tmp_path / "local"))


@dataclass(frozen=True)
class Outage:
    """A server that is away for a while."""

    start: Callable[[Path], AbstractContextManager[Any]]
    process: str
    fault: str
    seconds: float
    cause: str
    """In the sentence on the screen."""


OUTAGES = {
    "S3 killed": Outage(s3, "daemon", "kill", 60, "nobody listens there"),
    "S3 frozen": Outage(s3, "daemon", "freeze", 45, ""),  # 30 s are silence
    "NameNode killed": Outage(partial(hdfs, safe_mode=30), "namenode", "kill", 10, "nobody listens there"),
    "NameNode frozen": Outage(hdfs, "namenode", "freeze", 45, ""),
    "DataNode killed": Outage(hdfs, "datanode", "kill", 30, "no DataNode answers"),
}


HELD = pytest.mark.parametrize("held", ["States", "all"])
"""What of a run is on the server."""


def begun(server: Any, held: str, folder: Path) -> hy.Run:
    """A run of which the server has the States, or all, and which has trained a unit."""
    name = uuid.uuid4().hex
    directory, store = (folder / "run", f"{server.url}/{name}") if held == "States" else (f"{server.url}/{name}", None)
    run = select(directory, engine=hy.Local(2), store=store, wait=False)
    until(lambda: any(isinstance(line, Done) for line in journal(run.directory)))
    return run


def check_whole(run: hy.Run, undisturbed: list[str]) -> None:
    """Check a run that has ended, by what the server has of it."""
    assert digests(run) == undisturbed and run.status == "completed"
    assert len(states(run.directory).refs()) >= len(run.trials)
    if run.url:
        lose_disk(run.url)
        assert final(run.url) == undisturbed


@pytest.mark.long
@HELD
@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_a_server_that_is_away_for_a_while(
    outage: Outage, held: str, tmp_path: Path, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with outage.start(tmp_path) as server, client(server):
        daemon, run = getattr(server, outage.process), begun(server, held, tmp_path)
        getattr(daemon, outage.fault)()
        time.sleep(outage.seconds)
        assert run.status == "running", "its last States are not stored yet"
        daemon.start(wait=False)
        run.wait()
        daemon.wait()
        check_whole(run, undisturbed)
    check_said(caplog, outage.cause, held)


def check_said(caplog: pytest.LogCaptureFixture, cause: str, held: str, outages: int = 1) -> None:
    """Check that each worker said once what it waits for, and the driver at most once an outage."""
    said = [record.getMessage() for record in caplog.records if "waits for the store" in record.getMessage()]
    assert 1 <= len(said) <= 2, "one sentence of each worker"
    assert all(cause in text for text in said), said
    about_the_journal = caplog.text.count("deletes nothing")
    assert (about_the_journal > 0) == (held == "all") and about_the_journal <= outages, caplog.text


@pytest.mark.long
def test_a_name_node_in_safe_mode(tmp_path: Path) -> None:
    with hdfs(tmp_path, safe_mode=15) as server, client(server):
        open_store(f"{server.url}/states").put(REF, memoryview(b"a State"))
        server.namenode.kill()
        server.namenode.start()
        for url in (server.url, server.web):
            store = Guarded(lambda url=url: open_store(f"{url}/states", make=False), url)  # type: ignore[misc]
            with pytest.raises(StoreUnreachable, match="the NameNode is in safe mode"):
                store.put(Ref(0, 2, 1), memoryview(b"another State"))
        server.datanode.wait()
        store.put(Ref(0, 2, 1), memoryview(b"another State"))
        assert store.refs() == {REF, Ref(0, 2, 1)}


@pytest.mark.long
@HELD
@pytest.mark.parametrize("status", [500, 503])
def test_a_server_that_answers_with_errors(
    status: int, held: str, s3: Any, tmp_path: Path, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A third of its answers, and all of them for 40 s."""
    with proxy(s3) as (server, faults), client(server):
        faults.status, faults.share = status, 0.3
        run = begun(server, held, tmp_path)
        faults.share = 1.0
        time.sleep(40)
        faults.share = 0.3
        run.wait()
        faults.share = 0.0
        check_whole(run, undisturbed)
    assert faults.refused > 20
    # Of the requests after the long outage, which fail now and then, one may have used up all attempts of its driver.
    check_said(caplog, "the service is overloaded, or has failed", held, outages=3)


@pytest.mark.long
@HELD
def test_a_server_that_answers_slowly(held: str, s3: Any, tmp_path: Path, undisturbed: list[str]) -> None:
    with proxy(s3) as (server, faults), client(server):
        faults.delay = 2.0 if held == "States" else 0.5  # the last files of a run are copied for 10 s at most
        run = begun(server, held, tmp_path).wait()
        faults.delay = 0.0
        check_whole(run, undisturbed)


@pytest.mark.parametrize("daemon", ["namenode", pytest.param("datanode", marks=pytest.mark.long)])
def test_a_frozen_server_of_webhdfs_is_away(daemon: str, hdfs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{hdfs.web}/{uuid.uuid4().hex}"
    store = Guarded(lambda: open_store(url), url)
    store.put(REF, memoryview(b"a State"))
    monkeypatch.setattr("hopyard.filesystems.opening._HTTP_SECONDS", 1)
    frozen = getattr(hdfs, daemon)
    frozen.freeze()
    try:
        with pytest.raises(StoreUnreachable, match="nobody answered in time"):
            store.get(REF)
    finally:
        frozen.start()
    assert store.get(REF) == b"a State"
