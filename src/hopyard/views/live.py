"""The one live table of a run: drawn in place on a terminal and in a notebook, and printed as plain lines elsewhere.

It has no thread. The driver calls `see` after each batch of events and about once a second when nothing happens; `see`
draws, at most four times a second (in a notebook twice), and never takes more than a twentieth of the time.
"""

from __future__ import annotations

import importlib
import io
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hopyard.core.liveness import Stall
from hopyard.core.runs.events import Began, Checked, Granted, Line, Paused, Resumed, Retried, Stopped
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec
from hopyard.text import escaped
from hopyard.views import words
from hopyard.views.hosts import Sizes
from hopyard.views.picture import Picture, PictureState, text_of
from hopyard.views.timeline import Chart

EVERY = {"terminal": 0.25, "notebook": 0.5}
"""The least number of seconds between two drawings. A notebook's go through its server to a browser."""
SHARE = 0.05
"""The share of the driver's time that drawing may take."""
WARNINGS = 5
"""The most warnings that are shown at the end."""
TRACES = 3
"""The most tracebacks that are shown; `hopyard show` and `hopyard logs` have more."""


class LiveTable:
    """The live table of a run.

    Args:
        spec: the run's.
        console: where to draw; default: the terminal's standard error, so that a script's own output stays clean.
        clock: seconds since the epoch of Unix, the clock of the journal.
        stalls: returns the slots that make no progress.
        sizes: bytes of the partitions by kind, where they are known.
        display: what `open_display` returned; then the table is in the notebook.
    """

    def __init__(
        self,
        spec: RunSpec,
        console: Console | None = None,
        *,
        clock: Callable[[], float] = time.time,
        stalls: Callable[[], Mapping[int, Stall]] = dict,
        sizes: Sizes | None = None,
        display: Any = None,
    ) -> None:
        self.spec = spec
        self._clock = clock
        self._stalls = stalls
        self._sizes = sizes or {}
        self._stalled: Mapping[int, Stall] = {}
        """The result of `stalls` when it was last called."""
        self._chart = Chart(keep=False)
        self._picture = Picture(spec, self._chart)
        self._epochs: dict[int, set[int]] = {}
        """Trial → the epochs that were printed as plain lines."""
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
        self._display = display
        self._console = console if console is not None else Console(stderr=True)
        self._output: Literal["terminal", "notebook", "plain"] = "plain"
        if display is not None:
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
        self._pause = max(EVERY[self._output], (time.perf_counter() - began) / SHARE)

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
            self._console.print(text_of(text), soft_wrap=True)
            return
        file = self._console.file  # rich takes longer for a plain line than all else that a small unit costs the driver
        file.write(f"{escaped(text)}\n")
        file.flush()

    def _skip(self, machine: Machine) -> None:
        """Count everything from before a resume as printed."""
        self._epochs = {trial.id: set(trial.history) for trial in machine.trials.values()}
        self._failed = {trial.id for trial in machine.trials.values() if trial.status == "failed"}
        self._marks = len(self._chart.marks)

    def _see_retried(self, line: Retried, machine: Machine) -> None:
        """Let the next epochs and the next failure of a trial that is tried again be printed, as if they were new."""
        self._failed.discard(line.trial)
        trial = machine.trials.get(line.trial)
        if trial is not None and line.trial in self._epochs:
            self._epochs[line.trial] &= set() if line.recipe else set(trial.history)

    def _print_news(self, lines: list[Line], touched: dict[int, None], machine: Machine) -> None:
        for line in lines:
            if isinstance(line, Checked) and machine.status == "running":
                touched |= {trial.id: None for trial in machine.trials.values() if trial.status == "failed"}
                slots = words.count(len(machine.workers), "worker")
                if machine.spec.members > 1:
                    slots = f"gangs of {machine.spec.members} workers"
                self._print(f"training: {self._picture.scale(machine)}, on {slots}")
                if line.frozen_bytes:
                    hop, stay = words.size(line.hop_bytes), words.size(line.frozen_bytes)
                    self._print(f"States: {hop} of trial {line.trial} hop, {stay} are frozen and stay")
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
        for epoch in sorted(trial.history.keys() - printed):
            if epoch and epoch - 1 not in printed and not (trial.ended or self._closed):
                break
            printed.add(epoch)
            self._print(self._line(trial, epoch, machine))

    def _line(self, trial: TrialRecord, epoch: int, machine: Machine) -> str:
        metrics = trial.history[epoch]
        names = [name for name in words.columns(machine) if name in metrics]
        shown = "  ".join(f"{name} {words.number(metrics[name])}" for name in names)
        config = words.named(trial.config, self._picture.names(machine))
        head = f"trial {trial.id}  epoch {epoch + 1}/{self.spec.epochs}"
        return "  ".join(text for text in (head, shown, config) if text)

    def _end(self, machine: Machine) -> str:
        counts = words.counts(machine)
        text = f"{self._state(machine)}: {counts['completed']} of {words.count(len(machine.trials), 'trial')}"
        text += f", {counts['stopped']} stopped, in " if counts["stopped"] else " in "
        text += words.duration(self._chart.elapsed(self._chart.at))
        idle = self._chart.idle()
        if idle is not None:
            text += f", {idle:.1%} idle"
        best = words.best(machine)
        if best is not None and best.best is not None and self.spec.metric:
            value = words.number(best.value(self.spec.metric))
            text += f"; best: trial {best.id}, epoch {best.best + 1}, {self.spec.metric} {value}"
            config = words.named(best.config, self._picture.names(machine))
            text += f"  {config}" if config else ""
        return "\n".join([text, *(f"warning: {line}" for line in words.warned(machine, WARNINGS))])

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
        """Draw in a notebook, in place: HTML, and plain text for what shows no HTML."""
        recorder = Console(file=io.StringIO(), record=True, width=120, height=40, force_jupyter=False)
        recorder.print(self.render(machine, now, 40, 120))
        code = '<pre style="font-family:ui-monospace,Menlo,Consolas,monospace;line-height:1.25">{code}</pre>'
        text = recorder.export_text(clear=False)
        page = recorder.export_html(inline_styles=True, code_format=code)
        self._display.update({"text/plain": text, "text/html": page}, raw=True)

    def render(self, machine: Machine, now: float, height: int, width: int) -> Group:
        """Return the whole picture in `height` lines: the head, then as many trials (for one trial: epochs) as fit."""
        moment = PictureState(now, self._state(machine), self._stalled, self._decision, self._sizes)
        ended: list[Text] = []
        if self._closed and self._output == "notebook":
            ended += [text_of(f"warning: {line}", "yellow") for line in words.warned(machine, WARNINGS)]
            ended += [text_of(self._raised(trace)) for trace in list(self._traces)[:TRACES]]
        return Group(*self._picture.lines(machine, moment, height, width), *ended)

    def _state(self, machine: Machine) -> str:
        if machine.status not in ("checking", "running"):
            return machine.status
        if self._chart.marks and self._chart.marks[-1].what in ("interrupted", "stopped"):
            return self._chart.marks[-1].what
        if self._closed:  # the driver ends, and could not write that to the journal
            return "interrupted"
        return "preflight" if machine.status == "checking" else machine.status


def open_display() -> Any:
    """Return an empty display of the notebook's cell that runs, for a `LiveTable`; None outside of notebooks, without
    importing anything. It takes the thread that runs the cell: from any other, a display is that of the cell that runs
    by then.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
