"""The command line: each verb is one word.

Only here are signal handlers installed, and only here do errors become exit codes: 0 good, 1 the run failed, 2 usage,
3 some trials failed, 4 no resources, 130 Ctrl-C, 143 TERM. Everything is imported when its verb needs it, so that
`hopyard --help` answers at once.
"""

from typing import Annotated

import typer

from hopyard import __version__
from hopyard.cli import clean, diagnose, hosts, inspect, programs, runs, tracking

app = typer.Typer(
    name="hopyard",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"hopyard {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train and select deep nets by model hopping: exactly, and without loss."""


app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(runs.run)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(programs.launch)
app.command()(hosts.ticket)
app.command()(hosts.agent)
app.command()(runs.demo)
app.command()(runs.resume)
app.command()(runs.replay)
app.command("ls")(inspect.list_runs)
app.command()(inspect.show)
app.command()(inspect.logs)
app.command()(tracking.track)
app.command()(tracking.tensorboard)
app.command()(clean.clean)
app.command()(diagnose.sim)
app.command()(diagnose.doctor)


def main() -> None:
    """The command `hopyard`."""
    app()
