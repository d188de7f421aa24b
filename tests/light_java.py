"""The JVMs that tests start: light ones, with Spark's classes from an archive.

A driver or an executor of Spark spends most of its first seconds on loading and verifying classes. An archive of class
data (CDS) has them as they are in memory. `python tests/light_java.py` writes one for the Spark of this environment, in
as much time as it saves in the first few sessions; `make test` and `make check` do so once. Without it, or with another
Java, tests run as well.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that is up a third sooner."""
ARCHIVE = Path(sys.prefix) / ".spark-classes.jsa"


def java_options() -> str:
    """Return the options for each JVM of a test."""
    return f"{LIGHT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if ARCHIVE.exists() else LIGHT


def submit_options() -> str:
    """Return SPARK_SUBMIT_OPTS, for drivers; they have executors do the same."""
    options = java_options()
    return f'{options} -Dspark.executor.defaultJavaOptions="{options}"'


def warm_settings() -> dict[str, str]:
    """Return settings with which executors fork their Python workers of `spark_daemon`, which has done the imports."""
    folders = [str(Path(__file__).with_name("spark_daemon")), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, folders))
    return {"spark.python.daemon.module": "warm_daemon", "spark.executorEnv.PYTHONPATH": path}


def session(master: str) -> Any:
    """A small session of Spark."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.log.level", "ERROR")
    for name, value in {"ui.enabled": "false", "driver.host": "127.0.0.1", "driver.bindAddress": "127.0.0.1"}.items():
        builder = builder.config(f"spark.{name}", value)
    return builder.getOrCreate()


def echo(batches: Any) -> Any:
    yield from batches


def main() -> None:
    """Have one JVM do what tests do: the part of an executor in itself, then that of a driver of executors."""
    if find_spec("pyspark") is None:
        return
    written = ARCHIVE.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{LIGHT} -XX:ArchiveClassesAtExit={written} -Xlog:cds=off -Xlog:cds+dynamic=off"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark import SparkContext

    spark = session("local[1]")
    rows = spark.createDataFrame([(1, [0.5]), (2, [1.5])], "a long, b array<double>").repartition(2)
    rows.mapInArrow(echo, rows.schema).groupBy("a").count().collect()
    rows.rdd.map(tuple).collect()
    spark.stop()
    session("local-cluster[1,1,1024]").stop()
    java = SparkContext._gateway.proc  # type: ignore[union-attr]
    java.stdin.close()  # the end of its driver is its own
    java.wait(120)
    if written.exists():
        written.rename(ARCHIVE)


if __name__ == "__main__":
    main()
