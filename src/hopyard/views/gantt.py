"""The chart of a run: who worked on what, when. `html` opens in any browser, without network; `png` is for papers.

One lane a worker (one that replaces another goes on in its lane), one block a unit, one colour a trial. The page holds
the blocks as columns of numbers and draws on a canvas only what is to be seen, so 100,000 units move smoothly.
"""

from __future__ import annotations

import html as escaping
import json
import math
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from hopyard.core.events import Began, Line, Proposed
from hopyard.errors import UsageError
from hopyard.spec import Config
from hopyard.views import words
from hopyard.views.chart import Chart, Span, chart

KINDS = ("train", "validate", "fold", "check")
OUTCOMES = ("done", "failed", "lost", "running")
GOLDEN = 137.508
"""Degrees between the hues of neighbouring trials: any few of them in a row look different."""


def html(lines: Sequence[Line], title: str = "Hopyard run") -> str:
    """A page of its own. About 50 bytes a unit."""
    found = chart(lines)
    data = _data(found, lines)
    page = files(__package__).joinpath("gantt.html").read_text(encoding="utf-8")
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    return (
        page.replace("{{title}}", escaping.escape(title))
        .replace("{{summary}}", escaping.escape(_summary(found, data)))
        .replace("{{data}}", text)
    )


def png(lines: Sequence[Line], path: str | Path) -> None:
    """The same as a picture; the format is that of the path's ending (png, pdf, svg).

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.collections import PolyCollection
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"{path}: a picture of the chart needs matplotlib, which is not installed: pip install hopyard[plot]; "
            "a path that ends in .html needs nothing"
        ) from error
    found = chart(lines)
    lanes = max(1, len(found.lanes))
    figure = Figure(figsize=(12, min(40.0, 1.6 + 0.34 * lanes)), layout="constrained")
    axes = figure.subplots()
    boxes, fills = [], []
    for span in found.spans:
        a, b, y = _x(found, span.start), _x(found, _end(found, span)), span.lane
        boxes.append([(a, y - 0.4), (b, y - 0.4), (b, y + 0.4), (a, y + 0.4)])
        colour = (0.6, 0.6, 0.6) if span.kind == "check" else _colour(span.trial)
        fills.append((*colour, 1.0 if span.kind == "train" else 0.4))
    edge = 0.3 if len(boxes) < 3000 else 0.0
    axes.add_collection(
        PolyCollection(boxes, facecolors=fills, edgecolors="white" if edge else "none", linewidths=edge)
    )
    axes.set_xlim(0.0, max(1e-3, _x(found, found.at)) * 1.01)
    axes.set_ylim(-0.6, lanes - 0.4)
    for mark in found.marks:
        if mark.lane < 0:
            if mark.what == "resumed":
                axes.axvline(_x(found, mark.at), color="tab:orange", linestyle="--", linewidth=1)
        else:
            axes.plot([_x(found, mark.at)], [mark.lane], marker="x", color="black" if mark.what == "lost" else "red")
    names = _lane_names(found)
    axes.set_yticks(range(lanes), names or [""], fontsize=8 if lanes < 40 else 4)
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_title(_summary(found, None), fontsize=9)
    figure.savefig(path, dpi=150)


def _x(found: Chart, at: float) -> float:
    return found.elapsed(at)


def _end(found: Chart, span: Span) -> float:
    return span.end if span.end is not None else max(found.at, span.start)


def _colour(trial: int) -> tuple[float, float, float]:
    """RGB of a trial, the same as in the page: hsl(137.508 · trial, 58 %, 52 %)."""
    hue, saturation, lightness = (trial * GOLDEN) % 360 / 60, 0.58, 0.52
    chroma = (1 - abs(2 * lightness - 1)) * saturation
    second = chroma * (1 - abs(hue % 2 - 1))
    low = lightness - chroma / 2
    rgb = [(chroma, second, 0), (second, chroma, 0), (0, chroma, second)]
    rgb += [(0, second, chroma), (second, 0, chroma), (chroma, 0, second)]
    r, g, b = rgb[min(int(hue), 5)]
    return r + low, g + low, b + low


def _lane_names(found: Chart) -> list[str]:
    slots: list[list[int]] = [[] for _ in found.lanes]
    for seat in found.seats:
        if not slots[seat.lane] or slots[seat.lane][-1] != seat.slot:
            slots[seat.lane].append(seat.slot)
    hosts = len(set(found.lanes)) > 1
    return [
        f"{'→'.join(map(str, slots[lane][-3:]))}{f' · {host}' if hosts else ''}"
        for lane, host in enumerate(found.lanes)
    ]


def _summary(found: Chart, data: dict[str, Any] | None) -> str:
    idle = found.idle()
    parts = [
        words.duration(found.elapsed(found.at)),
        words.count(len(found.lanes), "worker"),
        words.count(found.units, "unit"),
        f"{words.size(found.hop_bytes)} hopped",
    ]
    if data is not None:
        parts.insert(1, words.count(len(data["trials"]), "trial"))
    if idle is not None:
        parts.insert(2, f"{idle:.1%} idle")
    if found.lost:
        parts.append(f"{words.count(len(found.lost), 'worker')} lost")
    return ", ".join(parts)


def _data(found: Chart, lines: Iterable[Line]) -> dict[str, Any]:
    """What the page draws: blocks as columns, by lane and start; times in 0.1 ms since the beginning."""
    trials: dict[int, Config] = {}
    partitions = 0
    for line in lines:
        if isinstance(line, Proposed):
            trials[line.trial] = line.config
        elif isinstance(line, Began):
            partitions = line.spec.partitions
    spans = sorted((span for span in found.spans if span.lane >= 0), key=lambda span: (span.lane, span.start))
    starts = [round(found.elapsed(span.start) * 1e4) for span in spans]
    names = words.Differing()
    for config in trials.values():
        names.see(config)
    metrics: dict[str, int] = {}
    errors: dict[str, int] = {}
    for span in spans:
        for part in span.parts:
            for name in part.sums:
                metrics.setdefault(name, len(metrics))
        if span.error:
            errors.setdefault(span.error[:300], len(errors))
    shares = [found.idle_of(lane) if len(found.lanes) <= 2000 else None for lane in range(len(found.lanes))]
    return {
        "lanes": [
            {"name": name, "idle": None if idle is None else round(idle, 4)}
            for name, idle in zip(_lane_names(found), shares, strict=True)
        ],
        "trials": {
            str(n): words.named(config, names.names if len(trials) > 1 else None) for n, config in trials.items()
        },
        "partitions": partitions,
        "metrics": list(metrics),
        "errors": list(errors),
        "start": starts,
        "length": [
            max(1, round(found.elapsed(_end(found, span)) * 1e4) - start)
            for span, start in zip(spans, starts, strict=True)
        ],
        "lane": [span.lane for span in spans],
        "slot": [span.slot for span in spans],
        "trial": [span.trial for span in spans],
        "kind": [KINDS.index(span.kind) for span in spans],
        "epoch": [span.epoch for span in spans],
        "first": [span.partitions[0] if span.partitions else 0 for span in spans],
        "many": [len(span.partitions) for span in spans],
        "outcome": [OUTCOMES.index(span.outcome) for span in spans],
        "again": [index for index, span in enumerate(spans) if span.again],
        "hop": [round(span.hop_seconds * 1e4) for span in spans],
        "bytes": [span.hop_bytes for span in spans],
        "error": {index: errors[span.error[:300]] for index, span in enumerate(spans) if span.error},
        "values": [_values(span, metrics) for span in spans],
        "marks": [
            {"at": round(found.elapsed(mark.at) * 1e4), "lane": mark.lane, "what": mark.what, "text": mark.text}
            for mark in found.marks
        ],
    }


def _values(span: Span, metrics: dict[str, int]) -> list[float | None]:
    """Mean of each scalar metric over the rows of a unit, four digits."""
    values: list[float | None] = []
    for name in metrics:
        total = rows = 0.0
        plain = True
        for part in span.parts:
            if name in part.sums:
                one, count = part.sums[name]
                if isinstance(one, list):
                    plain = False
                    break
                total += one
                rows += count
        mean = total / rows if rows and plain else math.nan
        values.append(float(f"{mean:.4g}") if math.isfinite(mean) else None)
    while values and values[-1] is None:
        values.pop()
    return values
