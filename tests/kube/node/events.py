"""The events that a kubelet writes about its pods, in a thread: no pod waits for them."""

from __future__ import annotations

import contextlib
import queue
import threading
import uuid

from kube.node import statuses
from kube.node.client import AWAY, MERGE, Client, Object, RefusedError


class Events:
    """The events of one node. Who says the same again counts it up."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node
        self._queue: queue.SimpleQueue[tuple[Object, str, str, str] | None] = queue.SimpleQueue()
        self._written: dict[tuple[str, str, str], tuple[str, int]] = {}
        self._thread = threading.Thread(target=self._write, name="events", daemon=True)
        self._thread.start()

    def add(self, pod: Object, kind: str, reason: str, message: str) -> None:
        """Write an event; `kind` is Normal or Warning."""
        self._queue.put((pod, kind, reason, message))

    def close(self) -> None:
        """Write what waits, and end."""
        self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            with contextlib.suppress(RefusedError, *AWAY):  # as with a real one, events may be lost
                self._send(*item)

    def _send(self, pod: Object, kind: str, reason: str, message: str) -> None:
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/events"
        key = (pod["metadata"]["uid"], reason, message)
        if key in self._written:
            name, count = self._written[key]
            change = {"count": count + 1, "lastTimestamp": statuses.now()}
            self._client.call("PATCH", f"{path}/{name}", change, kind=MERGE)
            self._written[key] = name, count + 1
            return
        event = statuses.event(pod, self._node, kind, reason, message, uuid.uuid4().hex[:16])
        self._client.call("POST", path, event)
        self._written[key] = event["metadata"]["name"], 1
