"""Runs whose States are on HDFS and S3, while workers, drivers and the servers themselves are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Done, Joined
from jobs import SLOW, agents, digests, driver, gone, journal, script, select, states, until
from stores.servers import client, hdfs, s3

pytestmark = pytest.mark.slow

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


OUTAGES: dict[str, tuple[Any, str, str, str]] = {
    "S3 killed": (s3, "daemon", "kill", "nobody listens there"),
    "S3 frozen": (s3, "daemon", "freeze", ""),
    "NameNode killed": (hdfs, "namenode", "kill", "nobody listens there"),
    "DataNode killed": (hdfs, "datanode", "kill", "no DataNode answers"),
}
"""Server, its process, what happens to it, and the cause in the sentence on the screen."""


@pytest.mark.long
@pytest.mark.parametrize("outage", OUTAGES)
def test_a_server_that_is_away_for_a_while(
    outage: str, tmp_path: Path, undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    start, name, fault, words = OUTAGES[outage]
    with start(tmp_path) as server, client(server):
        daemon, store = getattr(server, name), f"{server.url}/states"
        run = select(tmp_path / "run", engine=hy.Local(2), store=store, wait=False)
        until(lambda: any(isinstance(line, Done) for line in journal(run.directory)))
        getattr(daemon, fault)()
        timer = threading.Timer(45 if fault == "freeze" else 30, daemon.start, (False,))  # 30 s are silence
        timer.start()
        begin = time.monotonic()
        run.wait()
        timer.join()
        assert run.status == "completed" and digests(run) == undisturbed
        assert time.monotonic() - begin > 20, "its last States were stored when the server was back"
        assert len(states(run.directory).refs()) >= len(run.trials)
    said = [record.getMessage() for record in caplog.records if "waits for the store" in record.getMessage()]
    assert 1 <= len(said) <= 2, "one sentence of each worker"
    assert all(words in text for text in said), said
