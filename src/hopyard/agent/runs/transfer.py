"""How States come to an agent, and go to others: by the memory and disk that hosts share, else by network.

It finds out by looking: the run's folder in shared memory has the driver's lock, and the store has the driver's mark.
"""

from __future__ import annotations

import logging
import math
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hopyard import meter
from hopyard.core.messages import Bulk, Card, Setup
from hopyard.ports.states import Store
from hopyard.spec import Ref
from hopyard.store.arena import Taken, memory_root, take
from hopyard.store.bulk.client import Ask, Client
from hopyard.store.bulk.connection import STALL_SECONDS, Credentials
from hopyard.store.bulk.server import Server, Service
from hopyard.store.remote import RemoteStore
from hopyard.store.states import open_store, signed
from hopyard.system.network import address_towards, parted
from hopyard.system.scratch import Folder, sweep

log = logging.getLogger(__name__)

AWAY_SECONDS = 60.0
"""Time after which a peer that could not be dialled, or a store that could not be reached, is tried again."""


class Network:
    """Transfers States between the memory of agents: it serves this agent's States to peers, and asks peers for theirs.

    Args:
        card: of the agent.
        bulk: settings of the transfer.
        folder: of the States in shared memory.
    """

    def __init__(self, card: Card, bulk: Bulk, folder: Folder) -> None:
        self._folder = folder
        credentials = Credentials(bulk.token, bulk.certificate)
        self.client = Client(credentials, meter.moved)
        """Asks the remote store and peers."""
        self._away: dict[str, float] = {}
        """Peer that could not be dialled → when it is asked again."""
        host = address_towards(parted(card.address)[0])
        self._server = Server(host, credentials, {"take": Service(self._give, largest=0)}, encrypt=bulk.encrypt)
        self.peer = self._server.address

    def take(self, peer: str, memory_key: str, ref: Ref) -> memoryview | None:
        """Return the State at `memory_key` in a peer's memory; None when it is not there, or the peer is away."""
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

    def rows(self, depot: str, name: str) -> memoryview:
        """Return a file of rows that the driver has. Raises FileNotFoundError where it has none of that name."""
        return self.client.ask(depot, Ask("rows", where=name))

    def _give(self, ask: Ask, data: memoryview) -> Taken:
        state = None if ask.ref is None else take(self._folder.path, ask.where, ask.ref)
        if state is None:
            raise FileNotFoundError(f"State {ask.ref} is not in the memory of {socket.gethostname()}")
        return state

    def close(self) -> None:
        """Hang up."""
        self._server.close()
        self.client.close()


class StoreOpener:
    """Opens the store at its first use, so that an agent can begin while the store is away. Where that fails the next
    use tries again. Where it gave the detour through the driver, it is tried again every `AWAY_SECONDS`.

    Args:
        opener: returns the store, or raises an error.
    """

    def __init__(self, opener: Callable[[], Store]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._retry_at = math.inf
        """When opening is tried again."""

    def open(self) -> Store:
        """Return the store."""
        with self._lock:
            if self._store is None:
                return self._try_open()
            if time.monotonic() < self._retry_at:
                return self._store
            self._retry_at = math.inf  # other threads go on with the detour: a store that hangs blocks only this one
        return self._try_open()

    def _try_open(self) -> Store:
        is_final = False
        try:
            self._store = store = self._opener()
            is_final = not isinstance(store, RemoteStore)
            return store
        finally:
            self._retry_at = math.inf if is_final else time.monotonic() + AWAY_SECONDS


class Reach(NamedTuple):
    """The folder, store and network through which an agent's States are stored and loaded."""

    folder: Folder
    """The folder in shared memory."""
    store: StoreOpener
    network: Network | None
    """None: all agents are on the driver's host."""


def reach(setup: Setup, card: Card | None) -> Reach:
    """Return the memory, store and network of an agent.

    Args:
        setup: from the driver.
        card: of an agent that may be on another host; None: it is in the driver's process.

    Raises:
        ResourceError: there is no room in memory.
    """
    root = Path(setup.memory)
    if setup.bulk is None or card is None:
        return Reach(Folder(root, setup.run), StoreOpener(lambda: open_store(setup.store, make=False)), None)
    if not Folder.shared(root, setup.run):  # another host than the driver's
        root = memory_root(Path(tempfile.gettempdir()))
        sweep(root)
    folder = Folder(root, setup.run)
    network = Network(card, setup.bulk, folder)
    depot = setup.bulk.depot

    def open_when_used() -> Store:
        if signed(setup.store, setup.run):
            return open_store(setup.store, make=False)
        return RemoteStore(network.client, depot)

    return Reach(folder, StoreOpener(open_when_used), network)
