"""Numbers, durations, configurations and ranks as text, the same in every view."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import le
from typing import Any

from hopyard.core.runs.events import Granted, Paused, Stopped
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import Config
from hopyard.stopping import Asked
from hopyard.stopping.rung import key
from hopyard.text import one_line

_MISSING = object()


def number(value: float | None) -> str:
    """Return four significant digits; `–` for None."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e3 or value == 0 else f"{value:.4g}"


def duration(seconds: float | None) -> str:
    """Return `3.1 ms`, `0.42 s`, `12 s`, `3 min 20 s`, `2 h 05 min`; `–` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        if 0 < seconds < 0.0995:
            return f"{seconds * 1e3:.2g} ms"
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits: `812 B`, `1.2 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:  # above, three digits would say 1e+03
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def count(many: int, noun: str) -> str:
    """Return `1 trial`, `2 trials`, `3 classes`."""
    return f"{many:,} {noun}" if many == 1 else f"{many:,} {noun}{'es' if noun.endswith('s') else 's'}"


def value(item: Any) -> str:
    """Return one value of a configuration as text."""
    return f"{item:.4g}" if isinstance(item, float) else one_line(str(item))


def aligned(rows: Sequence[Sequence[str]], left: Collection[int]) -> list[str]:
    """Return a table as lines: columns with two spaces between, flush right, or flush left those in `left`."""
    columns = []
    for number, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if number in left else cell.rjust(width) for cell in column])
    return ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return a page with its parts in the places of `{{name}}`. What looks like a place inside of a part is text."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], page)


def named(config: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """Return `lr=0.01 width=64`; `names`: only these, in this order."""
    shown = config if names is None else [name for name in names if name in config]
    return " ".join(f"{one_line(name)}={value(config[name])}" for name in shown)


class Differing:
    """The parameters that differ between trials, updated as trials are added."""

    def __init__(self) -> None:
        self.names: list[str] = []
        """The parameters that differ, in the order of their first appearance."""
        self._first: dict[str, Any] = {}
        self._order: list[str] = []
        self._count = 0

    def see(self, config: Config) -> None:
        """Add one trial. O(parameters)."""
        changed = [name for name in self._order if config.get(name, _MISSING) != self._first[name]]
        for name in config:
            if name not in self._first:
                self._order.append(name)
                self._first[name] = config[name]
                if self._count:  # the earlier trials lack it
                    changed.append(name)
        self._count += 1
        if any(name not in self.names for name in changed):
            names = {*self.names, *changed}
            self.names = [name for name in self._order if name in names]


def differing(machine: Machine) -> list[str]:
    """Return the parameters that differ between the trials; all of them when there is one trial."""
    if len(machine.trials) == 1:
        return list(next(iter(machine.trials.values())).config)
    parameters = Differing()
    for trial in machine.trials.values():
        parameters.see(trial.config)
    return parameters.names


def status(trial: TrialRecord, run: str) -> str:
    """Return the status of a trial; a running trial of a run that is "interrupted" or "stopped" has the run's."""
    return run if trial.status == "running" and run in ("interrupted", "stopped") else trial.status


def counts(machine: Machine) -> Counter[str]:
    """Return status → how many trials have it."""
    return Counter(trial.status for trial in machine.trials.values())


Costs = Callable[[TrialRecord], tuple[float, ...]]
"""Trial → a number for each objective that is smaller for better values, at its best epoch by the first of them;
infinity: the value is not there, or not finite."""


def costs(machine: Machine) -> Costs:
    """Return what tells how good the trials of a run are."""
    objectives, metric, mode = machine.spec.objectives, machine.spec.metric, machine.spec.mode
    if len(objectives) < 2:  # the usual case, and the table asks at each change
        return lambda trial: (key(mode, trial.value(metric)),)

    def cost(trial: TrialRecord) -> tuple[float, ...]:
        return tuple([key(each.mode, x) for each, x in zip(objectives, trial.values(objectives), strict=True)])

    return cost


def best(machine: Machine) -> TrialRecord | None:
    """Return the trial whose best epoch has the best value of the run's metric; of equals, the one with the better next
    objective, if there are several, then the one with the lowest number. Failed trials, and those whose every value is
    NaN or infinite, do not count. Without a metric, return the first trial that has an epoch."""
    return min(_good(machine), key=costs(machine), default=None)  # the first of equals


def pareto(machine: Machine) -> list[TrialRecord]:
    """Return the trials of which no other is better in one objective and at least as good in all others, the best by
    the first objective first. O(trials × those returned)."""
    front, cost_of = list[tuple[tuple[float, ...], TrialRecord]](), costs(machine)
    ranks = sorted([(cost_of(trial), trial.id) for trial in _good(machine)] if machine.spec.objectives else ())
    for cost, number in ranks:  # who beats a trial comes before it
        if not any(other != cost and all(map(le, other, cost)) for other, _ in front):
            front.append((cost, machine.trials[number]))
    return [trial for _, trial in front]


def _good(machine: Machine) -> Iterator[TrialRecord]:
    """Yield the trials that did not fail and have a finite value of the run's metric, by number."""
    metric = machine.spec.metric
    for trial in machine.trials.values():
        if trial.status != "failed" and trial.good(metric):
            yield trial


def rule(machine: Machine) -> str:
    """Return the rule that stops trials, as its user wrote it: `ASHA(sync=True)`; "" where there is none."""
    stop = machine.spec.stop
    return "" if stop is None else "a function" if isinstance(stop, Asked) else repr(stop)


def after(machine: Machine, step: int) -> str:
    """Return where a step is: `epoch 3`, or `epoch 1, partition 2` within one."""
    epochs, rest = divmod(step, machine.spec.partitions)
    return f"epoch {epochs + 1}, partition {rest}" if rest else f"epoch {epochs}"


def decision(machine: Machine, line: Paused | Granted | Stopped) -> str:
    """Return what the search decided about a trial, and why: `trial 3  paused  rung 1: 4th of 9, top 1/3 goes on`."""
    what = {Paused: "paused", Stopped: "stopped"}.get(type(line), "")
    if isinstance(line, Granted):
        what = f"goes on to {after(machine, line.target)}"
    return f"trial {line.trial}  {what}  {line.reason}"


def retriable(machine: Machine) -> bool:
    """Return whether trials failed that `hopyard resume --failed` tries again: those whose recipe is not to blame, in a
    run whose budget is not spent."""
    return not machine.search.closed and any(
        trial.status == "failed" and trial.fault != "user" for trial in machine.trials.values()
    )


def ranked(machine: Machine) -> list[TrialRecord]:
    """Return the trials, best first; those without a value follow, failed ones come last."""
    metric, cost_of = machine.spec.metric, costs(machine)

    def place(trial: TrialRecord) -> tuple[float, ...]:
        return trial.status == "failed", trial.value(metric) is None, *cost_of(trial), trial.id

    return sorted(machine.trials.values(), key=place)


def warned(machine: Machine, most: int) -> list[str]:
    """Return one line for each place in the user's code and each category of its warnings, with the number of trials;
    `most`: how many lines."""
    total = len(machine.trials)
    lines = []
    for (place, _), (text, trials) in machine.warnings.items():
        where = f"trial {min(trials)}" if len(trials) == 1 else f"{len(trials)} of {count(total, 'trial')}"
        lines.append(f"{' '.join(text.split())} ({place}; in {where})")
    rest = len(lines) - most
    return lines if rest <= 0 else [*lines[:most], f"and {count(rest, 'other')}"]


def columns(machine: Machine) -> list[str]:
    """Return the names of the metrics: the run's own first, then the training loss, then those of validation."""
    names: dict[str, None] = {}
    for trial in machine.trials.values():
        if trial.history:
            names.update(dict.fromkeys(trial.metrics))
            break
    if not names:
        names = dict.fromkeys(machine.names)
        if machine.spec.validation and not any(name.startswith("val_") for name in names):
            names.update(dict.fromkeys(f"val_{name}" for name in machine.names))
    first = [name for name in (machine.spec.metric, "loss", "val_loss") if name in names]
    others = sorted(names, key=lambda name: (not name.startswith("val_"), name))
    return list(dict.fromkeys([*first, *others]))
