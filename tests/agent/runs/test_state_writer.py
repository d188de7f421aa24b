"""The background of a worker: what is stored when, what may be forgotten, and what is said when it cannot be stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard import meter
from hopyard.agent.runs import state_writer as keeping
from hopyard.agent.runs.state_writer import StateWriter
from hopyard.core.messages import NoRoom
from hopyard.core.runs.events import Durable, Forgotten, StoreAway, StoreBack
from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.arena import Arena
from hopyard.store.guard import Guarded
from hopyard.store.states import LocalStore
from hopyard.store.tree import digest


class Bytes:
    """Something to lay."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.total = len(data)

    def write(self, buffer: memoryview) -> None:
        buffer[:] = self.data


class Desk:
    """A writer of checkpoints with a store whose `put` can be held back."""

    def __init__(self, folder: Path, stall: float = 0.0) -> None:
        self.store = LocalStore(folder / "states")
        self.arena = Arena(folder / "memory", 0, 1 << 20)
        self.told: list[Any] = []
        self.gate = threading.Event()
        self.gate.set()
        self.news = threading.Condition()
        self.puts: list[Ref] = []
        self.error: Exception | None = None
        self.settled: list[str] = []
        settle = self.arena.settle

        def watched(where: str) -> None:
            self.settled.append(where)
            settle(where)

        self.arena.settle = watched  # type: ignore[assignment, method-assign]
        self.checkpoints = StateWriter(0, Guarded(lambda: self, "store:"), self.arena, self.tell, stall)  # type: ignore[arg-type, return-value]

    def put(self, ref: Ref, data: memoryview) -> None:
        self.puts.append(ref)
        assert self.gate.wait(60)
        if self.error is not None:
            raise self.error
        self.store.put(ref, data)

    def tell(self, message: Any) -> None:
        with self.news:
            self.told.append(message)
            self.news.notify()

    def lay(self, ref: Ref) -> str:
        return self.arena.lay(ref, Bytes(str(ref).encode()))

    def keep(self, ref: Ref, always: bool = False) -> str:
        where = self.lay(ref)
        self.checkpoints.keep(ref, where, always)
        return where

    def hear(self, count: int) -> list[Any]:
        with self.news:
            assert self.news.wait_for(lambda: len(self.told) >= count, 60)
            return self.told

    def until(self, test: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not test():
            assert time.monotonic() < end
            time.sleep(0.001)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.gate.set()
    made.checkpoints.close()
    made.arena.close()


def test_a_stored_state_is_reported_with_its_digest(desk: Desk) -> None:
    ref = Ref(0, 4, 1)
    desk.keep(ref, always=True)
    (sealed,) = desk.hear(1)
    assert sealed == Durable(at=0.0, slot=0, ref=ref, digest=digest(b"0-4-1"), bytes=5)
    assert bytes(desk.store.get(ref)) == b"0-4-1"


def test_the_newer_replaces_the_older_that_is_no_epochs_end(desk: Desk) -> None:
    desk.gate.clear()
    desk.keep(Ref(9, 1, 1), always=True)  # the thread is busy with it
    desk.until(lambda: bool(desk.puts))
    older = desk.keep(Ref(0, 1, 2))
    end = desk.keep(Ref(0, 4, 3), always=True)
    desk.keep(Ref(0, 5, 4))
    assert desk.settled == [older]
    desk.gate.set()
    desk.hear(3)
    assert set(desk.puts) == {Ref(9, 1, 1), Ref(0, 4, 3), Ref(0, 5, 4)}
    assert end not in desk.settled


def test_epochs_ends_go_first(desk: Desk) -> None:
    desk.gate.clear()
    desk.keep(Ref(9, 1, 1), always=True)
    desk.until(lambda: bool(desk.puts))
    desk.keep(Ref(1, 1, 2))
    desk.keep(Ref(2, 4, 3), always=True)
    desk.gate.set()
    desk.hear(3)
    assert desk.puts[1:] == [Ref(2, 4, 3), Ref(1, 1, 2)]


def test_no_more_than_one_a_second_of_a_trial(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PAUSE", 0.2)
    began = time.monotonic()
    desk.keep(Ref(0, 1, 1))
    desk.hear(1)
    desk.keep(Ref(0, 2, 2))
    desk.keep(Ref(0, 3, 3))
    desk.hear(2)
    assert time.monotonic() - began >= 0.2
    assert desk.puts == [Ref(0, 1, 1), Ref(0, 3, 3)]


def test_released_states_are_stored_only_at_epoch_ends(desk: Desk) -> None:
    desk.gate.clear()
    busy = desk.keep(Ref(9, 1, 1), always=True)
    desk.until(lambda: bool(desk.puts))
    spare = desk.keep(Ref(0, 1, 2))
    end = desk.keep(Ref(1, 4, 3), always=True)
    for where in (busy, spare, end, "gone"):
        desk.checkpoints.release(where)
    assert desk.settled[0] == spare  # not those that are still to be read
    assert busy not in desk.settled
    assert end not in desk.settled
    desk.gate.set()
    desk.hear(2)
    desk.until(lambda: {busy, end} <= set(desk.settled))
    assert desk.puts == [Ref(9, 1, 1), Ref(1, 4, 3)]


def test_room_is_made_of_what_is_stored_oldest_first(desk: Desk) -> None:
    assert not desk.checkpoints.make_room()
    wheres = [desk.keep(Ref(trial, 4, trial + 1), always=True) for trial in range(2)]
    desk.hear(2)
    desk.until(lambda: len(desk.checkpoints._durable) == 2)
    assert desk.checkpoints.make_room()
    assert desk.settled == [wheres[0]]


def test_flush_stores_at_once(desk: Desk) -> None:
    sealed = desk.checkpoints.flush(Ref(0, 1, 1), memoryview(b"abc"))
    assert (sealed.ref, sealed.bytes, sealed.digest) == (Ref(0, 1, 1), 3, digest(b"abc"))
    assert desk.store.refs() == {Ref(0, 1, 1)}


def test_no_space_is_reported(desk: Desk) -> None:
    desk.error = ResourceError("no room for State 0-4-1")
    desk.keep(Ref(0, 4, 1), always=True)
    assert desk.hear(1) == [NoRoom(0, "no room for State 0-4-1", "store")]


def test_an_unexpected_error_is_not_called_lack_of_space(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bug: it ended the run with "make room"."""

    def fails(data: memoryview) -> str:
        raise ValueError("memoryview: a defect")

    monkeypatch.setattr(keeping, "digest", fails)
    desk.keep(Ref(0, 4, 1), always=True)
    words = "State 0-4-1 cannot be stored: ValueError: memoryview: a defect"
    assert desk.hear(1) == [NoRoom(0, words, "error")]
    desk.until(lambda: any(record.exc_info for record in caplog.records))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "State 0-4-1 cannot be stored in store:: nobody answered in time (TimeoutError: );"),
        (PermissionError(13, "ExpiredToken"), "State 0-4-1 cannot be stored in store:: it was refused"),
        (OSError(5, "Input/output error"), "State 0-4-1 cannot be stored in store:: OSError: [Errno 5]"),
        (
            RuntimeError("the bucket is gone"),
            "State 0-4-1 cannot be stored in store:: RuntimeError: the bucket is gone",
        ),
    ],
)
def test_a_store_that_is_away_is_tried_again_until_it_is_back(
    desk: Desk, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PATIENCE", 0.0)
    monkeypatch.setattr(keeping, "FIRST_WAIT", 0.02)
    desk.error = error
    desk.keep(Ref(0, 4, 1), always=True)
    (message,) = desk.hear(1)
    assert isinstance(message, StoreAway) and message.error.startswith(said)
    desk.error = None
    _, back, sealed = desk.hear(3)
    assert back == StoreBack(at=0.0, slot=0)
    assert isinstance(sealed, Durable) and desk.store.refs() == {Ref(0, 4, 1)}
    assert len(desk.puts) >= 2


def test_a_short_outage_of_the_store_is_not_reported(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PATIENCE", 60.0)
    desk.error = TimeoutError()
    desk.keep(Ref(0, 4, 1), always=True)
    desk.until(lambda: bool(desk.puts))
    desk.error = None
    (sealed,) = desk.hear(1)
    assert isinstance(sealed, Durable)


def test_a_worker_ends_though_the_store_is_away(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.error = TimeoutError()
    desk.keep(Ref(0, 4, 1), always=True)
    desk.until(lambda: bool(desk.puts))
    desk.checkpoints.close()
    assert not desk.checkpoints._thread.is_alive()
    desk.arena.close()


def test_a_requested_state_is_stored_first_and_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "PAUSE", 60.0)
    desk.keep(Ref(0, 1, 1))
    desk.hear(1)
    desk.gate.clear()
    desk.keep(Ref(9, 4, 9), always=True)  # the thread is busy with it
    desk.until(lambda: len(desk.puts) == 2)
    desk.keep(Ref(1, 4, 8), always=True)
    wanted = desk.keep(Ref(0, 2, 2))  # due in a minute
    desk.checkpoints.store_next(Ref(0, 2, 2), wanted)
    desk.gate.set()
    desk.hear(4)
    assert desk.puts[2:] == [Ref(0, 2, 2), Ref(1, 4, 8)]


def test_a_missing_state_that_others_wait_for_is_reported(desk: Desk) -> None:
    where = desk.keep(Ref(0, 4, 1), always=True)
    desk.hear(1)
    desk.checkpoints.store_next(Ref(0, 4, 1), where)  # it is stored: its Durable was said
    desk.checkpoints.store_next(Ref(0, 5, 2), "0-00000000-7.2")
    assert desk.hear(2)[1:] == [Forgotten(at=0.0, slot=0, ref=Ref(0, 5, 2))]


def test_a_state_stored_at_once_is_not_reported_missing(desk: Desk) -> None:
    desk.checkpoints.flush(Ref(0, 1, 1), memoryview(b"abc"))
    desk.checkpoints.store_next(Ref(0, 1, 1), "")
    desk.checkpoints.store_next(Ref(0, 5, 2), "")
    assert desk.hear(1) == [Forgotten(at=0.0, slot=0, ref=Ref(0, 5, 2))]


def test_a_state_kept_in_memory_is_stored_on_request(desk: Desk) -> None:
    where = desk.lay(Ref(0, 5, 2))
    desk.checkpoints.store_next(Ref(0, 5, 2), where)
    (sealed,) = desk.hear(1)
    assert sealed.ref == Ref(0, 5, 2)


def test_close_stores_epochs_ends_only(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.gate.clear()
    desk.keep(Ref(9, 1, 1), always=True)
    desk.until(lambda: bool(desk.puts))
    desk.keep(Ref(0, 1, 2))
    desk.keep(Ref(1, 4, 3), always=True)
    closing = threading.Thread(target=desk.checkpoints.close)
    closing.start()
    desk.gate.set()
    closing.join(60)
    assert desk.puts == [Ref(9, 1, 1), Ref(1, 4, 3)]
    assert not desk.checkpoints._thread.is_alive()
    desk.arena.close()


@pytest.mark.parametrize("busy", [False, True])
def test_a_request_for_a_replaced_state_is_answered_with_forgotten(desk: Desk, busy: bool) -> None:
    if busy:
        desk.gate.clear()
    where = desk.keep(Ref(0, 3, 4))
    desk.until(lambda: desk.checkpoints._active_key == where if busy else where in desk.checkpoints._durable)
    desk.checkpoints.store_next(Ref(0, 1, 4), where)
    assert Forgotten(at=0.0, slot=0, ref=Ref(0, 1, 4)) in desk.hear(1 if busy else 2)
    desk.gate.set()
    desk.until(lambda: where in desk.checkpoints._durable)
    assert desk.puts == [Ref(0, 3, 4)]


def test_a_store_that_blocks_and_raises_nothing_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SILENT", 0.2)
    desk = Desk(tmp_path)
    desk.gate.clear()
    desk.keep(Ref(0, 4, 1), always=True)
    (away,) = desk.hear(1)
    assert isinstance(away, StoreAway) and "has not answered for" in away.error and "0-4-1" in away.error
    desk.gate.set()
    _, back, sealed = desk.hear(3)
    assert back == StoreBack(at=0.0, slot=0)
    assert isinstance(sealed, Durable)
    desk.checkpoints.close()
    desk.arena.close()


def test_reading_from_a_blocked_store_is_reported_as_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Counted
) -> None:
    """Bug: it was silent, counted as hung, and its unit was poison in the end."""
    monkeypatch.setattr(keeping, "SILENT", 0.1)
    desk = Desk(tmp_path)
    seen: list[int] = []
    with desk.checkpoints.watched(Ref(0, 4, 1)):
        (away,) = desk.hear(1)
        for _ in range(2):
            seen.append(counted.advanced)
            desk.until(lambda: counted.advanced > seen[-1])
    assert isinstance(away, StoreAway) and "State 0-4-1: the store" in away.error
    assert desk.hear(2)[1] == StoreBack(at=0.0, slot=0)
    desk.gate.clear()
    desk.keep(Ref(0, 4, 1), always=True)
    desk.hear(3)
    seen.append(counted.advanced)
    time.sleep(0.3)
    assert counted.advanced == seen[-1]  # nobody waits for what is stored in the background
    desk.gate.set()
    desk.checkpoints.close()
    desk.arena.close()


def test_a_short_hang_timeout_reports_an_absent_store_sooner(tmp_path: Path) -> None:
    desk = Desk(tmp_path, stall=0.4)
    with desk.checkpoints.watched(Ref(0, 4, 1)):
        assert isinstance(desk.hear(1)[0], StoreAway)
    desk.checkpoints.close()
    desk.arena.close()


@pytest.mark.slow
def test_a_store_that_takes_bytes_slowly_is_not_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SILENT", 1.0)
    desk = Desk(tmp_path)
    put = desk.store.put

    def slowly(ref: Ref, data: memoryview) -> None:
        for _ in range(30):
            time.sleep(0.1)
            meter.moved(1)
        put(ref, data)

    desk.store.put = slowly  # type: ignore[method-assign]
    desk.keep(Ref(0, 4, 1), always=True)
    (sealed,) = desk.hear(1)
    assert isinstance(sealed, Durable)
    desk.checkpoints.close()
    desk.arena.close()


class Counted:
    """What a worker counts."""

    def __init__(self) -> None:
        self.advanced = 0

    def advance(self, count: int) -> None:
        self.advanced += count

    def enter(self, phase: str) -> None: ...


@pytest.fixture
def counted() -> Iterator[Counted]:
    made = Counted()
    meter.count_with(made)
    yield made
    meter.count_with(None)


def test_waiting_for_an_absent_store_counts_as_progress(
    desk: Desk, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "SLICE", 0.05)
    seen: list[int] = []

    def put(ref: Ref, data: memoryview) -> None:
        seen.append(counted.advanced)
        if len(seen) < 2:
            raise TimeoutError

    desk.put = put  # type: ignore[method-assign]
    desk.checkpoints.flush(Ref(0, 1, 1), memoryview(b"abc"))
    assert seen[1] - seen[0] >= 5  # within a second


def test_bytes_that_are_stored_are_progress_of_who_waits_for_them(desk: Desk, counted: Counted) -> None:
    desk.checkpoints.flush(Ref(0, 1, 1), memoryview(bytes(1000)))
    assert counted.advanced == 1000
    desk.keep(Ref(0, 4, 2), always=True)
    desk.hear(1)
    assert counted.advanced == 1000  # nobody waits for what is stored in the background
