"""The clock of a driver: the times in a journal never run back, whatever the system's clock does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.driver.commit import Clock
from hopyard.store.layout import Layout
from jobs import journal, select

HOUR = 3600.0


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The system's clock, which somebody sets back by an hour whenever it is read."""
    reads: list[float] = []
    real = time.time

    def read() -> float:
        reads.append(real() - HOUR * len(reads))
        return reads[-1]

    monkeypatch.setattr(time, "time", read)
    return reads


def test_the_clock_never_runs_back(set_back: list[float]) -> None:
    clock, real = Clock(), time.monotonic()
    times = [clock.now() for _ in range(1000)]
    assert times == sorted(times) and times[-1] - times[0] <= time.monotonic() - real + 1e-3
    assert time.time() < times[0] - HOUR / 2, "the system's clock did"


def test_time_without_the_driver_is_left_out() -> None:
    clock = Clock()
    before = clock.now()
    clock.skip(HOUR)
    assert clock.now() == before


def test_the_times_of_a_journal(tmp_path: Path, set_back: list[float]) -> None:
    select(tmp_path / "run")
    times = [line.at for line in journal(tmp_path / "run")]
    assert times == sorted(times) and len(set_back) > 1, "the system's clock was read, and set back"


def test_the_times_of_a_journal_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back between two drivers of one run."""
    select(tmp_path / "run")
    file = Layout(tmp_path / "run").journal
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[: len(lines) // 2]))
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - HOUR)
    assert hy.resume(tmp_path / "run").status == "completed"
    times = [line.at for line in journal(tmp_path / "run")]
    assert times == sorted(times)
