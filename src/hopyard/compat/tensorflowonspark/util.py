"""Functions by which TensorFlowOnSpark's programs query and set up their host."""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from hopyard.compat.tensorflowonspark import gpu_info
from hopyard.errors import RunDirectoryError

logger = logging.getLogger(__name__)
_EXECUTOR = "executor_id"


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: Sequence[str] = ()) -> None:
    """Sets CUDA_VISIBLE_DEVICES for one process that computes by itself, and the CLASSPATH that Hadoop's files need.

    Args:
        num_gpus: GPUs that it gets where the host has any, else none.
        worker_index: its number among `nodes`.
        nodes: "host:port" of all, so that those of one host get different GPUs.
    """
    if "HADOOP_PREFIX" in os.environ and "TFOS_CLASSPATH_UPDATED" not in os.environ:
        hadoop = str(Path(os.environ["HADOOP_PREFIX"], "bin", "hadoop"))
        result = subprocess.run([hadoop, "classpath", "--glob"], capture_output=True, text=True, timeout=60, check=True)
        os.environ["CLASSPATH"] = os.pathsep.join(filter(None, [os.environ.get("CLASSPATH"), result.stdout.strip()]))
        os.environ["TFOS_CLASSPATH_UPDATED"] = "1"
    if num_gpus < 1 or not gpu_info.is_gpu_available():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    number = worker_index
    if nodes and worker_index >= 0:
        host = nodes[worker_index].rsplit(":", 1)[0]
        number = sum(node.rsplit(":", 1)[0] == host for node in nodes[:worker_index])
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu_info.get_gpus(num_gpus, number)


def get_ip_address() -> str:
    """Return the address by which this host reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))  # nothing is sent: only the route is looked up
            return str(probe.getsockname()[0])
        except OSError as error:
            if error.errno != errno.ENETUNREACH:
                raise
            return socket.gethostbyname(socket.getfqdn())


def find_in_path(path: str, file: str) -> str | Literal[False]:
    """Return the first file of that name in the folders of a PATH, or False."""
    for folder in path.split(os.pathsep):
        candidate = Path(folder, file)
        if candidate.is_file():
            return str(candidate)
    return False


def write_executor_id(num: int) -> None:
    """Writes the executor's number into its working directory."""
    Path(_EXECUTOR).write_text(str(num))


def read_executor_id() -> int:
    """Return the number that `write_executor_id` wrote.

    Raises:
        RunDirectoryError: no number was written here.
    """
    try:
        return int(Path(_EXECUTOR).read_text())
    except FileNotFoundError:
        raise RunDirectoryError(
            f"no executor's number is in {Path.cwd()}: no node of a cluster has run here. Programs need no such file: "
            "use ctx.executor_id"
        ) from None
