"""The Watcher, against a server that answers as it is told."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes")

from api_servers import (
    ApiServer,
    cut,
    events,
    failure,
    hang,
    kubeconfig,
    listing,
    ok,
    pod,
    refuse,
    tls_server,
)
from hopyard.engines.kubernetes import api as apis
from hopyard.engines.kubernetes import watcher
from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.engines.kubernetes.watcher import Watcher
from hosts import Network, may_unshare

pytestmark = pytest.mark.usefixtures("outside")


@pytest.fixture
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses, and a watch that is given up after half a second."""
    for name, value in {
        "FIRST_SECONDS": 0.01, "MOST_SECONDS": 0.05, "WATCH_SECONDS": 0.3, "MARGIN_SECONDS": 0.2,
    }.items():  # fmt: skip
        monkeypatch.setattr(watcher, name, value)


@pytest.fixture
def watching(api: Api) -> Iterator[Callable[..., Watcher]]:
    watchers: list[Watcher] = []

    def make(**more: Any) -> Watcher:
        watchers.append(Watcher(api, "pods", **more))
        return watchers[-1]

    yield make
    for each in watchers:
        each.close()
        assert not each._thread.is_alive()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that watchers make, none of which takes any time."""
    pauses: list[float] = []

    class Event(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout:
                pauses.append(timeout)
            return super().wait(timeout and 0.0)

    monkeypatch.setattr(threading, "Event", Event)
    return pauses


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_watcher_follows(server: ApiServer, watching: Any) -> None:
    go = threading.Event()

    def watch(handler: Any) -> None:
        handler.begin_stream()
        go.wait(60)
        text = b"".join(
            json.dumps({"type": kind, "object": body}).encode() + b"\n"
            for kind, body in (
                ("ADDED", pod("b", 2)), ("BOOKMARK", {"metadata": {"resourceVersion": "3"}}),
                ("MODIFIED", pod("b", 4, phase="Running", note="é\u2028")), ("DELETED", pod("a", 5)),
            )
        )  # fmt: skip
        handler.chunk(text[:30])  # chunks need not be lines
        handler.chunk(text[30:])
        handler.server.over.wait(60)

    server.answers["call"] = [ok(listing(pod("a"), version=7))]
    server.answers["watch"] = [watch]
    changes: list[int] = []
    watcher = watching(labels="x=y", changed=lambda: changes.append(1))
    until(lambda: set(watcher.objects) == {"a"})
    assert watcher.listed and len(changes) == 1
    go.set()
    until(lambda: set(watcher.objects) == {"b"})
    assert watcher.objects["b"]["status"] == {"phase": "Running", "note": "é\u2028"} and not watcher.fault
    until(lambda: len(changes) == 4)
    asked = server.requests[1][2]
    assert {key: asked[key] for key in ("watch", "allowWatchBookmarks", "resourceVersion", "labelSelector")} == {
        "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7", "labelSelector": "x=y",
    }  # fmt: skip
    assert 240 <= int(asked["timeoutSeconds"]) <= 300 and server.requests[0][2] == {"labelSelector": "x=y"}


@pytest.mark.usefixtures("brisk")
@pytest.mark.parametrize(
    ("call", "watch", "fault"),
    [
        (None, events(end=True), ""),
        (None, events(("ERROR", failure(410, "Expired", "too old resource version"))), "too old.*410 Expired"),
        (None, refuse(410, "Expired", "too old resource version"), "410 Expired"),
        (None, refuse(429, "TooManyRequests", "slow", {"Retry-After": "0"}), "429 TooManyRequests"),
        (None, refuse(500, "InternalError", "etcd"), "500 InternalError"),
        (None, cut, "cannot be reached.*ProtocolError"),
        (None, hang, "cannot be reached.*[Tt]imed? ?out"),  # no headers
        (None, events(), "cannot be reached.*[Tt]imed? ?out"),  # a line that is half open
        (None, lambda handler: handler.send(200, b"<html>\n"), "odd answer"),
        (refuse(403, "Forbidden", "pods is forbidden"), None, "403 Forbidden"),
        (refuse(500, "InternalError", "etcd"), None, "500 InternalError"),
        (ok({"odd": 1}), None, "odd answer"),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), None, "cannot be reached"),
    ],
)
def test_a_watcher_lists_again(server: ApiServer, watching: Any, call: Any, watch: Any, fault: str) -> None:
    told = threading.Event()
    go = threading.Event()

    def again(handler: Any) -> None:
        go.wait(60)
        handler.send(200, listing(pod("b")))

    server.default["call"] = ok(listing(pod("b")))
    server.answers["call"] = [ok(listing(pod("a"))), *([call] if call else []), again]
    server.answers["watch"] = [watch or events(end=True)]
    watched = watching(changed=told.set)
    if fault:
        until(lambda: re.search(fault, watched.fault))
        assert set(watched.objects) == {"a"}  # what was known stays
    told.clear()
    go.set()
    until(lambda: set(watched.objects) == {"b"} and not watched.fault)
    assert told.wait(60)


def test_pauses_double_and_the_server_may_ask_for_more(
    server: ApiServer, watching: Any, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "STEADY_SECONDS", 3600.0)
    server.default["watch"] = events(end=True)
    server.answers["watch"] = [events(end=True)] * 8 + [
        refuse(429, "TooManyRequests", "slow", {"Retry-After": "30"}),
        refuse(503, "ServiceUnavailable", "slow", {"Retry-After": "3600"}),
    ]
    watching()
    until(lambda: len(pauses) >= 10)
    assert pauses[:10] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 30.0, 60.0])


def test_the_first_pause_again_after_a_steady_watch(
    server: ApiServer, watching: Any, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "STEADY_SECONDS", -1.0)  # every watch is steady, no failed list is
    server.answers["call"] = [refuse(500, "InternalError", "etcd")] * 3
    server.default["watch"] = events(end=True)
    watching()
    until(lambda: len(pauses) >= 5)
    assert pauses[:5] == pytest.approx([0.2, 0.4, 0.8, 0.2, 0.2])


def test_a_server_that_restarts(tmp_path: Path, brisk: None) -> None:
    server = ApiServer()
    server.answers["call"] = [ok(listing(pod("a")))]
    kubeconfig(tmp_path / "config", server.url)
    told = threading.Event()
    watched = Watcher(Api(), "pods", changed=told.set)
    try:
        until(lambda: set(watched.objects) == {"a"} and told.is_set())
        told.clear()
        server.close()
        assert told.wait(60)  # of the fault
        until(lambda: "cannot be reached" in watched.fault)
        assert set(watched.objects) == {"a"}  # what was known stays
        server = ApiServer(port=server.server_address[1])
        server.default["call"] = ok(listing(pod("b")))
        until(lambda: set(watched.objects) == {"b"} and not watched.fault)
    finally:
        watched.close()
        server.close()
    assert not watched._thread.is_alive()


@pytest.mark.parametrize("call", [None, hang])
@pytest.mark.parametrize("secure", [False, True])
def test_close_ends_the_thread(call: Any, secure: bool, tmp_path: Path) -> None:
    context, authority = tls_server(tmp_path)
    server = ApiServer(context=context if secure else None)
    if call:
        server.answers["call"] = [call]
    try:
        kubeconfig(tmp_path / "config", server.url, cluster={"certificate-authority": str(authority)})
        changes: list[int] = []
        watched = Watcher(Api(), "pods", changed=lambda: changes.append(1))
        until(lambda: server.counted("call" if call else "watch"))
        time.sleep(0.05)  # it waits for the answer now
        before = len(changes)
        watched.close()
        watched._thread.join(30)  # on a busy machine
        assert not watched._thread.is_alive() and not watched.fault and len(changes) == before
    finally:
        server.close()


SERVE = """
import sys
from api_servers import ApiServer, listing, ok, pod
server = ApiServer(host=sys.argv[1])
server.default["call"] = ok(listing(pod("a")))
print(server.url, flush=True)
sys.stdin.read()
server.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ip"), reason="no ip of iproute2")
def test_a_host_that_vanishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing ends the connection: the kernel has to find out."""
    may_unshare("--net", "--mount")
    monkeypatch.setattr(apis, "KEEP_ALIVE", {"idle": 1, "interval": 1, "count": 2})
    monkeypatch.setattr(apis, "CONNECT_SECONDS", 1.0)
    network = Network(("api",))
    path = f"{Path(__file__).parent.parent.parent}"
    process = subprocess.Popen(
        [*network.enter("api"), sys.executable, "-c", SERVE, network.addresses["api"]],
        env=os.environ | {"PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        with process:
            assert process.stdout is not None
            kubeconfig(tmp_path / "config", process.stdout.readline().strip())
            api = Api()
            api.list("pods")
            watched = Watcher(api, "pods")
            monkeypatch.setattr(apis, "READ_SECONDS", 3600.0)
            try:
                until(lambda: watched.listed)
                network.cut("api")
                with pytest.raises(ApiError, match="cannot be reached"):
                    api.list("pods")  # by the connection of the last call
                until(lambda: "cannot be reached" in watched.fault)
                assert set(watched.objects) == {"a"}
                network.mend("api")
                until(lambda: not watched.fault)
            finally:
                watched.close()
            assert not watched._thread.is_alive()
            assert process.stdin is not None
            process.stdin.close()
    finally:
        process.kill()
        network.close()


def test_connections_have_keepalive(api: Api, watching: Any) -> None:
    watched = watching()
    until(lambda: watched.listed)
    line = watched._connection.sock
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, interval, count = (
        line.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT")
    )
    assert idle + interval * count <= 20
