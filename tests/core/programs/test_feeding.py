"""What a feed's driver decides: when rows go again, when all are taken, how far uneven workers may go."""

from __future__ import annotations

import pytest

from hopyard.core.programs.feeding import FeedRecord
from hopyard.core.programs.uneven import Count

OLD, NEW = frozenset({1, 2}), frozenset({3, 4})


def test_tasks_that_were_started_again_lack_all_of_it() -> None:
    book = FeedRecord("train", "join", "program")
    assert book.lacked(OLD) == [] and book.incarnations is None
    book.keep("a", 2, OLD)
    book.keep("b", 1, OLD)
    assert book.lacked(OLD) == []
    assert book.lacked(NEW) == [("a", 2), ("b", 1)] and not book.doubled(OLD, NEW)
    book.caught_up(NEW)
    assert book.lacked(NEW) == [] and book.lacked(OLD) == [("a", 2), ("b", 1)]


def test_started_again_while_rows_go_again() -> None:
    book = FeedRecord("train", "join", "program")
    book.keep("a", 1, OLD)
    book.begin_again()
    assert book.incarnations is None and book.lacked(OLD) == book.lacked(NEW) == [("a", 1)]


def test_nothing_is_kept_of_a_program_that_is_never_started_again() -> None:
    book = FeedRecord("train", "join", "")
    book.keep("a", 1, OLD)
    assert book.lacked(NEW) == [] and book.incarnations is None and not book.doubled(OLD, NEW)


def test_no_rows_are_nothing_to_keep() -> None:
    book = FeedRecord("train", "join", "program")
    book.keep("a", 0, None)
    assert book.lacked(NEW) == []


def test_a_task_by_itself_cannot_have_its_rows_again() -> None:
    book = FeedRecord("train", "join", "task")
    book.keep("a", 1, OLD)
    one = frozenset({1, 5})
    assert book.lacked(one) == [("a", 1)]
    words = book.doubled(OLD, one)
    assert "'train'" in words and 'restart_scope="program"' in words
    assert not book.doubled(OLD, NEW)  # its host was lost, so all were started again
    assert not book.doubled(None, one)


def test_all_is_taken_when_each_has_said_so() -> None:
    book = FeedRecord("train", "join", "")
    assert not book.all_taken([]) and not book.all_taken([0, 1])
    book.takes(0, 10, False, book.question)
    assert not book.all_taken([0, 1])
    book.takes(1, 3, True, book.question)
    assert not book.all_taken([0, 1])
    book.takes(1, 5, False, book.question)
    assert book.all_taken([0, 1]) and book.said == {0: (10, False), 1: (5, False)} and book.taken == 15


def test_answers_to_an_older_question_do_not_count() -> None:
    book = FeedRecord("train", "join", "")
    before = book.question
    book.takes(0, 10, False, before)
    book.ask_anew()
    assert not book.all_taken([0]) and book.said == {} and book.taken == 10
    book.takes(0, 12, False, before)
    assert not book.all_taken([0])
    book.takes(0, 12, False, book.question)
    assert book.all_taken([0])


def test_how_far_uneven_workers_may_go() -> None:
    book = FeedRecord("train", "min", "program")
    assert book.says(0, Count(3, False), [0, 1]) is None  # nothing is known of the other
    assert book.says(1, Count(2, False), [0, 1]) == Count(2, False)
    assert book.says(1, Count(2, False), [0, 1]) is None
    assert book.says(1, Count(2, True), [0, 1]) == Count(2, True)
    book.begin_again()
    assert book.says(0, Count(1, False), [0, 1]) is None


def test_who_joins_is_told_nothing() -> None:
    assert FeedRecord("train", "join", "").says(0, Count(9, True), [0]) is None


def test_numbers_of_epochs_are_never_used_twice() -> None:
    book = FeedRecord("train", "join", "program")
    numbers = [book.begin_epoch(), book.begin_epoch()]
    book.begin_again()
    assert [*numbers, book.begin_epoch()] == [1, 2, 3] and book.epochs == 3


@pytest.mark.parametrize("uneven", ["min", "repeat"])
def test_the_rule_is_that_of_core(uneven: str) -> None:
    book = FeedRecord("train", uneven, "")  # type: ignore[arg-type]
    book.says(0, Count(5, True), [0, 1])
    told = book.says(1, Count(2, True), [0, 1])
    assert told == Count(2 if uneven == "min" else 5, True)
