from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from feeds import TOKEN, intake, later, numbers
from hopyard.errors import DataError, HopyardError
from hopyard.feeds.protocol import END, SCHEMA, Door, knock
from hopyard.feeds.reader import Feed
from hopyard.feeds.receiver import Intake
from hopyard.feeds.sender import Line, Poured, Road, framed, pour

BLOCKS = [numbers(0, 10), numbers(10, 10), numbers(20, 5)]


def y(feed: Feed, size: int = 1000) -> list[int]:
    return [int(value) for batch in feed.batches(size) for value in batch["y"]]


def part_of(line: Line, blocks: list[Any], first: int = 0) -> None:
    """Sends blocks, and no end."""
    from blake3 import blake3

    number = first
    for kind, body, rows in framed(blocks):
        line.send(kind, body, number, rows, b"" if kind == SCHEMA else blake3(body).digest(16))
        number += kind != SCHEMA


@pytest.mark.parametrize("near", [True, False])
def test_rows_come_as_they_were_sent(tmp_path: Path, near: bool) -> None:
    with intake(tmp_path, apart=not near) as door:
        where = door.where if near else replace(door.where, machine="another")
        road = Road((where,), TOKEN)
        assert pour(road, 0, 0, BLOCKS) == Poured(25, 0)
        door.ended("train")
        feed = Feed(door.inlet("train"))
        assert y(feed) == list(range(25))
        assert feed.should_stop


def test_a_door_is_for_its_user_alone_and_told_as_json(tmp_path: Path) -> None:
    with intake(tmp_path / ("long" * 30)) as door:
        path = Path(door.where.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert Door(**json.loads(json.dumps(asdict(door.where)))) == door.where
    assert not path.parent.exists()


DIALS = """
import sys
from hopyard.feeds.protocol import Door, machine
from hopyard.feeds.sender import Road, pour
print(pour(Road((Door(machine(), sys.argv[1]),), "a token"), 0, 0, [[1, 2, 3]]).rows)
"""


@pytest.mark.parametrize("name", ["long" * 30, "ä" * 60], ids=["long", "wide"])
def test_a_door_in_a_folder_too_deep_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(Path("/tmp").iterdir())
    with intake(folder) as door:
        sent = subprocess.run(
            [sys.executable, "-c", DIALS, door.where.path], capture_output=True, text=True, timeout=30, check=False
        )
        assert sent.stdout == "3\n", sent.stderr
        assert not {path for path in set(Path("/tmp").iterdir()) - before if path.name.startswith("feed-")}
    assert list(folder.iterdir()) == []


def test_a_door_that_cannot_open_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("long" * 30)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    for folder in (tmp_path, deep):
        with pytest.raises(OSError, match="assign requested address"):
            Intake(folder, "192.0.2.1", TOKEN, 0, 1, apart=True)
    assert list(tmp_path.iterdir()) == [deep] and list(deep.iterdir()) == []
    held = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not any(path.startswith(str(tmp_path)) for path in held)


def test_a_door_opens_again_after_a_shortage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    troubles = [errno.EMFILE, errno.ECONNABORTED]
    accept = socket.socket.accept

    def troubled(listener: socket.socket) -> Any:
        if troubles:
            number = troubles.pop(0)
            raise OSError(number, os.strerror(number))
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", troubled)
    with intake(tmp_path) as door:
        assert later(pour, Road((door.where,), TOKEN), 0, 0, BLOCKS).result(5) == Poured(25, 0)
    assert "Too many open files" in caplog.text


def test_a_door_stays_open_though_no_thread_is_left_for_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "intake" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with intake(tmp_path) as door:
        monkeypatch.setattr(threading.Thread, "start", refusing)
        road = Road((door.where,), TOKEN)
        with pytest.raises(ConnectionError, match="worker 0"):
            pour(road, 0, 0, BLOCKS)
        assert later(pour, road, 0, 1, BLOCKS).result(5) == Poured(25, 0)
    assert "can't start new thread" in caplog.text


def test_a_door_that_is_not_reachable_from_elsewhere_says_so(tmp_path: Path) -> None:
    with intake(tmp_path) as door, pytest.raises(ConnectionError, match=r"worker 0 .* another machine"):
        pour(Road((replace(door.where, machine="another"),), TOKEN), 0, 0, BLOCKS)


def test_who_does_not_know_the_token_gets_nothing_in(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        with pytest.raises(ConnectionError, match="worker 0"):
            pour(Road((door.where,), "guessed"), 0, 0, BLOCKS)
        assert door.inlet("train").received == 0


def test_who_answers_without_the_token_is_not_believed(tmp_path: Path) -> None:
    path = str(tmp_path / "false")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer() -> None:
            line, _ = listener.accept()
            with line:
                line.sendall(b"n" * 16)
                line.recv(4096)
                line.sendall((34).to_bytes(4, "little") + b"m" * 32 + b"{}")

        done = later(answer)
        from hopyard.feeds.protocol import machine

        with pytest.raises(ConnectionError, match="does not know the token"):
            knock(Door(machine(), path), TOKEN, {})
        done.result(5)


def test_garbage_at_the_door_hurts_nobody(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        for garbage in (b"", b"\xff" * 100, b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(door.where.path)
                line.sendall(garbage)
        assert pour(Road((door.where,), TOKEN), 0, 0, BLOCKS).rows == 25


def test_a_second_attempt_adds_only_what_is_missing(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        road = Road((door.where,), TOKEN)
        with Line(road, 0, 0) as line:
            part_of(line, BLOCKS[:2])
        assert pour(road, 0, 1, BLOCKS).rows == 25
        assert pour(road, 0, 2, BLOCKS).rows == 25
        door.ended("train")
        assert y(Feed(door.inlet("train"))) == list(range(25))


def test_two_attempts_at_once_are_one_partition(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        road = Road((door.where,), TOKEN)
        with Line(road, 0, 0) as first, Line(road, 0, 1) as second:
            part_of(first, BLOCKS[:1])
            part_of(second, BLOCKS[:2])
            part_of(first, BLOCKS[1:], 1)
            part_of(second, BLOCKS[2:], 2)
            for line in (first, second):
                line.send(END, b"", 3, 25)
                line.acknowledged(25)
        door.ended("train")
        assert sorted(y(Feed(door.inlet("train")))) == list(range(25))


@pytest.mark.parametrize(
    "again", [[numbers(0, 10), numbers(99, 10), numbers(20, 5)], BLOCKS[:2], [*BLOCKS, numbers(25, 1)], BLOCKS[::-1]]
)
def test_a_partition_that_is_computed_otherwise_fails_the_feed(tmp_path: Path, again: list[Any]) -> None:
    with intake(tmp_path) as door:
        road = Road((door.where,), TOKEN)
        pour(road, 3, 0, BLOCKS)
        with pytest.raises(HopyardError, match="partition 3 was computed twice with different rows"):
            pour(road, 3, 1, again)
        with pytest.raises(DataError, match="cache or checkpoint"):
            y(Feed(door.inlet("train")))
        with pytest.raises(HopyardError, match="partition 3"):
            pour(road, 4, 0, BLOCKS)


def test_epochs_bring_all_rows_again_and_late_attempts_nothing(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        first = Road((door.where,), TOKEN)
        pour(first, 0, 0, BLOCKS)
        pour(replace(first, epoch=1), 0, 0, BLOCKS)
        assert pour(first, 0, 1, [numbers(7, 7)]) == Poured(0, 0, unwanted=True)
        door.ended("train")
        assert y(Feed(door.inlet("train"))) == [*range(25), *range(25)]
        assert pour(replace(first, epoch=2), 0, 0, BLOCKS).unwanted


def test_feeds_have_names(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        pour(Road((door.where,), TOKEN, "valid"), 0, 0, [numbers(0, 3)])
        pour(Road((door.where,), TOKEN, "train"), 0, 0, [numbers(5, 2)])
        for name in ("train", "valid"):
            door.ended(name)
        assert y(Feed(door.inlet("train"))) == [5, 6]
        assert y(Feed(door.inlet("valid"))) == [0, 1, 2]


def test_attempts_at_a_partition_go_to_the_worker_that_the_first_chose(tmp_path: Path) -> None:
    with intake(tmp_path, 0, 2, apart=True) as zero, intake(tmp_path, 1, 2, apart=True) as one:
        doors = (zero.where, one.where)
        far = tuple(replace(door, machine="another") for door in doors)
        assert pour(Road((far[0], doors[1]), TOKEN), 2, 0, BLOCKS).worker == 1  # only worker 1 is near
        assert pour(Road((doors[0], far[1]), TOKEN), 2, 1, BLOCKS).worker == 1  # and now worker 0 would be
        assert pour(Road(doors, TOKEN), 4, 0, BLOCKS).worker == 0
        assert pour(Road(doors, TOKEN), 5, 0, BLOCKS, worker=0).worker == 0
        assert (zero.inlet("train").received, one.inlet("train").received) == (50, 25)


def test_a_worker_that_wants_no_rows_still_says_where_they_go(tmp_path: Path) -> None:
    with intake(tmp_path, 0, 2) as zero, intake(tmp_path, 1, 2) as one:
        road = Road((zero.where, one.where), TOKEN)
        Feed(zero.inlet("train")).terminate()
        assert pour(road, 2, 0, BLOCKS, worker=1) == Poured(25, 1)
        assert pour(road, 2, 1, BLOCKS, worker=0) == Poured(25, 1)
        assert pour(road, 4, 0, BLOCKS, worker=0).unwanted
        assert one.inlet("train").received == 25


def test_a_full_queue_holds_its_senders_up(tmp_path: Path) -> None:
    blocks = [numbers(start, 1000, 100) for start in range(0, 20_000, 1000)]  # 8 MB
    with intake(tmp_path, limit=1 << 20) as door:
        road = Road((door.where,), TOKEN)
        poured = later(pour, road, 0, 0, blocks)
        inlet = door.inlet("train")
        seen = -1
        while seen != inlet.received:
            seen = inlet.received
            time.sleep(0.1)
        assert not poured.done() and 1000 <= seen < 10_000
        later(lambda: (poured.result(), door.ended("train")))
        assert y(Feed(inlet), 999) == list(range(20_000))
        assert door.waiting("train") == 0


def test_a_block_that_is_larger_than_the_queue_passes(tmp_path: Path) -> None:
    with intake(tmp_path, limit=10) as door:
        later(lambda: (pour(Road((door.where,), TOKEN), 0, 0, BLOCKS), door.ended("train")))
        assert y(Feed(door.inlet("train"))) == list(range(25))


def test_a_feed_that_was_terminated_lets_its_tasks_go(tmp_path: Path) -> None:
    def endless() -> Any:
        start = 0
        while True:
            yield numbers(start, 1000, 100)
            start += 1000

    with intake(tmp_path, limit=1 << 20) as door:
        road = Road((door.where,), TOKEN)
        poured = [later(pour, road, partition, 0, endless()) for partition in range(3)]
        feed = Feed(door.inlet("train"))
        assert len(next(feed.batches(10))["y"]) == 10
        feed.terminate()
        assert all(found.result(5).unwanted for found in poured)
        assert pour(road, 9, 0, BLOCKS) == Poured(0, 0, unwanted=True)
        assert feed.should_stop and y(feed) == []


def test_a_program_that_is_through_lets_all_tasks_go(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        door.finish()
        assert pour(Road((door.where,), TOKEN, "other"), 0, 0, BLOCKS).unwanted


def test_what_the_driver_says_is_raised_in_the_program_and_in_tasks(tmp_path: Path) -> None:
    with intake(tmp_path) as door:
        waiting = later(y, Feed(door.inlet("train")))
        door.failed("train", "the job was cancelled")
        with pytest.raises(HopyardError, match="the job was cancelled"):
            waiting.result(5)
        with pytest.raises(HopyardError, match="the job was cancelled"):
            pour(Road((door.where,), TOKEN), 0, 0, BLOCKS)


WORKER = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path
from hopyard.feeds.receiver import Intake
intake = Intake(Path(sys.argv[1]), "127.0.0.1", "a token", 0, 1, True, limit=1 << 20)
print(json.dumps(asdict(intake.where)), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("near", [True, False])
def test_a_worker_that_dies_is_named_at_once(tmp_path: Path, near: bool) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        door = Door(**json.loads(worker.stdout.readline()))
        road = Road((door if near else replace(door, machine="another"),), TOKEN)
        poured = later(pour, road, 7, 0, (numbers(n, 1000, 100) for n in range(10**6)))
        time.sleep(0.3)
        assert not poured.done()
        os.kill(worker.pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=r"worker 0 of the program has ended.* partition 7 of feed 'train'"):
            poured.result(20)
        with pytest.raises(ConnectionError, match="worker 0 of the program has ended"):
            pour(road, 8, 0, BLOCKS)
        assert time.monotonic() - began < 20


def test_a_closed_door_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with intake(tmp_path, apart=True) as door:
        line = Line(Road((door.where,), TOKEN), 0, 0)
    with line:
        until = time.monotonic() + 5
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before
