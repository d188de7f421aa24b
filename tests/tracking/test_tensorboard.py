"""Event files: read back by TensorBoard's own reader, and the same bytes whatever interrupts their writers."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from faults.worlds import played
from hopyard.core.runs.codec import decode
from hopyard.core.runs.events import Histogram, Resumed
from hopyard.core.runs.machine import fold
from hopyard.driver.runs.run import Run
from hopyard.logged import Collected, Collector, points_of
from hopyard.store.layout import Layout
from hopyard.tracking import EpochEnded, Logged, Record, TrialEnded, TrialStarted, read
from hopyard.tracking.follower import News, Refused, follow
from hopyard.tracking.reading import ReadAgain
from hopyard.tracking.recorder import Recorder
from hopyard.tracking.tensorboard import EventFiles, connect
from jobs import HEAD, SLOW, journal, select, until

pytest.importorskip("tensorboard")
from tensorboard.compat.proto.event_pb2 import Event

from hopyard.tracking.summaries import Summaries
from tracking.event_files import QUICK, content, scalars, sessions, write

METRICS = ("loss", "val_loss", "accuracy", "val_accuracy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    configs = [{"lr": lr, "layers": [8, 4], "name": "net", "bias": True} for lr in (0.1, 0.03, 0.01, 0.3)]
    directory = tmp_path_factory.mktemp("tensorboard") / "run"
    return select(directory, configs=configs, stop=hy.ASHA(2, 1), epochs=4)


def news(directory: str | Path, records: list[Record]) -> News:
    return News(tuple(records), fold(journal(Path(directory))), "running", 1.0)


def event_files(target: Path) -> EventFiles:
    return EventFiles(target, "run", Summaries())


def check(run: Run, target: Path) -> None:
    """Assert that these files have each metric of each epoch of the run once."""
    for trial in run.trials:
        [folder] = target.glob(f"*/trial-{trial.id}")
        found = scalars(folder)
        for metric in METRICS:
            expected = [(epoch, np.float32(values[metric])) for epoch, values in trial.history.items()]
            assert [(step, value) for _, step, value in found[metric]] == expected
        [(_, step, value)] = found["best/val_loss"]
        assert (step, value) == (trial.epoch, np.float32(trial.metrics["val_loss"]))


def test_scalars_are_those_of_the_run(run: Run, tmp_path: Path) -> None:
    write(run.directory, tmp_path)
    check(run, tmp_path)
    ends = {(r.trial, r.epoch): r.at for r in read(run.directory) if isinstance(r, EpochEnded)}
    [folder] = tmp_path.glob("*/trial-3")
    found = scalars(folder)
    assert [(at, step) for at, step, _ in found["val_loss"]] == [(ends[3, epoch], epoch) for epoch in (1, 2, 3, 4)]
    assert [step for _, step, _ in found["rung/val_loss"]] == [4, 8]  # of four partitions


def test_the_page_of_hparams(run: Run, tmp_path: Path) -> None:
    write(run.directory, tmp_path)
    [folder] = tmp_path.iterdir()
    groups = sessions(tmp_path)
    assert set(groups) == {f"{folder.name}/trial-{number}" for number in range(4)}
    for trial in run.trials:
        group = groups[f"{folder.name}/trial-{trial.id}"]
        values = {name: getattr(value, value.WhichOneof("kind")) for name, value in group.hparams.items()}
        assert values == trial.config | {"layers": "[8, 4]"}
        assert [session.status for session in group.sessions] == [1]  # success
        shown = {metric.name.tag: metric.value for metric in group.metric_values}
        assert shown["best/val_loss"] == np.float32(trial.metrics["val_loss"])


def test_where_files_are(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "tettnang"
    shutil.copytree(run.directory, directory)
    files = write(directory)
    mark = next(iter(read(directory))).run  # type: ignore[attr-defined]
    assert {Path(file).parts[0] for file in files} == {f"tettnang-{mark[:8]}"}
    assert all(Path(file).name.startswith("events.out.tfevents.") for file in files)
    assert set(content(directory / "tensorboard")) == set(files)
    directory = directory.rename(tmp_path / "renamed")
    assert write(directory) == files


def test_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(Refused, match="s3://bucket"):
        connect("s3://bucket/logs", layout, {})
    monkeypatch.delitem(sys.modules, "hopyard.tracking.summaries")
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(Refused, match=r"pip install 'hopyard\[tensorboard\]'"):
        connect("", layout, {})


@pytest.mark.slow
def test_no_framework_is_imported() -> None:
    code = "import sys, hopyard.tracking.summaries, hopyard.tracking.tensorboard; print(*sys.modules)"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tensorboard.compat.proto.event_pb2" in names
    assert not {"tensorflow", "torch", "keras", "pandas"} & set(names)


# ------------------------------------------------------------------------------------------------ records to events


def events(records: Sequence[Record]) -> list[tuple[str, Event]]:
    summaries = Summaries()
    return [(file, Event.FromString(data)) for record in records for file, data in summaries.take(record)]


def points(records: Sequence[Record], tag: str) -> list[tuple[str, int]]:
    """Return (folder, step) of this tag."""
    return [
        (Path(file).parts[0], event.step)
        for file, event in events(records)
        for value in event.summary.value
        if value.tag == tag
    ]


def started(attempt: int = 0) -> Record:
    return TrialStarted(at=5.5, trial=3, attempt=attempt, config={})


def epoch(number: int) -> Record:
    return EpochEnded(at=10.0 + number, trial=3, attempt=0, epoch=number, step=0, metrics={"loss": 1.0})


def ended(status: str = "completed", best: int | None = 2) -> Record:
    metrics = {} if best is None else {"loss": 1.0}
    return TrialEnded(at=20.0, trial=3, attempt=0, status=status, epoch=best, metrics=metrics, digest="", seconds=1.0)


def test_an_epoch_waits_for_those_before_it() -> None:
    records = [started(), epoch(3), epoch(1), epoch(2), epoch(5)]
    assert [step for _, step in points(records, "loss")] == [1, 2, 3]
    records += [ended("failed"), epoch(4), epoch(6)]  # the trial was tried again
    assert [step for _, step in points(records, "loss")] == [1, 2, 3, 5, 4, 6]


def test_each_attempt_of_a_trial_is_a_run_of_its_own() -> None:
    records = [started(attempt) for attempt in (0, 1, 2)]
    files = [file for file, event in events(records) if event.file_version]
    assert files == [
        f"{folder}/events.out.tfevents.0000000005.hopyard" for folder in ("trial-3", "trial-3-again", "trial-3-again-2")
    ]


def test_a_trial_that_ends_twice() -> None:
    records = [started(), epoch(1), epoch(2), ended("failed"), ended("completed"), epoch(3), ended("completed", 3)]
    assert points(records, "_hparams_/session_end_info") == [("trial-3", 0)]
    assert [step for _, step in points(records, "best/loss")] == [2, 3]
    assert not points([started(), ended("failed", None)], "best/loss")


def test_what_a_recipe_logs() -> None:
    histogram = points_of(collected(np.array([-1.0, 0.5, 3.0, np.nan])), 4096)[0]["weights"]
    nothing = Histogram(0.0, 0.0, 0, 0.0, 0.0, nonfinite=2)
    values = {"norm": 2.5, "weights": histogram, "nothing": nothing}
    records = [started(), Logged(at=7.0, trial=3, attempt=0, epoch=1, partition=2, step=4, values=values)]
    [event] = [event for _, event in events(records) if event.step]
    number, buckets = event.summary.value
    assert (event.step, event.wall_time, number.tag, number.simple_value) == (4, 7.0, "logged/norm", 2.5)
    assert buckets.tag == "logged/weights" and list(filter(None, buckets.histo.bucket)) == [1, 1, 1]
    limits = list(buckets.histo.bucket_limit)
    assert len(limits) == len(buckets.histo.bucket) and limits == sorted(limits)
    assert (buckets.histo.num, buckets.histo.min, buckets.histo.max) == (3, -1.0, 3.0)
    assert (buckets.histo.sum, buckets.histo.sum_squares) == (2.5, 10.25)


def collected(array: Any) -> Collected:
    collector, taken = Collector(), Collected()
    with collector.collecting(taken):
        collector.log("weights", array)
    return taken


def test_numbers_that_json_lacks_are_shown_as_text() -> None:
    info = TrialStarted(at=1.0, trial=0, attempt=0, config={"a": float("nan"), "b": None, "c": 2})
    [_, (_, event)] = events([info])
    content = event.summary.value[0].metadata.plugin_data.content
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    hparams = HParamsPluginData.FromString(content).session_start_info.hparams
    assert (hparams["a"].string_value, hparams["b"].string_value, hparams["c"].number_value) == ("nan", "None", 2.0)


# ------------------------------------------------------------------------------------------------ the same bytes


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
def test_a_file_is_cut_at_any_byte(tmp_path: Path, every: int) -> None:
    """The next follower writes what is missing, and nothing twice."""
    run = select(tmp_path / "run", configs=[{"lr": 0.1}], epochs=2)
    update = news(run.directory, list(read(run.directory)))
    files = event_files(tmp_path / "files")
    files.update(update)
    [path] = [path for path in (tmp_path / "files").rglob("*") if path.is_file()]
    whole = path.read_bytes()
    for size in range(0, len(whole), every):
        path.write_bytes(whole[:size])
        event_files(tmp_path / "files").update(update)
        assert path.read_bytes() == whole
        path.write_bytes(whole[:size] + bytes([whole[size] ^ 1]) + whole[size + 1 :])
        event_files(tmp_path / "files").update(update)
        assert path.read_bytes() == whole


def test_files_that_go_too_far_are_left_alone(run: Run, tmp_path: Path) -> None:
    """A follower begins with the first lines, while the files have the last ones."""
    records = list(read(run.directory))
    event_files(tmp_path).update(news(run.directory, records))
    before = content(tmp_path)
    files = event_files(tmp_path)
    for record in records:
        files.update(news(run.directory, [record]))
        assert content(tmp_path) == before


def test_two_followers_of_one_target(run: Run, tmp_path: Path) -> None:
    """They have different locks where one names the target otherwise."""
    records = list(read(run.directory))
    event_files(tmp_path / "one").update(news(run.directory, records))
    random, both = Random(0), {event_files(tmp_path / "two"): 0, event_files(tmp_path / "two"): 0}
    while min(both.values()) < len(records):
        files, position = random.choice(list(both.items()))
        portion = records[position : position + random.randrange(5)]
        files.update(news(run.directory, portion))
        both[files] += len(portion)
    assert content(tmp_path / "two") == content(tmp_path / "one")


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="limits the size of files")
def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    """An update fails within a record; the next one has the same records and more."""
    records = list(read(run.directory))
    event_files(tmp_path / "one").update(news(run.directory, records))
    files, half = event_files(tmp_path / "two"), len(records) // 2
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in range(100, 300, 20):
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
            with pytest.raises(OSError, match="File too large"):
                files.update(news(run.directory, records[:half]))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    files.update(news(run.directory, records[: half + 1]))
    files.update(news(run.directory, records[half + 1 :]))
    assert content(tmp_path / "two") == content(tmp_path / "one")


def test_files_that_are_removed_are_written_anew(run: Run, tmp_path: Path) -> None:
    records = list(read(run.directory))
    files, half = event_files(tmp_path), len(records) // 2
    files.update(news(run.directory, records[:half]))
    shutil.rmtree(next(tmp_path.iterdir()))
    with pytest.raises(ReadAgain):
        files.update(news(run.directory, records[half:]))
    before = write(run.directory, tmp_path)
    removed, made = list[bool](), list[EventFiles]()

    class Removing(EventFiles):
        def update(self, news: News) -> None:
            super().update(news)
            if not removed:
                removed.append(True)
                for path in tmp_path.glob("*/*/*"):
                    os.truncate(path, 10)
                super().update(news)

    def connected() -> EventFiles:
        made.append(Removing(tmp_path, "run", Summaries()))
        return made[-1]

    follow(Layout(Path(run.directory)), "tensorboard", connected, QUICK)
    assert content(tmp_path) == before and len(made) == 2


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 150), marks=pytest.mark.long)])
def test_runs_in_which_everything_goes_wrong(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        random = Random(seed)
        recorder = Recorder()
        records = [record for line in played(seed) for record in recorder.take(decode(line))]
        machine = recorder.machine
        assert machine is not None
        one, two = tmp_path / f"one-{seed}", tmp_path / f"two-{seed}"
        event_files(one).update(News(tuple(records), machine, "", 1.0))
        files, position = event_files(two), 0
        while position < len(records):
            portion = records[position : position + random.randrange(1, 40)]
            files.update(News(tuple(portion), machine, "", 1.0))
            position += len(portion)
            if random.random() < 0.3:  # killed in the middle of an append
                files, position = event_files(two), 0
                for path in two.glob("*/*/*"):
                    os.truncate(path, random.randrange(path.stat().st_size + 1))
        written = content(one)
        assert content(two) == written
        expected = defaultdict[tuple[int, int, str], list[int]](list)
        ended = set[tuple[int, int]]()
        for record in records:
            if isinstance(record, EpochEnded):
                for metric in record.metrics:
                    expected[record.trial, record.attempt, metric].append(record.epoch)
            elif isinstance(record, TrialEnded):
                ended.add((record.trial, record.attempt))
        for (trial, attempt, metric), epochs in expected.items():
            again = ("", "-again", f"-again-{attempt}")[min(attempt, 2)]
            [folder] = one.glob(f"*/trial-{trial}{again}")
            steps = [step for _, step, _ in scalars(folder).get(metric, [])]
            assert len(steps) == len(set(steps)) and set(steps) <= set(epochs)
            waiting = {epoch for epoch in epochs if not set(range(1, epoch)) <= set(epochs)}
            assert set(epochs) - set(steps) <= waiting and ((trial, attempt) not in ended or set(steps) == set(epochs))


# ------------------------------------------------------------------------------------------------ kill -9


def tracked(directory: Path, target: Path) -> subprocess.Popen[bytes]:
    """Return a follower in a process of its own."""
    command = [sys.executable, "-m", "hopyard.tracking", f"tensorboard={target}", str(directory)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.parametrize(("trials", "kills"), [(60, 2), pytest.param(300, 50, marks=pytest.mark.long)])
def test_a_follower_is_killed_while_it_writes(trials: int, kills: int, tmp_path: Path) -> None:
    configs = [{"lr": 0.1 / (number + 1)} for number in range(trials)]
    run = select(tmp_path / "run", configs=configs, epochs=1)
    whole, random = write(run.directory, tmp_path / "whole"), Random(kills)
    target, torn = tmp_path / "killed", 0
    for _ in range(kills):
        process, count = tracked(Path(run.directory), target), random.randrange(trials)
        while process.poll() is None and sum(len(os.listdir(folder)) for folder in target.glob("*")) <= count:
            time.sleep(0.0005)
        process.kill()
        process.wait()
        torn += content(target) != whole
        assert write(run.directory, target) == whole
        shutil.rmtree(target)
    assert torn


DRIVER = """
if __name__ == "__main__":
    hy.select(slow, None, dataset(), search=hy.Configs(CONFIGS * 6), epochs=12, metric="val_loss", mode="min",
              engine=hy.Local(2), directory=sys.argv[1], resume=True, stop=hy.ASHA(2, 1))
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_drivers_and_followers_are_killed_fifty_times(tmp_path: Path) -> None:
    random, kills = Random(5), 0
    script, directory, target = tmp_path / "driver.py", tmp_path / "run", tmp_path / "killed"
    script.write_text(HEAD + SLOW + DRIVER)
    path = Layout(directory).journal

    def driver() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(script), str(directory)], stdout=subprocess.DEVNULL)

    def grow(driving: subprocess.Popen[bytes], size: int) -> None:
        until(lambda: (path.exists() and path.stat().st_size > size) or driving.poll() is not None)
        assert driving.poll() is None, "the run is over too early"

    driving = driver()
    grow(driving, 5000)  # a start that trained nothing is none
    following = tracked(directory, target)
    while kills < 50:
        grow(driving, path.stat().st_size + random.randrange(2500))
        for victim in random.choice([[driving], [following], [driving, following]]):
            victim.kill()
            victim.wait()
            kills += 1
        if driving.poll() is not None:
            driving = driver()
        if following.poll() is not None:
            following = tracked(directory, target)
    assert driving.wait() == 0
    following.wait()
    assert tracked(directory, target).wait() == 0
    assert sum(isinstance(line, Resumed) for line in journal(directory)) >= 20
    run = hy.load(directory)
    assert run.status == "completed"
    check(run, target)
    assert content(target) == write(directory, tmp_path / "whole")
