"""The chart of a run: who worked on what, when. `html` opens in any browser, without network; `png` is for papers.

One lane a worker (one that replaces another continues its lane), one block a unit, one colour a trial. The page holds
the blocks as columns of numbers and draws on a canvas only what is visible, so 100,000 units move smoothly.
"""

from __future__ import annotations

import html as escaping
import json
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from colorsys import hls_to_rgb
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from hopyard.core.runs.events import Began, Line, Proposed
from hopyard.spec import Array, Config
from hopyard.views import words
from hopyard.views.plot import empty_figure
from hopyard.views.timeline import Chart, Span

KINDS = ("train", "validate", "fold", "check")
OUTCOMES = ("done", "failed", "lost", "running")
LARGEST = 3e38
"""Larger means would overflow float32, in which they are stored."""
PIECE = 1 << 14
"""How many units are written at once."""
GOLDEN = 137.508
"""Degrees between the hues of neighbouring trials: any few of them in a row look different."""


def html(lines: Iterable[Line], title: str = "Hopyard run") -> Iterator[str]:
    """Yield a complete page, piece by piece: about 50 bytes a unit. Takes twice as many bytes of memory."""
    units = Units(metrics=True)
    timeline = units.read(lines)
    page = files(__package__).joinpath("gantt.html").read_text(encoding="utf-8")
    head, tail = page.split("{{data}}")
    summary = escaping.escape(_summary(timeline, len(units.trials)))
    yield words.filled(head, {"summary": summary, "title": escaping.escape(title)})
    yield "{"
    for number, (name, pieces) in enumerate(_data(timeline, units)):
        yield f'{"," if number else ""}"{name}":'
        for piece in pieces:
            yield piece.replace("<", "\\u003c")
    yield "}"
    yield tail


def png(lines: Iterable[Line], path: str | Path) -> None:
    """Write the same chart as a picture; the suffix of the path sets the format (png, pdf, svg).

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure = empty_figure(path)
    from matplotlib.collections import PolyCollection

    units = Units()
    timeline = units.read(lines)
    lanes = max(1, len(timeline.lanes))
    figure.set_size_inches(12, min(40.0, 1.6 + 0.34 * lanes))
    axes = figure.subplots()
    boxes, fills = [], []
    for index in units.order():
        a, y = units.start[index] / 1e4, units.lane[index]
        b = a + units.length[index] / 1e4
        boxes.append([(a, y - 0.4), (b, y - 0.4), (b, y + 0.4), (a, y + 0.4)])
        kind = KINDS[units.kind[index]]
        colour = (0.6, 0.6, 0.6) if kind == "check" else _colour(units.trial[index])
        fills.append((*colour, 1.0 if kind == "train" else 0.4))
    edge = 0.3 if len(boxes) < 3000 else 0.0
    axes.add_collection(
        PolyCollection(boxes, facecolors=fills, edgecolors="white" if edge else "none", linewidths=edge)
    )
    axes.set_xlim(0.0, max(1e-3, timeline.elapsed(timeline.at)) * 1.01)
    axes.set_ylim(-0.6, lanes - 0.4)
    for mark in timeline.marks:
        if mark.lane < 0:
            if mark.what == "resumed":
                axes.axvline(timeline.elapsed(mark.at), color="tab:orange", linestyle="--", linewidth=1)
        else:
            cross = "black" if mark.what == "lost" else "red"
            axes.plot([timeline.elapsed(mark.at)], [mark.lane], marker="x", color=cross)
    names = _lane_names(timeline)
    axes.set_yticks(range(lanes), names or [""], fontsize=8 if lanes < 40 else 4)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(_summary(timeline), fontsize=9)
    figure.savefig(path, dpi=150)


def _colour(trial: int) -> tuple[float, float, float]:
    """Return the RGB colour of a trial, the same as in the page: hsl(137.508 · trial, 58 %, 52 %)."""
    return hls_to_rgb(trial * GOLDEN % 360 / 360, 0.52, 0.58)


def _lane_names(timeline: Chart) -> list[str]:
    slots: list[list[int]] = [[] for _ in timeline.lanes]
    for worker in timeline.workers:
        if not slots[worker.lane] or slots[worker.lane][-1] != worker.slot:
            slots[worker.lane].append(worker.slot)
    hosts = len(set(timeline.lanes)) > 1
    return [
        f"{'→'.join(map(str, slots[lane][-3:]))}{f' · {host}' if hosts else ''}"
        for lane, host in enumerate(timeline.lanes)
    ]


def _summary(timeline: Chart, trials: int | None = None) -> str:
    idle = timeline.idle()
    parts = [
        words.duration(timeline.elapsed(timeline.at)),
        words.count(len(timeline.lanes), "worker"),
        words.count(timeline.units, "unit"),
        f"{words.size(timeline.hop_bytes)} hopped",
    ]
    if trials is not None:
        parts.insert(1, words.count(trials, "trial"))
    if idle is not None:
        parts.insert(2, f"{idle:.1%} idle")
    if timeline.lost:
        parts.append(f"{words.count(len(timeline.lost), 'worker')} lost")
    return ", ".join(parts)


class Units:
    """What the chart draws of each span, in columns: 50 bytes a unit and 4 for each metric, where a million Spans would
    be a gigabyte. The order is that in which they ended; times are in 0.1 ms since the beginning.

    Args:
        metrics: whether to store the values of the metrics.
    """

    def __init__(self, metrics: bool = False) -> None:
        self._metrics = metrics
        self.trials: dict[int, Config] = {}
        self.partitions = 0
        self.start, self.length, self.bytes = array("q"), array("q"), array("q")
        self.lane, self.slot, self.trial, self.epoch = array("i"), array("i"), array("i"), array("i")
        self.first, self.many, self.hop = array("i"), array("i"), array("i")
        self.kind, self.outcome = array("b"), array("b")
        self.again: set[int] = set()
        self.error: dict[int, int] = {}
        self.errors: dict[str, int] = {}
        self.values: dict[str, array[float]] = {}
        """Metric → its mean over the rows of each unit; NaN where a unit has none."""

    def read(self, lines: Iterable[Line]) -> Chart:
        """Read all these lines, once, and return their timeline."""
        timeline = Chart(lambda span: self._add(timeline, span))
        for line in lines:
            if isinstance(line, Proposed):
                self.trials[line.trial] = line.config
            elif isinstance(line, Began):
                self.partitions = line.spec.partitions
            timeline.see(line)
        for span in list(timeline.open.values()):
            self._add(timeline, span)
        return timeline

    def order(self) -> array[int]:
        """Return the units by lane and start. (The keys of `sorted` would take more memory than all columns.)"""
        import numpy as np

        return array("i", np.lexsort((np.asarray(self.start), np.asarray(self.lane))).astype("i").tobytes())

    def _add(self, timeline: Chart, span: Span) -> None:
        if span.lane < 0:
            return
        index = len(self.start)
        start = round(timeline.elapsed(span.start) * 1e4)
        end = span.end if span.end is not None else max(timeline.at, span.start)
        self.start.append(start)
        self.length.append(max(1, round(timeline.elapsed(end) * 1e4) - start))
        self.lane.append(span.lane)
        self.slot.append(span.slot)
        self.trial.append(span.trial)
        self.kind.append(KINDS.index(span.kind))
        self.epoch.append(span.epoch)
        self.first.append(span.partitions[0] if span.partitions else 0)
        self.many.append(len(span.partitions))
        self.outcome.append(OUTCOMES.index(span.outcome))
        self.hop.append(round(span.hop_seconds * 1e4))
        self.bytes.append(span.hop_bytes)
        if span.again:
            self.again.add(index)
        if span.error:
            self.error[index] = self.errors.setdefault(span.error[:300], len(self.errors))
        if self._metrics:
            self._means(index, span)

    def _means(self, index: int, span: Span) -> None:
        """Append the mean of each scalar metric over the rows of a unit."""
        names = dict.fromkeys(name for part in span.parts for name in part.sums)
        for name in names:
            column = self.values.setdefault(name, array("f"))
            column.extend([math.nan] * (index - len(column)))
            sums = [part.sums[name] for part in span.parts if name in part.sums]
            rows = sum(rows for _, rows in sums)
            total = math.nan if any(isinstance(one, Array) for one, _ in sums) else sum(one for one, _ in sums)  # type: ignore[misc]
            column.append(total / rows if rows and abs(total) < LARGEST * rows else math.nan)


def _data(timeline: Chart, units: Units) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield what the page draws, as (name, pieces of JSON): blocks as columns, by lane and start; times in 0.1 ms since
    the beginning."""
    names = words.Differing()
    for config in units.trials.values():
        names.see(config)
    shares = [timeline.idle_of(lane) if len(timeline.lanes) <= 2000 else None for lane in range(len(timeline.lanes))]
    order = units.order()
    yield (
        "lanes",
        _json(
            [
                {"name": name, "idle": None if idle is None else round(idle, 4)}
                for name, idle in zip(_lane_names(timeline), shares, strict=True)
            ]
        ),
    )
    yield (
        "trials",
        _json(
            {str(n): words.named(c, names.names if len(units.trials) > 1 else None) for n, c in units.trials.items()}
        ),
    )
    yield "partitions", _json(units.partitions)
    yield "metrics", _json(list(units.values))
    yield "errors", _json(list(units.errors))
    columns = ("start", "length", "lane", "slot", "trial", "kind", "epoch", "first", "many", "outcome", "hop", "bytes")
    for name in columns:
        yield name, _list(order, partial(_number, getattr(units, name)))
    yield "again", _json([row for row, index in enumerate(order) if index in units.again])
    yield "error", _json({str(row): units.error[index] for row, index in enumerate(order) if index in units.error})
    yield "values", _list(order, partial(_values, list(units.values.values())))
    yield (
        "marks",
        _json(
            [
                {"at": round(timeline.elapsed(mark.at) * 1e4), "lane": mark.lane, "what": mark.what, "text": mark.text}
                for mark in timeline.marks
            ]
        ),
    )


def _number(column: Sequence[int], index: int) -> str:
    return str(column[index])


def _json(value: Any) -> Iterator[str]:
    yield json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _list(order: Sequence[int], text: Callable[[int], str]) -> Iterator[str]:
    yield "["
    for start in range(0, len(order), PIECE):
        yield ("," if start else "") + ",".join([text(index) for index in order[start : start + PIECE]])
    yield "]"


def _values(columns: list[array[float]], index: int) -> str:
    """Return the means of one unit with four digits; null where it has none."""
    texts = [
        f"{column[index]:.4g}" if index < len(column) and math.isfinite(column[index]) else "null" for column in columns
    ]
    while texts and texts[-1] == "null":
        texts.pop()
    return f"[{','.join(texts)}]"
