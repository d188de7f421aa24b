"""Verbs of hosts that join by themselves: ticket, agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from hopyard.cli.common import echo, say, verb
from hopyard.errors import UsageError
from hopyard.text import shell_command, shown


@verb
def ticket(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The new file; only you may read it.")],
    address: Annotated[
        str,
        typer.Option(metavar="HOST", help="Name or address by which they dial the host that runs are started on."),
    ],
    port: Annotated[
        int, typer.Option(min=1, max=65533, help="Port of that host for workers; the two after it are used too.")
    ] = 7700,
) -> None:
    """Make a ticket: hosts that have it may join runs of hy.Hosts(join=FILE) with `hopyard agent --join FILE`."""
    from hopyard.engines.supervisors import ticket as tickets

    if not address or any(character.isspace() for character in address):
        raise UsageError(
            f"--address must be a name or address that can be dialled, without spaces, got {shown(address)}"
        )
    tickets.write(file, tickets.new(address, port))
    echo(f"{file}: copy it to each host (scp keeps its mode), and run there: {shell_command('agent --join', file)}")


@verb
def agent(
    join: Annotated[Path, typer.Option(metavar="FILE", help="The ticket that `hopyard ticket` made.")],
    slots: Annotated[
        int | None, typer.Option(min=1, help="Number of workers. Default: one for each GPU, or for each core.")
    ] = None,
    devices: Annotated[
        Literal["auto", "none"], typer.Option(help="auto: workers get the GPUs in turn; none: they use the CPU.")
    ] = "auto",
) -> int:
    """Offer this host's workers to the runs of a ticket, one run after the other, until it is ended."""
    from hopyard.engines.supervisors import ticket as tickets
    from hopyard.engines.supervisors.host import SupervisorHost, shares
    from hopyard.system.network import joined

    pool = tickets.read(join)
    gpus_of = shares(slots, devices)
    say(f"{len(gpus_of)} workers for runs at {joined(pool.host, pool.port - 1)}; Ctrl-C ends this")
    sys.stderr.flush()
    return SupervisorHost(pool, gpus_of, standing=True).run()
