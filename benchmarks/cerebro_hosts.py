"""Hosts of one core each for `cerebro_table.py`, made of namespaces, and what is read from them while they work.

Each has an address, processes, memory and files of its own (`tests/hosts.py`), and runs on one core of this machine.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import hopyard as hy
from hosts import Hosts
from jobs import free_port
from light_java import java_options

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
TICK = 0.5
"""Seconds between two looks at the processes."""


def children(pid: int) -> list[int]:
    """Return the processes that one has started; [] where it has ended."""
    try:
        return [
            int(each)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for each in (task / "children").read_text().split()
        ]
    except OSError:
        return []


class Watch:
    """Looks at the processes of each host twice a second: their processor time, and the most memory of a worker.

    Args:
        roots: returns the processes whose descendants are looked at.
    """

    def __init__(self, roots: Callable[[], list[int]]) -> None:
        self._roots = roots
        self._seconds: dict[tuple[int, str], float] = {}
        """(pid, start) of each process that ever was there → its processor time."""
        self._line: list[tuple[float, float]] = []
        """(time, processor time of all hosts)"""
        self.peak = self.java_peak = 0
        """Bytes of the largest process that is not Java's, and of the largest that is."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(TICK):
            for root in self._roots():
                pending = children(root)
                while pending:
                    pid = pending.pop()
                    pending += children(pid)
                    with contextlib.suppress(OSError):
                        self._look(pid)
            self._line.append((time.time(), sum(self._seconds.values())))

    def _look(self, pid: int) -> None:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        words = rest.split()
        self._seconds[pid, words[19]] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                size = int(line.split()[1]) << 10
                if "java" in name:
                    self.java_peak = max(self.java_peak, size)
                else:
                    self.peak = max(self.peak, size)

    def used(self, begin: float, end: float) -> float:
        """Return the processor time between two times."""
        times, totals = np.array(self._line).reshape(-1, 2).T
        return float(np.diff(np.interp([begin, end], times, totals))[0]) if len(times) else 0.0


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder; 0 where there is none."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class Machines:
    """Hosts, each on one core, and what a column needs of them.

    Attributes:
        hosts: None: this host itself, for `local`.
    """

    count: int
    folder: Path
    hosts: Hosts | None = None
    started: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)
    """Processes on hosts that are no descendants of a host's first one."""
    number: int = field(default=0, init=False)

    def pin(self) -> None:
        """Give each host one of the machine's cores, in turn; what it starts inherits that."""
        assert self.hosts is not None
        for name in self.hosts.names:
            for pid in (self.hosts.init(name), *children(self.hosts.init(name))):
                os.sched_setaffinity(pid, {self.core(name)})

    def core(self, name: str) -> int:
        """Return the core of a host."""
        assert self.hosts is not None
        cores = sorted(os.sched_getaffinity(0))
        return cores[self.hosts.names.index(name) % len(cores)]

    def start(self, name: str, command: str) -> None:
        """Start a shell command on a host."""
        assert self.hosts is not None
        self.started.append(self.hosts.start(name, "taskset", "-c", str(self.core(name)), "sh", "-c", command))

    def end(self) -> None:
        """End what was started on hosts."""
        while self.started:
            process = self.started.pop()
            process.kill()
            process.wait()

    def roots(self) -> list[int]:
        """Return the processes of which all others of the hosts descend."""
        if self.hosts is None:
            return [os.getpid()]
        return [*map(self.hosts.init, self.hosts.names), *(process.pid for process in self.started)]

    def next_cache(self) -> str:
        """Return a folder for rows that the hosts have not used yet."""
        self.number += 1
        return f"/tmp/rows-{self.number}"

    def stored(self, cache: str) -> int:
        """Return the bytes of rows in the caches of all hosts."""
        if self.hosts is None:
            return 0
        return sum(size_of(Path(f"/proc/{self.hosts.init(name)}/root{cache}")) for name in self.hosts.names)

    def engine(self, cache: str) -> hy.Hosts:
        assert self.hosts is not None
        named = [f"{name}:1" for name in self.hosts.names]
        return hy.Hosts(named, ssh=self.hosts.ssh, devices=None, env={"XDG_CACHE_HOME": cache})

    def traffic(self) -> dict[str, int]:
        """Return the bytes that the interfaces have counted so far."""
        if self.hosts is None:
            return {"between": 0, "driver": 0}
        sent, driver_sent, driver_received = self.hosts.network.traffic()
        return {"between": sent - driver_received, "driver": driver_sent + driver_received}


@contextlib.contextmanager
def machines(count: int, folder: Path) -> Iterator[Machines]:
    """Hosts, while they are used."""
    folder.mkdir()
    hosts = Hosts(folder, NAMES[:count])
    try:
        made = Machines(count, folder, hosts)
        made.pin()
        yield made
    finally:
        hosts.close()


@contextlib.contextmanager
def spark_session(there: Machines) -> Iterator[Any]:
    """A standalone cluster with a worker on each host, and its session."""
    import pyspark
    from pyspark.sql import SparkSession

    from hopyard.spark.local.java import choose, look

    assert there.hosts is not None
    version = tuple(int(each) for each in pyspark.__version__.split(".")[:2])
    os.environ["JAVA_HOME"] = str(choose(look(os.environ, version), version).home)  # type: ignore[arg-type]
    command = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    own, port = there.hosts.network.own, free_port()
    variables = {"SPARK_DAEMON_JAVA_OPTS": java_options(), "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_MEMORY": "256m"}
    words = ["org.apache.spark.deploy.master.Master", "--host", own, "--port", str(port), "--webui-port", "0"]
    with (there.folder / "master.log").open("wb") as log:
        master = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", command, *words],
            env={**os.environ, **variables, "SPARK_LOCAL_IP": own},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    for name, address in there.hosts.network.addresses.items():
        words = [f"{key}={value}" for key, value in variables.items()]
        words += [f"SPARK_LOCAL_IP={address}", "SPARK_LOCAL_DIRS=/tmp/spark", "TMPDIR=/tmp", command]
        words += ["org.apache.spark.deploy.worker.Worker", "--host", address, "--cores", "1", "--memory", "1g"]
        words += ["--webui-port", "0", "--work-dir", "/tmp/spark-work", f"spark://{own}:{port}"]
        there.start(name, f"exec env {shlex.join(words)} > /tmp/spark.log 2>&1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": own,
        "spark.driver.bindAddress": own,
        "spark.executor.memory": "512m",
        "spark.executor.defaultJavaOptions": java_options(),
        "spark.log.level": "ERROR",
    }
    builder = SparkSession.builder.master(f"spark://{own}:{port}").appName("cerebro")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        there.end()
        master.kill()
        master.wait()
