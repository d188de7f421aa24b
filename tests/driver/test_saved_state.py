"""A saved model is the whole of what its State has, whatever place its model keeps values in."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import Phase, example, given, settings

import hopyard as hy
from hopyard.driver import saved_files
from hopyard.driver.saved_model import predictor_of
from hopyard.spark.inference.bundle import portable
from killed_writes import kills, lacks_room
from model_parts import BUFFERS, OTHERS, data, drawn, torch_net, trained

PARTS = [*BUFFERS, *OTHERS]
FIRST = ("hidden", "growing", "extra-tree", "loss")


def check(config: dict[str, Any], folder: Path) -> None:
    """Outputs, loss and metrics of the run's model, the saved one, and what Spark sends are equal, bit for bit."""
    run = trained(config, folder / "run")
    assert run.status == "completed"
    x, y = data(seed=1)
    saved = hy.load_model(run.best.save(folder / "model"))
    expected = run.best.predict(x)
    np.testing.assert_array_equal(saved.predict(x), expected)
    assert saved.evaluate({"inputs": x, "targets": y}) == run.best.evaluate({"inputs": x, "targets": y})
    for model in (run, saved, folder / "model"):
        np.testing.assert_array_equal(predictor_of(portable(model).files).predict(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("part", [pytest.param(part, marks=[pytest.mark.long] * (part not in FIRST)) for part in PARTS])
def test_each_part_of_a_state_comes_back(part: str, tmp_path: Path) -> None:
    check({"parts": [part]}, tmp_path)


SETTINGS = settings(max_examples=6, phases=[Phase.explicit, Phase.generate])  # a smaller example takes minutes to find


@pytest.mark.slow
@SETTINGS
@given(drawn())
@example({"parts": PARTS})
def test_any_model_comes_back(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(config, Path(folder))


@pytest.mark.campaign
@settings(SETTINGS, max_examples=1000)
@given(drawn())
def test_any_of_many_models_comes_back(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(config, Path(folder))


def test_a_model_that_does_not_come_back_is_refused(tmp_path: Path) -> None:
    run = trained({"parts": ["extra-drifts"]}, tmp_path / "run")
    with pytest.raises(hy.SpecError, match=r"differs .*State\['module'\]\['extra'\]"):
        run.best.save(tmp_path / "new" / "model")
    assert not (tmp_path / "new").exists()
    folder = trained({"parts": []}, tmp_path / "other").best.save(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(hy.SpecError, match="nothing was saved"):
        run.best.save(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


# ------------------------------------------------------------------------------------------------ killed and full


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[hy.Trial, hy.Trial]:
    """Models whose folders have different files."""
    folder = tmp_path_factory.mktemp("two")
    with_transform = hy.Dataset.numpy(*data(), validation=0, partitions=2, transform=same)
    new = hy.fit(
        torch_net, {"parts": ["hidden"]}, with_transform, epochs=1, engine=hy.Inline(), directory=folder / "new"
    )
    return trained({"parts": []}, folder / "old").best, new.best


def same(batch: Any) -> Any:
    return batch


@pytest.mark.long
@pytest.mark.parametrize("way", [1, -1], ids=["more files", "fewer files"])
def test_save_leaves_the_old_or_the_new_model_wherever_it_is_killed(two: Any, way: int, tmp_path: Path) -> None:
    old, new = two[::way]
    folder, x = tmp_path / "model", data(seed=1)[0]
    expected = [trial.predict(x) for trial in (old, new)]
    found = []
    old.save(folder)
    (folder / "README").write_text("mine")
    before = shutil.copytree(folder, tmp_path / "before")
    for point in kills(lambda: new.save(folder)):
        outputs = hy.load_model(folder).predict(x)
        found.append([np.array_equal(outputs, each) for each in expected])
        assert sorted(found[-1]) == [False, True], point
        assert portable(folder).files.keys() >= {"config.json", "model.safetensors", "recipe.pkl"}
        if len(found) % 2:  # half of them go on from what the kill left
            shutil.rmtree(folder)
            shutil.copytree(before, folder)
    assert len(found) > 35
    assert [True, False] in found and [False, True] in found
    for each, outputs in zip((old, new), expected, strict=True):
        each.save(folder)  # over what is left of a killed one
        np.testing.assert_array_equal(hy.load_model(folder).predict(x), outputs)
    files = {file.name for file in folder.iterdir()}
    assert files == {"README", "config.json", *hy.load_model(folder).files()}


@pytest.mark.long
def test_a_save_that_is_killed_does_not_hinder_the_next(two: Any, tmp_path: Path) -> None:
    old, new = two
    folder, x = tmp_path / "deep" / "model", data(seed=1)[0]
    for _ in kills(lambda: new.save(folder), every=5):
        if (folder / "config.json").exists():
            np.testing.assert_array_equal(hy.load_model(folder).predict(x), new.predict(x))
    np.testing.assert_array_equal(hy.load_model(old.save(folder)).predict(x), old.predict(x))


@pytest.mark.long
def test_a_full_disk_leaves_the_old_model(two: Any, tmp_path: Path) -> None:
    old, new = two
    folder, x = old.save(tmp_path / "model"), data(seed=1)[0]
    expected = old.predict(x)
    names = sorted(file.name for file in folder.iterdir())
    kept = []
    for report in lacks_room(lambda: new.save(folder)):
        outputs = hy.load_model(folder).predict(x)
        kept.append(np.array_equal(outputs, expected))
        if kept[-1]:
            assert "ResourceError" in report and "no room" in report
            assert sorted(file.name for file in folder.iterdir()) == names
        else:  # only a sync was left to do
            np.testing.assert_array_equal(outputs, new.predict(x))
            old.save(folder)
    assert kept.count(True) > 15 and kept.count(False) <= 2
    for report in lacks_room(lambda: new.save(tmp_path / "other" / "model")):
        if (tmp_path / "other").exists():
            np.testing.assert_array_equal(hy.load_model(tmp_path / "other" / "model").predict(x), new.predict(x))
            shutil.rmtree(tmp_path / "other")
        else:
            assert "ResourceError" in report


@pytest.mark.long
def test_a_model_that_is_saved_over_loads_all_the_time(two: Any, tmp_path: Path) -> None:
    folder, x = tmp_path / "model", data(seed=1)[0]
    expected = [trial.predict(x) for trial in two]
    two[0].save(folder)
    directories = [str(trial._models().directory) for trial in two]
    saves = [
        subprocess.Popen([sys.executable, "-c", SAVES, *pair, str(folder)])
        for pair in (directories, directories[::-1])  # two at a time
    ]
    loads = 0
    while any(process.poll() is None for process in saves):
        outputs = hy.load_model(folder).predict(x)
        assert any(np.array_equal(outputs, each) for each in expected)
        loads += 1
    assert [process.returncode for process in saves] == [0, 0]
    assert loads > 3
    assert not list(folder.glob(".part-*"))


def test_a_file_that_moves_while_it_is_looked_for_is_found(
    two: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a reader looked in the file's place before it was there, and beside it when it had left."""
    folder = two[0].save(tmp_path / "model")
    committed, opened, moved = threading.Event(), threading.Event(), threading.Event()
    move, read_bytes = saved_files._move, Path.read_bytes

    def move_later(*arguments: Any) -> None:
        committed.set()
        assert opened.wait(120)
        move(*arguments)
        moved.set()

    def read_before(self: Path) -> bytes:
        content = read_bytes(self)
        if self.name == saved_files.WEIGHTS and not opened.is_set():
            opened.set()
            assert moved.wait(120)
        return content

    monkeypatch.setattr(saved_files, "_move", move_later)
    saver = threading.Thread(target=lambda: two[1].save(folder))
    saver.start()
    assert committed.wait(120)
    monkeypatch.setattr(Path, "read_bytes", read_before)
    about, files = saved_files.read(folder)
    saver.join()
    assert blake3(files[saved_files.WEIGHTS]).hexdigest() == about.digests[saved_files.WEIGHTS]


SAVES = """
import sys
import hopyard as hy

trials = [hy.load(directory).best for directory in sys.argv[1:3]]
for number in range(8):
    trials[number % 2].save(sys.argv[3])
"""


def test_the_file_of_weights_is_for_everybody(tmp_path: Path) -> None:
    """By safetensors' own `load_model`, strictly; a file beside it has only what others cannot read."""
    from safetensors.torch import load_file, load_model

    parts = [part for part in PARTS if part not in ("growing", "none", "complex", "to-none") and "extra" not in part]
    run = trained({"parts": parts}, tmp_path / "run")
    folder = run.best.save(tmp_path / "model")
    module = torch_net({"parts": parts}).module
    load_model(module, folder / "model.safetensors")
    for name, value in run.best.model().state_dict().items():
        assert torch.equal(module.state_dict()[name], value), name
    assert "second.weight" not in load_file(folder / "model.safetensors")
    assert (folder / "state.safetensors").stat().st_size < (folder / "model.safetensors").stat().st_size


@pytest.mark.parametrize("parts", [[], ["persistent", "norm", "tied", "loss-class"]])
def test_there_is_no_second_file_without_need(parts: list[str], tmp_path: Path) -> None:
    folder = trained({"parts": parts}, tmp_path / "run").best.save(tmp_path / "model")
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors", "recipe.pkl"]
