"""Whose a run directory is, and whose a folder of States: starts at once, copies, moves, drivers killed in between."""

from __future__ import annotations

import errno
import logging
import re
import shutil
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import hopyard as hy
from hopyard.core.runs.events import Began, Resumed
from hopyard.core.runs.machine import fold
from hopyard.data.from_spark import job, source
from hopyard.data.from_spark.source import DataFrameSource, MaterializedSource
from hopyard.data.from_spark.task import Drawing
from hopyard.data.options import BuildOptions, columns
from hopyard.data.shared.needed import needed
from hopyard.driver.runs import start
from hopyard.driver.runs.about import about_of, states_url
from hopyard.driver.runs.ownership import new_folder, parent_of
from hopyard.driver.runs.run import Run
from hopyard.filesystems import absolute
from hopyard.spec import Ref
from hopyard.store.journal import retire
from hopyard.store.layout import Layout
from hopyard.store.states import LocalStore, claim, open_store
from jobs import CONFIGS, WIDTH, dataset, digests, journal, linear, select, states, table

pytestmark = pytest.mark.slow


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ------------------------------------------------------------------------------------------ one directory, two starts


@pytest.mark.parametrize("preflight_failed", [False, True])
def test_of_two_starts_at_once_one_raises_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preflight_failed: bool
) -> None:
    """The other one is started while the first reads its data."""
    directory, prepare = tmp_path / "run", hy.Dataset.prepare
    if preflight_failed:
        with pytest.raises(hy.PreflightError):
            select(directory, metric="los")
    outcomes: list[Any] = []

    def attempt(count: int) -> None:
        try:
            outcomes.append(select(directory, configs=CONFIGS[:count]))
        except hy.RunDirectoryError as error:
            assert "live driver" in str(error)
            outcomes.append(error)

    def meanwhile(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(hy.Dataset, "prepare", prepare)
        attempt(3)
        return prepare(self, *arguments)

    monkeypatch.setattr(hy.Dataset, "prepare", meanwhile)
    attempt(1)
    (winner,) = [found for found in outcomes if isinstance(found, Run)]
    again = hy.load(directory)
    assert again.status == "completed"
    assert digests(again) == digests(winner)
    assert [trial.config for trial in again.trials] == list(again._inputs.search.configs)
    assert again.best.model().steps > 0


def test_a_refused_driver_changes_nothing(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1])
    before = contents(run.directory)
    with pytest.raises(hy.RunDirectoryError, match="exists: give another"):
        select(run.directory, configs=CONFIGS[:2])
    with pytest.raises(hy.RunDirectoryError, match="holds a run"):
        select(run.directory, configs=CONFIGS[:2], resume=True)
    assert contents(run.directory) == before


def test_a_journal_is_kept_under_another_name(tmp_path: Path) -> None:
    journals = []
    for _ in range(2):
        with pytest.raises(hy.PreflightError):
            select(tmp_path / "run", metric="los")
        journals.append(Layout(tmp_path / "run").journal.read_bytes())
    run = select(tmp_path / "run")
    assert [(run.directory / f"journal-{number}.jsonl").read_bytes() for number in (1, 2)] == journals


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=1)], ids=["inline", "local"])
def test_a_start_that_was_killed_before_it_had_a_journal_leaves_the_directory_free(
    tmp_path: Path, engine: Any, again: bool
) -> None:
    with pytest.raises(hy.PreflightError):
        select(tmp_path / "run", metric="los", engine=engine)
    before = retire(Layout(tmp_path / "run").journal)
    assert before is not None
    text = before.read_bytes()
    (tmp_path / "run" / "mine").touch()
    with pytest.raises(hy.RunDirectoryError, match="exists: give another"):
        select(tmp_path / "run", configs=CONFIGS[:1], resume=again)
    (tmp_path / "run" / "mine").unlink()
    assert select(tmp_path / "run", configs=CONFIGS[:1], resume=again).status == "completed"
    assert before.read_bytes() == text


def test_a_start_that_was_killed_while_it_read_the_data_leaves_the_directory_free(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("4711")
    assert select(tmp_path / "run", configs=CONFIGS[:1]).status == "completed"


def test_leftovers_of_killed_writers_are_swept(interrupted: Callable[..., Path]) -> None:
    run = interrupted()
    (run / ".part-123-run.json").write_bytes(b"half")
    (run / ".mine.txt").touch()
    hy.resume(run)
    assert not (run / ".part-123-run.json").exists()
    assert (run / ".mine.txt").exists()


# ------------------------------------------------------------------------------------------ a store that fails

FAULTS: dict[str, tuple[OSError, type[hy.HopyardError], str]] = {
    "read-only": (
        OSError(errno.EROFS, "Read-only file system"),
        hy.SpecError,
        "^store: host .* cannot .* Read-only file system.*store= must be",
    ),
    "away": (TimeoutError(), hy.SpecError, "^store: host .* cannot .*: nobody answered in time"),
    "full": (
        OSError(errno.ENOSPC, "No space left on device"),
        hy.ResourceError,
        "^store: no room .*No space left on device",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["refs", "marks", "mark"])
def test_a_start_names_the_store_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, fault: str
) -> None:
    """Bug: it was told as a fault of the run directory, with `directory=` as what to change."""
    error, kind, words = FAULTS[fault]
    monkeypatch.setattr(LocalStore, method, raising(error))
    with pytest.raises(kind, match=words) as told:
        select(tmp_path / "run", store=tmp_path / "store")
    assert str(tmp_path / "store") in str(told.value)
    assert "run directory" not in str(told.value) and "directory=" not in str(told.value)
    assert not (tmp_path / "run").exists()


def test_a_store_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "made").mkdir()
    for name in ("run", "made"):
        with pytest.raises(hy.SpecError, match=r"^store: "):
            select(tmp_path / name, store=tmp_path / "file" / "states")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "made"]
    assert select(tmp_path / "run", configs=CONFIGS[:1]).status == "completed"


def test_without_a_directory_a_failed_start_leaves_no_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hy.SpecError, match=r"^store: "):
        select(None, store="x" * 10_000)
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").symlink_to("nowhere")
    with pytest.raises(hy.RunDirectoryError, match="exists"):
        select(None)


@pytest.mark.parametrize("method", ["sizes", "marks", "mark", "sweep"])
def test_a_resume_names_the_store_that_failed(
    interrupted: Callable[..., Path],
    undisturbed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    run = interrupted(tmp_path / "store")
    for error, kind, words in FAULTS.values():
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, method, raising(error))
            with pytest.raises(kind, match=words) as told:
                hy.resume(run)
        assert str(tmp_path / "store") in str(told.value)
        assert "run directory" not in str(told.value) and "directory=" not in str(told.value)
    assert digests(hy.resume(run)) == undisturbed


@pytest.mark.parametrize("method", ["get", "put"])
def test_copies_of_states_name_the_store_that_failed(
    interrupted: Callable[..., Path],
    undisturbed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    copy = shutil.copytree(interrupted(tmp_path / "store"), tmp_path / "copy")
    for error, kind, words in FAULTS.values():
        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, method, raising(error))
            with pytest.raises(kind, match=words) as told:
                hy.resume(copy)
        assert str(tmp_path / "store") in str(told.value)
    assert digests(hy.resume(copy)) == undisturbed


def test_a_store_without_room_for_copies_says_what_to_do(
    interrupted: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(interrupted(tmp_path / "store"), tmp_path / "copy")
    monkeypatch.setattr("hopyard.store.states._write", raising(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(
        hy.ResourceError, match=r"^store: no room for State .* in .*/store/copy-.*make room there, then"
    ):
        hy.resume(copy)


def raising(error: OSError) -> Callable[..., Any]:
    def fails(*_: Any) -> Any:
        raise error

    return fails


# ------------------------------------------------------------------------------------------ copies


def interrupting(config: dict[str, Any]) -> Any:
    import time

    from jobs import Troubled, first_time

    class Interrupting(Troubled):
        def train(self, batch: Any) -> Any:
            once, journal = Path(self._config["once"]), Path(self._config["journal"])
            if self.steps > 12 and not once.exists():  # in its second epoch; the State of the first is on its way
                if b'"Durable"' in journal.read_bytes() and first_time(str(once)):
                    raise KeyboardInterrupt
                time.sleep(0.05)
            return super().train(batch)

    return Interrupting(config)


@pytest.fixture
def interrupted(tmp_path: Path) -> Callable[..., Path]:
    """Makes a run that ended in the middle, with States that it keeps."""

    def make(store: Any = None) -> Path:
        files = {"once": str(tmp_path / "once"), "journal": str(tmp_path / "run" / "journal.jsonl")}
        with pytest.raises(KeyboardInterrupt):
            select(tmp_path / "run", interrupting, [{**config, **files} for config in CONFIGS], store=store)
        assert fold(journal(tmp_path / "run")).kept()
        return tmp_path / "run"

    return make


STORES = {"inside": lambda path: None, "path": lambda path: path / "store", "url": lambda path: f"memory://{path.name}"}


@pytest.mark.parametrize("first", ["the original", "the copy"])
@pytest.mark.parametrize("store", STORES)
def test_a_run_and_its_copy_both_end_right(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path, store: str, first: str
) -> None:
    run = interrupted(STORES[store](tmp_path))
    copy = shutil.copytree(run, tmp_path / "copy")
    for directory in (run, copy) if first == "the original" else (copy, run):
        assert digests(hy.resume(directory)) == undisturbed
    assert states_url(Layout(run), about_of(Layout(run))) != states_url(Layout(copy), about_of(Layout(copy)))
    for directory in (run, copy):
        found = hy.load(directory)
        assert digests(found) == undisturbed
        assert [trial.model("last").steps for trial in found.trials] == [24] * 4
        assert found.best.model() is not None
        assert states(directory).refs() == fold(journal(directory)).kept()


@pytest.mark.parametrize("store", ["memory://", "memory:///", "file://{}/store/", "{}/store/"])
def test_a_store_may_end_with_slashes(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path, store: str
) -> None:
    """Bug: States for `memory://` went into a folder `memory:` of the run directory, and the run could not go on."""
    where = store.format(tmp_path)
    run = interrupted(where)
    assert not (run / "memory:").exists()
    folder = about_of(Layout(run)).store
    files = {"once": str(tmp_path / "once"), "journal": str(run / "journal.jsonl")}
    again = select(run, interrupting, [{**config, **files} for config in CONFIGS], store=where, resume=True)
    assert digests(again) == undisturbed
    assert about_of(Layout(run)).store == folder
    assert len(states(run).refs()) > 0


@pytest.mark.parametrize(
    ("store", "parent"),
    [
        ("memory://", "memory://"),
        ("file:///", "/"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/states//", "s3://bucket/states"),
        ("/", "/"),
        ("/states/", "/states"),
        ("states", str(Path("states").absolute())),
        ("~/states", str(Path("~/states").expanduser())),
    ],
)
def test_a_new_folder_is_inside_of_store(tmp_path: Path, store: str, parent: str) -> None:
    folder = new_folder(Layout(tmp_path / "run"), inside=store)
    assert folder.startswith("/run-" if parent == "/" else f"{parent}/run-")
    assert parent_of(folder) == parent == absolute(store)
    assert parent_of(new_folder(Layout(tmp_path / "run"), beside=folder)) == parent


@pytest.mark.parametrize("name", ["day#1", "day?x=1", "day%201", "day 1"])
def test_runs_of_one_file_url_keep_their_states_apart(tmp_path: Path, name: str) -> None:
    """Bug: "#" and "?" cut the run's own folder off, so that all runs of a store shared one."""
    store = f"file://{tmp_path}/{name}"
    for run in [select(tmp_path / f"run-{seed}", store=store, seed=seed) for seed in range(2)]:
        assert [trial.model("last").steps for trial in run.trials] == [24] * 4
    (folder,) = [path for path in tmp_path.iterdir() if path.name.startswith("day")]
    assert folder.name == name.replace("%20", " ")
    assert len(list(folder.iterdir())) == 2


class Cutting(MemoryFileSystem):
    """A file system that takes "?" of a URL for the beginning of a query, as those of HDFS do."""

    protocol = "cutting"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("cutting://", "memory://").partition("?")[0]))


def test_a_file_system_that_cuts_the_name_of_the_folder_is_refused(tmp_path: Path) -> None:
    fsspec.register_implementation("cutting", Cutting, clobber=True)
    with pytest.raises(hy.SpecError, match=r"store: cutting://day\?x=1/run-\w+ .*/day"):
        select(tmp_path / "run", engine=hy.Inline(), store="cutting://day?x=1")
    assert not (tmp_path / "run" / "journal.jsonl").exists()


@pytest.mark.parametrize("store", ["memory://taken", "{}"])
def test_a_new_folder_must_be_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """Even a run that has not stored a State yet owns its folder."""
    url = f"{store.format(tmp_path)}/{uuid.uuid4().hex}"
    monkeypatch.setattr(start, "new_folder", lambda *arguments, **more: url)
    other = open_store(url)
    claim(other, (), "another run's")
    with pytest.raises(hy.SpecError, match=f"store: {re.escape(url)}.* another run"):
        select(tmp_path / "run", engine=hy.Inline(), store=store.format(tmp_path))
    assert other.marks() == {"another run's": 1} and not (tmp_path / "run" / "journal.jsonl").exists()
    for mark, number in other.marks().items():
        other.unmark(mark, number)
    other.put(Ref(0, 4, 9), memoryview(b"of another run"))
    with pytest.raises(hy.SpecError, match="another run"):
        select(tmp_path / "run", engine=hy.Inline(), store=store.format(tmp_path))
    assert other.marks() == {}


def test_other_bytes_under_the_address_of_a_state_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the State was not stored, and the journal called it durable."""
    put = LocalStore.put

    def at_once(self: LocalStore, ref: Ref, data: memoryview) -> None:
        (self.directory / f"{ref}.safetensors").write_bytes(b"another run's")
        put(self, ref, data)

    monkeypatch.setattr(LocalStore, "put", at_once)
    with pytest.raises(hy.HopyardError, match=rf"State 0-\d+-\d+ is in {tmp_path}/store/run-.* other bytes"):
        select(tmp_path / "run", engine=hy.Inline(), store=tmp_path / "store")


def test_the_original_keeps_its_folder(interrupted: Callable[..., Path], tmp_path: Path) -> None:
    run = interrupted(tmp_path / "store")
    before = about_of(Layout(run)).store
    copy = shutil.copytree(run, tmp_path / "copy")
    hy.resume(copy)
    hy.resume(run)
    assert about_of(Layout(run)).store == before != about_of(Layout(copy)).store
    assert Path(about_of(Layout(copy)).store).parent == tmp_path / "store"


def test_a_run_that_was_moved_owns_its_folder(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "store")
    before = about_of(Layout(run)).store
    run.rename(tmp_path / "elsewhere")
    assert digests(hy.resume(tmp_path / "elsewhere")) == undisturbed
    assert about_of(Layout(tmp_path / "elsewhere")).store == before
    assert len(list((tmp_path / "store").iterdir())) == 1


def failing(again: Callable[[], Any]) -> None:
    """It ends between taking the States' folder over and writing the journal."""

    def fails(*_: Any) -> None:
        raise hy.SpecError("no session")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.driver.runs.session.Folder", fails)
        with pytest.raises(hy.SpecError, match="no session"):
            again()


def failing_twice(run: Path) -> None:
    for _ in range(2):
        failing(lambda: hy.resume(run))


@pytest.mark.parametrize("store", STORES)
def test_resumes_that_fail_before_they_begin_cost_nothing(
    interrupted: Callable[..., Path],
    undisturbed: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    store: str,
) -> None:
    run = interrupted(STORES[store](tmp_path))
    folder = states_url(Layout(run), about_of(Layout(run)))
    failing_twice(run)
    assert digests(hy.resume(run)) == undisturbed
    assert states_url(Layout(run), about_of(Layout(run))) == folder
    assert list(states(run).marks()) == [line.mark for line in journal(run) if isinstance(line, Resumed)]
    assert "another run's" not in caplog.text


def test_resumes_of_a_copy_that_fail_make_one_folder(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "store")
    copy = shutil.copytree(run, tmp_path / "copy")
    failing_twice(copy)
    assert len(list((tmp_path / "store").iterdir())) == 2
    for directory in (copy, run):
        assert digests(hy.resume(directory)) == undisturbed
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_a_copy_of_a_run_whose_resume_failed_leaves_it_its_folder(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path
) -> None:
    run = interrupted(tmp_path / "store")
    before = about_of(Layout(run)).store
    failing_twice(run)
    copy = shutil.copytree(run, tmp_path / "copy")
    for directory in (copy, run):
        assert digests(hy.resume(directory)) == undisturbed
    assert about_of(Layout(run)).store == before != about_of(Layout(copy)).store


@pytest.mark.parametrize("store", STORES)
def test_a_mark_that_the_run_does_not_know_costs_a_copy(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path, store: str
) -> None:
    run = interrupted(STORES[store](tmp_path))
    folder = states(run)
    assert claim(folder, [line.mark for line in journal(run) if isinstance(line, Began)], "of another")
    before = folder.refs()
    assert before
    assert digests(hy.resume(run)) == undisturbed
    assert folder.refs() == before
    (resumed,) = [line for line in journal(run) if isinstance(line, Resumed)]
    assert resumed.gone == ()
    assert list(states(run).marks()) == [resumed.mark]


def test_the_newest_mark_is_the_last_drivers(interrupted: Callable[..., Path]) -> None:
    run = interrupted()
    (began,) = [line for line in journal(run) if isinstance(line, Began)]
    assert states(run).marks() == {began.mark: 1}
    hy.resume(run)
    (resumed,) = [line for line in journal(run) if isinstance(line, Resumed)]
    assert states(run).marks() == {resumed.mark: 2}
    assert len({began.mark, resumed.mark, ""}) == 3


def test_states_of_nobody_known_are_left_alone(
    interrupted: Callable[..., Path], undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The directory was copied while its driver lived: the journal is older than the States beside it. They would
    stand where this run will make its own."""
    run = interrupted()
    last = max(ref.attempt for ref in states(run).refs())
    odd = Ref(0, 8, last + 9)
    folder = states(run)
    folder.put(odd, memoryview(b"of another"))
    assert digests(hy.resume(run)) == undisturbed
    assert bytes(folder.get(odd)) == b"of another"
    assert "another run's" in caplog.text


def test_states_that_somebody_deleted_are_made_again(interrupted: Callable[..., Path], undisturbed: list[str]) -> None:
    run = interrupted()
    for ref in states(run).refs():
        states(run).delete(ref)
    found = hy.resume(run)
    assert digests(found) == undisturbed
    assert [trial.model("last").steps for trial in found.trials] == [24] * 4
    assert any(line.gone for line in journal(run) if isinstance(line, Resumed))


@pytest.mark.parametrize("store", STORES)
def test_states_that_were_cut_are_made_again(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path, store: str, caplog: Any
) -> None:
    run = interrupted(STORES[store](tmp_path))
    cut = states(run)
    for number, ref in enumerate(sorted(cut.refs(), key=str)):
        data = cut.get(ref)
        cut.delete(ref)
        cut.put(ref, memoryview(data[: len(data) // 2 if number % 2 else 0]))
    assert digests(hy.resume(run)) == undisturbed
    assert "is damaged: it has 0 bytes" in caplog.text


DAMAGE = {
    "gone": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "other": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!"),
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("which", ["best", "last"])
def test_a_state_of_a_run_that_ended_is_made_again(
    tmp_path: Path, how: str, which: Literal["best", "last"], caplog: Any
) -> None:
    run = select(tmp_path / "run", configs=[{"lr": 0.03}, {"lr": 0.1}], mode="max", store=tmp_path / "store")
    trial = run.best
    assert trial.epoch == 1  # so its best State is not its last
    before, kept = run.best.predict(table()[0], which), digests(run)
    step = 4 if which == "best" else 8
    (path,) = (tmp_path / "store").glob(f"*/{trial.id}-{step}-*.safetensors")
    DAMAGE[how](path)
    said = "is gone: .*another run" if how == "gone" else "is damaged: its digest is .*delete it, then"
    with pytest.raises(hy.TrialFailed, match=rf"trial {trial.id}: its State .*{said}") as caught:
        run.best.model(which)
    assert str(path) in str(caught.value)
    assert f"`hopyard resume {run.directory}` makes it again" in str(caught.value)
    if how == "other":  # nobody reads all States of a run that ended
        assert hy.resume(run.directory).status == "completed"
        assert "nothing was trained" in caplog.text
        path.unlink()
    again = hy.resume(run.directory)
    assert f"State {path.stem} is {'damaged' if how == 'cut' else 'gone'}" in caplog.text
    assert again.status == "completed"
    assert digests(again) == kept
    np.testing.assert_array_equal(again.best.predict(table()[0], which), before)
    caplog.clear()
    assert hy.resume(run.directory).status == "completed"
    assert "nothing was trained" in caplog.text


def test_an_ended_run_is_described_without_its_store(tmp_path: Path, caplog: Any) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1], store=tmp_path / "store")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").touch()
    assert hy.resume(run.directory).status == "completed"
    assert "nothing was trained" in caplog.text
    assert "its States are there" in caplog.text


@pytest.mark.parametrize("mount_point", [False, True])
def test_a_run_that_ended_trains_nothing_where_its_store_is_not_mounted(
    tmp_path: Path, caplog: Any, mount_point: bool
) -> None:
    """Bug: the folder that was made in its place counted as one whose States are gone, and all trials trained again."""
    run = select(tmp_path / "run", configs=CONFIGS[:1], store=tmp_path / "store")
    folder, before = Path(about_of(Layout(run.directory)).store), journal(run.directory)
    (tmp_path / "store").rename(tmp_path / "away")
    if mount_point:
        folder.mkdir(parents=True)
    assert hy.resume(run.directory).status == "completed"
    assert journal(run.directory) == before
    assert folder.exists() == mount_point
    assert "its States are there" in caplog.text
    assert str(folder) in caplog.text and "mount it" in caplog.text


@pytest.mark.parametrize("mount_point", [False, True])
def test_a_run_does_not_go_on_where_its_store_is_not_mounted(
    interrupted: Callable[..., Path], undisturbed: list[str], tmp_path: Path, mount_point: bool
) -> None:
    run = interrupted(tmp_path / "store")
    folder, before = Path(about_of(Layout(run)).store), journal(run)
    (tmp_path / "store").rename(tmp_path / "away")
    if mount_point:
        folder.mkdir(parents=True)
    missing = "has none of the marks" if mount_point else "is not there"
    with pytest.raises(hy.ResourceError, match=rf"^store: {folder}: the folder {missing}.*names \d+ States.*mount it"):
        hy.resume(run)
    assert journal(run) == before
    assert folder.exists() == mount_point
    shutil.rmtree(tmp_path / "store", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "store")
    assert digests(hy.resume(run)) == undisturbed


def test_a_folder_that_somebody_deleted_in_the_run_directory_is_made_again(tmp_path: Path, caplog: Any) -> None:
    run = select(tmp_path / "run")
    kept = digests(run)
    shutil.rmtree(states_url(Layout(run.directory), about_of(Layout(run.directory))))
    assert digests(hy.resume(run.directory)) == kept
    assert caplog.text.count("is gone") == 3 and "is made again" in caplog.text


def test_rows_stay_as_long_as_a_run_may_go_on(interrupted: Callable[..., Path]) -> None:
    run = interrupted()
    rows = dataset().prepare().path
    assert str(run) in needed(rows)
    hy.resume(run)
    assert str(run) not in needed(rows)


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], hy.Dataset]:
    """As Dataset.spark(df, path=…) gives, each with a folder of its own; an Arrow table stands for the DataFrame, and
    its one partition is written here."""
    monkeypatch.setattr(source, "alive", lambda df: None)
    monkeypatch.setattr(job, "with_vocabularies", lambda spec, frames, task, folder: (spec, Drawing(), []))
    monkeypatch.setattr(job, "report_each", lambda df, work, kind: [work(0, df.to_batches())])
    x, y = table()
    rows = pa.table({**{f"x{number}": x[:, number] for number in range(WIDTH)}, "y": y})
    names = [f"x{number}" for number in range(WIDTH)]
    spec = columns(features=names, label="y", weight=None, validation=None, encode={}, standardize=False)
    numbers = count()

    def make() -> hy.Dataset:
        kept = MaterializedSource(str(tmp_path / "rows" / f"spark-{next(numbers)}"))
        options = BuildOptions(spec, 4, validates=True, fraction=0.25)
        return hy.Dataset(DataFrameSource((rows,), options, None, kept, ({},), None), 1 << 30)

    return make


@pytest.mark.parametrize("old", ["there", "gone"])
def test_a_run_goes_on_with_the_rows_that_were_compared(
    tmp_path: Path, written: Callable[[], hy.Dataset], old: str
) -> None:
    files = {"once": str(tmp_path / "once"), "journal": str(tmp_path / "run" / "journal.jsonl")}
    configs = [{**config, **files} for config in CONFIGS]
    first, second = written(), written()
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupting, configs, data=first)
    if old == "gone":
        shutil.rmtree(str(first.url))
    failing(lambda: select(tmp_path / "run", interrupting, configs, data=second, resume=True))
    assert needed(str(second.url)) == [str(tmp_path / "run")]
    if old == "there":
        assert needed(str(first.url)) == []
        shutil.rmtree(str(first.url))
    found = hy.resume(tmp_path / "run")
    assert found.status == "completed"
    assert found._inputs.data.url == second.url
    assert needed(str(second.url)) == []
    assert digests(select(tmp_path / "other", interrupting, configs, data=written())) == digests(found)


# ------------------------------------------------------------------------------------------ the run that is asked for

RATE = 1.0


def scaled(value: float) -> float:
    return value * RATE


def recipe(config: dict[str, Any], factor: float = 1.0) -> Any:
    from hopyard.frameworks.linear import Linear

    return Linear(WIDTH, 2, lr=scaled(config["lr"]) * factor, batch_size=16)


def edited(config: dict[str, Any], factor: float = 1.0) -> Any:
    from hopyard.frameworks.linear import Linear

    return Linear(WIDTH, 2, lr=scaled(config["lr"]) * factor * 2, batch_size=16)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"recipe": edited}, "with another recipe"),
        ({"configs": CONFIGS[:2]}, "of 1 trials, the search proposes 2"),
        ({"exact": False}, "with exact='warn', not False"),
        (
            {"parallel": hy.Hopper(group=2)},
            r"with parallel=Hopper\(group='auto', gang=1, copies='auto'\), not Hopper\(group=2",
        ),
        ({"store": "elsewhere"}, "with store=None, not '/.*elsewhere'"),
        ({"encrypt": True}, "with encrypt='between hosts', not True"),
        ({"epochs": 3, "seed": 4}, "with epochs=2, not 3; with seed=0, not 4"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_another_run_than_the_one_that_is_there_is_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    run = select(tmp_path / "run", recipe, CONFIGS[:1])
    asked = {"recipe": recipe, "configs": CONFIGS[:1]} | more
    with pytest.raises(hy.RunDirectoryError, match=rf"a run {words}.*hy\.resume"):
        select(run.directory, asked.pop("recipe"), asked.pop("configs"), resume=True, **asked)


def test_an_edited_helper_or_global_is_another_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = select(tmp_path / "run", recipe, CONFIGS[:1])
    monkeypatch.setitem(recipe.__globals__, "RATE", 2.0)
    with pytest.raises(hy.RunDirectoryError, match="with another recipe"):
        select(run.directory, recipe, CONFIGS[:1], resume=True)
    assert hy.resume(run.directory).status == "completed"


def test_a_store_is_known_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = select(tmp_path / "run", configs=CONFIGS[:1], store="states here/")
    assert select(run.directory, configs=CONFIGS[:1], store=tmp_path / "states here", resume=True).status == "completed"
    with pytest.raises(hy.RunDirectoryError, match=r"with store='/.*states here', not None"):
        select(run.directory, configs=CONFIGS[:1], resume=True)


def test_a_run_that_had_ended_says_that_nothing_was_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1])
    before = journal(run.directory)
    for again in (lambda: hy.resume(run.directory), lambda: select(run.directory, configs=CONFIGS[:1], resume=True)):
        caplog.clear()
        assert again().status == "completed"
        assert "had ended before (completed), nothing was trained" in caplog.text
    assert journal(run.directory) == before


def test_an_unknown_owner_is_warned_of_and_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(start, "value_digest", lambda value: "")
        run = select(tmp_path / "run", configs=CONFIGS[:1])
    with caplog.at_level(logging.WARNING):
        select(run.directory, linear, configs=CONFIGS[:1], resume=True)
    assert "the recipe was edited" in caplog.text


def test_a_digest_that_does_not_survive_its_pickle_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1])
    digests_ever = count()
    monkeypatch.setattr(start, "value_digest", lambda value: str(next(digests_ever)))
    assert select(run.directory, configs=CONFIGS[:1], resume=True).status == "completed"
    assert "the space was edited" in caplog.text


def test_another_number_of_threads_is_reported(
    interrupted: Callable[..., Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = interrupted()
    with monkeypatch.context() as patch:
        patch.setattr(start, "drive", lambda ready, wait: None)  # the sentence comes before anything is trained
        hy.resume(run, engine=hy.Local(1, threads=2, devices=None))
    assert re.search("threads=2, .* begun with 1: ", caplog.text)
    about = start.about_of(Layout(run))  # type: ignore[attr-defined]
    with pytest.raises(hy.HopyardError, match=r"exact=True .*threads=1"):
        start._compare_threads(Layout(run), about, hy.Local(1, threads=2, devices=None), True)
    caplog.clear()
    start._compare_threads(Layout(run), about, hy.Local(2, devices=None), True)
    start._compare_threads(Layout(run), about, hy.Local(1, threads=2, devices=None), False)
    assert not caplog.text
