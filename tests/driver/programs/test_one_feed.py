"""What one feed sends when, with a program that is played: restarts at any moment, ends, stalls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopyard.core.programs import feeding as decisions
from hopyard.core.programs.feeding import FeedMachine
from hopyard.core.programs.messages import BatchesReady, Endpoint, FeedOpened, FeedQuery, RowsTaken
from hopyard.core.programs.placement import Task
from hopyard.core.programs.status import ProgramStatus, TaskStatus
from hopyard.driver.programs.feeds import Feeding, FeedSession
from hopyard.errors import HopyardError, ProgramFailed, SpecError
from hopyard.store.layout import Layout

ENDPOINT = Endpoint("m", "/nowhere")


def tasks(*incarnations: int) -> tuple[TaskStatus, ...]:
    return tuple(
        TaskStatus(Task("worker", slot, slot, slot, 0, 1, slot), incarnation, "running", "h", 1, {}, None, ENDPOINT)
        for slot, incarnation in enumerate(incarnations)
    )


class ProgramLoop:
    """Two workers that take what they are sent at once. `said` is all that went to them, in its order."""

    def __init__(self, restart: str = "program", restarts: int = 1) -> None:
        self.spec: Any = SimpleNamespace(restart_scope=restart, max_restarts=restarts)
        self.changed = threading.Condition()
        self.status = ProgramStatus("running", "running", "", -1, False, 0, tasks(1, 2))
        self.said: list[Any] = []
        self.agents: Any = SimpleNamespace(release_cores=lambda slots: None, reacquire_cores=lambda: None)
        self.answers = True
        self.listener: Any = None

    def send(self, message: Any, to: Any = None) -> None:
        if isinstance(message, FeedQuery):
            for slot in self.status.slots if self.answers else []:
                answer = RowsTaken(feed=message.feed, slot=slot, rows=7, waiting=False, question=message.question)
                with self.changed:
                    self.listener.on_feed_message(answer)
                    self.changed.notify_all()
        elif not isinstance(message, FeedOpened):
            self.said.append(type(message).__name__.removeprefix("Feed").lower())

    def wait_for(self, predicate: Callable[[ProgramStatus], Any], timeout: float | None = None) -> Any:
        with self.changed:
            return self.changed.wait_for(lambda: predicate(self.status), timeout)

    def check(self) -> None:
        """It has not failed."""

    def stands(self, **status: Any) -> None:
        """It stands otherwise now."""
        with self.changed:
            self.status = replace(self.status, **status)
            self.changed.notify_all()

    def start_again(self, *incarnations: int) -> None:
        self.said.append("again")
        self.stands(phase="running", restart=self.status.restart + 1, tasks=tasks(*incarnations))
        self.listener.assigned()


class Rows:
    """A source that says when it is sent, and does something then."""

    spark = False

    def __init__(self, loop: ProgramLoop, name: str, *during: Callable[[], None]) -> None:
        self._loop, self._name, self._during = loop, name, list(during)

    def send(self, route: Any) -> int:
        self._loop.said.append(self._name)
        if self._during:
            self._during.pop(0)()
            time.sleep(0.2)
            raise ConnectionError("worker 0 of the program has ended")
        return 5

    def cancel(self) -> None:
        pass


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ProgramLoop:
    made = ProgramLoop()
    monkeypatch.setattr("hopyard.driver.programs.feeds.source_of", lambda data: data)
    return made


def feeding(loop: Any, tmp_path: Path) -> Any:
    loop.listener = Feeding(loop, Layout(tmp_path), "token")
    return loop.listener


def call(feeds: Any, rows: Any, end: bool, name: str = "train", epochs: int = 1) -> int:
    return int(feeds.feed(rows, epochs=epochs, name=name, uneven="allow", end=end, timeout=5.0))


def settled(loop: ProgramLoop) -> list[Any]:
    """All that was said, once nothing more is."""
    until = time.monotonic() + 60
    while any(thread.name == "hopyard-replay" for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.01)
    return loop.said


ALL_NEW = 3, 4


def test_the_end_comes_after_the_last_row_also_after_a_restart(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    call(feeds, Rows(loop, "A"), end=False)
    assert call(feeds, Rows(loop, "B", lambda: loop.start_again(*ALL_NEW)), end=True) == 5
    said = settled(loop)
    after = said[said.index("again") + 1 :]
    assert [word for word in after if word != "ended"] == ["A", "B"]
    assert after.index("ended") > after.index("B")


def test_started_again_while_all_is_sent_and_not_yet_taken(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    loop.answers = False
    later = threading.Timer(0.3, lambda: (setattr(loop, "answers", True), loop.start_again(*ALL_NEW)))
    later.start()
    assert call(feeds, Rows(loop, "A"), end=True) == 5
    said = settled(loop)
    assert [word for word in said if word != "ended"] == ["A", "again", "A"]
    assert said[-1] == "ended" and said[:2] == ["A", "ended"]
    assert "ended" not in said[said.index("again") : len(said) - said[::-1].index("A")]


def test_an_end_during_a_resend_follows_the_rows(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    slow = Rows(loop, "A")
    call(feeds, slow, end=False)
    gate = threading.Event()
    slow.send = lambda route: (gate.wait(5), loop.said.append("A"), 5)[2]  # type: ignore[method-assign]
    loop.start_again(*ALL_NEW)
    ending = threading.Thread(target=feeds.end, args=("train",))
    ending.start()
    time.sleep(0.1)
    gate.set()
    ending.join(60)
    assert settled(loop)[:4] == ["A", "again", "A", "ended"]


def test_an_end_without_rows_is_resent(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    feeds.end("valid")
    loop.start_again(*ALL_NEW)
    assert settled(loop) == ["ended", "again", "ended"]


def test_an_early_end_is_sent_to_late_joiners(loop: ProgramLoop, tmp_path: Path) -> None:
    there = loop.status.tasks
    loop.stands(phase="reserving", tasks=())
    feeds = feeding(loop, tmp_path)
    assert call(feeds, Rows(loop, "A"), end=True, epochs=0) == 0
    loop.said.clear()
    loop.stands(phase="running", tasks=there)
    feeds.assigned()
    assert settled(loop) == ["ended"]


def test_a_call_that_is_refused_opens_nothing(
    loop: ProgramLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(data: Any) -> Any:
        raise SpecError("no rows")

    feeds = feeding(loop, tmp_path)
    with monkeypatch.context() as patch, pytest.raises(SpecError, match="no rows"):
        patch.setattr("hopyard.driver.programs.feeds.source_of", refuse)
        feeds.feed(7, epochs=1, name="train", uneven="min", end=True, timeout=5.0)
    assert call(feeds, Rows(loop, "A"), end=True) == 5


@pytest.mark.parametrize("name", [5, "", None])
def test_names_of_feeds_are_texts(loop: ProgramLoop, tmp_path: Path, name: Any) -> None:
    feeds = feeding(loop, tmp_path)
    rdd = SimpleNamespace(mapPartitionsWithIndex=None)
    for ask in (feeds.end, lambda name: feeds.infer(rdd, schema=None, name=name, timeout=None)):
        with pytest.raises(SpecError, match=r"name=.* must be"):
            ask(name)
    with pytest.raises(SpecError, match=r"name=.* must be"):
        call(feeds, Rows(loop, "A"), end=True, name=name)


def test_no_epochs_are_nothing_to_send_again(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    assert call(feeds, Rows(loop, "A"), end=False, epochs=0) == 0
    loop.start_again(*ALL_NEW)
    assert settled(loop) == ["again"]


def test_a_restart_that_waits_for_slots_is_waited_for(
    loop: ProgramLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than words of a program that breaks off may take."""
    feeds = feeding(loop, tmp_path)

    def lost() -> None:
        loop.stands(phase="reserving", tasks=())
        threading.Timer(0.4, loop.start_again, ALL_NEW).start()

    monkeypatch.setattr(decisions, "BREAK_SECONDS", 0.1)
    assert call(feeds, Rows(loop, "A", lost), end=True) == 5
    assert [word for word in settled(loop) if word != "ended"] == ["A", "again", "A"]


def test_cores_are_released_only_while_rows_of_spark_go(loop: ProgramLoop, tmp_path: Path) -> None:
    """Not while the program comes up again: nobody needs them then."""
    said = loop.said
    loop.spec.max_restarts = 1
    there: list[str] = []

    def room(spark: bool) -> Any:
        @contextmanager
        def held() -> Any:
            said.append("room")
            yield
            said.append("no room")

        return held()

    feed = FeedSession(FeedMachine("train", "allow", "program"), loop, Layout(tmp_path), "token", room)  # type: ignore[arg-type]
    loop.listener = SimpleNamespace(on_feed_message=feed.on_message, assigned=lambda: there.append("again"))

    def lost() -> None:
        loop.stands(phase="reserving", tasks=())
        threading.Timer(0.5, loop.start_again, ALL_NEW).start()

    rows = Rows(loop, "A")
    send = rows.send

    def sent(route: Any) -> int:
        if route.epoch == 1:
            lost()
        return send(route)

    rows.send = sent  # type: ignore[method-assign]
    assert feed.feed(rows, 2, False, None) == 10
    assert said == ["room", "A", "no room", "again", *2 * ["room", "A", "no room"]]


def test_an_inference_does_not_wait_for_a_feed_of_its_name(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    gate = threading.Event()
    slow = Rows(loop, "A")
    slow.send = lambda route: 5 if gate.wait(20) else 0  # type: ignore[method-assign]
    thread = threading.Thread(target=call, args=(feeds, slow, False))
    thread.start()
    try:
        assert feeds._feeds["train"].endpoints() == (ENDPOINT, ENDPOINT)
    finally:
        gate.set()
        thread.join()


@pytest.mark.parametrize("when", ["sending", "waiting", "later"])
def test_one_failing_task_fails_the_feed(loop: ProgramLoop, tmp_path: Path, when: str) -> None:
    loop.spec.restart_scope = "task"
    feeds = feeding(loop, tmp_path)
    one = 1, 5
    if when == "later":
        call(feeds, Rows(loop, "A"), end=True)
        loop.start_again(*one)
    else:
        loop.answers = False
        during = [lambda: loop.start_again(*one)] if when == "sending" else []
        if when == "waiting":
            threading.Timer(0.3, lambda: loop.start_again(*one)).start()
        with pytest.raises(HopyardError, match="started again by itself"):
            call(feeds, Rows(loop, "A", *during), end=True)
    said = settled(loop)
    assert said.count("A") == 1 and "failed" in said


def test_a_host_that_is_lost_starts_all_again_whatever_the_rule(loop: ProgramLoop, tmp_path: Path) -> None:
    loop.spec.restart_scope = "task"
    feeds = feeding(loop, tmp_path)
    call(feeds, Rows(loop, "A"), end=True)
    loop.start_again(*ALL_NEW)
    assert [word for word in settled(loop) if word != "ended"] == ["A", "again", "A"]


def test_a_program_that_was_stopped_has_not_taken_all(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    loop.answers = False

    threading.Timer(0.2, lambda: loop.stands(phase="over", status="stopped", ended=True)).start()
    with pytest.raises(ProgramFailed, match=r"is over \(stopped\)"):
        call(feeds, Rows(loop, "A"), end=True)


def test_a_program_that_had_enough(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)

    def enough() -> None:
        loop.stands(phase="over", status="completed", ended=True)

    assert call(feeds, Rows(loop, "A", enough), end=True, epochs=3) == 0


def test_a_feed_that_has_ended_takes_no_more(loop: ProgramLoop, tmp_path: Path) -> None:
    feeds = feeding(loop, tmp_path)
    call(feeds, Rows(loop, "A"), end=True)
    with pytest.raises(SpecError, match=r"ended.* end=False"):
        call(feeds, Rows(loop, "B"), end=True)
    assert call(feeds, Rows(loop, "B"), end=True, name="other") == 5


def test_counts_of_dead_tasks_are_forgotten(loop: ProgramLoop, tmp_path: Path) -> None:
    machine = FeedMachine("train", "min", "program")
    feed = FeedSession(machine, loop, Layout(tmp_path), "token", lambda spark: nullcontext())  # type: ignore[arg-type]
    feed.feed(Rows(loop, "A"), 1, False, None)
    for slot in (0, 1):
        feed.on_message(BatchesReady(feed="train", slot=slot, incarnation=1, batches=3, final=True))
    loop.said = []
    loop.stands(tasks=tasks(*ALL_NEW))
    feed.catch_up()
    for slot in (0, 1):
        feed.on_message(BatchesReady(feed="train", slot=slot, incarnation=3, batches=3, final=True))
    assert loop.said == ["A", "allowed"]
