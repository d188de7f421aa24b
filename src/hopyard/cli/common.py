"""What all verbs of the command line share: exit codes, printing of errors, signals, tables."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, ParamSpec

import typer

from hopyard.errors import HopyardError, UsageError
from hopyard.text import escaped, escaped_json, one_line

P = ParamSpec("P")

GOOD, FAILED, USAGE, SOME, RESOURCES, CTRL_C, TERM = 0, 1, 2, 3, 4, 130, 143
STATUS = {"completed": GOOD, "partial": SOME, "failed": FAILED}
"""How a run ended → exit code."""

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory or URL, or its name under runs/.")]
Trust = Annotated[bool, typer.Option("--trust", help="Open the run's pickle even where other users may write it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Plain values, for programs.")]


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM: it ends a run as cleanly as Ctrl-C does."""


def verb(work: Callable[P, int | None]) -> Callable[P, None]:
    """Make `work` a verb: it returns the exit code; what it raises becomes one, and is printed to standard error."""

    @functools.wraps(work)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = work(*args, **kwargs) or GOOD
        except HopyardError as error:
            say("\n".join([f"error: {error}", *getattr(error, "__notes__", ())]))
            code = error.exit_code
        except Terminated:
            say("terminated")
            code = TERM
        except KeyboardInterrupt:
            say("interrupted")
            code = CTRL_C
        raise typer.Exit(code)

    return guarded


IN_IMAGE = "image:"
"""Before the path of a script that is in the image of the pods."""


def require_script(script: Path, name: str, in_cluster: bool = False) -> None:
    """Raise UsageError unless there is such a script. `name`: of the verb, for the message. With `in_cluster` it may be
    in the image."""
    if script.is_file() or (in_cluster and str(script).startswith(IN_IMAGE)):
        return
    if str(script).startswith("-"):
        raise UsageError(
            f"hopyard {name}: no such option: {script}; `hopyard {name} --help` lists them, and options of the script "
            "come after its name"
            + ("; `hopyard launch --roles … SCRIPT` runs a distributed program" if name == "run" else "")
        )
    raise UsageError(f"{script}: no such file; SCRIPT must be the path of a Python script")


def echo(text: str, nl: bool = True, err: bool = False) -> None:
    """Print, to standard output or error. A terminal shows control characters in the text, and does not obey them."""
    typer.echo(escaped(text), nl=nl, err=err)


def say(text: str) -> None:
    """Print to standard error."""
    echo(text, err=True)


def terminable() -> None:
    """Make SIGTERM raise `Terminated` from now on."""
    signal.signal(signal.SIGTERM, _term)


def _term(number: int, frame: FrameType | None) -> None:
    raise Terminated


def as_text(value: Any) -> str:
    """Return `value` as JSON; NaN and infinities, which JSON lacks, are null."""
    import msgspec

    return escaped_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def columns(rows: Iterable[Iterable[str]], indent: str = "") -> None:
    """Print a table of texts."""
    from hopyard.views import words

    table = [[one_line(cell) for cell in row] for row in rows]
    for line in words.aligned(table, left=range(len(table[0]))):
        echo(f"{indent}{line}")
