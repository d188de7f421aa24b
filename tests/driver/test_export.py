"""Models of torch in formats that run without their code, and the encoding of their rows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hopyard as hy
from exported import encoded, onnx_outputs, program_outputs, require_equal
from hopyard.errors import RunDirectoryError
from jobs import select

pytestmark = pytest.mark.slow

ROWS = 64
TABLE: dict[str, list[Any]] = {
    "age": [30.0, 41.5, None, 63.0] * 16,
    "kids": [0, 2, 1, 3] * 16,
    "city": ["bonn", "oslo", "bonn", "rome"] * 16,
    "plan": [7, 7, None, 5] * 16,
    "image": [[1.0, 2.0], [3.0, 4.5], [0.0, 1.0], [2.0, 2.0]] * 16,
    "late": ["no", "yes", "no", "yes"] * 16,
}


def model(module: Any, **more: Any) -> Any:
    import torch

    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    return hy.torch.Model(module, optimizer, torch.nn.functional.cross_entropy, batch_size=16, **more)


def mlp(config: dict[str, Any]) -> Any:
    from torch import nn

    return model(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)))


def cnn(config: dict[str, Any]) -> Any:
    from torch import nn

    block = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return model(nn.Sequential(*block, nn.Linear(36, 2)))


def lstm(config: dict[str, Any]) -> Any:
    from torch import nn

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = nn.LSTM(3, 8, num_layers=2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x: Any) -> Any:
            return self.head(self.cells(x)[0][:, -1])

    return model(Recurrent())


def of_table(config: dict[str, Any]) -> Any:
    """Of several inputs, one of which is a number of an embedding, and with two outputs."""
    import torch
    from torch import nn

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plans = nn.Embedding(4, 3)
            self.head = nn.Linear(10, 2)

        def forward(self, plan: Any, rest: Any) -> Any:
            logits = self.head(torch.cat([self.plans(plan), rest], 1))
            return {"logits": logits, "sum": rest.sum(1)}

    def loss(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs["logits"], targets)

    module = Both()
    return hy.torch.Model(module, torch.optim.Adam(module.parameters(), lr=0.01), loss, batch_size=16)


def halved(config: dict[str, Any]) -> Any:
    """Its outputs depend on the number of rows, which no exported model can know."""
    from torch import nn

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            return self.head(x) if float(x.sum()) > -1e9 else x

    return model(Halved())


def deadly(config: dict[str, Any]) -> Any:
    """Kills a process that traces it where the environment says so."""
    from torch import nn

    class Deadly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 2)

        def forward(self, x: Any) -> Any:
            if os.environ.get("DEADLY"):
                os.kill(os.getpid(), signal.SIGKILL)
            return self.head(x)

    return model(Deadly())


SHAPES: dict[Callable[..., Any], tuple[int, ...]] = {mlp: (6,), cnn: (1, 8, 8), lstm: (5, 3)}


def trained(folder: Path, recipe: Callable[..., Any], shape: tuple[int, ...] = (6,), **more: Any) -> hy.Run:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((ROWS, *shape)).astype(np.float32), rng.integers(0, 2, ROWS)
    data = hy.Dataset.numpy(x, y, validation=0.25, partitions=2)
    return select(folder, recipe, [{}], data=data, epochs=1, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> hy.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        return trained(tmp_path_factory.mktemp("export") / "run", mlp)


@pytest.mark.parametrize("ending", [".onnx", ".pt2"])
@pytest.mark.parametrize(
    "recipe",
    [mlp, pytest.param(cnn, marks=pytest.mark.long), pytest.param(lstm, marks=pytest.mark.long)],
    ids=lambda recipe: recipe.__name__,
)
def test_an_exported_module_predicts_as_the_trial(
    recipe: Callable[..., Any], ending: str, run: hy.Run, tmp_path: Path
) -> None:
    if ending == ".onnx":
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
    if recipe is not mlp:
        run = trained(tmp_path / "run", recipe, SHAPES[recipe])
    path = run.best.export(tmp_path / "out" / f"model{ending}")
    assert sorted(file.name for file in path.parent.iterdir()) == [path.name, f"{path.name}.json"]
    require_equal(run, [path], SHAPES[recipe])


@pytest.fixture(scope="module")
def of_tables(tmp_path_factory: pytest.TempPathFactory, data_cache: Path) -> hy.Run:
    data = hy.Dataset.arrow(
        pa.table(TABLE),
        features={"plan": "plan", "rest": ["age", "kids", "city", "image"]},
        label="late",
        encode={"city": "one-hot", "plan": hy.Categories("index", min_frequency=20), "late": "index"},
        impute={"age": "mean", "plan": "most_frequent"},
        standardize=["age", "image"],
        partitions=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopyard.data.dataset.default_root", lambda: data_cache / "hopyard" / "data")
        folder = tmp_path_factory.mktemp("tables") / "run"
        return select(folder, of_table, [{}], data=data, epochs=1, metric="loss")


def test_its_encoding_gives_the_inputs_of_the_trial(of_tables: hy.Run, tmp_path: Path) -> None:
    path = of_tables.best.export(tmp_path / "model.pt2")
    about = tmp_path / "model.pt2.json"
    fresh = {**TABLE, "city": ["rome"] * ROWS, "plan": [5, 7, 9, None] * 16}
    inputs = encoded(about, fresh)
    columns = of_tables.best._predictor("best").encode(pa.table(fresh)).inputs
    assert inputs.keys() == columns.keys()
    for name, array in columns.items():
        assert inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(inputs[name], array)
    facts = json.loads(about.read_text())
    types = {column["name"]: column["type"] for field in facts["inputs"].values() for column in field["columns"]}
    assert types == {"plan": "int64", "age": "float64", "kids": "int64", "city": "string", "image": "float64"}
    assert facts["labels"] == {"targets": ["no", "yes"]} and not facts["transform"]
    expected = of_tables.best.predict(pa.table(fresh))
    for output, array in zip(program_outputs(path, inputs), expected.values(), strict=True):
        np.testing.assert_allclose(output, array, rtol=1e-5, atol=1e-5)


@pytest.mark.long
def test_several_inputs_and_outputs_have_their_names_in_onnx(of_tables: hy.Run, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    ort = pytest.importorskip("onnxruntime")
    path = of_tables.best.export(tmp_path / "model.onnx")
    session = ort.InferenceSession(path)
    assert [(each.name, each.shape) for each in session.get_inputs()] == [("plan", ["batch"]), ("rest", ["batch", 7])]
    assert [each.name for each in session.get_outputs()] == ["logits", "sum"]
    outputs = onnx_outputs(path, encoded(tmp_path / "model.onnx.json", TABLE))
    expected = of_tables.best.predict(pa.table(TABLE))
    for output, array in zip(outputs, expected.values(), strict=True):
        np.testing.assert_allclose(output, array, rtol=1e-5, atol=1e-5)


def test_a_saved_model_is_exported_from_its_folder(run: hy.Run, tmp_path: Path) -> None:
    saved = hy.load_model(run.best.save(tmp_path / "best"))
    require_equal(run, [saved.export(tmp_path / "model.pt2")], (6,))
    x = np.ones((3, 6), np.float32)
    np.testing.assert_array_equal(saved.predict(x), run.best.predict(x))


def test_a_transform_is_named_but_not_exported(tmp_path: Path) -> None:
    def same(batch: Any) -> Any:
        return pa.RecordBatch.from_pydict({name: batch.column(name).to_pylist() for name in batch.schema.names})

    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.standard_normal(ROWS), "y": rng.integers(0, 2, ROWS)})
    data = hy.Dataset.arrow(table, features=["a"], label="y", partitions=2, transform=same)

    def recipe(config: dict[str, Any]) -> Any:
        from torch import nn

        return model(nn.Linear(1, 2))

    run = select(tmp_path / "run", recipe, [{}], data=data, epochs=1, metric="loss")
    run.best.export(tmp_path / "model.pt2")
    assert json.loads((tmp_path / "model.pt2.json").read_text())["transform"] is True
    saved = hy.load_model(run.best.save(tmp_path / "best"), recipe=recipe)
    with pytest.raises(RunDirectoryError, match=r"transform\.pkl"):
        saved.export(tmp_path / "other.pt2")


@pytest.mark.parametrize("there", ["model.pt2", "model.pt2.json"])
def test_what_is_at_the_path_stays(run: hy.Run, tmp_path: Path, there: str) -> None:
    (tmp_path / there).write_text("mine")
    with pytest.raises(hy.SpecError, match=there):
        run.best.export(tmp_path / "model.pt2")
    assert [file.name for file in tmp_path.iterdir()] == [there] and (tmp_path / there).read_text() == "mine"


@pytest.mark.parametrize("name", ["model.keras", "model.pt", "model", "saved.pt2/"])
def test_other_formats_are_refused_by_name(run: hy.Run, tmp_path: Path, name: str) -> None:
    with pytest.raises(hy.SpecError, match=r"\.onnx, \.pt2"):
        run.best.export(f"{tmp_path}/{name}")
    assert not list(tmp_path.iterdir())


def test_a_trainable_of_the_users_own_is_refused(tmp_path: Path) -> None:
    run = select(tmp_path / "run", configs=[{"lr": 0.1}], epochs=1)
    with pytest.raises(hy.SpecError, match="Linear"):
        run.best.export(tmp_path / "model.onnx")


def test_what_torch_cannot_trace_leaves_nothing(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", halved)
    (tmp_path / "out").mkdir()
    with pytest.raises(hy.SpecError, match="GuardOnDataDependent") as caught:
        run.best.export(tmp_path / "out" / "model.pt2")
    assert caught.value.__cause__ is not None
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.long
def test_one_that_is_killed_leaves_no_model(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", deadly)
    path = tmp_path / "out" / "model.pt2"
    code = "import sys, hopyard; hopyard.load(sys.argv[1], trust=True).best.export(sys.argv[2])"
    env = {**os.environ, "DEADLY": "1"}
    done = subprocess.run([sys.executable, "-c", code, run.directory, path], env=env, timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    assert all(file.name.startswith(".part-") for file in path.parent.iterdir())
    require_equal(run, [run.best.export(path)], (6,))


@pytest.mark.parametrize("ending", [".pt2", pytest.param(".onnx", marks=pytest.mark.long)])
def test_a_full_disk_is_named_and_keeps_nothing(run: hy.Run, ending: str, small_disk: Callable[[str], Path]) -> None:
    if ending == ".onnx":
        pytest.importorskip("onnxscript")
    disk = small_disk("4k")
    with pytest.raises(hy.ResourceError, match="no room"):
        run.best.export(disk / f"model{ending}")
    assert not list(disk.iterdir())


def test_a_name_that_no_file_can_have_is_refused(run: hy.Run, tmp_path: Path) -> None:
    with pytest.raises(hy.SpecError, match="File name too long"):
        run.best.export(tmp_path / f"{'x' * 300}.pt2")


def test_a_missing_package_is_named(run: hy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(hy.UsageError, match=r"onnx.*hopyard\[export\]"):
        run.best.export(tmp_path / "model.onnx")
