"""The driver's store by network: `Depot` at the driver, `RemoteStore` at workers that cannot reach it themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from hopyard.ports.states import Store
from hopyard.spec import Ref
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.server import Service

PUTS = 2
"""States that are received at once: one comes while another is written. They are in memory meanwhile, and no others."""
GETS = 4
"""States that are sent at once."""


class RemoteStore:
    """A Store whose bytes go by network.

    Args:
        client: the client of the run.
        address: the address of the driver's depot.
    """

    def __init__(self, client: Client, address: str) -> None:
        self._client, self._address = client, address

    def put(self, ref: Ref, data: memoryview) -> None:
        """Store and sync at the driver. Raises ResourceError when there is no room, or StateConflict."""
        self._client.ask(self._address, Ask("put", ref), data)

    def get(self, ref: Ref) -> memoryview:
        """Return the bytes as stored. Raises FileNotFoundError."""
        return self._client.ask(self._address, Ask("get", ref))

    def has(self, ref: Ref) -> bool:
        """Whether it is stored."""
        return bytes(self._client.ask(self._address, Ask("has", ref))) == b"yes"

    def delete(self, ref: Ref) -> None:
        """Delete a State; no error when it is not there."""
        self._client.ask(self._address, Ask("delete", ref))

    def refs(self) -> set[Ref]:
        """Return the refs of all that is stored."""
        return set(msgspec.msgpack.decode(self._client.ask(self._address, Ask("refs")), type=list[Ref]))


class Depot:
    """The services of the driver for workers that cannot reach the store.

    Args:
        store: where the States are.
        first: called when the first State of such a worker comes.
    """

    def __init__(self, store: Store, first: Callable[[], None] = lambda: None) -> None:
        self._store = store
        self._first: Callable[[], None] | None = first
        self._lock = threading.Lock()

    def services(self) -> dict[str, Service]:
        """Return the services, for `Server`."""
        return {
            "put": Service(self._put, threading.Semaphore(PUTS)),
            "get": Service(lambda ask, data: self._store.get(_ref(ask)), threading.Semaphore(GETS), largest=0),
            "has": Service(lambda ask, data: b"yes" if self._store.has(_ref(ask)) else b"no", largest=0),
            "delete": Service(self._delete, largest=0),
            "refs": Service(lambda ask, data: msgspec.msgpack.encode(list(self._store.refs())), largest=0),
        }

    def _put(self, ask: Ask, data: memoryview) -> bytes:
        with self._lock:
            first, self._first = self._first, None
        if first is not None:
            first()
        self._store.put(_ref(ask), data)
        return b""

    def _delete(self, ask: Ask, data: memoryview) -> bytes:
        self._store.delete(_ref(ask))
        return b""


def _ref(ask: Ask) -> Ref:
    if ask.ref is None:
        raise ValueError(f"{ask.what}: a State must be named")
    return ask.ref
