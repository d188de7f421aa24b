"""The loop between a link that is a script, a real machine and a real journal: given these messages, expect these."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hopyard.core.facts import Lost
from hopyard.core.messages import Down, End, Examine, GiveUpUnit, NoRoom, Ready, StoreState, Unfit, Up, Work
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import (
    Began,
    Checked,
    Deferred,
    Dispatch,
    Done,
    Durable,
    Exhausted,
    Failed,
    Finished,
    Interrupted,
    Joined,
    Left,
    Requested,
    StoreAway,
    StoreBack,
    Yielded,
)
from hopyard.core.runs.machine import Machine, fold
from hopyard.driver.commit import Gone
from hopyard.driver.runs import loop as loops
from hopyard.driver.runs.loop import RunLoop
from hopyard.driver.runs.workers import Workers
from hopyard.errors import HopyardError, Inexact, PreflightError, ResourceError
from hopyard.search.listed import Listed
from hopyard.search.proposer import Proposer
from hopyard.spec import Gang, Part, PartitionRange, Ref, RunSpec, Timeouts
from hopyard.store import deletions
from hopyard.store.guard import StoreUnreachable
from hopyard.store.journal import Journal, read
from hopyard.store.states import LocalStore
from snapshots import snapshot

SPEC = RunSpec(epochs=1, partitions=2, validation=0, metric="loss")
READY = Ready(0, "here", 10)
FIT = Checked(at=0.0, slot=0, trial=0, faults=(), names=("loss",))


class Script:
    """A Link whose messages are listed: one list for each receive; a function is called for its list, or raises."""

    def __init__(self, *receives: Any) -> None:
        self.receives = list(receives)
        self.started: list[int] = []
        self.ended: list[int] = []
        self.sent: list[tuple[int, Down]] = []
        self.waits: list[float] = []
        self.closed = 0

    def start(self, slot: int) -> None:
        self.started.append(slot)

    def end(self, slot: int) -> None:
        self.ended.append(slot)

    def send(self, slot: int, message: Down) -> None:
        self.sent.append((slot, message))

    def receive(self, seconds: float) -> list[Up | Gone]:
        self.waits.append(seconds)
        if not self.receives:
            raise KeyboardInterrupt
        found = self.receives.pop(0)
        return list(found() if callable(found) else found)

    def confirm(self) -> None:
        pass

    def paused(self) -> float:
        return 0.0

    def stalls(self) -> dict[int, Any]:
        return {}

    def close(self) -> None:
        self.closed += 1

    @property
    def work(self) -> list[Work]:
        return [message for _, message in self.sent if isinstance(message, Work)]


class Stage:
    """A loop over one script, with its journal and store."""

    def __init__(
        self,
        folder: Path,
        *receives: Any,
        spec: RunSpec = SPEC,
        configs: int = 1,
        workers: int = 1,
        apart: int = 0,
        **more: Any,
    ) -> None:
        self.journal = Journal(folder / "journal.jsonl", CODEC)
        self.store = LocalStore(folder / "states")
        self.machine = Machine(spec)
        self.link = Script(*receives)
        began = Began(at=1.0, spec=spec, workers=apart)
        self.machine.handle(began)
        self.journal.append([began])
        self.seen: list[Any] = []
        sampler = Listed([{"n": n} for n in range(configs)])
        proposer = Proposer(self.machine, sampler, workers)
        self.workers = Workers(self.link, self.machine, workers, lambda s: folder / f"{s}.log", **more)
        self.loop = RunLoop(self.machine, self.journal, self.link, self.store, proposer, self.workers, [self])

    def see(self, lines: list[Any], machine: Machine) -> None:
        self.seen += lines

    def close(self, machine: Machine) -> None:
        self.seen.append("closed")

    def lines(self) -> list[Any]:
        return list(read(self.journal.path, CODEC))


@pytest.fixture
def stage(tmp_path: Path) -> Callable[..., Stage]:
    return lambda *receives, **more: Stage(tmp_path, *receives, **more)


def done(work: Work, slot: int = 0, where: str = "") -> Done:
    unit = work.unit
    parts = tuple(Part(partition, {"loss": (1.0, 2.0)}, 0.5) for partition in unit.partitions)
    return Done(at=0.0, slot=slot, lease=unit.lease, parts=parts, seconds=1.0, memory_key=where)


def durable(work: Work, slot: int = 0, digest: str = "d") -> Durable:
    unit = work.unit
    ref = Ref(unit.trial, unit.step + len(unit.partitions), unit.lease)
    return Durable(at=0.0, slot=slot, ref=ref, digest=digest, bytes=3)


def answer(stage: Stage, slot: int = 0, where: str = "") -> Callable[[], list[Any]]:
    """Done and Durable for the last unit that was given out."""
    return lambda: [done(stage.link.work[-1], slot, where), durable(stage.link.work[-1], slot)]


def test_a_run_from_its_first_agent_to_its_end(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT])
    it.link.receives += [answer(it), answer(it)]
    it.loop.run()
    assert [type(line).__name__ for line in it.lines()] == [
        *("Began", "Proposed", "Exhausted", "Joined", "Check", "Checked", "Dispatch"),
        *("Done", "Dispatch", "Durable", "Done", "Durable", "Finished"),
    ]
    assert it.lines()[-1].status == "completed"
    assert [type(message) for _, message in it.link.sent] == [Examine, Work, Work]
    assert it.link.closed == 1
    assert it.seen == [*it.lines()[1:], "closed"]
    assert snapshot(fold(it.lines())) == snapshot(it.machine)
    it.journal.close()


def test_decisions_are_on_disk_before_their_effects(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stage([READY], [FIT])
    send = it.link.send

    def checked_send(slot: int, message: Down) -> None:
        if isinstance(message, Work):
            assert [line.unit for line in it.lines() if isinstance(line, Dispatch)][-1] == message.unit
        send(slot, message)

    monkeypatch.setattr(it.link, "send", checked_send)
    it.link.receives += [answer(it), answer(it)]
    it.loop.run()
    assert len(it.link.work) == 2


def test_without_room_nothing_is_sent_and_all_is_closed(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stage([READY], [FIT])

    def full(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def now_full() -> list[Any]:
        monkeypatch.setattr("hopyard.store.journal.os.write", full)
        return [done(it.link.work[-1])]

    it.link.receives.append(now_full)
    with pytest.raises(ResourceError, match="room for the journal"):
        it.loop.run()
    assert len(it.link.work) == 1
    assert it.link.closed == 1
    assert isinstance(it.lines()[-1], Dispatch)  # its Done is not there


def test_an_interrupt_is_journaled(stage: Callable[..., Stage]) -> None:
    it = stage([READY])
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert it.lines()[-1] == Interrupted(at=it.lines()[-1].at, reason="interrupted by the user")
    assert it.link.closed == 1


def test_an_interrupt_between_machine_and_journal_leaves_a_journal_that_folds(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine knows of an answer that no journal has: it must not be asked what follows from an interrupt."""
    it = stage([READY], [FIT], configs=2)
    append = it.journal.append

    def interrupted(lines: Any) -> None:
        if any(isinstance(line, Done) for line in lines):
            monkeypatch.setattr(it.machine, "handle", lambda event: pytest.fail(f"asked about {event}"))
            monkeypatch.setattr(it.journal, "append", append)
            raise KeyboardInterrupt
        append(lines)

    monkeypatch.setattr(it.journal, "append", interrupted)
    it.link.receives.append(answer(it))
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert [type(line) for line in it.lines()[-2:]] == [Dispatch, Interrupted]
    assert fold(it.lines()).trials[0].step == 0


def test_stop_ends_it_soon(stage: Callable[..., Stage]) -> None:
    it = stage([READY])
    it.link.receives.append(lambda: it.loop._handle.stop("stopped by the user") or [])
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert it.lines()[-1] == Interrupted(at=it.lines()[-1].at, reason="stopped by the user", stopped=True)
    assert max(it.link.waits) <= loops.GLANCE


def test_a_lost_slot_is_replaced_and_its_unit_given_out_again(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [Gone(0, "was killed by SIGKILL")], [Ready(1, "here", 11)])
    it.link.receives += [answer(it, 1), answer(it, 1)]
    it.loop.run()
    assert it.link.started == [0, 1]
    assert it.link.ended == [0]
    assert [line.reason for line in it.lines() if isinstance(line, Lost)] == ["was killed by SIGKILL"]
    first, again, _ = it.link.work
    assert (again.unit.partitions, again.unit.start) == (first.unit.partitions, first.unit.start)
    assert again.unit.lease > first.unit.lease


def test_agents_that_never_come_up_end_the_run_with_their_log(stage: Callable[..., Stage], tmp_path: Path) -> None:
    it = stage(*([Gone(slot, "ended with exit code 1")] for slot in range(3)))
    (tmp_path / "2.log").write_text("Traceback\nModuleNotFoundError: No module named 'flights'\n")
    with pytest.raises(ResourceError, match="no worker comes up: 3 in a row") as caught:
        it.loop.run()
    assert "No module named 'flights'" in str(caught.value)
    assert str(tmp_path / "2.log") in str(caught.value)
    assert caught.value.exit_code == 4
    assert it.link.closed == 1
    assert it.lines()[-1].reason.startswith("ResourceError: no worker comes up: 3 in a row")
    assert "\n" not in it.lines()[-1].reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "interrupted by the user"),
        (SystemExit(143), "terminated"),
        (type("Terminated", (KeyboardInterrupt,), {})(), "terminated"),
        (ResourceError("no room\n  at all"), "ResourceError: no room"),
        (ValueError("\x1b[2J a search's own"), "ValueError: \\x1b[2J a search's own"),
        (ZeroDivisionError("a defect"), "ZeroDivisionError: a defect"),
    ],
)
def test_whatever_ends_the_driver_is_journaled(stage: Callable[..., Stage], error: BaseException, reason: str) -> None:
    def fail() -> list[Any]:
        raise error

    it = stage([READY], fail)
    with pytest.raises(type(error)):
        it.loop.run()
    assert it.lines()[-1] == Interrupted(at=it.lines()[-1].at, reason=reason)
    assert it.seen[-2:] == [it.lines()[-1], "closed"]


def test_agents_that_are_killed_before_they_are_ready_do_not_end_a_run_that_had_some(
    stage: Callable[..., Stage],
) -> None:
    it = stage([READY], [FIT], [Gone(0, "was killed by SIGKILL")])
    it.link.receives += [[Gone(slot, "was killed by SIGKILL")] for slot in range(1, 6)]
    it.link.receives += [[Ready(6, "here", 16)], answer(it, 6), answer(it, 6)]
    it.loop.run()
    assert it.machine.status == "completed"


def test_a_ready_worker_resets_the_count_of_failed_starts(stage: Callable[..., Stage]) -> None:
    gone = [[Gone(slot, "x")] for slot in (0, 1)]
    it = stage(*gone, [Ready(2, "here", 1)], [Gone(2, "x")], [Gone(3, "x")], [Gone(4, "x")])
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert it.link.started == [0, 1, 2, 3, 4, 5]


def test_an_import_that_fails_everywhere_fails_preflight(stage: Callable[..., Stage]) -> None:
    it = stage([Unfit(0, "the recipe does not load there: ModuleNotFoundError: No module named 'flights'")])
    with pytest.raises(PreflightError, match=r"cannot start: .*ModuleNotFound"):
        it.loop.run()


def test_a_host_where_no_worker_can_start_costs_its_slots_and_not_the_run(stage: Callable[..., Stage]) -> None:
    it = stage(workers=5)
    for slot in range(4):
        unfit = Unfit(slot, "no room for States in /dev/shm", host=True)
        it.link.receives.append([unfit, Gone(slot, "ended with exit code 0")])
    it.link.receives += [[Ready(4, "there", 12)], [Checked(at=0.0, slot=4, trial=0, faults=(), names=("loss",))]]
    it.link.receives += [answer(it, 4), answer(it, 4)]
    it.loop.run()
    assert it.machine.status == "completed" and it.link.started == [0, 1, 2, 3, 4]


def test_no_host_where_a_worker_can_start_any_more_ends_the_driver(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [Gone(0, "x")], [Unfit(1, "no room for States in /dev/shm", host=True)])
    with pytest.raises(ResourceError, match=r"no room for States.*No other worker"):
        it.loop.run()


def test_no_host_where_a_worker_can_start_is_a_fault_of_preflight(stage: Callable[..., Stage]) -> None:
    first, last = (Unfit(slot, "no room for States in /dev/shm", host=True) for slot in (0, 1))
    it = stage([first], [last], workers=2)
    with pytest.raises(PreflightError, match=r"cannot start: .*for States"):
        it.loop.run()


def test_a_worker_that_cannot_start_where_others_could_is_replaced(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [Gone(0, "x")], [Unfit(1, "MemoryError: ")], [Gone(1, "ended with exit code 0")])
    it.link.receives.append([Ready(2, "here", 12)])
    it.link.receives += [answer(it, 2), answer(it, 2)]
    it.loop.run()
    assert it.machine.status == "completed"


def test_faults_of_all_trials_are_reported_together(stage: Callable[..., Stage]) -> None:
    it = stage([READY], configs=5)
    for trial, fault in enumerate(("no", "never", "no")):
        it.link.receives.append([Checked(at=0.0, slot=0, trial=trial, faults=(fault,), names=())])
    with pytest.raises(PreflightError) as caught:
        it.loop.run()
    assert caught.value.faults == ["trials 0, 2: no", f"trial 1, config {it.machine.trials[1].config}: never"]
    assert "2 fault" in str(caught.value)
    assert not it.link.work
    assert it.lines()[-1] == Finished(at=it.lines()[-1].at, status="failed")


def test_a_failure_after_preflight_is_not_preflights(stage: Callable[..., Stage]) -> None:
    """The first trial cannot be built, the second can, and then fails in training: something was trained."""
    it = stage([READY], configs=2)
    it.link.receives.append([Checked(at=0.0, slot=0, trial=0, faults=("no",), names=())])
    it.link.receives.append([Checked(at=0.0, slot=0, trial=1, faults=(), names=("loss",))])
    it.link.receives.append(lambda: [Failed(at=0.0, slot=0, lease=1, fault="user", error="NaN")])
    it.loop.run()
    assert it.machine.status == "failed"


def test_no_room_for_states_ends_the_driver(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [NoRoom(0, "no room for State 0-1-1")])
    with pytest.raises(ResourceError, match=r"no room for State 0-1-1.*Nothing is lost.*hopyard resume"):
        it.loop.run()


def test_an_error_in_storing_states_ends_the_driver_and_asks_for_no_room(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [NoRoom(0, "State 0-1-1 cannot be stored: ValueError: a defect", "error")])
    with pytest.raises(HopyardError, match=r"ValueError: a defect\. .*`hopyard resume .*` goes on") as told:
        it.loop.run()
    assert not isinstance(told.value, ResourceError) and "room" not in str(told.value)


def test_a_durable_that_overtakes_its_answer_waits_for_it(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT])
    it.link.receives += [lambda: [durable(it.link.work[0])], lambda: [done(it.link.work[0])], answer(it)]
    it.loop.run()
    order = [type(line) for line in it.lines() if isinstance(line, (Done, Durable))]
    assert order == [Done, Durable, Done, Durable]
    assert it.machine.status == "completed"


def test_freed_memory_is_sent_with_the_next_unit(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], configs=2)
    it.link.receives += [answer(it, where=f"0-aaaaaaaa-{n}") for n in range(4)]
    it.loop.run()
    assert "0-aaaaaaaa-0" in [where for work in it.link.work for where in work.release]


def test_a_slot_past_its_deadline_is_ended_and_replaced(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = Timeouts(unit_timeout=5.0)
    it = stage([READY], [FIT], spec=RunSpec(epochs=1, partitions=2, validation=0, metric="loss", timeouts=limit))

    def later() -> list[Any]:
        now = it.loop._clock.now() + 6
        monkeypatch.setattr(it.loop._clock, "now", lambda: now)
        return []

    it.link.receives.append(later)
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert it.link.ended == [0]
    assert it.link.started == [0, 1]
    assert it.link.waits[2] <= loops.GLANCE


def defective(stage: Callable[..., Stage], exact: Any) -> Stage:
    """The last State was durable, an epoch's end before it not, and went with its slot: it is done again, otherwise."""
    it = stage([READY], [FIT], spec=RunSpec(epochs=2, partitions=1, validation=0, metric="loss", exact=exact))
    it.link.receives += [lambda: [done(it.link.work[0])], lambda: [done(it.link.work[1])]]
    it.link.receives += [lambda: [durable(it.link.work[1], digest="d" * 64)], [Gone(0, "x")], [Ready(1, "here", 11)]]
    it.link.receives += [answer(it, 1), lambda: [done(it.link.work[3], 1), durable(it.link.work[3], 1, "e" * 64)]]
    return it


def test_a_slot_with_nothing_to_do_is_given_back_and_not_replaced(stage: Callable[..., Stage]) -> None:
    it = stage(
        [READY], [FIT], [Ready(1, "there", 11)], [], [Gone(1, "ended with exit code 0")], workers=2, idle_timeout=0.0
    )
    it.link.receives += [answer(it), answer(it)]
    it.loop.run()
    assert [line.slot for line in it.lines() if isinstance(line, Left)] == [1]
    assert (1, End()) in it.link.sent
    assert it.link.ended == [1]
    assert it.link.started == [0, 1]
    assert it.machine.status == "completed"


def test_the_last_slot_stays(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], idle_timeout=0.0)
    it.link.receives += [answer(it), [], answer(it)]
    it.loop.run()
    assert not [line for line in it.lines() if isinstance(line, Left)]


class Places:
    """What a loop knows of the places of its agents, where others want them too."""

    def __init__(self, waiting: int) -> None:
        self.slots_waiting = waiting
        self.given_back: list[set[int]] = []

    def waiting(self) -> int:
        return self.slots_waiting

    def give_back(self, slots: set[int]) -> None:
        self.given_back.append(slots)
        self.slots_waiting = 0


def test_workers_that_are_too_few_for_a_gang_are_given_back(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hopyard.core.runs.holding.hold_seconds", lambda key, turn: 0.0)
    monkeypatch.setattr("hopyard.core.runs.holding.pause_seconds", lambda key, turn: 0.0)
    spec, places = msgspec.structs.replace(SPEC, gang=Gang(3)), Places(waiting=1)
    it = stage([READY, Ready(1, "here", 11)], [FIT], spec=spec, workers=3, shared=places)
    it.link.receives += [[], [Gone(1, "ended"), Gone(2, "ended")]]
    it.link.receives += [[Ready(slot, "here", 10 + slot) for slot in (3, 4, 5)], answer(it, 3), answer(it, 3)]
    it.loop.run()
    assert [(line.unplaced, line.starting) for line in it.lines() if isinstance(line, Requested)] == [(1, 2), (0, 3)]
    assert [line.slots for line in it.lines() if isinstance(line, Yielded)] == [(0, 1)]
    assert places.given_back == [{0, 1, 2}] and sorted(it.link.ended[:3]) == [0, 1, 2]
    assert it.link.started == [0, 1, 2, 3, 4, 5], "as many as before, and none for those that end now"
    assert [record.message for record in caplog.records if "gang" in record.message] == [
        "a gang needs 3 workers, and 2 came: their places are left to others for 0 s"
    ]
    assert it.machine.status == "completed"


def test_places_of_its_own_are_kept(stage: Callable[..., Stage]) -> None:
    spec = msgspec.structs.replace(SPEC, gang=Gang(3))
    it = stage([READY], [FIT], [], spec=spec, workers=3)
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert not [line for line in it.lines() if isinstance(line, (Requested, Yielded))]


def test_a_state_in_memory_that_is_not_shared_is_asked_of_who_has_it(stage: Callable[..., Stage]) -> None:
    here = Ready(0, "here", 10, memory="a", peer="tcp://here:1")
    there = Ready(1, "there", 11, memory="b", peer="tcp://there:1")
    it = stage([here], [FIT], [there], workers=2, spec=RunSpec(epochs=2, partitions=1, validation=1))
    it.link.receives += [lambda: [done(it.link.work[-1], 0, "m1")]]
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert [(slot, message.peer) for slot, message in it.link.sent if isinstance(message, Work)] == [
        (0, None),
        (0, None),  # it validates its own State
        (1, "tcp://here:1"),
    ]


@pytest.mark.parametrize("copies", [1, None])
def test_the_rows_of_a_host_are_in_the_fact_of_its_first_worker(
    stage: Callable[..., Stage], copies: int | None
) -> None:
    """A host of which no worker is left is new."""
    rows = (PartitionRange("train", 0, 2),)

    def ready(slot: int, host: str) -> Ready:
        return Ready(slot, host, 10 + slot, rows=rows)

    spec = msgspec.structs.replace(SPEC, copies=copies)
    it = stage([ready(0, "here"), ready(1, "here"), ready(2, "there")], [FIT], workers=3, apart=3, spec=spec)
    it.link.receives += [[Gone(0, "x"), ready(3, "here"), Gone(2, "x"), ready(4, "there")]]
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    joined = {line.slot: line.rows for line in it.lines() if isinstance(line, Joined)}
    assert joined == {0: rows, 1: (), 2: rows, 3: (), 4: rows}


def test_a_unit_whose_partitions_are_at_home_elsewhere_passes_through(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent need not keep them open."""
    it = stage([READY, Ready(1, "there", 11)], [FIT], workers=2, configs=2)
    monkeypatch.setattr(it.machine.places, "at_home", lambda host, kind, partition: host == "here")
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert {slot: message.passing for slot, message in it.link.sent if isinstance(message, Work)} == {0: False, 1: True}


def test_exact_does_not_go_on_after_a_defect(stage: Callable[..., Stage]) -> None:
    it = defective(stage, exact=True)
    with pytest.raises(Inexact, match=r"trial 0, step 2 .*another State"):
        it.loop.run()
    assert it.link.closed == 1
    assert [type(line) for line in it.lines()[-2:]] == [Durable, Interrupted]


def test_a_defect_is_logged_as_an_error(stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture) -> None:
    it = defective(stage, exact="warn")
    with caplog.at_level(logging.ERROR):
        it.loop.run()
    assert "defect: trial 0, step 2 " in caplog.text


def test_slots_are_numbered_on_after_a_resume(tmp_path: Path) -> None:
    it = Stage(tmp_path)
    it.workers._next_slot = 7
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert it.link.started == [7]


def test_states_that_nobody_needs_are_gone_at_the_end(stage: Callable[..., Stage]) -> None:
    """Stored by a worker that was lost before it said so. What the journal does not name is somebody else's."""
    it = stage([READY], [FIT])
    left, foreign = Ref(0, 1, 1), Ref(0, 1, 99)

    def lost() -> list[Any]:
        it.store.put(left, memoryview(b"abc"))
        it.store.put(foreign, memoryview(b"def"))
        return [Gone(0, "was killed by SIGKILL")]

    it.link.receives += [lost, [Ready(1, "here", 11)], answer(it, 1), answer(it, 1)]
    it.loop.run()
    assert it.store.refs() == {foreign}


def test_the_journal_knows_each_slot_that_joined(stage: Callable[..., Stage]) -> None:
    it = stage([READY, Ready(1, "there", 11)], [FIT], workers=2, configs=2)
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert [(line.slot, line.host) for line in it.lines() if isinstance(line, Joined)] == [(0, "here"), (1, "there")]


class Endless:
    """A search that does not know how many it proposes."""

    total: int | None = None

    def __init__(self, last: int | None = None) -> None:
        self.asked = 0
        self.last = last

    def ask(self, trial: int) -> Any:
        assert trial == self.asked  # in order, each once
        if trial == self.last:
            return None
        self.asked += 1
        return {"n": trial}


def test_a_search_that_never_ends_is_asked_as_it_is_needed(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT])
    search = Endless()
    it.loop._proposer = Proposer(it.machine, search, 1)
    it.link.receives += [answer(it)] * 100
    it.link.receives.append(lambda: it.loop._handle.stop("enough") or [])
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    ended = sum(trial.ended for trial in it.machine.trials.values())
    assert ended > 10 and search.asked - ended == it.machine.open <= 10  # 2 × (1 slot + 4)
    assert not it.machine.exhausted
    again = fold(it.lines())
    assert list(again.trials) == list(range(search.asked)) and not again.exhausted


def test_a_search_that_ends_unannounced(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT])
    it.loop._proposer = Proposer(it.machine, Endless(13), 1)
    it.link.receives += [answer(it)] * 200
    it.loop.run()
    assert (it.machine.status, len(it.machine.trials)) == ("completed", 13)
    assert sum(isinstance(line, Exhausted) for line in it.lines()) == 1


# ---------------------------------------------------------------- faults


def test_a_unit_that_is_taken_back_in_the_same_receive_is_sent_to_nobody(stage: Callable[..., Stage]) -> None:
    """Bug: the first member of a gang got it alone, when its gang was dissolved by the next message."""
    it = stage(
        [READY, Ready(1, "here", 11)],
        [FIT],
        spec=msgspec.structs.replace(SPEC, epochs=2, group=1, gang=Gang(2)),
        workers=2,
    )
    it.link.receives.append(lambda: [done(it.link.work[0]), Gone(1, "gone")])
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert {work.unit.lease for work in it.link.work} == {1}
    assert [type(message) for slot, message in it.link.sent if slot == 0] == [Examine, Work, GiveUpUnit]


def test_a_host_that_cannot_keep_its_rows_costs_its_slots_and_not_the_run(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    full = NoRoom(0, "host here: no room for the data cache in /cache", "rows")
    it = stage([READY, Ready(1, "there", 11)], [FIT], [full], workers=2)
    it.link.receives += [answer(it, 1), answer(it, 1)]
    it.loop.run()
    assert it.link.ended == [0] and it.link.started == [0, 1]  # it is not replaced
    assert it.machine.status == "completed" and it.machine.trials[0].strikes == {}
    (lost,) = [line for line in it.lines() if isinstance(line, Lost)]
    assert (lost.slot, lost.fault) == (0, "data") and "/cache" in lost.reason
    assert [r.message for r in caplog.records if "data cache in /cache" in r.message]


def test_the_last_worker_without_room_for_its_rows_ends_the_run(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [NoRoom(0, "host here: no room for the data cache in /cache", "rows")])
    with pytest.raises(ResourceError, match=r"host here: .*/cache\. No other worker"):
        it.loop.run()


def test_no_room_for_states_ends_the_run_though_there_are_other_workers(stage: Callable[..., Stage]) -> None:
    it = stage([READY, Ready(1, "there", 11)], [FIT], [NoRoom(0, "no room for State 0-1-1 in /s", "store")], workers=2)
    with pytest.raises(ResourceError, match=r"no room for State 0-1-1 in /s\. Nothing is lost: make room"):
        it.loop.run()


def test_a_worker_that_was_killed_for_memory_is_journaled_as_such(stage: Callable[..., Stage]) -> None:
    it = stage([READY], [FIT], [Gone(0, "process 10 was killed by SIGKILL", memory=True)], [Ready(1, "here", 11)])
    it.link.receives += [answer(it, 1), answer(it, 1)]
    it.loop.run()
    (lost,) = [line for line in it.lines() if isinstance(line, Lost)]
    assert lost.fault == "memory"
    (wait,) = [line for line in it.lines() if isinstance(line, Deferred)]
    assert (wait.trial, wait.fault) == (0, "memory")
    assert it.machine.status == "completed"


def test_a_death_reported_twice_starts_one_replacement(stage: Callable[..., Stage]) -> None:
    """Bug: a worker that ran out of memory and ended before that was dealt with got two."""
    it = stage([READY], [FIT])
    starved = Failed(at=0.0, slot=0, lease=1, fault="memory", error="MemoryError")
    it.link.receives += [[starved, Gone(0, "ended with exit code 1")], [Ready(1, "here", 11)]]
    it.link.receives += [answer(it, 1), answer(it, 1)]
    it.loop.run()
    assert it.machine.status == "completed"
    assert it.link.started == [0, 1]


def test_a_worker_without_room_for_its_rows_that_ends_at_once_is_not_replaced(stage: Callable[..., Stage]) -> None:
    full = NoRoom(0, "host here: no room for the data cache in /cache", "rows")
    it = stage([READY, Ready(1, "there", 11)], [FIT], [full, Gone(0, "ended with exit code 1")], workers=2)
    it.link.receives += [answer(it, 1), answer(it, 1)]
    it.loop.run()
    assert it.machine.status == "completed"
    assert it.link.started == [0, 1]


def test_times_never_run_back_where_a_state_is_durable_before_its_answer_came(stage: Callable[..., Stage]) -> None:
    """Bug: the journal had the time at which the message came, between facts that came after it."""
    it = stage([READY], [FIT])

    def tell_other() -> list[Any]:
        time.sleep(0.001)
        return [StoreAway(at=0.0, slot=0, error="away"), StoreBack(at=0.0, slot=0), done(it.link.work[-1])]

    it.link.receives += [lambda: [durable(it.link.work[-1])], tell_other] * 2
    it.loop.run()
    times = [line.at for line in it.lines()]
    assert any(isinstance(line, StoreBack) for line in it.lines())
    assert times == sorted(times)


def test_states_stored_before_their_slot_was_lost_are_deleted(stage: Callable[..., Stage]) -> None:
    """Bug: it was kept for its answer for ever, and its State was there until the last sweep."""
    it = stage([READY], [FIT])
    early: list[Ref] = []

    def durable_only() -> list[Any]:
        fact = durable(it.link.work[-1])
        it.store.put(fact.ref, memoryview(b"abc"))
        early.append(fact.ref)
        return [fact]

    def look() -> list[Any]:
        assert it.loop._early == {}
        until = time.monotonic() + 60
        while it.store.refs():
            assert time.monotonic() < until, "it is not deleted"
            time.sleep(0.01)
        return answer(it, 1)()

    it.link.receives += [durable_only, [Gone(0, "x")], [Ready(1, "here", 11)], look, answer(it, 1)]
    it.loop.run()
    assert early[0] in [line.ref for line in it.lines() if isinstance(line, Durable)]


def test_a_store_that_cannot_delete_does_not_end_the_run(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    it = stage([READY], [FIT])
    it.link.receives += [answer(it), answer(it)]
    asked: list[Ref] = []

    def delete(ref: Ref) -> None:
        asked.append(ref)
        raise StoreUnreachable("away")

    monkeypatch.setattr(it.store, "delete", delete)
    it.loop.run()
    assert it.machine.status == "completed" and asked


def test_failed_deletions_are_repeated(stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "AGAIN_SECONDS", 0.01)
    it = stage([READY], [FIT])
    asked: list[Ref] = []
    again = threading.Event()

    def delete(ref: Ref) -> None:
        asked.append(ref)
        if len(asked) == 1:
            raise StoreUnreachable("away")
        again.set()

    monkeypatch.setattr(it.store, "delete", delete)
    it.link.receives += [answer(it), answer(it)]
    it.loop._deletions.add(Ref(5, 1, 1))
    assert again.wait(60.0)
    it.loop.run()
    assert asked[:2] == [Ref(5, 1, 1)] * 2 and not len(it.loop._deletions)


def test_a_store_that_stalls_does_not_stop_the_run(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loops, "DRAIN_SECONDS", 0.1)
    it = stage([READY], [FIT])
    let_go = threading.Event()
    asked: list[Ref] = []

    def delete(ref: Ref) -> None:
        asked.append(ref)
        let_go.wait(60.0)

    monkeypatch.setattr(it.store, "delete", delete)
    it.link.receives += [answer(it), answer(it)]
    refs = [Ref(5, step, 1) for step in range(1, 4)]
    for ref in refs:
        it.loop._deletions.add(ref)
    it.loop.run()
    assert it.machine.status == "completed" and asked == refs[:1]
    assert "stay in the store" in caplog.text
    let_go.set()


def test_a_store_that_stalls_when_it_is_listed_does_not_stop_the_run(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it was listed at the start and at the end by the thread that hears the heartbeats."""
    monkeypatch.setattr(loops, "DRAIN_SECONDS", 0.1)
    it = stage([READY], [FIT])
    let_go = threading.Event()
    waited: list[bool] = []

    def refs() -> set[Ref]:
        waited.append(let_go.wait(60.0))
        return {Ref(0, 1, 0)}

    monkeypatch.setattr(it.store, "refs", refs)
    deleted: list[Ref] = []
    monkeypatch.setattr(it.store, "delete", deleted.append)
    it.link.receives += [answer(it), answer(it)]
    it.loop.run()
    assert it.machine.status == "completed" and not waited
    assert "stay in the store" in caplog.text
    let_go.set()
    assert it.loop._deletions._thread is not None
    it.loop._deletions._thread.join(60)
    assert deleted == [], "the run is over: another driver may have it"


def test_states_of_this_driver_are_not_swept_at_the_start(
    stage: Callable[..., Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listing may come late, when a State is stored and its worker has not said so."""
    it = stage([READY], [FIT])
    stored, refs = threading.Event(), it.store.refs

    def late() -> set[Ref]:
        assert stored.wait(60)
        return refs()

    monkeypatch.setattr(it.store, "refs", late)
    kept: list[Ref] = []

    def store() -> list[Any]:
        fact = durable(it.link.work[-1])
        it.store.put(fact.ref, memoryview(b"abc"))
        stored.set()
        until = time.monotonic() + 60
        while len(it.loop._deletions):
            assert time.monotonic() < until
            time.sleep(0.01)
        kept.extend(refs())
        return [*answer(it)(), fact]

    it.link.receives += [store, answer(it)]
    it.loop.run()
    assert kept == [Ref(0, 1, 1)]


def test_deletions_keep_their_order_and_are_done_by_the_end(tmp_path: Path) -> None:
    asked: list[Ref] = []

    class Slow:
        def delete(self, ref: Ref) -> None:
            time.sleep(0.002)
            asked.append(ref)

    it = deletions.Deletions(Slow(), Journal(tmp_path / "journal.jsonl", CODEC))  # type: ignore[arg-type]
    refs = [Ref(0, step, 1) for step in range(100)]
    for ref in refs:
        it.add(ref)
    assert it.close(30.0) and asked == refs


def test_deletions_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "WAITING", 3)
    let_go = threading.Event()

    class Stalled:
        def delete(self, ref: Ref) -> None:
            let_go.wait(60.0)

    it = deletions.Deletions(Stalled(), Journal(tmp_path / "journal.jsonl", CODEC))  # type: ignore[arg-type]
    for step in range(10):
        it.add(Ref(0, step, 1))
    assert len(it) == 3
    let_go.set()
    assert it.close(30.0)


def test_a_state_that_others_cannot_take_is_asked_for(stage: Callable[..., Stage]) -> None:
    two = [READY, Ready(1, "there", 11)]
    spec = RunSpec(epochs=1, partitions=2, validation=0, metric="loss", group=1)
    it = stage(two, [FIT], workers=2, configs=2, spec=spec)

    def hop() -> list[Any]:
        first, second = it.link.work
        return [done(first, 0, "m1"), done(second, 1, "m2")]

    def missed() -> list[Any]:
        slot, work = it.link.sent[-1]
        assert isinstance(work, Work)
        return [
            Failed(at=0.0, slot=slot, lease=work.unit.lease, fault="store", error="nowhere", missing=work.unit.start)
        ]

    it.link.receives += [hop, missed]
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    (asked,) = [(slot, message) for slot, message in it.link.sent if isinstance(message, StoreState)]
    assert asked[1].memory_key in ("m1", "m2") and asked[1].ref.step == 1


def test_the_store_that_is_away_is_journaled_and_logged(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    it = stage([READY], [FIT], [StoreAway(at=0.0, slot=0, error="nobody answers")], [StoreBack(at=0.0, slot=0)])
    it.link.receives += [answer(it), answer(it)]
    it.loop.run()
    assert [type(line) for line in it.lines() if isinstance(line, (StoreAway, StoreBack))] == [StoreAway, StoreBack]
    assert "nobody answers" in caplog.text


def test_a_wait_is_journaled_and_logged_once_per_reason(
    stage: Callable[..., Stage], caplog: pytest.LogCaptureFixture
) -> None:
    it = stage([READY], [FIT], configs=2)

    def failed() -> list[Any]:
        unit = it.link.work[-1].unit
        return [Failed(at=0.0, slot=0, lease=unit.lease, fault="system", error="ConnectionResetError: x")]

    it.link.receives += [failed, failed]
    with pytest.raises(KeyboardInterrupt):
        it.loop.run()
    assert [line.trial for line in it.lines() if isinstance(line, Deferred)] == [0, 1]
    assert caplog.text.count("ConnectionResetError: x") == 1
