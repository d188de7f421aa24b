"""Hosts of their own for Spark's workers, on this one: Linux namespaces play them; a standalone master rules them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pyspark

from hosts import NAMES, Network
from jobs import driver, free_port, script
from light_java import java_options

SPARK = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
HIDE = """
mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs {folder} && hostname {name} || exit 77
exec {command}
"""


class Cluster:
    """A master, and workers of one core each.

    Args:
        folder: takes logs and what Spark writes.
        hidden: what the workers see as an empty folder.
        network: gives each worker processes, an address and a name of its own; None: they share this host's.
        names: of the workers' hosts.
    """

    def __init__(
        self, folder: Path, hidden: Path, network: Network | None = None, names: Sequence[str] = NAMES
    ) -> None:
        self.folder, self.hidden, self.network = folder, hidden, network
        self.host = "127.0.0.1" if network is None else network.own
        self.url = f"spark://{self.host}:{free_port()}"
        self._environment = {
            **os.environ,
            "SPARK_DAEMON_JAVA_OPTS": java_options(),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        port = self.url.rpartition(":")[2]
        master = ["org.apache.spark.deploy.master.Master", "--host", self.host, "--port", port, "--webui-port", "0"]
        self.processes = [self._start("master", [SPARK, *master], self.host)]
        for name in names:
            self._worker(name)

    def _worker(self, name: str) -> None:
        address = "127.0.0.1" if self.network is None else self.network.addresses[name]
        command = f"{SPARK} org.apache.spark.deploy.worker.Worker --host {address} --cores 1 --memory 1g"
        command += f" --webui-port 0 --work-dir {self.folder / name} {self.url}"
        own = ["unshare", "--mount", "--uts"]
        if self.network is not None:
            own = [*self.network.enter(name), *own, "--pid", "--fork", "--kill-child", "--mount-proc"]
        body = HIDE.format(folder=self.hidden, name=name, command=command)
        self.processes.append(self._start(name, [*own, "sh", "-c", body], address))

    def _start(self, name: str, command: list[str], address: str) -> subprocess.Popen[bytes]:
        cache = {"XDG_CACHE_HOME": str(self.cache(name))}
        environment = {**self._environment, "SPARK_LOCAL_IP": address, **cache}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def cache(self, name: str) -> Path:
        """The folder of a worker's own caches."""
        return self.folder / f"{name}.cache"

    def close(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


HEAD = """
import logging, os
logging.basicConfig(level=logging.WARNING)
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from light_java import warm_settings
builder = SparkSession.builder.master({url!r})
for name, value in {{"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
                    "spark.driver.host": {host!r}, "spark.driver.bindAddress": {host!r},
                    "spark.executor.memory": "512m", **warm_settings(), **{more!r}}}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
"""


def drive(cluster: Cluster, folder: Path, body: str, **settings: str) -> str:
    """Run a driver to its end; what it printed."""
    whole = HEAD.format(url=cluster.url, host=cluster.host, more=settings) + body + "\nspark.stop()\n"
    process = driver([str(script(folder / "job.py", whole))], folder)
    try:
        _, err = process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
    assert process.returncode == 0, err
    return err
