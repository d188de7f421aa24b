"""`hopyard run --roles`: a script as a distributed program."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from hopyard.cli.common import FAILED, GOOD, say
from hopyard.errors import UsageError


def roles_of(text: str, gpus: int) -> dict[str, Any]:
    """ "worker=2:4,ps=1" as hy.launch takes it."""
    from hopyard.core.programs.placement import SERVING, Role

    made = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name in made:
            raise UsageError(f"--roles {text}: {name} is there twice")
        least, _, most = number.rpartition(":")
        try:
            count = int(most)
            low = int(least) if least else None
        except ValueError:
            raise UsageError(f"--roles {text!r}: {part.strip()!r} is none; worker=4,ps=1 is wanted") from None
        if count or low:
            made[name] = Role(count, low, 0 if name in SERVING else gpus)
    if not made:
        raise UsageError(f"--roles {text!r}: no process at all; worker=4,ps=1 is wanted")
    return made


@contextlib.contextmanager
def engine_of(name: str, roles: dict[str, Any], master: str | None = None) -> Iterator[Any]:
    """An engine with a slot for each task; a Spark session that was begun for it is stopped in the end.

    Args:
        name: "local" or "spark".
        roles: of the program.
        master: Spark's; None: what Spark itself is told, by spark-submit or its settings, else executors of this host.

    Raises:
        UsageError: another name, a master for another engine, or Spark does not start with it.
    """
    from hopyard.engines.local import Local

    workers = sum(role.count for role in roles.values()) or 1
    if name not in ("local", "spark"):
        raise UsageError(f"--engine {name}: local or spark is wanted")
    if name == "local":
        if master is not None:
            raise UsageError(f"--master {master!r}: it goes with --engine spark, and the engine is local")
        yield Local(workers=workers)
        return
    from hopyard.engines.spark import Spark

    with _session(master, workers) as session:
        yield Spark(session, workers=workers)


@contextlib.contextmanager
def _session(master: str | None, workers: int) -> Iterator[Any]:
    """The Spark session of this process; where there is none, one that ends here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"--engine spark: {error}; pip install 'hopyard[spark]'") from error
    from hopyard.spark.local import session as local

    active = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName("hopyard")
    here = master is None and active is None and not _has_master(os.environ)
    if master is not None:
        builder = builder.master(master)
    elif here:
        say(f"--engine spark: no master is named, so these are {workers} executors of this machine; --master {MASTERS}")
    try:
        session = local.session(cores=1, executors=workers) if here else builder.getOrCreate()
    except UsageError:
        raise
    except Exception as error:
        where = "--engine spark" if master is None else f"--master {master!r}"
        why = local.cause(error)
        why = next((meaning for part, meaning in _KNOWN.items() if part in why), why)
        raise UsageError(
            f"{where}: Spark did not start: {why}; a master is {MASTERS}. What Spark said stands above, and `hopyard "
            "doctor` looks at its Java"
        ) from error
    try:
        yield session
    finally:
        if active is None:  # else Spark would hear of its end when the line breaks
            with contextlib.suppress(Exception):  # its Java may be gone
                session.stop()


MASTERS = "spark://host:7077, yarn, k8s://https://host:443 or local[2]"
"""What a master of Spark looks like."""
_KNOWN = {
    "stopped SparkContext": "no master of Spark answers there",  # after a minute of its own tries
    "JAVA_GATEWAY_EXITED": "it ended while it came up",
}
"""Part of an error of Spark → what it means here."""


def _has_master(environ: Mapping[str, str]) -> bool:
    """Whether Spark is told a master by somebody else. It cannot be asked: where nobody does, it takes local[*]."""
    from hopyard.spark.local.environment import pyspark

    if any(environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER")):
        return True  # the first: spark-submit has started this process
    submitted = environ.get("PYSPARK_SUBMIT_ARGS", "")
    if any(word in submitted for word in ("--master", "--remote", "--properties-file", "spark.master", "spark.remote")):
        return True
    folder = Path(environ.get("SPARK_CONF_DIR") or pyspark(environ).home / "conf")
    settings = folder / "spark-defaults.conf"
    return settings.is_file() and bool(re.search(r"(?m)^\s*spark\.(master|remote)[\s=:]", settings.read_text()))


def run_program(script: Path, arguments: list[str], roles: dict[str, Any], engine: Any, **how: Any) -> int:
    """Run it to its end; the exit code."""
    from hopyard.driver.programs.api import launch

    with launch(script, arguments, roles=roles, engine=engine, **how) as program:
        typer.echo(f"{program.directory}: what it prints is shown by `hopyard logs {program.directory} -f`", err=True)
        if how["tensorboard"]:
            typer.echo(f"TensorBoard: {program.show_tensorboard() or 'not up; see the logs'}", err=True)
        status = program.wait()
    typer.echo(f"{program.directory}: {status}", err=True)
    return GOOD if status == "done" else FAILED
