"""Verbs that read: ls, show, logs. They unpickle nothing and import no framework."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopyard import checks
from hopyard.cli.cluster import DriverName, forward, print_output
from hopyard.cli.common import GOOD, AsJson, RunName, as_text, columns, echo, say, verb
from hopyard.errors import HopyardError, RunDirectoryError, UsageError

if TYPE_CHECKING:
    from hopyard.core.runs.events import Line
    from hopyard.core.runs.machine import Machine
    from hopyard.store.layout import Layout


@verb
def list_runs(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the runs, or its URL.")] = "runs",
    as_json: AsJson = False,
    driver: DriverName = None,
) -> int:
    """List runs."""
    if driver is not None:
        return forward(driver, "ls", directory, *(["--json"] if as_json else []))

    directory = checks.path("DIR", directory, "a path or URL")
    rows = _rows_at(directory) if "://" in directory else [_row(layout) for layout in _in(directory)]
    if as_json:
        echo(as_text(rows))
        return GOOD
    if not rows:
        echo(f"no runs in {directory}")
        return GOOD
    from hopyard.views import words

    head = ["name", "status", "trials", "epochs", "best", "started", "duration"]
    lines = [head]
    for row in rows:
        best = "" if row.get("best") is None else f"{row['metric']} {words.number(row['best'])}"
        started = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["started"])) if row.get("started") else ""
        duration = words.duration(row.get("seconds")) if "seconds" in row else row.get("error", "")
        trials = (
            f"{row['completed'] + row.get('stopped', 0)}/{row['trials']}" if "trials" in row else row.get("program", "")
        )
        lines.append([row["name"], row["status"], trials, str(row.get("epochs", "")), best, started, duration])
    columns(lines)
    return GOOD


def _rows_at(url: str) -> list[dict[str, Any]]:
    """Return the rows of the runs and programs at a URL and directly below it."""
    from hopyard.filesystems import absolute
    from hopyard.store.layout import find
    from hopyard.store.urls.working import runs

    rows = []
    for each in runs(absolute(url)):
        try:
            rows.append(_row(find(each, programs=True)))
        except HopyardError as error:
            name = each.rpartition("/")[2]
            rows.append({"name": name, "directory": each, "status": "damaged", "error": str(error)})
    return rows


def _in(directory: str) -> list[Layout]:
    """Return the runs and programs in a folder of this host."""
    from hopyard.store.layout import Layout

    folder = Path(directory)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such directory; `hopyard ls DIR` lists the runs in DIR")
    layouts = [Layout(folder), *(Layout(path) for path in sorted(folder.iterdir()) if path.is_dir())]
    return [layout for layout in layouts if _exists(layout)]


def _exists(layout: Layout) -> bool:
    """Return whether there is a run or a program, or a directory that this user may not read."""
    try:
        return layout.exists or layout.program.exists()
    except OSError:
        return True


def _row(layout: Layout) -> dict[str, Any]:
    """Return the row of a run or program in `ls`."""
    try:
        return _run_row(layout) if layout.exists else _program_row(layout)
    except OSError as error:
        return {"name": layout.root.name, "status": "not readable", "error": str(error.strerror)}


def _run_row(layout: Layout) -> dict[str, Any]:
    from hopyard.store.standing import read_summary, standing
    from hopyard.views.report import brief
    from hopyard.views.timeline import Chart

    facts = read_summary(layout)
    if facts is None:
        timeline = Chart(keep=False)
        try:
            machine = _fold(layout, timeline.see)
        except HopyardError as error:
            return {"name": layout.root.name, "status": "damaged", "error": str(error)}
        facts = brief(timeline, machine)
    status = standing(layout, facts.pop("folded"))
    return {"name": layout.root.name, "directory": layout.url or str(layout.root), "status": status, **facts}


def _program_row(layout: Layout) -> dict[str, Any]:
    from hopyard.core.programs.events import CODEC
    from hopyard.store.journal import read
    from hopyard.store.standing import standing
    from hopyard.views.program import summarize

    try:
        summary = summarize(read(layout.program, CODEC))
    except HopyardError as error:
        return {"name": layout.root.name, "status": "damaged", "error": str(error)}
    return {
        "name": layout.root.name,
        "directory": layout.url or str(layout.root),
        "status": standing(layout, summary.status),
        "program": summary.name,
        "tasks": len(summary.tasks),
        "started": summary.began,
        "seconds": summary.last - summary.began,
    }


@verb
def show(
    run: RunName,
    as_json: AsJson = False,
    driver: DriverName = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a Chrome trace, for ui.perfetto.dev; no report.")
    ] = None,
    prometheus: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the totals for node_exporter's textfile collector; no report."),
    ] = None,
) -> int:
    """Show the report of a run: its best trial, all trials, how workers spent their time."""
    if trace is not None or prometheus is not None:
        if driver is not None:
            raise UsageError("--trace and --prometheus read a run of this host: leave --driver out, or call them there")
        _write_files(run, trace, prometheus)
        if not as_json:
            return GOOD
    if driver is not None:
        return forward(driver, "show", run, *(["--json"] if as_json else []))
    from hopyard.core.runs.codec import CODEC
    from hopyard.data.manifest import sizes_in
    from hopyard.store.journal import read
    from hopyard.store.layout import find
    from hopyard.store.standing import standing
    from hopyard.tracking.progress import progress_of, sentence
    from hopyard.views.report import facts, report, summary

    layout = find(run, programs=True)
    if not layout.exists:
        _show_program(layout, as_json)
        return GOOD
    last: deque[Line] = deque(maxlen=1)
    machine = _fold(layout, last.append)
    status = standing(layout, machine.status)
    about = _about(layout)
    about["directory"] = layout.shown
    sizes = sizes_in(layout.manifest)
    trackers = progress_of(layout, about.get("track", ()))
    if as_json:
        state = {
            "directory": layout.url or str(layout.root),
            **facts(read(layout.journal, CODEC), machine, status, sizes),
        }
        state["trackers"] = trackers
        echo(as_text({**state, "about": about, "spec": machine.spec, "trials": summary(machine, status)}))
        return GOOD
    echo(report(read(layout.journal, CODEC), machine, about, status, sizes), nl=False)
    if layout.gantt.exists():
        echo(f"Chart: {layout.shown}/{layout.gantt.name}")
    for each in trackers:
        echo(f"{each.track}: {sentence(layout, each, last[0].at, status)}")
    return GOOD


def _write_files(run: str, trace: Path | None, prometheus: Path | None) -> None:
    from hopyard.driver.runs.run import load

    opened = load(run)
    if trace is not None:
        opened.trace(trace)
    if prometheus is not None:
        from hopyard.views.prometheus import textfile

        part = None
        try:
            descriptor, part = tempfile.mkstemp(prefix=f".{prometheus.name}.", dir=prometheus.parent)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:  # the collector reads all that ends with .prom
                os.fchmod(descriptor, 0o644)  # as another user
                file.write(textfile(opened.summary()))
            Path(part).replace(prometheus)
        except OSError as error:
            if part is not None:
                Path(part).unlink(missing_ok=True)
            raise UsageError(
                f"--prometheus {prometheus}: {error.strerror}; give a file in a folder that this user may write to"
            ) from error


def _about(layout: Layout) -> dict[str, Any]:
    """Return the content of `run.json`; empty where there is none. Raise RunDirectoryError where it is damaged."""
    try:
        about = json.loads(layout.about.read_bytes()) if layout.about.exists() else {}
    except ValueError as error:
        raise RunDirectoryError(f"{layout.about}: {error}; copy it again from where it is whole") from error
    if not isinstance(about, dict):
        raise RunDirectoryError(f"{layout.about}: it must hold an object; copy it again from where it is whole")
    return about


def _show_program(layout: Layout, as_json: bool) -> None:
    from hopyard.core.programs.events import CODEC
    from hopyard.store.journal import read
    from hopyard.store.standing import standing
    from hopyard.views import program

    summary = program.summarize(read(layout.program, CODEC))
    summary.set_status(standing(layout, summary.status))
    echo(as_text(asdict(summary)) if as_json else program.report(summary, layout.root), nl=as_json)


@verb
def logs(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run's directory or URL, or its name under runs/. With --driver it may be left out."
        ),
    ] = None,
    slot: Annotated[int | None, typer.Option(help="Show only the log of this slot.")] = None,
    tail: Annotated[
        int | None, typer.Option(min=0, metavar="LINES", help="Show only so many last lines of each log.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on showing new lines until the run ends.")] = False,
    driver: DriverName = None,
) -> int:
    """Show what the workers printed, and the tracebacks of trials that failed there; with --driver alone, what that
    driver printed."""
    if driver is not None:
        return _logs_of(driver, run, slot, tail, follow)
    if run is None:
        raise UsageError("RUN is missing: a run's directory, or its name under runs/; or --driver NAME")
    from hopyard.driver.logs import LogStream
    from hopyard.store.layout import find
    from hopyard.store.standing import held

    layout = find(run, programs=True)
    if slot is not None and not layout.log(slot).exists() and not (follow and held(layout.lock)):
        available = ", ".join(path.name for path in sorted(layout.logs.glob("*.log"))) or "none"
        raise UsageError(f"{layout.root}: no log of slot {slot}; there are: {available}")
    tails = {} if tail is None else {path: _tail(path, tail) for path in layout.logs.glob("*.log")}
    stream, shown = LogStream(tails, bars=True), ""
    while True:
        live = follow and held(layout.lock)  # asked before reading, so that everything written until then is shown
        paths = [layout.log(slot)] if slot is not None else sorted(layout.logs.glob("*.log"), key=_by_slot)
        for name, line in stream.lines(((path.name, path) for path in paths), not live):
            if len(paths) > 1 and name != shown:
                echo(f"==> {name} <==")
                shown = name
            echo(line)
        if not live:
            break
        time.sleep(0.3)
    if not any(path.stat().st_size for path in paths if path.exists()):
        say(f"{layout.root}: no worker has printed anything{'' if paths else ' (an inline run has no logs)'}")
    return GOOD


def _logs_of(driver: str, run: str | None, slot: int | None, tail: int | None, follow: bool) -> int:
    """Show the logs of a run that a driver in the cluster has, or what that driver itself printed."""
    if run is None:
        if slot is not None:
            raise UsageError("--slot is for the workers of a RUN, which is missing")
        print_output(driver, follow, tail)
        return GOOD
    options = {"--slot": slot, "--tail": tail}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return forward(driver, "logs", run, *words, *(["--follow"] if follow else []))


def _tail(path: Path, lines: int) -> int:
    """Return at which byte the last lines of a log begin."""
    start = path.stat().st_size
    if start:
        with path.open("rb") as file, mmap.mmap(file.fileno(), start, access=mmap.ACCESS_READ) as data:
            for _ in range(lines):
                start = data.rfind(b"\n", 0, max(0, start - 1)) + 1
                if not start:
                    break
    return start


def _by_slot(path: Path) -> tuple[int, str]:
    digits = path.stem.rpartition("-")[2]
    return (int(digits) if digits.isdigit() else -1), path.name


def _fold(layout: Layout, watch: Callable[[Line], object] = lambda line: None) -> Machine:
    """Return the machine at the end of the journal; `watch` is called with each line on the way."""
    from hopyard.core.runs.codec import CODEC
    from hopyard.core.runs.machine import fold
    from hopyard.store.journal import read, whole_bytes

    def watched() -> Iterator[Line]:
        for line in read(layout.journal, CODEC):
            watch(line)
            yield line

    if not whole_bytes(layout.journal):
        raise RunDirectoryError(f"{layout.root}: the journal is empty, nothing has happened in this run")
    return fold(watched())
