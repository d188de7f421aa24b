"""Logs that are read while they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopyard.driver.logs import LogStream


@pytest.fixture
def logs(tmp_path: Path) -> list[tuple[str, Path]]:
    return [(f"worker {number}", tmp_path / f"slot-{number}.log") for number in range(2)]


def add(log: tuple[str, Path], data: bytes) -> None:
    with log[1].open("ab") as file:
        file.write(data)


def test_each_line_is_shown_once_and_when_it_is_whole(logs: list[tuple[str, Path]]) -> None:
    stream = LogStream({})
    assert list(stream.lines(logs, False)) == []  # no log is there yet
    add(logs[0], b"one\ntw")
    assert list(stream.lines(logs, False)) == [("worker 0", "one")]
    add(logs[1], b"other\n")
    assert list(stream.lines(logs, False)) == [("worker 1", "other")]
    add(logs[0], b"o\n\n  three")
    assert list(stream.lines(logs, False)) == [("worker 0", "two"), ("worker 0", "")]
    assert list(stream.lines(logs, True)) == [("worker 0", "  three")]
    assert list(stream.lines(logs, True)) == []


def test_control_characters_are_escaped(logs: list[tuple[str, Path]]) -> None:
    add(logs[0], b"\x1b]0;title\x07 caf\xe9\n\x1b[32mgreen\x1b[0m\n10%\r50%\r100%\r\n\ttab\n")
    assert list(LogStream({}).lines(logs, True)) == [
        ("worker 0", "\\x1b]0;title\\x07 caf\ufffd"),
        ("worker 0", "green"),
        ("worker 0", "100%"),
        ("worker 0", "\ttab"),
    ]


def test_earlier_lines_are_left_out(logs: list[tuple[str, Path]]) -> None:
    add(logs[0], b"of an earlier program\n")
    stream = LogStream({logs[0][1]: logs[0][1].stat().st_size})
    add(logs[0], b"new\n")
    assert list(stream.lines(logs, False)) == [("worker 0", "new")]


def test_a_line_longer_than_a_chunk(logs: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.driver.logs.CHUNK_BYTES", 4)
    add(logs[0], b"abcdefghij\nk\nl")
    found = list(LogStream({}).lines(logs, True))
    assert "".join(line for _, line in found) == "abcdefghijkl"
    assert found[-2:] == [("worker 0", "k"), ("worker 0", "l")]


def test_a_line_end_that_comes_in_two_halves(logs: list[tuple[str, Path]]) -> None:
    """That of a line, "\\r\\n"; and "\\r" alone, after each state of a progress bar."""
    stream, found = LogStream({}, bars=True), list[str]()
    for data in (b"first\r", b"\nsecond\r\n", b"10 %\r20", b" %\r", b"30 %\r", b"done\n"):
        add(logs[0], data)
        found += [line for _, line in stream.lines(logs, False)]
    assert found == ["first", "second", "10 %", "20 %", "done"]
