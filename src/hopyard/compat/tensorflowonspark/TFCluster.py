"""`run` starts a cluster and returns a TFCluster, to feed it and shut it down. A program of Hopyard does the work."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hopyard.checks import whole
from hopyard.compat import VARIABLE, installed
from hopyard.compat.tensorflowonspark.TFSparkNode import Meta, program_main
from hopyard.driver.programs.api import launch
from hopyard.driver.programs.program import Program
from hopyard.engines.spark.engine import Spark
from hopyard.errors import ProgramFailed, ResourceError, SpecError

logger = logging.getLogger(__name__)

ANSWERS = ("output", "error", "control")
"""Names of queues that are no feeds."""
EPOCHS = 10
"""Number of epochs that `num_epochs=0`, "until the program has enough", stands for."""
POLL_SECONDS = 0.02
"""Time between checks whether all tasks have a slot."""
WARN_SECONDS = 60.0
"""Least time between warnings that tasks still run."""


class InputMode:
    """Who reads the data."""

    TENSORFLOW = 0
    """The program itself."""
    SPARK = 1
    """Spark, which sends the program rows."""


class TFCluster:
    """A running cluster, which `run` returns.

    Attributes:
        sc: its SparkContext.
        program: the program of Hopyard behind it: `program.logs()`, `program.summary()`, `program.stop()`.
        input_mode, num_executors, queues, defaultFS, working_dir, cluster_id: as `run` got or found them.
    """

    def __init__(
        self, sc: Any, program: Program, num_executors: int, input_mode: int, queues: Sequence[str], meta: Meta
    ) -> None:
        self.sc = sc
        self.program = program
        self.num_executors = num_executors
        self.input_mode = input_mode
        self.queues = list(queues)
        self.defaultFS = meta.default_fs
        self.working_dir = meta.working_dir
        self.cluster_id = os.path.basename(str(program.directory))  # noqa: PTH119 - it may be a URL

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> None:
        """Feeds all rows of an RDD, `num_epochs` times; returns when all were taken, or no more were wanted.

        Args:
            dataRDD: an RDD; a DStream, whose RDDs are fed as they come, once each; or, much faster than its `rdd`, a
                DataFrame, whose rows are tuples.
            num_epochs: 0: ten times, where the program is expected to have enough before.
            feed_timeout: seconds after which a partition fails if none of its rows is taken.
            qname: name of the feed, where there are several.

        Raises:
            ProgramFailed: a task failed, with the first one's traceback.
            SpecError: a value is not allowed.
        """
        self._check_feed("train", qname)
        num_epochs = whole("num_epochs", num_epochs, 0)

        def feed(rows: Any, epochs: int) -> None:
            try:
                self.program.feed(rows, epochs=epochs, name=qname, end=False, timeout=feed_timeout)
            except ProgramFailed:
                if self.program.status != "completed":
                    raise
                logger.info("the program has ended well: it needs no more rows")

        if hasattr(dataRDD, "foreachRDD"):
            dataRDD.foreachRDD(lambda rdd: feed(rdd, 1))
        else:
            feed(dataRDD, num_epochs or EPOCHS)

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Return an RDD of what the program answers, row by row; it is computed when an action asks for it.

        Args:
            dataRDD: the rows.
            feed_timeout: seconds after which a task fails if its worker takes and answers nothing.
            qname: name of the feed, where there are several.
        """
        self._check_feed("inference", qname)
        return self.program.infer(dataRDD, name=qname, timeout=feed_timeout)

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Ends the feeds, and waits until all that train have returned; then parameter servers and evaluators end.

        Args:
            ssc: a StreamingContext; it is waited for first, and stopped where the program ends before it.
            grace_secs: seconds to wait without a warning. Tasks may take longer: what they save at their end is never
                cut off.
            timeout: seconds until the program is stopped where it does not end; −1: never.

        Raises:
            ProgramFailed: a task failed, also after it had been fed, with the first one's traceback.
            ResourceError: `timeout` has passed.
        """
        deadline = time.monotonic() + timeout if timeout > 0 else None
        if ssc is not None:
            while not ssc.awaitTerminationOrTimeout(1):
                if self.program.status != "running":
                    ssc.stop(stopSparkContext=False, stopGraceFully=True)
                    break
        if self.input_mode == InputMode.SPARK:
            for name in self._inputs:
                self.program.end_feed(name)
        interval = max(WARN_SECONDS, float(grace_secs))
        while not self._wait(interval if deadline is None else min(interval, deadline - time.monotonic())):
            if deadline is not None and time.monotonic() >= deadline:
                summary = self.program.summary()
                self.program.stop()
                raise ResourceError(
                    f"the program did not end within timeout={timeout} seconds and was stopped: {summary}"
                )
            if self.input_mode == InputMode.SPARK:
                logger.warning("all was fed, but tasks still run: %s", self.program.summary())

    def tensorboard_url(self) -> str | None:
        """Return the URL of the TensorBoard, or None."""
        return self.program.tensorboard_url(timeout=0) or None

    @contextmanager
    def stopped_by_errors(self) -> Iterator[None]:
        """Return a context in which an error, also the user's interrupt, stops the program and is raised again."""
        try:
            yield
        except BaseException:
            self.program.stop()
            raise

    @property
    def cluster_info(self) -> list[dict[str, Any]]:
        """For each task its role as `job_name`, `task_index`, `host`, and what `program.summary()` says of it."""
        tasks = self.program.summary()["tasks"]
        return [{**task, "job_name": task["role"], "task_index": task["index"]} for task in tasks]

    @property
    def _inputs(self) -> list[str]:
        """Names of feeds."""
        return [name for name in self.queues if name not in ANSWERS]

    def _check_feed(self, method: str, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise SpecError(f"TFCluster.{method} is for input_mode=InputMode.SPARK: give that to TFCluster.run")
        if qname not in self._inputs:
            raise SpecError(f"qname = {qname!r}: the feeds of TFCluster.run(queues={self.queues}) are {self._inputs}")

    def _wait(self, seconds: float) -> bool:
        """Waits for the end of the program; returns whether it is over."""
        try:
            self.program.wait(timeout=max(0.0, seconds))
        except TimeoutError:
            return False
        return True


def run(
    sc: Any,
    map_fun: Callable[[Any, Any], Any],
    tf_args: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    log_dir: str | None = None,
    driver_ps_nodes: bool = False,
    master_node: str | None = None,
    reservation_timeout: float = 600,
    queues: Sequence[str] = ("input", "output", "error"),
    eval_node: bool = False,
    release_port: bool = True,
) -> TFCluster:
    """Starts `map_fun(tf_args, ctx)` once for each task of a cluster; returns when all have a slot.

    Args:
        sc: a SparkContext, or a session.
        map_fun: the program; `ctx` is a `TFSparkNode.TFNodeContext`.
        tf_args: arguments of the program; a list becomes its `sys.argv`.
        num_executors: tasks in all.
        num_ps: parameter servers among them.
        tensorboard: start one, beside the first of those that train.
        input_mode: InputMode.SPARK where rows are to be fed.
        log_dir: what TensorBoard shows.
        driver_ps_nodes: parameter servers are processes of the driver's machine, and take no slots of executors.
        master_node: name of the role that leads, "chief" or "master", which takes one of the tasks.
        reservation_timeout: seconds until all tasks must have a slot.
        queues: names of feeds.
        eval_node: whether one of the tasks is an evaluator.
        release_port: False: `ctx.tmp_socket` holds the task's port until `ctx.release_port()`.

    Raises:
        SpecError: a value is not allowed.
        ProgramFailed: there are too few slots, or a task failed already.
    """
    roles = _roles(num_executors, num_ps, master_node, eval_node)
    if input_mode != InputMode.TENSORFLOW and (eval_node or driver_ps_nodes):
        name = "eval_node" if eval_node else "driver_ps_nodes"
        raise SpecError(f"{name}=True is for input_mode=InputMode.TENSORFLOW only")
    context = getattr(sc, "sparkContext", sc)
    meta = Meta(default_fs(context), os.getcwd(), release_port, tuple(roles))  # noqa: PTH109 - a text, as its users expect
    program = launch(
        program_main(map_fun, meta),
        tf_args,
        roles=roles,
        engine=Spark(
            session(sc),
            workers=num_executors,
            start_timeout=reservation_timeout,
            driver_workers=num_ps if driver_ps_nodes else 0,
            release_cores=input_mode == InputMode.SPARK,
        ),
        until="workers",
        tensorboard=(log_dir or True) if tensorboard else False,
        env=compat_environment(),
        start_timeout=reservation_timeout,
    )
    cluster = TFCluster(context, program, num_executors, input_mode, queues, meta)
    with cluster.stopped_by_errors():
        while not program.summary()["tasks"] and not program.done:
            time.sleep(POLL_SECONDS)
        if program.done or program.status == "failed":
            program.wait()
        if tensorboard and (url := program.tensorboard_url()):
            logger.info("TensorBoard: %s", url)
    return cluster


_ATTRIBUTES = ("sc", "program", "num_executors", "input_mode", "queues", "defaultFS", "working_dir", "cluster_id")


class Reservation:
    """What `reserve` of the first versions returns: a cluster that `start` starts."""

    def __init__(self, run: Callable[[Callable[[Any, Any], Any], Any], TFCluster]) -> None:
        self._run = run
        self._cluster: TFCluster | None = None

    def start(self, map_fun: Callable[[Any, Any], Any], tf_args: Any) -> None:
        """Starts `map_fun(tf_args, ctx)` once for each task, as `run` does, and raises what it does."""
        if self._cluster is not None:
            raise SpecError("cluster.start: the cluster has been started; reserve another one")
        self._cluster = self._run(map_fun, tf_args)

    def __getattr__(self, name: str) -> Any:
        if not hasattr(TFCluster, name) and name not in _ATTRIBUTES:
            raise AttributeError(name)
        if self._cluster is None:
            raise SpecError(
                f"cluster.{name}: the cluster has not been started; call cluster.start(map_fun, tf_args) first"
            )
        return getattr(self._cluster, name)


def reserve(
    sc: Any,
    num_executors: int,
    num_ps: int,
    tensorboard: bool = False,
    input_mode: int = InputMode.TENSORFLOW,
    queues: Sequence[str] = ("input", "output"),
) -> Reservation:
    """Return a cluster of the first versions, which `cluster.start(map_fun, tf_args)` starts; `run` does both at once.

    Args:
        sc, num_executors, num_ps, tensorboard, input_mode, queues: as for `run`.
    """
    _roles(num_executors, num_ps, None, False)
    return Reservation(
        lambda map_fun, tf_args: run(
            sc, map_fun, tf_args, num_executors, num_ps, tensorboard, input_mode, queues=queues
        )
    )


def session(sc: Any) -> Any:
    """Return the session of a SparkContext."""
    if hasattr(sc, "range") and hasattr(sc, "createDataFrame"):
        return sc
    from pyspark.sql import SparkSession

    return SparkSession(sc)


def default_fs(sc: Any) -> str:
    """Return Hadoop's default file system, without the slash of its root."""
    name = str(sc._jsc.hadoopConfiguration().get("fs.defaultFS"))
    return "file://" if name in ("file:///", "file:/") else name


def compat_environment() -> dict[str, str]:
    """Return the environment of processes that replace the same libraries as this one."""
    return {VARIABLE: ",".join(installed())} if installed() else {}


def _roles(num_executors: int, num_ps: int, master_node: str | None, eval_node: bool) -> dict[str, int]:
    """Return role → number of tasks, in the order in which tasks are numbered."""
    chiefs, evaluators = int(bool(master_node)), int(bool(eval_node))
    workers = num_executors - num_ps - chiefs - evaluators
    if num_ps < 0 or workers < 0 or workers + chiefs < 1:
        raise SpecError(
            f"num_executors={num_executors} tasks are to be num_ps={num_ps} parameter servers, {chiefs} chief, "
            f"{evaluators} evaluator and the rest workers: that leaves {workers}; ask for more in all"
        )
    counts = {"ps": num_ps, master_node or "chief": chiefs, "evaluator": evaluators, "worker": workers}
    return {role: count for role, count in counts.items() if count}
