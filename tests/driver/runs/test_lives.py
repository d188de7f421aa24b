"""How a driver in a process of its own ends, and what is left: signals, exit codes, processes, shared memory.

The signal comes from a worker, in the middle of a unit: from there it is sent once, at a chosen batch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Interrupted, Joined
from hopyard.store.layout import Layout
from jobs import CONFIGS, agents, children, digests, driver, gone, journal, memory, script, select

pytestmark = pytest.mark.slow

BODY = """
select(Path("run"), troubled, {configs!r}, engine=hy.Local(2, devices=None))
"""


def job(folder: Path, what: str) -> Path:
    trouble = {"at": 15, "do": what, "once": str(folder / "once")}
    configs = [{**config, **trouble} if n == 1 else config for n, config in enumerate(CONFIGS)]
    return script(folder / "job.py", BODY.format(configs=configs))


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), pytest.param("SIGTERM", 143, marks=pytest.mark.long)])
def test_a_signal_ends_a_run_cleanly(tmp_path: Path, undisturbed: list[str], name: str, code: int) -> None:
    process = driver(["-m", "hopyard", "run", str(job(tmp_path, f"driver {name}"))], tmp_path)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    directory = tmp_path / "run"
    assert isinstance(journal(directory)[-1], Interrupted)
    assert agents(directory)
    assert gone(children(process))
    assert not memory(tmp_path)
    run = hy.resume(directory)
    assert run.status == "completed"
    assert digests(run) == undisturbed


@pytest.mark.parametrize(
    ("what", "code", "words"),
    [
        ("nothing", 0, ""),
        ("raise", 3, ""),
        ("directory", 2, "exists: give another"),
    ],
)
def test_exit_codes(tmp_path: Path, what: str, code: int, words: str) -> None:
    if what == "directory":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "thesis.tex").touch()
    process = driver(["-m", "hopyard", "run", str(job(tmp_path, what))], tmp_path)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, words in err) == (code, True), err


def test_the_keyboard_ends_a_run_in_the_background(tmp_path: Path) -> None:
    """Ctrl-C in `run.wait()`: the run does not go on behind the user's back."""
    path = job(tmp_path, "driver SIGINT")
    path.write_text(path.read_text().replace("devices=None))", "devices=None), wait=False).wait()"))
    process = driver([str(path)], tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT
    last = journal(tmp_path / "run")[-1]
    assert isinstance(last, Interrupted)
    assert (last.reason, last.stopped) == ("interrupted by the user", False)
    assert hy.load(tmp_path / "run").status == "interrupted"
    assert gone(children(process))


def test_a_recipe_of_main_and_one_of_a_module_beside_it(tmp_path: Path) -> None:
    """Both go by value: workers find neither file, nor does a resume or a load."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "nets.py").write_text(
        "from hopyard.frameworks.linear import Linear\nWIDTH = 6\n\n"
        "def recipe(config):\n    return Linear(WIDTH, 2, lr=config['lr'], batch_size=16)\n"
    )
    body = """
import nets, os, shutil, sys
sys.path = [path for path in sys.path if "project" not in path]
def recipe(config):
    return nets.recipe(config)
os.rename(nets.__file__, "gone")
shutil.rmtree(os.path.dirname(nets.__cached__), ignore_errors=True)
one = select(Path("one"), recipe, CONFIGS[:2], engine=hy.Local(1, devices=None))
two = select(Path("two"), nets.recipe, CONFIGS[:2], engine=hy.Local(1, devices=None))
assert digests(one) == digests(two) and one.status == "completed"
"""
    process = driver([str(script(folder / "job.py", body))], tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    for name in ("one", "two"):
        assert hy.load(tmp_path / name).best.model().weights.shape == (6, 2)


def test_a_completed_run_leaves_nothing_behind(tmp_path: Path) -> None:
    run = select(tmp_path / "run", engine=hy.Local(2, devices=None))
    assert gone(agents(run.directory))
    assert not memory(tmp_path)
    assert not (run.directory / ".memory").exists()
    names = {path.name for path in run.directory.iterdir()}
    ours = {"journal.jsonl", "lock", "run.json", "recipe.pkl", "manifest.json", "states", "logs"}
    assert names == ours | {"report.txt", "gantt.html", "summary.json"}


def test_states_on_disk_after_a_run_are_the_last_and_the_best_of_each_trial(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=[{"lr": 0.1}, {"lr": 30.0}, {"lr": 3.0}], epochs=4)
    expected = set()
    for trial in run.trials:
        assert trial.epoch is not None
        expected |= {(trial.id, trial.epoch * 4), (trial.id, 16)}
    stored = [path.name.split("-") for path in Layout(run.directory).states.glob("*.safetensors")]
    assert sorted(expected) == sorted((int(trial), int(step)) for trial, step, _ in stored)
    assert len(expected) > 3  # somewhere the best is not the last


def test_an_agent_writes_to_its_log(tmp_path: Path) -> None:
    def recipe(config: object) -> object:
        from hopyard.frameworks.linear import Linear

        print("built by a worker")
        return Linear(6, 2, lr=0.1, batch_size=16)

    run = select(tmp_path / "run", recipe, CONFIGS[:1], engine=hy.Local(1, devices=None))
    assert "built by a worker" in Layout(run.directory).log(0).read_text()


def test_an_agent_without_a_card_ends(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "hopyard.agent"], stdin=subprocess.DEVNULL, timeout=30, check=False)
    assert done.returncode == 1


def test_a_worker_killed_from_outside_at_any_time(tmp_path: Path, undisturbed: list[str]) -> None:
    """Not at a batch: as soon as the first is there."""
    run = select(tmp_path / "run", engine=hy.Local(2, devices=None), parallel=hy.Hopper("off"), wait=False)
    end = time.monotonic() + 30
    while not (pids := [line.pid for line in journal(run.directory) if isinstance(line, Joined)]):
        assert time.monotonic() < end
        time.sleep(0.005)
    os.kill(pids[0], signal.SIGKILL)
    assert digests(run.wait()) == undisturbed
    assert [line for line in journal(run.directory) if isinstance(line, Lost)]
