"""The calls of the API, its configuration, and the Watcher, against a server that answers as it is told."""

from __future__ import annotations

import base64
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
from hopyard.engines.kubernetes import configuration, watcher
from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.engines.kubernetes.watcher import Watcher
from hopyard.errors import SpecError, UsageError
from hosts import Network, may_unshare


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration of whoever runs the tests."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    kubeconfig(tmp_path / "config", server.url)
    return Api()


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


# Calls


def test_calls_are_those_of_the_reference(api: Api, server: ApiServer) -> None:
    jobs, secrets = "/apis/batch/v1/namespaces/hop/jobs", "/api/v1/namespaces/hop/secrets"
    api.create("jobs", {"kind": "Job"})
    api.create("secrets", {"kind": "Secret"}, dry_run=True)
    api.get("jobs", "a")
    api.patch("secrets", "a", {"metadata": {}})
    api.delete("jobs", "a")
    api.list("pods", labels="hopyard.dev/places=a,b", fields="status.phase!=Failed")
    strict = {"fieldValidation": "Strict"}
    assert [request[:4] for request in server.requests] == [
        ("POST", jobs, strict, {"kind": "Job"}),
        ("POST", secrets, strict | {"dryRun": "All"}, {"kind": "Secret"}),
        ("GET", f"{jobs}/a", {}, None),
        ("PATCH", f"{secrets}/a", {}, {"metadata": {}}),
        ("DELETE", f"{jobs}/a", {}, {"propagationPolicy": "Background"}),
        (
            "GET", "/api/v1/namespaces/hop/pods",
            {"labelSelector": "hopyard.dev/places=a,b", "fieldSelector": "status.phase!=Failed"}, None,
        ),
    ]  # fmt: skip
    headers = [request[4] for request in server.requests]
    assert headers[3]["Content-Type"] == "application/merge-patch+json"
    assert {each["authorization"] for each in headers} == {"Bearer secret"}
    assert all(each["User-Agent"].startswith("hopyard/") for each in headers)


def test_log_version_and_allowed(api: Api, server: ApiServer) -> None:
    server.answers["call"] = [
        lambda handler: handler.send(200, "caf\u00e9\n".encode() + b"\xff"),
        ok({"major": "1", "minor": "30+"}),
        ok({"status": {"allowed": True}}, 201),
        ok({"status": {"allowed": False, "reason": "no"}}, 201),
    ]
    assert api.log("a-0-x") == "café\n\ufffd"
    assert server.requests[0][1] == "/api/v1/namespaces/hop/pods/a-0-x/log"
    assert server.requests[0][2] == {"container": "hopyard", "tailLines": "200"}
    assert api.version() == (1, 30)
    assert api.allowed("create", "jobs") and not api.allowed("get", "pods", "log")
    asked = [request[3]["spec"]["resourceAttributes"] for request in server.requests[2:]]
    assert asked == [
        {"namespace": "hop", "verb": "create", "group": "batch", "resource": "jobs"},
        {"namespace": "hop", "verb": "get", "group": "", "resource": "pods", "subresource": "log"},
    ]


def test_what_is_not_there_is_deleted(api: Api, server: ApiServer) -> None:
    server.answers["call"] = [refuse(404, "NotFound", 'jobs "a" not found'), refuse(403, "Forbidden", "no")]
    api.delete("jobs", "a")
    with pytest.raises(ApiError, match="403"):
        api.delete("jobs", "a")


@pytest.mark.parametrize(
    ("answer", "status", "reason", "text", "away", "retry_after"),
    [
        (refuse(403, "Forbidden", 'jobs is forbidden: User "x"'), 403, "Forbidden", "jobs is forbidden", False, 0),
        (refuse(409, "AlreadyExists", "there"), 409, "AlreadyExists", "there", False, 0),
        (refuse(422, "Invalid", "bad\x1b[0m\nfield"), 422, "Invalid", r"bad\x1b\[0m field|bad field", False, 0),
        (refuse(429, "TooManyRequests", "slow", {"Retry-After": "7"}), 429, "TooManyRequests", "slow", True, 7),
        (refuse(429, "TooManyRequests", "slow", retryAfterSeconds=3), 429, "TooManyRequests", "slow", True, 3),
        (refuse(500, "InternalError", "etcd"), 500, "InternalError", "etcd", True, 0),
        (lambda handler: handler.send(503, b"<html>no upstream"), 503, "", "no upstream", True, 0),
        (lambda handler: handler.send(503, b"", {"Retry-After": "2"}), 503, "", "no text", True, 2),
        (lambda handler: handler.send(502, ["odd"]), 502, "", "odd", True, 0),
        (lambda handler: handler.send(403, {"error": "odd"}), 403, "", "odd", False, 0),
        (
            refuse(503, "ServiceUnavailable", "date", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}),
            503,
            "ServiceUnavailable",
            "date",
            True,
            0,
        ),
        (lambda handler: handler.send(200, b"<html>log in"), 0, "", "gave no JSON but .*log in", True, 0),
        (lambda handler: handler.connection.shutdown(socket.SHUT_RDWR), 0, "", "cannot be reached", True, 0),
    ],
)
def test_errors(
    api: Api, server: ApiServer, answer: Any, status: int, reason: str, text: str, away: bool, retry_after: float
) -> None:
    server.answers["call"] = [answer]
    with pytest.raises(ApiError, match=text) as caught:
        api.create("jobs", {"kind": "Job"})
    error = caught.value
    assert (error.status, error.reason, error.away, error.retry_after) == (status, reason, away, retry_after)
    assert len(server.requests) == 1  # the caller decides whether it asks again


def test_a_server_that_says_nothing_or_is_away(
    api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(apis, "READ_SECONDS", 0.2)
    server.answers["call"] = [hang]
    with pytest.raises(ApiError, match=r"cannot be reached.*[Tt]imed? ?out") as caught:
        api.get("jobs", "a")
    assert (caught.value.status, caught.value.away) == (0, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")
    with pytest.raises(ApiError, match=f"127.0.0.1:{port} cannot be reached.*refused"):
        Api().version()


def test_many_threads(api: Api, server: ApiServer) -> None:
    server.default["call"] = lambda handler: handler.send(200, {"name": handler.path.rpartition("/")[2]})
    wrong: list[Any] = []

    def ask(number: int) -> None:
        for turn in range(20):
            name = f"{number}-{turn}"
            if api.get("jobs", name) != {"name": name}:
                wrong.append(name)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(server.requests) == 160


# Configuration


def test_namespace_and_server(server: ApiServer, tmp_path: Path) -> None:
    kubeconfig(tmp_path / "config", server.url)
    assert [Api(*each).namespace for each in ((), ("here", "mine"), ("bare",), ("bare", "mine"))] == [
        "hop", "mine", "default", "mine",
    ]  # fmt: skip
    assert (Api().server, Api().host) == (server.url, "127.0.0.1")


def test_several_kubeconfigs_are_one(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig(tmp_path / "one", "http://one", **{"current-context": "there"})
    two = {"contexts": [{"name": "there", "context": {"cluster": "c", "user": "u", "namespace": "two"}}]}
    (tmp_path / "two").write_text(json.dumps(two))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{tmp_path / 'one'}:{tmp_path / 'two'}")
    assert Api().namespace == "two"


@pytest.mark.parametrize(
    ("text", "context", "match"),
    [
        (None, None, "no kubeconfig .*config.*in no pod.*KUBECONFIG"),
        (None, "here", r"context='here'.*no kubeconfig .*config"),
        ("{}", None, r"no current context.*one of \[\]"),
        ("a: [", None, "cannot be read"),
        ("- a", None, "cannot be read"),
        ("", None, "cannot be read"),
        ({}, "heer", r"context=\) = 'heer'.*did you mean 'here'.*'here', 'bare'"),
        ({"current-context": "gone"}, None, "current-context = 'gone'.*'here', 'bare'"),
        ({"current-context": ""}, None, r"no current context.*\['here', 'bare'\]"),
        ({"clusters": []}, None, "context 'here'.*cannot be used.*name c"),
        ({"cluster": {"certificate-authority": "gone.crt"}}, None, "context 'here'.*cannot be used.*gone.crt"),
    ],
)
def test_configurations_that_cannot_be(text: Any, context: str | None, match: str, tmp_path: Path) -> None:
    if isinstance(text, dict):
        kubeconfig(tmp_path / "config", "https://127.0.0.1:1", **text)
    elif text is not None:
        (tmp_path / "config").write_text(text)
    with pytest.raises(SpecError, match=match) as caught:
        Api(context)
    assert "\n" not in str(caught.value)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(number: int) -> Any:
        raise KeyError(number)

    for name in ("KUBECONFIG", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", getpwuid)
    with pytest.raises(SpecError, match="no kubeconfig ~/.kube/config"):
        Api()


def test_the_client_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "kubernetes" or name.startswith("kubernetes.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(UsageError, match=r"pip install 'hopyard\[kubernetes\]'"):
        Api()


def test_a_pod_has_its_own_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = tmp_path / "account"
    account.mkdir()
    context, _ = tls_server(account)
    server = ApiServer(context=context)
    monkeypatch.setattr(configuration, "ACCOUNT", account)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_address[1]))
    try:
        with pytest.raises(SpecError, match=r"no usable credentials.*token.*serviceAccountName"):
            Api()
        (account / "token").write_text("t1")
        assert Api().namespace == "default"
        (account / "namespace").write_text("team\n")
        api = Api()
        assert (api.namespace, api.server) == ("team", server.url)
        server.answers["call"] = [ok(listing()), refuse(401, "Unauthorized", "Unauthorized"), ok(listing())]
        api.list("pods")
        (account / "token").write_text("t2")
        api.list("pods")  # a token that the server no longer takes is read again
        assert [each[4]["authorization"] for each in server.requests] == ["bearer t1", "bearer t1", "bearer t2"]
        server.answers["call"] = [refuse(401, "Unauthorized", "Unauthorized")] * 2
        with pytest.raises(ApiError, match="401 Unauthorized"):
            api.list("pods")
    finally:
        server.close()


def test_an_authority_of_another_cluster(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    context, _ = tls_server(tmp_path / "one")
    _, other = tls_server(tmp_path / "two")
    server = ApiServer(context=context)
    try:
        data = base64.b64encode(other.read_bytes()).decode()
        kubeconfig(tmp_path / "config", server.url, cluster={"certificate-authority-data": data})
        with pytest.raises(ApiError, match=r"cannot be reached.*CERTIFICATE_VERIFY_FAILED"):
            Api().version()
    finally:
        server.close()


@pytest.mark.slow
def test_a_plugin_gives_tokens(server: ApiServer, tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.py"
    plugin.write_text(
        "import json, pathlib\n"
        f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
        "number = len(count.read_text()) if count.exists() else 0\n"
        "count.write_text('x' * (number + 1))\n"
        "status = {'token': f't{number}', 'expirationTimestamp': '2020-01-01T00:00:00Z'}\n"
        "kind = {'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential'}\n"
        "print(json.dumps(kind | {'status': status}))\n"
    )
    version = "client.authentication.k8s.io/v1"
    user = {"exec": {"apiVersion": version, "command": sys.executable, "args": [str(plugin)]}}
    kubeconfig(tmp_path / "config", server.url, user=user)
    api = Api()
    api.list("pods")
    api.list("pods")  # the token has expired at once
    tokens = [each[4]["authorization"] for each in server.requests]
    assert tokens[0] != tokens[1] and all(each.startswith("Bearer t") for each in tokens)


# Watching


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
    path = f"{Path(__file__).parent.parent}"
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


@pytest.mark.slow
def test_the_client_is_imported_late() -> None:
    names = ", ".join(f"hopyard.engines.kubernetes.{name}" for name in ("api", "watcher", "manifests", "reasons"))
    code = f"import sys, {names}; raise SystemExit(bool({{'kubernetes', 'urllib3'}} & sys.modules.keys()))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_connections_have_keepalive(api: Api, watching: Any) -> None:
    watched = watching()
    until(lambda: watched.listed)
    line = watched._connection.sock
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, interval, count = (
        line.getsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}")) for name in ("IDLE", "INTVL", "CNT")
    )
    assert idle + interval * count <= 20
