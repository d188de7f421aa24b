"""The journal: whole lines or none, torn, damaged, newer, without room."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopyard.core.runs.codec import CODEC, encode
from hopyard.core.runs.events import Began, Exhausted, Interrupted, Line, Proposed
from hopyard.errors import JournalError, ResourceError, RunDirectoryError
from hopyard.spec import FORMAT, RunSpec
from hopyard.store.journal import Journal, read, retire, whole_bytes, write_whole
from jobs import fill

LINES: list[Line] = [
    Began(at=1.0, spec=RunSpec(epochs=1, partitions=2, validation=1)),
    Proposed(at=2.0, trial=0, config={"lr": 0.1, "name": "größe"}),
    Exhausted(at=3.0),
]
DATA = b"".join(encode(line) + b"\n" for line in LINES)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "journal.jsonl").write_bytes(DATA)
    return tmp_path / "journal.jsonl"


def test_appended_lines_are_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", CODEC)
    journal.append(LINES[:1])
    journal.append([])
    journal.append(LINES[1:])
    journal.close()
    assert (list(read(journal.path, CODEC)), whole_bytes(journal.path)) == (LINES, len(DATA))


def test_lines_come_one_by_one_however_many_there_are(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    line = encode(Proposed(at=2.0, trial=0, config={"text": "x" * 1000})) + b"\n"
    with path.open("wb") as file:
        file.write(DATA)
        for _ in range(20_000):
            file.write(line)
    tracemalloc.start()
    count = sum(1 for _ in read(path, CODEC))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == len(LINES) + 20_000
    assert peak < path.stat().st_size / 20


@pytest.mark.parametrize("size", [0, 1, 70_000, 200_000])
def test_the_end_of_the_last_whole_line_is_found_from_behind(path: Path, size: int) -> None:
    with path.open("ab") as file:
        file.write(b"x" * size)
    assert whole_bytes(path) == len(DATA)
    assert Journal(path, CODEC, resume=True).path == path
    assert path.read_bytes() == DATA


def test_a_journal_that_is_there_is_not_written_over(path: Path) -> None:
    with pytest.raises(FileExistsError):
        Journal(path, CODEC)
    assert path.read_bytes() == DATA


def test_torn_at_every_byte_of_the_last_line(path: Path) -> None:
    whole = len(DATA) - len(encode(LINES[-1])) - 1
    for cut in range(whole, len(DATA)):
        path.write_bytes(DATA[:cut])
        assert (list(read(path, CODEC)), whole_bytes(path)) == (LINES[:-1], whole)
        journal = Journal(path, CODEC, resume=True)
        journal.append([Interrupted(at=4.0, reason="x")])
        journal.close()
        assert list(read(path, CODEC)) == [*LINES[:-1], Interrupted(at=4.0, reason="x")]


def test_torn_before_its_first_line_was_whole(path: Path) -> None:
    path.write_bytes(DATA[:20])
    assert (list(read(path, CODEC)), whole_bytes(path)) == ([], 0)


@pytest.mark.parametrize(
    "junk", [b"{}", b"[1, 2]", b"\xff\xfe", b'{"type":"Proposed"}', b'{"type":"Boiled","at":1}', b""]
)
def test_damage_in_the_middle_names_the_line(path: Path, junk: bytes) -> None:
    lines = DATA.splitlines()
    path.write_bytes(b"\n".join([lines[0], junk, *lines[1:]]) + b"\n")
    with pytest.raises(JournalError, match=r"journal\.jsonl, line 2: .*damaged here.*Restore") as caught:
        list(read(path, CODEC))
    assert caught.value.exit_code == 1


def test_whatever_bytes_are_changed_it_reads_or_says_that_it_is_damaged(path: Path) -> None:
    dice = random.Random(0)
    for _ in range(300):
        data = bytearray(DATA)
        for _ in range(dice.randrange(1, 4)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        path.write_bytes(data)
        try:
            list(read(path, CODEC))
        except JournalError:
            pass


def test_nested_too_deep_is_damage(path: Path) -> None:
    path.write_bytes(DATA + b'{"type":"Proposed","at":1,"trial":1,"config":{"a":' + b"[" * 100_000 + b"\n")
    with pytest.raises(JournalError, match="line 4"):
        list(read(path, CODEC))


def test_a_journal_begins_with_began(path: Path) -> None:
    path.write_bytes(b"".join(encode(line) + b"\n" for line in LINES[1:]))
    with pytest.raises(JournalError, match="line 1: a journal begins with Began, not Proposed"):
        list(read(path, CODEC))


@pytest.mark.parametrize(
    "head",
    [
        {"type": "Began", "at": 1.0, "spec": {"epochs": 1, "partitions": 2, "validation": 1}, "format": FORMAT + 1},
        {"type": "Began", "when": "noon", "spec": [1, 2], "format": FORMAT + 1},
    ],
    ids=["same fields", "other fields"],
)
def test_a_newer_format_is_called_newer_not_damaged(path: Path, head: dict[str, Any]) -> None:
    path.write_bytes(json.dumps(head).encode() + b'\n{"type":"Teleported","at":2.0,"slot":1}\n')
    with pytest.raises(JournalError, match="newer Hopyard") as caught:
        list(read(path, CODEC))
    assert "damaged" not in str(caught.value)
    assert f"format {FORMAT + 1}" in str(caught.value)


def test_without_room_nothing_of_an_append_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal.jsonl", CODEC)
    journal.append(LINES[:1])
    write = os.write

    def full(file: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr("hopyard.store.journal.os.write", full)
    with pytest.raises(ResourceError, match=r"room for the journal.*hopyard resume") as caught:
        journal.append(LINES[1:])
    assert caught.value.exit_code == 4
    monkeypatch.undo()
    assert list(read(journal.path, CODEC)) == LINES[:1]
    journal.append(LINES[1:])
    journal.close()
    assert (list(read(journal.path, CODEC)), whole_bytes(journal.path)) == (LINES, len(DATA))


def test_interrupted_while_it_writes_nothing_of_an_append_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path / "journal.jsonl", CODEC)
    journal.append(LINES[:1])

    def interrupt(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hopyard.store.journal.os.fdatasync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        journal.append(LINES[1:])
    monkeypatch.undo()
    journal.close()
    assert list(read(journal.path, CODEC)) == LINES[:1]


def test_a_disk_that_is_really_full(small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("1m")
    journal = Journal(disk / "journal.jsonl", CODEC)
    journal.append(LINES[:2])
    filler = disk / "filler"
    fill(filler)
    long = Interrupted(at=4.0, reason="x" * 20_000)
    with pytest.raises(ResourceError, match="No space left"):
        journal.append([LINES[2], long])
    with pytest.raises(ResourceError, match="no room"):
        write_whole(disk / "run.json", bytes(20_000))
    assert sorted(path.name for path in disk.iterdir()) == ["filler", "journal.jsonl"]
    assert list(read(journal.path, CODEC)) == LINES[:2]
    filler.unlink()
    journal.append([LINES[2], long])
    journal.close()
    assert list(read(journal.path, CODEC)) == [*LINES, long]


def test_write_whole_leaves_the_old_or_the_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.json"
    write_whole(path, b"old")

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("hopyard.store.journal.os.fsync", full)
    with pytest.raises(ResourceError, match=r"run\.json: no room"):
        write_whole(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def planted_name(path: Path) -> Path:
    """The name under which this process writes before it renames: everybody can foresee it."""
    return path.with_name(f".part-{os.getpid()}-{path.name}")


def test_a_private_file_is_not_written_through_a_planted_link(tmp_path: Path) -> None:
    path, precious = tmp_path / "recipe.pkl", tmp_path / "precious"
    precious.write_text("theirs")
    planted_name(path).symlink_to(precious)
    write_whole(path, b"secret", private=True)
    assert precious.read_text() == "theirs" and not path.is_symlink()
    assert path.read_bytes() == b"secret" and path.stat().st_mode & 0o777 == 0o600


def test_a_private_file_is_not_written_into_a_planted_one(tmp_path: Path) -> None:
    """Who has it open would read all that is written to it."""
    path = tmp_path / "recipe.pkl"
    with planted_name(path).open("w+") as planted:
        planted_name(path).chmod(0o666)
        write_whole(path, b"secret", private=True)
        assert planted.read() == "" and not os.path.samestat(os.fstat(planted.fileno()), path.stat())
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_private_file_is_not_written_where_one_is_planted_at_the_last_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, precious = tmp_path / "recipe.pkl", tmp_path / "precious"
    precious.write_text("theirs")
    unlink = os.unlink

    def planting(name: str, **how: Any) -> None:
        with contextlib.suppress(FileNotFoundError):
            unlink(name, **how)
        if name == str(planted_name(path)) and not planted:
            planted.append(name)
            planted_name(path).write_text("planted") if kind == "file" else planted_name(path).symlink_to(precious)

    planted: list[str] = []
    monkeypatch.setattr(os, "unlink", planting)
    with pytest.raises(FileExistsError):
        write_whole(path, b"secret", private=True)
    assert planted and precious.read_text() == "theirs" and not path.exists()


# ------------------------------------------------------------------------------------------ names


def test_a_retired_journal_takes_a_name_that_never_was(tmp_path: Path) -> None:
    path = tmp_path / "program.jsonl"
    assert retire(path) is None
    for text in ("1", "2"):
        path.write_text(text)
        retire(path)
    (tmp_path / "program-1.jsonl").unlink()
    (tmp_path / "program-note.jsonl").touch()
    path.write_text("3")
    assert retire(path) == tmp_path / "program-3.jsonl"
    assert [(tmp_path / f"program-{number}.jsonl").read_text() for number in (2, 3)] == ["2", "3"]
    assert not path.exists()


def test_a_journal_that_was_removed_takes_no_more_lines(tmp_path: Path) -> None:
    """Bug: a run whose directory was removed trained to its end, and then waited for its store for ever."""
    journal = Journal(tmp_path / "journal.jsonl", CODEC)
    journal.append(LINES[:1])
    journal.path.unlink()
    with pytest.raises(RunDirectoryError, match="was removed while its driver lives"):
        journal.append(LINES[1:])
    journal.close()
