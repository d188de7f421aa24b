"""Programs that are started by hand, as the tutorials of torch, TensorFlow and JAX have them, under `hopyard launch`.

They are in tests/stock; tests/stock/changed has those that need changed lines. The table in
docs/from-a-hand-started-cluster.md says how many lines that are, and the command that runs each.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from example_modules import needs
from hopyard.cli import app
from jobs import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.programs,
]

STOCK = Path(__file__).parent / "stock"
PAGE = Path(__file__).parents[1] / "docs" / "from-a-hand-started-cluster.md"
ROW = re.compile(
    r"^\| \[(\S+)\]\(\.\./tests/stock/\1\).*\| `([^`]+)` \| (\d+) \| `hopyard launch ([^`]+) \1` \|$", re.M
)
TABLE = {
    name: (shlex.split(by_hand), int(lines), shlex.split(options))
    for name, by_hand, lines, options in ROW.findall(PAGE.read_text())
}
"""File → the command by hand, the changed lines, and the options of `hopyard launch`, as the page states them."""
MOST_LINES = 10
RESULT = re.compile(r"(\w+ \d): loss (\d+\.\d+), accuracy (\d+\.\d+)")
MINIMUM_ACCURACY = 0.8
COMMAND_SECONDS = 230


def changed(name: str) -> Path:
    """Return the file that Hopyard runs: the stock one, where it needs no change."""
    path = STOCK / "changed" / name
    return path if path.exists() else STOCK / name


def changed_lines(before: Sequence[str], after: Sequence[str]) -> int:
    """Return how many lines are replaced, added or removed."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in matcher.get_opcodes() if kind != "equal")


def results(text: str) -> dict[str, tuple[float, float]]:
    """Return who printed a result → its loss and accuracy."""
    return {who: (float(loss), float(accuracy)) for who, loss, accuracy in RESULT.findall(text)}


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}


def called(folder: Path, *words: object) -> str:
    """Return what `python WORDS…` prints in a new folder."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def launched(name: str, folder: Path) -> dict[str, tuple[float, float]]:
    """Return what the processes print as results, started by the command of the page."""
    program = folder / "program"
    called(folder / "launched", "-m", "hopyard", "launch", *TABLE[name][2], "--directory", program, changed(name))
    found = results(CliRunner().invoke(app, ["logs", str(program)]).output)
    assert found and min(accuracy for _, accuracy in found.values()) > MINIMUM_ACCURACY
    return found


# ------------------------------------------------------------------------------------------------ changed lines


def test_the_page_has_a_row_for_each_program() -> None:
    assert sorted(TABLE) == sorted(path.name for path in STOCK.glob("*.py"))
    assert {path.name for path in (STOCK / "changed").glob("*.py")} <= set(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_program_needs_as_many_changed_lines_as_the_page_states(name: str) -> None:
    text = (STOCK / name).read_text()
    assert "hopyard" not in text.lower()
    lines = changed_lines(text.splitlines(), changed(name).read_text().splitlines())
    assert lines == TABLE[name][1] <= MOST_LINES


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [("ab", "ab", 0), ("abc", "aXc", 1), ("abc", "ac", 1), ("abc", "XabcY", 2), ("abcd", "aXd", 2)],
)
def test_lines_that_count_as_changed(before: str, after: str, lines: int) -> None:
    assert changed_lines(before, after) == lines


# ------------------------------------------------------------------------------------------------ the programs


@pytest.mark.long
@needs("torch", "sklearn")
def test_torch_ddp_prints_what_it_prints_under_torchrun(tmp_path: Path) -> None:
    command, *options, script = TABLE["torch_ddp.py"][0]
    assert command == "torchrun"
    by_hand = results(called(tmp_path / "by-hand", "-m", "torch.distributed.run", *options, STOCK / script))
    assert set(by_hand) == {"rank 0", "rank 1"}
    assert launched("torch_ddp.py", tmp_path) == by_hand
    assert (tmp_path / "launched" / "snapshot.pt").exists()


@pytest.mark.jax
@pytest.mark.long
@needs("jax", "sklearn")
def test_jax_distributed_prints_what_it_prints_started_by_hand(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    words = [sys.executable, str(STOCK / "jax_distributed.py"), address, "2"]
    first, second = (
        subprocess.Popen([*words, str(index)], env=environment(), stdout=subprocess.PIPE, text=True) for index in (0, 1)
    )
    try:
        printed = [process.communicate(timeout=COMMAND_SECONDS)[0] for process in (first, second)]
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
    by_hand = results("".join(printed))
    assert set(by_hand) == {"process 0", "process 1"}
    assert launched("jax_distributed.py", tmp_path) == by_hand


@pytest.mark.tensorflow
@pytest.mark.campaign
@needs("tensorflow", "sklearn")
def test_multi_worker_mirrored(tmp_path: Path) -> None:
    """The example of this name, which reads TF_CONFIG as well, is run by each `make test`."""
    found = launched("multi_worker_mirrored.py", tmp_path)
    assert set(found) == {"worker 0", "worker 1"}
    assert found["worker 0"] == found["worker 1"], "replicas differ"


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
@pytest.mark.parametrize(
    ("name", "who"),
    [
        pytest.param("parameter_server_strategy.py", "chief 0", marks=pytest.mark.campaign),
        ("ps_tutorial.py", "worker 0"),
    ],
)
def test_parameter_servers(name: str, who: str, tmp_path: Path) -> None:
    """The example of ParameterServerStrategy, which reads TF_CONFIG as well, is run by each `make test`."""
    assert who in launched(name, tmp_path)
