"""A model in a folder: saved, loaded, and equal."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

import hopyard as hy
from hopyard.core.runs.machine import fold
from hopyard.spark.inference.bundle import portable
from jobs import CONFIGS, journal, linear, select, table


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


def one_cycle(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
    import torch

    assert ctx.rows == sum(ctx.partition_rows)
    module = torch.nn.Linear(6, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=config["lr"], momentum=0.9)
    steps = ctx.epochs * ctx.batches(16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=config["lr"], total_steps=steps)
    loss = torch.nn.functional.cross_entropy
    return hy.torch.Model(module, optimizer, loss, scheduler=schedule, scheduler_every="batch", batch_size=16)


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [hy.Inline(), pytest.param(hy.Local(workers=2, devices=None), marks=pytest.mark.long)],
    ids=["inline", "local"],
)
def test_a_schedule_over_the_whole_run_ends_with_its_last_step(tmp_path: Path, engine: Any) -> None:
    """OneCycleLR refuses one step more than it was told of."""
    from torch.optim.lr_scheduler import OneCycleLR

    run = select(tmp_path / "run", one_cycle, CONFIGS[:2], engine=engine)
    assert run.status == "completed"
    told = [trial.model for trial in fold(journal(run.directory)).trials.values()]
    assert [model.reads_epochs for model in told if model] == [True, True]
    trainable = run.trials[0]._predictor("last").built.trainable
    assert isinstance(trainable.scheduler, OneCycleLR)
    assert trainable.scheduler.last_epoch == trainable.scheduler.total_steps
    x, _ = table(20, seed=9)
    module = hy.load_model(run.best.save(tmp_path / "model")).model()
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
        assert not loaded.model().training
        with torch.no_grad():
            assert torch.equal(loaded.model()(x), module(x))
        np.testing.assert_array_equal(loaded.predict(x.numpy()), best.predict(x.numpy()))
        assert (loaded.trial, loaded.config, loaded.epoch) == (best.id, best.config, best.epoch)
        assert loaded.metrics == best.metrics and loaded.classes is None


def test_a_trainable_comes_back(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    best = runs["array"].best
    model = best.model("last")
    loaded = hy.load_model(best.save(tmp_path / "model", "last")).model()
    assert loaded.steps == model.steps == 24
    np.testing.assert_array_equal(loaded.weights, model.weights)
    np.testing.assert_array_equal(loaded.weights_velocity, model.weights_velocity)


def test_the_last_model_of_a_completed_trial_has_its_epoch(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    trial = runs["array"].trials[0]
    about = json.loads((trial.save(tmp_path / "model", "last") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (2, trial.history[2])


def interrupted_inside_an_epoch(config: dict[str, Any]) -> Any:
    from hopyard.core.runs.codec import CODEC
    from hopyard.core.runs.machine import fold
    from hopyard.store.journal import read
    from jobs import Troubled

    class Interrupting(Troubled):
        def train(self, batch: Any) -> Any:
            time.sleep(0.005)
            trial = fold(read(Path(self._config["journal"]), CODEC)).trials.get(0)
            best_is_stored = trial is not None and trial.best is not None and trial.durable_step > 4 * (trial.best + 1)
            if trial is not None and best_is_stored and trial.durable_step % 4:
                raise KeyboardInterrupt
            return super().train(batch)

    return Interrupting(config)


def test_weights_inside_an_epoch_have_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: they had the epoch and the metrics of the last one that was complete."""
    monkeypatch.setattr("hopyard.agent.runs.state_writer.PAUSE", 0.0)
    config = {"lr": 0.1, "journal": str(tmp_path / "run" / "journal.jsonl")}
    with pytest.raises(KeyboardInterrupt):
        select(tmp_path / "run", interrupted_inside_an_epoch, [config], epochs=200, parallel=hy.Hopper(group="off"))
    (trial,) = hy.load(tmp_path / "run").trials
    steps = trial.model("last").steps
    assert steps % 12
    about = json.loads((trial.save(tmp_path / "last", "last") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (None, {})
    assert hy.load_model(tmp_path / "last").model().steps == steps
    about = json.loads((trial.save(tmp_path / "best") / "config.json").read_text())
    assert (about["epoch"], about["metrics"]) == (trial.epoch, trial.history[trial.epoch])  # type: ignore[index]


def test_a_row_without_its_first_axis_is_refused(runs: dict[str, hy.Run]) -> None:
    best, row = runs["torch"].best, table(1, seed=9)[0][0]
    for one in (row, {"inputs": row}, list(row)):
        with pytest.raises(
            hy.DataError, match=r"must have shape \(6,\), .* array of shape \(1, 6\), such as x\[None\]"
        ):
            best.predict(one)
    assert best.predict(row[None]).shape == (1, 2)


def test_the_pickle_is_left_alone_when_a_recipe_is_given(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    folder = runs["array"].best.save(tmp_path / "model")
    (folder / "recipe.pkl").write_bytes(b"not a pickle")
    assert hy.load_model(folder, recipe=linear).model().steps
    with pytest.raises(hy.RunDirectoryError, match=r"recipe\.pkl: changed since"):
        hy.load_model(folder)


def test_a_recipe_that_raises_is_reported_with_its_error(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    folder = runs["array"].best.save(tmp_path / "model")
    with pytest.raises(hy.SpecError, match=r"^recipe: TypeError: int") as told:
        hy.load_model(folder, recipe=int)
    assert isinstance(told.value.__cause__, TypeError)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(hy.RunDirectoryError, match=r"no config\.json here"):
        hy.load_model(tmp_path)
    (tmp_path / "config.json").write_text('{"model": "bert"}')
    with pytest.raises(hy.RunDirectoryError, match=r"not written by run\.best\.save"):
        hy.load_model(tmp_path)


def test_a_run_and_a_saved_model_are_distinguished(runs: dict[str, hy.Run], tmp_path: Path) -> None:
    with pytest.raises(hy.RunDirectoryError, match=r"no config\.json here; .* a run directory: hopyard\.load\("):
        hy.load_model(runs["array"].directory)
    folder = runs["array"].best.save(tmp_path / "model")
    with pytest.raises(hy.RunDirectoryError, match=r"hopyard\.load_model\("):
        hy.load(folder)


def test_a_path_of_rows_is_read(moody: hy.Run, tmp_path: Path) -> None:
    rows = frame(60, seed=1)
    for number in range(2):
        rows[30 * number : 30 * number + 30].to_parquet(tmp_path / f"{number}.parquet", index=False)
    for model in (moody.best, hy.load_model(moody.best.save(tmp_path / "model"))):
        for path in (tmp_path / "?.parquet", str(tmp_path / "?.parquet")):
            np.testing.assert_array_equal(model.predict(path), model.predict(rows))
        assert model.evaluate(tmp_path / "*.parquet") == model.evaluate(rows)
    with pytest.raises(hy.DataError, match="no Parquet file matches"):
        moody.best.predict(tmp_path / "none.parquet")


def test_a_directory_that_is_not_a_model_is_not_replaced(tmp_path: Path) -> None:
    run = select(tmp_path / "run")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "config.json").write_text('{"mine": true}')
    odd, third = tmp_path / "odd", tmp_path / "third"
    for folder, name in ((odd, "recipe.pkl"), (third, "transform.pkl")):
        folder.mkdir()
        (folder / name).write_bytes(b"mine")
    for folder in (tmp_path / "run", theirs, odd, third):
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(hy.RunDirectoryError, match="give another folder"):
            run.best.save(folder)
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    saved = run.best.save(tmp_path / "saved")
    hy.load_model(run.best.save(saved))  # a saved model may be replaced


# ------------------------------------------------------------------------------------------------ tables


def twice(batch: Any) -> Any:
    """Drops rows, sorts the others, and makes a column."""
    batch = batch.filter(pc.greater(batch["a"], -0.5)).sort_by("a")
    return batch.append_column("twice", pc.multiply(batch["a"], 2.0))


def frame(rows: int = 200, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    a, kind = rng.standard_normal(rows), rng.choice(["car", "van"], rows)
    return pd.DataFrame({"a": a, "kind": kind, "mood": np.where(a + (kind == "van") > 0.5, "good", "bad")})


def moods(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
    from hopyard.frameworks.linear import Linear

    return Linear(ctx.inputs["inputs"][0][0], ctx.classes or 0, lr=0.1, batch_size=16)


OPTIONS: Any = {"features": ["twice", "kind"], "label": "mood", "encode": {"kind": "one-hot", "mood": "index"}}


@pytest.fixture
def moody(tmp_path: Path) -> hy.Run:
    data = hy.Dataset.pandas(frame(), **OPTIONS, standardize=["twice"], transform=twice, partitions=2)
    return hy.fit(moods, {}, data, epochs=2, engine=hy.Inline(), directory=tmp_path / "run")


def test_the_folder_alone_predicts_on_a_table(moody: hy.Run, tmp_path: Path) -> None:
    best, rows = moody.best, frame(60, seed=3)
    expected, metrics, classes = best.predict(rows), best.evaluate(rows), best.classes
    assert classes == ["bad", "good"] and np.isnan(expected).any()
    folder = best.save(tmp_path / "model").rename(tmp_path / "elsewhere")
    shutil.rmtree(moody.directory)
    saved = hy.load_model(folder)
    np.testing.assert_array_equal(saved.predict(rows.drop(columns="mood")), expected)
    assert saved.evaluate(rows) == metrics
    assert saved.classes == classes
    assert repr(saved) == f"<SavedModel {folder}: trial 0, epoch 2, {{}}>"
    again = saved.files()
    assert set(again) == {path.name for path in folder.iterdir()}


def test_changes_by_the_user_do_not_reach_the_model(moody: hy.Run, tmp_path: Path) -> None:
    """Bug: `classes` were the model's own, and sorted for print they swapped its labels."""
    run, rows = moody, frame(60, seed=3)
    saved = hy.load_model(run.best.save(tmp_path / "model"))
    expected, files = saved.evaluate(rows), saved.files()
    for model in (saved, run.best):
        model.classes.sort(reverse=True)  # type: ignore[union-attr]
        model.metrics.clear()
        model.config["sizes"] = [1]
        assert model.classes == ["bad", "good"]
        assert model.evaluate(rows) == expected
    assert hy.load_model(tmp_path / "model").config == {}
    assert saved.files() == files


def test_a_transform_is_not_opened_where_a_recipe_is_given(moody: hy.Run, tmp_path: Path) -> None:
    folder, rows = moody.best.save(tmp_path / "model"), frame(60, seed=3)
    (folder / "transform.pkl").chmod(0o666)
    with pytest.raises(hy.RunDirectoryError, match=r"transform\.pkl: all users"):
        hy.load_model(folder)
    assert hy.load_model(folder, trust=True).model().steps
    (folder / "transform.pkl").write_bytes(b"not a pickle")
    saved = hy.load_model(folder, recipe=moods)
    assert saved.model().steps
    for attempt in (saved.predict, saved.evaluate):
        with pytest.raises(hy.RunDirectoryError, match=r"recipe= was given: give hy\.load_model\(…, transform=…\) too"):
            attempt(rows)
    given = hy.load_model(folder, recipe=moods, transform=twice)
    np.testing.assert_array_equal(given.predict(rows), moody.best.predict(rows))
    with pytest.raises(hy.SpecError, match=r"transform must be .*, got 3"):
        hy.load_model(folder, transform=3)  # type: ignore[arg-type]


def test_a_saved_model_without_a_transform_leaves_none_of_another(moody: hy.Run, tmp_path: Path) -> None:
    folder = moody.best.save(tmp_path / "model")
    assert (folder / "transform.pkl").stat().st_mode & 0o777 == 0o600
    select(tmp_path / "other", configs=CONFIGS[:1]).best.save(folder)
    assert not (folder / "transform.pkl").exists()
    assert hy.load_model(folder).predict(table(5)[0]).shape == (5, 2)


def test_folders_of_other_versions(moody: hy.Run, tmp_path: Path) -> None:
    folder = moody.best.save(tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    assert about["format"] == 1
    (folder / "config.json").write_bytes(msgspec.json.encode({**about, "format": 2}))
    with pytest.raises(hy.RunDirectoryError, match=r"version 2, .*reads version 1: upgrade it"):
        hy.load_model(folder)


@pytest.mark.parametrize("name", ["transform.pkl", "model.safetensors"])
def test_a_folder_that_is_not_whole(moody: hy.Run, tmp_path: Path, name: str) -> None:
    """It would predict from rows that did not go through the transform, or with other weights."""
    file = moody.best.save(tmp_path / "model") / name
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(hy.RunDirectoryError, match=f"{name}: changed since"):
        hy.load_model(file.parent)
    file.unlink()
    with pytest.raises(hy.RunDirectoryError, match=f"{name}: No such file"):
        hy.load_model(file.parent)
    with pytest.raises(hy.RunDirectoryError, match=f"{name}: No such file"):
        portable(file.parent, "best", False)  # what hy.spark.predict sends
    file.write_bytes(content)
    file.chmod(0o600)
    assert len(hy.load_model(file.parent).predict(frame(9)))
    from hopyard.frameworks.linear import Linear

    with pytest.raises(hy.RunDirectoryError, match=r"weights do not fit"):
        hy.load_model(file.parent, recipe=lambda config: Linear(2, 9, lr=0.1, batch_size=4))
    with pytest.raises(hy.RunDirectoryError, match=r"no config\.json here"):
        hy.load_model(file)
