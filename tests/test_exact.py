"""The same bits whatever happens. A trial's trouble is in its config, so it comes at a chosen place (see jobs.py)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost, Tick
from hopyard.core.runs.events import Dispatch
from jobs import (
    CONFIGS,
    agents,
    children,
    dataset,
    digests,
    driver,
    gone,
    journal,
    linear,
    memory,
    script,
    select,
    troubled,
)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]


def local(workers: int) -> hy.Local:
    return hy.Local(workers=workers, devices=None)


def with_trouble(trial: int, at: int, what: str, once: Path) -> list[dict[str, Any]]:
    """The usual configs; the model does not see what else is in them."""
    return [{**c, "at": at, "do": what, "once": str(once)} if n == trial else c for n, c in enumerate(CONFIGS)]


@pytest.mark.parametrize("group", ["auto", "off", 3])
def test_however_units_are_grouped(tmp_path: Path, undisturbed: list[str], group: Any) -> None:
    assert digests(select(tmp_path / "run", parallel=hy.Hopper(group=group))) == undisturbed


def test_runs_at_the_same_time_in_one_process(tmp_path: Path, undisturbed: list[str]) -> None:
    """Seeds, threads and determinism are the whole process's."""
    from concurrent.futures import ThreadPoolExecutor

    random.seed(7)
    expected = random.random()
    random.seed(7)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda name: digests(select(tmp_path / name)), ["a", "b", "c"]))
    assert found == [undisturbed] * 3
    assert random.random() == expected


@pytest.mark.parametrize(("workers", "group"), [(1, "auto"), (2, "off"), (3, 4)])
def test_with_any_number_of_workers(tmp_path: Path, undisturbed: list[str], workers: int, group: Any) -> None:
    run = select(tmp_path / "run", engine=local(workers), parallel=hy.Hopper(group=group))
    assert digests(run) == undisturbed
    used = {line.slot for line in journal(run.directory) if isinstance(line, Dispatch)}
    assert used <= set(range(workers))


def test_another_seed_gives_other_bits(tmp_path: Path, undisturbed: list[str]) -> None:
    """Else every test of this file would pass for nothing."""
    assert not set(digests(select(tmp_path / "run", seed=1))) & set(undisturbed)


@pytest.mark.parametrize("seed", [0, 1])
def test_when_a_worker_is_killed(tmp_path: Path, undisturbed: list[str], seed: int) -> None:
    dice = random.Random(seed)
    configs = with_trouble(dice.randrange(4), dice.randrange(1, 24), "kill", tmp_path / "once")
    run = select(tmp_path / "run", troubled, configs, engine=local(2))
    assert digests(run) == undisturbed
    assert ["SIGKILL" in line.reason for line in journal(run.directory) if isinstance(line, Lost)] == [True]


def test_when_a_worker_is_stopped(tmp_path: Path, undisturbed: list[str]) -> None:
    configs = with_trouble(1, 7, "stop", tmp_path / "once")
    run = select(tmp_path / "run", troubled, configs, engine=local(2), timeouts=hy.Timeouts(heartbeat_timeout=1.0))
    assert digests(run) == undisturbed
    (lost,) = [line for line in journal(run.directory) if isinstance(line, Lost)]
    assert lost.reason.startswith("said nothing for ")
    assert gone(agents(run.directory))  # the stopped one too


def test_when_a_worker_hangs_in_a_unit(tmp_path: Path, undisturbed: list[str]) -> None:
    """It lives and says so, but its unit makes no progress."""
    configs = with_trouble(2, 9, "hang", tmp_path / "once")
    run = select(tmp_path / "run", troubled, configs, engine=local(2), timeouts=hy.Timeouts(stall_timeout=2.0))
    assert digests(run) == undisturbed
    (lost,) = [line for line in journal(run.directory) if isinstance(line, Lost)]
    assert lost.reason.startswith("made no progress for 2 seconds in phase ")
    assert gone(agents(run.directory))


def test_when_a_unit_takes_longer_than_the_user_allows(tmp_path: Path, undisturbed: list[str]) -> None:
    configs = with_trouble(2, 9, "hang", tmp_path / "once")
    run = select(tmp_path / "run", troubled, configs, engine=local(2), timeouts=hy.Timeouts(unit_timeout=2.0))
    assert digests(run) == undisturbed
    assert len([line for line in journal(run.directory) if isinstance(line, Tick)]) == 1
    (lost,) = [line for line in journal(run.directory) if isinstance(line, Lost)]
    assert lost.reason == "its unit took longer than unit_timeout=2.0 seconds"
    assert gone(agents(run.directory))


def test_when_the_driver_is_killed(tmp_path: Path, undisturbed: list[str]) -> None:
    """And with it, at once, its agents; what they left in shared memory goes at the next start."""
    job = script(
        tmp_path / "job.py",
        f"""
configs = {with_trouble(1, 15, "driver SIGKILL", tmp_path / "once")!r}
select(Path("run"), troubled, configs, engine=hy.Local(2, devices=None))
""",
    )
    process = driver([str(job)], tmp_path)
    process.communicate(timeout=60)
    assert process.returncode == -9
    directory = tmp_path / "run"
    assert agents(directory)
    assert gone(children(process))
    assert hy.load(directory).status == "interrupted"
    run = hy.resume(directory)
    assert run.status == "completed"
    assert digests(run) == undisturbed
    assert not memory(tmp_path)


def net(config: dict[str, Any]) -> Any:
    import torch

    width = config["width"]
    layers = [torch.nn.Linear(6, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Dropout(0.3)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 2))
    made = hy.torch.Model(
        model,
        optimizer=torch.optim.Adam(model.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy, "auc": hy.torch.AUC()},
        batch_size=16,
    )
    if "do" in config:
        step = made.train_partition

        def train_partition(feed: Any) -> Any:
            from jobs import do, first_time

            found = step(feed)
            if first_time(config["once"]):
                do(config["do"])
            return found

        made.train_partition = train_partition  # type: ignore[assignment, method-assign]
    return made


def test_dropout_batch_norm_and_adam_in_torch(tmp_path: Path) -> None:
    """Inline, grouped; against two workers, one of which is killed, one partition at a time."""
    configs: list[dict[str, Any]] = [{"lr": 0.01, "width": width} for width in (4, 8, 12)]
    plain = select(tmp_path / "plain", net, configs, metric="val_auc", mode="max")
    assert plain.status == "completed"
    configs[1] = {**configs[1], "do": "kill", "once": str(tmp_path / "once")}
    engine = local(2)
    run = select(
        tmp_path / "run", net, configs, engine=engine, parallel=hy.Hopper(group=1), metric="val_auc", mode="max"
    )
    assert digests(run) == digests(plain)
    assert [trial.history for trial in run.trials] == [trial.history for trial in plain.trials]
    assert [line.reason for line in journal(run.directory) if isinstance(line, Lost)]


def test_histories_are_equal_too(tmp_path: Path) -> None:
    """Metrics are folded in one order, so they are equal to the last bit."""
    one = select(tmp_path / "one")
    two = select(tmp_path / "two", engine=local(2), parallel=hy.Hopper(group="off"))
    assert [trial.history for trial in one.trials] == [trial.history for trial in two.trials]
    assert (one.best.id, one.best.epoch) == (two.best.id, two.best.epoch)


def test_more_trials_than_stay_built(tmp_path: Path) -> None:
    from hopyard.agent.runs.models import BUILT

    configs = [{"lr": 0.001 * (n + 1)} for n in range(BUILT + 4)]
    data = dataset(partitions=2, rows=60)
    few = hy.Hopper(group=1)
    run = select(tmp_path / "run", linear, configs, data=data, epochs=2, parallel=few)
    assert run.status == "completed"
    alone = select(tmp_path / "alone", linear, configs[:3], data=data, epochs=2)
    assert digests(run)[:3] == digests(alone)
