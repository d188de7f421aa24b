"""One conformance suite over every Store."""

from __future__ import annotations

import errno
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hopyard.certificate import make_certificate
from hopyard.errors import ResourceError, SpecError
from hopyard.ports.states import Store
from hopyard.spec import Ref
from hopyard.store.bulk.client import Client
from hopyard.store.bulk.connection import Credentials
from hopyard.store.bulk.server import Server
from hopyard.store.guard import Guarded, StateConflict, StoreUnreachable
from hopyard.store.remote import Depot, RemoteStore
from hopyard.store.states import FsspecStore, LocalStore, claim, open_store, sign
from shaky import faults
from stores import servers

REF = Ref(3, 12, 1)


def memory(_: Path) -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}/states")


KINDS: dict[str, Callable[[Path], LocalStore | FsspecStore]] = {
    "local": lambda path: LocalStore(path / "a" / "b"),
    "memory": memory,
    "file": lambda path: FsspecStore(f"file://{path}/states"),
}
SERVED = [kind for kind in servers.KINDS if kind.values[0] not in KINDS]


def made(request: pytest.FixtureRequest, path: Path) -> LocalStore | FsspecStore:
    if request.param in KINDS:
        return KINDS[request.param](path)
    return FsspecStore(servers.URLS[request.param](request, path))


class Repeated:
    """A store whose calls are repeated until it answers, as workers do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            for _ in range(1000):
                with suppress(StoreUnreachable):
                    return getattr(self._store, name)(*arguments)
            return getattr(self._store, name)(*arguments)

        return call


@pytest.fixture(params=[*KINDS, *SERVED, "shaky", "bucket", "remote", "encrypted"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in ("shaky", "bucket"):
        faults(tmp_path, fail=0.2, lose=0.2, delay=0.0005)
        url = f"{request.param}://{tmp_path}/states"
        yield Repeated(Guarded(lambda: FsspecStore(url), url))
        return
    if request.param not in ("remote", "encrypted"):
        yield made(request, tmp_path)
        return
    depot = Depot(LocalStore(tmp_path / "there"))
    encrypt = request.param == "encrypted"
    credentials = Credentials("token", make_certificate() if encrypt else "")
    server = Server("127.0.0.1", credentials, depot.services(), encrypt=encrypt)
    client = Client(credentials)
    yield RemoteStore(client, server.address)
    client.close()
    server.close()


@pytest.fixture(params=[*KINDS, *SERVED])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStore | FsspecStore:
    """Those that write themselves."""
    return made(request, tmp_path)


def test_gives_back_what_was_put(store: Store) -> None:
    data = os.urandom(100_000)
    store.put(REF, memoryview(data))
    got = store.get(REF)
    assert isinstance(got, (bytearray, memoryview)) and got == data and not memoryview(got).readonly


def test_each_piece_that_is_read_counts(own: LocalStore | FsspecStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a slow read through fsspec was told as one that moved no byte."""
    monkeypatch.setattr("hopyard.store.states._BLOCK", 1000, raising=False)
    data = os.urandom(2500)
    own.put(REF, memoryview(data))
    moved: list[int] = []
    monkeypatch.setattr("hopyard.meter.moved", moved.append)
    assert own.get(REF) == data
    assert moved == ([2500] if isinstance(own, LocalStore) else [1000, 1000, 500])


def test_a_missing_state_is_file_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        store.get(REF)


def test_says_what_it_has(store: Store) -> None:
    assert not store.has(REF)
    store.put(REF, memoryview(b"x"))
    assert store.has(REF)
    assert not store.has(Ref(REF.trial, REF.step, REF.attempt + 1))
    store.delete(REF)
    assert not store.has(REF)


def test_an_empty_state_is_a_state(store: Store) -> None:
    store.put(REF, memoryview(b""))
    assert store.has(REF) and store.get(REF) == b""


def test_never_overwrites(store: Store) -> None:
    store.put(REF, memoryview(b"first"))
    store.put(REF, memoryview(bytearray(b"first")))
    for other in (b"other", b"longer than the first"):
        with pytest.raises(StateConflict, match="State 3-12-1"):
            Guarded(lambda: store, "url").put(REF, memoryview(other))
    assert store.get(REF) == b"first"


def test_addresses_do_not_touch_each_other(store: Store) -> None:
    refs = {Ref(1, 11, 1), Ref(11, 1, 1), Ref(1, 1, 11), Ref(0, 0, 0)}
    for ref in refs:
        store.put(ref, memoryview(str(ref).encode()))
    assert store.refs() == refs
    assert all(store.get(ref) == str(ref).encode() for ref in refs)


def test_delete_is_idempotent(store: Store) -> None:
    store.put(REF, memoryview(b"x"))
    store.delete(REF)
    store.delete(REF)
    assert store.refs() == set()
    store.put(REF, memoryview(b"y"))
    assert store.get(REF) == b"y"


def test_an_empty_store_has_no_refs(store: Store) -> None:
    assert store.refs() == set()


def test_takes_any_buffer(store: Store) -> None:
    for _ in range(2):
        store.put(REF, memoryview(bytearray(range(64))).cast("d"))  # type: ignore[arg-type]
    assert store.get(REF) == bytes(range(64))


def test_is_used_by_several_threads(store: Store) -> None:
    refs = [Ref(trial, 0, 1) for trial in range(20)]
    threads = [threading.Thread(target=store.put, args=(ref, memoryview(b"x" * 1000))) for ref in refs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.refs() == set(refs)


def test_sweep_removes_only_what_is_half_written(own: LocalStore | FsspecStore, tmp_path: Path) -> None:
    own.put(REF, memoryview(b"x"))
    if isinstance(own, LocalStore):
        (own.directory / ".part-1-2-3-abcd").write_bytes(b"half")
    else:
        own._directory.put(".part-1-2-3-abcd", b"half")
    assert own.refs() == {REF}
    assert own.sweep() == 1
    assert own.sweep() == 0
    assert own.get(REF) == b"x"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_a_resource_error_and_leaves_nothing(
    own: LocalStore | FsspecStore, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        if isinstance(own, LocalStore):
            patch.setattr(os, "fsync", full)
        else:
            patch.setitem(vars(own._directory._system), "pipe_file", full)
        with pytest.raises(ResourceError, match=rf"State 3-12-1 \(5 bytes\) in .* \({re.escape(os.strerror(code))}\)$"):
            own.put(REF, memoryview(b"12345"))
    assert own.refs() == set()
    assert own.sweep() == 0


def test_other_errors_come_through(own: LocalStore | FsspecStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EIO, "broken")

    if isinstance(own, LocalStore):
        monkeypatch.setattr(os, "fsync", broken)
    else:
        monkeypatch.setitem(vars(own._directory._system), "pipe_file", broken)
    with pytest.raises(OSError, match="broken") as caught:
        own.put(REF, memoryview(b"12345"))
    assert not isinstance(caught.value, ResourceError)
    assert own.sweep() == 0


def test_open_store_chooses_by_url(tmp_path: Path) -> None:
    assert isinstance(open_store(tmp_path / "s"), LocalStore)
    for name, written in (("with space", "with%20space"), ("day#1", "day#1"), ("day?x", "day?x")):
        local = open_store(f"file://{tmp_path}/{written}")
        assert isinstance(local, LocalStore) and local.directory == tmp_path / name
        sign(f"file://{tmp_path}/{written}", "run")
        assert local.sweep() == 1
    assert isinstance(open_store("memory://x/y"), FsspecStore)
    with pytest.raises(SpecError, match="nosuch"):
        open_store("nosuch://bucket/states")


def test_fsspec_itself_sees_the_files() -> None:
    store = open_store("memory://seen/states")
    store.put(REF, memoryview(b"x"))
    assert fsspec.filesystem("memory").cat("/seen/states/3-12-1.safetensors") == b"x"


# ------------------------------------------------------------------------------------------ whose it is


def test_the_newest_mark_says_whose_a_folder_is(own: LocalStore | FsspecStore) -> None:
    assert own.marks() == {}
    assert claim(own, [], "a")
    assert own.marks() == {"a": 1}
    assert not claim(own, [], "b")  # another run
    assert own.marks() == {"a": 1}
    assert claim(own, ["a"], "c")  # the next driver of the same
    assert not claim(own, ["a"], "d")  # a copy of the run that was made before
    assert own.marks() == {"c": 2}
    assert own.refs() == set()
    assert own.sweep() == 0


def test_of_two_that_claim_at_once_at_most_one_owns_it(
    own: LocalStore | FsspecStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert claim(own, [], "a")
    mark: Any = type(own).mark
    found = []

    def at_once(self: LocalStore | FsspecStore, name: str, number: int) -> None:
        monkeypatch.setattr(type(own), "mark", mark)
        found.append(claim(own, ["a"], "other"))
        mark(self, name, number)

    monkeypatch.setattr(type(own), "mark", at_once)
    found.append(claim(own, ["a"], "mine"))
    assert found == [True, False]
    assert own.marks() == {"other": 2}
