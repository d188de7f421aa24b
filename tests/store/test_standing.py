"""How runs and programs stand, by what their journals tell and who holds their locks."""

import fcntl

import pytest

from hopyard.core.runs.codec import encode
from hopyard.core.runs.events import Finished, Interrupted, Resumed
from hopyard.store.layout import Layout
from hopyard.store.standing import held, standing

ASKED = Interrupted(at=2.0, reason="stopped by the user", stopped=True)
DIED = Interrupted(at=2.0, reason="interrupted by the user")
AGAIN = Resumed(at=3.0)


@pytest.fixture
def layout(tmp_path):
    return Layout(tmp_path)


def write(layout, *lines, torn=b""):
    layout.journal.write_bytes(b"".join(encode(line) + b"\n" for line in lines) + torn)


@pytest.mark.parametrize("told", ["completed", "partial", "failed", "stopped"])
def test_an_ended_run_stays_ended(layout, told):
    write(layout, DIED)
    with layout.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert standing(layout, told) == told


@pytest.mark.parametrize("told", ["checking", "running"])
@pytest.mark.parametrize("last", [[], [DIED], [ASKED], [ASKED, AGAIN]])
def test_while_a_driver_lives_it_is_running(layout, told, last):
    write(layout, *last)
    with layout.lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert standing(layout, told) == "running"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([], "interrupted"),
        ([DIED], "interrupted"),
        ([ASKED], "stopped"),
        ([ASKED, AGAIN], "interrupted"),
        ([AGAIN, ASKED], "stopped"),
        ([Finished(at=1.0, status="partial")], "partial"),
        ([ASKED, Interrupted(at=4.0, reason="x" * 100_000)], "interrupted"),
    ],
)
@pytest.mark.parametrize("told", ["checking", "running"])
def test_when_none_lives_the_last_line_tells(layout, lines, status, told):
    write(layout, *lines)
    assert standing(layout, told) == status
    layout.lock.touch()
    assert standing(layout, told) == status


def test_a_torn_or_damaged_end(layout):
    write(layout, ASKED, torn=b'{"type":"Res')
    assert standing(layout, "running") == "stopped"  # what is torn had no effect
    layout.journal.write_bytes(b"rubbish\n")
    assert standing(layout, "running") == "interrupted"
    layout.journal.unlink()
    assert standing(layout, "running") == "interrupted"


def test_the_lock_is_asked_not_taken(layout):
    assert not held(layout.lock)
    assert not layout.lock.exists()
    layout.lock.write_text("17")
    with layout.lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert held(layout.lock)
    assert not held(layout.lock)
    assert layout.lock.read_text() == "17"
