"""Verbs that train: run, demo, resume, replay."""

from __future__ import annotations

import contextlib
import math
import runpy
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from hopyard.cli.cluster import DriverPod, InCluster, requested, submit
from hopyard.cli.common import FAILED, GOOD, SOME, STATUS, RunName, Trust, echo, require_script, say, terminable, verb
from hopyard.cli.engines import DryRun, HostNames, HostPython, HostSsh, PodFile, PodImage, engine_of, print_manifests
from hopyard.errors import HopyardError, UsageError


@verb
def run(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(metavar="SCRIPT", help="A script that calls hy.select or hy.fit."),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Arguments of the script.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Treat each select, fit and launch as called with resume=True.")
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
    """Run a script; the exit code says how its runs ended."""
    require_script(script, "run", in_cluster)
    engine = engine_of(hosts, python, ssh, kubernetes, pod)
    if requested(in_cluster, driver_pod):
        submit(context, engine, driver_pod, dry_run)
        return GOOD
    if dry_run:
        print_manifests(engine)
        return GOOD
    terminable()
    if resume:
        from hopyard.driver.resuming import resume_all

        resume_all()
    if engine is not None:  # for runs that name no engine
        from hopyard.engines.default import choose

        choose(engine)
    from hopyard.frameworks import quiet

    quiet()
    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except (HopyardError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - the script's own error, shown as Python shows it
        _script_trace(error, script)
        return FAILED
    return _exit_code()


def _script_trace(error: Exception, script: Path) -> None:
    """Print the traceback, from the script's first line on: the frames above it are Hopyard's."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _exit_code() -> int:
    """Wait for the runs of this process that are in the background, and return the exit code of all its runs."""
    driver = sys.modules.get("hopyard.driver.runs.session")
    if driver is None:
        return GOOD
    for run in list(driver.DRIVEN):
        with contextlib.suppress(HopyardError):
            run.wait()
    codes = [outcome.code or STATUS.get(outcome.status, GOOD) for outcome in driver.OUTCOMES]
    return next((code for code in (FAILED, *set(codes) - {FAILED, SOME, GOOD}, SOME) if code in codes), GOOD)


@verb
def demo(
    workers: Annotated[int, typer.Option(min=1, help="Number of worker processes.")] = 2,
    trials: Annotated[int, typer.Option(min=1, help="Number of configurations.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the flights.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Default: a fresh one under runs/.")] = None,
) -> int:
    """Select a net that tells which of 327,346 flights from New York come late. Takes a minute or two."""
    from hopyard.demo import flights_late

    terminable()
    return STATUS[flights_late(workers, trials, epochs, directory)]


@verb
def resume(
    run: RunName,
    workers: Annotated[
        int | None, typer.Option(help="Go on with this many processes on this host, wherever the run was started.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Also try failed trials again, except those that the recipe ended.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of each trial from now on; more than the run has so far.")
    ] = None,
    gang: Annotated[
        int | None, typer.Option(metavar="WORKERS", help="Workers that train one net together from now on.")
    ] = None,
    trust: Trust = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Do not look for 30 s whether the driver of a run at a URL lives; it ends."),
    ] = False,
    hosts: HostNames = None,
    python: HostPython = None,
    ssh: HostSsh = "ssh",
    kubernetes: PodImage = None,
    pod: PodFile = None,
    heartbeat_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time without a heartbeat after which a worker is replaced.")
    ] = None,
    stall_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Time without progress after which a worker is replaced.")
    ] = None,
    unit_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest time for one unit; inf: no limit.")
    ] = None,
    durable_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Time without a stored State after which a worker is replaced."),
    ] = None,
) -> int:
    """Go on with a run that was interrupted, or give one that is over more epochs."""
    from msgspec.structs import replace

    from hopyard.driver.runs.api import resume as resume_run
    from hopyard.driver.runs.run import load
    from hopyard.engines.local import Local

    engine = engine_of(hosts, python, ssh, kubernetes, pod)
    if engine is not None and workers is not None:
        raise UsageError(
            "--workers is for processes of this host; elsewhere the number stands with the option: --hosts a:2, "
            "--kubernetes IMAGE,workers=2"
        )
    given = {name: value for name, value in locals().items() if name.endswith("_timeout") and value is not None}
    times = {name: None if value == math.inf else value for name, value in given.items()}
    terminable()
    result = resume_run(
        run,
        engine=engine if workers is None else Local(workers=workers),
        failed=failed,
        epochs=epochs,
        workers=gang,
        trust=trust,
        take_over=take_over,
        timeouts=replace(load(run).timeouts, **times) if times else None,
    )
    echo(f"{result.url or result.directory}: {result.status}")
    return STATUS.get(result.status, GOOD)


@verb
def replay(run: RunName, trust: Trust = False) -> int:
    """Do a run again from its journal and compare every State, bit by bit."""
    from hopyard.driver.runs.replay import replay as replay_run

    terminable()
    result = replay_run(run, trust=trust)
    if result.different:
        say("\n".join([f"error: {len(result.different)} of {result.states} States differ", *result.different]))
        return FAILED
    echo(f"{result.states} States, each the same to the last bit")
    return GOOD
