"""Gangs of real processes: the same bits whatever happens, and the cause of what goes wrong."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from gang_jobs import network
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Dispatch, Done, Failed, Formed, Joined, Resumed, Shrunk
from hopyard.data.partitions.loader import sizes
from hopyard.driver.runs.replay import replay
from hopyard.engines.local import Processes
from jobs import agents, alive, dataset, digests, driver, gone, journal, linear, memory, script

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]

KEEP = hy.LocalSGD(every=2, outer=hy.Nesterov(0.7, 0.9))


def fit(directory: Path, workers: int = 2, parallel: Any = None, config: Any = None, **more: Any) -> hy.Run:
    arguments: dict[str, Any] = {
        "epochs": 2,
        "engine": hy.Local(workers, devices=None),
        "parallel": hy.AllReduce() if parallel is None else parallel,
        "directory": directory,
    } | more
    return hy.fit(network, config or {"lr": 0.05}, dataset(), **arguments)


def trouble(rank: int, at: int, what: str, once: Path | None = None) -> dict[str, Any]:
    return {"lr": 0.05, "rank": rank, "at": at, "do": what, **({} if once is None else {"once": str(once)})}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> dict[str, list[str]]:
    """Digests of gangs of two to which nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        folder = tmp_path_factory.mktemp("gangs")
        return {
            "gradients": digests(fit(folder / "gradients", parallel=hy.Hopper(gang=2, group=4))),
            "parameters": digests(fit(folder / "parameters", parallel=KEEP)),
        }


def test_a_gang_gives_the_same_bits_however_units_are_grouped(
    tmp_path: Path, undisturbed: dict[str, list[str]]
) -> None:
    """`undisturbed` is in units of four partitions."""
    assert digests(fit(tmp_path / "run", parallel=hy.Hopper(gang=2, group="off"))) == undisturbed["gradients"]
    assert not memory(tmp_path)


def test_the_report_says_what_a_gang_has_exchanged(tmp_path: Path) -> None:
    """Each step adds up the gradients and one number for the rows, each unit gathers the sums of its metrics."""
    run = fit(tmp_path / "run")
    parameters = sum(parameter.numel() for parameter in network({}).module.parameters())
    done = [line for line in journal(run.directory) if isinstance(line, Done) and line.exchanged_bytes]
    (formed,) = [line for line in journal(run.directory) if isinstance(line, Formed)]
    assert formed.members[0] == done[0].slot
    assert done[0].others[0][1] > 1 << 20, "the other member answers nothing itself"
    steps = sum(len(sizes(part.rows, 16)) for part in dataset().prepare().train)
    reduced = 2 * steps * (8 * parameters + 8)  # bytes of float64, in two epochs
    summary = run.summary()
    assert summary["exchanged_bytes"] == 2 * sum(line.exchanged_bytes for line in done)
    assert reduced <= summary["exchanged_bytes"] / 2 <= reduced + 2000 * len(done)
    (record,) = summary["hosts"].values()
    assert record["workers"] == 2 and record["exchanged_bytes"] == summary["exchanged_bytes"]


@pytest.mark.parametrize(("what", "rank"), [pytest.param("gradients", 0, marks=pytest.mark.long), ("parameters", 1)])
def test_a_member_that_is_killed_costs_no_bit(
    tmp_path: Path, undisturbed: dict[str, list[str]], what: str, rank: int
) -> None:
    config = trouble(rank, 11, "kill", tmp_path / "once")
    run = fit(tmp_path / "run", parallel=KEEP if what == "parameters" else hy.AllReduce(), config=config)
    assert digests(run) == undisturbed[what]
    lines = journal(run.directory)
    (lost,) = [line for line in lines if isinstance(line, Lost)]
    assert "SIGKILL" in lost.reason
    first, second = [line.members for line in lines if isinstance(line, Formed)]
    assert first[rank] == lost.slot
    assert set(first) & set(second), "who is left keeps its process"
    assert len([line for line in lines if isinstance(line, Joined)]) == 3
    assert not [line for line in lines if isinstance(line, Failed)]
    assert not memory(tmp_path)


def test_a_member_that_is_killed_while_it_averages_costs_no_bit(tmp_path: Path) -> None:
    """Of the others' parameters some are averages by then, others not yet."""
    config: dict[str, Any] = {"lr": 0.05, "within": True}
    parallel = hy.LocalSGD(every=2)
    quiet = fit(tmp_path / "quiet", parallel=parallel, config=config, epochs=1)
    config |= {"rank": 1, "once": str(tmp_path / "once")}
    run = fit(tmp_path / "run", parallel=parallel, config=config, epochs=1)
    assert digests(run) == digests(quiet)
    (lost,) = [line for line in journal(run.directory) if isinstance(line, Lost)]
    assert "SIGKILL" in lost.reason
    assert not memory(tmp_path)


def test_the_error_of_any_member_is_the_one_that_is_shown(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed, match="the moon"):
        fit(tmp_path / "run", config=trouble(1, 7, "raise"))
    (failed,) = [line for line in journal(tmp_path / "run") if isinstance(line, Failed)]
    assert failed.fault == "user" and failed.slot == 1 and "the moon" in failed.trace


@pytest.mark.long
def test_a_driver_that_is_killed_costs_no_bit(tmp_path: Path, undisturbed: dict[str, list[str]]) -> None:
    config = trouble(1, 11, "driver SIGKILL", tmp_path / "once")
    body = (
        "from gang_jobs import network\nfrom hopyard.parallel import *\n"
        f"hy.fit(network, {config!r}, dataset(), epochs=2, engine=hy.Local(2, devices=None), parallel={KEEP!r}, "
        f"directory={str(tmp_path / 'run')!r})\n"
    )
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert gone(agents(tmp_path / "run"))
    with pytest.raises(hy.SpecError, match=r"gang of 2.* 'local' has 1"):
        hy.resume(tmp_path / "run", engine=hy.Local(1, devices=None))
    run = hy.resume(tmp_path / "run", engine=hy.Local(2, devices=None))
    assert digests(run) == undisturbed["parameters"]
    assert not alive(agents(tmp_path / "run"))


def test_another_number_of_workers_goes_on_from_what_was_trained(tmp_path: Path) -> None:
    """All-reduce gives what one worker does, up to rounding, so a run whose gang changes does too."""
    alone = fit(tmp_path / "alone", epochs=3, engine=hy.Inline(), parallel=hy.Hopper())
    first = fit(tmp_path / "run")
    with pytest.raises(hy.SpecError, match=r"gang of 3.* 'local' has 2"):
        hy.resume(first.directory, epochs=3, workers=3)
    run = hy.resume(first.directory, epochs=3, workers=1, engine=hy.Inline())
    assert run.best.history[3] == pytest.approx(alone.best.history[3], rel=1e-9)
    (resumed,) = [line for line in journal(run.directory) if isinstance(line, Resumed)]
    assert resumed.members == 1
    with pytest.raises(hy.SpecError, match="changed how many"):
        replay(run.directory)
    with pytest.raises(hy.SpecError, match=r"workers = 2: .* has ended \(completed\), and trains nothing more"):
        hy.resume(run.directory, workers=2)
    assert hy.resume(run.directory, workers=1).status == "completed"  # as it has


@pytest.mark.long
def test_a_member_that_gets_another_rank_takes_the_part_of_that_rank(tmp_path: Path) -> None:
    """Bug: it went on with its own optimizer, as it had the State of the trial already."""
    digests_of = {}
    for name, more in {"alone": {}, "killed": trouble(0, 3, "kill", tmp_path / "once")}.items():
        run = hy.select(
            network,
            None,
            dataset(),
            search=hy.Configs([{"lr": 0.05}, {**more, "lr": 1e-5}]),
            epochs=2,
            metric="val_loss",
            mode="min",
            stop=hy.ASHA(2, sync=True),  # the first trial waits while the second one trains
            engine=hy.Local(2, devices=None),
            parallel=KEEP,
            directory=tmp_path / name,
        )
        digests_of[name] = digests(run)
    assert digests_of["killed"] == digests_of["alone"]
    first, second = [line.members for line in journal(run.directory) if isinstance(line, Formed)]
    assert first[1] == second[0]


@pytest.mark.long
def test_a_search_on_gangs_with_a_worker_over(tmp_path: Path) -> None:
    run = hy.select(
        network,
        None,
        dataset(),
        search=hy.Configs([{"lr": 0.05}, {"lr": 0.01}]),
        epochs=2,
        metric="val_loss",
        mode="min",
        engine=hy.Local(3, devices=None),
        parallel=hy.Hopper(gang=2),
        directory=tmp_path / "run",
    )
    assert run.status == "completed"
    units = [line for line in journal(run.directory) if isinstance(line, Dispatch)]
    (formed,) = [line for line in journal(run.directory) if isinstance(line, Formed)]
    assert {line.slot for line in units if line.unit.kind == "train"} == {formed.slot}
    seconds = run.history().groupby("trial")["seconds"].sum()
    assert list(seconds) == pytest.approx([trial.seconds for trial in run.trials])  # of both members, where both train


class Scarce(hy.Local):
    """An engine that has no more workers than those it began with."""

    def open(self, launch: Any) -> Any:
        return ScarceProcesses(self, launch)


class ScarceProcesses(Processes):
    def start(self, slot: int) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if slot >= self._engine.workers:
                patch.setattr("hopyard.engines.local.AGENT", ("false",))
            super().start(slot)


@pytest.mark.cold
def test_a_gang_that_may_get_smaller_goes_on_without_a_lost_member(tmp_path: Path) -> None:
    alone = fit(tmp_path / "alone", engine=hy.Inline(), parallel=hy.Hopper())
    config = trouble(1, 11, "kill", tmp_path / "once")
    parallel = hy.AllReduce(2, min_workers=1)
    run = fit(tmp_path / "run", config=config, engine=Scarce(2, devices=None), parallel=parallel)
    assert run.status == "completed"
    assert run.best.history[2] == pytest.approx(alone.best.history[2], rel=1e-9)
    assert [line.members for line in journal(run.directory) if isinstance(line, Shrunk)] == [1]
    assert fit(tmp_path / "run", config=config, parallel=parallel, resume=True).status == "completed"
    with pytest.raises(hy.RunDirectoryError, match="with parallel="):
        fit(tmp_path / "run", 3, hy.AllReduce(3, min_workers=1), config, resume=True)
    with pytest.raises(hy.SpecError, match=r"min_workers= .*changed how many"):
        replay(run.directory)


def test_a_model_that_cannot_be_a_member_is_refused_before_any_unit(tmp_path: Path) -> None:
    engine = hy.Local(2, devices=None)
    with pytest.raises(hy.PreflightError, match=r"Linear .* gang"):
        hy.fit(
            linear, {"lr": 0.1}, dataset(), epochs=1, engine=engine, parallel=hy.AllReduce(), directory=tmp_path / "run"
        )


def test_one_process_is_not_a_gang() -> None:
    with pytest.raises(hy.SpecError, match=r"gang of 2.* 'inline' has 1"):
        hy.fit(linear, {"lr": 0.1}, dataset(), epochs=1, engine=hy.Inline(), parallel=hy.AllReduce(2))


@pytest.mark.spark
def test_executors_give_the_bits_of_local_processes(
    tmp_path: Path, spark: Any, undisturbed: dict[str, list[str]]
) -> None:
    config = trouble(1, 11, "kill", tmp_path / "once")
    run = fit(tmp_path / "run", parallel=KEEP, config=config, engine=hy.Spark(spark, workers=2))
    assert digests(run) == undisturbed["parameters"]
    assert len([line for line in journal(run.directory) if isinstance(line, Formed)]) == 2
