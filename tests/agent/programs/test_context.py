"""What a program keeps by itself: `ctx.checkpoint`, `ctx.restored`, and files that it opens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from hopyard import SpecError
from hopyard.agent.programs.context import ProgramContext
from hopyard.errors import DataError, ResourceError, RunDirectoryError
from hopyard.filesystems import Directory
from hopyard.store.states import FsspecStore, claim, disown


@pytest.fixture(params=["directory", "local", "memory"])
def ctx(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Of a worker whose program has its directory here, and its checkpoints in it, in a folder, or at a URL."""
    made = object.__new__(ProgramContext)
    made.directory, made.role, made.index, made.peers = tmp_path, "worker", 0, {"worker": ["", ""]}
    (tmp_path / "program.jsonl").touch()
    stores = {"directory": "", "local": str(tmp_path / "store"), "memory": f"memory://{tmp_path.name}"}
    host = SimpleNamespace(store=stores[request.param], owner="")
    made._session = SimpleNamespace(host=host, folder=tmp_path / "scratch")  # type: ignore[assignment]
    made._session.folder.mkdir()
    yield made
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()


def folder(ctx: Any) -> str:
    return f"{ctx._session.host.store or ctx.directory / 'checkpoints'}/worker-0"


def names(ctx: Any) -> set[str]:
    system, root = fsspec.core.url_to_fs(folder(ctx))
    return {name.rpartition("/")[2] for name in system.ls(root, detail=False)}


def put(ctx: Any, name: str, data: bytes) -> None:
    with fsspec.open(f"{folder(ctx)}/{name}", "wb") as file:
        file.write(data)


def test_the_last_one_written_comes_back_also_when_steps_begin_again(ctx: Any) -> None:
    assert ctx.restored() is None
    for step in (900, 1000, 1, 2, 3):
        ctx.checkpoint({"step": step}, step)
        assert ctx.restored() == ({"step": step}, step)
    assert names(ctx) == {"000000004-2.safetensors", "000000005-3.safetensors"}


@pytest.mark.parametrize("step", ["5", 5.0, None])
def test_a_step_that_is_no_integer(ctx: Any, step: Any) -> None:
    with pytest.raises(SpecError, match=r"ctx\.checkpoint\(step=\) must be an integer"):
        ctx.checkpoint({}, step)


def test_a_role_that_the_program_does_not_have(ctx: Any) -> None:
    with pytest.raises(SpecError, match=r'ctx\.restored\(role=\) must be "worker", got \'chief\''):
        ctx.restored("chief")


def test_a_step_may_be_written_twice_and_be_of_any_size(ctx: Any) -> None:
    for value, step in ((1, 5), (2, 5), (3, 10**13), (4, -1)):
        ctx.checkpoint({"value": value}, step)
        assert ctx.restored() == ({"value": value}, step)


def test_files_of_a_killed_writer_are_swept(ctx: Any) -> None:
    ctx.checkpoint({"w": 1}, 1)
    for pid in (1, 22, 333):
        put(ctx, f".part-{pid}-000000002-2.safetensors", b"half")
    put(ctx, "notes.txt", b"")
    assert ctx.restored() == ({"w": 1}, 1)
    ctx.checkpoint({"w": 2}, 2)
    assert names(ctx) == {"000000001-1.safetensors", "000000002-2.safetensors", "notes.txt"}


def test_folders_come_back_as_they_were(ctx: Any, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved = tmp_path / f"saved-{step}"
        (saved / "variables" / "empty").mkdir(parents=True)
        (saved / "checkpoint").write_text("model_checkpoint_path: net")
        (saved / "variables" / "net.data").write_bytes(os.urandom(1000) * step)
        os.utime(saved / "checkpoint", (0, 0))  # before the years that ZIP knows
        ctx.checkpoint(saved, step)
        copy, of = ctx.restored()
        assert of == step and copy != saved
        for path in saved.rglob("*"):
            same = copy / path.relative_to(saved)
            assert same.is_dir() if path.is_dir() else same.read_bytes() == path.read_bytes()
    ctx.checkpoint({"a": "tree"}, 4)
    assert ctx.restored() == ({"a": "tree"}, 4)
    assert names(ctx) == {"000000003-3.zip", "000000004-4.safetensors"}
    assert [path.name for path in ctx._session.folder.iterdir()] == ["restored"], "a copy of what was stored is left"


def test_an_empty_folder_and_what_no_archive_has(ctx: Any, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    ctx.checkpoint(saved, 1)
    copy, _ = ctx.restored()
    assert copy.is_dir() and not list(copy.iterdir())
    os.mkfifo(saved / "pipe")
    with pytest.raises(SpecError, match="pipe is a pipe, a socket or a link to nothing"):
        ctx.checkpoint(saved, 2)


def test_another_task_reads_it(ctx: Any) -> None:
    ctx.checkpoint({"w": 1}, 7)
    ctx.index = 1
    assert ctx.restored() is None and ctx.restored("worker", 0) == ({"w": 1}, 7)
    with pytest.raises(SpecError, match="role"):
        ctx.restored("chief")


def test_faults_in_words(ctx: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"text is no tree; give a folder as a pathlib\.Path"):
        ctx.checkpoint(str(tmp_path), 1)
    with pytest.raises(SpecError, match="a folder that is there"):
        ctx.checkpoint(tmp_path / "none", 1)
    ctx.checkpoint({"w": 1}, 1)
    put(ctx, "000000002-2.zip", b"half")
    with pytest.raises(ResourceError, match=r"ctx\.restored: host .* cannot read .*worker-0: BadZipFile"):
        ctx.restored()


def test_files_are_opened_at_paths_and_urls(ctx: Any) -> None:
    for uri in ("notes", "memory://notes/a"):
        with ctx.open(uri, "w", encoding="utf-8") as file:
            file.write("ä")
        with ctx.open(uri) as file:
            assert file.read() == "ä".encode()
        with ctx.open(uri, "r", encoding="utf-8") as file:
            assert list(file) == ["ä"]
    assert (ctx.directory / "notes").read_bytes() == "ä".encode()
    with pytest.raises(DataError, match=r"ctx\.open: host .* cannot open memory://none: FileNotFoundError"):
        ctx.open("memory://none")


@pytest.mark.parametrize(
    ("mode", "options", "words"),
    [
        ("rb", {"encoding": "utf-8"}, r"ctx\.open\(mode='rb'\): no option 'encoding'"),
        ("r", {"buffering": 1}, "no option 'buffering'; text modes have encoding, errors, newline"),
        ("q", {}, r"ctx\.open\(mode='q'\): must be a mode"),
        (7, {}, r"ctx\.open\(mode=7\): must be a mode"),
    ],
)
def test_modes_and_options_that_there_are_not(ctx: Any, mode: Any, options: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ctx.open("notes", mode, **options)


def test_a_checkpoint_that_is_replaced_while_it_is_restored(ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a listing and the reading of the newest, its task writes two more, and removes it."""
    get = Directory.get
    ctx.checkpoint({"w": 1}, 1)

    def late(self: Directory, name: str) -> bytes:
        monkeypatch.undo()
        for step in (2, 3, 4):
            ctx.checkpoint({"w": step}, step)
        return get(self, name)

    monkeypatch.setattr(Directory, "get", late)
    assert ctx.restored() == ({"w": 4}, 4)


def test_the_store_of_a_later_launch_is_left_alone(ctx: Any) -> None:
    store = FsspecStore(ctx._session.host.store or str(ctx.directory / "checkpoints"))
    assert claim(store, (), "first") and not claim(store, (), "second")
    ctx._session.host = SimpleNamespace(store=store.url, owner="first")
    for step in (1, 2, 3):
        ctx.checkpoint({"w": step}, step)
    assert claim(store, store.marks(), "second")
    with pytest.raises(RunDirectoryError, match="belongs to a later launch"):
        ctx.checkpoint({"w": 4}, 4)
    assert names(ctx) == {"000000002-2.safetensors", "000000003-3.safetensors"}
    ctx._session.host = SimpleNamespace(store=store.url, owner="second")
    assert ctx.restored() == ({"w": 3}, 3)
    ctx.checkpoint({"w": 5}, 5)
    disown(store.url, "second")
    assert store.marks() == {}
