"""What one Run object says is of one moment, and of now: after a resume by somebody else, and while the run goes on."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Interrupted
from hopyard.driver.runs.loop import RunLoop
from hopyard.driver.runs.run import Run
from hopyard.driver.runs.session import DRIVEN
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch
from hopyard.store.layout import Layout
from jobs import CONFIGS, WIDTH, dataset, driver, first_time, journal, linear, script, select, until


def views(run: Run) -> dict[str, Any]:
    """Everything that a run says of itself, as values that can be compared."""
    page = run.plot().read_text()
    best = run.best
    return {
        "status": run.status,
        "repr": repr(run),
        "html": run._repr_html_(),
        "trials": [repr(trial) for trial in run.trials],
        "best": (best.id, best.epoch, best.metrics, best.digest),
        "weights": best.model().weights.tolist(),
        "pareto": [trial.id for trial in run.pareto],
        "report": run.report(),
        "summary": run.summary(),
        "frame": run.to_pandas().to_json(),
        "history": run.history().to_json(),
        "plot": page,
    }


class Interrupts(Linear):
    """Is interrupted as by Ctrl-C in the first batch, once."""

    def __init__(self, once: Path, lr: float) -> None:
        super().__init__(WIDTH, 2, lr=lr, batch_size=16)
        self._once = once

    def train(self, batch: Batch) -> Any:
        if first_time(str(self._once)):
            raise KeyboardInterrupt
        return super().train(batch)


def cut(directory: Path) -> None:
    """A run that ends with trial 0, whose rate is too small to learn."""

    def recipe(config: dict[str, Any]) -> Any:
        return linear(config) if config["lr"] < 0.1 else Interrupts(directory / "once", config["lr"])

    with pytest.raises(KeyboardInterrupt):
        select(directory, recipe, [{"lr": 1e-6}, {"lr": 0.3}])


def test_a_run_says_what_a_resume_by_another_object_did(tmp_path: Path) -> None:
    """Bug: its status was of now; its best trial, report and table were of the time when it was read."""
    cut(tmp_path / "run")
    before = hy.load(tmp_path / "run")
    assert (before.status, before.best.id, before.done) == ("interrupted", 0, True)
    trial = before.best
    text = repr(trial)
    resumed = hy.resume(tmp_path / "run")
    assert views(before) == views(resumed) == views(hy.load(tmp_path / "run"))
    assert (before.status, before.best.id, before.summary()["completed"]) == ("completed", 1, 2)
    assert "completed: 2 of 2 trials completed" in repr(before)
    assert repr(trial) == text, "a trial that was handed out stays as it was"
    hy.resume(tmp_path / "run", epochs=3)
    assert views(before) == views(resumed) == views(hy.load(tmp_path / "run"))
    assert [len(trial.history) for trial in before.trials] == [3, 3]


@pytest.mark.slow
def test_a_run_says_what_a_resume_by_another_process_did(tmp_path: Path) -> None:
    cut(tmp_path / "run")
    before = hy.load(tmp_path / "run")
    assert before.best.id == 0
    subprocess.run([sys.executable, "-m", "hopyard", "resume", "run"], cwd=tmp_path, check=True, capture_output=True)
    assert (before.status, before.best.id) == ("completed", 1)
    assert views(before) == views(hy.load(tmp_path / "run"))


def test_trials_of_another_recipe_have_its_models_in_an_older_object(tmp_path: Path) -> None:
    class Wider(Linear):
        width = 2

    def broken(config: dict[str, Any]) -> Any:
        if config["lr"] == 0.3:
            raise ValueError("no such optimizer")
        return linear(config)

    def mended(config: dict[str, Any]) -> Any:
        return Wider(WIDTH, 2, lr=config["lr"], batch_size=16)

    run = select(tmp_path / "run", broken, CONFIGS)
    assert (run.status, run.trials[0].model().steps) == ("partial", 24)
    hy.resume(tmp_path / "run", failed=True, recipe=mended)
    assert run.status == "completed"
    assert [getattr(trial.model(), "width", 0) for trial in run.trials] == [0, 0, 0, 2]


def test_a_new_run_in_the_place_of_an_old_one(tmp_path: Path) -> None:
    """A run that trained nothing may be begun anew in its directory: an object of it reads the new one."""
    with pytest.raises(hy.PreflightError):
        select(tmp_path / "run", metric="auc")
    run = hy.load(tmp_path / "run")
    assert run.status == "failed"
    select(tmp_path / "run", configs=CONFIGS[:2])
    assert views(run) == views(hy.load(tmp_path / "run"))


def test_lines_that_the_driver_took_back_are_not_kept(tmp_path: Path) -> None:
    """A driver that finds the disk full cuts its last lines off, and writes others in their place."""
    select(tmp_path / "run", configs=CONFIGS[:2])
    path = Layout(tmp_path / "run").journal
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20]))
    run = hy.load(tmp_path / "run")
    path.write_bytes(b"".join(lines[:15]))
    assert len(run.trials) == 2
    other = Interrupted(at=journal(tmp_path / "run")[-1].at, reason="no room " * 1000, stopped=True)
    path.write_bytes(b"".join(lines[:15]) + CODEC.encode(other) + b"\n")
    assert path.stat().st_size > len(b"".join(lines[:20]))
    assert (run.status, repr(run.trials)) == ("stopped", repr(hy.load(tmp_path / "run").trials))
    path.write_bytes(b"".join(lines))
    assert views(run) == views(hy.load(tmp_path / "run"))


def test_a_run_whose_directory_is_gone_says_what_it_knew(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:2])
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert (run.status, run.best.id) == ("completed", hy.load(tmp_path / "elsewhere").best.id)


# ------------------------------------------------------------------------------------------------ while it goes on


@contextmanager
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def read_once(run: Run, path: Path) -> int:
    """Read all of a run that goes on. Each answer must be of one moment. Returns the number of trials."""
    report = run.report()
    head = re.search(r"(\d+) of (\d+) trials? completed", report)
    assert head is not None, report
    rows = re.findall(r"^ +[\d–]+ +\d+ +([a-z]+) ", report.partition("Trials, each")[2].partition("\n\n")[0], re.M)
    assert (Counter(rows)["completed"], len(rows)) == (int(head[1]), int(head[2])), report
    summary = run.summary()
    assert summary["partitions"] >= 4 * summary["completed"], "the account is of an earlier moment than the trials"
    assert summary["states"] <= 4 * summary["trials"]
    table, trials = run.to_pandas(), run.trials
    assert list(table.get("trial", ())) == list(range(len(table))) and [trial.id for trial in trials] == [
        *range(len(trials))
    ]
    assert all(trial.history for trial in trials if trial.status == "completed")
    assert summary["trials"] <= len(table) <= len(trials)
    shown = re.search(r"(\d+) of (\d+) trials completed", repr(run))
    assert shown is not None and int(head[1]) <= int(shown[1]) <= int(shown[2])
    front = run.pareto
    if front:
        assert run.best.metrics["val_loss"] <= front[0].metrics["val_loss"]
    page = run.plot(path).read_text()
    assert "{{" not in page
    return len(trials)


def read_until_over(run: Run, path: Path, errors: list[BaseException], counts: list[int]) -> None:
    try:
        while True:
            over = run.done
            counts.append(read_once(run, path))
            if over:
                return
    except BaseException as error:
        errors.append(error)


MANY: dict[str, Any] = {"search": hy.Random(40), "epochs": 2, "stop": hy.ASHA()}


@pytest.mark.long
def test_a_run_may_be_read_while_it_goes_on(tmp_path: Path) -> None:
    """Bug: RuntimeError, "dictionary changed size during iteration", while the sampler proposed trials."""
    errors, counts = list[BaseException](), list[int]()
    threads: list[threading.Thread] = []
    turn = RunLoop.turn

    def readers_begin(self: RunLoop) -> None:
        if not threads:
            for number in range(2):
                arguments = (DRIVEN[-1], tmp_path / f"{number}.html", errors, counts)
                threads.append(threading.Thread(target=read_until_over, args=arguments))
                threads[-1].start()
        turn(self)

    with pytest.MonkeyPatch.context() as patch, switching():
        patch.setattr(RunLoop, "turn", readers_begin)
        space, more = hy.Space(lr=hy.loguniform(1e-3, 1e-1)), {"directory": tmp_path / "run", **MANY}
        run = hy.select(linear, space, dataset(), metric="val_loss", mode="min", engine=hy.Inline(), **more)
        for thread in threads:
            thread.join(60)
    assert not errors, errors
    assert max(counts) == 40 == len(run.trials) and len(set(counts)) > 3, "the run was not read while it went on"
    assert views(run) == views(hy.load(tmp_path / "run"))


@pytest.mark.slow
def test_a_run_of_another_process_may_be_read_while_it_goes_on(tmp_path: Path) -> None:
    space = "hy.Space(lr=hy.loguniform(1e-3, 1e-1))"
    more = "epochs=2, stop=hy.ASHA(), metric='val_loss', mode='min', engine=hy.Inline(), directory='run'"
    body = f"hy.select(linear, {space}, dataset(), search=hy.Random(40), {more})"
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    path = Layout(tmp_path / "run").journal
    until(lambda: path.exists() and path.stat().st_size)
    run = hy.load(tmp_path / "run")
    errors, counts = list[BaseException](), list[int]()
    read_until_over(run, tmp_path / "plot.html", errors, counts)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert not errors, errors
    assert (max(counts), run.status) == (40, "completed")
    assert views(run) == views(hy.load(tmp_path / "run"))
