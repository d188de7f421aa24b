"""What the user is told when a recipe fails or warns: on the console, in logs, report and journal, by the error."""

from __future__ import annotations

import argparse
import json
import re
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.events import Checked, Done, Failed
from hopyard.driver.runs import session
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch, RunSpec
from jobs import CONFIGS, WIDTH, journal, select

LOCAL = hy.Local(workers=2, devices=None)


def narrow(config: dict[str, Any]) -> Any:
    return Linear(shape_of("no number"), 2, lr=config["lr"], batch_size=16)


def shape_of(text: str) -> int:
    return int(np.dtype(text).itemsize)


class Breaks(Linear):
    """Fails in its second epoch."""

    def train(self, batch: Batch) -> Any:
        if self.steps > 12:
            self.multiply(batch)
        return super().train(batch)

    def multiply(self, batch: Batch) -> None:
        batch.inputs @ np.zeros((WIDTH + 1, 2))


def breaks(config: dict[str, Any]) -> Any:
    return (Breaks if config["lr"] > 0.02 else Linear)(WIDTH, 2, lr=config["lr"], batch_size=16)


class Warns(Linear):
    def train(self, batch: Batch) -> Any:
        warnings.warn("Using a target size", UserWarning, stacklevel=1)
        return super().train(batch)


def warns(config: dict[str, Any]) -> Any:
    return (Warns if config["lr"] > 0.02 else Linear)(WIDTH, 2, lr=config["lr"], batch_size=16)


def call(*words: Any) -> str:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def line_of(text: str) -> int:
    with Path(__file__).open() as file:
        return next(number for number, line in enumerate(file, 1) if line.strip() == text)


PLACE = f"test_session.py, line {line_of('return int(np.dtype(text).itemsize)')}, in shape_of"
WARNING = line_of('warnings.warn("Using a target size", UserWarning, stacklevel=1)')


@pytest.mark.slow
def test_a_recipe_that_cannot_be_built_is_reported_once_with_its_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(hy.PreflightError) as caught:
        select(tmp_path / "run", narrow, engine=LOCAL)
    (fault,) = caught.value.faults
    assert fault.startswith("trials 0, 1, 2: TypeError: data type 'no number' not understood") and PLACE in fault
    assert "trial 0 failed" not in capfd.readouterr().err  # the error says it
    for text in (
        "".join(traceback.format_exception(caught.value)),  # what Python prints
        call("logs", tmp_path / "run"),
        call("show", tmp_path / "run"),
        json.loads(call("show", tmp_path / "run", "--json"))["trials"][0]["trace"],
        next(line.trace for line in journal(tmp_path / "run") if isinstance(line, Checked)),
    ):
        assert "Traceback (most recent call last)" in text and "in shape_of" in text and "in narrow" in text
    assert call("show", tmp_path / "run").count("in shape_of\n") == 1
    assert "Traceback of trial 0, 1, 2" in call("show", tmp_path / "run")


@pytest.mark.slow
def test_a_script_that_fails_in_preflight_shows_the_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import hopyard as hy\nimport numpy as np\n"
        "def recipe(config):\n    return undefined_name\n"
        "data = hy.Dataset.numpy(np.zeros((8, 2), np.float32), np.zeros(8, np.int64))\n"
        f"hy.fit(recipe, {{}}, data, epochs=1, engine=hy.Local(workers=1), directory={str(tmp_path / 'run')!r})\n"
    )
    found = CliRunner().invoke(app, ["run", str(script)])
    assert found.exit_code == 2
    assert "NameError: name 'undefined_name' is not defined (train.py, line 4, in recipe)" in found.stderr
    assert "What trial 0 raised in its worker:\nTraceback (most recent call last)" in found.stderr


def test_inline_the_error_of_the_recipe_is_the_cause(tmp_path: Path) -> None:
    with pytest.raises(hy.PreflightError) as caught:
        select(tmp_path / "built", narrow, engine=hy.Inline())
    cause = caught.value.__cause__
    assert isinstance(cause, TypeError)
    assert traceback.extract_tb(cause.__traceback__)[-1].name == "shape_of"
    with pytest.raises(hy.RunFailed) as failed:
        select(tmp_path / "trained", breaks, CONFIGS[:2], engine=hy.Inline())
    assert isinstance(failed.value.__cause__, ValueError)


def test_ctrl_c_raises_from_the_call_without_the_frames_below(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        select(tmp_path / "run", interrupts, engine=hy.Inline())
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-5:] == ["_begin", "begin", "drive", "_run_to_end", "_train"], "some thirty lines of where it was"
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


@pytest.mark.slow
def test_a_recipe_that_parses_a_command_line(tmp_path: Path) -> None:
    def recipe(config: dict[str, Any]) -> Any:
        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, required=True)
        return Linear(parser.parse_args().width, 2, lr=config["lr"], batch_size=16)

    with pytest.raises(
        hy.PreflightError, match=r"SystemExit: 2: the following arguments are required: --width; .*config"
    ):
        select(tmp_path / "run", recipe, engine=LOCAL)
    assert "required: --width" in hy.load(tmp_path / "run").trials[0].error


def interrupts(config: dict[str, Any]) -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
def test_a_trial_that_breaks_in_training_tells_its_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = select(tmp_path / "run", breaks, engine=LOCAL)
    assert run.status == "partial"
    error = run.trials[0].error
    place = f"test_session.py, line {line_of('batch.inputs @ np.zeros((WIDTH + 1, 2))')}, in multiply"
    assert error.startswith("ValueError: matmul") and error.endswith(f"({place})")
    assert f"trial 0  failed (user): {error}" in capfd.readouterr().err
    (first, *_) = [line for line in journal(run.directory) if isinstance(line, Failed)]
    for text in (first.trace, call("logs", run.directory), call("show", run.directory), run.report()):
        assert "Traceback (most recent call last)" in text and "in multiply" in text


@pytest.mark.slow
def test_a_run_whose_trials_all_break_has_the_traceback_as_a_note(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed) as caught:
        select(tmp_path / "run", breaks, CONFIGS[:2], engine=LOCAL)
    (note,) = caught.value.__notes__
    assert note.startswith("What trial 0 raised in its worker:\nTraceback") and "in multiply\n" in note


@pytest.mark.slow
@pytest.mark.parametrize("engine", [LOCAL, hy.Inline()], ids=["local", "inline"])
def test_warnings_are_counted_and_shown_once_with_their_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], engine: Any
) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.filterwarnings("default", "Using a target size")
        run = select(tmp_path / "run", warns, engine=engine)
    assert run.status == "completed"
    assert len(shown) == (1 if engine == hy.Inline() else 0)  # a worker's is in its log
    line = f"UserWarning: Using a target size (test_session.py, line {WARNING}, in train; in 3 of 4 trials)"
    told = capfd.readouterr().err
    assert told.count(f"warning: {line}") == 1 and told.strip().endswith(line)
    assert f"Warnings\n  {line}\n" in run.report()
    found = json.loads(call("show", run.directory, "--json"))
    assert [warning["trials"] for warning in found["warnings"]] == [[0, 1, 3]]
    lines = [line for line in journal(run.directory) if isinstance(line, (Checked, Done)) and line.warnings]
    assert 3 <= len(lines) <= 8  # each worker tells a trial's once
    again = hy.load(run.directory)
    assert f"Warnings\n  {line}\n" in again.report()


@pytest.mark.parametrize(
    ("copies", "workers", "by_host", "message"),
    [
        (1, 3, (1, 1, 1), r"8 partitions over 3 workers: .* 1\.12 times the minimum.*partitions=9 .*copies=2"),
        (1, 5, (), r"8 partitions over 5 workers: .* 1\.25 .*partitions=10 "),
        (1, 4, (1, 1, 1, 1), ""),
        (1, 3, (3,), ""),  # all on one host, without homes
        (1, 6, (3, 3), ""),  # each host has 4 partitions, and its workers share them
        (1, 16, (), ""),  # more workers are other homes
        (2, 3, (1, 1, 1), ""),
        (None, 3, (1, 1, 1), ""),
    ],
)
def test_partitions_not_divisible_by_workers_are_reported(
    caplog: pytest.LogCaptureFixture, copies: int | None, workers: int, by_host: tuple[int, ...], message: str
) -> None:
    spec = RunSpec(epochs=1, partitions=8, validation=0, copies=copies)
    engine: Any = SimpleNamespace(workers=workers, workers_by_host=by_host)
    has_homes = copies is not None and len(by_host) != 1
    assert session._workers_apart(engine, spec, new=True) == (workers if has_homes else 0)
    assert bool(caplog.messages) == bool(message)
    if message:
        assert re.search(message, caplog.messages[0])


def test_uneven_partitions_are_counted() -> None:
    assert (
        session.uneven(8, 3) == (1.125, 9) and session.uneven(8, 5) == (1.25, 10) and session.uneven(8, 4) == (1.0, 8)
    )
    assert session.uneven(4, 9)[0] == 1.0
