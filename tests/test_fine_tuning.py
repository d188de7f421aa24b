"""Fine-tuning: what is frozen stays in each worker, what is trained hops, and the bits are the same wherever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Done, Failed
from hopyard.driver.runs.replay import replay
from jobs import dataset, digests, driver, journal, script, select, states, table
from lora_jobs import LORA, distilled, encoder, lora, weights

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return weights(tmp_path_factory.mktemp("base") / "base.pt")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, data_cache: Path, base: str) -> hy.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return select(tmp_path_factory.mktemp("lora") / "run", lora, configs(base))


def configs(base: str, **more: Any) -> list[dict[str, Any]]:
    """Of adapters; the last trial has the trouble."""
    return [{**each, "base": base, **(more if each is LORA[-1] else {})} for each in LORA]


@pytest.mark.parametrize("kill", [False, pytest.param(True, marks=pytest.mark.long)], ids=["", "kill"])
def test_two_workers_give_the_same_bits(tmp_path: Path, base: str, undisturbed: hy.Run, kill: bool) -> None:
    trouble = configs(base, at=5, do="kill", once=str(tmp_path / "once")) if kill else configs(base)
    parallel = hy.Hopper(group="off")
    run = select(tmp_path / "run", lora, trouble, engine=hy.Local(2, devices=None), parallel=parallel)
    assert digests(run) == digests(undisturbed)
    assert len([line for line in journal(run.directory) if isinstance(line, Lost)]) == kill
    whole = sum(tensor.numel() for tensor in encoder({"base": base}).parameters()) * 4
    hops = [line.hop_bytes for line in journal(run.directory) if isinstance(line, Done) and line.hop_bytes]
    assert hops and max(hops) < whole
    refs = states(run.directory).refs()
    assert max(len(states(run.directory).get(ref)) for ref in refs) < whole


def test_a_resume_goes_on_with_the_base_that_the_recipe_builds(tmp_path: Path, base: str, undisturbed: hy.Run) -> None:
    select(tmp_path / "run", lora, configs(base), epochs=1)
    assert digests(hy.resume(tmp_path / "run", epochs=2)) == digests(undisturbed)


@pytest.mark.long
def test_a_driver_that_is_killed_costs_no_bit(tmp_path: Path, base: str, undisturbed: hy.Run) -> None:
    trouble = configs(base, at=5, do="driver SIGKILL", once=str(tmp_path / "once"))
    body = (
        "from jobs import select\nfrom lora_jobs import lora\n"
        f"select({str(tmp_path / 'run')!r}, lora, {trouble!r}, engine=hy.Local(2, devices=None))\n"
    )
    process = driver([str(script(tmp_path / "driver.py", body))], tmp_path)
    process.communicate(timeout=120)
    assert process.returncode == -9
    assert digests(hy.resume(tmp_path / "run")) == digests(undisturbed)


@pytest.mark.long
def test_a_replay_gives_the_same_digests(undisturbed: hy.Run) -> None:
    result = replay(undisturbed.directory)
    assert not result.different and result.states


def test_another_file_of_weights_is_found_wherever_a_state_is_loaded(tmp_path: Path) -> None:
    base = weights(tmp_path / "base.pt")
    run = select(tmp_path / "run", lora, configs(base)[:1], epochs=1)
    x, _ = table(20, seed=9)
    outputs = run.best.predict(x)
    whole = run.best.save(tmp_path / "whole")
    without = run.best.save(tmp_path / "without", base=False)
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, without)]
    assert sizes[1] < sizes[0] / 3
    for folder in (whole, without):
        np.testing.assert_array_equal(hy.load_model(folder).predict(x), outputs)

    weights(tmp_path / "base.pt", seed=1)
    with pytest.raises(hy.SpecError, match="frozen parameters of the State"):
        run.best.model()
    with pytest.raises(hy.RunDirectoryError, match="frozen parameters of the State"):
        hy.load_model(without)
    np.testing.assert_array_equal(hy.load_model(whole).predict(x), outputs)
    with pytest.raises(hy.RunFailed, match="frozen parameters of the State"):
        hy.resume(run.directory, epochs=2)
    (failed,) = [line for line in journal(run.directory) if isinstance(line, Failed)]
    assert failed.fault == "user"


def test_a_saved_adapter_needs_a_framework_that_can_leave_the_base_out(tmp_path: Path) -> None:
    run = select(tmp_path / "run", epochs=1)
    with pytest.raises(hy.SpecError, match=r"base=False.*torch only.*Trainable"):
        run.best.save(tmp_path / "model", base=False)
    with pytest.raises(hy.SpecError, match="base must be True or False"):
        run.best.save(tmp_path / "model", base=1)  # type: ignore[call-overload]
    assert not (tmp_path / "model").exists()


def test_a_teacher_that_follows_is_in_the_state_where_it_is_declared(tmp_path: Path) -> None:
    with pytest.raises(hy.PreflightError, match=r"'teacher\.weight'.*state="):
        select(tmp_path / "refused", distilled, [{"lr": 0.1}])
    declared = [{"lr": lr, "state": ["teacher.*"]} for lr in (0.1, 0.01)]
    runs = [
        select(tmp_path / group, distilled, declared, parallel=hy.Hopper(group=group), epochs=1)
        for group in ("off", "auto")
    ]
    assert digests(runs[0]) == digests(runs[1])
    module = runs[0].best.model()
    assert not np.array_equal(module.teacher.weight.numpy(), module.net.weight.detach().numpy())


@pytest.mark.long
@pytest.mark.parametrize("parallel", [hy.LocalSGD(every=2), hy.AllReduce()], ids=["local", "reduce"])
def test_a_gang_sends_what_is_trained(tmp_path: Path, base: str, parallel: Any) -> None:
    engine, config = hy.Local(2, devices=None), configs(base)[0]
    run = hy.fit(lora, config, dataset(), epochs=1, engine=engine, parallel=parallel, directory=tmp_path / "run")
    assert run.status == "completed"
    whole = sum(tensor.numel() for tensor in encoder({"base": base}).parameters()) * 4
    exchanges = 4 * 6  # at most: partitions and steps, or rounds, in each
    assert 0 < run.summary()["exchanged_bytes"] / 2 < exchanges * whole / 2
