"""A saved model of format 1 opens and predicts the same, for ever.

A change that makes this fail breaks every saved model that is on a disk somewhere. Add a folder when the format grows;
never change an old one. (Until the first release they may be written anew: `python tests/driver/test_frozen.py`.)
`model-1` is a torch module behind a transform, with scaled numbers, categories, encoded labels and a buffer that the
file of weights lacks.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pytest

import hopyard as hy
from hopyard.driver.pickling import PYTHON

HERE = Path(__file__).parent / "frozen"
WRITTEN_BY = "3.11"
"""The Python whose pickles the folder has."""


def doubled(batch: Any) -> Any:
    """Drop rows and make a column."""
    batch = batch.filter(pc.greater(batch["a"], -1.5))
    return batch.append_column("twice", pc.multiply(batch["a"], 2.0))


def net(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
    import torch

    class Shifted(torch.nn.Linear):
        shift: torch.Tensor

        def __init__(self) -> None:
            super().__init__(ctx.inputs["inputs"][0][0], ctx.classes or 0)
            self.register_buffer("shift", torch.zeros(()), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                self.shift += 0.25
            return super().forward(x) + self.shift

    module = Shifted()
    optimizer = torch.optim.SGD(module.parameters(), lr=config["lr"])
    return hy.torch.Model(module, optimizer=optimizer, loss=torch.nn.functional.cross_entropy, batch_size=4)


def rows() -> pd.DataFrame:
    a = np.linspace(-2, 2, 16)
    kind = np.where(np.arange(16) % 3, "car", "van")
    return pd.DataFrame({"a": a, "kind": kind, "mood": np.where(a > 0, "good", "bad")})


def answers(model: Any) -> dict[str, Any]:
    """What a model says of the rows, as JSON has it; None for NaN."""
    outputs = model.predict(rows().drop(columns="mood")).astype(float)
    return {
        "predict": [[None if np.isnan(value) else value for value in row] for row in outputs.tolist()],
        "evaluate": model.evaluate(rows()),
        "classes": model.classes,
        "config": model.config,
        "epoch": model.epoch,
    }


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({}, marks=pytest.mark.skipif(PYTHON != WRITTEN_BY, reason="pickled functions are of one Python")),
        {"recipe": net, "transform": doubled},
    ],
    ids=["pickles", "given"],
)
def test_an_old_model_predicts_the_same(given: dict[str, Any]) -> None:
    found = answers(hy.load_model(HERE / "model-1", **given, trust=True))
    expected = json.loads((HERE / "model-1.json").read_text())
    outputs, as_before = (np.array(each.pop("predict"), float) for each in (found, expected))
    np.testing.assert_allclose(outputs, as_before, rtol=1e-6)  # other processors add in another order
    assert found.pop("evaluate") == pytest.approx(expected.pop("evaluate"))
    assert found == expected


def freeze(name: str) -> None:
    """Write a folder: a new one when the format grows; an old one anew only before the first release."""
    options: Any = {"features": ["twice", "kind"], "label": "mood", "encode": {"kind": "one-hot", "mood": "index"}}
    data = hy.Dataset.pandas(rows(), **options, standardize=["twice"], transform=doubled, partitions=2)
    with tempfile.TemporaryDirectory() as folder:
        trial = hy.fit(net, {"lr": 0.5}, data, epochs=2, engine=hy.Inline(), directory=Path(folder) / "run").best
        shutil.rmtree(HERE / name, ignore_errors=True)
        trial.save(HERE / name)
        (HERE / f"{name}.json").write_text(json.dumps(answers(trial), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    freeze("model-1")
