"""The command line: one word a verb.

Only here handlers for signals are installed and errors become exit codes: 0 good, 1 the run failed, 2 usage, 3 some
trials failed, 4 no resources, 130 Ctrl-C, 143 TERM. `ls`, `show` and `logs` only read: they unpickle nothing and import
no framework. Everything is imported when its verb needs it, so that `hopyard --help` is there at once.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from hopyard.errors import HopyardError, UsageError

if TYPE_CHECKING:
    from hopyard.core.events import Line
    from hopyard.core.machine import Machine
    from hopyard.store.layout import Layout

P = ParamSpec("P")

GOOD, FAILED, USAGE, SOME, RESOURCES, CTRL_C, TERM = 0, 1, 2, 3, 4, 130, 143
STATUS = {"completed": GOOD, "partial": SOME, "failed": FAILED}
"""How a run ended → exit code."""

app = typer.Typer(
    name="hopyard",
    help="Train and select deep nets by model hopping: exactly, and without loss.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's directory, or its name under runs/.")]
AsJson = Annotated[bool, typer.Option("--json", help="Plain values, for programs.")]


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a run as cleanly as Ctrl-C does."""


def main() -> None:
    """The command `hopyard`."""
    app()


def _verb(work: Callable[P, int | None]) -> Callable[P, None]:
    """A verb: what it gives is the exit code; what it raises becomes one, with a clear block on standard error."""

    @functools.wraps(work)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = work(*args, **kwargs) or GOOD
        except HopyardError as error:
            _say(f"error: {error}")
            code = error.exit_code
        except Terminated:
            _say("terminated")
            code = TERM
        except KeyboardInterrupt:
            _say("interrupted")
            code = CTRL_C
        raise typer.Exit(code)

    return guarded


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _term(number: int, frame: FrameType | None) -> None:
    raise Terminated


# ------------------------------------------------------------------------------------------------ verbs that train


@app.command(context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True})
@_verb
def run(
    script: Annotated[
        Path,
        typer.Argument(metavar="SCRIPT", help="A Python program that calls hy.select or hy.fit; with --roles, any."),
    ],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="For the script.")] = None,
    roles: Annotated[
        str | None, typer.Option(help="Run it as a distributed program: worker=4,ps=1 (or worker=2:4 for a range).")
    ] = None,
    engine: Annotated[str, typer.Option(help="Where its tasks run: local or spark.")] = "local",
    until: Annotated[str | None, typer.Option(help="Whose end is its end: chief, workers or all.")] = None,
    restarts: Annotated[int, typer.Option(min=0, help="How often it is started again when a task fails.")] = 0,
    gpus: Annotated[int, typer.Option(min=0, help="Of each chief and worker.")] = 0,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="TensorBoard on the program's directory.")] = False,
    tensorflow1: Annotated[bool, typer.Option("--tensorflow1", help="Show it tf.compat.v1 as tensorflow.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Of the program; default: a fresh one under runs/.")] = None,
) -> int:
    """Run a script; the exit code says how its runs ended. With --roles each task of a program runs it."""
    if not script.is_file():
        raise UsageError(f"{script}: no such file; the path of a Python script is wanted")
    signal.signal(signal.SIGTERM, _term)
    if roles is not None:
        wanted = _roles(roles, gpus)
        return _program(
            script,
            arguments or [],
            wanted,
            _engine(engine, wanted),
            until=until,
            restarts=restarts,
            tensorboard=tensorboard,
            tensorflow1=tensorflow1,
            directory=directory,
        )
    if engine != "local" or until or restarts or tensorboard or tensorflow1 or gpus or directory:
        raise UsageError(
            "--engine, --until, --restarts, --gpus, --tensorboard, --tensorflow1 and --directory go with --roles"
        )
    from hopyard.frameworks import quiet

    quiet()
    sys.argv = [str(script), *(arguments or [])]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            if isinstance(end.code, int):
                return end.code
            _say(str(end.code))
            return FAILED
    except (HopyardError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - the script's own, shown as Python shows it
        _script_trace(error, script)
        return FAILED
    return _ended()


def _roles(text: str, gpus: int) -> dict[str, Any]:
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
    return made


def _engine(name: str, roles: dict[str, Any]) -> Any:
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


def _program(script: Path, arguments: list[str], roles: dict[str, Any], engine: Any, **how: Any) -> int:
    from hopyard.driver.launch import launch

    program = launch(script, arguments, roles=roles, engine=engine, **how)
    typer.echo(f"{program.directory}", err=True)
    if how["tensorboard"]:
        typer.echo(f"TensorBoard: {program.show_tensorboard() or 'not up; see the logs'}", err=True)
    status = program.wait()
    typer.echo(f"{program.directory}: {status}", err=True)
    return GOOD if status == "done" else FAILED


def _script_trace(error: Exception, script: Path) -> None:
    """The traceback, from the script's first line on: what is above it is ours."""
    trace = error.__traceback__
    while trace is not None and Path(trace.tb_frame.f_code.co_filename) != script:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace or error.__traceback__)


def _ended() -> int:
    """The exit code of the runs of this process; those in the background are waited for."""
    driver = sys.modules.get("hopyard.driver.drive")
    if driver is None:
        return GOOD
    for run in list(driver.DRIVEN):
        with contextlib.suppress(HopyardError):
            run.wait()
    codes = [outcome.code or STATUS.get(outcome.status, GOOD) for outcome in driver.OUTCOMES]
    return next((code for code in (FAILED, *set(codes) - {FAILED, SOME, GOOD}, SOME) if code in codes), GOOD)


@app.command()
@_verb
def demo(
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    trials: Annotated[int, typer.Option(min=1, help="Configurations.")] = 16,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the flights.")] = 3,
    directory: Annotated[Path | None, typer.Option(help="Of the run; default: a fresh one under runs/.")] = None,
) -> int:
    """Which of 327,346 flights from New York come late? Finds a net that knows, in a minute or two."""
    from hopyard.demo import flights_late

    signal.signal(signal.SIGTERM, _term)
    return STATUS[flights_late(workers, trials, epochs, directory)]


@app.command()
@_verb
def resume(
    run: RunName,
    workers: Annotated[
        int | None, typer.Option(help="Go on with so many processes of this host, wherever the run was started.")
    ] = None,
) -> int:
    """Go on with a run that was interrupted."""
    from hopyard.driver.start import resume as go_on
    from hopyard.engines.local import Local

    signal.signal(signal.SIGTERM, _term)
    found = go_on(run, engine=None if workers is None else Local(workers=workers))
    typer.echo(f"{found.directory}: {found.status}")
    return STATUS.get(found.status, GOOD)


@app.command()
@_verb
def replay(run: RunName) -> int:
    """Do a run again from its journal and compare every State, bit by bit."""
    from hopyard.driver.replay import replay as do_again

    signal.signal(signal.SIGTERM, _term)
    found = do_again(run)
    if found.different:
        _say("\n".join([f"error: {len(found.different)} of {found.states} States differ", *found.different]))
        return FAILED
    typer.echo(f"{found.states} States, each the same to the last bit")
    return GOOD


# ------------------------------------------------------------------------------------------------ verbs that read


@app.command("ls")
@_verb
def list_runs(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the runs are.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List runs."""
    from hopyard.store.layout import Layout

    if not directory.is_dir():
        raise UsageError(f"{directory}: no such directory; `hopyard ls DIR` lists the runs in DIR")
    layouts = [Layout(path) for path in sorted(directory.iterdir()) if path.is_dir() and _is_there(Layout(path))]
    if _is_there(Layout(directory)):
        layouts.insert(0, Layout(directory))
    rows = [_row(layout) for layout in layouts]
    if as_json:
        typer.echo(_json(rows))
        return
    if not rows:
        typer.echo(f"no runs in {directory}")
        return
    from hopyard.views import words

    head = ["name", "status", "trials", "epochs", "best", "started", "duration"]
    lines = [head]
    for row in rows:
        best = "" if row.get("best") is None else f"{row['metric']} {words.number(row['best'])}"
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started"])) if row.get("started") else ""
        lasted = words.duration(row.get("seconds")) if "seconds" in row else row.get("error", "")
        trials = f"{row['completed']}/{row['trials']}" if "trials" in row else row.get("program", "")
        lines.append([row["name"], row["status"], trials, str(row.get("epochs", "")), best, started, lasted])
    _columns(lines)


def _is_there(layout: Layout) -> bool:
    """Whether it is a run or a program."""
    return layout.exists or layout.program.exists()


def _row(layout: Layout) -> dict[str, Any]:
    """One run or program for `ls`."""
    if not layout.exists:
        return _program_row(layout)
    from hopyard.views import words
    from hopyard.views.chart import Chart

    try:
        lines, machine = _fold(layout)
    except HopyardError as error:
        return {"name": layout.root.name, "status": "damaged", "error": str(error)}
    found = Chart(keep=False)
    for line in lines:
        found.see(line)
    best = words.best(machine)
    return {
        "name": layout.root.name,
        "directory": str(layout.root),
        "status": _status(layout, machine),
        "completed": sum(trial.status == "completed" for trial in machine.trials.values()),
        "failed": sum(trial.status == "failed" for trial in machine.trials.values()),
        "trials": machine.spec.trials if machine.spec.trials is not None else len(machine.trials),
        "epochs": machine.spec.epochs,
        "metric": machine.spec.metric,
        "best": best.value(machine.spec.metric) if best is not None else None,
        "started": found.began,
        "seconds": found.elapsed(found.at),
    }


def _program_row(layout: Layout) -> dict[str, Any]:
    from hopyard.views.program import read, story

    try:
        told = story(read(layout.program))
    except HopyardError as error:
        return {"name": layout.root.name, "status": "damaged", "error": str(error)}
    return {
        "name": layout.root.name,
        "directory": str(layout.root),
        "status": _program_status(layout, told.status),
        "program": told.name,
        "tasks": len(told.tasks),
        "started": told.began,
        "seconds": told.last - told.began,
    }


def _program_status(layout: Layout, status: str) -> str:
    over = status in ("done", "failed", "stopped")
    return status if over or _live(layout) else "interrupted"


@app.command()
@_verb
def show(run: RunName, as_json: AsJson = False) -> None:
    """The report of a run: the best, all trials, the account."""
    from hopyard.store.layout import find
    from hopyard.views.report import facts, report, summary

    layout = find(run, programs=True)
    if not layout.exists:
        _show_program(layout, as_json)
        return
    lines, machine = _fold(layout)
    about = json.loads(layout.about.read_bytes()) if layout.about.exists() else {}
    about["directory"] = str(layout.root)
    if as_json:
        state = {"directory": str(layout.root), **facts(lines, machine), "status": _status(layout, machine)}
        typer.echo(_json({**state, "about": about, "spec": machine.spec, "trials": summary(machine)}))
        return
    typer.echo(report(lines, machine, about), nl=False)
    if layout.gantt.exists():
        typer.echo(f"Chart: {layout.gantt}")


def _show_program(layout: Layout, as_json: bool) -> None:
    from hopyard.views import program

    told = program.story(program.read(layout.program))
    told.status = _program_status(layout, told.status)
    typer.echo(_json(asdict(told)) if as_json else program.report(told, layout.root), nl=as_json)


@app.command()
@_verb
def logs(
    run: RunName,
    slot: Annotated[int | None, typer.Option(help="Only this slot's.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
) -> None:
    """What the workers printed."""
    from hopyard.store.layout import find

    layout = find(run, programs=True)
    if slot is not None and not layout.log(slot).exists() and not (follow and _live(layout)):
        there = ", ".join(path.name for path in sorted(layout.logs.glob("*.log"))) or "none"
        raise UsageError(f"{layout.root}: no log of slot {slot}; there are: {there}")
    read: dict[Path, int] = {}
    named = [""]
    while True:
        live = follow and _live(layout)  # asked before reading: what was written until then is still shown
        paths = [layout.log(slot)] if slot is not None else sorted(layout.logs.glob("*.log"), key=_by_slot)
        for path in paths:
            if path.exists():
                read[path] = _show_rest(path, read.get(path, 0), named, len(paths) > 1)
        if not live:
            return
        time.sleep(0.3)


def _by_slot(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("-")[2]
    return (int(digits) if digits.isdigit() else -1), path.name


def _show_rest(path: Path, start: int, named: list[str], several: bool) -> int:
    """Print a log from `start` on, whole lines; under its name when there are several. Gives where it stopped."""
    with path.open("rb") as file:
        file.seek(start)
        data = file.read()
    if not data:
        return start
    if several and named[0] != path.name:
        typer.echo(f"==> {path.name} <==")
        named[0] = path.name
    text = data.decode(errors="replace")
    typer.echo(text, nl=not text.endswith("\n"))
    return start + len(data)


def _fold(layout: Layout) -> tuple[list[Line], Machine]:
    from hopyard.core.machine import fold
    from hopyard.errors import RunDirectoryError
    from hopyard.store.journal import read

    lines, _ = read(layout.journal)
    if not lines:
        raise RunDirectoryError(f"{layout.root}: the journal is empty, nothing has happened in this run")
    return lines, fold(lines)


def _live(layout: Layout) -> bool:
    """Whether a driver holds the run's lock. The lock is asked, not taken: nothing is written."""
    import fcntl

    try:
        file = os.open(layout.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _status(layout: Layout, machine: Machine) -> str:
    """ "running" while a driver lives, "interrupted" when it ended before the run did."""
    if machine.status in STATUS:
        return machine.status
    return "running" if _live(layout) else "interrupted"


# ------------------------------------------------------------------------------------------------ sim, doctor


@app.command()
@_verb
def sim(
    slots: Annotated[int, typer.Option(min=1)] = 8,
    trials: Annotated[int, typer.Option(min=1)] = 16,
    partitions: Annotated[int, typer.Option(min=1)] = 8,
    epochs: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(min=1e-6, help="A trial takes over a partition, on average.")] = 1.0,
    sigma: Annotated[float, typer.Option(min=0, help="Spread of the trials: of the logarithm of their seconds.")] = 0.0,
    noise: Annotated[float, typer.Option(min=0, help="Spread of the units of a trial, relative.")] = 0.1,
    pinned: Annotated[bool, typer.Option("--pinned", help="Each slot holds its own partitions only.")] = False,
    as_json: AsJson = False,
) -> None:
    """How long would it take? The scheduler itself, in virtual time."""
    from hopyard.sim import predict

    found = predict(slots, trials, partitions, epochs, seconds, sigma=sigma, noise=noise, pinned=pinned)
    if as_json:
        typer.echo(_json(asdict(found)))
        return
    from hopyard.views import words

    rows = [
        ("makespan", words.duration(found.makespan)),
        ("lower bound", f"{words.duration(found.bound)}, {found.ratio:.3f} times that is needed"),
        ("idle share", f"{found.idle_share:.1%}"),
        ("units", f"{found.units:,}"),
    ]
    typer.echo(f"{words.count(trials, 'trial')} × {words.count(epochs, 'epoch')} on {words.count(slots, 'slot')}")
    _columns([[name, text] for name, text in rows], indent="  ")


@app.command()
@_verb
def doctor(
    as_json: AsJson = False,
    env: Annotated[bool, typer.Option("--env", help='Only the lines to export for Spark: eval "$(… --env)".')] = False,
    spark: Annotated[bool, typer.Option(help="Start a Spark to see that it works; takes 10 s or more.")] = True,
) -> None:
    """What is here, what is missing, and what to do about it."""
    from hopyard.doctor import examine, exports

    if env:
        for line in exports(os.environ):
            typer.echo(line)
        return
    found = examine(spark=spark)
    if as_json:
        typer.echo(_json([asdict(finding) for finding in found]))
        return
    width = max(len(finding.name) for finding in found)
    for finding in found:
        colour = typer.colors.GREEN if finding.ok else typer.colors.YELLOW
        typer.secho("ok  " if finding.ok else "warn", fg=colour, nl=False)
        typer.echo(f"  {finding.name.ljust(width)}  {finding.text}")
        if finding.advice:
            typer.echo(f"      {' ' * width}  → {finding.advice}")


def _json(value: Any) -> str:
    """JSON; NaN and infinities, which it lacks, are null."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _columns(rows: Iterable[Iterable[str]], indent: str = "") -> None:
    table = [list(row) for row in rows]
    widths = [max(len(row[n]) for row in table) for n in range(len(table[0]))]
    for row in table:
        typer.echo(indent + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip())
