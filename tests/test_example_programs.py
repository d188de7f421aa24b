"""The example programs run in small, each on processes of this machine: they learn something, ranks agree, and nothing
of them is left: no process, and no port."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from example_modules import EXAMPLES, example, needs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.programs,
    pytest.mark.cold,  # a template of workers would be left of each test
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="what is left is looked up in /proc"),
]

PROGRAMS = EXAMPLES / "programs"
GONE_SECONDS = 30.0
"""After the end of a program, until all of it must be gone."""
LISTENS = "0A"
"""State of a socket in /proc/net/tcp."""


# ------------------------------------------------------------------------------------------------ what is left


def processes() -> dict[int, tuple[int, str]]:
    """Process → its parent and when it started, which together with its number names it for ever."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # gone since
            continue
        if fields[0] != "Z":
            found[int(folder.name)] = int(fields[1]), fields[19]
    return found


def family(root: int) -> dict[int, str]:
    """The descendants of a process → when they started."""
    every = processes()
    found: dict[int, str] = {}
    grown = {root}
    while grown:
        grown = {pid for pid, (parent, _) in every.items() if parent in grown}
        found |= {pid: every[pid][1] for pid in grown}
    return found


def listening() -> dict[str, int]:
    """Number of a socket that listens → its port."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                found[fields[9]] = int(fields[1].rpartition(":")[2], 16)
    return found


def ports(pids: set[int]) -> set[int]:
    """On which these processes listen."""
    every, found = listening(), set()
    for pid in pids:
        try:
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                target = os.readlink(entry)
                if target.startswith("socket:[") and (port := every.get(target[8:-1])) is not None:
                    found.add(port)
        except OSError:
            continue
    return found


class Watch(threading.Thread):
    """Looks at what this process starts, until told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = family(os.getpid())
        self.own = ports({os.getpid()})
        self.seen: dict[int, str] = {}
        self.ports: set[int] = set()
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.5):
            found = {pid: start for pid, start in family(os.getpid()).items() if pid not in self.before}
            self.seen |= found
            self.ports |= ports(set(found))

    def left(self) -> str:
        """What is left of it; empty: nothing."""
        now = processes()
        alive = [pid for pid, start in self.seen.items() if now.get(pid, (0, ""))[1] == start]
        names = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in alive]
        still = sorted(self.ports & set(listening().values()) | ports({os.getpid()}) - self.own)
        return " ".join([*(f"process {name}" for name in names), *(f"port {port}" for port in still)])

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Fails the test when something is left of what it started."""
    watching = Watch()
    watching.start()
    yield watching
    watching.stop()
    until = time.monotonic() + GONE_SECONDS
    while (left := watching.left()) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert watching.seen, "no process was seen: this test shows nothing"


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow's words on instruction sets, not in each log."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")


# ------------------------------------------------------------------------------------------------ the programs


def test_each_example_is_run_here() -> None:
    here = Path(__file__).read_text()
    missing = [path.stem for path in PROGRAMS.glob("*.py") if not re.search(rf'["/]{path.stem}', here)]
    assert not missing, f"examples without a test: {missing}"


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
@pytest.mark.parametrize("sync", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_ps_tutorial(sync: bool, tmp_path: Path, watch: Watch, quiet: None) -> None:
    told = example("programs/ps_tutorial").launch(steps=150, sync=sync, directory=tmp_path / "run")
    assert len(told) == 2
    # Asynchronously each worker's step counts; synchronously two gradients make one (a fast worker may give both).
    assert sum(worker["steps"] for worker in told) >= (300 if sync else 150)
    assert max(worker["accuracy"] for worker in told) > 0.8
    assert watch.ports, "the servers listened on no port"


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
def test_multi_worker_mirrored(tmp_path: Path, watch: Watch, quiet: None) -> None:
    first, second = example("programs/multi_worker_mirrored").launch(epochs=10, directory=tmp_path / "run")
    assert first == second, "replicas differ"
    assert first["replicas"] == 2 and first["accuracy"] > 0.8


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
@pytest.mark.parametrize("scope", ["task", pytest.param("program", marks=pytest.mark.campaign)])
def test_parameter_server_strategy_goes_on_from_its_checkpoint(
    scope: str, tmp_path: Path, watch: Watch, quiet: None
) -> None:
    told = example("programs/parameter_server_strategy").launch(
        steps=200, workers=1, fail=100, max_restarts=1, restart_scope=scope, directory=tmp_path / "run"
    )
    assert told["began"] >= 100, "it began from the first step again"
    assert told["steps"] >= 200 and told["accuracy"] > 0.8
    assert told["device"].startswith("/job:ps/")


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
def test_split_by_device(tmp_path: Path, watch: Watch, quiet: None) -> None:
    told = example("programs/split_by_device").launch(steps=200, directory=tmp_path / "run")
    assert [device.partition("/device")[0] for device in told["devices"]] == [
        "/job:worker/replica:0/task:0",
        "/job:worker/replica:0/task:1",
    ]
    assert told["accuracy"] > 0.8


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
@pytest.mark.parametrize("asynchronous", [False, pytest.param(True, marks=pytest.mark.campaign)])
def test_in_graph_replication(asynchronous: bool, tmp_path: Path, watch: Watch, quiet: None) -> None:
    told = example("programs/in_graph_replication").launch(
        steps=100, asynchronous=asynchronous, directory=tmp_path / "run"
    )
    assert told["steps"] == (200 if asynchronous else 100) and told["accuracy"] > 0.8
    assert len(told["devices"]) == 2


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn")
def test_files_at_urls_goes_on_from_its_checkpoint(tmp_path: Path, watch: Watch, quiet: None) -> None:
    module, place = example("programs/files_at_urls"), str(tmp_path / "digits")
    module.write_shards(place)
    first, second = module.launch(place, steps=60, directory=tmp_path / "first")
    assert first == second and first["began"] == 0
    first, second = module.launch(place, steps=120, directory=tmp_path / "second")
    assert first == second, "replicas differ"
    assert first["began"] == 60 and first["accuracy"] > 0.8


def own_tasks(before: set[int]) -> list[int]:
    """Return the processes of tasks that were started since."""
    started = {pid for pid in processes() if pid not in before}
    return [pid for pid in started if "hopyard.agent.programs.task" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "sklearn", "hdfs_native")
def test_files_at_urls_on_hdfs_whatever_is_killed(tmp_path: Path, hdfs: Any, quiet: None) -> None:
    """A task is killed, then the driver, and a new driver goes on elsewhere."""
    import fsspec

    module, place = example("programs/files_at_urls"), f"{hdfs.url}/digits"
    module.write_shards(place)
    system, root = fsspec.core.url_to_fs(f"{place}/checkpoints/worker-0")

    def await_checkpoint(number: int) -> None:
        until = time.monotonic() + 240
        while not system.exists(root) or max(system.ls(root, detail=False), default="") < f"{root}/{number:09d}":
            assert time.monotonic() < until, Path(tmp_path, "driver.log").read_text()
            time.sleep(0.05)

    script = (
        f"import sys; sys.path[:0] = {[str(PROGRAMS.parents[1] / 'tests')]!r}\n"
        "from example_modules import example\n"
        f"example('programs/files_at_urls').launch({place!r}, steps=100000, directory={str(tmp_path / 'first')!r})"
    )
    before = set(processes())
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen([sys.executable, "-c", script], stdout=log, stderr=log, cwd=tmp_path)
    try:
        await_checkpoint(2)
        os.kill(own_tasks(before)[0], signal.SIGKILL)
        stored = int(max(system.ls(root, detail=False)).rpartition("/")[2].partition("-")[0])
        await_checkpoint(stored + 3)  # by the second attempt
        assert (tmp_path / "first" / "program.jsonl").read_text().count('"type":"Restarting"') == 1
    finally:
        driver.kill()
        driver.wait()
    until = time.monotonic() + GONE_SECONDS
    while own_tasks(before) and time.monotonic() < until:
        time.sleep(0.05)
    assert not own_tasks(before)
    last = max(system.ls(root, detail=False)).rpartition("/")[2]
    step = int(last.partition("-")[2].removesuffix(".zip"))
    first, second = module.launch(place, steps=step + 40, directory=tmp_path / "second")
    assert first == second, "replicas differ"
    assert first["began"] == step and first["accuracy"] > 0.8


@pytest.mark.campaign
@needs("torch", "sklearn")
def test_torch_ddp(tmp_path: Path, watch: Watch) -> None:
    """The stock program of this name (`test_stock.py`) is run by each `make test`."""
    first, second = example("programs/torch_ddp").launch(epochs=4, directory=tmp_path / "run")
    assert first == second, "replicas differ"
    assert first["size"] == 2 and first["accuracy"] > 0.8


@pytest.mark.jax
@pytest.mark.long
@needs("jax", "sklearn")
def test_jax_data_parallel(tmp_path: Path, watch: Watch) -> None:
    first, second = example("programs/jax_data_parallel").launch(epochs=8, directory=tmp_path / "run")
    assert first == second, "replicas differ"
    assert first["devices"] == 2 and first["accuracy"] > 0.8


def learned(told: list[dict[str, Any]], rows: int) -> None:
    assert sum(worker["rows"] for worker in told) == rows, "rows were lost, or came twice"
    for worker in told:
        assert worker["rows"] >= rows // 4, "the rows came to one worker only"
        first, last = worker["errors"]
        assert last < 0.01 * first
        assert [round(slope, 1) for slope in worker["slopes"]] == [1.0, -2.0, 3.0, 0.5]


def test_streaming_feed(tmp_path: Path, watch: Watch) -> None:
    learned(example("programs/streaming_feed").launch(count=6, directory=tmp_path / "run"), 6 * 400)


@pytest.mark.spark
@pytest.mark.long
def test_streaming_feed_from_spark(tmp_path: Path, spark: Any) -> None:
    import hopyard as hy

    told = example("programs/streaming_feed").launch(
        count=6, engine=hy.Spark(spark, workers=2, release_cores=True), spark=spark, directory=tmp_path / "run"
    )
    learned(told, 6 * 400)


def marked(word: str) -> dict[int, str]:
    """Processes that have this word in their environment, whoever their parent is by now → their command."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")[:200]
        except OSError:  # gone since, or another user's
            continue
    return found


@pytest.mark.spark
@pytest.mark.tensorflow
@pytest.mark.long
@needs("tensorflow", "torch", "jax", "sklearn", "pyspark")
@pytest.mark.parametrize(
    "command",
    [
        "tensorflowonspark_digits --epochs 3",
        *(
            pytest.param(f"{command} --spark", marks=pytest.mark.campaign)
            for command in (
                "ps_tutorial",
                "ps_tutorial --sync",
                "multi_worker_mirrored",
                "parameter_server_strategy",
                "in_graph_replication",
                "split_by_device",
                "torch_ddp",
                "jax_data_parallel",
                "streaming_feed",
            )
        ),
    ],
)
def test_on_executors_of_one_core_each(command: str, tmp_path: Path) -> None:
    """As its first lines say to run it. Afterwards no process of it is there, so no port, and none of its files."""
    name, *arguments = command.split()
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    word = f"example-{uuid.uuid4().hex}"
    environment = {**os.environ, "TMPDIR": str(temporary), "EXAMPLE": word, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYSPARK_PYTHON"] = sys.executable  # for the one that has a session of its own
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert name != "tensorflowonspark_digits" or done.stdout.endswith("done\n")
    until = time.monotonic() + GONE_SECONDS
    while (left := marked(word)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not left
    assert [path.name for path in temporary.iterdir() if "hopyard" in path.name] == []
