"""`hopyard run --roles`: a script as a distributed program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from hopyard.cli.verbs import FAILED, GOOD
from hopyard.errors import UsageError


def roles_of(text: str, gpus: int) -> dict[str, Any]:
    """ "worker=2:4,ps=1" as hy.launch takes it."""
    from hopyard.core.cluster import SERVING, Role

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


def engine_of(name: str, roles: dict[str, Any]) -> Any:
    """An engine with a slot for each task."""
    from hopyard.engines.local import Local

    workers = sum(role.count for role in roles.values()) or 1
    if name == "local":
        return Local(workers=workers)
    if name != "spark":
        raise UsageError(f"--engine {name}: local or spark is wanted")
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"--engine spark: {error}; pip install 'hopyard[spark]'") from error
    from hopyard.engines.spark import Spark

    return Spark(SparkSession.builder.appName("hopyard").getOrCreate(), workers=workers)


def run_program(script: Path, arguments: list[str], roles: dict[str, Any], engine: Any, **how: Any) -> int:
    """Run it to its end; the exit code."""
    from hopyard.driver.launch import launch

    program = launch(script, arguments, roles=roles, engine=engine, **how)
    typer.echo(f"{program.directory}", err=True)
    if how["tensorboard"]:
        typer.echo(f"TensorBoard: {program.show_tensorboard() or 'not up; see the logs'}", err=True)
    status = program.wait()
    typer.echo(f"{program.directory}: {status}", err=True)
    return GOOD if status == "done" else FAILED
