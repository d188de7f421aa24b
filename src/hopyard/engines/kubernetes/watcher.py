"""A list of objects that is kept up to date: list, watch, and list again when the watch ends, for whatever reason.

The client's own `Watch` gives up at the second "too old resource version", and hangs where the other host has vanished.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.text import error_line

log = logging.getLogger(__name__)

WATCH_SECONDS = 290
"""How long the server keeps a watch open."""
MARGIN_SECONDS = 15.0
"""How much longer the client waits for something to read."""
FIRST_SECONDS = 0.2
"""Pause before the next list; it doubles with each."""
MOST_SECONDS = 10.0
"""The longest pause, if the server asks for none."""
STEADY_SECONDS = 10.0
"""After a watch that lasted so long the pause is the first one again."""
PATIENCE_SECONDS = 60.0
"""The longest pause that a server may ask for."""
CLOSE_SECONDS = 1.0


class Watcher:
    """The objects of one resource in a namespace, by name. Owner of a thread.

    Args:
        api: the namespace.
        resource: "pods" for example.
        labels: a selector; "": all.
        changed: called in that thread after each change of `objects` or `fault`. It must return at once.
    """

    def __init__(self, api: Api, resource: str, labels: str = "", changed: Callable[[], None] = lambda: None) -> None:
        self._api, self._path, self._changed = api, api.path(resource), changed
        self._selector = [("labelSelector", labels)] if labels else []
        self._lock, self._closing = threading.Lock(), threading.Event()
        self._objects: dict[str, dict[str, Any]] = {}
        self._removed: list[dict[str, Any]] = []
        self.listed = False
        """Whether `objects` has been complete once."""
        self.fault = ""
        """Why the last attempt failed; "": it has not."""
        self._client = api.new_client()
        self._connection: Any = None
        self._watching_since = math.inf
        self._remember_connections()
        self._thread = threading.Thread(target=self._run, name=f"hopyard-watch-{resource}", daemon=True)
        self._thread.start()

    @property
    def objects(self) -> dict[str, dict[str, Any]]:
        """A snapshot: name → object. The objects are not to be changed."""
        with self._lock:
            return dict(self._objects)

    def removed(self) -> list[dict[str, Any]]:
        """Return what is known last of the objects that were deleted since the last call."""
        with self._lock:
            removed, self._removed = self._removed, []
        return removed

    def close(self) -> None:
        """End the thread, and what it waits for."""
        self._closing.set()
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < deadline:
            if (line := getattr(self._connection, "sock", None)) is not None:
                with contextlib.suppress(OSError, TypeError):
                    socket.socket.shutdown(line, socket.SHUT_RDWR)  # of TLS too: its own would pull the rug from reads
            self._thread.join(0.02)
        self._client.close()

    def _remember_connections(self) -> None:
        """Keep the last connection of the client at hand, for `close`."""
        pool = self._client.rest_client.pool_manager.connection_from_url(self._api.server)
        make = pool.ConnectionCls

        def connection(*args: Any, **kwargs: Any) -> Any:
            self._connection = make(*args, **kwargs)
            return self._connection

        pool.ConnectionCls = connection

    def _run(self) -> None:
        pause = FIRST_SECONDS
        while not self._closing.is_set():
            wait = 0.0
            self._watching_since = math.inf
            try:
                self._follow()
            except ApiError as error:
                wait = error.retry_after
                self._fail(self._api.why(error))
            except Exception as error:  # noqa: BLE001 - an answer of another shape; the thread has to go on
                self._fail(f"{self._api.server} gave an odd answer: {error_line(error)}")
            if time.monotonic() - self._watching_since > STEADY_SECONDS:
                pause = FIRST_SECONDS
            self._closing.wait(max(pause, min(wait, PATIENCE_SECONDS)))
            pause = min(2 * pause, MOST_SECONDS)

    def _fail(self, fault: str) -> None:
        if self._closing.is_set() or fault == self.fault:
            return
        self.fault = fault
        log.debug("%s: %s", self._path, fault)
        self._changed()

    def _follow(self) -> None:
        """List the objects, and watch them until the watch ends."""
        listing = self._api.call("GET", self._path, query=self._selector, client=self._client)
        objects = {each["metadata"]["name"]: each for each in listing["items"]}
        with self._lock:
            same = self.listed and not self.fault and objects == self._objects
            self._removed += [old for name, old in self._objects.items() if name not in objects]
            self._objects, self.listed, self.fault = objects, True, ""
        if not same:
            self._changed()
        self._watching_since = time.monotonic()
        with contextlib.closing(self._events(listing["metadata"]["resourceVersion"])) as events:
            for event in events:
                self._apply(event["type"], event["object"])

    def _apply(self, kind: str, body: dict[str, Any]) -> None:
        if kind == "ERROR":
            raise ApiError.of(int(body.get("code") or 500), body)
        if kind == "BOOKMARK":
            return
        name = body["metadata"]["name"]
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(name, None)
                self._removed.append(body)
            else:
                self._objects[name] = body
        self._changed()

    def _events(self, version: str) -> Generator[Any]:
        query = [("watch", "true"), ("allowWatchBookmarks", "true"), ("resourceVersion", version)]
        query += [("timeoutSeconds", str(WATCH_SECONDS)), *self._selector]
        wait = WATCH_SECONDS + MARGIN_SECONDS
        with self._api.request("GET", self._path, query=query, client=self._client, read_seconds=wait) as response:
            rest = b""
            while piece := response.read1(1 << 16):
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    yield json.loads(line)
