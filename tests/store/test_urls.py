"""Run directories at URLs without training: segments, working folders, drivers that claim, copy, race and lose."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import shaky
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Line, Proposed
from hopyard.driver.pickling import read_trusted
from hopyard.errors import JournalError, ResourceError, RunDirectoryError, SpecError
from hopyard.filesystems import PART
from hopyard.spec import Ref, RunSpec
from hopyard.store.deletions import Deletions
from hopyard.store.journal import Journal, read, retired
from hopyard.store.lock import Lock
from hopyard.store.standing import held
from hopyard.store.urls import mirror, segments, working
from hopyard.store.urls.mirror import Mirror, check_claim, claim, publish
from hopyard.store.urls.segments import Segments, Writer, pace
from jobs import until

BEGAN = Began(at=1.0, spec=RunSpec(epochs=1, partitions=2, validation=1))
WRITER = Writer("a", "host", 1, "/folder")


def proposed(number: int) -> Line:
    return Proposed(at=2.0, trial=number, config={"lr": 0.1})


class Machine:
    """A host with a working folder of its own for a URL, on which drivers begin and end."""

    def __init__(self, url: str) -> None:
        self.url, self.root = url, working.made(url)
        self.mirror: Mirror | None = None
        self.journal: Journal[Line] | None = None

    def begin(self, take_over: bool = True) -> Machine:
        """Go on from where the URL is, or begin there."""
        working.fetch(self.root, driving=True)
        self.mirror = claim(self.root, "journal.jsonl", take_over)
        path = self.root / "journal.jsonl"
        new = not path.exists() or not path.stat().st_size
        if new:
            path.unlink(missing_ok=True)
        self.journal = Journal(path, CODEC, not new, self.mirror)
        if new:
            self.journal.append([BEGAN])
        return self

    def append(self, number: int) -> None:
        assert self.journal is not None
        self.journal.append([proposed(number)])

    def stored(self, seconds: float = 60.0) -> bool:
        assert self.journal is not None
        return self.journal.shared(self.journal.size, seconds)

    def crash(self) -> None:
        """End without a word: what was not copied is only on the disk."""
        if self.mirror is not None and self.journal is not None:
            self.mirror._over = RunDirectoryError("its machine is gone")
            self.mirror._abandoned.set()
            self.mirror._closing.set()
            with self.mirror._changed:
                self.mirror._changed.notify_all()
            self.journal.close()
            self.mirror = self.journal = None

    def end(self) -> None:
        assert self.mirror is not None and self.journal is not None
        self.mirror.close()
        self.journal.close()
        self.mirror = self.journal = None


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path / "bucket"


@pytest.fixture
def machines(tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes machines, whose drivers end with the test. Segments need not wait for each other."""
    monkeypatch.setattr(mirror, "pace", lambda number: 0.0)
    monkeypatch.setattr(mirror, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(mirror, "LOOK_PAUSE", 0.02)
    monkeypatch.setattr(segments, "PAUSES", (0.01,) * 8)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    made, numbers = list[Machine](), count()

    def machine() -> Machine:
        """Each names the bucket by a link of its own, and so has a working folder of its own."""
        link = tmp_path / f"host{next(numbers)}"
        link.symlink_to(bucket)
        made.append(Machine(f"shaky://{link}/run"))
        return made[-1]

    yield machine
    for each in made:
        each.crash()


def lines_at(machine: Machine) -> list[int]:
    """The numbers in the journal of a machine that reads it."""
    working.fetch(machine.root)
    first, *others = read(machine.root / "journal.jsonl", CODEC)
    assert first == BEGAN
    return [line.trial for line in others if isinstance(line, Proposed)]


# ------------------------------------------------------------------------------------------ segments


def test_segments_come_each_second_and_later_less_often_but_never_so_rarely_that_the_run_waits_for_them() -> None:
    assert (pace(0), pace(3600)) == (1.0, 1.0)
    assert 1.99 < pace(3600 + 2495) < 2.01, "after two hours"
    age, number = 0.0, 0
    while age < 7 * 24 * 3600.0:
        age, number = age + pace(number), number + 1
    assert 21_000 < number < 23_000
    assert pace(10**9) < mirror.SECONDS / 4


@pytest.mark.parametrize("number", [0, 1, 2, 33, 100])
def test_segments_are_read_in_order_up_to_the_last(bucket: Path, number: int) -> None:
    it = Segments(f"shaky://{bucket}/run", "journal.jsonl")
    it.make(new=False)
    for each in range(number):
        assert it.create(each, segments.segment(WRITER, each, b"x"))
    assert [head.start for head, _ in it.read(0)] == list(range(number))
    assert it.count() == number
    assert [head.start for head, _ in it.read(number // 2)] == list(range(number // 2, number))


def test_a_segment_is_created_once_and_names_its_writer(bucket: Path) -> None:
    it = Segments(f"shaky://{bucket}/run", "journal.jsonl")
    it.make(new=False)
    first, second = (segments.segment(Writer(name, "host", 1, "/"), 0, b"x") for name in "ab")
    assert it.create(0, first) and it.create(0, first) and not it.create(0, second)
    found = it.get(0)
    assert found is not None and (found[0].writer.id, found[1]) == ("a", b"x")


@pytest.mark.parametrize(
    "damage", [b"", b"{}\n", segments.segment(WRITER, 0, b"xyz")[:-1]], ids=["empty", "no head", "cut off"]
)
def test_a_damaged_segment_is_an_error(bucket: Path, damage: bytes) -> None:
    (bucket / "run/journal.jsonl").mkdir(parents=True)
    (bucket / "run/journal.jsonl/00000000").write_bytes(damage)
    with pytest.raises(JournalError, match="00000000 is damaged"):
        Segments(f"shaky://{bucket}/run", "journal.jsonl").get(0)


def test_a_missing_segment_is_an_error_for_the_next_driver(machines: Any, bucket: Path) -> None:
    first = machines().begin()
    for number in range(3):
        first.append(number)
        assert first.stored()
    first.crash()
    (bucket / "run/journal.jsonl/00000002").unlink()
    with pytest.raises(JournalError, match="segment 2 of the journal is missing"):
        machines().begin()


# ------------------------------------------------------------------------------------------ working folders


def test_a_reader_fetches_what_is_new(machines: Any) -> None:
    driver, reader = machines().begin(), machines()
    for number in range(5):
        driver.append(number)
        assert driver.stored()
        assert lines_at(reader) == list(range(number + 1))
        if number == 2:
            (reader.root / working.FETCHED).unlink()  # and what it has already is compared
    assert (reader.root / "journal.jsonl").read_bytes() == (driver.root / "journal.jsonl").read_bytes()


def test_what_a_lost_machine_had_not_copied_goes_on_elsewhere_without_it(machines: Any, bucket: Path) -> None:
    first = machines().begin()
    first.append(0)
    assert first.stored()
    shaky.faults(bucket, away=True)
    first.append(1)
    first.crash()
    shaky.faults(bucket)
    second = machines().begin()
    second.append(2)
    assert second.stored()
    assert lines_at(machines()) == [0, 2]


def test_a_journal_that_is_ahead_is_copied_on(machines: Any, bucket: Path) -> None:
    first, reader = machines().begin(), machines()
    first.append(0)
    assert first.stored()
    shaky.faults(bucket, away=True)
    first.append(1)
    first.crash()
    shaky.faults(bucket)
    assert lines_at(reader) == [0]
    first.begin(take_over=False)  # it knows by the lock of its folder that its driver is dead
    first.append(2)
    assert first.stored()
    assert lines_at(reader) == [0, 1, 2]


def test_a_journal_whose_url_went_another_way_is_renamed(
    machines: Any, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = machines().begin(), machines()
    first.append(0)
    assert first.stored()
    shaky.faults(bucket, away=True)
    first.append(1)
    first.crash()
    shaky.faults(bucket)
    second.begin().append(2)
    assert second.stored()
    with caplog.at_level(logging.WARNING):
        assert lines_at(first) == [0, 2]
    (other,) = retired(first.root / "journal.jsonl").values()
    assert [line.trial for line in read(other, CODEC) if isinstance(line, Proposed)] == [0, 1]
    assert "another driver went on with the run" in caplog.text and str(other) in caplog.text


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_is_gone_at_its_url_stays_on_this_host(machines: Any, bucket: Path, again: bool) -> None:
    """The URL may only look empty, for example to another profile."""
    first = machines().begin()
    first.append(0)
    assert first.stored()
    shaky.faults(bucket, away=True)
    first.append(1)
    first.crash()
    shaky.faults(bucket)
    before = (first.root / "journal.jsonl").read_bytes()
    (bucket / "run").rename(bucket / "elsewhere")
    if again:
        assert machines().begin().stored()
    for driving in (False, *([] if again else [True])):
        reason = "another run by now" if again else "no run there any more"
        with pytest.raises(RunDirectoryError, match=reason) as refused:
            working.fetch(first.root, driving)
        assert str(first.root) in str(refused.value)
    assert (first.root / "journal.jsonl").read_bytes() == before
    if again:
        shutil.rmtree(bucket / "run")
    (bucket / "elsewhere").rename(bucket / "run")
    first.begin()
    assert first.stored() and lines_at(machines()) == [0, 1]


def test_a_driver_sets_the_copy_of_an_earlier_run_aside_whose_pickle_needs_trust_still(
    machines: Any, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = machines().begin()
    first.append(0)
    (first.root / "recipe.pkl").write_bytes(b"pickle")
    first.end()
    shutil.rmtree(bucket / "run")
    second = machines().begin()
    second.append(1)
    second.end()
    first.begin()
    assert lines_at(first) == [1]
    (aside,) = first.root.glob(".earlier-*")
    assert (aside / "journal.jsonl").exists() and str(aside) in caplog.text
    with pytest.raises(RunDirectoryError, match="who may write there cannot be seen"):
        read_trusted(aside / "recipe.pkl", trust=False)
    assert read_trusted(aside / "recipe.pkl", trust=True) == b"pickle"


def test_a_copy_of_a_working_folder_is_none_and_its_pickle_needs_trust(machines: Any, tmp_path: Path) -> None:
    machine = machines()
    (machine.root / "recipe.pkl").write_bytes(b"pickle")
    shutil.copytree(machine.root, tmp_path / "copy")
    assert working.url_of(machine.root) == machine.url and working.url_of(tmp_path / "copy") == ""
    with pytest.raises(RunDirectoryError, match="who may write there cannot be seen"):
        read_trusted(tmp_path / "copy/recipe.pkl", trust=False)


def test_a_fetch_of_nothing_new_makes_few_requests_and_writes_nothing(machines: Any) -> None:
    driver, reader = machines().begin(), machines()
    driver.append(0)
    driver.end()
    working.fetch(reader.root)
    before, shaky.Shaky.requests = (reader.root / working.FETCHED).stat(), 0
    working.fetch(reader.root)
    assert (reader.root / working.FETCHED).stat().st_ino == before.st_ino
    assert shaky.Shaky.requests <= 6, "two first segments, and one listing of each folder"


def test_a_full_disk_here_is_not_the_fault_of_the_url(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, reader = machines().begin(), machines()
    assert driver.stored()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    driver.crash()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResourceError) as refused:
        working.fetch(reader.root)
    assert str(reader.root) in str(refused.value) and "bucket" not in str(refused.value)


def test_a_reader_is_told_once_that_the_url_is_away(
    machines: Any, bucket: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(working, "AGAIN", 0.0)
    reader = machines()
    for told in (1, 2):
        shaky.faults(bucket, away=True)
        assert not held(reader.root / "lock") and not held(reader.root / "lock")
        assert caplog.text.count("503 Slow Down") == told
        shaky.faults(bucket)
        assert not held(reader.root / "lock")


def test_a_journal_that_begins_anew_retires_the_one_before(machines: Any) -> None:
    first, reader = machines().begin(), machines()
    first.append(0)
    assert first.stored()
    first.end()
    working.fetch(first.root, driving=True)
    first.mirror = claim(first.root, "journal.jsonl")
    (first.root / "journal.jsonl").rename(first.root / "journal-1.jsonl")
    first.journal = Journal(first.root / "journal.jsonl", CODEC, mirror=first.mirror)
    first.journal.append([BEGAN, proposed(7)])
    assert first.stored()
    assert lines_at(reader) == [7] == lines_at(first)
    assert len(retired(reader.root / "journal.jsonl")) == len(retired(first.root / "journal.jsonl")) == 1


@pytest.mark.parametrize("url", ["s3://", "s3://bucket/a?b", "s3://bucket/a#b", "s3://bucket/..", "s3://b/."])
def test_urls_that_name_no_folder_are_refused(url: str) -> None:
    with pytest.raises(SpecError, match="must be the URL of a folder"):
        working.folder_of(url)


# ------------------------------------------------------------------------------------------ drivers


def test_the_driver_that_creates_the_next_segment_has_the_run(machines: Any) -> None:
    first, second = machines().begin(), machines()
    first.append(0)
    assert first.stored()
    second.begin()
    with pytest.raises(RunDirectoryError, match="has gone on with this run") as refused:
        for number in count(1):
            first.append(number)
            time.sleep(0.01)
    assert refused.value.exit_code == 4
    second.append(9)
    assert second.stored()
    assert lines_at(machines()) == [0, 9]


@pytest.mark.slow
def test_a_driver_with_nothing_to_say_learns_it_too(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.05)
    first, second = machines().begin(), machines()
    assert first.stored()
    second.begin()
    assert first.mirror is not None
    until(lambda: first.mirror._over)
    with pytest.raises(RunDirectoryError, match="has gone on"):
        first.journal.append([])
    time.sleep(0.2)
    second.append(1)
    assert second.stored()


def test_a_driver_that_lives_is_refused_and_one_that_is_silent_is_not(
    machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.05)
    monkeypatch.setattr(working, "LOOK", 3.0)
    first, second = machines().begin(), machines()
    until(lambda: (working.fetch(second.root), (second.root / working.DRIVER).exists())[1])
    assert held(second.root / "lock")
    with pytest.raises(RunDirectoryError, match="in use by a live driver") as refused:
        second.begin(take_over=False)
    assert refused.value.exit_code == 4 and "--take-over" in str(refused.value)
    first.append(1)
    assert first.stored()  # it was not disturbed
    threads = first.mirror._beats, first.mirror._copies
    first.crash()
    for thread in threads:
        thread.join()
    monkeypatch.setattr(working, "LOOK", 0.3)
    second.begin(take_over=False)


def test_hosts_are_told_apart_where_their_names_and_paths_are_equal(
    machines: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.05)
    first = machines().begin()
    until(lambda: mirror._beat(first.mirror._directory))
    first.root.rename(tmp_path / "of the other host")
    assert working.made(first.url) == first.root
    working.fetch(first.root, driving=True)
    with pytest.raises(RunDirectoryError, match="in use by a live driver"):
        claim(first.root, "journal.jsonl")
    assert held(first.root / "lock")


@pytest.mark.parametrize("ended", [False, True])
def test_a_driver_that_wakes_with_nothing_to_copy_leaves_the_files_of_its_successor(
    machines: Any, bucket: Path, ended: bool
) -> None:
    first, second = machines().begin(), machines()
    (first.root / "report.txt").write_text("old")
    assert first.stored()
    until(lambda: (bucket / "run/driver.json").exists())  # the next look is ten seconds later
    second.begin()
    (second.root / "report.txt").write_text("new")
    second.mirror._copy_files()
    until(lambda: second.mirror._beaten)
    other = (bucket / "run/driver.json").read_bytes()
    if ended:
        second.end()
    first.mirror._put_beat()
    with pytest.raises(RunDirectoryError, match="has gone on"):
        first.mirror.check()
    first.mirror._over = None  # it was stopped before that look
    first.end()
    assert (bucket / "run/report.txt").read_text() == "new"
    assert not (bucket / "run/driver.json").exists() if ended else (bucket / "run/driver.json").read_bytes() == other


def test_a_driver_publishes_nothing_once_another_one_has_gone_on(machines: Any, bucket: Path) -> None:
    """It may take minutes from its claim to its first line, as it copies States."""
    first, second = machines(), machines()
    working.fetch(first.root, driving=True)
    first.mirror = claim(first.root, "journal.jsonl", take_over=True)
    publish(first.root / "run.json", b"first")
    second.begin()
    assert second.stored()
    with pytest.raises(RunDirectoryError, match="has gone on"):
        publish(first.root / "run.json", b"late")
    with pytest.raises(RunDirectoryError, match="has gone on"):
        check_claim(first.root)
    assert (bucket / "run/run.json").read_bytes() == b"first"
    first.mirror.close()


def test_the_lock_is_free_after_a_second_interrupt(tmp_path: Path) -> None:
    class Interrupted:
        def close(self) -> None:
            raise KeyboardInterrupt

    lock = Lock(tmp_path / "lock")
    lock.mirror = Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        lock.free()
    Lock(tmp_path / "lock").free()


@pytest.mark.slow
def test_races_with_lost_answers_lose_and_double_no_line(machines: Any, bucket: Path) -> None:
    """Each driver goes on until another one has; what it knew to be stored is there, once and in order."""
    dice, known = random.Random(1), list[int]()
    here, there = machines(), machines()
    number = count()
    there.begin()
    shaky.faults(bucket, lose=0.3, delay=0.001)
    for _ in range(20):
        here, there = there, here
        until(partial(begun, here))
        for _ in range(dice.randrange(4)):
            here.append(next(number))
        if dice.random() < 0.7:
            assert here.stored()
            known = [line.trial for line in read(here.root / "journal.jsonl", CODEC) if isinstance(line, Proposed)]
        if there.journal is not None:
            with pytest.raises(RunDirectoryError, match="has gone on"):
                there.append(next(number))
                there.stored()
            there.crash()
    assert here.stored()
    shaky.faults(bucket)
    final = lines_at(machines())
    assert final[: len(known)] == known and final == sorted(set(final)) and len(known) > 10


def test_of_drivers_that_begin_at_once_one_has_the_run(machines: Any) -> None:
    hosts = [machines() for _ in range(4)]
    for turn in range(5):
        with ThreadPoolExecutor(len(hosts)) as pool:
            winners = [host for host, won in zip(hosts, pool.map(begun, hosts), strict=True) if won]
        for host in winners:  # all but one were overtaken: the next one to begin had read what they created
            with suppress(RunDirectoryError):
                host.append(turn)
                assert host.stored()
        assert lines_at(machines())[-1] == turn
        assert sum(line == turn for line in lines_at(machines())) == 1
        for host in hosts:
            host.crash()


def begun(machine: Machine) -> bool:
    """Try to begin; whoever begins tries again where an answer was lost."""
    try:
        machine.begin()
    except RunDirectoryError:
        return False
    return True


# ------------------------------------------------------------------------------------------ a store that is away


def deletions_of(journal: Journal[Line]) -> tuple[Deletions, list[Ref]]:
    """The deletions of a driver, and the States that they have deleted."""
    deleted = list[Ref]()

    class Store:
        def delete(self, ref: Ref) -> None:
            deleted.append(ref)

    return Deletions(Store(), journal), deleted  # type: ignore[arg-type]


def test_while_the_store_is_away_the_journal_goes_on_and_nothing_is_deleted(
    machines: Any, bucket: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirror, "BYTES", 1000)
    driver = machines().begin()
    deletions, deleted = deletions_of(driver.journal)
    driver.append(0)
    deletions.add(Ref(0, 1, 1))
    until(lambda: deleted == [Ref(0, 1, 1)])
    shaky.faults(bucket, away=True)
    driver.append(1)
    deletions.add(Ref(0, 2, 2))
    assert driver.journal.keeps_up(0.0) and not driver.stored(0.1)
    while driver.journal.size < 5000:
        driver.append(2)
    assert not driver.journal.keeps_up(0.1) and not driver.journal.keeps_up(0.0)
    assert caplog.text.count("the run waits until") == 1
    until(lambda: "the run goes on and deletes nothing" in caplog.text)
    assert deleted == [Ref(0, 1, 1)]
    shaky.faults(bucket)
    assert driver.stored() and driver.journal.keeps_up(0.0)
    assert deletions.close(30.0) and deleted == [Ref(0, 1, 1), Ref(0, 2, 2)]
    assert caplog.text.count("deletes nothing") == 1 and "can be written to again" in caplog.text


def test_a_store_that_does_not_answer_is_told(
    machines: Any, bucket: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mirror, "SILENCE", 0.05)
    driver, numbers = machines().begin(), count()
    assert driver.stored()
    shaky.faults(bucket, hold=True)
    until(lambda: (driver.append(next(numbers)), "has not answered for" in caplog.text)[1])
    assert "the run goes on and deletes nothing" in caplog.text
    shaky.faults(bucket)
    assert driver.stored() and "can be written to again" in caplog.text


def test_a_driver_whose_run_another_one_has_deletes_nothing(machines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "BEAT", 0.05)
    first = machines().begin()
    assert first.stored()
    monkeypatch.setattr(mirror, "pace", lambda number: 3600.0)  # so it is the other one that creates the next segment
    deletions, deleted = deletions_of(first.journal)
    first.append(1)
    deletions.add(Ref(0, 1, 1))
    machines().begin()
    until(lambda: not len(deletions))
    assert deletions.close(30.0) and deleted == []


def test_logs_and_views_are_copied_by_the_end(machines: Any, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "TAIL", 4)
    driver = machines().begin()
    (driver.root / "logs").mkdir()
    (driver.root / "logs/slot-0.log").write_text("123456789")
    (driver.root / "report.txt").write_text("all is well")
    driver.end()
    assert (bucket / "run/logs/slot-0.log").read_text() == "6789"
    assert (bucket / "run/report.txt").read_text() == "all is well"
    assert not (bucket / "run/driver.json").exists()
    reader = machines()
    working.fetch(reader.root)
    assert (reader.root / "report.txt").read_text() == "all is well"
    driver.begin()
    assert (driver.root / "logs/slot-0.log").read_text() == "123456789"  # here it is whole


def test_logs_of_followers_which_are_their_locks_are_never_replaced(machines: Any, bucket: Path) -> None:
    machine = machines()
    for folder in (machine.root / "logs", bucket / "run/logs"):
        folder.mkdir(parents=True)
        (folder / "tracking-mlflow.log").write_text("here" if folder.parent == machine.root else "at the URL")
    working.fetch(machine.root)
    assert (machine.root / "logs/tracking-mlflow.log").read_text() == "here"


def test_the_last_copies_are_tried_again_and_a_failure_is_told(
    machines: Any, bucket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = machines().begin()
    assert driver.stored()
    (driver.root / "logs").mkdir()
    names = [f"slot-{number}.log" for number in range(10)]
    for name in names:
        (driver.root / "logs" / name).write_text(name)
    shaky.faults(bucket, fail=0.1)
    driver.end()
    stored = sorted(path.name for path in (bucket / "run/logs").iterdir())
    assert [name for name in stored if not name.startswith(PART)] == names
    assert not (bucket / "run/driver.json").exists() and "lacks the end" not in caplog.text
    shaky.faults(bucket)
    driver.begin()
    assert driver.stored()
    shaky.faults(bucket, away=True)
    driver.end()
    assert f"{driver.url} lacks the end of this run; it is in {driver.root}" in caplog.text
