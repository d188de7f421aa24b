"""Verbs that predict and examine: sim, doctor."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict
from typing import Annotated

import typer

from hopyard.cli.common import AsJson, as_text, columns, echo, say, verb
from hopyard.cli.engines import HostNames, HostPython, HostSsh, PodFile, PodImage, engine_of
from hopyard.errors import SpecError, UsageError


@verb
def sim(
    slots: Annotated[int, typer.Option(min=1)] = 8,
    trials: Annotated[int, typer.Option(min=1)] = 16,
    partitions: Annotated[int, typer.Option(min=1)] = 8,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=1e-6, help="Mean time of a trial for one partition.")] = 1.0,
    sigma: Annotated[float, typer.Option(min=0, help="Deviation, over trials, of that time's logarithm.")] = 0.0,
    noise: Annotated[float, typer.Option(min=0, help="Relative deviation over the units of a trial.")] = 0.1,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts that share the slots, as evenly as they can.")] = 1,
    copies: Annotated[int, typer.Option(min=0, help="Hosts that are home to a partition; 0: rows go everywhere.")] = 1,
    hop: Annotated[float, typer.Option(min=0, help="Seconds that a model takes from host to host.")] = 0.0,
    fetch: Annotated[float, typer.Option(min=0, help="Seconds that a host takes to fetch a partition.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Predict how long a run takes, by running the scheduler in virtual time."""
    from hopyard.sim import Host, predict

    if hosts > slots:
        raise SpecError(f"--hosts must be at most --slots, {slots}, as each host has a worker; got {hosts}")
    on = [Host(slots // hosts + (number < slots % hosts)) for number in range(hosts)] if hosts > 1 else []
    prediction = predict(
        *(slots, trials, partitions, epochs, seconds),
        sigma=sigma,
        noise=noise,
        hosts=on,
        copies=copies or None,
        hop=hop,
        fetch=fetch,
    )
    if as_json:
        echo(as_text(asdict(prediction)))
        return
    from hopyard.views import words

    rows = [
        ("makespan", words.duration(prediction.makespan)),
        ("lower bound", f"{words.duration(prediction.bound)}, the makespan is {prediction.ratio:.3f} times that"),
        ("idle share", f"{prediction.idle_share:.1%}"),
        ("units", f"{prediction.units:,}"),
    ]
    if hosts > 1:
        rows.append(("rows stored", f"{prediction.rows_stored:.2f} times the table, on all hosts together"))
        rows.append(("hops", f"{words.count(prediction.hops, 'model')} from host to host"))
    place = words.count(slots, "slot") + (f" of {words.count(hosts, 'host')}" if hosts > 1 else "")
    echo(f"{words.count(trials, 'trial')} × {words.count(epochs, 'epoch')} on {place}")
    columns([[name, text] for name, text in rows], indent="  ")


@verb
def doctor(
    as_json: AsJson = False,
    env: Annotated[bool, typer.Option("--env", help='Only the lines to export for Spark: eval "$(… --env)".')] = False,
    spark: Annotated[bool, typer.Option(help="Start a Spark to see that it works; takes 10 s or more.")] = True,
    hosts: HostNames = None,
    python: HostPython = None,
    ssh: HostSsh = "ssh",
    kubernetes: PodImage = None,
    pod: PodFile = None,
    sweep: Annotated[
        bool,
        typer.Option("--sweep", help="List what drivers that are gone have left in a namespace of Kubernetes."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove it; without this it is only listed.")] = False,
) -> None:
    """Check this machine, other hosts or a cluster: what they have, what is missing, and the next step."""
    from hopyard.doctor import examine, examine_elsewhere, exports, sweep_cluster
    from hopyard.engines.kubernetes.engine import Kubernetes

    if env:
        for line in exports(os.environ):
            sys.stdout.buffer.write(os.fsencode(line) + b"\n")  # for a shell: paths as they are
        return
    if yes and not sweep:
        raise UsageError("--yes goes with --sweep, which is missing")
    if sweep and kubernetes is None and hosts is None:
        kubernetes = "none"  # of the kubeconfig's context
    engine = engine_of(hosts, python, ssh, kubernetes, pod, workers=1, default_image="none" if sweep else "")
    if not sweep:
        findings = examine(spark=spark) if engine is None else examine_elsewhere(engine)
    elif isinstance(engine, Kubernetes):
        findings = sweep_cluster(engine, yes, _watch)
    else:
        raise UsageError("--sweep is of a cluster: give --kubernetes namespace=NAME in place of --hosts")
    if as_json:
        echo(as_text([asdict(finding) for finding in findings]))
        return
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        colour = typer.colors.GREEN if finding.ok else typer.colors.YELLOW
        typer.secho("ok  " if finding.ok else "warn", fg=colour, nl=False)
        echo(f"  {finding.name.ljust(width)}  {finding.text}")
        if finding.advice:
            echo(f"      {' ' * width}  → {finding.advice}")


def _watch(seconds: float) -> None:
    say(f"waiting {seconds:.0f} s for signs of life of the drivers")
    time.sleep(seconds)
