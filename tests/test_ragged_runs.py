"""Rows of any length through whole runs: a tokenizer, a net that takes means over its mask, and the model that comes
of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import hopyard as hy
from hopyard.driver.saved_model import predictor_of
from hopyard.errors import HopyardError, SpecError
from hopyard.frameworks.torch.gang import cut
from hopyard.spark.inference.loaded import predicted
from hopyard.spec import Batch
from hopyard.tracking.mlflow.model import signature
from jobs import digests

WORDS = ["the", "film", "was", "bad", "good", "awful", "great", "and", "long"]


def tokenizer(vocabulary: list[str]) -> Callable[[Any], Any]:
    """Return a transform that makes numbers of words: 1 for those that are not in the vocabulary."""
    numbers = {word: number for number, word in enumerate(vocabulary, 2)}

    def tokenize(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = [[numbers.get(word, 1) for word in text.split()] for text in batch["text"].to_pylist()]
        return batch.append_column("ids", pa.array(ids, pa.list_(pa.int64())))

    return tokenize


def reviews(rows: int = 80) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, length)) for length in rng.integers(1, 12, rows)]
    return pd.DataFrame({"text": texts, "fresh": [int("good" in text or "great" in text) for text in texts]})


def dataset(**more: Any) -> hy.Dataset:
    options = {"features": {"ids": "ids"}, "label": "fresh", "ragged": ["ids"], "partitions": 2, "validation": 0.2}
    return hy.Dataset.pandas(reviews(), transform=tokenizer(WORDS), **{**options, **more})


class Net(torch.nn.Module):
    def __init__(self, by_token: bool = False) -> None:
        super().__init__()
        self.embedding, self.out = torch.nn.Embedding(2 + len(WORDS), 8), torch.nn.Linear(8, 2)
        self.by_token = by_token

    def forward(self, ids: torch.Tensor, ids_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(ids)
        if self.by_token:
            return self.out(tokens)
        mean = (tokens * ids_mask[..., None]).sum(1) / ids_mask.sum(1, keepdim=True)
        return self.out(mean)


def recipe(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
    assert ctx.inputs == {"ids": ((None,), "int64"), "ids_mask": ((None,), "bool")}
    net = Net(config.get("by_token", False))
    loss = (lambda outputs, labels: outputs.mean()) if net.by_token else torch.nn.functional.cross_entropy
    return hy.torch.Model(net, torch.optim.Adam(net.parameters(), lr=0.05), loss, batch_size=config.get("size", 16))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> hy.Run:
    directory = tmp_path_factory.mktemp("runs") / "run"
    return hy.fit(recipe, {}, dataset(), epochs=3, engine=hy.Inline(), directory=directory)


def test_losses_are_those_of_rows_one_by_one(run: hy.Run) -> None:
    frame, net = reviews(), run.best.model()
    numbers = {word: number for number, word in enumerate(WORDS, 2)}
    losses = []
    with torch.no_grad():
        for text, label in zip(frame["text"], frame["fresh"], strict=True):
            ids = torch.tensor([[numbers[word] for word in text.split()]])
            outputs = net(ids, torch.ones_like(ids, dtype=torch.bool))
            losses.append(torch.nn.functional.cross_entropy(outputs, torch.tensor([label])).item())
    assert run.best.evaluate(frame)["loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert run.best.metrics["val_loss"] < 0.65


def test_pieces_of_a_batch_keep_their_padding() -> None:
    """As hy.AllReduce(accumulate=) cuts them."""
    torch.manual_seed(0)
    ids = np.array([[3, 4, 0], [5, 0, 0], [6, 7, 8]])
    batch = Batch({"ids": ids, "ids_mask": ids > 0}, None, None, 3)
    net = Net()

    def outputs(piece: Batch) -> Any:
        return net(**{name: torch.from_numpy(array) for name, array in piece.inputs.items()}).detach().numpy()

    np.testing.assert_allclose(np.concatenate([outputs(piece) for piece in cut(batch, 2)]), outputs(batch), atol=1e-6)


def test_a_saved_model_takes_text(run: hy.Run, tmp_path: Path) -> None:
    texts = pd.DataFrame({"text": ["good", "the film was awful and long", "a film of words that nobody knows"]})
    expected = run.best.predict(texts)
    saved = hy.load_model(run.best.save(tmp_path / "model"))
    np.testing.assert_array_equal(saved.predict(texts), expected)
    assert expected.shape == (3, 2) and expected[0].argmax() == 1
    alone = np.concatenate([saved.predict(texts[at : at + 1]) for at in range(3)])
    np.testing.assert_allclose(alone, expected, atol=1e-6)
    with pytest.raises(HopyardError, match=r"'ids': 1 of its rows are empty, .*row 1"):
        saved.predict(pd.DataFrame({"text": ["good", " "]}))
    with pytest.raises(SpecError, match="the model reads columns of ragged="):
        run.best.export(tmp_path / "model.onnx")


def test_workers_of_spark_leave_out_rows_without_tokens(run: hy.Run, tmp_path: Path) -> None:
    predictor = predictor_of(hy.load_model(run.best.save(tmp_path / "model")).files(), threads=1)
    batch = pa.RecordBatch.from_pydict({"text": ["good", " ", "the film was bad"]})
    whole = run.best.predict(batch.to_pandas()[::2])
    outputs, kept = predicted(predictor, batch, "skip")
    assert kept is not None and kept.tolist() == [True, False, True]
    np.testing.assert_allclose(outputs, whole, atol=1e-6)
    outputs, _ = predicted(predictor, batch[1:2], "keep")
    assert outputs.shape == (1, 2) and np.isnan(outputs).all()


def test_mlflow_has_no_signature_for_them() -> None:
    assert signature(dataset().prepare()) == []


def test_answers_by_token_have_no_one_shape(tmp_path: Path) -> None:
    data = dataset(validation=0.0)
    run = hy.fit(recipe, {"by_token": True, "size": 4}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")
    with pytest.raises(HopyardError, match=r"answers of shape \(\d+, 2\) a row for some batches .*padded"):
        run.best.predict(reviews())


@pytest.mark.long
def test_digests_do_not_depend_on_workers(run: hy.Run, tmp_path: Path) -> None:
    both = hy.fit(recipe, {}, dataset(), epochs=3, engine=hy.Local(workers=2, devices=None), directory=tmp_path / "run")
    assert digests(both) == digests(run)


@pytest.mark.long
def test_members_of_a_gang_learn_what_one_worker_learns(run: hy.Run, tmp_path: Path) -> None:
    """Each pads its own rows, in pieces of a batch; sums are added in another order."""
    gang = hy.AllReduce(2, accumulate=2)
    engine = hy.Local(workers=2, devices=None)
    both = hy.fit(recipe, {}, dataset(), epochs=3, engine=engine, parallel=gang, directory=tmp_path / "run")
    assert both.best.metrics["val_loss"] == pytest.approx(run.best.metrics["val_loss"], abs=1e-4)


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")  # Keras' own, of NumPy 2
def test_keras_has_one_width_a_partition(tmp_path: Path) -> None:
    def layers(config: dict[str, Any], ctx: hy.RecipeContext) -> Any:
        import keras

        ids, mask = (keras.Input(ctx.inputs[name][0], dtype=ctx.inputs[name][1], name=name) for name in ctx.inputs)
        tokens = keras.layers.Embedding(2 + len(WORDS), 8)(ids)
        mean = keras.layers.GlobalAveragePooling1D()(tokens, mask=mask)
        model = keras.Model([ids, mask], keras.layers.Dense(2)(mean))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(0.05), loss=loss)
        return model

    run = hy.fit(layers, {}, dataset(), epochs=3, engine=hy.Inline(), directory=tmp_path / "run")
    frame = reviews()
    alone = np.concatenate([run.best.predict(frame[at : at + 1]) for at in range(9)])
    np.testing.assert_allclose(run.best.predict(frame)[:9], alone, atol=1e-5)
    assert run.best.metrics["val_loss"] < 0.69
