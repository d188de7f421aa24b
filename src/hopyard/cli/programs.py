"""The verb `launch`: runs a script as a distributed program."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hopyard.cli import engines
from hopyard.cli.cluster import DriverPod, InCluster, requested, submit
from hopyard.cli.common import FAILED, GOOD, require_script, say, terminable, verb
from hopyard.cli.engines import DryRun, HostNames, HostPython, HostSsh, PodFile, PodImage
from hopyard.errors import UsageError
from hopyard.text import shell_command, shown


@verb
def launch(
    context: typer.Context,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="Any script: each task of the program runs it.")],
    roles: Annotated[
        str,
        typer.Option(metavar="ROLES", help="Its tasks: worker=4,ps=1 (or worker=2:4 for a range)."),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    engine: Annotated[str, typer.Option(help="Where the tasks run: local or spark.")] = "local",
    master: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Spark's master: spark://host:7077, yarn. Default: that of its settings."),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Tasks that must finish: chief, workers, all, or one: worker:0."),
    ] = None,
    max_restarts: Annotated[int, typer.Option(min=0, help="How often to start again when a task fails.")] = 0,
    restart_scope: Annotated[
        Literal["program", "task"],
        typer.Option(help="What starts again when a task fails: program, or task, if the others can wait for it."),
    ] = "program",
    max_time: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time after which the program is ended, restarts included.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each chief and worker.")] = 0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Start TensorBoard on its directory.")] = False,
    tensorflow1: Annotated[bool, typer.Option("--tensorflow1", help="Give it tf.compat.v1 as tensorflow.")] = False,
    directory: Annotated[str | None, typer.Option(help="Path or URL. Default: a fresh one under runs/.")] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="Where ctx.checkpoint keeps. Default: the directory.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the checkpoints of the program that the directory has.")
    ] = False,
    hosts: HostNames = None,
    python: HostPython = None,
    ssh: HostSsh = "ssh",
    kubernetes: PodImage = None,
    pod: PodFile = None,
    in_cluster: InCluster = False,
    driver_pod: DriverPod = None,
    dry_run: DryRun = False,
) -> int:
    """Run a script as a distributed program, each task in a process of its own."""
    require_script(script, "launch", in_cluster)
    tasks = roles_of(roles, gpus)
    elsewhere = engines.engine_of(hosts, python, ssh, kubernetes, pod, workers=_tasks(tasks))
    if elsewhere is not None and (engine != "local" or master is not None):
        raise UsageError("--hosts and --kubernetes say where the tasks run; leave --engine and --master out")
    if requested(in_cluster, driver_pod):
        submit(context, elsewhere, driver_pod, dry_run)
        return GOOD
    if resume and directory is None:
        raise UsageError("--resume goes with --directory DIR, which has the checkpoints")
    if dry_run:
        engines.print_manifests(elsewhere)
        return GOOD
    terminable()
    from hopyard.driver.programs import api

    with (
        engine_of(engine, tasks, master) if elsewhere is None else contextlib.nullcontext(elsewhere) as placed,
        api.launch(
            script,
            arguments or [],
            roles=tasks,
            engine=placed,
            until=until,
            max_restarts=max_restarts,
            restart_scope=restart_scope,
            max_time=max_time,
            tensorboard=tensorboard,
            tensorflow1=tensorflow1,
            directory=directory,
            store=store,
            resume=resume,
        ) as program,
    ):
        say(f"{program.directory}: what it prints is shown by `{shell_command('logs', program.directory, ' -f')}`")
        if tensorboard:
            say(f"TensorBoard: {program.tensorboard_url() or 'not up; see the logs'}")
        status = program.wait().status
    say(f"{program.directory}: {status}")
    return GOOD if status == "completed" else FAILED


def roles_of(text: str, gpus: int) -> dict[str, Any]:
    """Return "worker=2:4,ps=1" as the `roles` of hy.launch."""
    from hopyard.core.programs.placement import SERVING, Role

    roles = {}
    for part in text.split(","):
        name, _, number = part.strip().partition("=")
        if name in roles:
            raise UsageError(f"--roles {text}: {name} appears twice")
        least, _, most = number.rpartition(":")
        try:
            count = int(most)
            low = int(least) if least else None
        except ValueError:
            raise UsageError(
                f"--roles must be such as worker=4,ps=1, got {shown(text)}: {part.strip()!r} is no role"
            ) from None
        if count or low:
            roles[name] = Role(count, low, 0 if name in SERVING else gpus)
    if not roles:
        raise UsageError(f"--roles must be such as worker=4,ps=1, got {shown(text)}: no process at all")
    return roles


def _tasks(roles: dict[str, Any]) -> int:
    """Return how many workers a program needs."""
    return sum(role.count for role in roles.values()) or 1


@contextlib.contextmanager
def engine_of(name: str, roles: dict[str, Any], master: str | None = None) -> Iterator[Any]:
    """Yield an engine with a slot for each task; a Spark session that was started for it is stopped at the end.

    Args:
        name: "local" or "spark".
        roles: the program's.
        master: Spark's; None: the one that spark-submit or Spark's settings name, else executors of this host.

    Raises:
        UsageError: the name is another one, the engine takes no master, or Spark does not start with it.
    """
    from hopyard.engines.local import Local

    workers = _tasks(roles)
    if name not in ("local", "spark"):
        raise UsageError(f"--engine must be local or spark, got {name}")
    if name == "local":
        if master is not None:
            raise UsageError(f"--master {master!r}: it goes with --engine spark, and the engine is local")
        yield Local(workers=workers)
        return
    from hopyard.engines.spark.engine import Spark

    with _session(master, workers) as session:
        yield Spark(session, workers=workers)


@contextlib.contextmanager
def _session(master: str | None, workers: int) -> Iterator[Any]:
    """Yield the Spark session of this process; where there is none, start one and stop it at the end."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UsageError(f"--engine spark: {error}; pip install 'hopyard[spark]'") from error
    from hopyard.spark.local import session as local

    active = SparkSession.getActiveSession()
    builder = SparkSession.builder.appName("hopyard")
    start_local = master is None and active is None and not _has_master(os.environ)
    if master is not None:
        builder = builder.master(master)
    elif start_local:
        say(f"--engine spark: no master is named, so these are {workers} executors of this machine; --master {MASTERS}")
    try:
        session = local.session(cores=1, executors=workers) if start_local else builder.getOrCreate()
    except UsageError:
        raise
    except Exception as error:
        flag = "--engine spark" if master is None else f"--master {master!r}"
        reason = local.cause(error)
        reason = next((meaning for part, meaning in _ERROR_MEANINGS.items() if part in reason), reason)
        raise UsageError(
            f"{flag}: Spark did not start: {reason}; a master is {MASTERS}. What Spark said stands above, and `hopyard "
            "doctor` looks at its Java"
        ) from error
    try:
        yield session
    finally:
        if active is None:  # without this Spark would notice the end only when the connection breaks
            with contextlib.suppress(Exception):  # its Java may be gone
                session.stop()


MASTERS = "spark://host:7077, yarn, k8s://https://host:443 or local[2]"
"""Examples of Spark masters, for messages."""
_ERROR_MEANINGS = {
    "stopped SparkContext": "no master of Spark answers there",  # after it has tried for a minute
    "JAVA_GATEWAY_EXITED": "it ended while it came up",
}
"""Part of an error of Spark → what it means here."""


def _has_master(environ: Mapping[str, str]) -> bool:
    """Return whether something but --master names Spark's master. Spark cannot be asked: it defaults to local[*]."""
    from hopyard.spark.local.environment import pyspark

    if any(environ.get(name) for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "MASTER")):
        return True  # the first: spark-submit has started this process
    submitted = environ.get("PYSPARK_SUBMIT_ARGS", "")
    if any(name in submitted for name in ("--master", "--remote", "--properties-file", "spark.master", "spark.remote")):
        return True
    folder = Path(environ.get("SPARK_CONF_DIR") or pyspark(environ).home / "conf")
    settings = folder / "spark-defaults.conf"
    return settings.is_file() and bool(re.search(r"(?m)^\s*spark\.(master|remote)[\s=:]", settings.read_text()))
