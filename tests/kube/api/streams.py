"""Answers that grow: watches and logs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kube.api.errors import expired
from kube.api.resources import Resource
from kube.control.store import Change, Object, Store, is_finished

Body = Iterator[bytes]
POLL = 0.05
"""Seconds between two looks at a file that nobody tells about."""


def watch(
    store: Store,
    resource: Resource,
    place: str,
    wanted: Callable[[Object], bool],
    since: int,
    timeout: float,
    bookmarks: float | None,
) -> Body:
    """Iterate over the lines of a watch.

    Args:
        since: the revision after which it begins; 0: with what there is.
        bookmarks: seconds from one bookmark to the next.
    """

    def line(kind: str, obj: Object) -> bytes:
        return json.dumps({"type": kind, "object": obj}).encode() + b"\n"

    def bookmark(revision: int) -> bytes:
        meta = {"resourceVersion": str(revision), "creationTimestamp": None}
        return line("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta})

    def here(obj: Object) -> bool:
        return not place or obj["metadata"].get("namespace") == place

    end = time.monotonic() + timeout
    marked = time.monotonic()
    with store.changed:
        is_old = 0 < since < store.oldest
        found = [] if since else [obj for obj in store.objects(resource.plural, place) if wanted(obj)]
        oldest = store.oldest
        first, since = since, since or store.revision
    if is_old:
        yield line("ERROR", expired(first, oldest).status)
        return
    yield from [line("ADDED", obj) for obj in found]
    while True:
        yield b""  # the headers; and whoever reads can end it here
        with store.changed:
            changes, since = store.since(since), store.revision
        for change in changes:
            event = _seen(change, wanted) if change.resource == resource.plural and here(change.object) else None
            if event is not None:
                yield line(*event)
        now = time.monotonic()
        if bookmarks is not None and (now >= marked + bookmarks or now >= end):
            marked = now
            yield bookmark(since)
        if now >= end:
            return
        wait = min(1.0, end - now, 1.0 if bookmarks is None else marked + bookmarks - now)
        with store.changed:
            if store.revision <= since:
                store.changed.wait(wait)


def _seen(change: Change, wanted: Callable[[Object], bool]) -> tuple[str, Object] | None:
    """Return how a watch with a selector tells of a change: what it loses is DELETED to it, what it gains ADDED."""
    before = change.before is not None and wanted(change.before)
    after = change.type != "DELETED" and wanted(change.object)
    if before and not after:
        return "DELETED", change.object
    if after:
        return ("MODIFIED" if before else "ADDED"), change.object
    return None


def log(store: Store, pod: Object, file: Path, *, follow: bool, tail: int | None, limit: int | None) -> Body:
    """Iterate over what a pod wrote, and will write."""
    at = 0
    if tail is not None and file.exists():
        lines = file.read_bytes().splitlines(keepends=True)
        at = sum(len(one) for one in lines[: max(0, len(lines) - tail)])
    sent = 0
    while True:
        with store.changed:
            now = store.get("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        over = now is None or is_finished(now)
        data = b""
        if file.exists():
            with file.open("rb") as stream:
                stream.seek(at)
                data = stream.read(None if limit is None else limit - sent)
        at, sent = at + len(data), sent + len(data)
        yield data
        if (over and not data) or not follow or (limit is not None and sent >= limit):
            return
        if not data:
            time.sleep(POLL)


def stamped(body: Body, pod: Object, file: Path, tail: int | None) -> Body:
    """Put a time before each line: that of the pod's creation, and the number of the line as nanoseconds. As all of a
    log may be of one second then, a time since when it is wanted leaves nothing out."""
    lines = len(file.read_bytes().splitlines()) if tail is not None and file.exists() else 0
    number, begin = max(0, lines - (tail or 0)), True
    second = pod["metadata"]["creationTimestamp"].removesuffix("Z")
    for data in body:
        parts = []
        for line in data.splitlines(keepends=True):
            parts.append(f"{second}.{number:09d}Z ".encode() * begin + line)
            begin = line.endswith(b"\n")
            number += begin
        yield b"".join(parts)
