"""The objects of a cluster, and every change of them under one growing revision."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

Object = dict[str, Any]
"""As JSON. Whoever gets one from the store may not change it: `copy` it and `put` that."""


class Change(NamedTuple):
    """What a watch tells of, or not, as its selectors match `object` and `before`."""

    revision: int
    type: str
    resource: str
    object: Object
    before: Object | None


def stamp(ahead: float = 0) -> str:
    """Return the time of the wall clock as the API writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ahead))


def is_finished(pod: Object) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")


def is_deleting(obj: Object) -> bool:
    return "deletionTimestamp" in obj["metadata"]


class Store:
    """Owner of the objects. All of it is used while `changed`, which a change notifies, is held.

    Args:
        speed: by which the clock of the controllers runs faster than that of the world.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.speed = speed
        self._since = (time.monotonic(), 0.0)
        self.revision = 1
        self.oldest = 0
        self.changes: list[Change] = []
        self._objects: dict[tuple[str, str, str], Object] = {}

    def now(self) -> float:
        """Return the controllers' time, in their seconds."""
        world, here = self._since
        return here + (time.monotonic() - world) * self.speed

    def set_speed(self, speed: float) -> None:
        """Let the controllers' time run at another speed from now on."""
        with self.changed:
            self._since = (time.monotonic(), self.now())
            self.speed = speed
            self.changed.notify_all()

    def get(self, resource: str, namespace: str, name: str) -> Object | None:
        return self._objects.get((resource, namespace, name))

    def objects(self, resource: str, namespace: str = "") -> list[Object]:
        """Return the objects, oldest first, of one namespace or of all."""
        return [
            obj
            for (kind, where, _), obj in self._objects.items()
            if kind == resource and (not namespace or where == namespace)
        ]

    def all(self) -> Iterator[tuple[str, Object]]:
        """Iterate over (resource, object) as they are now."""
        yield from [(key[0], obj) for key, obj in self._objects.items()]

    def put(self, resource: str, obj: Object) -> Object:
        """Add or replace an object; one that is being deleted and that nothing holds any more is gone by this."""
        before = self._objects.get(_key(resource, obj))
        if before is not None and {**before, "metadata": _plain(before)} == {**obj, "metadata": _plain(obj)}:
            return before
        meta = obj["metadata"]
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or "finalizers" in obj.get("spec", {})
        if before is not None and is_deleting(before) and is_deleting(obj) and not held:
            return self.drop(resource, obj)
        return self.write(resource, obj)

    def write(self, resource: str, obj: Object) -> Object:
        """Add or replace an object."""
        key = _key(resource, obj)
        before = self._objects.get(key)
        self._objects[key] = self._change("ADDED" if before is None else "MODIFIED", resource, obj, before)
        return self._objects[key]

    def drop(self, resource: str, obj: Object) -> Object:
        """Remove an object."""
        before = self._objects.pop(_key(resource, obj))
        return self._change("DELETED", resource, obj, before)

    def _change(self, kind: str, resource: str, obj: Object, before: Object | None) -> Object:
        self.revision += 1
        obj = copy.deepcopy(obj)
        obj["metadata"]["resourceVersion"] = str(self.revision)
        self.changes.append(Change(self.revision, kind, resource, obj, before))
        self.changed.notify_all()
        return obj

    def since(self, revision: int) -> list[Change]:
        """Return the changes after a revision."""
        first = len(self.changes)
        while first and self.changes[first - 1].revision > revision:
            first -= 1
        return self.changes[first:]

    def compact(self) -> None:
        """Refuse from now on watches from a revision up to this one; those that are open go on."""
        with self.changed:
            self.revision += 1
            self.oldest = self.revision
            self.changed.notify_all()


def _key(resource: str, obj: Object) -> tuple[str, str, str]:
    meta = obj["metadata"]
    return resource, meta.get("namespace", ""), meta["name"]


def _plain(obj: Object) -> Object:
    return {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
