"""Followers beside runs: of this process, to see each step, and processes of their own, as drivers start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import hopyard as hy
from api_servers import Handler, hang, refuse
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Extended, Resumed
from hopyard.core.runs.machine import fold
from hopyard.driver.runs.replay import replay
from hopyard.driver.runs.run import Run
from hopyard.engines import followers
from hopyard.errors import HopyardError, JournalError
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from hopyard.store.standing import held
from hopyard.tracking import RunStarted, follower, kubeflow, reading
from hopyard.tracking.follower import News, Pace, Refused, Tracker, follow
from hopyard.tracking.progress import Progress, progress_of
from hopyard.tracking.reading import ReadAgain, Reading
from jobs import digests, journal, select, troubled
from trainers import Trainer, trainer, until

QUICK = Pace(look=0.01, pause=0.01, longest=0.04)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return select(tmp_path_factory.mktemp("followed") / "run")


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Trainer]:
    with trainer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def pod(played: Trainer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trainer]:
    """This process is in a pod of the TrainJob; no follower that it starts outlives the test."""
    for name, value in played.environ.items():
        monkeypatch.setenv(name, value)
    yield played
    for process in followers._running:
        process.kill()
        process.wait()
    followers._running.clear()


def tracker(update: Callable[[News], None], gap: float) -> Tracker:
    """Return a tracker of one function."""
    return SimpleNamespace(update=update, gap=gap)


class Growing:
    """A run directory whose driver is alive, and whose journal the test writes.

    Args:
        run: whose journal it is.
        directory: of the copy.
    """

    def __init__(self, run: Run, directory: Path) -> None:
        self.layout = Layout(directory)
        self.layout.logs.mkdir(parents=True)
        self.lock = Lock(self.layout.lock)
        self.lines = Layout(run.directory).journal.read_bytes().splitlines(keepends=True)
        self.error: BaseException | None = None

    def write(self, count: int) -> None:
        """Append so many lines."""
        lines, self.lines = self.lines[:count], self.lines[count:]
        with self.layout.journal.open("ab") as file:
            file.write(b"".join(lines))  # at once, so that nobody reads a part of them

    def follow(self, update: Callable[[News], None], pace: Pace = QUICK, gap: float = 0.01) -> threading.Thread:
        def work() -> None:
            try:
                follow(self.layout, "kubeflow", lambda: tracker(update, gap), pace)
            except HopyardError as error:
                self.error = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread


@pytest.fixture
def growing(run: Run, tmp_path: Path) -> Iterator[Growing]:
    growing = Growing(run, tmp_path / "growing")
    yield growing
    growing.lock.free()


def test_a_token_that_rotates_a_server_that_fails_and_one_that_hangs(
    growing: Growing, played: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeflow, "TIMEOUT", 0.2)
    thread = growing.follow(kubeflow.connect("", growing.layout, played.environ).update)
    growing.write(5)
    until(lambda: played.statuses)
    played.accepted = "second"
    growing.write(5)
    until(lambda: played.refused >= 2)
    played.write("second")
    until(lambda: len(played.statuses) >= 2)
    before = played.posts
    played.answer = refuse(500, "InternalError", "Internal error")
    growing.write(5)
    until(lambda: played.posts >= before + 3)
    before = played.posts
    played.answer = hang
    until(lambda: played.posts >= before + 3)  # so the first of them has timed out
    growing.write(len(growing.lines))
    played.answer = None
    growing.lock.free()
    thread.join(60)
    assert growing.error is None and not thread.is_alive()
    percents = [status["progressPercentage"] for status in played.statuses]
    assert percents == sorted(percents) and percents[-1] == 100 and 100 not in percents[:-1]


def test_what_changes_during_an_update_goes_with_the_next_one(growing: Growing) -> None:
    began, go_on, sent = threading.Event(), threading.Event(), list[float]()

    def update(news: News) -> None:
        sent.append(news.at)
        began.set()
        assert go_on.wait(60)

    growing.write(2)
    thread = growing.follow(update)
    assert began.wait(60)
    while growing.lines:
        growing.write(1)
    growing.lock.free()
    go_on.set()
    thread.join(60)
    lines = journal(growing.layout.root)
    assert sent == [lines[1].at, lines[-1].at]


def test_it_waits_for_the_first_line_and_for_a_driver_that_goes_on_with_an_ended_run(growing: Growing) -> None:
    sent: list[str] = []
    thread = growing.follow(lambda news: sent.append(news.status))
    growing.write(len(growing.lines))
    until(lambda: sent)
    at = journal(growing.layout.root)[-1].at + 1
    growing.lines = [CODEC.encode(line) + b"\n" for line in (Resumed(at=at), Extended(at=at, epochs=3, trials=4))]
    growing.write(2)
    until(lambda: len(sent) == 2)
    growing.lock.free()
    thread.join(60)
    assert growing.error is None and sent == ["completed", "running", "interrupted"]


@pytest.mark.parametrize("fails", [False, True])
def test_the_end_of_the_run_waits_for_no_gap_and_no_pause(growing: Growing, fails: bool) -> None:
    tries: list[str] = []

    def update(news: News) -> None:
        tries.append(news.status)
        if fails and len(tries) == 1:
            raise ConnectionError("nobody listens")

    growing.write(2)
    thread = growing.follow(update, Pace(look=0.01, pause=3600.0, longest=3600.0), gap=3600.0)
    until(lambda: tries)
    growing.write(len(growing.lines))
    growing.lock.free()
    thread.join(60)
    assert tries == ["running", "completed"]


def test_when_a_state_is_sent(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    now, tries, away = 0.0, list[float](), True

    def update(news: News) -> None:
        tries.append(now)
        if away:
            raise ConnectionError("nobody listens")

    monkeypatch.setattr(follower, "time", SimpleNamespace(monotonic=lambda: now))
    pace, machine = Pace(pause=1.0, longest=4.0), fold(journal(run.directory))
    sender = follower.Sender(tracker(update, gap=5.0), pace, Progress("kubeflow"), lambda progress: None)
    while now < 12:
        sender.send(machine, "running", 1.0, 1)
        now += 1
    away = False
    while now < 30:
        sender.send(machine, "running", now, 1 if now < 17 else int(now))
        now += 1
    assert tries == [0.0, 1.0, 3.0, 7.0, 11.0, 15.0, 20.0, 25.0]


def test_of_a_driver_that_is_gone_the_last_state_is_sent(growing: Growing) -> None:
    sent: list[str] = []
    growing.write(10)
    growing.lock.free()
    growing.follow(lambda news: sent.append(news.status)).join(60)
    assert growing.error is None and sent == ["interrupted"]


def test_one_follower_at_a_time(growing: Growing) -> None:
    sent: list[str] = []
    growing.write(10)
    first = growing.follow(lambda news: sent.append("first"))
    until(lambda: sent)
    second = growing.follow(lambda news: sent.append("second"))
    growing.write(10)
    until(lambda: len(sent) == 2)
    growing.lock.free()
    for thread in (first, second):
        thread.join(60)
    assert sent == ["first", "first", "first", "second"]


def test_it_gives_up_some_time_after_the_end(growing: Growing) -> None:
    def update(news: News) -> None:
        raise ConnectionError("nobody listens")

    growing.write(10)
    growing.lock.free()
    growing.follow(update, Pace(look=0.01, pause=0.01, grace=0.1)).join(60)
    assert "nobody listens" in str(growing.error)


def test_a_backlog_may_take_longer_than_the_grace(growing: Growing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PORTION", 3)
    monkeypatch.setattr(Reading.more, "__defaults__", (3,))
    portions: list[int] = []
    growing.write(len(growing.lines))
    growing.lock.free()
    lines = len(journal(growing.layout.root))

    def update(news: News) -> None:
        portions.append(len(news.records))
        time.sleep(0.02)

    growing.follow(update, Pace(look=0.01, grace=0.1)).join(60)
    assert growing.error is None and 0.02 * len(portions) > 0.1 and len(portions) >= lines // 3


def test_a_tracker_that_loses_what_it_got_is_read_again_and_given_up(growing: Growing) -> None:
    tries: list[float] = []

    def update(news: News) -> None:
        tries.append(time.monotonic())
        assert isinstance(news.records[0], RunStarted)
        raise ReadAgain("the files are gone")

    growing.write(10)
    growing.lock.free()
    growing.follow(update, Pace(look=0.01, pause=0.01, longest=0.05)).join(60)
    assert "given up: the files are gone" in str(growing.error) and 3 <= len(tries) <= 6
    [progress] = progress_of(growing.layout, ())
    assert "the files are gone" in progress.problem


def test_what_ends_a_follower_is_in_what_is_said_of_it(growing: Growing) -> None:
    def update(news: News) -> None:
        raise ModuleNotFoundError("No module named 'psycopg2'")

    growing.write(10)
    with pytest.raises(ModuleNotFoundError):
        follow(growing.layout, "kubeflow", lambda: tracker(update, 0.01), QUICK)
    [progress] = progress_of(growing.layout, ())
    assert "psycopg2" in progress.problem


def test_a_refusal_and_a_damaged_journal_end_it(growing: Growing) -> None:
    def update(news: News) -> None:
        raise Refused("no such TrainJob")

    growing.write(3)
    growing.follow(update).join(60)
    assert isinstance(growing.error, Refused)
    growing.lines[0] = b"nonsense\n"
    growing.write(1)
    growing.follow(update).join(60)
    assert isinstance(growing.error, JournalError)


def test_without_the_variable_there_is_no_follower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    before = list(followers._running)
    run = select(tmp_path / "run")
    assert followers._running == before and not Layout(run.directory).tracking_log("kubeflow").exists()


def test_a_follower_that_cannot_be_started_is_warned_of(
    pod: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere"))
    run = select(tmp_path / "run")
    assert run.status == "completed" and "its follower cannot be started" in caplog.text


@pytest.mark.slow
def test_a_run_ends_while_the_server_hangs(pod: Trainer, tmp_path: Path) -> None:
    over = threading.Event()

    def busy(handler: Handler) -> None:
        over.wait(60)
        handler.send(503, {})

    pod.answer = busy
    run = select(tmp_path / "run", epochs=1)
    [process] = followers._running
    assert run.status == "completed" and process.poll() is None and not pod.statuses
    until(lambda: pod.posts)
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19 and os.getsid(process.pid) == process.pid
    group = Path(f"/proc/{process.pid}/autogroup")
    assert not group.exists() or group.read_text().endswith("nice 19\n")
    pod.answer = None
    over.set()
    assert process.wait(60) == 0
    assert pod.statuses[-1]["progressPercentage"] == 100
    log = Layout(run.directory).tracking_log("kubeflow").read_text()
    assert "answered 503" in log and "kubeflow has all of" in log


@pytest.mark.slow
def test_a_killed_follower_changes_nothing_and_a_resume_starts_another(pod: Trainer, tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    configs: list[dict[str, Any]] = [{"lr": 0.1, "at": 3, "do": f"wait for {go_on}"}]
    directory, engine = tmp_path / "run", hy.Local(1)
    run = select(directory, troubled, configs, engine=engine, wait=False)
    until(lambda: pod.statuses)
    [process] = followers._running
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    run.stop()
    assert run.status == "stopped"
    go_on.touch()
    run = hy.resume(directory)
    [process] = followers._running
    assert process.wait(60) == 0
    assert run.status == "completed" and digests(run) == digests(select(tmp_path / "other", troubled, configs))
    log = Layout(directory).tracking_log("kubeflow").read_text()
    assert log.count("kubeflow has all of") == 1
    assert {status["progressPercentage"] for status in pod.statuses} >= {0, 100}


def test_a_replay_is_no_progress(pod: Trainer, run: Run) -> None:
    assert replay(run.directory).different == [] and not followers._running


@pytest.mark.slow
@pytest.mark.parametrize("patience", [60.0, pytest.param(0.1, marks=pytest.mark.long)])
def test_a_process_waits_for_the_last_post_but_not_for_long(played: Trainer, tmp_path: Path, patience: float) -> None:
    over, layout = threading.Event(), Layout(tmp_path / "run")

    def late(handler: Handler) -> None:
        over.wait(60)
        played.answer = None
        played._answer(handler)

    played.answer = late
    script = f"""
import pathlib, jobs
from hopyard.engines import followers
followers.LAST_SECONDS = {patience}
jobs.select(pathlib.Path({str(layout.root)!r}), epochs=1)
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]])
    environ = {**os.environ, **played.environ, "PYTHONPATH": path}
    with subprocess.Popen([sys.executable, "-c", script], env=environ) as driver:
        until(lambda: layout.summary.exists() and not held(layout.lock))
        if patience > 1:
            with pytest.raises(subprocess.TimeoutExpired):
                driver.wait(1)
            over.set()
        assert driver.wait(60) == 0
        over.set()
    assert patience < 1 or played.statuses[-1]["progressPercentage"] == 100
    until(lambda: played.statuses and played.statuses[-1]["progressPercentage"] == 100)
