"""When a worker may give out a batch of a feed whose workers end together, and what it tells of it."""

from __future__ import annotations

import pytest

from hopyard.core.programs.feed_progress import Count, Uneven
from hopyard.feeds.pacing import Arrived, Pacing

HERE, ENDED, UNWANTED = Arrived(25, False, False), Arrived(25, True, False), Arrived(25, False, True)


def pacing(uneven: Uneven, allowed: Count = Count(0, False), size: int = 10) -> Pacing:  # noqa: B008 - it is frozen
    it = Pacing(uneven)
    it.allowed = allowed
    if size:
        it.ask(0, size)
    return it


@pytest.mark.parametrize(
    ("uneven", "allowed", "batch", "arrived", "turn"),
    [
        ("min", Count(0, False), 0, HERE, None),
        ("min", Count(1, False), 0, HERE, "give"),
        ("min", Count(1, False), 1, HERE, None),
        ("min", Count(1, True), 1, HERE, "end"),
        ("min", Count(3, True), 2, ENDED, "give"),
        ("min", Count(3, True), 0, UNWANTED, "end"),
        ("cycle", Count(0, False), 1, HERE, "give"),
        ("cycle", Count(0, False), 2, HERE, None),
        ("cycle", Count(9, False), 2, HERE, None),
        ("cycle", Count(0, False), 2, ENDED, "give"),
        ("cycle", Count(9, False), 3, ENDED, "again"),
        ("cycle", Count(9, True), 9, ENDED, "end"),
    ],
)
def test_whose_turn_it_is(uneven: Uneven, allowed: Count, batch: int, arrived: Arrived, turn: str | None) -> None:
    assert pacing(uneven, allowed).turn(batch, arrived) == turn


@pytest.mark.parametrize(
    ("size", "arrived", "news"),
    [
        (10, HERE, Count(2, False)),
        (10, ENDED, Count(3, True)),
        (25, HERE, Count(1, False)),
        (0, HERE, None),
        (0, ENDED, None),
        (0, Arrived(0, True, False), Count(0, True)),
        (0, UNWANTED, Count(0, True)),
    ],
)
def test_pacing_reports_to_the_driver(size: int, arrived: Arrived, news: Count | None) -> None:
    it = pacing("min", size=size)
    assert it.news(arrived) == news
    assert it.news(arrived) is None, "it is told once"


def test_a_program_that_takes_no_more_tells_how_many_batches_it_took() -> None:
    it = pacing("min", Count(9, False))
    it.give(0)
    it.ask(1, 10)
    assert it.news(UNWANTED) == Count(1, True)


@pytest.mark.parametrize(("uneven", "together"), [(None, False), ("allow", False), ("min", True), ("cycle", True)])
def test_tasks_that_end_together(uneven: Uneven | None, together: bool) -> None:
    assert Pacing(uneven).together == together
