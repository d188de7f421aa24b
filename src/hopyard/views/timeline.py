"""Who worked on what, when: the lines of a journal as spans on lanes, their totals, and those of each host.

A *span* is one unit on one slot, from its `Dispatch` to its end. A *worker* is one slot, from its `Joined` until it was
gone. A *lane* is a row of the chart: a slot that joins takes the lane of one that is gone from the same host, so a
replaced worker stays where people look for it. A training unit of a gang is on the lane of its first member, and all
members are busy with it. Times are the journal's; no clock is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hopyard.core.facts import Lost
from hopyard.core.runs.events import (
    Began,
    Check,
    Checked,
    Dispatch,
    Done,
    Durable,
    Extended,
    Failed,
    Finished,
    Formed,
    Granted,
    Interrupted,
    Joined,
    Left,
    Line,
    Paused,
    Proposed,
    Resumed,
    Retried,
    Shrunk,
    Stopped,
    Yielded,
)
from hopyard.spec import Part
from hopyard.views.hosts import HostRecord


@dataclass(slots=True)
class Span:
    """One unit (or, as kind "check", a preflight) on one slot."""

    start: float
    slot: int
    lane: int
    lease: int
    trial: int
    kind: str
    epoch: int
    partitions: tuple[int, ...]
    end: float | None = None
    """None while it runs."""
    outcome: str = "running"
    """"running", "done", "failed" or "lost"."""
    error: str = ""
    parts: tuple[Part, ...] = ()
    hop_seconds: float = 0.0
    hop_bytes: int = 0
    step: int = 0
    """Partitions that its trial had finished when it began."""
    again: bool = False
    """Whether some of its partitions had been dispatched before."""
    members: tuple[int, ...] = ()
    """The workers that work on it, where they are several."""


@dataclass(slots=True)
class WorkerSpan:
    """One slot, from when it joined until it was gone."""

    slot: int
    host: str
    lane: int
    joined: float
    left: float | None = None
    busy: float = 0.0
    """Seconds that it spent on units that ended."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a worker, or to the whole run: then `lane` is -1."""

    at: float
    lane: int
    what: str
    """"lost", "failed", "resumed", "interrupted", "stopped" or "finished"."""
    text: str
    slot: int = -1
    trial: int = -1


@dataclass
class Chart:
    """What a run did, as far as the lines go. It owns its state and changes it in `see` only.

    Args:
        each: called with each span that ended. Spans are not stored here: there may be a million of them.
        keep: whether to count what was done again, which takes a few bytes for each epoch of each trial; the live
            table does without.
    """

    each: Callable[[Span], object] = lambda span: None
    keep: bool = True
    workers: list[WorkerSpan] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    lanes: list[str] = field(default_factory=list)
    """Host of each lane."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """(from, to) of the times in which no driver lived."""
    open: dict[int, Span] = field(default_factory=dict)
    """Slot → the span that it works on."""
    began: float = 0.0
    """The time of the first line."""
    at: float = 0.0
    """The time of the newest line."""
    first: float | None = None
    """When the first unit was dispatched."""
    last: float = 0.0
    """When the last unit ended."""
    units: int = 0
    """Units that ended well."""
    parts: int = 0
    """Partitions in these units."""
    redone: int = 0
    """Partitions that were dispatched again. Counted only with `keep`."""
    hop_seconds: float = 0.0
    hop_bytes: int = 0
    stored: int = 0
    """States that became durable."""
    stored_bytes: int = 0
    thin: float = 0.0
    """Seconds in which fewer trials were to be trained than slots were there to train them."""
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    """What each host holds and has moved."""

    def __post_init__(self) -> None:
        self._present: dict[int, WorkerSpan] = {}
        self._newest: dict[int, WorkerSpan] = {}
        """Slot → its newest worker, also when that is gone: what it has done may be told later."""
        self._free: dict[str, list[int]] = {}
        self._dispatched: dict[tuple[int, str, int], int] = {}
        self._gangs: dict[int, tuple[int, ...]] = {}
        """Worker → the members of its gang, by rank."""
        self._over = False
        self._begun = False
        self._active: set[int] = set()
        """Trials that are to be trained, or are: they do not wait for a decision, and have not come to their end."""
        self._steps, self._partitions = 0, 1

    def see(self, line: Line) -> int:
        """Add one line. Returns the trial that it may have changed in a way people want to read about, or -1. O(1),
        but for a worker that joins a host with rows."""
        before, self.at = self.at, line.at
        if not self._begun:
            self._begun, self.began, before = True, line.at, line.at
        if self.first is not None and 0 < len(self._active) < self._trainers() and not isinstance(line, Resumed):
            self.thin += line.at - before
        match line:
            case Dispatch():
                self._dispatch(line)
            case Done():
                return self._done(line)
            case Began():
                self._steps, self._partitions = line.spec.steps, line.spec.partitions
            case Proposed() | Granted() | Retried():
                self._active.add(line.trial)
            case Paused() | Stopped():
                self._active.discard(line.trial)
            case Extended():
                self._steps = line.epochs * self._partitions
            case Durable():
                self._durable(line)
            case Failed():
                return self._failed(line)
            case Joined():
                self._joined(line)
            case Formed():
                self._gangs |= dict.fromkeys(line.members, line.members)
            case Lost():
                return self._gone(line.slot, line.at, line.reason)
            case Left():
                self._gone(line.slot, line.at, line.reason, mark=False)
            case Yielded():
                for slot in line.slots:
                    self._gone(slot, line.at, "too few for a gang: it was given back", mark=False)
            case Check():
                lane = self._present[line.slot].lane if line.slot in self._present else -1
                self.open[line.slot] = Span(line.at, line.slot, lane, -1, line.trial, "check", 0, line.partitions)
            case Checked():
                return self._checked(line)
            case Resumed():
                for slot in list(self._present):
                    self._gone(slot, before, "its driver was gone", mark=False)
                self.gaps.append((before, line.at))
                self._over = False
                self.marks.append(Mark(line.at, -1, "resumed", "another driver took over"))
            case Shrunk():
                text = (
                    f"the engine has no more workers: gangs have {line.members} from now on, and other bits than before"
                )
                self.marks.append(Mark(line.at, -1, "shrunk", text))
            case Interrupted():
                self._over = True
                self.marks.append(Mark(line.at, -1, "stopped" if line.stopped else "interrupted", line.reason))
            case Finished():
                self._over = True
                self.marks.append(Mark(line.at, -1, "finished", line.status))
            case _:
                pass
        return -1

    def _failed(self, line: Failed) -> int:
        span = self.open.get(self._gangs.get(line.slot, (line.slot,))[0])
        if span is None or span.lease != line.lease:
            return -1
        self._end(span, line.at, "failed", line.error)
        if line.fault == "user":
            self._active.discard(span.trial)
        text = f"trial {span.trial} failed on worker {line.slot} ({line.fault}): {line.error}"
        self.marks.append(Mark(line.at, span.lane, "failed", text, line.slot, span.trial))
        return span.trial

    def _gone(self, slot: int, at: float, reason: str, mark: bool = True) -> int:
        """Remove a slot that is gone. Returns the trial that it worked on, or -1."""
        worker = self._present.pop(slot, None)
        if worker is None:
            return -1
        worker.left = at
        self.hosts[worker.host].present -= 1
        self._free.setdefault(worker.host, []).append(worker.lane)
        if mark and not self._over:
            text = f"worker {slot} on {worker.host} lost: {reason}"
            self.marks.append(Mark(at, worker.lane, "lost", text, slot))
        members = self._gangs.get(slot, (slot,))
        for member in members:
            self._gangs.pop(member, None)
        span = self.open.get(members[0])
        if span is None or (span.slot != slot and not span.members):
            return -1
        self._end(span, at, "lost", reason)
        return span.trial

    def idle(self, now: float | None = None) -> float | None:
        """Return the share of slot-seconds without a unit, from the first dispatch to the end of the last unit, or to
        `now` while units run. None when nothing was dispatched. O(slots)."""
        if self.first is None:
            return None
        present = self.slot_seconds(now)
        return max(0.0, 1 - self.busy(now) / present) if present > 0 else None

    def slot_seconds(self, now: float | None = None) -> float:
        """Return the slot-seconds in which slots were there, of the same time as `idle`."""
        end = self._until(now)
        return sum(self._presence(worker, end) for worker in self.workers)

    def busy(self, now: float | None = None) -> float:
        """Return the slot-seconds with a unit."""
        end = self._until(now)
        running = sum(
            max(0.0, end - span.start) * max(1, len(span.members))
            for span in self.open.values()
            if span.kind != "check"
        )
        return sum(worker.busy for worker in self.workers) + running

    def idle_of(self, lane: int) -> float | None:
        """Return the idle share of one lane, for a run that does not go on."""
        workers = [worker for worker in self.workers if worker.lane == lane]
        end = self._until(None)
        present = sum(self._presence(worker, end) for worker in workers)
        running = sum(max(0.0, end - s.start) for s in self.open.values() if s.lane == lane and s.kind != "check")
        return max(0.0, 1 - (sum(worker.busy for worker in workers) + running) / present) if present > 0 else None

    def elapsed(self, at: float) -> float:
        """Return the seconds from the beginning to `at`, without those in which no driver lived."""
        return at - self.began - sum(max(0.0, min(at, end) - start) for start, end in self.gaps if start < at)

    @property
    def lost(self) -> list[Mark]:
        """The workers that were lost."""
        return [mark for mark in self.marks if mark.what == "lost"]

    def _trainers(self) -> int:
        """Return how many trials can be trained at the same time."""
        gangs = set(self._gangs.values())
        return len(gangs) if gangs else len(self._present)

    def _until(self, now: float | None) -> float:
        if self.open:
            return max(self.last, self.at if now is None else now)
        return self.last

    def _presence(self, worker: WorkerSpan, end: float) -> float:
        first = 0.0 if self.first is None else self.first
        return max(0.0, min(end, worker.left if worker.left is not None else end) - max(first, worker.joined))

    def _joined(self, line: Joined) -> None:
        if line.slot in self._present:
            self._gone(line.slot, line.at, "it joined again", mark=False)
        free = self._free.get(line.host)
        if free:
            lane = free.pop(0)
        else:
            lane = len(self.lanes)
            self.lanes.append(line.host)
        worker = self._present[line.slot] = self._newest[line.slot] = WorkerSpan(line.slot, line.host, lane, line.at)
        self.workers.append(worker)
        host = self.hosts.setdefault(line.host, HostRecord())
        host.present += 1
        host.workers = max(host.workers, host.present)
        host.entry = line.entry
        for each in line.rows:
            host.add_rows(each.kind, range(each.first, each.end))

    def _dispatch(self, line: Dispatch) -> None:
        unit = line.unit
        if self.first is None:
            self.first = self.last = line.at
        lane = self._present[line.slot].lane if line.slot in self._present else -1
        span = Span(line.at, line.slot, lane, unit.lease, unit.trial, unit.kind, unit.epoch, unit.partitions)
        span.step = unit.step
        if unit.kind == "train":
            span.members = self._gangs.get(line.slot, ())
            self._active.add(unit.trial)  # one that was completed goes on, as the run is given more epochs
        if self.keep:
            key = unit.trial, unit.kind, unit.epoch
            dispatched = self._dispatched.get(key, 0)
            bits = 0
            for partition in unit.partitions:
                bits |= 1 << partition
            self._dispatched[key] = dispatched | bits
            twice = (dispatched & bits).bit_count()
            span.again = twice > 0
            self.redone += twice
        self.open[span.slot] = span

    def _end(self, span: Span, at: float, outcome: str, error: str = "") -> None:
        self.open.pop(span.slot, None)
        span.end, span.outcome, span.error = at, outcome, error
        if span.kind != "check":
            self.last = max(self.last, at)
            for slot in span.members or (span.slot,):
                self._newest[slot].busy += at - span.start
        self.each(span)

    def _checked(self, line: Checked) -> int:
        span, host = self.open.get(line.slot), self._host(line.slot)
        host.add_cost(line.fetched_bytes, line.peak_bytes)
        if span is not None and span.kind == "check":
            self._end(span, line.at, "failed" if line.faults else "done", "; ".join(line.faults))
            if not line.faults:
                train, validate = span.partitions
                host.add_rows("train", [train])
                if any(name.startswith("val_") for name in line.names):
                    host.add_rows("validate", [validate])
        return line.trial

    def _durable(self, line: Durable) -> None:
        self.stored += 1
        self.stored_bytes += line.bytes
        host = self._host(line.slot)
        host.states += 1
        host.state_bytes += line.bytes

    def _host(self, slot: int) -> HostRecord:
        """Return the record of the host of a slot; one that nobody sees where it is not known."""
        worker = self._newest.get(slot)
        return HostRecord() if worker is None else self.hosts[worker.host]

    def _done(self, line: Done) -> int:
        span = self.open.get(line.slot)
        if span is not None and span.lease != line.lease:
            span = None
        costs = [(line.fetched_bytes, line.peak_bytes), *line.others]
        members = span.members if span is not None and span.members else (line.slot,)
        for rank, member in enumerate(members):
            host = self._host(member)
            host.hop_bytes += 0 if rank else line.hop_bytes
            host.exchanged_bytes += line.exchanged_bytes
            if rank < len(costs):
                host.add_cost(*costs[rank])
            if span is not None and span.kind != "fold":
                host.add_rows(span.kind, span.partitions)
        if span is None:  # it comes late, and does not count; its bytes were moved all the same
            return -1
        span.hop_seconds, span.hop_bytes, span.parts = line.hop_seconds, line.hop_bytes, line.parts
        self._end(span, line.at, "done")
        self.units += 1
        self.parts += len(line.parts)
        if span.kind == "train" and span.step + len(line.parts) >= self._steps:
            self._active.discard(span.trial)
        self.hop_seconds += line.hop_seconds
        self.hop_bytes += line.hop_bytes
        return span.trial


def chart(lines: Iterable[Line], each: Callable[[Span], object] = lambda span: None, keep: bool = True) -> Chart:
    """Return the chart of all these lines. The first is `Began`; `each` and `keep` are as for `Chart`."""
    timeline = Chart(each, keep)
    for line in lines:
        timeline.see(line)
    return timeline
