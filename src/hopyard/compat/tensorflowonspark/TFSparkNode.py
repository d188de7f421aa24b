"""TFNodeContext, with which a `map_fun` is called: it is made from the context of a program's task."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard.compat.tensorflowonspark import TFNode
from hopyard.errors import SpecError

LEADERS = ("chief", "master")
"""Roles of which one task leads the workers, and works too."""


class TFNodeContext:
    """A task of a cluster, in its process.

    Attributes:
        executor_id, worker_num: number of the task in the cluster: first ps, then chief, evaluator, workers.
        job_name, task_index: its role, and its number in it.
        cluster_spec: role → ["host:port", …].
        num_workers: tasks that train: workers, and a chief or master.
        defaultFS, working_dir: Hadoop's default file system, and the driver's working directory.
        user_name: user of this process.
        mgr: source of a `TFNode.DataFeed`.
        tmp_socket: holds the task's port where `run(release_port=False)` was called, until `release_port()`.
        program: the context of the program's task, which can more: `ctx.program.report({"loss": 0.1})`.
    """

    def __init__(
        self,
        executor_id: int = 0,
        job_name: str = "",
        task_index: int = 0,
        cluster_spec: Mapping[str, list[str]] | None = None,
        defaultFS: str = "file://",
        working_dir: str = ".",
        mgr: Any = None,
        tmp_socket: socket.socket | None = None,
    ) -> None:
        self.executor_id = self.worker_num = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = dict(cluster_spec or {})
        self.num_workers = sum(len(self.cluster_spec.get(role, ())) for role in (*LEADERS, "worker"))
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.user_name = os.environ.get("USER", "")
        self.mgr = mgr
        self.tmp_socket = tmp_socket
        self.program: Any = None

    def absolute_path(self, path: str) -> str:
        """`TFNode.hdfs_path` with this context."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
        """`TFNode.start_cluster_server` with this context."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Any]) -> None:
        """`TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(
        self,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> TFNode.DataFeed:
        """`TFNode.DataFeed` of this task."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """`TFNode.release_port` with this context."""
        TFNode.release_port(self)


@dataclass(frozen=True, slots=True)
class Meta:
    """What the driver sends to every task."""

    default_fs: str
    working_dir: str
    release_port: bool = True
    order: tuple[str, ...] = ()
    """Roles in the order in which their tasks are numbered."""


class Feeds:
    """`ctx.mgr` of a program's task: its feeds by name, and values of this process."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._streams: dict[str, FeedStream] = {}
        self._values: dict[str, Any] = {"state": "running"}

    def get(self, key: str) -> Any:
        """Return the value that was set in this process, or None."""
        return self._values.get(key)

    def set(self, key: str, value: Any) -> None:
        """Sets a value for this process."""
        self._values[key] = value

    def get_queue(self, qname: str) -> Any:
        """Refuses: TensorFlowOnSpark's queues do not exist here.

        Raises:
            SpecError: always; says what to use.
        """
        raise SpecError(
            f"ctx.mgr.get_queue({qname!r}): rows do not go through queues here; TFNode.DataFeed(ctx.mgr) or "
            "ctx.get_data_feed() gives them"
        )

    def stream(self, qname_in: str, qname_out: str) -> FeedStream:
        """Return the feed of that name; answers go back on it, whatever `qname_out`."""
        if qname_in not in self._streams:
            self._streams[qname_in] = FeedStream(self, self._program.feed(qname_in))
        return self._streams[qname_in]


class FeedStream:
    """A feed of the program, read a batch at a time."""

    def __init__(self, mgr: Feeds, feed: Any) -> None:
        self._mgr = mgr
        self._feed = feed

    @property
    def ended(self) -> bool:
        """Whether no more rows come."""
        return bool(self._feed.should_stop)

    def read(self, count: int, across_partitions: bool) -> list[Any]:
        """Return `count` rows, fewer at the end, and in inference at the end of a partition."""
        rows: list[Any] = next(self._feed.rows(count), [])
        return rows

    def answer(self, rows: Iterable[Any]) -> None:
        """Sends one answer for each row of the last batch; nothing for the empty batch at the end."""
        answers = list(rows)
        if answers:
            self._feed.answer(answers)

    def terminate(self) -> None:
        """Ends the feed."""
        self._mgr.set("state", "terminating")
        self._feed.terminate()


def program_main(map_fun: Callable[[Any, Any], Any], meta: Meta) -> Callable[[Any, Any], Any]:
    """Return `map_fun(args, TFNodeContext)` as the `main(args, ctx)` of a program."""

    def main(args: Any, program: Any) -> Any:
        if isinstance(args, list):
            sys.argv = args  # a command line, which the user's code parses
        return map_fun(args, context(program, meta))

    main.__wrapped__ = map_fun  # type: ignore[attr-defined]  # for tools that look for its source
    return main


def context(program: Any, meta: Meta) -> TFNodeContext:
    """Return the TFNodeContext of a program's task."""
    peers = {role: list(program.peers[role]) for role in meta.order}
    first = sum(len(peers[role]) for role in meta.order[: meta.order.index(program.role)])
    ctx = TFNodeContext(
        executor_id=first + program.index,
        job_name=program.role,
        task_index=program.index,
        cluster_spec=peers,
        defaultFS=meta.default_fs,
        working_dir=meta.working_dir,
        mgr=Feeds(program),
        tmp_socket=None if meta.release_port else _bind_port(peers[program.role][program.index]),
    )
    ctx.program = program
    return ctx


def _bind_port(address: str) -> socket.socket:
    """Return a socket bound to the task's own address; the agent's is too, so that nobody else can take it."""
    host, port = address.rsplit(":", 1)
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host.strip("[]"), int(port)))
    return sock
