"""The command line: one word a verb.

Only here handlers for signals are installed and errors become exit codes: 0 good, 1 the run failed, 2 usage, 3 some
trials failed, 4 no resources, 130 Ctrl-C, 143 TERM. Everything is imported when its verb needs it, so that
`hopyard --help` is there at once.
"""

import typer

from hopyard.cli import clean as cleaning
from hopyard.cli import diagnose as checking
from hopyard.cli import inspect as reading
from hopyard.cli import runs as training

app = typer.Typer(
    name="hopyard",
    help="Train and select deep nets by model hopping: exactly, and without loss.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})(training.run)
app.command()(training.demo)
app.command()(training.resume)
app.command()(training.replay)
app.command("ls")(reading.list_runs)
app.command()(reading.show)
app.command()(reading.logs)
app.command()(cleaning.clean)
app.command()(checking.sim)
app.command()(checking.doctor)


def main() -> None:
    """The command `hopyard`."""
    app()
