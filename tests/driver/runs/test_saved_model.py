"""A model in a folder: saved, loaded, and equal."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
from jobs import CONFIGS, linear, select, table


def net(config: dict[str, Any]) -> Any:
    import torch

    layers = [torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Dropout(0.5)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 2))
    return hy.torch.Model(
        model,
        optimizer=torch.optim.Adam(model.parameters(), lr=config["lr"]),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": hy.torch.accuracy},
        batch_size=16,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> dict[str, hy.Run]:
    folder = tmp_path_factory.mktemp("saved")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        torch_run = select(folder / "torch", net, [{"lr": 0.03}, {"lr": 0.01}])
        return {"torch": torch_run, "array": select(folder / "array", configs=CONFIGS[:2])}


def one_cycle(config: dict[str, Any], ctx: hy.Context) -> Any:
    import torch

    assert ctx.rows == sum(ctx.partition_rows)
    module = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=config["lr"], momentum=0.9)
    steps = ctx.epochs * ctx.batches(16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=steps)
    loss = torch.nn.functional.cross_entropy
    return hy.torch.Model(module, optimizer, loss, scheduler=schedule, scheduler_every="batch", batch_size=16)


@pytest.mark.parametrize("engine", [hy.Inline(), hy.Local(workers=2, devices=None)], ids=["inline", "local"])
def test_a_schedule_over_the_whole_run_ends_with_its_last_step(tmp_path: Path, engine: Any) -> None:
    """OneCycleLR refuses one step more than it was told of."""
    from torch.optim.lr_scheduler import OneCycleLR

    run = select(tmp_path / "run", one_cycle, CONFIGS[:2], engine=engine)
    assert run.status == "completed"
    assert [record.model.reads_epochs for record in run.records if record.model] == [True, True]
    trainable = run.trials[0]._built("last").trainable
    assert isinstance(trainable.scheduler, OneCycleLR)
    assert trainable.scheduler.last_epoch == trainable.scheduler.total_steps
    x, _ = table(20, seed=9)
    module = hy.load_model(run.best.save(tmp_path / "model"))
    assert np.array_equal(run.best.predict(x).argmax(1), module(torch_of(x)).argmax(1).numpy())


def torch_of(x: Any) -> Any:
    import torch

    return torch.from_numpy(x)


def test_torch_predicts_and_evaluates_as_plain_torch(runs: dict[str, hy.Run]) -> None:
    import torch

    best = runs["torch"].best
    module = best.model()
    assert not module.training
    x, y = table(101, seed=9)  # a last batch of one row more
    with torch.no_grad():
        outputs = module(torch.from_numpy(x))
        loss = torch.nn.functional.cross_entropy(outputs, torch.from_numpy(y)).item()
    np.testing.assert_allclose(best.predict(x), outputs.numpy(), rtol=1e-5, atol=1e-6)
    found = best.evaluate(hy.Dataset.numpy(x, y))
    assert found["loss"] == pytest.approx(loss, rel=1e-5)
    assert found["accuracy"] == pytest.approx((outputs.argmax(1).numpy() == y).mean())


def test_a_torch_model_comes_back(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    import torch

    best = runs["torch"].best
    folder = best.save(tmp_path / "model")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors", "recipe.pkl"]
    about = json.loads((folder / "config.json").read_text())
    assert (about["trial"], about["config"], about["epoch"]) == (best.id, best.config, best.epoch)
    assert about["metrics"] == best.metrics
    x = torch.from_numpy(table(20, seed=9)[0])
    module = best.model()
    for loaded in (hy.load_model(folder), hy.load_model(folder, recipe=net)):
        assert not loaded.training
        with torch.no_grad():
            assert torch.equal(loaded(x), module(x))


def test_a_trainable_comes_back(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    best = runs["array"].best
    model = best.model("last")
    loaded = hy.load_model(best.save(tmp_path / "model", "last"))
    assert loaded.steps == model.steps == 24
    np.testing.assert_array_equal(loaded.weights, model.weights)
    np.testing.assert_array_equal(loaded.weights_velocity, model.weights_velocity)


def test_the_last_model_of_a_completed_trial_has_its_epoch(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    trial = runs["array"].trials[0]
    about = json.loads((trial.save(tmp_path / "model", "last") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (1, trial.history[1])


def interrupted_inside_an_epoch(config: dict[str, Any]) -> Any:
    from hopyard.core.runs.events import CODEC
    from hopyard.core.runs.machine import fold
    from hopyard.store.journal import read
    from jobs import Troubled

    class Interrupting(Troubled):
        def train(self, batch: Any) -> Any:
            time.sleep(0.005)
            trial = fold(read(Path(self._config["journal"]), CODEC)).trials.get(0)
            if trial is not None and trial.history and trial.durable_step % 4:
                raise KeyboardInterrupt
            return super().train(batch)

    return Interrupting(config)


def test_weights_inside_an_epoch_have_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: they had the epoch and the metrics of the last one that was complete."""
    monkeypatch.setattr("hopyard.agent.runs.checkpoints.PAUSE", 0.0)
    config = {"lr": 0.1, "journal": str(tmp_path / "run" / "journal.jsonl")}
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupted_inside_an_epoch, [config], epochs=200, parallel=hy.Hopper(group="off"))
    (trial,) = hy.load(tmp_path / "run").trials
    steps = trial.model("last").steps
    assert steps % 12
    about = json.loads((trial.save(tmp_path / "last", "last") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (None, {})
    assert hy.load_model(tmp_path / "last").steps == steps
    about = json.loads((trial.save(tmp_path / "best") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (trial.epoch, trial.history[trial.epoch])


def test_the_pickle_is_left_alone_when_a_recipe_is_given(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    folder = runs["array"].best.save(tmp_path / "model")
    (folder / "recipe.pkl").write_bytes(b"not a pickle")
    assert hy.load_model(folder, recipe=linear).steps
    with pytest.raises(hy.RunDirectoryError, match="the recipe does not load"):
        hy.load_model(folder)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(hy.RunDirectoryError, match=r"no config\.json here"):
        hy.load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model": "bert"}')
    with pytest.raises(hy.RunDirectoryError, match=r"not written by run\.best\.save"):
        hy.load_model(tmp_path)


def test_what_is_not_a_saved_model_is_not_replaced(tmp_path: Path) -> None:
    run = select(tmp_path / "run")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text('{"mine": true}')
    odd = tmp_path / "odd"
    odd.mkdir()
    (odd / "recipe.pkl").write_bytes(b"mine")
    for folder in (tmp_path / "run", theirs, odd):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(hy.RunDirectoryError, match="give another folder"):
            run.best.save(folder)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    saved = run.best.save(tmp_path / "saved")
    hy.load_model(run.best.save(saved))  # a saved model may be replaced
