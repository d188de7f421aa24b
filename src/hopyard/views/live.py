"""The one live table of a run: drawn in place on a terminal and in a notebook, and printed as plain lines elsewhere.

It has no thread. The driver calls `see` after each batch of events and about once a second when nothing happens; `see`
draws, at most four times a second, and never takes more than a twentieth of the time.
"""

from __future__ import annotations

import importlib
import io
import sys
import time
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from hopyard.core.liveness import Stall
from hopyard.core.runs.events import Began, Checked, Granted, Line, Paused, Resumed, Retried, Stopped
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec, Unit
from hopyard.text import escaped
from hopyard.views import words
from hopyard.views.timeline import Chart

EVERY = 0.25
"""The least number of seconds between two drawings."""
SHARE = 0.05
"""The share of the driver's time that drawing may take."""
WARNINGS = 5
"""The most warnings that are shown at the end."""
TRACES = 3
"""The most tracebacks that are shown; `hopyard show` and `hopyard logs` have more."""
METRICS = 4
"""The greatest number of columns for metrics."""
_EIGHTHS: tuple[str, ...] = ("", *"▏▎▍▌▋▊▉")
_COLOURS = {
    "running": "cyan",
    "validating": "cyan",
    "hopping": "dim",
    "storing": "dim",
    "stalled": "yellow",
    "paused": "dim",
    "completed": "green",
    "stopped": "blue",
    "failed": "red",
    "waiting": "dim",
    "delayed": "yellow",
}


class Table:
    """The live table of a run.

    Args:
        spec: the run's.
        console: where to draw; default: the terminal's standard error, so that a script's own output stays clean.
        clock: seconds since the epoch of Unix, the clock of the journal.
        stalls: returns the slots that make no progress.
    """

    def __init__(
        self,
        spec: RunSpec,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.time,
        stalls: Callable[[], Mapping[int, Stall]] = dict,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._stalls = stalls
        self._stalled: Mapping[int, Stall] = {}
        """The result of `stalls` when it was last called."""
        self._chart = Chart(keep=False)
        self._differing = words.Differing()
        self._trials = 0
        self._epochs: dict[int, set[int]] = {}
        """Trial → the epochs that were printed as plain lines."""
        self._waits_for: dict[int, int] = {}
        """Trial → the first epoch that was not printed; those after it wait for it."""
        self._failed: set[int] = set()
        self._traces: dict[str, int] = {}
        """Different tracebacks → the first trial that failed with it."""
        self._decision: Paused | Granted | Stopped | None = None
        """What the search decided last."""
        self._marks = 0
        self._drawn_at = 0.0
        self._pause = 0.0
        self._begun = False
        self._closed = False
        self._live: Live | None = None
        self._handle: Any = None
        self._console = console if console is not None else Console(stderr=True)
        self._output: Literal["terminal", "notebook", "plain"] = "plain"
        if console is None and _notebook():
            self._output = "notebook"
        elif self._console.is_terminal and not self._console.is_dumb_terminal:
            self._output = "terminal"

    def see(self, lines: list[Line], machine: Machine) -> None:
        """Show what happened since the last call. What the machine knows beyond these lines (of a resumed run) is
        drawn, but not printed again as plain lines.

        Takes microseconds when it does not draw.
        """
        if not self._begun:
            self._begun = True
            if not lines or not isinstance(lines[0], Began):
                self._skip(machine)
        touched: dict[int, None] = {}
        for line in lines:
            trial = self._chart.see(line)
            if trial >= 0:
                touched[trial] = None
            if isinstance(line, Resumed):
                self._skip(machine)
            elif isinstance(line, Retried):
                self._see_retried(line, machine)
            elif isinstance(line, (Paused, Granted, Stopped)):
                self._decision = line
        if self._output == "plain":
            self._print_stalls(machine)
            self._print_news(lines, touched, machine)
            return
        for number in touched:
            if number in machine.trials and self._passed(machine.trials[number], machine):
                self._see_trace(machine.trials[number])
        now = self._clock()
        if 0 <= now - self._drawn_at < self._pause or self._closed:
            return
        began = time.perf_counter()
        self._stalled = self._stalls()
        self._draw(machine, now)
        self._drawn_at = now
        self._pause = max(EVERY, (time.perf_counter() - began) / SHARE)

    def close(self, machine: Machine) -> None:
        """Draw for the last time; the table stays on the screen."""
        if self._closed:
            return
        self._closed = True
        if self._output == "plain":
            for trial in machine.trials.values():
                self._print_epochs(trial, machine)
            self._print(self._end(machine))
            return
        self._draw(machine, self._chart.at or self._clock())
        if self._live is not None:
            self._live.stop()
        elif self._output == "notebook":
            return
        self._print(self._end(machine))

    # ---------------------------------------------------------------- plain lines

    def _print(self, text: str) -> None:
        if self._output != "plain":
            self._console.print(_text(text), soft_wrap=True)
            return
        file = self._console.file  # rich takes longer for a plain line than all else that a small unit costs the driver
        file.write(f"{escaped(text)}\n")
        file.flush()

    def _skip(self, machine: Machine) -> None:
        """Count everything from before a resume as printed."""
        self._epochs = {trial.id: set(trial.history) for trial in machine.trials.values()}
        self._waits_for = {}
        self._failed = {trial.id for trial in machine.trials.values() if trial.status == "failed"}
        self._marks = len(self._chart.marks)

    def _see_retried(self, line: Retried, machine: Machine) -> None:
        """Let the next epochs and the next failure of a trial that is tried again be printed, as if they were new."""
        self._failed.discard(line.trial)
        trial = machine.trials.get(line.trial)
        if trial is not None and line.trial in self._epochs:
            self._epochs[line.trial] &= set() if line.recipe else set(trial.history)
            self._waits_for.pop(line.trial, None)

    def _print_news(self, lines: list[Line], touched: dict[int, None], machine: Machine) -> None:
        for line in lines:
            if isinstance(line, Checked) and machine.status == "running":
                touched |= {trial.id: None for trial in machine.trials.values() if trial.status == "failed"}
                slots = words.count(len(machine.workers), "worker")
                if machine.spec.members > 1:
                    slots = f"gangs of {machine.spec.members} workers"
                self._print(f"training: {self._scale(machine)}, on {slots}")
        marks, self._marks = self._chart.marks[self._marks :], len(self._chart.marks)
        for mark in marks:
            if mark.what in ("interrupted", "stopped"):
                self._print(f"{mark.what}: {mark.text}")
            elif mark.what in ("lost", "resumed", "shrunk"):
                self._print(mark.text)
        for number in touched:
            trial = machine.trials.get(number)
            if trial is None:
                continue
            self._print_epochs(trial, machine)
            if trial.status == "failed" and number not in self._failed and self._passed(trial, machine):
                self._failed.add(number)
                self._print(f"trial {number}  failed ({trial.fault}): {trial.error}  {words.named(trial.config)}")
                self._see_trace(trial)
        for line in lines:
            if isinstance(line, (Paused, Stopped)) or (isinstance(line, Granted) and machine.search.rungs()):
                self._print(words.decision(machine, line))

    @staticmethod
    def _passed(trial: TrialRecord, machine: Machine) -> bool:
        """Whether preflight has passed; if no trial passes it, the run's error says why."""
        return machine.status == "running" or bool(machine.names) or bool(trial.history)

    def _see_trace(self, trial: TrialRecord) -> None:
        """Print what a trial raised, once for all trials that raise the same. The error of a run that has one trial
        says it."""
        trace = trial.trace.strip()
        if trial.status != "failed" or not trace or trace in self._traces or self.spec.trials == 1:
            return
        self._traces[trace] = trial.id
        if len(self._traces) <= TRACES and self._output != "notebook":
            self._print(self._raised(trace))

    def _raised(self, trace: str) -> str:
        return f"What trial {self._traces[trace]} raised:\n{trace}"

    def _print_stalls(self, machine: Machine) -> None:
        """Print each stall once."""
        before, self._stalled = self._stalled, self._stalls()
        for slot, stall in self._stalled.items():
            if slot not in before:
                limit = machine.spec.timeouts.stall_timeout
                self._print(
                    f"worker {slot} stalled: no progress for {stall.seconds:.0f} seconds in phase {stall.phase!r}; it "
                    f"is replaced after {limit:g} (stall_timeout)"
                )

    def _print_epochs(self, trial: TrialRecord, machine: Machine) -> None:
        """Print the epochs that were not printed. Validations end in any order: an epoch waits for those before it,
        unless they will not come."""
        printed = self._epochs.setdefault(trial.id, set())
        if len(trial.history) == len(printed):
            return
        epoch = self._waits_for.get(trial.id, 0)
        while epoch in trial.history:
            self._print_epoch(trial, epoch, machine)
            epoch += 1
        self._waits_for[trial.id] = epoch
        if trial.ended or self._closed:
            for epoch in sorted(trial.history.keys() - printed):
                self._print_epoch(trial, epoch, machine)

    def _print_epoch(self, trial: TrialRecord, epoch: int, machine: Machine) -> None:
        if epoch not in self._epochs[trial.id]:
            self._epochs[trial.id].add(epoch)
            self._print(self._line(trial, epoch, machine))

    def _line(self, trial: TrialRecord, epoch: int, machine: Machine) -> str:
        metrics = trial.history[epoch]
        names = [name for name in words.columns(machine) if name in metrics]
        shown = "  ".join(f"{name} {words.number(metrics[name])}" for name in names)
        config = words.named(trial.config, self._names(machine))
        head = f"trial {trial.id}  epoch {epoch + 1}/{self.spec.epochs}"
        return "  ".join(text for text in (head, shown, config) if text)

    def _end(self, machine: Machine) -> str:
        done = sum(trial.status == "completed" for trial in machine.trials.values())
        stopped = sum(trial.status == "stopped" for trial in machine.trials.values())
        text = f"{self._state(machine)}: {done} of {words.count(len(machine.trials), 'trial')}"
        text += f", {stopped} stopped, in " if stopped else " in "
        text += words.duration(self._chart.elapsed(self._chart.at))
        idle = self._chart.idle()
        if idle is not None:
            text += f", {idle:.1%} idle"
        best = words.best(machine)
        if best is not None and best.best is not None and self.spec.metric:
            value = words.number(best.value(self.spec.metric))
            text += f"; best: trial {best.id}, epoch {best.best + 1}, {self.spec.metric} {value}"
            config = words.named(best.config, self._names(machine))
            text += f"  {config}" if config else ""
        return "\n".join([text, *(f"warning: {line}" for line in words.warned(machine, WARNINGS))])

    def _scale(self, machine: Machine) -> str:
        trials = self.spec.trials if self.spec.trials is not None else len(machine.trials)
        return f"{words.count(trials, 'trial')} × {words.count(self.spec.epochs, 'epoch')}"

    # ---------------------------------------------------------------- drawing

    def _draw(self, machine: Machine, now: float) -> None:
        if self._output == "notebook":
            self._show(machine, now)
            return
        if self._live is None:
            tty = sys.stdout.isatty()  # what the script prints into a file, for example, stays there
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop", redirect_stdout=tty)
            self._live.start()
        height = self._console.size.height - 1
        self._live.update(self.render(machine, now, height, self._console.size.width), refresh=True)

    def _show(self, machine: Machine, now: float) -> None:
        """Draw in a notebook: HTML, updated in place."""
        recorder = Console(file=io.StringIO(), record=True, width=120, height=40, force_jupyter=False)
        recorder.print(self.render(machine, now, 40, 120))
        code = '<pre style="font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.25">{code}</pre>'
        page = recorder.export_html(inline_styles=True, code_format=code)
        display = importlib.import_module("IPython.display")
        if self._handle is None:
            self._handle = display.display(display.HTML(page), display_id=True)
        else:
            self._handle.update(display.HTML(page))

    def render(self, machine: Machine, now: float, height: int, width: int) -> Group:
        """Return the whole picture in `height` lines: the head, then as many trials (for one trial: epochs) as fit."""
        rows = max(1, height - 5 - len(_troubles(machine, now)) - (self._decision is not None))
        body = self._fit(machine, now, rows) if self.spec.trials == 1 else self._search(machine, now, rows, width)
        ended: list[Text] = []
        if self._closed and self._output == "notebook":
            ended += [_text(f"warning: {line}", "yellow") for line in words.warned(machine, WARNINGS)]
            ended += [_text(self._raised(trace)) for trace in list(self._traces)[:TRACES]]
        return Group(self._head(machine, now), *body, *ended)

    def _head(self, machine: Machine, now: float) -> Text:
        trials = machine.trials.values()
        total = (self.spec.trials or len(machine.trials)) * self.spec.steps
        over = ("failed", "stopped")
        done = sum(self.spec.steps if trial.status in over else trial.step for trial in trials)
        share = done / total if total else 0.0
        text = _text("", no_wrap=True, overflow="ellipsis")
        text.append(f"{self._state(machine)} ", "bold")
        text.append(_bar(share, 16), "cyan")
        text.append(f" {share:.0%}  {self._scale(machine)}  {words.count(len(machine.slots), 'slot')}")
        idle = self._chart.idle(now)
        if idle is not None:
            text.append(f"  idle {idle:.1%}")
        text.append(f"  {words.duration(self._chart.elapsed(max(now, self._chart.at)))}")
        eta = self._eta(machine)
        if eta is not None:
            text.append(f", about {words.duration(eta)} left")
        lost = len(self._chart.lost)
        if lost:
            text.append(f"  {words.count(lost, 'worker')} lost", "yellow")
        if self._stalled:
            longest = max(stall.seconds for stall in self._stalled.values())
            text.append(f"  {len(self._stalled)} stalled for {words.duration(longest)}", "yellow")
        away = [slot for slot in machine.slots.values() if slot.away]
        if away:
            since = now - min(slot.away_since for slot in away)
            text.append(f"  store away since {words.duration(since)}", "red")
        return text

    def _state(self, machine: Machine) -> str:
        if machine.status not in ("checking", "running"):
            return machine.status
        if self._chart.marks and self._chart.marks[-1].what in ("interrupted", "stopped"):
            return self._chart.marks[-1].what
        if self._closed:  # the driver ends, and could not write that to the journal
            return "interrupted"
        return "preflight" if machine.status == "checking" else machine.status

    def _eta(self, machine: Machine) -> float | None:
        """Return the seconds until the run ends: its work over its slots, but no less than its longest trial."""
        if machine.status != "running" or not self._chart.units or not machine.slots or self.spec.stop is not None:
            return None
        remaining = [self._remaining_seconds(trial) for trial in machine.trials.values() if not trial.ended]
        if not remaining:
            return 0.0
        missing = max(0, (self.spec.trials or 0) - len(machine.trials))
        return max(*remaining, sum(remaining) * (1 + missing / len(machine.trials)) / len(machine.slots))

    def _remaining_seconds(self, trial: TrialRecord) -> float:
        checks = (self.spec.epochs - len(trial.history)) * self.spec.validation
        return trial.remaining + checks * (trial.check_seconds or 0.3 * trial.seconds)

    def _names(self, machine: Machine) -> list[str]:
        """Return the parameters that differ between trials."""
        if self._trials != len(machine.trials):
            for trial in islice(machine.trials.values(), self._trials, None):
                self._differing.see(trial.config)
            self._trials = len(machine.trials)
        return self._differing.names

    def _search(self, machine: Machine, now: float, rows: int, width: int) -> list[Grid | Text]:
        """Return one row a trial: all of them, or the running ones, the best and a summary."""
        best = words.best(machine)
        trials = list(machine.trials.values())
        if len(trials) > rows:
            trials = _visible_trials(machine, best, max(1, rows - 1))
        names = self._names(machine)
        metrics = words.columns(machine)[: METRICS if width >= 140 else 3 if width >= 110 else 2]
        live = machine.status == "running"
        room = width // 3 if live else width - 22 - 11 * len(metrics)
        work = {unit.trial: (slot, unit) for slot, unit in machine.leases.standing().values()}
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", expand=False)
        grid.add_column("", width=1)
        grid.add_column("trial", justify="right", no_wrap=True, min_width=5)
        grid.add_column("config", no_wrap=True, overflow="ellipsis", max_width=max(12, room))
        grid.add_column("status", no_wrap=True, min_width=7 if live else 9)
        grid.add_column("epoch", no_wrap=True, min_width=9 if live else 5)
        for name in metrics:
            style = "bold" if name == self.spec.metric else ""
            grid.add_column(
                _text(name, "bold underline" if style else "bold"), justify="right", no_wrap=True, style=style
            )
        if live:
            grid.add_column("left", justify="right", no_wrap=True)
            grid.add_column("worker", no_wrap=True, overflow="ellipsis")
        for trial in trials:
            mark = "★" if trial is best else ""
            values = trial.metrics
            slot, unit = work.get(trial.id, (-1, None))
            status = "stalled" if slot in self._stalled else self._status(trial, unit is not None)
            cells: list[Text | str] = [mark, str(trial.id), _text(words.named(trial.config, names))]
            cells += [_text(status, _COLOURS.get(status, "")), self._epoch(trial, slot, unit, now)]
            cells += [words.number(values.get(name)) if values else "" for name in metrics]
            remaining = self._remaining_seconds(trial) if trial.seconds and trial.status == "running" else None
            if live:
                cells += ["" if remaining is None else words.duration(remaining), self._worker(machine, slot)]
            grid.add_row(
                *map(_cell, cells), style="bold" if trial is best else "red" if trial.status == "failed" else ""
            )
        body: list[Grid | Text] = [grid]
        hidden = len(machine.trials) - len(trials)
        if hidden:
            body.append(_hidden_summary(machine, trials))
        if self._decision is not None:
            body.append(_text(words.decision(machine, self._decision), "dim", no_wrap=True, overflow="ellipsis"))
        failed = next((trial for trial in reversed(machine.trials.values()) if trial.status == "failed"), None)
        if failed is not None:
            text = f"trial {failed.id} failed ({failed.fault}): {' '.join(failed.error.split())}"
            body.append(_text(text, "red", no_wrap=True, overflow="ellipsis"))
        return [*body, *_troubles(machine, now)]

    def _fit(self, machine: Machine, now: float, rows: int) -> list[Grid | Text]:
        """Return one row an epoch, the newest ones."""
        if not machine.trials:
            return []
        trial = next(iter(machine.trials.values()))
        metrics = words.columns(machine)
        grid = Grid(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        grid.add_column("", width=1)
        grid.add_column("epoch", no_wrap=True, min_width=9)
        for name in metrics:
            grid.add_column(
                _text(name), justify="right", no_wrap=True, style="bold" if name == self.spec.metric else ""
            )
        grid.add_column("worker", no_wrap=True)
        for epoch in sorted(trial.history)[-max(1, rows - 1) :]:
            best = bool(self.spec.metric) and epoch == trial.best and trial.good(self.spec.metric)
            values = trial.history[epoch]
            cells = [f"{epoch + 1}/{self.spec.epochs}", *(words.number(values.get(name)) for name in metrics), ""]
            grid.add_row("★" if best else "", *map(_cell, cells), style="bold" if best else "")
        work = [(slot, unit) for slot, unit in machine.leases.standing().values()]
        if not trial.ended:
            slot, unit = work[0] if work else (-1, None)
            worker = self._worker(machine, slot)
            grid.add_row("", self._epoch(trial, slot, unit, now), *("" for _ in metrics), _cell(worker))
        text = _text(words.named(trial.config), "dim", no_wrap=True, overflow="ellipsis")
        body: list[Grid | Text] = [text, grid] if trial.config else [grid]
        if trial.status == "failed":
            body.append(_text(f"failed ({trial.fault}): {' '.join(trial.error.split())}", "red"))
        return [*body, *_troubles(machine, now)]

    def _status(self, trial: TrialRecord, working: bool) -> str:
        if trial.ended or (trial.status in ("paused", "stopped") and not working):
            return trial.status
        if trial.until and not working:
            return "delayed"
        if trial.step == self.spec.steps:
            return "validating" if working else "storing" if len(trial.history) == self.spec.epochs else "waiting"
        return "running" if working else "hopping" if trial.step else "waiting"

    def _epoch(self, trial: TrialRecord, slot: int, unit: Unit | None, now: float) -> str:
        """Return `2/3 ███▌ `: the epoch that a trial is in, and how much of it is done."""
        spec = self.spec
        if trial.ended:
            return f"{len(trial.history)}/{spec.epochs}"
        step = float(trial.step)
        if unit is not None and unit.kind == "train" and trial.seconds:
            span = self._chart.open.get(slot)
            if span is not None and span.lease == unit.lease:
                step += min(max(0.0, now - span.start) / trial.seconds, 0.99 * len(unit.partitions))
        epoch = min(int(step) // spec.partitions, spec.epochs - 1)
        return f"{epoch + 1}/{spec.epochs} {_bar(step / spec.partitions - epoch, 5)}"

    def _worker(self, machine: Machine, slot: int) -> str:
        record = machine.slots.get(slot)
        if record is None:
            return ""
        hosts = {other.host for other in islice(machine.slots.values(), 100)}
        return f"{slot} {record.host}" if len(hosts) > 1 else str(slot)


def _bar(share: float, width: int) -> str:
    """Return `████▌   `, a bar in eighths."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    full, part = divmod(eighths, 8)
    return ("█" * full + _EIGHTHS[part]).ljust(width, "░")


def _visible_trials(machine: Machine, best: TrialRecord | None, rows: int) -> list[TrialRecord]:
    """Return the best trial, then running ones, the next best and waiting ones, as many as fit; sorted by number."""
    visible: dict[int, TrialRecord] = {}
    if best is not None:
        visible[best.id] = best
    for group in ("running", "ranked", "waiting"):
        if len(visible) >= rows:
            break
        candidates = words.ranked(machine) if group == "ranked" else machine.trials.values()
        for trial in candidates:
            if len(visible) >= rows:
                break
            if trial.status == group or (group == "ranked" and trial.best is not None):
                visible[trial.id] = trial
    return [visible[number] for number in sorted(visible)]


def _hidden_summary(machine: Machine, shown: list[TrialRecord]) -> Text:
    """Return `and 84 more: 40 completed, 44 waiting`."""
    shown_ids = {trial.id for trial in shown}
    counts: dict[str, int] = {}
    for trial in machine.trials.values():
        if trial.id not in shown_ids:
            counts[trial.status] = counts.get(trial.status, 0) + 1
    parts = [f"{counts[name]:,} {name}" for name in _COLOURS if name in counts]
    return _text(f"  and {sum(counts.values()):,} more: {', '.join(parts)}", "dim")


def _troubles(machine: Machine, now: float) -> list[Text]:
    """Return what keeps trials waiting, and why the store cannot be reached: at most one line each."""
    delayed = [trial for trial in machine.trials.values() if trial.until and not trial.ended]
    away = next((slot for slot in machine.slots.values() if slot.away), None)
    lines = []
    if delayed:
        first = min(delayed, key=lambda trial: trial.until)
        others = f" and {words.count(len(delayed) - 1, 'other')}" if len(delayed) > 1 else ""
        wait = words.duration(max(0.0, first.until - now))
        lines.append(f"trial {first.id}{others}: tried again in {wait} after a fault of the {first.waits_for}")
    if away is not None:
        lines.append(f"worker {away.id} tries again: {away.away}")
    return [_text(" ".join(line.split()), "yellow", no_wrap=True, overflow="ellipsis") for line in lines]


def _notebook() -> bool:
    """Return whether this process is a notebook's kernel, without importing anything."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def _text(text: str, style: str = "", **options: Any) -> Text:
    """Return text that a terminal only shows: what names, configurations and errors hold is no markup and no order."""
    return Text(escaped(text), style, **options)


def _cell(content: Text | str) -> Text:
    return content if isinstance(content, Text) else _text(content)
