"""More epochs and trials for a run: it is then, bit for bit, the run that had as many from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.runs.events import Extended
from hopyard.core.runs.machine import fold
from hopyard.driver.runs import start
from hopyard.driver.runs.changes import Changes, members_of
from hopyard.driver.runs.run import Run
from hopyard.errors import RunDirectoryError, SpecError
from hopyard.spec import Gang, RunSpec
from hopyard.store.layout import Layout
from jobs import CONFIGS, dataset, digests, journal, linear, select, troubled

pytestmark = pytest.mark.slow

SPACE = hy.Space(lr=hy.loguniform(1e-3, 1))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> Path:
    """A run that is completed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return select(tmp_path_factory.mktemp("ended") / "run").directory


def search(directory: Path, trials: int, epochs: int, **more: Any) -> Run:
    arguments: dict[str, Any] = {"epochs": epochs, "metric": "val_loss", "mode": "min", "engine": hy.Inline()} | more
    return hy.select(linear, SPACE, dataset(), search=hy.Random(trials), directory=directory, **arguments)


def same(run: Run, whole: Run) -> None:
    assert run.status == whole.status
    assert digests(run) == digests(whole)
    assert [trial.history for trial in run.trials] == [trial.history for trial in whole.trials]
    assert [trial.epoch for trial in run.trials] == [trial.epoch for trial in whole.trials]
    assert (run.best.id, run.best.metrics) == (whole.best.id, whole.best.metrics)
    assert fold(journal(run.directory)).spec.epochs == fold(journal(whole.directory)).spec.epochs
    assert run.best.evaluate(dataset()) == whole.best.evaluate(dataset())


@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=2)], ids=lambda engine: engine.name)
def test_more_epochs(tmp_path: Path, engine: Any) -> None:
    whole = select(tmp_path / "whole", epochs=5)
    select(tmp_path / "run", epochs=2, engine=engine)
    same(hy.resume(tmp_path / "run", epochs=3), select(tmp_path / "three", epochs=3))
    same(hy.resume(tmp_path / "run", epochs=5), whole)
    assert "of 5" in Layout(tmp_path / "run").report.read_text()
    same(hy.load(tmp_path / "run"), whole)


def test_more_trials_and_epochs(tmp_path: Path) -> None:
    search(tmp_path / "run", 2, 2)
    run = hy.resume(tmp_path / "run", search=hy.Random(5), epochs=3)
    same(run, search(tmp_path / "whole", 5, 3))
    same(search(tmp_path / "run", 5, 3, resume=True), run)  # it is that run now
    with pytest.raises(RunDirectoryError, match="with epochs=3, not 2"):
        search(tmp_path / "run", 5, 2, resume=True)


def test_more_trials_after_those_of_the_user(tmp_path: Path) -> None:
    """Bug: the search was compared from the first trial on, which is the user's, so that such a run was refused."""
    first: dict[str, Any] = {"enqueue": [{"lr": 0.01}, {"lr": 0.02}]}
    search(tmp_path / "run", 2, 1, **first)
    for search_, words in (
        (
            hy.Random(1),
            r"proposes 1 trials, .* has 2 \(after the 2 of enqueue=, which stay\), .* for 1 more, hy.Random\(3\)",
        ),
        (hy.Random(4, seed=1), r"its trial 0 is .*, that of .* \(after the 2 of enqueue=, which stay\) is"),
    ):
        with pytest.raises(SpecError, match=words):
            hy.resume(tmp_path / "run", search=search_)
    run, whole = hy.resume(tmp_path / "run", search=hy.Random(3)), search(tmp_path / "whole", 4, 1, **first)
    assert digests(run) == digests(whole)[:5]
    run = hy.resume(tmp_path / "run", search=hy.Random(4))
    same(run, whole)
    assert [trial.config for trial in run.trials[:2]] == first["enqueue"]
    same(search(tmp_path / "run", 4, 1, resume=True, **first), whole)


def test_a_run_that_was_interrupted(tmp_path: Path) -> None:
    select(tmp_path / "run")
    layout = Layout(tmp_path / "run")
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    layout.journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    same(hy.resume(tmp_path / "run", epochs=4), select(tmp_path / "whole", epochs=4))


@pytest.mark.parametrize(
    "share", [0.0, pytest.param(0.3, marks=pytest.mark.long), pytest.param(0.7, marks=pytest.mark.long)]
)
def test_the_driver_ends_while_there_is_more_to_do(tmp_path: Path, share: float) -> None:
    """Wherever it ended, a plain resume goes on with what was added."""
    search(tmp_path / "run", 2, 2)
    before = len(journal(tmp_path / "run"))
    hy.resume(tmp_path / "run", search=hy.Random(4), epochs=4)
    layout = Layout(tmp_path / "run")
    lines = layout.journal.read_bytes().splitlines(keepends=True)
    at = next(n for n, line in enumerate(journal(tmp_path / "run")) if isinstance(line, Extended)) + 1
    assert at > before
    layout.journal.write_bytes(b"".join(lines[: at + int(share * (len(lines) - at))]))
    same(hy.resume(tmp_path / "run"), search(tmp_path / "whole", 4, 4))


def test_failed_trials_stay_or_are_tried_again(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    configs = [CONFIGS[0], {"lr": 0.1, "at": 5, "do": "raise", "once": mark}]
    run = select(tmp_path / "run", troubled, configs)
    assert [trial.status for trial in run.trials] == ["completed", "failed"]
    run = hy.resume(tmp_path / "run", epochs=3)
    assert [trial.status for trial in run.trials] == ["completed", "failed"]
    assert len(run.trials[0].history) == 3
    run = hy.resume(tmp_path / "run", epochs=4, failed=True, recipe=troubled)
    assert [len(trial.history) for trial in run.trials] == [4, 4]
    assert digests(run) == digests(select(tmp_path / "whole", troubled, configs, epochs=4))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {"epochs": 1},
            "epochs = 1: .* has 2 epochs already: .*search=",
        ),
        ({"epochs": "4"}, "epochs must .* '4'"),
        (
            {"epochs": 2},
            "epochs = 2: .* has 2 epochs already",
        ),
        ({"search": hy.Configs(CONFIGS)}, r"has 2 epochs and 4 trials already"),
        (
            {"search": hy.Configs([{"lr": 0.5}, *CONFIGS])},
            r"search: its trial 0 is {'lr': 0.5}, that of .* is {'lr': 0.1}",
        ),
        (
            {"search": hy.Configs(CONFIGS[:2])},
            r"search proposes 2 trials, .* has 4, .* hy.Random\(6\)",
        ),
        ({"search": 5}, r"search must be hy.Grid\(\)"),
        ({"engine": "local"}, r"engine must be hy.Local\(…\), .* got 'local'"),
        ({"engine": hy.Local}, "engine must be .*, got <class"),
    ],
)
def test_an_extension_that_adds_nothing_is_refused(ended: Path, more: dict[str, Any], words: str) -> None:
    before = {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()}
    with pytest.raises(SpecError, match=words):
        hy.resume(ended, **more)
    assert {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()} == before
    assert hy.resume(ended).status == "completed"  # the lock is free


def test_a_search_that_learned_from_fewer_epochs(tmp_path: Path) -> None:
    """Bug: the run was given more epochs, and had other trials than one that had as many from the start."""
    space = hy.Space(lr=hy.uniform(0.1, 0.2))
    hy.select(
        linear, space, dataset(), search=hy.TPE(2), epochs=1, metric="val_loss", mode="min", engine=hy.Inline(),
        exact=False, directory=tmp_path / "run",
    )  # fmt: skip
    with pytest.raises(SpecError, match=r"epochs = 2: what TPE\(.* follows from results after 1 epochs"):
        hy.resume(tmp_path / "run", epochs=2)
    assert hy.resume(tmp_path / "run").status == "completed"


def test_a_run_whose_every_trial_failed(tmp_path: Path) -> None:
    configs = [{"lr": 0.1, "at": 5, "do": "raise"}]
    with pytest.raises(hy.RunFailed):
        select(tmp_path / "run", troubled, configs)
    with pytest.raises(SpecError, match=r"epochs = 3: every trial of .* failed; failed=True tries them again"):
        hy.resume(tmp_path / "run", epochs=3)


def test_failed_trials_are_retried_in_an_extension(tmp_path: Path) -> None:
    """Also where every trial failed: then nothing is open before it is tried again."""
    configs = [{"lr": 0.1, "at": 5, "do": "raise", "once": str(tmp_path / name)} for name in "ab"]
    with pytest.raises(hy.RunFailed):
        select(tmp_path / "run", troubled, configs)
    run = hy.resume(tmp_path / "run", failed=True, recipe=troubled, epochs=3)
    assert (run.status, [len(trial.history) for trial in run.trials]) == ("completed", [3, 3])


def test_a_run_that_was_refused_is_given_more_trials(tmp_path: Path) -> None:
    """The trials that were unfit before do not count again."""
    configs: list[dict[str, Any]] = [{"lr": 0.1, "do": "build"}] * 3
    with pytest.raises(hy.PreflightError):
        select(tmp_path / "run", troubled, configs)
    more = [*configs, {"lr": 0.1, "do": "build"}, *CONFIGS[:2]]
    run = hy.resume(tmp_path / "run", search=hy.Configs(more))
    assert [trial.status for trial in run.trials] == ["failed"] * 4 + ["completed"] * 2


def test_a_search_that_was_written_but_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver ends between the pickle with the other search and the journal's word for it."""
    search(tmp_path / "run", 2, 2)
    with monkeypatch.context() as patch:
        patch.setattr(start, "drive", lambda job, wait: job.lock.free())
        hy.resume(tmp_path / "run", search=hy.Random(4))
    run = search(tmp_path / "run", 2, 2, resume=True)
    assert len(run.trials) == 2
    same(hy.resume(tmp_path / "run", search=hy.Random(4)), search(tmp_path / "whole", 4, 2))


def told(config: dict[str, Any], ctx: Any) -> Any:
    return linear({"lr": config["lr"] / ctx.epochs})


def test_a_recipe_that_read_the_number_of_epochs(tmp_path: Path) -> None:
    select(tmp_path / "run", told, CONFIGS[:2])
    with pytest.raises(SpecError, match=r"epochs = 3: the recipe of trial 0 of .* read ctx\.epochs, which was 2"):
        hy.resume(tmp_path / "run", epochs=3)
    run = hy.resume(tmp_path / "run", search=hy.Configs(CONFIGS))  # more trials are told the same
    assert digests(run) == digests(select(tmp_path / "whole", told))


def one_cycle(config: dict[str, Any]) -> Any:
    import torch

    module = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=config["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=config["steps"])
    loss = torch.nn.functional.cross_entropy
    return hy.torch.Model(module, optimizer, loss, scheduler=schedule, scheduler_every="batch", batch_size=16)


def test_a_schedule_that_has_ended(tmp_path: Path) -> None:
    """Two epochs of 180 rows in four partitions of 45 have 24 batches of 16."""
    configs = [{"lr": 0.1, "steps": 24}, {"lr": 0.01, "steps": 48}]
    before = select(tmp_path / "run", one_cycle, configs)
    outputs = before.trials[0].predict(dataset())
    run = hy.resume(tmp_path / "run", epochs=4)
    ended, other = run.trials
    assert (ended.status, other.status, run.best.id) == ("failed", "completed", 1)
    assert "Tried to step 25 times" in ended.error
    assert "2 epochs before" in ended.error and "OneCycleLR" in ended.error
    assert ended.history == before.trials[0].history
    np.testing.assert_array_equal(ended.predict(dataset()), outputs)


def test_an_error_elsewhere_names_no_schedule(tmp_path: Path) -> None:
    """Also in a run that has more epochs than it was begun with; nor does one in a later epoch."""
    select(tmp_path / "run", troubled, CONFIGS[:1])
    more = hy.Configs([CONFIGS[0], *({**CONFIGS[1], "at": batch, "do": "raise"} for batch in (5, 40))])
    run = hy.resume(tmp_path / "run", epochs=4, search=more)
    for trial, epochs in zip(run.trials[1:], (0, 3), strict=True):
        assert (trial.status, len(trial.history)) == ("failed", epochs) and "schedule" not in trial.error


def test_new_trials_have_the_recipe_that_the_run_was_started_with(tmp_path: Path) -> None:
    """Also where failed ones begin anew with another."""

    def other(config: dict[str, Any]) -> Any:
        return linear({"lr": config["lr"] / 2})

    configs: list[dict[str, Any]] = [CONFIGS[0], {**CONFIGS[1], "at": 5, "do": "raise"}]
    select(tmp_path / "run", troubled, configs)
    more = hy.Configs([*configs, CONFIGS[2]])
    run = hy.resume(tmp_path / "run", failed=True, recipe=other, search=more)
    plain, halved = (
        digests(select(tmp_path / name, make, CONFIGS[:3])) for name, make in (("a", linear), ("b", other))
    )
    assert digests(run) == [plain[0], halved[1], plain[2]]


def test_on_the_command_line(tmp_path: Path) -> None:
    select(tmp_path / "run")
    ended = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--epochs", "3"])
    assert ended.exit_code == 0, ended.output
    same(hy.load(tmp_path / "run"), select(tmp_path / "whole", epochs=3))


@pytest.mark.parametrize(
    ("gang", "workers", "message"),
    [
        (None, 2, r"one worker, .* for 2 processes give engine=hy.Local\(workers=2\)"),
        (Gang(2, "parameters"), 3, "optimizer of its own"),
        (Gang(2), 0, "workers must .* 0"),
    ],
)
def test_gangs_that_keep_their_size(gang: Any, workers: int, message: str, tmp_path: Path) -> None:
    spec = RunSpec(epochs=1, partitions=1, validation=0, gang=gang)
    with pytest.raises(SpecError, match=message):
        members_of(Layout(tmp_path), spec, Changes(workers=workers))


@pytest.mark.parametrize(
    ("gang", "workers", "members"),
    [
        (Gang(2), None, 0),
        (Gang(2), 2, 0),
        (Gang(2), 3, 3),
        (Gang(2, "parameters", inner="average"), 1, 1),
        (Gang(1, "parameters"), 2, 2),
    ],
)
def test_gangs_that_may_have_another_size(gang: Gang, workers: Any, members: int, tmp_path: Path) -> None:
    spec = RunSpec(epochs=1, partitions=1, validation=0, gang=gang)
    assert members_of(Layout(tmp_path), spec, Changes(workers=workers)) == members
