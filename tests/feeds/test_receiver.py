from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from feed_servers import TOKEN, feed_server, later, numbers
from hopyard.core.programs.messages import Endpoint
from hopyard.errors import DataError, FeedError, HopyardError
from hopyard.feeds.protocol import END, SCHEMA, connect
from hopyard.feeds.reader import Feed
from hopyard.feeds.receiver import FeedServer
from hopyard.feeds.sender import FeedConnection, Route, SendResult, framed, send_partition

BLOCKS = [numbers(0, 10), numbers(10, 10), numbers(20, 5)]


def y(feed: Feed, size: int = 1000) -> list[int]:
    return [int(value) for batch in feed.batches(size) for value in batch["y"]]


def part_of(line: FeedConnection, blocks: list[Any], first: int = 0) -> None:
    """Sends blocks, and no end."""
    from blake3 import blake3

    number = first
    for kind, body, rows in framed(blocks):
        line.send(kind, body, number, rows, b"" if kind == SCHEMA else blake3(body).digest(16))
        number += kind != SCHEMA


@pytest.mark.parametrize("near", [True, False])
def test_rows_come_as_they_were_sent(tmp_path: Path, near: bool) -> None:
    with feed_server(tmp_path, apart=not near) as server:
        where = server.endpoint if near else replace(server.endpoint, machine="another")
        route = Route((where,), TOKEN)
        assert send_partition(route, 0, BLOCKS) == SendResult(25, 0)
        server.queue("train").end()
        feed = Feed(server.queue("train"))
        assert y(feed) == list(range(25))
        assert feed.should_stop


def test_an_endpoint_is_private_and_serializes_to_json(tmp_path: Path) -> None:
    with feed_server(tmp_path / ("long" * 30)) as server:
        path = Path(server.endpoint.path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert Endpoint(**json.loads(json.dumps(asdict(server.endpoint)))) == server.endpoint
    assert not path.parent.exists()


DIALS = """
import sys
from hopyard.core.programs.messages import Endpoint
from hopyard.feeds.protocol import machine
from hopyard.feeds.sender import Route, send_partition
print(send_partition(Route((Endpoint(machine(), sys.argv[1]),), "a token"), 0, [[1, 2, 3]]).rows)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["long" * 30, "ä" * 60], ids=["long", "wide"])
def test_a_door_in_a_folder_too_deep_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = set(Path("/tmp").iterdir())
    with feed_server(folder) as server:
        sent = subprocess.run(
            [sys.executable, "-c", DIALS, server.endpoint.path], capture_output=True, text=True, timeout=30, check=False
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
            FeedServer(folder, "192.0.2.1", TOKEN, 0, apart=True)
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
    with feed_server(tmp_path) as server:
        assert later(send_partition, Route((server.endpoint,), TOKEN), 0, BLOCKS).result(60) == SendResult(25, 0)
    assert "Too many open files" in caplog.text


def test_a_door_stays_open_though_no_thread_is_left_for_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "feed_server" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    with feed_server(tmp_path) as server:
        monkeypatch.setattr(threading.Thread, "start", refusing)
        route = Route((server.endpoint,), TOKEN)
        with pytest.raises(ConnectionError, match="worker 0"):
            send_partition(route, 0, BLOCKS)
        assert later(send_partition, route, 0, BLOCKS).result(60) == SendResult(25, 0)
    assert "can't start new thread" in caplog.text


def test_a_door_that_is_not_reachable_from_elsewhere_says_so(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server, pytest.raises(ConnectionError, match=r"worker 0 .* another machine"):
        send_partition(Route((replace(server.endpoint, machine="another"),), TOKEN), 0, BLOCKS)


def test_a_sender_without_the_token_is_refused(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        with pytest.raises(ConnectionError, match="worker 0"):
            send_partition(Route((server.endpoint,), "guessed"), 0, BLOCKS)
        assert server.queue("train").received == 0


def test_a_handshake_has_one_deadline_and_strangers_are_dropped_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hopyard.feeds.protocol._HANDSHAKE_SECONDS", 1.0)
    monkeypatch.setattr("hopyard.feeds.receiver.STRANGERS", 3)
    with feed_server(tmp_path) as server:
        began = time.monotonic()
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(10)
            line.connect(server.endpoint.path)
            with pytest.raises(OSError):  # long before the last byte, after five minutes
                for byte in struct.pack("<i", 1000) + bytes(1000):  # a byte each 0.3 s: no read of one takes long
                    line.sendall(bytes([byte]))
                    time.sleep(0.3)
            assert time.monotonic() - began > 0.5
        monkeypatch.setattr("hopyard.feeds.protocol._HANDSHAKE_SECONDS", 30.0)
        lines = [socket.socket(socket.AF_UNIX) for _ in range(6)]
        try:
            for line in lines:
                line.settimeout(10)
                line.connect(server.endpoint.path)
                assert len(line.recv(16, socket.MSG_WAITALL)) == 16  # the server's number: it was accepted
            for line in lines[:3]:
                assert line.recv(1) == b""
            connect(server.endpoint, TOKEN, {"feed": "train", "epoch": 0, "partition": 0, "worker": 0})[0].close()
        finally:
            for line in lines:
                line.close()


def test_an_answer_without_the_token_is_refused(tmp_path: Path) -> None:
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

        with pytest.raises(ConnectionError, match="token"):
            connect(Endpoint(machine(), path), TOKEN, {})
        done.result(60)


def test_garbage_at_the_door_hurts_nobody(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        for garbage in (b"", b"\xff" * 100, b"\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(server.endpoint.path)
                line.sendall(garbage)
        assert send_partition(Route((server.endpoint,), TOKEN), 0, BLOCKS).rows == 25


def test_a_second_attempt_adds_only_what_is_missing(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        route = Route((server.endpoint,), TOKEN)
        with FeedConnection(route, 0) as line:
            part_of(line, BLOCKS[:2])
        assert send_partition(route, 0, BLOCKS).rows == 25
        assert send_partition(route, 0, BLOCKS).rows == 25
        server.queue("train").end()
        assert y(Feed(server.queue("train"))) == list(range(25))


def test_two_attempts_at_once_are_one_partition(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        route = Route((server.endpoint,), TOKEN)
        with FeedConnection(route, 0) as first, FeedConnection(route, 0) as second:
            part_of(first, BLOCKS[:1])
            part_of(second, BLOCKS[:2])
            part_of(first, BLOCKS[1:], 1)
            part_of(second, BLOCKS[2:], 2)
            for line in (first, second):
                line.send(END, b"", 3, 25)
                line.await_acknowledgement(25)
        server.queue("train").end()
        assert sorted(y(Feed(server.queue("train")))) == list(range(25))


@pytest.mark.parametrize(
    "again", [[numbers(0, 10), numbers(99, 10), numbers(20, 5)], BLOCKS[:2], [*BLOCKS, numbers(25, 1)], BLOCKS[::-1]]
)
def test_a_partition_that_is_computed_otherwise_fails_the_feed(tmp_path: Path, again: list[Any]) -> None:
    with feed_server(tmp_path) as server:
        route = Route((server.endpoint,), TOKEN)
        send_partition(route, 3, BLOCKS)
        with pytest.raises(FeedError, match=r"partition 3 .*different rows"):
            send_partition(route, 3, again)
        with pytest.raises(DataError, match="cache or checkpoint"):
            y(Feed(server.queue("train")))
        with pytest.raises(FeedError, match="partition 3"):
            send_partition(route, 4, BLOCKS)


def test_epochs_bring_all_rows_again_and_late_attempts_nothing(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        first = Route((server.endpoint,), TOKEN)
        send_partition(first, 0, BLOCKS)
        send_partition(replace(first, epoch=1), 0, BLOCKS)
        assert send_partition(first, 0, [numbers(7, 7)]) == SendResult(0, 0, unwanted=True)
        server.queue("train").end()
        assert y(Feed(server.queue("train"))) == [*range(25), *range(25)]
        assert send_partition(replace(first, epoch=2), 0, BLOCKS).unwanted


def test_feeds_have_names(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        send_partition(Route((server.endpoint,), TOKEN, "valid"), 0, [numbers(0, 3)])
        send_partition(Route((server.endpoint,), TOKEN, "train"), 0, [numbers(5, 2)])
        for name in ("train", "valid"):
            server.queue(name).end()
        assert y(Feed(server.queue("train"))) == [5, 6]
        assert y(Feed(server.queue("valid"))) == [0, 1, 2]


def test_attempts_at_a_partition_go_to_the_worker_that_the_first_chose(tmp_path: Path) -> None:
    with feed_server(tmp_path, 0, apart=True) as zero, feed_server(tmp_path, 1, apart=True) as one:
        servers = (zero.endpoint, one.endpoint)
        far = tuple(replace(server, machine="another") for server in servers)
        assert send_partition(Route((far[0], servers[1]), TOKEN), 2, BLOCKS).worker == 1  # only worker 1 is near
        assert send_partition(Route((servers[0], far[1]), TOKEN), 2, BLOCKS).worker == 1  # and now worker 0 would be
        assert send_partition(Route(servers, TOKEN), 4, BLOCKS).worker == 0
        assert send_partition(Route(servers, TOKEN), 5, BLOCKS, worker=0).worker == 0
        assert (zero.queue("train").received, one.queue("train").received) == (50, 25)


def test_a_worker_that_wants_no_rows_still_says_where_they_go(tmp_path: Path) -> None:
    with feed_server(tmp_path, 0) as zero, feed_server(tmp_path, 1) as one:
        route = Route((zero.endpoint, one.endpoint), TOKEN)
        Feed(zero.queue("train")).terminate()
        assert send_partition(route, 2, BLOCKS, worker=1) == SendResult(25, 1)
        assert send_partition(route, 2, BLOCKS, worker=0) == SendResult(25, 1)
        assert send_partition(route, 4, BLOCKS, worker=0).unwanted
        assert one.queue("train").received == 25


def test_a_full_queue_holds_its_senders_up(tmp_path: Path) -> None:
    blocks = [numbers(start, 1000, 100) for start in range(0, 20_000, 1000)]  # 8 MB
    with feed_server(tmp_path, limit=1 << 20) as server:
        route = Route((server.endpoint,), TOKEN)
        sent = later(send_partition, route, 0, blocks)
        queue = server.queue("train")
        seen = -1
        while seen != queue.received:
            seen = queue.received
            time.sleep(0.1)
        assert not sent.done() and 1000 <= seen < 10_000
        later(lambda: (sent.result(), server.queue("train").end()))
        assert y(Feed(queue), 999) == list(range(20_000))
        assert server.queue("train").waiting == 0


def test_a_block_that_is_larger_than_the_queue_passes(tmp_path: Path) -> None:
    with feed_server(tmp_path, limit=10) as server:
        later(lambda: (send_partition(Route((server.endpoint,), TOKEN), 0, BLOCKS), server.queue("train").end()))
        assert y(Feed(server.queue("train"))) == list(range(25))


def test_a_feed_that_was_terminated_lets_its_tasks_go(tmp_path: Path) -> None:
    def endless() -> Any:
        start = 0
        while True:
            yield numbers(start, 1000, 100)
            start += 1000

    with feed_server(tmp_path, limit=1 << 20) as server:
        route = Route((server.endpoint,), TOKEN)
        sent = [later(send_partition, route, partition, endless()) for partition in range(3)]
        feed = Feed(server.queue("train"))
        assert len(next(feed.batches(10))["y"]) == 10
        feed.terminate()
        assert all(found.result(60).unwanted for found in sent)
        assert send_partition(route, 9, BLOCKS) == SendResult(0, 0, unwanted=True)
        assert feed.should_stop and y(feed) == []


def test_a_program_that_is_through_lets_all_tasks_go(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        server.finish()
        assert send_partition(Route((server.endpoint,), TOKEN, "other"), 0, BLOCKS).unwanted


def test_errors_of_the_driver_are_raised_in_the_program_and_in_tasks(tmp_path: Path) -> None:
    with feed_server(tmp_path) as server:
        waiting = later(y, Feed(server.queue("train")))
        server.queue("train").fail(HopyardError("the job was cancelled"))
        with pytest.raises(HopyardError, match="the job was cancelled"):
            waiting.result(60)
        with pytest.raises(HopyardError, match="the job was cancelled"):
            send_partition(Route((server.endpoint,), TOKEN), 0, BLOCKS)


WORKER = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path
from hopyard.feeds.receiver import FeedServer
feed_server = FeedServer(Path(sys.argv[1]), "127.0.0.1", "a token", 0, True, limit=1 << 20)
print(json.dumps(asdict(feed_server.endpoint)), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("near", [True, False])
def test_a_worker_that_dies_is_named_at_once(tmp_path: Path, near: bool) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        server = Endpoint(**json.loads(worker.stdout.readline()))
        route = Route((server if near else replace(server, machine="another"),), TOKEN)
        sent = later(send_partition, route, 7, (numbers(n, 1000, 100) for n in range(10**6)))
        time.sleep(0.3)
        assert not sent.done()
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(ConnectionError, match=r"worker 0 .*has ended.* partition 7 of feed 'train'"):
            sent.result(60)
        with pytest.raises(ConnectionError, match=r"worker 0 .*has ended"):
            send_partition(route, 8, BLOCKS)


def test_a_closed_door_leaves_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with feed_server(tmp_path, apart=True) as server:
        line = FeedConnection(Route((server.endpoint,), TOKEN), 0)
    with line:
        until = time.monotonic() + 60
        while threading.active_count() > before and time.monotonic() < until:
            time.sleep(0.01)
        assert threading.active_count() <= before
