"""What the tests of runs share: small data, recipes with and without trouble, a driver in a process of its own.

A recipe gets its trouble from its config, {"at": batch, "do": what}: when a model of this trial has seen so many
training batches, it does it. With "once" (a path) it does so only while there is no such file. So a worker is killed
or stopped, and a driver killed or interrupted, at a chosen place, and no test has to wait for the right moment.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Joined, Line
from hopyard.driver.runs.about import about_of, states_url
from hopyard.driver.runs.run import Run
from hopyard.frameworks.linear import Linear
from hopyard.spec import Batch
from hopyard.store.arena import memory_name
from hopyard.store.journal import read
from hopyard.store.layout import Layout
from hopyard.store.states import FsspecStore, LocalStore, open_store

WIDTH = 6
CONFIGS: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.01}, {"lr": 0.3}]
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}

SLOW = """
import time
class Slow(Linear):
    def train(self, batch):
        time.sleep(0.01)
        return super().train(batch)
def slow(config):
    return Slow(WIDTH, 2, lr=config["lr"], batch_size=16)
"""
"""Code of a recipe whose batches take a hundredth of a second, for the scripts of drivers."""


def table(rows: int = 240, seed: int = 0) -> tuple[Any, Any]:
    """x of shape (rows, 6) and float32, y of two classes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, WIDTH)).astype(np.float32)
    return x, (x @ rng.standard_normal(WIDTH) > 0).astype(np.int64)


def dataset(partitions: int = 4, validation: float = 0.25, rows: int = 240) -> hy.Dataset:
    return hy.Dataset.numpy(*table(rows), validation=validation, partitions=partitions)


def linear(config: dict[str, Any]) -> Any:
    return Linear(WIDTH, 2, lr=config["lr"], batch_size=16)


def classes(config: dict[str, Any]) -> Any:
    """Of three features and two classes."""
    return Linear(3, 2, lr=config["lr"], batch_size=16)


class Troubled(Linear):
    """A Linear that does what its config says."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(WIDTH, 2, lr=config["lr"], batch_size=16)
        self._config = config

    def train(self, batch: Batch) -> Any:
        found = super().train(batch)
        config = self._config
        if config.get("at") == self.steps and first_time(config.get("once")):
            do(config["do"])
            if config["do"] == "nan":
                return {**found, "loss": (float("nan"), batch.rows)}
        return found


def troubled(config: dict[str, Any]) -> Any:
    if config.get("do") == "build":
        raise RuntimeError("no such optimizer")
    return Troubled(config)


def first_time(path: str | None) -> bool:
    """Whether the file at `path` was not there; it is then."""
    if path is None:
        return True
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def do(what: str) -> None:
    if what == "raise":
        raise RuntimeError("the moon is in the wrong house")
    if what == "exit":
        os._exit(7)
    if what in SIGNALS:
        os.kill(os.getpid(), SIGNALS[what])
    if what.startswith("driver "):  # agents are children of their driver, or of a template that is
        process = os.getppid()
        if b"\0template\0" in Path(f"/proc/{process}/cmdline").read_bytes():
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(process, getattr(signal, what.split()[1]))
        time.sleep(60)
    if what == "template":
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    if what.startswith("meet "):  # wait until a second worker is there as well
        folder = Path(what.removeprefix("meet "))
        (folder / f"{socket.gethostname()}-{os.getpid()}").touch()  # hosts may number their processes alike
        end = time.monotonic() + 30
        while len(list(folder.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.01)
    if what.startswith("wait for "):
        end = time.monotonic() + 60
        while not Path(what.removeprefix("wait for ")).exists() and time.monotonic() < end:
            time.sleep(0.02)
    if what.startswith("dial "):  # wait until somebody listens at HOST:PORT
        host, _, port = what.removeprefix("dial ").rpartition(":")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection((host, int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.05)
    if what.startswith("eat "):  # all memory there is, if somebody listens at HOST:PORT
        host, _, port = what.removeprefix("eat ").rpartition(":")
        try:
            socket.create_connection((host, int(port)), 1).close()
        except OSError:
            return
        eaten = [b"x" * (64 << 20) for _ in range(64)]
        time.sleep(60 + len(eaten))
    if what in ("task", "executor"):
        os.kill(above("python" if what == "task" else "java"), signal.SIGKILL)
        time.sleep(60)
    if what == "hang":
        time.sleep(60)


def above(program: str) -> int:
    """The next process above this one that runs `program`: an agent's Spark task, or its executor."""
    process = os.getppid()
    while program not in os.readlink(f"/proc/{process}/exe").rpartition("/")[2]:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


def select(directory: Path | str | None, recipe: Any = linear, configs: Any = None, **more: Any) -> Run:
    """`hy.select` with all that most tests have in common."""
    arguments: dict[str, Any] = {
        "search": hy.Configs(CONFIGS if configs is None else configs),
        "epochs": 2,
        "metric": "val_loss",
        "mode": "min",
        "engine": hy.Inline(),
        "directory": directory,
    } | more
    data = arguments.pop("data") if "data" in arguments else dataset()
    return hy.select(recipe, None, data, **arguments)


class Counter:
    """What a meter tells of, in its order: batches (numbers) and phases (words)."""

    def __init__(self) -> None:
        self.seen: list[int | str] = []

    def advance(self, count: int) -> None:
        self.seen.append(count)

    def enter(self, phase: str) -> None:
        self.seen.append(phase)

    @property
    def counts(self) -> list[int]:
        return [found for found in self.seen if isinstance(found, int)]

    @property
    def phases(self) -> list[str]:
        return [found for found in self.seen if isinstance(found, str)]


def digests(run: Run) -> list[str]:
    """Of the final States, by trial; none of a completed trial is missing."""
    found = [trial.digest for trial in run.trials]
    assert all(len(trial.digest) == 64 for trial in run.trials if trial.status == "completed")
    return found


def journal(directory: Path) -> list[Line]:
    return list(read(Layout(directory).journal, CODEC))


def states(directory: Path) -> LocalStore | FsspecStore:
    """The store of its States."""
    layout = Layout(directory)
    return open_store(states_url(layout, about_of(layout)))


def trials_of(directory: Path) -> list[dict[str, Any]]:
    """What `hopyard show --json` says of each trial."""
    from typer.testing import CliRunner

    from hopyard.cli import app

    before = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(app, ["show", str(directory), "--json"], catch_exceptions=False)
    finally:
        signal.signal(signal.SIGTERM, before)
    return json.loads(done.stdout)["trials"]


def losses(directory: Path) -> list[str]:
    """Why workers of this run were lost."""
    return [line.reason for line in journal(directory) if isinstance(line, Lost)]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What the condition gives, once that is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)
    return found


def agents(directory: Path) -> list[int]:
    """Process ids of all agents that were ever ready."""
    return [line.pid for line in journal(directory) if isinstance(line, Joined)]


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found.append(pid)
    return found


def companions(agent: int) -> list[int]:
    """The process that watches this agent: it has a descriptor of it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if not (entry / "comm").read_text().startswith("hopyard-compani"):
                continue
            infos = [path.read_text() for path in (entry / "fdinfo").iterdir()]
        except OSError:
            continue
        if any(f"Pid:\t{agent}\n" in info for info in infos):
            found.append(int(entry.name))
    return found


def children(process: subprocess.Popen[str]) -> list[int]:
    """What runs in the session of a `driver`, itself apart: its agents, also those that are not ready yet."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == process.pid and int(entry.name) != process.pid and fields[0] not in "ZX":
            found.append(int(entry.name))
    return found


def gone(pids: list[int], seconds: float = 30.0) -> bool:
    """Whether all of them end within so many seconds."""
    end = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def memory(place: Path) -> set[Path]:
    """The folders in shared memory, of runs in and below this directory, of which no process is left: rubbish. What
    tests of other processes have just killed is not counted."""
    found = set()
    for directory in {path.parent for path in place.rglob("journal.jsonl")}:
        mark = memory_name(directory).partition("-")[0]
        for path in Path("/dev/shm").glob(f"hopyard-{os.geteuid()}-{mark}-*"):
            try:
                with (path / "lock").open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            found.add(path)
    return found


def fill(path: Path, leave: int = 0) -> None:
    """Make the file system full but for `leave` bytes."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        file.truncate(max(0, file.tell() - leave))


HEAD = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
import hopyard as hy
from jobs import *
"""


def free_port() -> int:
    """A port on loopback that nobody has, below those that the kernel deals out to whoever asks for any."""
    first_dealt = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, first_dealt)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def script(path: Path, body: str) -> Path:
    path.write_text(HEAD + body)
    return path


def driver(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    """A process that drives a run, in a session of its own as a terminal would give it."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
