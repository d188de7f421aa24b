"""What must not grow: the memory of those who read a journal, its bytes for each unit, what a kept Run holds."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import threading
import tracemalloc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Durable, Interrupted, Line, Proposed
from hopyard.core.runs.machine import fold
from hopyard.driver.runs import session as drive
from hopyard.driver.runs.fold import recover
from hopyard.driver.runs.loop import RunLoop
from hopyard.errors import PreflightError
from hopyard.spec import Ref, RunSpec
from hopyard.store.journal import Journal, read
from hopyard.store.layout import Layout
from hopyard.store.standing import read_summary
from hopyard.views import gantt
from hopyard.views.timeline import chart
from jobs import CONFIGS, select, troubled
from snapshots import snapshot

pytestmark = pytest.mark.slow

EPOCHS, PARTITIONS = 10, 8
BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "journal.py"


def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("journal_benchmark", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def played(path: Path, trials: int, bins: int = 0) -> int:
    """The journal of a run of so many trials, as long as a real one; gives its units."""
    spec = RunSpec(epochs=EPOCHS, partitions=PARTITIONS, validation=0, trials=trials, metric="loss", group_seconds=0.0)
    benchmark().make(path, Began(at=0.0, spec=spec), bins)
    return trials * EPOCHS * PARTITIONS


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("large") / "journal.jsonl"
    return path, played(path, 250)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("small") / "journal.jsonl"
    return path, played(path, 15)


@pytest.fixture(scope="module")
def middle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("middle") / "journal.jsonl"
    return path, played(path, 65)


def peak(what: Callable[[], object]) -> int:
    """Bytes at most, of what Python holds."""
    gc.collect()
    tracemalloc.start()
    try:
        what()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------------ journals


def test_a_unit_takes_few_bytes(large: tuple[Path, int]) -> None:
    path, units = large
    assert units == 20_000
    assert path.stat().st_size <= 500 * units


def test_arrays_take_little_more_than_their_bytes(tmp_path: Path, small: tuple[Path, int]) -> None:
    path, units = tmp_path / "journal.jsonl", played(tmp_path / "journal.jsonl", 15, bins=400)
    assert path.stat().st_size - small[0].stat().st_size <= 1.4 * 8 * 400 * units


def test_reading_takes_the_memory_of_a_line(middle: tuple[Path, int]) -> None:
    path, _ = middle
    assert peak(lambda: sum(1 for _ in read(path, CODEC))) < 1 << 20
    assert peak(lambda: chart(read(path, CODEC))) < 1 << 20


def test_a_fold_takes_the_memory_of_its_trials(middle: tuple[Path, int], small: tuple[Path, int]) -> None:
    """10,000 trials must leave room for the rest in 300 MB."""
    each = (peak(lambda: fold(read(middle[0], CODEC))) - peak(lambda: fold(read(small[0], CODEC)))) / 50
    assert each < 15_000


def test_a_chart_takes_little_for_each_unit(middle: tuple[Path, int], small: tuple[Path, int]) -> None:
    def drawn(path: Path) -> int:
        return sum(map(len, gantt.html(read(path, CODEC))))

    more = peak(lambda: drawn(middle[0])) - peak(lambda: drawn(small[0]))
    assert more / (middle[1] - small[1]) < 200
    assert drawn(middle[0]) < 100 * middle[1]


def test_a_journal_of_arrays_is_not_kept_either(tmp_path: Path) -> None:
    """The sums of an epoch are let go when its metrics are in."""
    few, more = tmp_path / "few.jsonl", tmp_path / "more.jsonl"
    played(few, 1, bins=400)
    played(more, 4, bins=400)
    longer = more.stat().st_size - few.stat().st_size
    assert peak(lambda: fold(read(more, CODEC))) - peak(lambda: fold(read(few, CODEC))) < longer / 3


def test_a_resumed_driver_knows_the_past(tmp_path: Path, small: tuple[Path, int]) -> None:
    layout = Layout(tmp_path)
    layout.journal.write_bytes(small[0].read_bytes())
    machine, earlier = recover(layout)
    assert (earlier.slots, len(machine.trials)) == (64, 15)
    assert snapshot(machine) == snapshot(fold(read(layout.journal, CODEC)))


def test_defects_are_seen() -> None:
    spec = RunSpec(epochs=2, partitions=2, validation=0)
    begin: list[Line] = [Began(at=0.0, spec=spec), Proposed(at=0.0, trial=0, config={})]
    one = Durable(at=1.0, slot=0, ref=Ref(0, 2, 1), digest="aa", bytes=1)
    other = Durable(at=2.0, slot=1, ref=Ref(0, 2, 9), digest="bb", bytes=1)
    assert fold([*begin, one, one]).defects == []
    (defect,) = fold([*begin, one, other]).defects
    assert "trial 0, step 2" in defect


# ------------------------------------------------------------------------------------------------ summaries


def rows(directory: Path) -> list[dict[str, Any]]:
    found = CliRunner().invoke(app, ["ls", str(directory), "--json"])
    assert found.exit_code == 0, found.output
    return list(json.loads(found.stdout))


def test_ls_says_the_same_with_and_without_a_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = select(tmp_path / "runs" / "one")
    layout = Layout(run.directory)
    assert layout.summary.exists()
    noted = layout.summary.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr("hopyard.store.journal.read", lambda path: pytest.fail("the journal was read"))
        quick = rows(tmp_path / "runs")
    assert quick[0]["completed"] == 4 and quick[0]["best"] == run.best.metrics["val_loss"]
    layout.summary.unlink()
    assert rows(tmp_path / "runs") == quick
    for wrong in (
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"journal":[1,"x"],"facts":{}}',
        b'{"facts":{"folded":"running"}}',
        b"\xff",
    ):
        layout.summary.write_bytes(wrong)
        assert rows(tmp_path / "runs") == quick
    layout.summary.write_bytes(noted)
    journal = Journal(layout.journal, CODEC, resume=True)  # as another driver would append
    journal.append([Interrupted(at=1.0, reason="x")])
    journal.close()
    assert read_summary(layout) is None
    assert rows(tmp_path / "runs")[0]["seconds"] != quick[0]["seconds"]


def test_a_run_that_goes_on_has_no_summary_that_counts(tmp_path: Path) -> None:
    run = select(tmp_path / "runs" / "one", troubled, [{**CONFIGS[0], "at": 3, "do": "raise"}, CONFIGS[1]])
    (row,) = rows(tmp_path / "runs")
    assert (row["status"], row["completed"], row["failed"]) == ("partial", 1, 1)
    assert run.status == "partial"


# ------------------------------------------------------------------------------------------------ kept Runs


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[RunLoop]]:
    """Of all drivers from here on."""
    made: list[weakref.ref[RunLoop]] = []

    class Watched(RunLoop):
        def __init__(self, *args: Any) -> None:
            made.append(weakref.ref(self))
            super().__init__(*args)

    monkeypatch.setattr(drive, "RunLoop", Watched)
    return made


@pytest.mark.parametrize(
    ("engine", "wait"),
    [
        (hy.Inline(), True),
        (hy.Local(1, devices=None), False),
        pytest.param(hy.Local(1, devices=None), True, marks=pytest.mark.long),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_a_run_that_is_kept_holds_no_driver(
    tmp_path: Path, loops: list[weakref.ref[RunLoop]], wait: bool, engine: Any
) -> None:
    select(tmp_path / "first", engine=engine)  # what a process opens once
    gc.collect()
    before = descriptors()
    kept = [select(tmp_path / f"run{n}", engine=engine, wait=wait).wait() for n in range(3)]
    gc.collect()
    assert len(loops) == 4 and [loop() for loop in loops] == [None] * 4
    assert descriptors() - before <= 3  # the lock of the data's cache entry, one for each Dataset
    assert [run.status for run in kept] == ["completed"] * 3


def test_a_run_that_failed_in_the_background_holds_none_either(
    tmp_path: Path, loops: list[weakref.ref[RunLoop]]
) -> None:
    run = select(tmp_path / "run", metric="auc", engine=hy.Local(1, devices=None), wait=False)
    with pytest.raises(PreflightError, match="auc"):
        run.wait()
    gc.collect()
    assert [loop() for loop in loops] == [None]
    with pytest.raises(PreflightError, match="auc"):
        run.wait()  # it has its error still


@pytest.mark.cold
@pytest.mark.parametrize("what", ["search", "views"])
def test_an_early_error_leaves_no_thread_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    local = hy.Local(1, devices=None)
    select(tmp_path / "first", engine=local)
    opened = hy.Configs.open
    calls: list[int] = []

    def views(*_: Any) -> Any:
        raise RuntimeError("no views today")

    def second(self: Any, space: Any, seed: int) -> Any:
        calls.append(1)
        if len(calls) == 2:  # the driver's own; the first is that of the checks
            raise RuntimeError("no sampler today")
        return opened(self, space, seed)

    if what == "search":
        monkeypatch.setattr(hy.Configs, "open", second)
    else:
        monkeypatch.setattr("hopyard.driver.runs.session._views", views)
    gc.collect()
    threads, files = set(threading.enumerate()), descriptors()
    with pytest.raises(RuntimeError, match=r"no (sampler|views) today"):
        select(tmp_path / "run", engine=local)
    gc.collect()
    assert len(calls) == (2 if what == "search" else 0)
    assert set(threading.enumerate()) == threads
    assert descriptors() <= files + 1
