"""Losses of `Model`: pieces of a batch, losses over tokens, and losses that a module has itself."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hopyard as hy
from gang_threads import trained
from hopyard.data.columns import Columns
from hopyard.errors import SpecError
from hopyard.frameworks.torch.metrics import accuracy
from hopyard.frameworks.torch.model import Model
from hopyard.frameworks.tree import capture
from hopyard.spec import Batch, Gang
from hopyard.store.tree import encode
from rows import Rows, rows

NONE = -100
"""A place that is no token, as for `ignore_index` of cross entropy."""


def bits(model: Model) -> bytes:
    return bytes(encode(capture(model)))


def close(one: Model, other: Model) -> bool:
    pairs = zip(one.module.parameters(), other.module.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9) for a, b in pairs)


def totals(sums: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Metric → (mean, what it is the mean of) over all partitions and members."""
    names = sums[0].keys()
    counts = {name: sum(each[name][1] for each in sums) for name in names}
    return {name: (sum(each[name][0] for each in sums) / counts[name], counts[name]) for name in names}


# ---------------------------------------------------------------- pieces

LOSSES: dict[str, Any] = {
    "mean": F.cross_entropy,
    "rows": nn.CrossEntropyLoss(reduction="none"),
    "sum": lambda outputs, targets: (F.cross_entropy(outputs, targets, reduction="sum"), len(targets)),
}


@pytest.mark.parametrize("pieces", [2, 3, 40])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_of_pieces_is_that_of_the_whole_batch(loss: str, pieces: int) -> None:
    """The partition ends with a batch of 2 rows, and 40 pieces are more than a batch has rows."""

    def run(accumulate: int) -> tuple[Model, Any]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 5)).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        model = Model(
            *(net, optimizer, LOSSES[loss], {"accuracy": accuracy}),
            scheduler=schedule,
            scheduler_every="batch",
            clip_norm=0.5,
            accumulate=accumulate,
        )
        feed = rows(3)
        feed.inputs = feed.inputs.astype(np.float64)
        if loss == "rows":
            feed.weights = np.random.default_rng(0).uniform(0, 2, 50).astype(np.float32)
            feed.weights[:9] = 0  # whole pieces count for nothing, also the first
        return model, model.train_partition(feed)

    (whole, sums), (cut, others) = run(1), run(pieces)
    assert close(whole, cut)
    assert whole.scheduler.last_epoch == cut.scheduler.last_epoch == 4
    assert others["loss"] == pytest.approx(sums["loss"], rel=1e-6)
    assert others["accuracy"] == pytest.approx(sums["accuracy"], rel=1e-6)


def test_pieces_of_a_gang_are_cut_further() -> None:
    """Of 12 rows each member takes 6, in 2 pieces, which the model cuts into 3 of one row each."""
    calls: list[int] = []

    def build() -> Model:
        net = nn.Linear(5, 3).double()
        net.register_forward_hook(lambda module, inputs, output: calls.append(len(output)))
        return Model(net, torch.optim.SGD(net.parameters(), lr=0.1), F.cross_entropy, accumulate=3)

    data = [Columns(np.ones((24, 5)), np.zeros(24, np.int64), None, 24)]
    trained(build, data, 12, Gang(2, accumulate=2))
    assert calls == [1] * 24
    calls.clear()
    trained(build, data, 12, Gang(1, accumulate=2))
    assert calls == [2] * 12


def test_sparse_gradients_of_pieces() -> None:
    def run(accumulate: int) -> Model:
        torch.manual_seed(0)
        net = nn.EmbeddingBag(7, 3, sparse=True)
        model = Model(net, torch.optim.SGD(net.parameters(), lr=0.5), F.cross_entropy, accumulate=accumulate)
        ids = np.random.default_rng(0).integers(0, 7, (6, 4))
        model.train(Batch(ids, np.arange(6) % 3, None, 6))
        return model

    assert close(run(1), run(4))


# ---------------------------------------------------------------- losses over tokens


class Tagger(nn.Module):
    """A class of 3 for each token of a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(11, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.words(ids))).transpose(1, 2)


def per_token(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return F.cross_entropy(outputs, targets, reduction="sum"), (targets != NONE).sum()


def tagger(**more: Any) -> Model:
    net = Tagger().double()
    more.setdefault("loss", per_token)
    return Model(net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9), metrics={"right": accuracy}, **more)


def sentences(*lengths: int) -> Columns:
    """Rows of so many tokens, padded to the longest."""
    rng = np.random.default_rng(len(lengths))
    shape = len(lengths), max(lengths)
    ids, tags = rng.integers(0, 11, shape), rng.integers(0, 3, shape)
    tags[np.arange(shape[1]) >= np.array(lengths)[:, None]] = NONE
    return Columns(ids, tags, None, shape[0])


UNEVEN = [sentences(9, 1, 1, 7, 2, 1, 8, 3, 1, 1, 9), sentences(1, 5, 1, 2, 2, 0, 9)]


@pytest.mark.parametrize("pieces", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2])
def test_gradients_and_epochs_count_tokens_however_they_are_cut(size: int, pieces: int) -> None:
    ((alone, sums),) = trained(tagger, UNEVEN, 4)
    assert totals(sums)["loss"][1] == sum(int((part.targets != NONE).sum()) for part in UNEVEN) == 63
    assert totals(sums)["right"][1] == 18
    members = trained(lambda: tagger(accumulate=pieces), UNEVEN, 4, Gang(size))
    for member, _ in members:
        assert close(alone, member)
    both = totals([each for _, of_member in members for each in of_member])
    for name, (mean, count) in totals(sums).items():
        assert both[name] == (pytest.approx(mean, rel=1e-6), count)


def test_a_mean_over_tokens_counts_by_rows() -> None:
    """What a loss over tokens is for: this one depends on how a batch is cut."""
    whole, cut = tagger(loss=F.cross_entropy), tagger(loss=F.cross_entropy, accumulate=2)
    for model in (whole, cut):
        model.train(Batch(UNEVEN[0].inputs, UNEVEN[0].targets, None, 11))
    assert all(bool(p.isfinite().all()) for p in cut.module.parameters()) and not close(whole, cut)


@pytest.mark.parametrize("size", [2, 3, 18])
def test_the_loss_of_an_epoch_does_not_depend_on_the_batch_size(size: int) -> None:
    model = tagger()
    ids, tags = (np.concatenate([getattr(part, name) for part in UNEVEN]) for name in ("inputs", "targets"))
    total, count = model.evaluate_partition(Rows(ids, tags, size))["loss"]
    expected = F.cross_entropy(model.module(torch.from_numpy(ids)).detach(), torch.from_numpy(tags), ignore_index=NONE)
    assert count == 63 and isinstance(total, float) and total / count == pytest.approx(float(expected), rel=1e-6)


def test_rows_without_tokens_take_no_step() -> None:
    model = tagger()
    model.train(Batch(UNEVEN[0].inputs, UNEVEN[0].targets, None, 11))  # else momentum is 0
    before = bits(model)
    sums = model.train(Batch(np.ones((3, 5), np.int64), np.full((3, 5), NONE), None, 3))
    assert bits(model) == before
    assert sums["loss"] == (0.0, 0.0) and sums["right"][1] == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda outputs: (outputs.sum(),), r"gave \(tensor"),
        (lambda outputs: (outputs.sum(), -1), "number >= 0"),
        (lambda outputs: (outputs.sum(), torch.tensor(float("nan"))), "number >= 0"),
        (lambda outputs: (outputs.sum(), torch.ones(2)), "number >= 0"),
        (lambda outputs: (outputs, 3), "without axes"),
        (lambda outputs: (3.0, 3), "without axes"),
    ],
)
def test_what_is_no_sum_over_tokens(given: Callable[[torch.Tensor], Any], said: str) -> None:
    model = tagger(loss=lambda outputs, targets: given(outputs))
    with pytest.raises(SpecError, match=rf"\(sum, how many\).*{said}"):
        model.train(Batch(UNEVEN[0].inputs, UNEVEN[0].targets, None, 11))


def test_rows_with_weights_have_no_loss_over_tokens() -> None:
    with pytest.raises(SpecError, match="weights"):
        tagger().train(Batch(UNEVEN[0].inputs, UNEVEN[0].targets, np.ones(11, np.float32), 11))


def test_preflight_tries_a_loss_over_tokens() -> None:
    """Labels of the wrong kind are found as for any other loss."""
    batch = Batch(UNEVEN[0].inputs, UNEVEN[0].targets, None, 11)
    assert tagger().loss_fault(batch, "tags") == ""
    batch.targets = batch.targets.astype(np.float64)
    assert "class numbers (int64)" in tagger().loss_fault(batch, "tags")


# ---------------------------------------------------------------- the module's own loss


@dataclass
class Answer:
    loss: torch.Tensor | None
    logits: torch.Tensor


class DictAnswer(OrderedDict[str, Any]):
    """As `transformers.utils.ModelOutput`: a dict whose items are attributes too."""

    def __init__(self, loss: torch.Tensor | None, logits: torch.Tensor) -> None:
        super().__init__(logits=logits, **({} if loss is None else {"loss": loss}))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Classifier(nn.Module):
    """As a model of transformers for one label a row."""

    def __init__(self, answer: Any = Answer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.out = nn.Linear(20, 5)
        self.answer = answer

    def forward(self, features: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.out(features)
        return self.answer(None if labels is None else F.cross_entropy(logits, labels), logits)


def classifier(net: nn.Module, loss: Any = "model", **more: Any) -> Model:
    return Model(net, torch.optim.Adam(net.parameters(), lr=0.01), loss, {"accuracy": accuracy}, **more)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("answer", [Answer, DictAnswer])
def test_the_loss_of_the_module_is_that_of_its_logits(answer: Any, named: bool) -> None:
    def feed(seed: int) -> Any:
        made = rows(seed)
        made.inputs = {"features": made.inputs} if named else made.inputs
        return made

    own = classifier(Classifier(answer), accumulate=2)
    plain = classifier(
        Classifier(answer), lambda outputs, targets: F.cross_entropy(outputs.logits, targets), accumulate=2
    )
    plain.metrics = {"accuracy": lambda outputs, targets: accuracy(outputs["logits"], targets)}
    if answer is Answer:  # a dataclass is no dict of tensors
        plain.metrics, own.metrics = {}, {}
    assert own.train_partition(feed(1)) == plain.train_partition(feed(1))
    assert bits(own) == bits(plain)
    assert own.evaluate_partition(feed(2)) == plain.evaluate_partition(feed(2))
    batch = next(iter(feed(3)))
    expected = own.module.out(torch.from_numpy(next(iter(rows(3))).inputs)).detach()  # type: ignore[operator]
    assert np.array_equal(own.predict(batch), expected.numpy())
    assert own.label_fault(batch, 0, 4) == "" and "label 7 has none" in own.label_fault(batch, 0, 7)


X = np.random.default_rng(0).normal(size=(40, 20)).astype(np.float32)


@pytest.mark.parametrize(
    ("net", "options", "said"),
    [
        (lambda: nn.Linear(20, 5), {"y": np.arange(40) % 5}, r"labels=.*Linear\.forward"),
        (Classifier, {"y": np.ones((40, 3), np.int64)}, r"shape \(20, 3\).*loss over tokens.*\(sum, how many\)"),
        (Classifier, {}, "one label a row, got None"),
        (Classifier, {"y": np.arange(40) % 5, "weight": np.ones(40)}, "rows have weights"),
        (lambda: Classifier(lambda loss, logits: (loss, logits)), {"y": np.arange(40) % 5}, "loss and logits"),
    ],
    ids=["no labels=", "tokens", "no label", "weights", "a tuple"],
)
def test_preflight_refuses_what_the_loss_of_a_module_cannot_do(
    net: Callable[[], nn.Module], options: dict[str, Any], said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = hy.Dataset.numpy(X, **options, partitions=2)

    def recipe(config: Any) -> Model:
        return classifier(net())

    with pytest.raises(hy.PreflightError) as raised:
        hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline())
    (fault,) = raised.value.faults
    assert re.search(said, fault), fault
