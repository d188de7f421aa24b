"""Bad input, from the data to the disk: each with a clear message, the right exit code, and nothing lost."""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Dispatch
from hopyard.driver.pickling import RunInputs
from hopyard.driver.runs.request import objectives_of, run_spec
from hopyard.errors import SpecError
from hopyard.frameworks.linear import Linear
from hopyard.store.layout import Layout
from hopyard.store.states import private
from jobs import CONFIGS, WIDTH, agents, dataset, digests, fill, gone, journal, linear, select, table, troubled

pytestmark = pytest.mark.slow

LOCAL: dict[str, Any] = {"engine": hy.Local(workers=1, devices=None)}


def frame(rows: int = 60) -> dict[str, Any]:
    x, y = table(rows)
    return {**{name: x[:, n] for n, name in enumerate("abcdef")}, "y": y}


def arrow(columns: dict[str, Any], features: Any = tuple("abcdef"), **more: Any) -> hy.Dataset:
    made: dict[str, Any] = {"label": "y", "validation": 0.25, "partitions": 4} | more
    return hy.Dataset.arrow(pa.table(columns), features=list(features), **made)


# ------------------------------------------------------------------------------------------------ the data


def refused(directory: Path, error: type[hy.HopyardError], *words: str, **more: Any) -> None:
    """`select` raises this, says these words, and makes no run directory."""
    with pytest.raises(error) as caught:
        select(directory, **more)
    assert type(caught.value) is error
    assert caught.value.exit_code == 2
    for word in words:
        assert word in str(caught.value)
    assert not directory.exists()


def test_a_missing_column() -> None:
    with pytest.raises(hy.DataError, match="'hour'") as caught:
        arrow(frame(), features=["a", "hour"])
    assert caught.value.exit_code == 2
    assert "'a'" in str(caught.value)  # says what is there


def test_a_column_of_a_wrong_type() -> None:
    with pytest.raises(hy.DataError, match=r"'a' .* string.* encode="):
        arrow({**frame(), "a": ["x"] * 60})


def test_nan_in_the_data(tmp_path: Path) -> None:
    columns = frame()
    columns["c"] = columns["c"].copy()
    columns["c"][17] = np.nan
    refused(tmp_path / "run", hy.DataError, "'c'", "17", data=arrow(columns))


def test_an_empty_dataset(tmp_path: Path) -> None:
    refused(tmp_path / "run", hy.DataError, "no rows", data=arrow({name: col[:0] for name, col in frame().items()}))


def test_fewer_rows_than_partitions(tmp_path: Path) -> None:
    refused(tmp_path / "run", hy.DataError, "partitions", data=arrow(frame(8), partitions=100))


def test_a_label_out_of_range(tmp_path: Path) -> None:
    """Three classes, a model of two. Nothing is trained."""
    x, y = table()
    data = hy.Dataset.numpy(x, y + 1, validation=0.25, partitions=4)
    with pytest.raises(hy.PreflightError, match=r"labels from 1 to 2: 0 to 1 are allowed") as caught:
        select(tmp_path / "run", data=data)
    assert caught.value.exit_code == 2
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Dispatch)]


def test_a_label_out_of_range_for_torch(tmp_path: Path) -> None:
    """Else cross-entropy reads beyond its row: an error far from its cause."""

    def recipe(config: Any) -> Any:
        import torch

        net = torch.nn.Linear(WIDTH, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        return hy.torch.Model(net, optimizer=optimizer, loss=torch.nn.functional.cross_entropy, batch_size=16)

    x, y = table()
    y[200] = 7
    with pytest.raises(hy.PreflightError, match=r"7") as caught:
        select(tmp_path / "run", recipe, data=hy.Dataset.numpy(x, y, validation=0.25, partitions=4))
    assert "label" in str(caught.value)


def test_no_data_set() -> None:
    with pytest.raises(hy.SpecError, match=r"data must .* ndarray"):
        select(Path("never"), data=table()[0])


# ------------------------------------------------------------------------------------------------ the order


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"epochs": 0}, ["epochs must be", "got 0"]),
        ({"epochs": 1.5}, ["epochs must be", "got 1.5"]),
        ({"mode": "best"}, ["mode must be", "got 'best'"]),
        ({"metric": ""}, ["metric must be", "got ''"]),
        ({"seed": "a"}, ["seed must be", "got 'a'"]),
        ({"exact": 1.5}, ["exact must be", "got 1.5"]),
        ({"search": [1]}, ["search must be", "got [1]"]),
        ({"search": hy.Random(3)}, ["space must be", "got None"]),
        ({"engine": "local"}, ["engine must be", "got 'local'"]),
        ({"parallel": 3}, ["parallel must be", "got 3"]),
        ({"encrypt": "yes"}, ["encrypt must be", "got 'yes'"]),
        ({"recipe": lambda: None}, ["recipe", "(config)", "(config, ctx)"]),
        ({"recipe": 5}, ["recipe must be", "got 5"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_values_that_are_not_allowed(tmp_path: Path, more: dict[str, Any], words: list[str]) -> None:
    refused(tmp_path / "run", hy.SpecError, *words, **more)


def test_a_metric_of_fit_has_a_mode(tmp_path: Path) -> None:
    with pytest.raises(hy.SpecError, match="mode = None: metric = 'val_accuracy'"):
        hy.fit(linear, {}, dataset(), epochs=1, metric="val_accuracy", directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_val_metric_without_validation_rows(tmp_path: Path) -> None:
    words = ["metric = 'val_loss', but the data has no validation rows", "validation=0.2"]
    refused(tmp_path / "run", hy.SpecError, *words, data=dataset(validation=0.0))


def test_a_resume_of_nothing_in_particular() -> None:
    with pytest.raises(hy.SpecError, match=r"directory must be .*, got None"):
        select(None, resume=True)


@pytest.mark.parametrize("engine", [hy.Inline(), LOCAL["engine"]], ids=["inline", "local"])
def test_a_recipe_that_cannot_be_pickled(tmp_path: Path, engine: Any) -> None:
    lock = threading.Lock()

    def recipe(config: Any) -> Any:
        with lock:
            return linear(config)

    words = ["recipe cannot be pickled", "cannot pickle '_thread.lock'", "make them inside the recipe"]
    refused(tmp_path / "run", hy.SpecError, *words, recipe=recipe, engine=engine)


def test_a_metric_that_nobody_reports(tmp_path: Path) -> None:
    with pytest.raises(hy.PreflightError) as caught:
        select(tmp_path / "run", metric="val_auc")
    assert "metric = 'val_auc': the recipe reports 'loss', 'accuracy', 'val_loss', 'val_accuracy'" in str(caught.value)
    assert caught.value.exit_code == 2
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Dispatch)]


def test_more_workers_than_cores_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.driver.runs.session.cores", lambda: 1)
    with pytest.warns(UserWarning, match="2 workers on 1 cores: they take turns") as caught:
        run = select(tmp_path / "run", configs=CONFIGS[:1], engine=hy.Local(workers=2, devices=None))
    assert run.status == "completed"
    assert len(caught) == 1


# ------------------------------------------------------------------------------------------------ the recipe


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", r"RuntimeError: the moon is in the wrong house \(jobs\.py, line \d+, in do\)"),
        ("build", r"RuntimeError: no such optimizer \(jobs\.py, line \d+, in troubled\)"),
        ("nan", r"the loss is nan in trial 2, epoch 2, partition \d: this configuration diverged"),
    ],
)
def test_a_failing_config_ends_its_own_trial(tmp_path: Path, undisturbed: list[str], what: str, message: str) -> None:
    configs = [{**config, "at": 13, "do": what} if n == 2 else config for n, config in enumerate(CONFIGS)]
    run = select(tmp_path / "run", troubled, configs)
    assert run.status == "partial"
    assert [trial.status for trial in run.trials] == ["completed", "completed", "failed", "completed"]
    assert [state for n, state in enumerate(digests(run)) if n != 2] == [undisturbed[n] for n in (0, 1, 3)]
    assert re.search(message, run.trials[2].error)
    assert run.best.id != 2


def test_the_model_of_a_trial_that_failed_at_once(tmp_path: Path) -> None:
    run = select(tmp_path / "run", troubled, [CONFIGS[0], {**CONFIGS[1], "do": "build"}])
    with pytest.raises(hy.TrialFailed, match=r"trial 1 \(failed\) has no stored model: .*no such optimizer") as caught:
        run.trials[1].model()
    assert caught.value.exit_code == 3


def test_the_first_config_that_fails_in_preflight_ends_its_own_trial(tmp_path: Path, undisturbed: list[str]) -> None:
    run = select(tmp_path / "run", troubled, [{**CONFIGS[0], "do": "build"}, *CONFIGS[1:]])
    assert run.status == "partial"
    assert digests(run)[1:] == undisturbed[1:]
    assert "no such optimizer" in run.trials[0].error


def test_a_config_that_kills_its_process_is_poison(tmp_path: Path, undisturbed: list[str]) -> None:
    configs = [{**config, "at": 2, "do": "exit"} if n == 1 else config for n, config in enumerate(CONFIGS)]
    run = select(tmp_path / "run", troubled, configs, **LOCAL)
    assert run.status == "partial"
    assert [state for n, state in enumerate(digests(run)) if n != 1] == [undisturbed[n] for n in (0, 2, 3)]
    assert run.trials[1].error.startswith("poison: its unit (train, epoch 1, partition 2)")
    assert "ended with exit code 7" in run.trials[1].error
    assert len([line for line in journal(run.directory) if isinstance(line, Lost)]) == 3
    assert gone(agents(run.directory))


def test_a_recipe_that_fails_for_all(tmp_path: Path) -> None:
    with pytest.raises(hy.PreflightError, match=r"1 fault") as caught:
        select(tmp_path / "run", troubled, [{**config, "do": "build"} for config in CONFIGS])
    (fault,) = caught.value.faults
    assert re.fullmatch(r"trials 0, 1, 2: RuntimeError: no such optimizer \(jobs\.py, line \d+, in troubled\)", fault)
    assert not [line for line in journal(tmp_path / "run") if isinstance(line, Dispatch)]
    assert hy.load(tmp_path / "run").status == "failed"


def test_all_trials_that_fail_after_preflight(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed, match=r"every trial failed:\n  trials 0, 1, 2, 3: .*the moon") as caught:
        select(tmp_path / "run", troubled, [{**config, "at": 13, "do": "raise"} for config in CONFIGS])
    assert caught.value.exit_code == 1
    run = hy.load(tmp_path / "run")
    with pytest.raises(hy.RunFailed, match="all failed:"):
        run.best  # noqa: B018


def test_a_state_with_something_that_cannot_be_stored(tmp_path: Path) -> None:
    class Odd(Linear):
        def state(self) -> Any:
            return {**super().state(), "stream": threading.Lock()}

    with pytest.raises(hy.PreflightError, match="stream"):
        select(tmp_path / "run", lambda config: Odd(WIDTH, 2, lr=0.1, batch_size=16))


def test_a_metric_of_another_shape_in_each_partition(tmp_path: Path) -> None:
    class Odd(Linear):
        def train(self, batch: Any) -> Any:
            return {**super().train(batch), "bins": ([1.0] * (1 + (self.steps - 1) // 3), 1.0)}

        def train_partition(self, feed: Any) -> Any:
            found = [self.train(batch) for batch in feed]
            return {"loss": (1.0, 1.0), "bins": found[-1]["bins"]}

        def evaluate_partition(self, feed: Any) -> Any:
            return {"loss": (1.0, 1.0)}

    with pytest.raises(hy.RunFailed, match="bins"):
        select(tmp_path / "run", lambda config: Odd(WIDTH, 2, lr=0.1, batch_size=16), metric="loss")


def test_a_model_that_does_not_take_its_state_back_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    class Forgetful(Linear):
        def load(self, tree: Any) -> None:
            pass

    class Restless(Linear):
        def evaluate(self, batch: Any) -> Any:
            return self.train(batch)

    for made, words in ((Forgetful, "load does not bring"), (Restless, "evaluate changes the State")):
        with pytest.raises(hy.PreflightError, match=words):
            select(tmp_path / words[:4], lambda config, made=made: made(WIDTH, 2, lr=0.1, batch_size=16))
    with pytest.raises(hy.PreflightError, match=r"return \{name: .*not None"):
        select(tmp_path / "none", lambda config: Silent(WIDTH, 2, lr=0.1, batch_size=16))


class Silent(Linear):
    def train(self, batch: Any) -> Any:
        return None


def test_an_optimizer_of_another_module() -> None:
    import torch

    loss = torch.nn.functional.cross_entropy
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pytest.raises(hy.SpecError, match="optimizer: none"):
        hy.torch.Model(one, optimizer=torch.optim.SGD(other.parameters(), lr=0.1), loss=loss)


# ------------------------------------------------------------------------------------------------ the directory


@pytest.mark.parametrize("resume", [False, True])
def test_a_directory_where_nothing_was_trained_is_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, resume: bool
) -> None:
    with pytest.raises(hy.PreflightError):
        select(tmp_path / "run", linear, metric="los")
    assert caplog.records == []
    assert select(tmp_path / "run", linear, resume=resume).status == "completed"
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'run'}: the run here had trained nothing, so it begins anew, with what is given now"
    ]
    with pytest.raises(hy.RunDirectoryError, match="exists: give another"):
        select(tmp_path / "run", linear)


def test_an_existing_directory_without_resume(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(hy.RunDirectoryError, match=r"exists.*other files") as caught:
        select(tmp_path)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(hy.RunDirectoryError, match="exists"):
        select(tmp_path, resume=True)  # not a run, and nothing of ours
    with pytest.raises(hy.RunDirectoryError, match="exists"):
        select(tmp_path / "thesis.tex")


def test_an_empty_directory_is_welcome(tmp_path: Path) -> None:
    assert select(tmp_path, configs=CONFIGS[:1]).status == "completed"


def test_a_directory_in_use(tmp_path: Path) -> None:
    run = select(tmp_path / "run", troubled, [{**CONFIGS[0], "at": 13, "do": "hang"}], wait=False, **LOCAL)
    try:
        for attempt in (lambda: hy.resume(run.directory), lambda: select(run.directory, troubled, resume=True)):
            with pytest.raises(hy.RunDirectoryError, match=r"process \d+") as caught:
                while True:
                    attempt()
            assert caught.value.exit_code == 4, "it may be free later"
    finally:
        run.stop()


def test_no_run_there(tmp_path: Path) -> None:
    for attempt in (hy.load, hy.resume):
        with pytest.raises(hy.RunDirectoryError, match=r"no run here \(no journal\.jsonl\)"):
            attempt(tmp_path)


# ------------------------------------------------------------------------------------------------ the journal


@pytest.fixture
def interrupted(tmp_path: Path) -> Path:
    """A run that ended in the middle."""
    configs = [{**config, "once": str(tmp_path / "once")} for config in CONFIGS]
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupting, configs)
    return tmp_path / "run"


def interrupting(config: dict[str, Any]) -> Any:
    from jobs import Troubled, first_time

    class Interrupting(Troubled):
        def train(self, batch: Any) -> Any:
            if self.steps == 15 and first_time(self._config.get("once")):
                raise KeyboardInterrupt
            return super().train(batch)

    return Interrupting(config)


def test_an_interrupted_run_goes_on(interrupted: Path, undisturbed: list[str]) -> None:
    assert type(journal(interrupted)[-1]).__name__ == "Interrupted"
    assert digests(hy.resume(interrupted)) == undisturbed
    assert digests(hy.resume(interrupted)) == undisturbed  # nothing is left to do


def test_select_with_resume_goes_on(interrupted: Path, undisturbed: list[str]) -> None:
    configs = [{**config, "once": str(interrupted.parent / "once")} for config in CONFIGS]
    with pytest.raises(hy.RunDirectoryError, match=r"epochs=2, not 3"):
        select(interrupted, interrupting, configs, epochs=3, resume=True)
    with pytest.raises(hy.RunDirectoryError, match=r"whose trial 0 has .*, the search proposes"):
        select(interrupted, interrupting, CONFIGS, resume=True)
    assert digests(select(interrupted, interrupting, configs, resume=True)) == undisturbed


def test_a_copy_of_a_run_has_states_of_its_own(interrupted: Path, undisturbed: list[str]) -> None:
    copy = shutil.copytree(interrupted, interrupted.parent / "copy")
    shutil.copyfile(interrupted.parent / "once", interrupted.parent / "once-more")
    assert digests(hy.resume(copy)) == undisturbed
    assert digests(hy.resume(interrupted)) == undisturbed


def test_a_journal_that_lacks_only_its_end(tmp_path: Path) -> None:
    run = select(tmp_path / "run", linear, CONFIGS)
    path = run.directory / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    assert b'"Finished"' in lines[-1]
    path.write_bytes(b"".join(lines[:-1]))
    assert hy.load(run.directory).status == "interrupted"
    assert digests(hy.resume(run.directory)) == digests(run)
    assert hy.load(run.directory).status == "completed"


def test_a_torn_journal_goes_on_wherever_it_is_torn(interrupted: Path, undisturbed: list[str], tmp_path: Path) -> None:
    path = Layout(interrupted).journal
    lines = path.read_bytes().splitlines(keepends=True)
    for number, cut in ((len(lines) - 1, 9), (len(lines) // 2, 30), (8, 1), (2, 5)):
        copy = tmp_path / f"copy-{number}-{cut}"
        shutil.copytree(interrupted, copy)
        Layout(copy).journal.write_bytes(b"".join(lines[:number]) + lines[number][:cut])
        run = hy.load(copy)
        assert run.status == "interrupted"
        assert digests(hy.resume(copy)) == undisturbed


def test_a_journal_torn_in_its_first_line(interrupted: Path, undisturbed: list[str]) -> None:
    """Nothing had happened yet: `resume` says so, `select(resume=True)` begins."""
    path = Layout(interrupted).journal
    path.write_bytes(path.read_bytes()[:40])
    for attempt in (hy.load, hy.resume):
        with pytest.raises(hy.RunDirectoryError, match="journal is empty"):
            attempt(interrupted)
    assert digests(select(interrupted, resume=True)) == undisturbed


def test_a_driver_that_ended_before_it_had_a_journal(interrupted: Path, undisturbed: list[str]) -> None:
    Layout(interrupted).journal.unlink()
    assert digests(select(interrupted, resume=True)) == undisturbed


def test_a_damaged_journal(interrupted: Path) -> None:
    path = Layout(interrupted).journal
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:5], b"\xff\x00" + lines[5], *lines[6:]]))
    before = path.read_bytes()
    for attempt in (hy.load, hy.resume):
        with pytest.raises(hy.JournalError, match=r"line 6: .*damaged here") as caught:
            attempt(interrupted)
        assert caught.value.exit_code == 1
    assert path.read_bytes() == before


def test_a_journal_of_a_newer_version(interrupted: Path) -> None:
    path = Layout(interrupted).journal
    text = path.read_text()
    path.write_text(text.replace('"format":1', '"format":2', 1) + '{"type":"Teleported","at":1}\n')
    for attempt in (hy.load, hy.resume):
        with pytest.raises(hy.JournalError, match="newer Hopyard"):
            attempt(interrupted)
    Layout(interrupted).journal.write_text(text)
    assert hy.load(interrupted).status == "interrupted"


def test_a_run_of_another_python(interrupted: Path) -> None:
    about = Layout(interrupted).about
    about.write_text(about.read_text().replace('"python":"3.', '"python":"9.'))
    with pytest.raises(hy.RunDirectoryError, match=r"written by Python 9\.\d+, this is 3\."):
        hy.resume(interrupted)
    about.write_text("{}")
    with pytest.raises(hy.RunDirectoryError, match=r"run\.json: .*not whole"):
        hy.resume(interrupted)


@pytest.mark.parametrize(
    "attempt",
    [hy.resume, select, lambda path: select(path, resume=True)],
    ids=["resume", "select", "select resume"],
)
def test_a_run_directory_that_cannot_be_written(interrupted: Path, attempt: Callable[[Path], Any]) -> None:
    """A folder stands in the way of the lock: an error as of a mount that is read-only, for whatever user tests run."""
    lock = Layout(interrupted).lock
    lock.unlink()
    lock.mkdir()
    with pytest.raises(hy.RunDirectoryError, match=r"Is a directory") as caught:
        attempt(interrupted)
    assert str(interrupted) in str(caught.value)
    assert lock.is_dir()


def test_rows_of_memory_that_are_gone_from_the_cache_are_named_again_by_the_script(tmp_path: Path) -> None:
    """As after `hopyard clean`, of a run directory that was moved."""
    data = hy.Dataset.numpy(*table(seed=5), validation=0.25, partitions=4)
    configs = [{**config, "once": str(tmp_path / "once")} for config in CONFIGS]
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "before", interrupting, configs, data=data)
    (tmp_path / "before").rename(tmp_path / "run")
    shutil.rmtree(data.prepare().path)
    with pytest.raises(hy.DataError, match=r"240 rows .*resume=True"):
        hy.resume(tmp_path / "run")
    data = hy.Dataset.numpy(*table(seed=5), validation=0.25, partitions=4)
    assert select(tmp_path / "run", interrupting, configs, data=data, resume=True).status == "completed"


@pytest.mark.parametrize("name", ["manifest.json", "run.json", "recipe.pkl"])
def test_a_run_directory_that_is_not_whole(interrupted: Path, name: str) -> None:
    (interrupted / name).unlink()
    with pytest.raises(hy.RunDirectoryError, match="not whole") as caught:
        hy.resume(interrupted)
    assert str(interrupted / name) in str(caught.value)


def test_a_run_directory_that_is_not_whole_has_no_models(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=CONFIGS[:1]).directory
    (run / "manifest.json").write_text("{")
    with pytest.raises(hy.RunDirectoryError, match=r"manifest\.json: .*not whole"):
        hy.load(run).best.model()
    for name in ("manifest.json", "recipe.pkl", "run.json"):
        (run / name).unlink()
        with pytest.raises(hy.RunDirectoryError, match=f"{name}: No such file"):
            hy.load(run).best.model()


# ------------------------------------------------------------------------------------------------ the disk


def test_a_disk_that_is_full_for_the_journal(
    small_disk: Callable[[str], Path], undisturbed: list[str], tmp_path: Path
) -> None:
    """It is made full in the middle of a unit; States go elsewhere."""
    directory = small_disk("2m") / "run"
    room = directory.parent / "filler"
    configs = [{**c, "fill": str(room), "once": str(tmp_path / "once")} if n == 1 else c for n, c in enumerate(CONFIGS)]
    with pytest.raises(hy.ResourceError, match=r"room for the journal") as caught:
        select(directory, filling, configs, store=tmp_path / "states", **LOCAL)
    assert caught.value.exit_code == 4
    assert gone(agents(directory))
    room.unlink()
    run = hy.resume(directory)
    assert run.status == "completed"
    assert digests(run) == undisturbed


def test_a_disk_that_has_no_room_for_the_first_line(
    monkeypatch: pytest.MonkeyPatch, undisturbed: list[str], tmp_path: Path
) -> None:
    """Bug: it named `hopyard resume`, which goes on with nothing that has not begun. And the shorter line that the run
    was interrupted must not be the first: a journal begins with Began."""
    write = os.write

    def full(file: int, data: bytes) -> int:
        if b'"Began"' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("hopyard.store.journal.os.write", full)
        with pytest.raises(hy.ResourceError, match=r"room for the journal") as caught:
            select(tmp_path / "run")
    assert "start again, with resume=True" in str(caught.value)
    assert "hopyard resume" not in str(caught.value)
    with pytest.raises(hy.RunDirectoryError, match="resume=True"):
        hy.resume(tmp_path / "run")
    assert digests(select(tmp_path / "run", resume=True)) == undisturbed


MEMORY = r"store = 'memory://x': .*engine 'local' .*hy\.Inline\(\)"


def test_a_store_in_memory_is_for_workers_in_this_process(tmp_path: Path) -> None:
    """Bug: each worker kept States in its own memory, where nobody else could read them."""
    with pytest.raises(SpecError, match=MEMORY):
        select(tmp_path / "run", store="memory://x", **LOCAL)
    assert not (tmp_path / "run").exists()
    for url in ("memory://x", "simplecache::memory://x"):
        assert private(url)
    for url in ("s3://memory", "/memory", "memory", "file:///memory", "/a/memory://x"):
        assert not private(url)


def test_nor_can_others_go_on_with_it(tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    configs = [{**config, "at": 14, "once": once} for config in CONFIGS]
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", ctrl_c_once, configs, store="memory://x")
    with pytest.raises(SpecError, match=MEMORY):
        hy.resume(tmp_path / "run", **LOCAL)
    assert hy.resume(tmp_path / "run").status == "completed"


def ctrl_c_once(config: dict[str, Any]) -> Any:
    """The user interrupts, once."""
    from jobs import Troubled, first_time

    class Interrupted(Troubled):
        def train(self, batch: Any) -> Any:
            if self.steps == 14 and first_time(self._config["once"]):
                raise KeyboardInterrupt
            return Linear.train(self, batch)

    return Interrupted(config)


@pytest.mark.parametrize("engine", [hy.Inline(), LOCAL["engine"]], ids=["inline", "local"])
def test_a_disk_that_is_full_for_states(
    small_disk: Callable[[str], Path], undisturbed: list[str], tmp_path: Path, engine: Any
) -> None:
    store = small_disk("2m")
    room = store / "filler"
    configs = [{**c, "fill": str(room), "once": str(tmp_path / "once")} if n == 1 else c for n, c in enumerate(CONFIGS)]
    with pytest.raises(hy.ResourceError, match=r"no room for State .*hopyard resume") as caught:
        select(tmp_path / "run", filling, configs, store=store, engine=engine)
    assert caught.value.exit_code == 4
    assert str(caught.value).count("hopyard resume") == 1, "the advice is said twice"
    assert not list(store.rglob(".part-*"))
    room.unlink()
    run = hy.resume(tmp_path / "run")
    assert digests(run) == undisturbed


def test_a_disk_that_is_full_from_the_start(small_disk: Callable[[str], Path], undisturbed: list[str]) -> None:
    disk = small_disk("1m")
    fill(disk / "filler")
    with pytest.raises(hy.ResourceError, match="no room") as caught:
        select(disk / "run")
    assert caught.value.exit_code == 4
    (disk / "filler").unlink()
    assert digests(select(disk / "run", resume=True)) == undisturbed


def filling(config: dict[str, Any]) -> Any:
    """Makes a disk full in the tenth batch."""
    from jobs import Troubled, fill, first_time

    class Filling(Troubled):
        def train(self, batch: Any) -> Any:
            if "fill" in self._config and self.steps == 13 and first_time(self._config["once"]):
                fill(Path(self._config["fill"]))
            return super().train(batch)

    return Filling(config)


def test_a_model_for_a_recipe(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(hy.SpecError, match=r"recipe .* Linear"):
        select(tmp_path / "run", torch.nn.Linear(2, 2))


def test_a_url_for_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hy.RunDirectoryError, match="there is no file system 'nosuch'"):
        hy.select(linear, hy.Space(lr=0.1), arrow(frame()), search=hy.Grid(), epochs=1, metric="loss", mode="min",
                  directory="nosuch://bucket/run")  # fmt: skip
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("metric", "mode", "warned"),
    [
        ("val_loss", "max", True),
        ("val_loss", "min", False),
        ("val_F1_score", "min", True),
        ("auc_1", "max", False),
        ("val_lossless", "max", False),  # words of a name, not parts of words
        ("pace", "min", False),
        ("regret", "max", False),
    ],
)
def test_a_mode_that_does_not_go_with_the_name_of_the_metric(
    caplog: pytest.LogCaptureFixture, metric: str, mode: Any, warned: bool
) -> None:
    inputs = RunInputs(linear, dataset(), None, hy.Configs(CONFIGS), hy.Inline())
    given = {"metric": metric, "mode": mode, "epochs": 1, "seed": 0, "parallel": hy.Hopper(), "stop": None}
    spec = run_spec(inputs, given)
    assert spec.mode == mode
    said = f'mode = "{mode}": of metric = {metric!r} the {mode}imum is taken for the best'
    assert [record.getMessage() for record in caplog.records] == [said] * warned
    with pytest.raises(SpecError, match="mode must be"):
        objectives_of(metric, "best")
    assert len(caplog.records) == warned, "bug: it warned of the besimum"


def test_an_item_that_cannot_be_read() -> None:
    class Items:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, at: int) -> tuple[float, int]:
            if at == 2:
                raise ValueError("corrupt image")
            return float(at), 0

    pytest.importorskip("torch")
    with pytest.raises(hy.DataError, match="item 2 cannot be read: ValueError: corrupt image"):
        hy.Dataset.torch(Items(), partitions=1).prepare()


def test_fit_takes_one_metric() -> None:
    with pytest.raises(hy.SpecError, match=r"metric = \['loss', 'val_loss'\]: fit has one trial"):
        hy.fit(None, {"lr": 0.1}, None, epochs=1, metric=["loss", "val_loss"], mode=["min", "min"])  # type: ignore[arg-type]
