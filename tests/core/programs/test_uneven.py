from __future__ import annotations

import pytest

from hopyard.core.programs.feed_progress import Count, allowed


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(0, False), (9, False)], (0, False)),
        ([(4, False), (9, True)], (4, False)),
        ([(4, True), (9, False)], (4, True)),
        ([(4, True), (2, False)], (2, False)),
        ([(0, True), (2, False)], (0, True)),
        ([(4, True), (4, True)], (4, True)),
    ],
)
def test_all_end_after_as_many_as_the_least_has(counts: list[tuple[int, bool]], expected: tuple[int, bool]) -> None:
    assert allowed("min", [Count(*count) for count in counts]) == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([(0, False), (9, False)], (9, False)),
        ([(4, True), (9, False)], (9, False)),
        ([(4, True), (9, True)], (9, True)),
        ([(0, True), (0, True)], (0, True)),
    ],
)
def test_all_go_on_for_as_long_as_the_one_with_most(counts: list[tuple[int, bool]], expected: tuple[int, bool]) -> None:
    assert allowed("cycle", [Count(*count) for count in counts]) == expected


@pytest.mark.parametrize("rule", ["min", "cycle"])
def test_an_allowance_is_not_withdrawn(rule: str) -> None:
    seen = [Count(0, False), Count(0, False)]
    last = 0
    for worker, batches, ended in [(0, 3, False), (1, 2, False), (1, 5, False), (0, 4, True), (1, 7, True)]:
        seen[worker] = Count(batches, ended)
        now = allowed(rule, seen)  # type: ignore[arg-type]
        assert now.batches >= last
        last = now.batches
