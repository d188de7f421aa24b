"""What the runs of MLflow are to hold. A Sheet is the desired content of one MLflow run: a function of the records
alone, so that the same points, in the same order, come from each reading of the journal.

MLflow's limits, from mlflow/utils/validation.py at v3.17.2: names of 250 letters, digits and `_-.: /`, which as paths
are in their shortest form; parameters of 6,000 characters, tags of 8,000; 1,000 metrics, 100 parameters, 100 tags and
1 MB in a batch.
"""

from __future__ import annotations

import hashlib
import logging
import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hopyard.text import escaped, shown
from hopyard.tracking.reading import ReadAgain
from hopyard.tracking.records import (
    EpochEnded,
    Logged,
    OfTrial,
    Record,
    RungReached,
    RunStarted,
    TrialEnded,
    TrialStarted,
)

log = logging.getLogger(__name__)

RUN, TRIAL, ATTEMPT, POINTS = "hopyard.run", "hopyard.trial", "hopyard.attempt", "hopyard.points"
"""Tags by which the runs of MLflow are found again, and the one that says how many points of its sheet a run has."""
NAME, PARAM, TAG = 250, 6000, 2000
"""The most characters of a name, a parameter and a tag."""
BATCH_PARAMS, BATCH_POINTS = 25, 500
"""The most of a batch: even with the longest names and values, in letters of three bytes, it takes less than 1 MB."""

Key = tuple[int, int] | None
"""Trial and attempt; None: the run itself."""


class Point(NamedTuple):
    """A value of a metric."""

    name: str
    value: float
    at: int
    """Milliseconds since 1970."""
    step: int


class Batch(NamedTuple):
    """What goes to a run of MLflow in one request."""

    params: dict[str, str]
    points: Sequence[Point]
    tags: dict[str, str]


@dataclass(slots=True)
class Sheet:
    """What a run of MLflow is to hold.

    Attributes:
        name: its name.
        start: when it began, in milliseconds since 1970.
        tags, params: name → value.
        points: its points, without the first ones, which MLflow is known to have.
        dropped: how many these are, and the time of the last, as the tag `POINTS` has it.
        end: status and time of its end; None: it goes on.
        best: the last values of `best_…` points, by name.
    """

    name: str
    start: int
    tags: dict[str, str]
    params: dict[str, str]
    points: list[Point] = field(default_factory=list)
    dropped: tuple[int, int] = (0, 0)
    end: tuple[str, int] | None = None
    best: dict[str, float] = field(default_factory=dict)

    def missing(self, mark: str | None) -> int | None:
        """Return from which of `points` on MLflow lacks them; None: it has more than these, so the journal was not read
        as far yet.

        Args:
            mark: the tag `POINTS` in MLflow; None: there is none.

        Raises:
            ReadAgain: MLflow lacks points that were dropped.
        """
        first = (int(mark.partition(" ")[0]) if mark else 0) - self.dropped[0]
        if first > len(self.points):
            return None
        if first >= 0 and mark in (None, self._mark(first)):
            return first
        if self.dropped[0]:
            raise ReadAgain("MLflow lost points")
        return 0  # it has points of lines that the journal has lost since

    def batches(self, first: int, tags: Mapping[str, str], params: bool) -> Iterator[Batch]:
        """Yield points from the first one that MLflow lacks, these tags and, where `params`, the parameters. The tag
        `POINTS` goes with the points and after the rest, so that it never says too much."""
        pairs, tags = list(self.params.items()) if params else [], dict(tags)
        while len(pairs) > BATCH_PARAMS:
            yield Batch(dict(pairs[:BATCH_PARAMS]), (), {})
            del pairs[:BATCH_PARAMS]
        while True:
            last = min(first + BATCH_POINTS, len(self.points))
            yield Batch(dict(pairs), self.points[first:last], {**tags, POINTS: self._mark(last)})
            if last == len(self.points):
                return
            first, pairs, tags = last, [], {}

    def drop(self) -> None:
        """Forget the points: MLflow has them."""
        if self.points:
            self.dropped = self.dropped[0] + len(self.points), self.points[-1].at
            self.points = []

    def _mark(self, count: int) -> str:
        """Return the tag `POINTS` of a run that has so many of `points`: how many in all, and the time of the last."""
        return f"{self.dropped[0] + count} {self.points[count - 1].at if count else self.dropped[1]}"


class Sheets:
    """The sheets of a run and its trials.

    Args:
        name: of the run.

    Attributes:
        run: the sheet of the run. There is one from the first record on.
        trials: trial and attempt → its sheet.
    """

    run: Sheet

    def __init__(self, name: str) -> None:
        self._name = name
        self._metric, self._sign, self._ends = "", 1.0, 0
        self._noted: set[tuple[str, str]] = set()
        self.trials: dict[tuple[int, int], Sheet] = {}

    def take(self, record: Record) -> None:
        """Add what a record says."""
        at = round(record.at * 1000)
        if isinstance(record, RunStarted):
            self._start(record, at)
        if not isinstance(record, OfTrial):
            return
        key = record.trial, record.attempt
        if isinstance(record, TrialStarted):
            tags = {RUN: self.run.tags[RUN], TRIAL: str(record.trial), ATTEMPT: str(record.attempt)}
            self.trials[key] = Sheet(name_of(*key), at, tags, self._params(record.config))
            return
        sheet = self.trials[key]
        if isinstance(record, TrialEnded):
            self._end(record, at, sheet)
            return
        sheet.end = None  # it goes on: it got more epochs, or is tried again
        if isinstance(record, EpochEnded):
            sheet.points += [Point(self._safe(name), v, at, record.epoch) for name, v in record.metrics.items()]
        elif isinstance(record, Logged):
            for name, value in record.values.items():
                if isinstance(value, float):
                    sheet.points.append(Point(self._safe(f"logged/{name}"), value, at, record.step))
                else:
                    self._note(name, "is a histogram, which MLflow has no place for: it is left out")
        elif isinstance(record, RungReached):
            sheet.tags["hopyard.search"] = _tag(f"{record.verdict} after {record.epochs:g} epochs: {record.reason}")

    def _start(self, record: RunStarted, at: int) -> None:
        settings = record.settings
        self._metric, self._sign = settings.get("metric") or "", -1.0 if settings.get("mode") == "max" else 1.0
        params = {name: value for name, value in settings.items() if value is not None and value != ()}
        facts = {"version" if name == "hopyard" else name: value for name, value in record.facts.items()}
        tags = {f"hopyard.{name}": _tag(str(value)) for name, value in facts.items()}
        self.run = Sheet(self._name, at, {**tags, RUN: record.run}, self._params(params))

    def _end(self, record: TrialEnded, at: int, sheet: Sheet) -> None:
        """Note the end of a trial, and the best value of the run's metric: of the trial by epoch, of the run by the
        number of trials that have ended."""
        self._ends += 1
        sheet.end = "FAILED" if record.status == "failed" else "FINISHED", at
        texts = {"status": record.status, "digest": record.digest, "reason": record.reason}
        texts["epoch"] = "" if record.epoch is None else str(record.epoch)
        tags = {f"hopyard.{name}": _tag(text) for name, text in texts.items()}
        sheet.tags |= {name: text for name, text in tags.items() if text or name in sheet.tags}
        value = record.metrics.get(self._metric, math.nan)
        if not math.isfinite(value) or record.status == "failed" or record.epoch is None:
            return
        name = self._safe(f"best_{self._metric}")
        for each, step in ((sheet, record.epoch), (self.run, self._ends)):
            before = each.best.get(name)
            if before is None or self._sign * value < self._sign * before:
                each.best[name] = value
                each.points.append(Point(name, value, at, step))

    def _params(self, values: Mapping[str, Any]) -> dict[str, str]:
        params = {}
        for name, value in values.items():
            text = escaped(str(value))
            if len(text) > PARAM:
                self._note(name, f"is cut after {PARAM:,} of {len(text):,} characters")
            params[self._safe(name)] = _cut(text, PARAM)
        return params

    def _safe(self, name: str) -> str:
        safe = safe_name(name)
        if safe != name:
            self._note(name, f"is no name for MLflow, there it is {shown(safe)}")
        return safe

    def _note(self, name: str, what: str) -> None:
        """Say once what is not sent as it is."""
        if (name, what) not in self._noted:
            self._noted.add((name, what))
            log.warning("%s %s", shown(name), what)


def name_of(trial: int, attempt: int) -> str:
    """Return the name of a trial's run."""
    again = ", again" if attempt else ""
    return f"trial {trial}{again}{f' ({attempt})' if attempt > 1 else ''}"


def safe_name(name: str) -> str:
    """Return a name that MLflow accepts: the same where it can be, else one that no other name becomes."""
    unique = posixpath.normpath(name) == name and name != "." and not name.startswith(("/", ".."))
    if unique and len(name) <= NAME and re.fullmatch(r"[/\w.\- :]+", name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return re.sub(r"[^\w\- ]", "_", name)[: NAME - 9] + "-" + digest


def _tag(text: str) -> str:
    return _cut(escaped(text), TAG)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
