"""What a feed's driver decides: when rows go again, when all are taken, how far uneven workers may go."""

from __future__ import annotations

import pytest

from hopyard.core.programs.feeding import FeedRecord
from hopyard.core.programs.uneven import Count

OLD, NEW = frozenset({1, 2}), frozenset({3, 4})


def test_tasks_that_were_started_again_lack_all_of_it() -> None:
    record = FeedRecord("train", "join", "program")
    assert record.lacked(OLD) == [] and record.incarnations is None
    record.keep("a", 2, OLD)
    record.keep("b", 1, OLD)
    assert record.lacked(OLD) == []
    assert record.lacked(NEW) == [("a", 2), ("b", 1)] and not record.doubled(OLD, NEW)
    record.caught_up(NEW)
    assert record.lacked(NEW) == [] and record.lacked(OLD) == [("a", 2), ("b", 1)]


def test_started_again_while_rows_go_again() -> None:
    record = FeedRecord("train", "join", "program")
    record.keep("a", 1, OLD)
    record.begin_again()
    assert record.incarnations is None and record.lacked(OLD) == record.lacked(NEW) == [("a", 1)]


def test_nothing_is_kept_of_a_program_that_is_never_started_again() -> None:
    record = FeedRecord("train", "join", "")
    record.keep("a", 1, OLD)
    assert record.lacked(NEW) == [] and record.incarnations is None and not record.doubled(OLD, NEW)


def test_no_rows_are_nothing_to_keep() -> None:
    record = FeedRecord("train", "join", "program")
    record.keep("a", 0, None)
    assert record.lacked(NEW) == []


def test_a_task_by_itself_cannot_have_its_rows_again() -> None:
    record = FeedRecord("train", "join", "task")
    record.keep("a", 1, OLD)
    one = frozenset({1, 5})
    assert record.lacked(one) == [("a", 1)]
    words = record.doubled(OLD, one)
    assert "'train'" in words and 'restart_scope="program"' in words
    assert not record.doubled(OLD, NEW)  # its host was lost, so all were started again
    assert not record.doubled(None, one)


def test_all_is_taken_when_each_has_said_so() -> None:
    record = FeedRecord("train", "join", "")
    assert not record.all_taken([]) and not record.all_taken([0, 1])
    record.takes(0, 10, False, record.question)
    assert not record.all_taken([0, 1])
    record.takes(1, 3, True, record.question)
    assert not record.all_taken([0, 1])
    record.takes(1, 5, False, record.question)
    assert record.all_taken([0, 1]) and record.said == {0: (10, False), 1: (5, False)} and record.taken == 15


def test_answers_to_an_older_question_do_not_count() -> None:
    record = FeedRecord("train", "join", "")
    before = record.question
    record.takes(0, 10, False, before)
    record.ask_anew()
    assert not record.all_taken([0]) and record.said == {} and record.taken == 10
    record.takes(0, 12, False, before)
    assert not record.all_taken([0])
    record.takes(0, 12, False, record.question)
    assert record.all_taken([0])


def test_how_far_uneven_workers_may_go() -> None:
    record = FeedRecord("train", "min", "program")
    assert record.says(0, Count(3, False), [0, 1]) is None  # nothing is known of the other
    assert record.says(1, Count(2, False), [0, 1]) == Count(2, False)
    assert record.says(1, Count(2, False), [0, 1]) is None
    assert record.says(1, Count(2, True), [0, 1]) == Count(2, True)
    record.begin_again()
    assert record.says(0, Count(1, False), [0, 1]) is None


def test_who_joins_is_told_nothing() -> None:
    assert FeedRecord("train", "join", "").says(0, Count(9, True), [0]) is None


def test_numbers_of_epochs_are_never_used_twice() -> None:
    record = FeedRecord("train", "join", "program")
    numbers = [record.begin_epoch(), record.begin_epoch()]
    record.begin_again()
    assert [*numbers, record.begin_epoch()] == [1, 2, 3] and record.epochs == 3


@pytest.mark.parametrize("uneven", ["min", "repeat"])
def test_the_rule_is_that_of_core(uneven: str) -> None:
    record = FeedRecord("train", uneven, "")  # type: ignore[arg-type]
    record.says(0, Count(5, True), [0, 1])
    told = record.says(1, Count(2, True), [0, 1])
    assert told == Count(2 if uneven == "min" else 5, True)
