"""The pictures of a search: curves, rungs, parallel coordinates, slices, and what of several objectives none beats.

`html` opens in any browser, without network, and follows one trial through all pictures; `png` is for papers. Both draw
one `Picture`, a plain value.
"""

from __future__ import annotations

import html as escaping
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.errors import UsageError
from hopyard.views import words

DECADES = 1.5
"""A parameter whose values, all above 0, span more powers of ten than this has a logarithmic axis."""
MOST = 16
"""Parameters that have an axis, at most: those that differ first."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One trial.

    Attributes:
        trial: its number.
        text: its configuration, as far as it differs from the others'.
        status, reason: how it stands, and why the search decided so.
        far: epochs that it trained.
        values: (epoch from 1, the metric's value), where it is finite.
        shade: where its best value is among the trials': 1 the best, 0 the worst; None: it has none.
        places: where it is on each axis, in [0, 1]; None: it lacks the parameter.
        objectives: their values; empty: one is not finite.
    """

    trial: int
    text: str
    status: str
    reason: str
    far: float
    values: list[tuple[int, float]]
    shade: float | None
    places: list[float | None]
    objectives: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One parameter, or the metric. `marks`: (place in [0, 1], text) of its ticks."""

    name: str
    marks: list[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn.

    Attributes:
        metric, mode: what decides; "": the run has no metric.
        objectives: names of all metrics that decide.
        epochs: of a trial that goes to the end.
        curves: the trials, the best first.
        axes: parameters, and last the metric.
        rungs: (name, epoch, trials that came, trials that went on).
        front: trials that no other beats in all objectives; empty where there is one.
        low, high: ends of the metric's axis.
    """

    metric: str
    mode: str
    objectives: list[str]
    epochs: int
    curves: list[Curve]
    axes: list[Axis]
    rungs: list[tuple[str, float, int, int]]
    front: list[int]
    low: float
    high: float


def picture(machine: Machine) -> Picture:
    """Return what is drawn of a run, as it stands."""
    spec, trials = machine.spec, words.ranked(machine)
    metric = spec.metric or ("val_loss" if spec.validation else "loss")
    names = words.differing(machine)
    best = {trial.id: trial.value(metric) for trial in trials}
    finite = sorted(value for value in best.values() if value is not None and math.isfinite(value))
    scales = [_scale(name, [trial.config[name] for trial in trials if name in trial.config]) for name in names[:MOST]]
    axis, place = _scale(metric, finite)

    def curve(trial: TrialRecord) -> Curve:
        value = best[trial.id]
        known = value is not None and math.isfinite(value)
        shade = None
        if value is not None and known:
            share = finite.index(value) / max(1, len(finite) - 1)
            shade = 1 - share if spec.mode == "min" else share
        return Curve(
            trial.id,
            words.named(trial.config, names),
            trial.status,
            trial.reason or trial.error,
            trial.reached / spec.partitions,
            [
                (epoch + 1, metrics[metric])
                for epoch, metrics in sorted(trial.history.items())
                if math.isfinite(metrics.get(metric, math.nan))
            ],
            shade,
            [
                *(place(trial.config[axis.name]) if axis.name in trial.config else None for axis, place in scales),
                place(value) if known else None,
            ],
            trial.objectives(spec),
        )

    curves = [curve(trial) for trial in trials]
    values = [value for each in curves for _, value in each.values]
    several = len(spec.objectives) > 1
    return Picture(
        metric,
        spec.mode,
        [each.metric for each in spec.objectives],
        spec.epochs,
        curves,
        [*(axis for axis, _ in scales), axis],
        [(name, step / spec.partitions, came, promoted) for name, step, came, promoted in machine.search.rungs()],
        [trial.id for trial in words.pareto(machine)] if several else [],
        min(values, default=0.0),
        max(values, default=1.0),
    )


def html(machine: Machine, title: str = "Hopyard search") -> str:
    """Return a complete page."""
    drawn = picture(machine)
    page = files(__package__).joinpath("plot.html").read_text(encoding="utf-8")
    data = json.dumps(asdict(drawn), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    page = page.replace("{{summary}}", escaping.escape(_summary(machine, drawn)))
    return page.replace("{{title}}", escaping.escape(title)).replace("{{data}}", data.replace("<", "\\u003c"))


def png(machine: Machine, path: str | Path) -> None:
    """Write the same as a picture; the suffix of the path sets the format (png, pdf, svg).

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"{path}: a picture needs matplotlib, which is not installed: pip install hopyard[plot]; a path that ends "
            "in .html needs nothing"
        ) from error
    drawn = picture(machine)
    sliced = drawn.axes[:-1]
    rows = 2 + (len(sliced) + 3) // 4
    figure = Figure(figsize=(12, 3.6 * rows), layout="constrained")
    grid = figure.add_gridspec(rows, 4)
    _curves(figure.add_subplot(grid[0, :2]), drawn)
    _rungs(figure.add_subplot(grid[0, 2:]), drawn)
    _parallel(figure.add_subplot(grid[1, : 3 if drawn.front else 4]), drawn)
    if drawn.front:
        _front(figure.add_subplot(grid[1, 3]), drawn)
    for number, axis in enumerate(sliced):
        _slice(figure.add_subplot(grid[2 + number // 4, number % 4]), drawn, number, axis)
    figure.suptitle(_summary(machine, drawn), fontsize=9)
    figure.savefig(path, dpi=150)


def _summary(machine: Machine, drawn: Picture) -> str:
    parts = [words.count(len(drawn.curves), "trial"), f"{drawn.metric} ({drawn.mode})"]
    if rule := words.rule(machine):
        parts.append(f"stop={rule}")
    if drawn.curves and drawn.curves[0].shade is not None:
        parts.append(f"best: trial {drawn.curves[0].trial}, {drawn.curves[0].text}")
    return ", ".join(parts)


def _scale(name: str, values: Sequence[Any]) -> tuple[Axis, Callable[[Any], float]]:
    """Return an axis for these values, and the function value → place in [0, 1] on it."""
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if not values or len(numbers) < len(values):
        texts = list(dict.fromkeys(words.value(value) for value in values))
        places = {text: 0.5 if len(texts) == 1 else n / (len(texts) - 1) for n, text in enumerate(texts)}
        return Axis(name, [(places[text], text) for text in texts]), lambda value: places[words.value(value)]
    low, high = float(min(numbers)), float(max(numbers))
    log = low > 0 and math.log10(high / low) > DECADES
    first, last = (math.log(low), math.log(high)) if log else (low, high)

    def place(value: Any) -> float:
        at = math.log(value) if log else float(value)
        return 0.5 if last == first else min(1.0, max(0.0, (at - first) / (last - first)))

    shares = (0.0, 0.25, 0.5, 0.75, 1.0) if last > first else (0.5,)
    marks = [first + share * (last - first) for share in shares]
    return Axis(
        name, [(share, f"{math.exp(at) if log else at:.3g}") for share, at in zip(shares, marks, strict=True)]
    ), place


def _alpha(each: Curve) -> float:
    return 0.12 if each.shade is None else 0.15 + 0.85 * each.shade**2


def _curves(axes: Any, drawn: Picture) -> None:
    for each in drawn.curves:
        if each.values:
            epochs, values = zip(*each.values, strict=True)
            axes.plot(epochs, values, color="tab:blue", alpha=_alpha(each), marker="." if len(epochs) == 1 else "")
    axes.set(xlabel="epoch", ylabel=drawn.metric, title="Curves")


def _rungs(axes: Any, drawn: Picture) -> None:
    colours = {"completed": "tab:blue", "failed": "tab:red", "stopped": "tab:gray", "paused": "tab:orange"}
    ranked = sorted(drawn.curves, key=lambda each: -each.far)
    axes.barh(
        range(len(ranked)),
        [each.far for each in ranked],
        color=[colours.get(each.status, "tab:green") for each in ranked],
        height=0.8,
    )
    for _, epoch, came, promoted in drawn.rungs:
        axes.axvline(epoch, color="black", linewidth=0.6, linestyle=":")
        axes.text(epoch, len(ranked), f"{came} → {promoted}", fontsize=7, ha="center")
    axes.set(xlabel="epochs trained", title="How far trials came", yticks=[])


def _parallel(axes: Any, drawn: Picture) -> None:
    for each in reversed(drawn.curves):
        points = [(n, place) for n, place in enumerate(each.places) if place is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color="tab:blue", alpha=_alpha(each), linewidth=1)
    for number, axis in enumerate(drawn.axes):
        axes.axvline(number, color="black", linewidth=0.8)
        for place, text in axis.marks:
            axes.text(number, place, f" {text}", fontsize=6)
    axes.set(title="Parallel coordinates", yticks=[])
    axes.set_xticks(range(len(drawn.axes)), [axis.name for axis in drawn.axes], fontsize=8)


def _slice(axes: Any, drawn: Picture, number: int, axis: Axis) -> None:
    points = [
        (place, each.places[-1])
        for each in drawn.curves
        if (place := each.places[number]) is not None and each.places[-1] is not None
    ]
    if points:
        axes.scatter(*zip(*points, strict=True), s=10, color="tab:blue", alpha=0.7)
    axes.set_xticks([place for place, _ in axis.marks], [text for _, text in axis.marks], fontsize=6)
    marks = drawn.axes[-1].marks
    axes.set_yticks([place for place, _ in marks], [text for _, text in marks], fontsize=6)
    axes.set(xlabel=axis.name, ylabel=drawn.metric, xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))


def _front(axes: Any, drawn: Picture) -> None:
    for chosen in (False, True):
        points = [
            each.objectives[:2] for each in drawn.curves if each.objectives and (each.trial in drawn.front) is chosen
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=14, color="tab:red" if chosen else "tab:gray")
    axes.set(xlabel=drawn.objectives[0], ylabel=drawn.objectives[1], title="Not dominated (red)")
