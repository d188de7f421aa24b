"""What a feed decides: tables of what happens, and of what follows."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from hopyard.core.programs import feeding
from hopyard.core.programs.feed_events import (
    Answer,
    Cancel,
    EndAsked,
    EndpointsAsked,
    EpochSent,
    Fail,
    Fed,
    Looked,
    SendMessage,
    SendRows,
    SourceFailed,
    TasksReplaced,
    Warn,
)
from hopyard.core.programs.feeding import FeedMachine
from hopyard.core.programs.messages import BatchesReady, Endpoint, RowsTaken
from hopyard.core.programs.placement import Task
from hopyard.core.programs.status import ProgramStatus, TaskStatus

HERE = Endpoint("m", "/nowhere")


def program(*incarnations: int, endpoint: Endpoint | None = HERE, **status: Any) -> ProgramStatus:
    """Two workers, say, of a program that runs."""
    tasks = tuple(
        TaskStatus(Task("worker", slot, slot, slot, 0, 1, slot), number, "running", "h", 1, {}, None, endpoint)
        for slot, number in enumerate(incarnations)
    )
    return replace(ProgramStatus("running", "running", "", -1, False, 0, tasks), **status)


OLD, NEW, ONE = program(1, 2), program(3, 4), program(1, 5)
NOBODY = program(phase="reserving")
CLOSED = program(1, 2, endpoint=None)
DONE = program(1, 2, phase="over", status="completed", ended=True)
FAILED = program(1, 2, phase="over", status="failed", ended=True)
STOPPED = program(1, 2, phase="over", status="stopped", ended=True)


def told(command: Any) -> str:
    """A command in a few words."""
    match command:
        case SendMessage():
            to = "all" if command.to is None else "".join(map(str, sorted(command.to)))
            return f"{type(command.message).__name__.removeprefix('Feed').lower()}>{to}"
        case SendRows():
            return f"send {command.source} as {command.epoch}"
        case Cancel():
            return f"cancel {command.source}"
        case Answer():
            return f"answer {len(command.endpoints)} endpoints" if command.endpoints else f"answer {command.rows}"
        case Fail():
            return "fail: over" if command.error is None else f"fail: {command.error}"
        case Warn():
            return "warn"
    raise AssertionError(command)


class Played:
    """A feed, the program as it stands, and a clock."""

    def __init__(self, restart: Any = "program", uneven: Any = "allow") -> None:
        self.machine = FeedMachine("train", uneven, restart)
        self.now, self.at = OLD, 100.0

    def __call__(self, fact: Any = None, now: ProgramStatus | None = None, after: float = 0.0) -> list[str]:
        self.now, self.at = now or self.now, self.at + after
        return [told(command) for command in self.machine.handle(Looked() if fact is None else fact, self.now, self.at)]

    def takes(self, rows: int, waiting: bool = False) -> None:
        """Each worker has taken so many."""
        for slot in self.now.slots:
            question = self.machine.progress.question
            message = RowsTaken(feed="train", slot=slot, rows=rows, waiting=waiting, question=question)
            assert self.machine.on_message(message, self.now) == []

    def table(self, *rows: tuple[Any, ...]) -> None:
        """Each row: a fact (None: a look), how the program stands from then on, and what follows."""
        for number, (fact, now, *follows) in enumerate(rows):
            assert self(fact, now) == follows, f"row {number}"


def fed(source: str, epochs: int = 1, end: bool = False, timeout: float | None = None) -> Fed:
    return Fed(source, epochs, end, timeout)


def test_epochs_go_one_after_another() -> None:
    Played().table(
        (fed("A", 2), OLD, "opened>12", "send A as 1"),
        (None, OLD),
        (EpochSent(1, 5), OLD, "opened>12", "send A as 2"),
        (EpochSent(2, 5), OLD, "answer 10"),
        (fed("B"), OLD, "opened>12", "send B as 3"),
        (EpochSent(3, 7), OLD, "answer 7"),
        (EndAsked(), OLD, "ended>12", "answer 0"),
        (fed("C"), OLD, "fail: feed(name='train'): this feed has ended; give end=False to calls before the last, or "
            "another name"),
    )  # fmt: skip


def test_the_last_call_waits_until_all_is_taken() -> None:
    play = Played()
    play(fed("A", end=True))
    play.takes(9)  # of before
    assert play(EpochSent(1, 5)) == ["ended>12", "query>12"]
    play.takes(3, waiting=True)
    assert play() == [] and play(after=0.011) == ["query>12"]
    play.takes(5)
    assert play() == ["answer 5"] and play.machine.idle


def test_endpoints_are_waited_for() -> None:
    play = Played()
    play.table(
        (fed("A"), NOBODY),
        (None, CLOSED, "opened>12"),
        (None, CLOSED),
        (None, NOBODY),
        (None, program(3, 4, endpoint=None), "opened>34"),  # these have not been told
        (None, NEW, "send A as 1"),
    )
    play = Played()
    play(fed("A"), CLOSED)
    assert play.machine.due == play.at + feeding.OPEN_SECONDS
    (failed,) = play(after=feeding.OPEN_SECONDS)
    assert "endpoint within 120 seconds" in failed
    gone = tuple(replace(task, status="completed") for task in CLOSED.tasks[:1]) + CLOSED.tasks[1:]
    assert Played()(fed("A"), replace(CLOSED, tasks=gone))[1:] == [
        "fail: worker 0 has ended and never asked for rows: nothing can be fed to it"
    ]


def test_an_inference_asks_for_endpoints_alone() -> None:
    Played().table(
        (EndpointsAsked(), CLOSED, "opened>12"),
        (None, OLD, "answer 2 endpoints"),
        (EndpointsAsked(), FAILED, "fail: over"),
    )


def test_started_again_while_rows_go() -> None:
    """All rows go again, also those of former calls; the end comes after them."""
    Played().table(
        (fed("A"), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), OLD, "answer 5"),
        (fed("B", end=True), OLD, "opened>12", "send B as 2"),
        (None, NOBODY),
        (SourceFailed(2, "gone"), NOBODY),
        (None, NEW, "cancel B", "warn", "opened>34", "send A as 3"),
        (SourceFailed(2, "an older epoch's"), NEW),
        (EpochSent(3, 5), NEW, "opened>34", "send B as 4"),
        (EpochSent(4, 7), NEW, "ended>34", "query>34"),
        (None, replace(NEW, phase="over", status="completed", ended=True), "answer 7"),
    )


def test_started_again_between_the_last_row_and_the_end() -> None:
    """The end is not said to tasks that have no rows yet."""
    Played().table(
        (fed("A", end=True), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), NEW, "warn", "opened>34", "send A as 2"),
        (EpochSent(2, 5), NEW, "ended>34", "query>34"),
    )


def test_started_again_while_all_is_taken() -> None:
    play = Played()
    play.table(
        (fed("A", end=True), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), OLD, "ended>12", "query>12"),
        (None, NOBODY),
        (None, NEW, "warn", "opened>34", "send A as 2"),
        (EpochSent(2, 6), NEW, "ended>34", "query>34"),
    )
    play.takes(3)
    assert play() == ["answer 5"]


def test_started_again_between_two_epochs() -> None:
    Played().table(
        (fed("A", 2), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), NEW, "opened>34", "warn", "opened>34", "send A as 2"),
        (EpochSent(2, 5), NEW, "opened>34", "send A as 3"),
        (EpochSent(3, 5), NEW, "answer 10"),
    )


def test_started_again_while_nobody_calls() -> None:
    play = Played()
    play.table(
        (fed("A", 2), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), OLD, "opened>12", "send A as 2"),
        (EpochSent(2, 5), OLD, "answer 10"),
    )
    assert not play.machine.lacks(OLD.incarnations) and play.machine.lacks(NEW.incarnations)
    play.table(
        (TasksReplaced(), NEW, "warn", "opened>34", "send A as 3"),
        (EpochSent(3, 5), NEW, "opened>34", "send A as 4"),
        (EpochSent(4, 5), program(6, 7), "warn", "opened>67", "send A as 5"),  # and again
        (EpochSent(5, 5), program(6, 7), "opened>67", "send A as 6"),
        (EpochSent(6, 5), program(6, 7), "answer 0"),
        (TasksReplaced(), program(6, 7), "answer 0"),
        (EndAsked(), NEW, "answer 0"),  # lacks rows: the end comes after them
        (TasksReplaced(), NEW, "warn", "opened>34", "send A as 7"),
        (EpochSent(7, 5), NEW, "opened>34", "send A as 8"),
        (EpochSent(8, 5), NEW, "ended>34", "answer 0"),
    )


def test_started_again_once_the_call_was_done() -> None:
    """Its rows go again before it returns, and count once."""
    Played().table(
        (fed("A"), OLD, "opened>12", "send A as 1"),
        (EpochSent(1, 5), NEW, "warn", "opened>34", "send A as 2"),
        (EpochSent(2, 5), NEW, "answer 5"),
    )


def test_a_program_that_is_never_started_again_keeps_nothing() -> None:
    play = Played(restart="")
    play(fed("A"))
    play(EpochSent(1, 5))
    assert not play.machine.lacks(NEW.incarnations)
    assert play(TasksReplaced(), NEW) == ["answer 0"]


def test_no_epochs_are_nothing_to_keep_or_to_send() -> None:
    play = Played()
    assert play(fed("A", 0)) == ["answer 0"] and not play.machine.lacks(NEW.incarnations)
    assert play(fed("A", 0, end=True), NOBODY) == ["ended>", "answer 0"]
    assert play.machine.lacks(NEW.incarnations)
    assert play(TasksReplaced(), NEW) == ["ended>34", "answer 0"]


@pytest.mark.parametrize("when", ["sending", "draining", "later"])
def test_a_task_by_itself_cannot_have_its_rows_again(when: str) -> None:
    play = Played(restart="task")
    play(fed("A", end=when == "draining"))
    if when != "sending":
        play(EpochSent(1, 5))
    out = play(TasksReplaced() if when == "later" else None, ONE)
    assert out[-2] == "failed>15" and "started again by itself" in out[-1] and 'restart_scope="program"' in out[-1]
    assert ("cancel A" in out) == (when == "sending") and play.machine.idle


def test_a_host_that_is_lost_starts_all_again_whatever_the_rule() -> None:
    play = Played(restart="task")
    play(fed("A"))
    play(EpochSent(1, 5))
    assert play(TasksReplaced(), NEW) == ["warn", "opened>34", "send A as 2"]


def test_a_program_that_had_enough() -> None:
    play = Played()
    play(fed("A", 3))
    play.takes(5)
    play(EpochSent(1, 10))
    play.takes(6)
    assert play(now=DONE) == ["cancel A", "answer 12"]
    play = Played()
    play(fed("A", end=True))
    play.takes(2)
    assert play(now=DONE) == ["cancel A", "ended>12", "answer 4"]
    assert Played()(fed("A"), DONE) == ["fail: over"]  # nothing was begun


@pytest.mark.parametrize("over", [FAILED, STOPPED])
def test_a_program_that_ends_otherwise(over: ProgramStatus) -> None:
    play = Played()
    play(fed("A", end=True))
    assert play(now=over) == ["cancel A", "fail: over"]
    play = Played()
    play(fed("A", end=True))
    play(EpochSent(1, 5))
    assert play(now=over) == ["fail: over"]


def test_a_source_that_fails_by_itself() -> None:
    """The program has a moment to say that it is the cause."""
    play = Played()
    play(fed("A"))
    assert play(SourceFailed(1, "no such file")) == []
    assert play.machine.due == play.at + feeding.BREAK_SECONDS
    assert play(after=feeding.BREAK_SECONDS) == ["failed>12", "fail: feed 'train' broke off: no such file"]
    play(fed("A"))
    play(SourceFailed(2, "worker 0 has ended"))
    assert play(now=replace(OLD, phase="failing"), after=feeding.BREAK_SECONDS + 1) == []
    assert play.machine.due is None
    assert play(now=NEW, after=60.0) == ["cancel A", "warn", "opened>34", "send A as 3"]


def test_a_task_that_takes_no_rows_is_named() -> None:
    play = Played()
    play(fed("A", timeout=2.0))
    for _ in range(4):
        assert play(after=0.5) == ["query>12"]
        play.takes(3, waiting=True)
        assert play() == []
    assert play(after=0.5) == ["query>12"]
    query, cancel, failed, fail = play(after=0.5)
    assert (query, failed, cancel) == ("query>12", "failed>12", "cancel A")
    assert re.search(r"worker 0 .*no row for 2 seconds, .*\(3 taken", fail)


def test_no_stall_is_reported_while_the_program_starts() -> None:
    play = Played()
    play(fed("A", timeout=0.1))
    play.takes(3, waiting=True)
    play()
    assert play(now=replace(OLD, phase="failing"), after=1.0) == [] and play.machine.due is None
    assert play(now=OLD, after=1.0) == ["query>12"]
    assert "has taken no row" in play(after=0.15)[-1]


def test_a_call_that_is_interrupted() -> None:
    play = Played()
    play(fed("A"))
    assert [told(command) for command in play.machine.abandon("Ctrl-C")] == ["cancel A", "failed>12"]
    assert play.machine.idle and play.machine.abandon("again") == []


@pytest.mark.parametrize("how", ["stalled", "interrupted", "the source fails"])
def test_a_task_restarted_after_a_failed_last_call_gets_its_rows(how: str) -> None:
    play = Played()
    play(fed("A", end=True, timeout=1.0))
    play(EpochSent(1, 5))
    if how == "stalled":
        play.takes(3, waiting=True)
        play()
        assert "has taken no row" in play(after=1.1)[-1]
    elif how == "interrupted":
        assert play.machine.abandon("Ctrl-C") == []
    else:
        assert play(now=NEW)[-1] == "send A as 2"
        play(SourceFailed(2, "no such file"))
        assert "broke off" in play(after=feeding.BREAK_SECONDS)[-1]
    assert play.machine.idle and play.machine.lacks(frozenset({6, 7}))
    *_, send = play(TasksReplaced(), program(6, 7))
    assert send.startswith("send A")
    assert play(EpochSent(play.machine.epochs, 5)) == ["ended>67", "answer 0"]


def test_tasks_that_catch_up_get_the_feeds_error() -> None:
    play = Played()
    play(fed("A"))
    play(EpochSent(1, 5))
    assert play(TasksReplaced(), program(3, 4, endpoint=None)) == ["warn", "opened>34"]
    failed, fail = play(after=feeding.OPEN_SECONDS)
    assert failed == "failed>34" and "endpoint" in fail


def test_how_far_uneven_workers_may_go_and_that_one_had_none() -> None:
    play = Played(uneven="min")

    def ready(slot: int, batches: int) -> list[str]:
        message = BatchesReady(feed="train", slot=slot, incarnation=1, batches=batches, final=True)
        return [told(command) for command in play.machine.on_message(message, OLD)]

    assert ready(0, 3) == [] and ready(1, 0) == ["allowed>12", "warn"] and ready(1, 0) == []
