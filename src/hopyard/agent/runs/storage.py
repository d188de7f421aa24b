"""What an agent can reach: the driver's memory and disk where it shares them, a network where it does not.

Told by looking: the run's folder in shared memory has the driver's lock, the place of the States has its mark.
"""

from __future__ import annotations

import logging
import math
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hopyard import meter
from hopyard.core.messages import Bulk, Card, Setup
from hopyard.ports import Store
from hopyard.spec import Ref
from hopyard.store.arena import Folder, Taken, memory_root, sweep, take
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import STALL_SECONDS, Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.store.remote import RemoteStore
from hopyard.store.states import open_store, signed
from hopyard.system.network import address_towards, parted

log = logging.getLogger(__name__)

AWAY_SECONDS = 60.0
"""After which a peer that could not be dialled, or a store that could not be reached from here, is asked again."""


class Network:
    """What an agent has beside memory and disk: it gives States of its memory to peers, and asks them for theirs.

    Args:
        card: of the agent.
        bulk: how.
        folder: States in shared memory.
    """

    def __init__(self, card: Card, bulk: Bulk, folder: Folder) -> None:
        self._folder = folder
        credentials = Credentials(bulk.token, bulk.certificate)
        self.client = Client(credentials, meter.moved)
        """For the store and for peers."""
        self._away: dict[str, float] = {}
        """Peers that could not be dialled → when they are asked again."""
        host = address_towards(parted(card.address)[0])
        self._server = Server(host, credentials, {"take": Service(self._give, largest=0)}, encrypt=bulk.encrypt)
        self.peer = self._server.address

    def take(self, peer: str, memory_key: str, ref: Ref) -> memoryview | None:
        """The State at `memory_key` in a peer's memory; None when it is not there, or the peer is not."""
        if time.monotonic() < self._away.get(peer, 0.0):
            return None
        try:
            return self.client.ask(peer, Ask("take", ref, memory_key, seconds=STALL_SECONDS))
        except FileNotFoundError:
            return None
        except ConnectionError as error:
            self._away[peer] = time.monotonic() + AWAY_SECONDS
            log.warning("a peer cannot be asked for States, the store has to do: %s", error)
            return None

    def _give(self, ask: Ask, data: memoryview) -> Taken:
        held = None if ask.ref is None else take(self._folder.path, ask.where, ask.ref)
        if held is None:
            raise FileNotFoundError(f"State {ask.ref} is not in the memory of {socket.gethostname()}")
        return held

    def close(self) -> None:
        """Hang up."""
        self._server.close()
        self.client.close()


class Later:
    """A Store that is opened at its first use, so that an agent can begin while the place is away. Where that fails the
    next use tries again. Where it gave the detour through the driver, it is tried again every `AWAY_SECONDS`.

    Args:
        open_it: gives the store, or raises what every method then raises.
    """

    def __init__(self, open_it: Callable[[], Store]) -> None:
        self._open = open_it
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._again = math.inf
        """When it is tried again."""

    @property
    def opened(self) -> Store:
        """The store itself."""
        with self._lock:
            if self._store is None:
                return self._opened()
            if time.monotonic() < self._again:
                return self._store
            self._again = math.inf  # the other threads go on with the detour: a place that hangs holds one alone
        return self._opened()

    def _opened(self) -> Store:
        lasts = False
        try:
            self._store = store = self._open()
            lasts = not isinstance(store, RemoteStore)
            return store
        finally:
            self._again = math.inf if lasts else time.monotonic() + AWAY_SECONDS

    def put(self, ref: Ref, data: memoryview) -> None:
        """As the store's."""
        self.opened.put(ref, data)

    def get(self, ref: Ref) -> bytearray | memoryview:
        """As the store's."""
        return self.opened.get(ref)

    def has(self, ref: Ref) -> bool:
        """As the store's."""
        return self.opened.has(ref)

    def delete(self, ref: Ref) -> None:
        """As the store's."""
        self.opened.delete(ref)

    def refs(self) -> set[Ref]:
        """As the store's."""
        return self.opened.refs()


@dataclass(frozen=True, slots=True)
class Reach:
    """Where an agent's States go and come from."""

    folder: Folder
    """In shared memory."""
    store: Later
    network: Network | None
    """None: all agents are on the driver's host."""


def reach(setup: Setup, card: Card | None) -> Reach:
    """Memory, store and network of an agent.

    Args:
        setup: from the driver.
        card: of an agent that may be on another host; None: it is in the driver's process.

    Raises:
        ResourceError: there is no room in memory.
    """
    root = Path(setup.memory)
    if setup.bulk is None or card is None:
        return Reach(Folder(root, setup.run), Later(lambda: open_store(setup.store, make=False)), None)
    if not Folder.shared(root, setup.run):  # another host than the driver's
        root = memory_root(Path(tempfile.gettempdir()))
        sweep(root)
    folder = Folder(root, setup.run)
    network = Network(card, setup.bulk, folder)
    depot = setup.bulk.depot

    def open_it() -> Store:
        if signed(setup.store, setup.run):
            return open_store(setup.store, make=False)
        return RemoteStore(network.client, depot)

    return Reach(folder, Later(open_it), network)
