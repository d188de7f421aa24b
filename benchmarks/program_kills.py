"""Random kills of a program's processes, each at a random moment: does it name the first cause soon, is nothing left?

    python benchmarks/program_kills.py [--kills 20] [--seed 0] [--spark]

A chief, two workers and a parameter server are fed without end. Killed (or stopped, for a stop is a silence) is the
process of a task, or its agent; with `--spark`, where all are on real executors, an executor as well. The error must
come within 5 seconds of a death (20 of a stop), begin with the name of the task that was hit, and leave no process.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import hopyard as hy

ROLES = {"chief": 1, "worker": 2, "ps": 1}
ALLOWED = {"kill": 5.0, "stop": 20.0}


def works(args: Any, ctx: Any) -> None:
    import os
    import time

    (ctx.directory / f"{ctx.role} {ctx.index}").write_text(str(os.getpid()))
    if ctx.role == "ps":
        time.sleep(1000)
    for _ in ctx.feed().batches(100):
        pass


def rows(spark: Any) -> Any:
    return [{"a": n} for n in range(100_000)] if spark is None else spark.range(0, 10_000_000, 1, 8)


def above(pid: int, program: str) -> int:
    """The next process above that runs `program`; 0: none."""
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid > 1 and program in os.readlink(f"/proc/{pid}/exe"):
            return pid
    return 0


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def once(draw: random.Random, spark: Any) -> tuple[str, float, str]:
    """(what was done, seconds until the error, what was wrong: empty where nothing was)"""
    directory = Path(tempfile.mkdtemp(), "program")
    engine = None if spark is None else hy.Spark(spark, workers=4)
    program = hy.launch(works, None, roles=ROLES, engine=engine, directory=directory)
    tasks = [f"{role} {index}" for role, count in ROLES.items() for index in range(count)]
    while not all((directory / name).exists() and (directory / name).read_text() for name in tasks):
        time.sleep(0.01)
    pids = {name: int((directory / name).read_text()) for name in tasks}
    told = {f"{task['role']} {task['index']}": task["agent"] for task in program.summary()["tasks"]}

    def feed() -> None:
        try:
            while True:
                program.feed(rows(spark), end=False)
        except hy.HopyardError:
            pass

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    time.sleep(draw.uniform(0.0, 1.5))
    victim, how = draw.choice(tasks), draw.choice(["kill", "kill", "stop"])
    whom = draw.choice(["process", "agent"] + (["executor"] if spark is not None and how == "kill" else []))
    pid = {"process": pids[victim], "agent": told[victim]}.get(whom) or above(told[victim], "java")
    what = f"{how} the {whom} of {victim}"
    if not pid:
        program.stop()
        return what, 0.0, ""
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    try:
        program.wait(60)
        return what, time.monotonic() - began, "it ended as if nothing had been"
    except hy.ProgramFailed as error:
        seconds = time.monotonic() - began
        if seconds > ALLOWED[how]:
            return what, seconds, "too late"
        if whom != "executor" and error.task != victim:
            return what, seconds, f"blamed {error.task}"
    time.sleep(2)
    left = [name for name, pid in [*pids.items(), *told.items()] if alive(pid)]
    feeder.join(30)
    return what, seconds, f"left behind: {', '.join(left)}" if left else "the feed hangs" if feeder.is_alive() else ""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true")
    options = parser.parse_args()
    spark = None
    if options.spark:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master("local-cluster[4,1,1024]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.host", "127.0.0.1")
        spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
    draw = random.Random(options.seed)
    good = 0
    for number in range(options.kills):
        what, seconds, wrong = once(draw, spark)
        good += not wrong
        print(f"{number + 1:3}  {what:<34} {seconds:5.1f} s  {wrong or 'good'}", flush=True)
    print(f"{good} of {options.kills} good")
    if spark is not None:
        spark.stop()
    return good != options.kills


if __name__ == "__main__":
    sys.exit(main())
