"""What an agent finds within reach: memory, store and peers, shared with the driver or not."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopyard.agent.runs import transfer as reach_module
from hopyard.agent.runs.transfer import Reach, StoreOpener, reach
from hopyard.core.messages import Bulk, Card, Setup
from hopyard.spec import Ref, RunSpec
from hopyard.store.arena import Arena, Taken
from hopyard.store.bulk import connection
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server
from hopyard.store.remote import Depot, RemoteStore
from hopyard.store.states import LocalStore, sign
from hopyard.store.tree import decode, plan
from hopyard.system.scratch import Folder

REF = Ref(0, 1, 1)
TREE = {"weights": np.arange(1000.0)}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Reach]]:
    """An agent's reach: on the driver's host, or on one of its own."""
    driver = Folder(tmp_path / "memory", "run")
    states = tmp_path / "states"
    depot = Server("127.0.0.1", Credentials("token"), Depot(LocalStore(states)).services())
    sign(str(states), "run")
    made: list[Reach] = []

    def make(host: str = "driver", store: Path = states) -> Reach:
        root = tmp_path / "memory" if host == "driver" else tmp_path / "nowhere"
        monkeypatch.setattr("hopyard.agent.runs.transfer.memory_root", lambda fallback: tmp_path / host)
        spec = RunSpec(epochs=1, partitions=1, validation=0)
        bulk = Bulk(depot.address, "token")
        setup = Setup(spec, b"", b"", str(store), str(root), "run", 1, "cpu", bulk)
        made.append(reach(setup, Card(len(made), "tcp://127.0.0.1:1", "", "", "")))
        return made[-1]

    yield make
    for one in made:
        assert one.network is not None
        one.network.close()
        one.folder.close()
    driver.close()
    depot.close()


def lay(one: Reach) -> str:
    return Arena(one.folder.path, 0, 1 << 24).lay(REF, plan(TREE))


def test_on_the_drivers_host_memory_and_disk_are_shared(agent: Callable[..., Reach]) -> None:
    one, two = agent(), agent()
    assert one.folder.identity == two.folder.identity
    assert isinstance(one.store.open(), LocalStore)


def test_elsewhere_there_is_a_memory_of_its_own(agent: Callable[..., Reach]) -> None:
    one, two, three = agent(), agent("alpha"), agent("alpha")
    assert one.folder.identity != two.folder.identity == three.folder.identity


def test_a_store_that_is_not_the_drivers_is_not_written(agent: Callable[..., Reach], tmp_path: Path) -> None:
    one = agent("alpha", tmp_path / "another")
    assert isinstance(one.store.open(), RemoteStore)
    assert not (tmp_path / "another").exists()
    one.store.open().put(REF, memoryview(b"state"))
    assert LocalStore(tmp_path / "states").get(REF) == b"state"


def test_a_store_that_can_only_be_read_is_left_alone(
    agent: Callable[..., Reach], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*given: Any, **more: Any) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.pipe_file", refused)
    assert isinstance(agent("alpha").store.open(), RemoteStore)


def test_a_store_that_is_away_is_opened_when_it_is_back(agent: Callable[..., Reach], tmp_path: Path) -> None:
    """Bug: agents that began meanwhile ended at once. And none makes a folder where a file server is not mounted."""
    one = agent()
    there, away = tmp_path / "states", tmp_path / "away"
    there.rename(away)
    with pytest.raises(OSError, match="not there"):
        one.store.open().get(REF)
    with pytest.raises(FileNotFoundError):
        one.store.open().put(REF, memoryview(b"state"))
    assert not there.exists()
    away.rename(there)
    one.store.open().put(REF, memoryview(b"state"))
    assert (one.store.open().get(REF), one.store.open().has(REF), one.store.open().refs()) == (b"state", True, {REF})
    one.store.open().delete(REF)
    assert not one.store.open().refs()


def test_a_store_that_cannot_be_opened_is_tried_again() -> None:
    opened: list[Any] = [ConnectionRefusedError("nobody listens"), LocalStore(Path())]

    def open_it() -> Any:
        if isinstance(found := opened.pop(0), Exception):
            raise found
        return found

    store = StoreOpener(open_it)
    with pytest.raises(ConnectionRefusedError):
        store.open().has(REF)
    assert not store.open().has(REF) and not store.open().has(REF)


def test_a_store_that_is_back_is_used_without_the_driver(
    agent: Callable[..., Reach], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: all States of an agent whose store was away at first went through the driver for the rest of the run."""
    one, now = agent("alpha"), time.monotonic()
    monkeypatch.setattr("hopyard.agent.runs.transfer.time.monotonic", lambda: now)
    there, away = tmp_path / "states", tmp_path / "away"
    there.rename(away)
    assert isinstance(one.store.open(), RemoteStore)
    away.rename(there)
    now += 59.0
    assert isinstance(one.store.open(), RemoteStore)
    now += 2.0
    assert isinstance(one.store.open(), LocalStore)
    there.rename(away)
    now += 1000.0
    assert isinstance(one.store.open(), LocalStore)


def test_a_store_that_hangs_when_it_is_asked_again_holds_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    detour, now, asked, free = RemoteStore(None, ""), 0.0, threading.Event(), threading.Event()  # type: ignore[arg-type]
    monkeypatch.setattr("hopyard.agent.runs.transfer.time.monotonic", lambda: now)

    def open_it() -> Any:
        if now:
            asked.set()
            assert free.wait(60)
        return detour

    store = StoreOpener(open_it)
    assert store.open() is detour
    now = 61.0
    thread = threading.Thread(target=store.open)
    thread.start()
    assert asked.wait(60)
    assert store.open() is detour
    free.set()
    thread.join()


def test_a_state_comes_from_a_peer(agent: Callable[..., Reach]) -> None:
    one, two = agent(), agent("alpha")
    assert one.network is not None and two.network is not None
    where = lay(one)
    found = two.network.take(one.network.peer, where, REF)
    assert found is not None
    assert (decode(found)["weights"] == TREE["weights"]).all()
    assert two.network.take(one.network.peer, where, Ref(0, 1, 2)) is None
    assert two.network.take(one.network.peer, "0-nothing", REF) is None


def test_a_peer_that_cannot_be_dialled_is_asked_once(
    agent: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    dialled: list[str] = []

    def dial(address: str, credentials: Credentials) -> Any:
        dialled.append(address)
        return connection.dial(address, credentials)

    monkeypatch.setattr("hopyard.store.bulk.client.dial", dial)
    one = agent("alpha")
    assert one.network is not None
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    with caplog.at_level(logging.WARNING):
        for _ in range(20):
            assert one.network.take(address, "0-x", REF) is None
    assert dialled == [address]
    assert caplog.text.count("a peer cannot be asked for States") == 1


def test_a_peer_that_could_not_be_dialled_is_asked_again_later(
    agent: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = agent(), agent("alpha")
    assert one.network is not None and two.network is not None
    where, dialled = lay(one), connection.dial

    def cut(address: str, credentials: Credentials) -> Any:
        raise ConnectionRefusedError("a router begins anew")

    monkeypatch.setattr("hopyard.store.bulk.client.dial", cut)
    assert two.network.take(one.network.peer, where, REF) is None
    monkeypatch.setattr("hopyard.store.bulk.client.dial", dialled)
    assert two.network.take(one.network.peer, where, REF) is None
    later = time.monotonic() + 61.0
    monkeypatch.setattr("hopyard.agent.runs.transfer.time.monotonic", lambda: later)
    assert two.network.take(one.network.peer, where, REF) is not None


def test_a_state_whose_memory_is_used_again_while_it_is_sent_is_not_there(
    agent: Callable[..., Reach], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = agent(), agent("alpha")
    assert one.network is not None and two.network is not None
    where = lay(one)
    taken = reach_module.take  # type: ignore[attr-defined]

    def overwritten(*given: Any) -> Any:
        found = taken(*given)
        return None if found is None else Taken(found.data, lambda: False)

    monkeypatch.setattr(reach_module, "take", overwritten)
    assert two.network.take(one.network.peer, where, REF) is None
    monkeypatch.setattr(reach_module, "take", taken)
    assert two.network.take(one.network.peer, where, REF) is not None  # nor is the peer away
