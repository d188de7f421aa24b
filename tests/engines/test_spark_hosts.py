"""A standalone master with two workers that share neither memory nor the run's directory with each other or the driver:
mount namespaces play the hosts. States go from peer to peer, and through the driver to its disk."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.events import Done, Failed, Joined, Lost
from jobs import CONFIGS, agents, digests, driver, gone, journal, script, select

pytestmark = pytest.mark.timeout(300)
pyspark = pytest.importorskip("pyspark")

HIDE = """
mount -t tmpfs tmpfs /dev/shm && mount -t tmpfs tmpfs {folder} && hostname {name} || exit 77
exec {command}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


class Cluster:
    """A master, and workers of one core each on "hosts" of their own."""

    def __init__(self, folder: Path, hidden: Path) -> None:
        self.folder, self.hidden = folder, hidden
        self.url = f"spark://127.0.0.1:{free_port()}"
        self._class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        self._environment = {
            **os.environ,
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(folder / "local"),
        }
        port = self.url.rpartition(":")[2]
        master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", "0"]
        self.processes = [self._start("master", [self._class, *master])]
        for name in ("alpha", "beta"):
            self.worker(name)

    def worker(self, name: str) -> None:
        work = self.folder / name
        command = f"{self._class} org.apache.spark.deploy.worker.Worker --host 127.0.0.1 --cores 1 --memory 1g"
        command += f" --webui-port 0 --work-dir {work} {self.url}"
        body = HIDE.format(folder=self.hidden, name=name, command=command)
        self.processes.append(self._start(name, ["unshare", "--mount", "--uts", "sh", "-c", body]))

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def close(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the driver works; the workers see an empty folder there."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[Cluster]:
    if not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "--uts", "true"], check=False).returncode:
        pytest.skip("no namespaces may be made here")
    made = Cluster(tmp_path_factory.mktemp("cluster"), hidden)
    yield made
    made.close()


HEAD = """
import logging, os
logging.basicConfig(level=logging.WARNING)
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
builder = SparkSession.builder.master({url!r})
light = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
for name, value in {{"spark.executor.extraJavaOptions": light,
                    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
                    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
                    "spark.executor.memory": "512m", **{more!r}}}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
"""


def drive(cluster: Cluster, folder: Path, body: str, **settings: str) -> str:
    """Run a driver to its end; what it printed."""
    whole = HEAD.format(url=cluster.url, more=settings) + body + "\nspark.stop()\n"
    process = driver([str(script(folder / "job.py", whole))], folder)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return err


@pytest.mark.slow
def test_hosts_that_share_nothing(cluster: Cluster, hidden: Path, tmp_path: Path) -> None:
    """In one session: plain, encrypted, and with an executor that is killed."""
    (met := tmp_path / "met").mkdir()
    configs = [{**config, "at": 3, "do": f"meet {met}"} for config in CONFIGS[:3]]
    killed = [dict(config) for config in CONFIGS[:3]]
    killed[1] |= {"at": 15, "do": "executor", "once": str(tmp_path / "once")}
    err = drive(
        cluster,
        hidden,
        f"""
engine = hy.Spark(spark, workers=2)
select(Path("plain"), troubled, {configs!r}, epochs=6, engine=engine)
select(Path("encrypted"), troubled, {configs!r}, epochs=6, engine=engine, encrypt=True)
select(Path("killed"), troubled, {killed!r}, epochs=6, engine=engine)
""",
    )
    assert "their States go through this process" in err
    reference = digests(select(tmp_path / "inline", configs=CONFIGS[:3], epochs=6))
    for name in ("plain", "encrypted", "killed"):
        run = hy.load(hidden / name)
        assert digests(run) == reference, name
        assert gone(agents(hidden / name), 2)
    for name in ("plain", "encrypted"):
        lines = journal(hidden / name)
        assert {line.host for line in lines if isinstance(line, Joined)} == {"alpha", "beta"}
        assert not [line for line in lines if isinstance(line, (Failed, Lost))]
        assert [line for line in lines if isinstance(line, Done) and line.hop_bytes], "nothing hopped"
    assert len([line for line in journal(hidden / "killed") if isinstance(line, Lost)]) == 1
    assert run.best.model() is not None


@pytest.mark.slow
def test_dynamic_allocation(cluster: Cluster, hidden: Path, tmp_path: Path) -> None:
    """Nobody is there at first, executors come for the sitters; one is killed, and others come."""
    (folder := hidden / "dynamic").mkdir()
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }
    extra = {"at": 15, "do": "executor", "once": str(tmp_path / "once")}
    configs = [{**config, **extra} if n == 1 else config for n, config in enumerate(CONFIGS)]
    drive(cluster, folder, f"select(Path('run'), troubled, {configs!r}, engine=hy.Spark(spark, workers=2))", **settings)
    assert len([line for line in journal(folder / "run") if isinstance(line, Lost)]) == 1
    assert digests(hy.load(folder / "run")) == digests(select(tmp_path / "inline"))
