"""What an agent can reach: the driver's memory and disk where it shares them, a network where it does not.

Told by looking: the run's folder in shared memory has the driver's lock, the place of the States has its mark.
"""

from __future__ import annotations

import logging
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hopyard.core.messages import Card, Setup
from hopyard.hosts import address_towards
from hopyard.ports import Store
from hopyard.spec import Ref
from hopyard.store.arena import Folder, memory_root, sweep, take
from hopyard.store.bulk import Ask, Client, Place, RemoteStore, Server
from hopyard.store.states import open_store, signed

log = logging.getLogger(__name__)


class Network:
    """What an agent has beside memory and disk: it gives States of its memory to peers, and asks them for theirs.

    Args:
        card: of the agent.
        depot: where the driver takes and gives States, and the token.
        folder: States in shared memory.
    """

    def __init__(self, card: Card, depot: tuple[str, str, str], folder: Folder) -> None:
        self._folder = folder
        self.depot = Place(*depot)
        self.client = Client(card.public_key, card.secret_key)
        """For the store; peers are asked by another, so that a unit does not wait for a State that is being stored."""
        self._peers = Client(card.public_key, card.secret_key)
        self._away: set[str] = set()
        """Peers that could not be dialled."""
        host = address_towards(card.address.rpartition("/")[2].rpartition(":")[0])
        self._server = Server(host, self.depot.token, {"take": self._give}, encrypt=bool(self.depot.key))
        self.peer = self._server.place.address, self._server.place.key

    def take(self, peer: tuple[str, str], where: str, ref: Ref) -> memoryview | None:
        """The State at `where` in a peer's memory; None when it is not there, or the peer is not."""
        place = Place(*peer, self.depot.token)
        if place.address in self._away:
            return None
        try:
            found: memoryview = self._peers.ask(place, Ask(place.token, "take", ref, where))
        except FileNotFoundError:
            return None
        except ConnectionError as error:
            self._away.add(place.address)
            log.warning("a peer cannot be asked for States, the store has to do: %s", error)
            return None
        return found

    def _give(self, ask: Ask, data: memoryview) -> bytes:
        held = None if ask.ref is None else take(self._folder.path, ask.where, ask.ref)
        if held is not None:
            copied = bytes(held.data)
            if held.intact():
                return copied
        raise FileNotFoundError(f"State {ask.ref} is not in the memory of {socket.gethostname()}")

    def close(self) -> None:
        """Hang up."""
        self._server.close()
        self.client.close()
        self._peers.close()


@dataclass(frozen=True, slots=True)
class Reach:
    """Where an agent's States go and come from."""

    folder: Folder
    """In shared memory."""
    store: Store
    network: Network | None
    """None: all agents are on the driver's host."""


def reach(setup: Setup, card: Card | None) -> Reach:
    """Memory, store and network of an agent.

    Args:
        setup: from the driver.
        card: of an agent that may be on another host; None: it is in the driver's process.

    Raises:
        ResourceError, SpecError: there is no room in memory, or the store cannot be opened.
    """
    root = Path(setup.memory)
    if setup.depot is None or card is None:
        return Reach(Folder(root, setup.run), open_store(setup.store), None)
    if not Folder.shared(root, setup.run):  # another host than the driver's
        root = memory_root(Path(tempfile.gettempdir()))
        sweep(root)
    folder = Folder(root, setup.run)
    network = Network(card, setup.depot, folder)
    if signed(setup.store, setup.run):
        return Reach(folder, open_store(setup.store), network)
    return Reach(folder, RemoteStore(network.client, network.depot), network)
