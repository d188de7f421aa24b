"""A run as a Chrome trace, which Perfetto and chrome://tracing open: a process for each host, a thread for each worker.

Source: Trace Event Format, JSON object with `traceEvents`: "M" names, "X" has a duration, "i" is an instant. Times are
in µs since the beginning, without those in which no driver lived.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from hopyard.core.runs.events import Joined, Line
from hopyard.views.timeline import Chart, Mark, Span

Event = dict[str, Any]
RUN = 0
"""The process of what happened to the whole run; hosts are processes from 1."""


def chrome(lines: Iterable[Line]) -> Iterator[str]:
    """Yield the JSON piece by piece, about 200 bytes for each unit and worker. What it keeps grows with the workers."""
    ended: list[Span] = []
    timeline = Chart(ended.append)
    places: dict[int, Event] = {}
    hosts: dict[str, int] = {}
    marks = 0
    yield '{"displayTimeUnit":"ms","traceEvents":[\n'
    yield _text(_name("process_name", {"pid": RUN, "tid": 0}, "run"))
    for line in lines:
        if isinstance(line, Joined):
            is_new = line.host not in hosts
            place = places[line.slot] = {"pid": hosts.setdefault(line.host, len(hosts) + 1), "tid": line.slot}
            if is_new:
                yield ",\n" + _text(_name("process_name", place, line.host))
            yield ",\n" + _text(_name("thread_name", place, f"worker {line.slot}"))
        timeline.see(line)
        for mark in timeline.marks[marks:]:
            yield ",\n" + _text(_instant(timeline, mark, places))
        marks = len(timeline.marks)
        for span in ended:
            yield from (",\n" + _text(event) for event in _work(timeline, span, places))
        ended.clear()
    for span in timeline.open.values():
        yield from (",\n" + _text(event) for event in _work(timeline, span, places))
    yield "\n]}\n"


def _text(event: Event) -> str:
    return json.dumps(event, separators=(",", ":"))


def _name(kind: str, place: Event, name: str) -> Event:
    return {"name": kind, "ph": "M", **place, "args": {"name": name}}


def _work(timeline: Chart, span: Span, places: dict[int, Event]) -> Iterator[Event]:
    """Yield a unit as an event of each worker that worked on it."""
    start = _micros(timeline, span.start)
    end = _micros(timeline, timeline.at if span.end is None else span.end)
    facts = {"trial": span.trial, "epoch": span.epoch + 1, "partitions": span.partitions, "outcome": span.outcome}
    if span.kind == "check":
        del facts["epoch"]
    if span.hop_bytes:
        facts |= {"hop_bytes": span.hop_bytes, "hop_seconds": span.hop_seconds}
    if span.error:
        facts["error"] = span.error
    if span.again:
        facts["again"] = True
    for slot in span.members or (span.slot,):
        if slot in places:
            name = f"{span.kind} trial {span.trial}"
            event = {"name": name, "cat": span.kind, "ph": "X", "ts": start, "dur": end - start}
            yield {**event, **places[slot], "args": facts}


def _instant(timeline: Chart, mark: Mark, places: dict[int, Event]) -> Event:
    """Return what happened to a worker, or to the run, as a line through all of the chart."""
    place = places.get(mark.slot)
    event = {"name": mark.what, "cat": "mark", "ph": "i", "ts": _micros(timeline, mark.at), "args": {"text": mark.text}}
    return {**event, "s": "g", "pid": RUN, "tid": 0} if place is None else {**event, "s": "t", **place}


def _micros(timeline: Chart, at: float) -> int:
    return round(timeline.elapsed(at) * 1e6)
