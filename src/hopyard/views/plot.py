"""The pictures of a search: curves, rungs, parallel coordinates, slices, and what of several objectives none beats.

`html` opens in any browser, without network, and follows one trial through all pictures; `png` is for papers. Both draw
one `PlotData`, a plain value.
"""

from __future__ import annotations

import html as escaping
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from types import MappingProxyType
from typing import Any

from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.errors import UsageError
from hopyard.space import Choice, RandInt
from hopyard.text import one_line
from hopyard.views import words

DECADES = 1.5
"""A parameter of no known distribution whose values, all above 0, span more powers of ten has a logarithmic axis."""
MOST = 16
"""Parameters that have an axis, at most: those that differ first."""
MARKS = 8
"""Ticks of an axis, at most."""
CHARACTER = 0.015
"""Width of a character above the rungs, as a share of the axis."""


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
class PlotData:
    """What is drawn.

    Attributes:
        metric, mode: what decides; "": the run has no metric.
        objectives: names of all metrics that decide.
        epochs: of a trial that goes to the end.
        curves: the trials, the best first.
        axes: parameters, and last the metric.
        rungs: (epoch, "9 → 3": how many trials came there and how many went on, in all brackets; line, from 0, in
            which the text meets no other).
        front: trials that no other beats in all objectives; empty where there is one.
        low, high: ends of the metric's axis.
    """

    metric: str
    mode: str
    objectives: list[str]
    epochs: int
    curves: list[Curve]
    axes: list[Axis]
    rungs: list[tuple[float, str, int]]
    front: list[int]
    low: float
    high: float


def picture(machine: Machine, distributions: Mapping[str, Any] = MappingProxyType({})) -> PlotData:
    """Return what is drawn of a run, as it stands; `distributions` are those of its space, by parameter."""
    spec, trials = machine.spec, words.ranked(machine)
    metric = spec.metric or ("val_loss" if spec.validation else "loss")
    names = words.differing(machine)
    best = {trial.id: trial.value(metric) for trial in trials}
    finite = sorted(value for value in best.values() if value is not None and math.isfinite(value))
    scales = [
        _scale(name, [trial.config[name] for trial in trials if name in trial.config], distributions.get(name))
        for name in names[:MOST]
    ]
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
    return PlotData(
        metric,
        spec.mode,
        [each.metric for each in spec.objectives],
        spec.epochs,
        curves,
        [*(axis for axis, _ in scales), axis],
        _rungs_of(machine),
        [trial.id for trial in words.pareto(machine)] if several else [],
        min(values, default=0.0),
        max(values, default=1.0),
    )


def html(
    machine: Machine, title: str = "Hopyard search", distributions: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Return a complete page."""
    drawn = picture(machine, distributions)
    page = files(__package__).joinpath("plot.html").read_text(encoding="utf-8")
    data = json.dumps(asdict(drawn), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    parts = {
        "summary": escaping.escape(_summary(machine, drawn)),
        "title": escaping.escape(title),
        "data": data.replace("<", "\\u003c"),
    }
    return words.filled(page, parts)


def png(machine: Machine, path: str | Path, distributions: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Write the same as a picture; the suffix of the path sets the format (png, pdf, svg).

    Raises:
        UsageError: matplotlib is not installed.
    """
    drawn = picture(machine, distributions)
    draw(empty_figure(path), drawn, _summary(machine, drawn)).savefig(path, dpi=150)


def empty_figure(path: str | Path) -> Any:
    """Return an empty figure of matplotlib, for a picture in this file.

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
    return Figure(layout="constrained")


def draw(figure: Any, drawn: PlotData, title: str) -> Any:
    """Draw a picture into an empty figure of matplotlib, and return that."""
    sliced = drawn.axes[:-1]
    rows = 2 + (len(sliced) + 3) // 4
    figure.set_size_inches(12, 3.6 * rows)
    grid = figure.add_gridspec(rows, 4)
    _curves(figure.add_subplot(grid[0, :2]), drawn)
    _rungs(figure.add_subplot(grid[0, 2:]), drawn)
    _parallel(figure.add_subplot(grid[1, : 3 if drawn.front else 4]), drawn)
    if drawn.front:
        _front(figure.add_subplot(grid[1, 3]), drawn)
    for number, axis in enumerate(sliced):
        _slice(figure.add_subplot(grid[2 + number // 4, number % 4]), drawn, number, axis)
    figure.suptitle("\n".join(wrap(title.replace("$", r"\$"), 150, max_lines=4)), fontsize=9)
    return figure


def _summary(machine: Machine, drawn: PlotData) -> str:
    parts = [words.count(len(drawn.curves), "trial"), f"{drawn.metric} ({drawn.mode})"]
    if rule := words.rule(machine):
        parts.append(f"stop={rule}")
    if drawn.curves and drawn.curves[0].shade is not None:
        parts.append(f"best: trial {drawn.curves[0].trial}, {drawn.curves[0].text}")
    return ", ".join(parts)


def _rungs_of(machine: Machine) -> list[tuple[float, str, int]]:
    """Return what is written above the rungs; brackets that have one at the same epoch share it."""
    spec, counts = machine.spec, dict[int, list[int]]()
    for _, step, came, promoted in machine.search.rungs():
        count = counts.setdefault(step, [0, 0])
        count[0] += came
        count[1] += promoted
    rungs, ends = list[tuple[float, str, int]](), list[float]()
    for step, (came, promoted) in sorted(counts.items()):
        text = f"{came} → {promoted}"
        middle, half = step / spec.steps, (len(text) + 1) * CHARACTER / 2
        line = next((n for n, end in enumerate(ends) if end <= middle - half), len(ends))
        ends[line : line + 1] = [middle + half]
        rungs.append((step / spec.partitions, text, line))
    return rungs


def _scale(name: str, values: Sequence[Any], distribution: Any = None) -> tuple[Axis, Callable[[Any], float]]:
    """Return an axis for these values, drawn from this distribution, and the function value → place in [0, 1] on it."""
    values = [*values, *(distribution.values if isinstance(distribution, Choice) else ())]
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    numeric = 0 < len(numbers) == len(values)
    if isinstance(distribution, Choice) or not numeric:
        text_of = _tick if numeric else words.value
        texts = list(dict.fromkeys(map(text_of, sorted(values, key=None if numeric else words.value))))
        places = {text: 0.5 if len(texts) == 1 else n / (len(texts) - 1) for n, text in enumerate(texts)}
        every = max(1, -(-len(texts) // MARKS))
        return Axis(name, [(places[text], text) for text in texts[::every]]), lambda value: places[text_of(value)]
    low, high = min(numbers), max(numbers)
    if distribution is not None:
        bound = distribution.high - 1 if isinstance(distribution, RandInt) else distribution.high
        low, high = min(low, distribution.low), max(high, bound)
    log = getattr(distribution, "log", low > 0 and math.log10(high / low) > DECADES)
    first, last = (math.log(low), math.log(high)) if log else (low, high)

    def place(value: Any) -> float:
        at = math.log(value) if log else value
        return 0.5 if last == first else min(1.0, max(0.0, (at - first) / (last - first)))

    ends = [first + share * (last - first) for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    ticks = [math.exp(at) if log else at for at in ends]
    if all(isinstance(value, int) for value in numbers):
        ticks = [round(tick) for tick in ticks]
    return Axis(name, [(place(tick), _tick(tick)) for tick in dict.fromkeys(ticks)]), place


def _tick(value: float) -> str:
    """Return a number for an axis: whole ones as such, others with three digits."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 or isinstance(value, int) else f"{value:.3g}"


def _cut(text: str, most: float) -> str:
    """Return the text as matplotlib shows it in one line; without its middle, where it is long."""
    half, text = max(2, int(most) // 2), one_line(text)
    text = text if len(text) <= 2 * half + 1 else f"{text[:half]}…{text[-half:]}"
    return text.replace("$", r"\$")  # else it begins a formula


def _alpha(each: Curve) -> float:
    return 0.12 if each.shade is None else 0.15 + 0.85 * each.shade**2


def _curves(axes: Any, drawn: PlotData) -> None:
    for each in drawn.curves:
        if each.values:
            epochs, values = zip(*each.values, strict=True)
            axes.plot(epochs, values, color="tab:blue", alpha=_alpha(each), marker="." if len(epochs) == 1 else "")
    axes.set(xlabel="epoch", ylabel=_cut(drawn.metric, 30), title="Curves")


def _rungs(axes: Any, drawn: PlotData) -> None:
    colours = {"completed": "tab:blue", "failed": "tab:red", "stopped": "tab:gray", "paused": "tab:orange"}
    ranked = sorted(drawn.curves, key=lambda each: -each.far)
    axes.barh(
        range(len(ranked)),
        [each.far for each in ranked],
        color=[colours.get(each.status, "tab:green") for each in ranked],
        height=0.8,
    )
    for epoch, text, line in drawn.rungs:
        axes.axvline(epoch, color="black", linewidth=0.6, linestyle=":")
        axes.annotate(
            text, (epoch, 1), (0, 3 + 9 * line), ("data", "axes fraction"), "offset points", fontsize=7, ha="center"
        )
    lines = 1 + max([line for *_, line in drawn.rungs], default=-1)
    axes.set_title("How far trials came", pad=6 + 9 * lines)
    axes.set(xlabel="epochs trained", xlim=(0, drawn.epochs), yticks=[])


def _parallel(axes: Any, drawn: PlotData) -> None:
    for each in reversed(drawn.curves):
        points = [(n, place) for n, place in enumerate(each.places) if place is not None]
        if points:
            axes.plot(*zip(*points, strict=True), color="tab:blue", alpha=_alpha(each), linewidth=1)
    count, last = (90 if drawn.front else 130) / len(drawn.axes), len(drawn.axes) - 1
    for number, axis in enumerate(drawn.axes):
        axes.axvline(number, color="black", linewidth=0.8)
        for place, text in axis.marks:
            box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5}
            axes.text(number, place, f" {_cut(text, count)}", fontsize=6, va="center", bbox=box)
    axes.set(title="Parallel coordinates", yticks=[], xlim=(-0.5, last + 0.8))
    axes.set_xticks(range(last + 1), [_cut(axis.name, count) for axis in drawn.axes], fontsize=8)


def _slice(axes: Any, drawn: PlotData, number: int, axis: Axis) -> None:
    points = [
        (place, each.places[-1])
        for each in drawn.curves
        if (place := each.places[number]) is not None and each.places[-1] is not None
    ]
    if points:
        axes.scatter(*zip(*points, strict=True), s=10, color="tab:blue", alpha=0.7)
    texts = [_cut(text, 16) for _, text in axis.marks]
    axes.set_xticks([place for place, _ in axis.marks], texts, fontsize=6, rotation=30, ha="right", va="top")
    marks = drawn.axes[-1].marks
    axes.set_yticks([place for place, _ in marks], [text for _, text in marks], fontsize=6)
    axes.set(xlabel=_cut(axis.name, 24), ylabel=_cut(drawn.metric, 30), xlim=(-0.05, 1.05), ylim=(-0.05, 1.05))


def _front(axes: Any, drawn: PlotData) -> None:
    for chosen in (False, True):
        points = [
            each.objectives[:2] for each in drawn.curves if each.objectives and (each.trial in drawn.front) is chosen
        ]
        if points:
            axes.scatter(*zip(*points, strict=True), s=14, color="tab:red" if chosen else "tab:gray")
    x, y = (_cut(name, 24) for name in drawn.objectives[:2])
    axes.set(xlabel=x, ylabel=y, title="Not dominated (red)")
