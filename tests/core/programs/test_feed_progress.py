"""What workers say of a feed: when all is taken, how far uneven ones may go."""

from __future__ import annotations

import pytest

from hopyard.core.programs.feed_progress import Count, FeedProgress


def test_all_rows_are_taken_once_every_task_answered() -> None:
    progress = FeedProgress("allow")
    assert not progress.all_taken([]) and not progress.all_taken([0, 1])
    progress.take(0, 10, False, progress.question)
    assert not progress.all_taken([0, 1])
    progress.take(1, 3, True, progress.question)
    assert not progress.all_taken([0, 1])
    progress.take(1, 5, False, progress.question)
    assert progress.all_taken([0, 1]) and progress.answers == {0: (10, False), 1: (5, False)} and progress.taken == 15


def test_answers_to_an_older_question_do_not_count() -> None:
    progress = FeedProgress("allow")
    before = progress.question
    progress.take(0, 10, False, before)
    progress.question += 1
    assert not progress.all_taken([0]) and progress.answers == {} and progress.taken == 10
    progress.take(0, 12, False, before)
    assert not progress.all_taken([0])
    progress.take(0, 12, False, progress.question)
    assert progress.all_taken([0])


def test_how_far_uneven_workers_may_go() -> None:
    progress = FeedProgress("min")
    assert progress.count(0, Count(3, False), [0, 1]) is None  # nothing is known of the other
    assert progress.count(1, Count(2, False), [0, 1]) == Count(2, False)
    assert progress.count(1, Count(2, False), [0, 1]) is None
    assert progress.count(1, Count(2, True), [0, 1]) == Count(2, True)
    progress.forget()
    assert progress.count(0, Count(1, False), [0, 1]) is None


def test_a_joining_task_gets_no_question() -> None:
    assert FeedProgress("allow").count(0, Count(9, True), [0]) is None


@pytest.mark.parametrize("uneven", ["min", "cycle"])
def test_the_rule_is_that_of_core(uneven: str) -> None:
    progress = FeedProgress(uneven)  # type: ignore[arg-type]
    progress.count(0, Count(5, True), [0, 1])
    assert progress.count(1, Count(2, True), [0, 1]) == Count(2 if uneven == "min" else 5, True)
