"""The codec of a run's journal.

One JSON object a line, `type` first. NaN and infinities, which JSON lacks, are the strings "NaN", "Infinity" and
"-Infinity" wherever a metric or a logged value stands; additive arrays are packed (`spec.Array`). There are three lines
for each unit and perhaps a million units, so a line leaves out default values and what follows from the lines before
it: where a State lay in shared memory, which no later driver can use, and what a unit carries for its agent (`digest`,
`totals`, `model`).
"""

from __future__ import annotations

import math

import msgspec

from hopyard.core.facts import UNREADABLE, Codec, Fact, as_json, nonfinite_from_text
from hopyard.core.runs.events import (
    Began,
    Check,
    Closed,
    Deferred,
    Dispatch,
    Done,
    Event,
    Formed,
    Histogram,
    Line,
    Paused,
    Placed,
    Yielded,
)
from hopyard.errors import JournalError
from hopyard.spec import FORMAT, Array, Kind, Ref, Unit


class _JournalUnit(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A Unit as the journal has it."""

    lease: int
    trial: int
    kind: Kind
    epoch: int
    partitions: tuple[int, ...]
    start: Ref | None


class _Dispatch(Fact, frozen=True, tag="Dispatch"):
    """A Dispatch as the journal has it."""

    slot: int
    unit: _JournalUnit


_Written = Event | _Dispatch | Check | Placed | Deferred | Formed | Yielded | Paused | Closed
_decoder: msgspec.json.Decoder[_Written] = msgspec.json.Decoder(_Written)


def encode(line: Line) -> bytes:
    """Return one line of the journal, without its newline."""
    if isinstance(line, Dispatch):
        unit = line.unit
        short = _JournalUnit(unit.lease, unit.trial, unit.kind, unit.epoch, unit.partitions, unit.start)
        return as_json(_Dispatch(at=line.at, slot=line.slot, unit=short))
    if isinstance(line, Done):
        return as_json(msgspec.structs.replace(line, memory_key="") if line.memory_key else line, _all_finite(line))
    return as_json(line)


def decode(text: bytes) -> Line:
    """Return the fact in a line.

    Raises:
        JournalError: the line is no fact of this version; says what is wrong with it.
    """
    try:
        line = _decoder.decode(text)
    except UNREADABLE as error:
        try:  # NaN and infinities are strings: only then numbers may be strings
            line = msgspec.convert(nonfinite_from_text(msgspec.json.decode(text)), Done, str_keys=True)
        except UNREADABLE:
            raise JournalError(f"no fact of format {FORMAT}: {error}: {text[:120]!r}") from error
    if not line.at and not line.__struct_config__.omit_defaults and b'"at":' not in text:
        raise JournalError(f"no fact of format {FORMAT}: it has no time: {text[:120]!r}")
    if isinstance(line, _Dispatch):
        unit = line.unit
        full = Unit(unit.lease, unit.trial, unit.kind, unit.epoch, unit.partitions, unit.start)
        return Dispatch(at=line.at, slot=line.slot, unit=full)
    return line


def _all_finite(line: Done) -> bool:
    """Return True if all metrics of a line are finite. Arrays are not checked."""
    for part in line.parts:
        for total, rows in part.sums.values():
            if not math.isfinite(rows) or not (isinstance(total, Array) or math.isfinite(total)):
                return False
    logged = [point for points in line.logged.values() for point in points.values()]
    sums = [point.sum + point.sum_squares if isinstance(point, Histogram) else point for point in logged]
    return all(map(math.isfinite, (*line.values.values(), *sums)))


CODEC: Codec[Line] = Codec(FORMAT, Began, encode, decode, "`hopyard resume {directory}`")
"""For a run's journal."""
