"""Where the processes of runs and programs look for modules: where the driver does, and nowhere else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import jobs
from hopyard.engines.local import python_path
from hopyard.system.processes import descendants
from jobs import HEAD, agents, digests, gone, select

pytestmark = pytest.mark.slow

BESIDE = "from jobs import linear\n\ndef recipe(config):\n    return linear(config)\n"
"""A module of the user's own. Recipes import it by a name that nobody sees in their code, so that none carries it."""
RECIPE = """
def recipe(config):
    import importlib
    return importlib.import_module("beside").recipe(config)
"""
LOCAL = HEAD + RECIPE + "select(Path(sys.argv[-1]), recipe, engine=hy.Local(2, devices=None))\n"


@pytest.fixture
def expected(tmp_path: Path) -> list[str]:
    return digests(select(tmp_path / "undisturbed"))


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A folder with a file that has the name of a module of Python's, which leaves a mark when it is imported."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "queue.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w').close()\nfrom _queue import SimpleQueue\n")
    done = subprocess.run([sys.executable, "-c", "import queue"], cwd=folder, timeout=60, check=True)
    assert done.returncode == 0 and (tmp_path / "mark").exists(), "it is imported where nothing is done against it"
    (tmp_path / "mark").unlink()
    return folder


def run(words: list[str], cwd: Path, text: str | None = None) -> None:
    done = subprocess.run(
        [sys.executable, *words], cwd=cwd, input=text, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_folder_of_a_script_and_not_the_current_one(tmp_path: Path, trap: Path, expected: list[str]) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text(BESIDE)
    (folder / "script.py").write_text(LOCAL)
    run([os.path.join("..", "folder", "script.py"), str(tmp_path / "run")], trap)
    assert digests(hy.load(tmp_path / "run")) == expected
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("how", [pytest.param("-", marks=pytest.mark.campaign), "-c"])
def test_the_current_folder_of_a_notebook(tmp_path: Path, expected: list[str], how: str) -> None:
    """Its path begins with "", which is the current folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text(BESIDE)
    text = "import sys\nassert sys.path[0] == ''\n" + LOCAL
    words = ["-", str(tmp_path / "run")] if how == "-" else ["-c", text, str(tmp_path / "run")]
    run(words, folder, text if how == "-" else None)
    assert digests(hy.load(tmp_path / "run")) == expected


@pytest.mark.spark
@pytest.mark.long
def test_py_files_and_files_of_spark_submit(tmp_path: Path, expected: list[str]) -> None:
    pyspark = pytest.importorskip("pyspark")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "beside.py").write_text(BESIDE)
    (tmp_path / "sent" / "settings.txt").write_text("16")
    job = tmp_path / "job.py"
    job.write_text(
        HEAD
        + """
from pyspark.sql import SparkSession

def recipe(config):
    import importlib
    from pyspark import SparkFiles
    assert Path(SparkFiles.get("settings.txt")).read_text() == "16"
    return importlib.import_module("beside").recipe(config)

spark = SparkSession.builder.getOrCreate()
select(Path(sys.argv[1]), recipe, engine=hy.Spark(spark, workers=1))
spark.stop()
"""
    )
    modules = f"{tmp_path / 'sent' / 'beside.py'},{jobs.__file__}"
    sent = {"--py-files": modules, "--files": tmp_path / "sent" / "settings.txt"}
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local-cluster[1,1,1024]", "--conf", "spark.ui.enabled=false", "--conf", "spark.log.level=ERROR"),
        *(str(word) for pair in sent.items() for word in pair),
        *(str(job), str(tmp_path / "run")),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert digests(hy.load(tmp_path / "run")) == expected
    assert gone(agents(tmp_path / "run"))


@pytest.mark.spark
@pytest.mark.long
def test_workers_of_a_spark_that_hopyard_starts(tmp_path: Path, trap: Path) -> None:
    """Bug: Spark starts its Python workers without -P, on this machine in the current folder of the driver."""
    pytest.importorskip("pyspark")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "beside.py").write_text("def same(batches):\n    yield from batches\n")
    (folder / "script.py").write_text(
        "import hopyard.spark\nfrom beside import same\n"
        "spark = hopyard.spark.session(cores=1)\n"
        "assert spark.range(1).mapInArrow(same, 'id long').count() == 1\n"
    )
    done = subprocess.run(
        [sys.executable, str(folder / "script.py")], cwd=trap, capture_output=True, text=True, timeout=580, check=False
    )
    assert done.returncode == 0, done.stderr[-5000:]
    assert not (tmp_path / "mark").exists()


# ---------------------------------------------------------------------------------------------- processes


def waits(args: Any, ctx: Any) -> None:
    import os
    from pathlib import Path

    (Path(args) / "port.new").write_text(os.environ["MASTER_PORT"])
    (Path(args) / "port.new").rename(Path(args) / "port")
    while not ctx.stop_requested:
        time.sleep(0.05)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def words_of(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []


def path_of(process: int) -> str:
    variables = Path(f"/proc/{process}/environ").read_bytes().decode().split("\0")
    return next(value.partition("=")[2] for value in variables if value.startswith("PYTHONPATH="))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at processes in /proc")
def test_every_process_looks_where_the_driver_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a program; a run has agents and their companions only."""
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.chdir(tmp_path)
    engine = hy.Local(workers=1, devices=None)
    before = descendants(os.getpid())

    def new(part: str = "") -> list[int]:
        started = descendants(os.getpid()) - before
        return [process for process in started if part in " ".join(words_of(process))]

    with hy.launch(waits, str(tmp_path), roles={"worker": 1}, engine=engine, tensorboard=True, directory="program"):
        eventually((tmp_path / "port").exists)
        with socket.create_connection(("127.0.0.1", int((tmp_path / "port").read_text()))):
            modules = (
                "hopyard.agent",
                "hopyard.agent.programs.task",
                "hopyard.agent.programs.ports",
                "tensorboard",
            )
            eventually(lambda: all(new(f"-m {module}") for module in modules))
            processes = new()
            assert len(processes) >= len(modules)
            for process in processes:
                words = words_of(process)
                assert words[:3] == [sys.executable, "-P", "-m"], words
                assert path_of(process) == python_path()
                assert path_of(process).split(os.pathsep)[0] == str(tmp_path)
