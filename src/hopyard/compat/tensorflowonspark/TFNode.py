"""What a `map_fun` uses in the process of its task: the feed of rows, paths of Hadoop, TensorFlow 1's server."""

from __future__ import annotations

import getpass
import logging
import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from hopyard.errors import SpecError

logger = logging.getLogger(__name__)

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
"""Start of a path that is a whole URL."""


def hdfs_path(ctx: Any, path: str) -> str:
    """Return a whole URL for a path, as Hadoop would read it.

    Args:
        ctx: has `defaultFS`, for example "hdfs://namenode:8020", and `working_dir`, the driver's.
        path: with a scheme: it stays as it is. Absolute: on the default file system. Relative: in the user's folder
            there, on "file://" in the working directory.
    """
    if SCHEME.match(path):
        return path
    root = ctx.defaultFS
    if path.startswith("/"):
        return f"{root}{path}"
    if root.startswith(("hdfs://", "viewfs://")):
        return f"{root}/user/{_user(path)}/{path}"
    if root.startswith("file://"):
        return f"{root}/{ctx.working_dir[1:]}/{path}"
    logger.warning("%r is relative, and where that is on %s is not known: taken as of its root", path, root)
    return f"{root}/{path}"


def _user(path: str) -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError) as error:  # Python 3.13 raises OSError
        raise SpecError(
            f"{path!r} is relative to the folder of a user, and user id {os.geteuid()} has no name here: set USER, or "
            "give an absolute path"
        ) from error


class DataFeed:
    """The rows that the driver's `TFCluster.train` or `inference` sends to this worker: `feed.next_batch(100)` until
    `feed.should_stop()`.

    Args:
        mgr: `ctx.mgr`.
        train_mode: False: a batch ends where its partition ends, as answers are due for it.
        qname_in: name of the feed, where there are several.
        qname_out: name of the queue of answers.
        input_mapping: column → name of a tensor: batches are dicts of columns, not lists of rows.
    """

    def __init__(
        self,
        mgr: Any,
        train_mode: bool = True,
        qname_in: str = "input",
        qname_out: str = "output",
        input_mapping: Mapping[str, str] | None = None,
    ) -> None:
        self.mgr = mgr
        self.train_mode = train_mode
        self.qname_in = qname_in
        self.qname_out = qname_out
        self.input_tensors = None if input_mapping is None else [name for _, name in sorted(input_mapping.items())]
        self._stream = mgr.stream(qname_in, qname_out)

    @property
    def done_feeding(self) -> bool:
        """Whether the end of the feed was read, or `terminate` was called."""
        return bool(self._stream.ended)

    def next_batch(self, batch_size: int) -> Any:
        """Waits for the next rows and returns them: fewer at the end of the feed, where the last batch may be empty.

        Returns:
            A list of rows as they were in the RDD; or, with `input_mapping`, tensor's name → list of values, where the
            columns of the rows are those of the mapping in the order of their names.
        """
        rows = self._stream.read(batch_size, self.train_mode)
        if self.input_tensors is None:
            return rows
        return {name: [row[at] for row in rows] for at, name in enumerate(self.input_tensors)}

    def should_stop(self) -> bool:
        """Whether no more rows come."""
        return self.done_feeding

    def batch_results(self, results: Any) -> None:
        """Sends answers for the rows of the last batch, one each, in their order: they become the driver's RDD."""
        self._stream.answer(results)

    def terminate(self) -> None:
        """Ends the feed: what is still sent is dropped, and the driver's `train` returns."""
        self._stream.terminate()


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Any]:
    """Starts TensorFlow 1's server of this task; returns (ClusterSpec, Server).

    Args:
        ctx: the TFNodeContext.
        num_gpus: not used: the engine gives a task its GPUs before it starts.
        rdma: TensorFlow 2 has no RDMA transport.

    Raises:
        SpecError: `rdma` is asked for.
    """
    if rdma:
        raise SpecError("rdma=True: TensorFlow 2 has no RDMA transport; leave it out, tensors go by grpc")
    import tensorflow as tf

    ctx.release_port()
    cluster = tf.train.ClusterSpec(ctx.cluster_spec)
    server = tf.distribute.Server(cluster, job_name=ctx.job_name, task_index=ctx.task_index)
    return cluster, server


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the graph of a TensorFlow 1 session as a SavedModel.

    Args:
        sess: a `tf.compat.v1.Session`.
        export_dir: folder to write, which must not exist.
        tag_set: tags of the graph, comma separated, for example "serve".
        signatures: key → {"inputs": {alias: tensor's name}, "outputs": {alias: tensor's name}, "method_name": …}.
    """
    import tensorflow as tf

    saved = tf.compat.v1.saved_model

    def infos(names: Mapping[str, str]) -> dict[str, Any]:
        tensors = {alias: name if ":" in name else f"{name}:0" for alias, name in names.items()}
        return {alias: saved.build_tensor_info(sess.graph.get_tensor_by_name(name)) for alias, name in tensors.items()}

    signature_defs = {
        key: saved.signature_def_utils.build_signature_def(
            inputs=infos(signature["inputs"]),
            outputs=infos(signature["outputs"]),
            method_name=signature.get("method_name", saved.signature_constants.PREDICT_METHOD_NAME),
        )
        for key, signature in signatures.items()
    }
    builder = saved.builder.SavedModelBuilder(export_dir)
    with sess.graph.as_default():
        builder.add_meta_graph_and_variables(
            sess, tag_set.split(","), signature_def_map=signature_defs, clear_devices=True
        )
        builder.save()


def release_port(ctx: Any) -> None:
    """Gives up the port that `run(release_port=False)` held for this task."""
    if ctx.tmp_socket is not None:
        ctx.tmp_socket.close()
        ctx.tmp_socket = None


def next_batch(mgr: Any, batch_size: int, qname: str = "input") -> NoReturn:
    """Gone since TensorFlowOnSpark 1.0: `DataFeed.next_batch`."""
    raise SpecError("TFNode.next_batch is gone: use TFNode.DataFeed(ctx.mgr).next_batch(batch_size)")


def batch_results(mgr: Any, results: Any, qname: str = "output") -> NoReturn:
    """Gone since TensorFlowOnSpark 1.0: `DataFeed.batch_results`."""
    raise SpecError("TFNode.batch_results is gone: use TFNode.DataFeed(ctx.mgr, False).batch_results(results)")


def terminate(mgr: Any, qname: str = "input") -> NoReturn:
    """Gone since TensorFlowOnSpark 1.0: `DataFeed.terminate`."""
    raise SpecError("TFNode.terminate is gone: use TFNode.DataFeed(ctx.mgr).terminate()")
