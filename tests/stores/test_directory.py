"""One conformance suite of `filesystems.Directory` over what runs are kept on."""

from __future__ import annotations

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hopyard.errors import SpecError
from hopyard.filesystems import Directory
from stores.servers import KINDS, URLS, client, s3


@pytest.fixture(params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    found = Directory(URLS[request.param](request, tmp_path))
    found.make()
    return found


def test_files_are_written_whole_and_again(directory: Directory) -> None:
    for data in (b"first", b"second", b""):
        directory.put("name", data)
        assert directory.get("name") == data and directory.sizes() == {"name": len(data)}
    with directory.stream("stream") as file:
        file.write(b"12")
        file.write(b"34")
    assert directory.get("stream") == b"1234"
    directory.remove("name")
    directory.remove("name")
    assert not directory.has("name") and directory.has("stream")


def test_what_is_missing(directory: Directory) -> None:
    reads: list[Any] = [
        directory.get,
        lambda name: list(directory.blocks(name, 9)),
        lambda name: directory.range(name, 0, 1),
    ]
    for read in reads:
        with pytest.raises(FileNotFoundError):
            read("missing")
    assert Directory(f"{directory.url}/missing").sizes() == {}


def test_pieces_of_files(directory: Directory) -> None:
    data = bytes(range(256)) * 40
    directory.put("a", data)
    directory.put("b", b"rows")
    assert b"".join(directory.blocks("a", 1000)) == data
    assert all(len(block) <= 1000 for block in directory.blocks("a", 1000))
    assert directory.range("a", 100, 300) == data[100:300] and directory.range("b", 1, 3) == b"ow"


def test_when_files_were_written(directory: Directory) -> None:
    directory.put("name", b"")
    if directory.url.startswith("memory"):
        assert directory.times() == {}, "it knows no times"
        assert directory.versions() == {"name": (0, None)}
    else:
        assert abs(directory.times()["name"] - time.time()) < 60
        assert directory.versions() == {"name": (0, directory.times()["name"])}


def test_one_of_eight_threads_creates_a_file(directory: Directory) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: directory.create("name", b"writer %d" % number), range(8)))
    assert won.count(True) == 1 and directory.get("name") == b"writer %d" % won.index(True)
    assert directory.create("name", directory.get("name")) and not directory.create("name", b"another")
    assert list(directory.sizes()) == ["name"]


def test_all_of_them_can_keep_runs(directory: Directory) -> None:
    directory.check_create()
    assert directory.sizes() == {}


@pytest.mark.slow
def test_a_server_that_ignores_conditions_keeps_states_only(tmp_path: Path) -> None:
    with s3(tmp_path, "rclone") as server, client(server):
        directory = Directory(f"{server.url}/run")
        with pytest.raises(SpecError, match=r"^directory: s3://hopyard/run .*second of two writers won.* store= "):
            directory.check_create()
        assert directory.sizes() == {}
        directory.put("state", b"1")
        assert directory.get("state") == b"1"


def test_a_file_system_without_the_operation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from fsspec.implementations.local import LocalFileSystem

    def lacking(self: Any, *arguments: Any) -> Any:
        raise NotImplementedError("link")

    monkeypatch.setattr(LocalFileSystem, "link", lacking)
    with pytest.raises(SpecError, match="NotImplementedError: link"):
        Directory(str(tmp_path)).check_create()
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_taken_is_decided_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer of a put was lost, and the driver tried again: its own file is in the way."""
    from fsspec.implementations.memory import MemoryFileSystem

    directory = Directory(f"memory://{uuid.uuid4().hex}")
    pipe: Any = MemoryFileSystem.pipe_file

    def twice(self: Any, *arguments: Any, **more: Any) -> None:
        pipe(self, *arguments, **more)
        pipe(self, *arguments, **more)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", twice)
    assert directory.create("name", b"mine") and not directory.create("name", b"yours")

    def refused(self: Any, *arguments: Any, **more: Any) -> None:
        raise OSError(22, "the condition does not hold")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)
    with pytest.raises(OSError, match="condition"):
        directory.create("free", b"mine")
