"""What is drawn of a run: a head line, and one row for each trial or, of a run of one trial, for each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.table import Table as Grid
from rich.text import Text

from hopyard.core.liveness import Stall
from hopyard.core.runs.events import Granted, Paused, Stopped
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec, Unit
from hopyard.text import escaped
from hopyard.views import progress, words
from hopyard.views.hosts import Sizes, table
from hopyard.views.timeline import Chart

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


@dataclass(frozen=True, slots=True)
class PictureState:
    """What a picture shows beyond the machine and the chart."""

    now: float
    """Seconds since the epoch of Unix."""
    state: str
    """What the run does: its status, or how its driver ended."""
    stalled: Mapping[int, Stall]
    """The slots that make no progress."""
    decision: Paused | Granted | Stopped | None
    """What the search decided last."""
    sizes: Sizes
    """Bytes of the partitions, for the table of hosts."""


class Picture:
    """The picture of a run, drawn again and again.

    Args:
        spec: the run's.
        chart: of its lines so far.
    """

    def __init__(self, spec: RunSpec, chart: Chart) -> None:
        self.spec, self._chart = spec, chart
        self._differing = words.Differing()
        self._trials = 0

    def lines(self, machine: Machine, moment: PictureState, height: int, width: int) -> list[Grid | Text]:
        """Return the head, then as many trials (for one trial: epochs) as fit into `height` lines."""
        hosts = self._hosts(moment.sizes, height)
        rows = max(1, height - 5 - len(_troubles(machine, moment.now)) - (moment.decision is not None) - len(hosts))
        fit = self.spec.trials == 1
        body = self._fit(machine, moment, rows) if fit else self._search(machine, moment, rows, width)
        return [self._head(machine, moment), *body, *hosts]

    def _hosts(self, sizes: Sizes, height: int) -> list[Text]:
        """Return the table of hosts, where they are several, in at most a third of the height."""
        hosts, most = self._chart.hosts, height // 3 - 2
        if len(hosts) < 2 or most < 1:
            return []
        return [text_of(line, "dim", no_wrap=True, overflow="ellipsis") for line in table(hosts, sizes, most)]

    def scale(self, machine: Machine) -> str:
        """Return `6 trials × 3 epochs`."""
        trials = self.spec.trials if self.spec.trials is not None else len(machine.trials)
        return f"{words.count(trials, 'trial')} × {words.count(self.spec.epochs, 'epoch')}"

    def _head(self, machine: Machine, moment: PictureState) -> Text:
        share = progress.share(machine)
        text = text_of("", no_wrap=True, overflow="ellipsis")
        text.append(f"{moment.state} ", "bold")
        text.append(_bar(share, 16), "cyan")
        text.append(f" {share:.0%}  {self.scale(machine)}  {words.count(len(machine.slots), 'slot')}")
        idle = self._chart.idle(moment.now)
        if idle is not None:
            text.append(f"  idle {idle:.1%}")
        text.append(f"  {words.duration(self._chart.elapsed(max(moment.now, self._chart.at)))}")
        left = progress.seconds_left(machine)
        if left is not None:
            text.append(f", about {words.duration(left)} left")
        lost = len(self._chart.lost)
        if lost:
            text.append(f"  {words.count(lost, 'worker')} lost", "yellow")
        if moment.stalled:
            longest = max(stall.seconds for stall in moment.stalled.values())
            text.append(f"  {len(moment.stalled)} stalled for {words.duration(longest)}", "yellow")
        away = [slot for slot in machine.slots.values() if slot.away]
        if away:
            since = moment.now - min(slot.away_since for slot in away)
            text.append(f"  store away since {words.duration(since)}", "red")
        return text

    def names(self, machine: Machine) -> list[str]:
        """Return the parameters that differ between trials."""
        if self._trials != len(machine.trials):
            for trial in islice(machine.trials.values(), self._trials, None):
                self._differing.see(trial.config)
            self._trials = len(machine.trials)
        return self._differing.names

    def _search(self, machine: Machine, moment: PictureState, rows: int, width: int) -> list[Grid | Text]:
        """Return one row a trial: all of them, or the running ones, the best and a summary."""
        best = words.best(machine)
        trials = list(machine.trials.values())
        if len(trials) > rows:
            trials = _visible_trials(machine, best, max(1, rows - 1))
        names = self.names(machine)
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
                text_of(name, "bold underline" if style else "bold"), justify="right", no_wrap=True, style=style
            )
        if live:
            grid.add_column("left", justify="right", no_wrap=True)
            grid.add_column("worker", no_wrap=True, overflow="ellipsis")
        for trial in trials:
            mark = "★" if trial is best else ""
            values = trial.metrics
            slot, unit = work.get(trial.id, (-1, None))
            status = "stalled" if slot in moment.stalled else self._status(trial, unit is not None)
            cells: list[Text | str] = [mark, str(trial.id), text_of(words.named(trial.config, names))]
            cells += [text_of(status, _COLOURS.get(status, "")), self._epoch(trial, slot, unit, moment.now)]
            cells += [words.number(values.get(name)) if values else "" for name in metrics]
            running = trial.seconds and trial.status == "running"
            remaining = progress.trial_seconds_left(trial, self.spec) if running else None
            if live:
                cells += ["" if remaining is None else words.duration(remaining), self._worker(machine, slot)]
            grid.add_row(
                *map(_cell, cells), style="bold" if trial is best else "red" if trial.status == "failed" else ""
            )
        body: list[Grid | Text] = [grid]
        hidden = len(machine.trials) - len(trials)
        if hidden:
            body.append(_hidden_summary(machine, trials))
        if moment.decision is not None:
            body.append(text_of(words.decision(machine, moment.decision), "dim", no_wrap=True, overflow="ellipsis"))
        failed = next((trial for trial in reversed(machine.trials.values()) if trial.status == "failed"), None)
        if failed is not None:
            text = f"trial {failed.id} failed ({failed.fault}): {' '.join(failed.error.split())}"
            body.append(text_of(text, "red", no_wrap=True, overflow="ellipsis"))
        return [*body, *_troubles(machine, moment.now)]

    def _fit(self, machine: Machine, moment: PictureState, rows: int) -> list[Grid | Text]:
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
                text_of(name), justify="right", no_wrap=True, style="bold" if name == self.spec.metric else ""
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
            grid.add_row("", self._epoch(trial, slot, unit, moment.now), *("" for _ in metrics), _cell(worker))
        text = text_of(words.named(trial.config), "dim", no_wrap=True, overflow="ellipsis")
        body: list[Grid | Text] = [text, grid] if trial.config else [grid]
        if trial.status == "failed":
            body.append(text_of(f"failed ({trial.fault}): {' '.join(trial.error.split())}", "red"))
        return [*body, *_troubles(machine, moment.now)]

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
    return text_of(f"  and {sum(counts.values()):,} more: {', '.join(parts)}", "dim")


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
    return [text_of(" ".join(line.split()), "yellow", no_wrap=True, overflow="ellipsis") for line in lines]


def text_of(text: str, style: str = "", **options: Any) -> Text:
    """Return text that a terminal only shows: what names, configurations and errors hold is no markup and no order."""
    return Text(escaped(text), style, **options)


def _cell(content: Text | str) -> Text:
    return content if isinstance(content, Text) else text_of(content)
