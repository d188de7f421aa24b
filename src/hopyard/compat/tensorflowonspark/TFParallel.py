"""`run` calls a function once on each of some executors, each by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from hopyard.compat import VARIABLE, install
from hopyard.compat.tensorflowonspark import util
from hopyard.compat.tensorflowonspark.TFCluster import compat_environment, default_fs, session
from hopyard.compat.tensorflowonspark.TFSparkNode import TFNodeContext
from hopyard.driver.programs.api import launch
from hopyard.engines.spark.engine import Spark

START_SECONDS = 60.0
"""Seconds until, with a barrier, there must be a slot for each."""


def run(sc: Any, map_fn: Callable[[Any, Any], Any], tf_args: Any, num_executors: int, use_barrier: bool = True) -> None:
    """Runs `map_fn(tf_args, ctx)` `num_executors` times and returns when all have.

    In `ctx` are `executor_id` (and the same as `worker_num`), `num_workers` and the file system's names; there is no
    cluster.

    Args:
        sc: a SparkContext, or a session.
        map_fn: the function.
        tf_args: its arguments; each call gets `tf_args.num_gpus` GPUs, by default one, where there are any.
        num_executors: how many.
        use_barrier: True: a program of Hopyard calls it on all at once, or fails if there are too few slots. False:
            tasks of a Spark job call it, one after another where there are fewer slots.

    Raises:
        ProgramFailed: with a barrier: a call failed, or there are too few slots.
    """
    context = getattr(sc, "sparkContext", sc)
    filesystem, folder = default_fs(context), os.getcwd()  # noqa: PTH109 - a text, as its users expect
    environment = compat_environment()

    def call(args: Any, number: int) -> Any:
        ctx = TFNodeContext(executor_id=number, defaultFS=filesystem, working_dir=folder)
        ctx.num_workers = num_executors
        return map_fn(args, ctx)

    def member(args: Any, program: Any) -> Any:
        return call(args, program.index)

    def work(numbers: Iterable[int]) -> list[int]:
        install(environment.get(VARIABLE, ""))
        for number in numbers:
            util.single_node_env(getattr(tf_args, "num_gpus", 1), number)
            call(tf_args, number)
        return []

    if not use_barrier:
        context.parallelize(range(num_executors), num_executors).mapPartitions(work).collect()
        return
    program = launch(
        member,
        tf_args,
        roles={"worker": num_executors},
        engine=Spark(session(sc), workers=num_executors, start_timeout=START_SECONDS),
        until="all",
        env=environment,
        start_timeout=START_SECONDS,
    )
    try:
        program.wait()
    except BaseException:
        program.stop()
        raise
