"""The verb track: old runs, live ones, several, and what is said of them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import hopyard as hy
import jobs
from hopyard import cli, tracking
from hopyard.engines import followers
from hopyard.store.layout import Layout
from hopyard.store.lock import Lock
from tracking.event_files import scalars

pytest.importorskip("tensorboard")
pytestmark = pytest.mark.slow


def call(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(cli.app, [*map(str, words)], catch_exceptions=False)
    return result.exit_code, result.output


def test_old_runs_are_written_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    runs = [jobs.select(tmp_path / name, epochs=1) for name in ("tettnang", "perle")]
    target = tmp_path / "tb"
    for _ in range(2):
        code, _ = call("track", *(run.directory for run in runs), "--tensorboard", target)
        assert code == 0 and capfd.readouterr().err.count("has all of") == 2
        for run in runs:
            [folder] = target.glob(f"{Path(run.directory).name}-*")
            for trial in run.trials:
                [(_, step, value)] = scalars(folder / f"trial-{trial.id}")["val_loss"]
                assert (step, value) == (1, pytest.approx(trial.history[1]["val_loss"]))
    code, shown = call("show", tmp_path / "perle")
    assert code == 0 and f"tensorboard={target}: has all" in shown


def test_a_run_that_was_started_with_a_tracker_needs_no_option(tmp_path: Path) -> None:
    jobs.select(tmp_path / "run", epochs=1, track=["tensorboard"])
    [process] = followers._running
    assert process.wait(60) == 0
    followers._running.clear()
    files = {path: path.read_bytes() for path in Layout(tmp_path / "run").tensorboard.rglob("*") if path.is_file()}
    assert files and call("track", tmp_path / "run")[0] == 0
    assert files == {path: path.read_bytes() for path in files}


def test_a_run_without_a_tracker_and_a_tracker_at_work(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import fcntl

    jobs.select(tmp_path / "run", epochs=1)
    code, said = call("track", tmp_path / "run")
    assert code == 2 and "started without track=" in said
    track = f"tensorboard={tmp_path}/tb"
    Layout(tmp_path / "run").logs.mkdir(exist_ok=True)
    with Layout(tmp_path / "run").tracking_log(track).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _ = call("track", tmp_path / "run", "--tensorboard", tmp_path / "tb")
    assert code == 2 and "is at work already" in capfd.readouterr().err


def test_a_live_run_is_followed_to_its_end(tmp_path: Path) -> None:
    go_on = tmp_path / "go on"
    configs = [{"lr": 0.1, "at": 3, "do": f"wait for {go_on}"}]
    run = jobs.select(tmp_path / "run", jobs.troubled, configs, engine=hy.Local(1), wait=False)
    target = tmp_path / "tb"
    jobs.until(lambda: Layout(tmp_path / "run").exists)
    assert call("track", run.directory, "--tensorboard", target)[0] == 0  # what there is now
    go_on.touch()
    assert call("track", run.directory, "--tensorboard", target, "--follow")[0] == 0
    run.wait()
    [folder] = target.iterdir()
    ended = [record for record in tracking.read(run.directory) if isinstance(record, tracking.EpochEnded)]
    assert len(scalars(folder / "trial-0")["val_loss"]) == len(ended) > 0


def test_sigterm_ends_the_followers_too(tmp_path: Path) -> None:
    jobs.select(tmp_path / "run", epochs=1)
    lock = Lock(Layout(tmp_path / "run").lock)  # as a live driver
    own = ["track", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "tb"), "--follow"]
    words = [sys.executable, "-c", "from hopyard.cli import main; main()", *own]
    with subprocess.Popen(words, start_new_session=True) as verb:
        jobs.until(lambda: list(tmp_path.glob("tb/*/*/*")))
        [follower] = Path(f"/proc/{verb.pid}/task/{verb.pid}/children").read_text().split()
        verb.send_signal(signal.SIGTERM)
        assert verb.wait(60) == 143 and not Path("/proc", follower).exists()
    lock.free()


def test_an_ended_run_that_is_resumed_brings_its_trackers_up_to_date(tmp_path: Path) -> None:
    jobs.select(tmp_path / "run", epochs=1)
    hy.resume(tmp_path / "run", track="tensorboard")
    [process] = followers._running
    assert process.wait(60) == 0 and list((tmp_path / "run" / "tensorboard").rglob("*.hopyard"))
    followers._running.clear()


@pytest.mark.parametrize("option", ["--tensorboard", "--mlflow"])
def test_an_empty_target(tmp_path: Path, option: str) -> None:
    jobs.select(tmp_path / "run", epochs=1)
    code, said = call("track", tmp_path / "run", option, "")
    assert code == 2 and f"{option} = " in said
