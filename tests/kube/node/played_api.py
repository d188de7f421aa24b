"""A very small API server for the tests of the kubelet: it keeps objects, lists and watches them, and no more."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kube.node.client import Object


class PlayedApi:
    """Objects by their paths. What a kubelet does to its pods is in `history`, as (type, pod as it was)."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.history: list[tuple[str, Object]] = []
        """The length of this is the version of the whole."""
        self.changed = threading.Condition()
        self.away = False
        """Whether every request is refused with 503."""
        self.refused: list[str] = []
        """The paths of requests that were refused so."""
        self.over = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"api": self}))
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def __enter__(self) -> PlayedApi:
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.over = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, path: str, item: Object, kind: str = "MODIFIED") -> Object:
        """Keep an object, and tell those who watch."""
        with self.changed:
            meta = item["metadata"]
            meta.setdefault("uid", str(uuid.uuid4()))
            meta["resourceVersion"] = str(len(self.history) + 1)
            if kind == "DELETED":
                del self.objects[path]
            else:
                self.objects[path] = item
            self.history.append((kind, copy.deepcopy(item)))
            self.changed.notify_all()
            return item

    def delete(self, path: str, seconds: int) -> None:
        """Delete a pod, with a grace period; 0: at once."""
        with self.changed:
            pod = self.objects[path]
            if seconds and pod["status"].get("phase") in ("Pending", "Running"):
                pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": seconds}
                self.put(path, pod)
            else:
                self.put(path, pod, "DELETED")

    def wait(self, path: str, phase: str = "", reason: str = "", seconds: float = 60) -> Object:
        """Return a pod once it has this phase, or its container waits for this reason."""

        def state() -> bool:
            pod = self.objects.get(path)
            if pod is None:
                return phase == "Gone"
            states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
            return pod["status"].get("phase") == phase or any(
                state.get("waiting", {}).get("reason") == reason for state in states
            )

        def over() -> bool:
            return phase != "Gone" and self.objects[path]["status"].get("phase") in ("Succeeded", "Failed")

        with self.changed:
            self.changed.wait_for(lambda: state() or over(), seconds)
            assert state(), self.objects.get(path)
            return copy.deepcopy(self.objects.get(path, {}))

    def events(self) -> list[tuple[str, str, int]]:
        """Return (reason, message, count) of the events, in order."""
        with self.changed:
            found = [item for path, item in self.objects.items() if "/events/" in path]
        return [(event["reason"], event["message"], event["count"]) for event in found]


class Handler(BaseHTTPRequestHandler):
    """One request."""

    api: PlayedApi

    def log_message(self, format: str, *args: Any) -> None: ...

    def parse_request(self) -> bool:
        if super().parse_request() and not self.api.away:
            return True
        self.api.refused.append(self.path)
        self.send_error(503)
        return False

    def do_GET(self) -> None:
        at, api = urlsplit(self.path), self.api
        query = {key: values[0] for key, values in parse_qs(at.query).items()}
        if query.get("watch"):
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._watch(int(query["resourceVersion"]), query["fieldSelector"].rpartition("=")[2])
            return None
        with api.changed:
            if at.path == "/api/v1/pods":
                node = query["fieldSelector"].rpartition("=")[2]
                items = [item for path, item in api.objects.items() if "/pods/" in path and _on(item, node)]
                return self._answer(200, {"items": items, "metadata": {"resourceVersion": str(len(api.history))}})
            found = api.objects.get(at.path)
            return self._answer(200, found) if found else self._answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        item = self._body()
        path = f"{self.path}/{item['metadata']['name']}"
        if path in self.api.objects:
            return self._answer(409, {"message": "already exists"})
        return self._answer(201, self.api.put(path, {"status": {}, **item}, "ADDED"))

    def do_PATCH(self) -> None:
        path = self.path.removesuffix("/status")
        with self.api.changed:
            change, item = self._body(), self.api.objects.get(path)
            if item is None:
                return self._answer(404, {"message": "not found"})
            for key, value in change.items():
                item[key] = {**item.get(key, {}), **value} if isinstance(value, dict) else value
            for condition in item["status"].get("conditions", ()):  # a strategic merge needs each key that changes
                assert {"status", "reason", "message"} <= {*condition}
            return self._answer(200, self.api.put(path, item))

    def do_DELETE(self) -> None:
        assert self._body()["gracePeriodSeconds"] == 0
        with self.api.changed:
            if self.path in self.api.objects:
                self.api.delete(self.path, 0)
            return self._answer(200, {})

    def _body(self) -> Object:
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, code: int, item: Object) -> None:
        body = json.dumps(item).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _watch(self, since: int, node: str) -> None:
        self.send_response(200)
        self.end_headers()
        api = self.api
        while True:
            with api.changed:
                while len(api.history) == since and not api.over:
                    api.changed.wait()
                if api.over or api.away:
                    return
                new, since = api.history[since:], len(api.history)
            for kind, item in new:
                if _on(item, node):
                    self.wfile.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")


def _on(item: Object, node: str) -> bool:
    """Return whether an object is a pod that was bound to this node."""
    return bool(item.get("spec", {}).get("nodeName") == node)
