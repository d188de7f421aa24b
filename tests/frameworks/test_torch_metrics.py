"""Metrics against scikit-learn, and sums against arithmetic."""

from __future__ import annotations

import math
import pickle
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.frameworks.torch import metrics as torch_metrics
from hopyard.frameworks.torch.metrics import Tally, TopK
from hopyard.frameworks.torch.model import AUC, F1, accuracy

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def sk() -> Any:
    """The reference; imported late, as it takes seconds of whoever only collects tests."""
    return pytest.importorskip("sklearn.metrics")


def two_classes(count: int = 2000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits, targets, weights) of shape (count,)."""
    targets = RNG.integers(0, 2, count)
    logits = RNG.normal(size=count) + targets
    return torch.tensor(logits), torch.tensor(targets), torch.tensor(RNG.uniform(0, 3, count), dtype=torch.float32)


NETS = {"normal": (1.0, 1.0), "very confident": (30.0, 40.0), "nearly constant": (0.05, 0.05)}
"""Standard deviation of the logits of a class, and what the mean of class 1 has more than that of class 0."""


def judged(auc: AUC, total: Any) -> tuple[float, float]:
    """Return the value, and the share of the pairs that are ties; see that more than 1 % of them are warned of."""
    negative, positive = total.reshape(2, -1)
    ties = float((negative * positive).sum() / (negative.sum() * positive.sum()))
    with pytest.warns(RuntimeWarning, match="ties") if ties > 0.01 else nullcontext():
        return auc.result(total), ties


@pytest.mark.parametrize("share", [0.0003, pytest.param(0.03, marks=pytest.mark.long), 0.5])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("output", ["logits", "probabilities", "two logits", "two probabilities"])
def test_auc_is_that_of_scikit_learn(sk: Any, share: float, net: str, output: str) -> None:
    """Bug: bins of equal width over the probability made 0.60 of 0.82 where a class is rare or the net confident."""
    rng, (spread, gap) = np.random.default_rng(1), NETS[net]
    targets = rng.random(300_000) < share
    logits = torch.tensor(rng.normal(math.log(share / (1 - share)) + gap * targets, spread), dtype=torch.float32)
    pairs = torch.stack([torch.zeros_like(logits), logits], 1)
    outputs = {
        "logits": logits,
        "probabilities": logits.sigmoid(),
        "two logits": pairs,
        "two probabilities": pairs.softmax(1),
    }[output]
    auc = AUC(from_logits="logits" in output)
    found, ties = judged(auc, auc.update(outputs, torch.tensor(targets)))
    expected = sk.roc_auc_score(targets, logits.sigmoid() if output == "probabilities" else logits)
    assert found == pytest.approx(expected, abs=0.005)
    assert ties < 0.01 or net == "nearly constant" or (net == "very confident" and "probabilities" in output)


@pytest.mark.parametrize("bins", [2, 7, 64, 8192])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("from_logits", [False, True])
def test_auc_is_wrong_by_half_of_the_ties_at_most(sk: Any, bins: int, weighted: bool, from_logits: bool) -> None:
    logits, targets, weights = two_classes()
    auc = AUC(bins, from_logits=from_logits)
    outputs = logits if from_logits else logits.sigmoid()
    found, ties = judged(auc, auc.update(outputs, targets, weights if weighted else None))
    weight = weights.double().numpy() if weighted else None
    assert found == pytest.approx(sk.roc_auc_score(targets, logits, sample_weight=weight), abs=ties / 2 + 1e-12)


def test_auc_takes_three_shapes_and_adds_up() -> None:
    logits, targets, _ = two_classes()
    auc = AUC()
    whole = auc.update(logits, targets)
    assert np.array_equal(whole, auc.update(logits[:, None], targets[:, None].float()))
    assert np.array_equal(whole, auc.update(torch.stack([logits * 0, logits], 1), targets))
    for size in (1, 3, 64, 700):  # vectors of a processor, and what remains, must not differ
        parts = [auc.update(*both) for both in zip(logits.split(size), targets.split(size), strict=True)]
        assert np.array_equal(whole, sum(parts))
    assert whole.shape == (2 * 8192,)
    with pytest.raises(SpecError, match=r"\(2000, 3\)"):
        auc.update(torch.zeros(2000, 3), targets)


def test_auc_at_its_ends() -> None:
    auc = AUC()
    ends = torch.tensor([-math.inf, math.inf, 800.0, -800.0])
    assert auc.result(auc.update(ends, torch.tensor([0, 1, 1, 0]))) == 1.0
    assert math.isnan(auc.result(auc.update(torch.zeros(3), torch.ones(3))))
    assert judged(auc, auc.update(torch.zeros(4), torch.tensor([0, 1, 0, 1]))) == (0.5, 1.0)
    with pytest.raises(SpecError, match=r"AUC\(bins=\) must be .*, got 1"):
        AUC(1)


def test_auc_of_probabilities_at_their_ends() -> None:
    auc = AUC(from_logits=False)
    ends = torch.tensor([0.0, 1e-12, 0.5, 1 - 2**-24, 1.0])
    for at in range(1, 5):
        assert auc.result(auc.update(ends, torch.arange(5) >= at)) == 1.0
    assert judged(auc, auc.update(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1, 0, 0]))) == (0.75, 0.5)
    target = torch.tensor([1])
    assert np.array_equal(auc.update(torch.tensor([-0.0]), target), auc.update(torch.tensor([0.0]), target))
    with pytest.raises(SpecError, match=r"from_logits=False.* got 1\.5"):
        auc.update(torch.tensor([0.5, 1.5]), torch.tensor([0, 1]))


@pytest.mark.slow
@pytest.mark.long
def test_ties_of_an_epoch_are_in_the_report(tmp_path: Path) -> None:
    def recipe(config: Any) -> Any:
        net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.Flatten(0))
        torch.nn.init.zeros_(net[0].weight)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return hy.torch.Model(net, optimizer, loss, batch_size=20, metrics={"auc": AUC()})

    x = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    data = hy.Dataset.numpy(x, (x[:, 0] > 0).astype(np.float32), partitions=2, validation=0.2)
    run = hy.fit(recipe, {}, data, epochs=1, engine=hy.Local(workers=1), directory=tmp_path / "run")
    assert run.best.metrics["val_auc"] == 0.5
    assert "RuntimeWarning: AUC(): 100.0% of the pairs" in run.report()


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 2.0])])
@pytest.mark.parametrize("label", [0, 1])
def test_outputs_that_are_nan_have_no_score(weights: Any, label: int) -> None:
    """Bug: argmax takes NaN for class 0, AUC and F1 took it for a low probability."""
    nan, targets = math.nan, torch.tensor([1, label, 0])
    for outputs in (torch.tensor([2.0, nan, -1.0]), torch.tensor([[0.0, 2.0], [1.0, nan], [1.0, 0.0]])):
        assert accuracy(outputs, targets).tolist() == pytest.approx([1.0, nan, 1.0], nan_ok=True)
        for metric in (AUC(), F1()):
            made = metric.update(outputs, targets, weights)
            whole = metric.update(torch.tensor([2.0, -1.0]), torch.tensor([1, 0]))
            assert math.isnan(metric.result(made)) and math.isnan(metric.result(made + whole))
            assert metric.result(whole) == 1.0
    many = torch.tensor([[0.0, 1.0, 2.0], [nan, 0.0, 1.0]])
    assert accuracy(many, torch.tensor([2, label])).tolist() == pytest.approx([1.0, nan], nan_ok=True)
    assert accuracy(many, many.nan_to_num()).tolist() == pytest.approx([1.0, nan], nan_ok=True)
    assert math.isnan(F1(classes=3).result(F1(classes=3).update(many, torch.tensor([2, label]))))
    places = torch.zeros(2, 3, 4)
    places[1, 2, 3] = nan
    assert accuracy(places, torch.zeros(2, 4)).tolist() == pytest.approx([1.0, nan], nan_ok=True)


@pytest.mark.parametrize("weighted", [False, True])
def test_f1_is_that_of_scikit_learn(sk: Any, weighted: bool) -> None:
    logits, targets, weights = two_classes()
    weight = weights if weighted else None
    sample = weights.double().numpy() if weighted else None
    f1 = F1()
    wanted = sk.f1_score(targets, logits > 0, sample_weight=sample)
    assert f1.result(f1.update(logits, targets, weight)) == pytest.approx(wanted, abs=1e-12)
    outputs, labels = torch.randn(500, 4), torch.tensor(RNG.integers(0, 4, 500))
    outputs[:, 3] = -100  # never predicted
    many = F1(classes=4)
    wanted = sk.f1_score(labels, outputs.argmax(1), average="macro")
    assert many.result(many.update(outputs, labels)) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(SpecError):
        F1(classes=1)


def test_accuracy() -> None:
    outputs = torch.tensor([[1.0, 2.0, 0.0], [3.0, 2.0, 0.0], [0.0, 1.0, 5.0]])
    assert accuracy(outputs, torch.tensor([1, 1, 2])).tolist() == [True, False, True]
    assert accuracy(outputs, torch.tensor([[1], [1], [2]])).tolist() == [True, False, True]
    assert accuracy(outputs, torch.eye(3)[[1, 1, 2]]).tolist() == [True, False, True]
    assert accuracy(torch.tensor([0.5, -0.5, 2.0]), torch.tensor([1, 1, 0])).tolist() == [True, False, False]
    assert accuracy(torch.tensor([[0.5], [-0.5]]), torch.tensor([[1.0], [0.0]])).tolist() == [True, True]
    image = torch.zeros(2, 3, 4, 4)
    image[:, 1] = 1
    labels = torch.ones(2, 4, 4, dtype=torch.long)
    labels[1, :2] = 0
    assert accuracy(image, labels).tolist() == [1.0, 0.5]


def tally(metrics: dict[str, Any], sizes: list[int], weighted: bool = False) -> tuple[Any, Any, Any, Any]:
    made = Tally(metrics)
    outputs, targets = torch.randn(sum(sizes), 3), torch.randint(0, 3, (sum(sizes),))
    weights = torch.rand(sum(sizes)) if weighted else None
    at = 0
    for size in sizes:
        cut = slice(at, at + size)
        at += size
        weight = None if weights is None else weights[cut]
        rows = float(size) if weight is None else float(weight.double().sum())
        target = targets[cut].clone()
        made.add(torch.tensor(float(size)), rows, rows, outputs[cut], target, weight)
        target.fill_(99)  # the feed uses its buffer again
    return made.sums(), outputs, targets, weights


def test_sums_weigh_by_rows() -> None:
    sums, outputs, targets, _ = tally({"accuracy": accuracy}, [10, 10, 3])
    assert sums["loss"] == (10 * 10 + 10 * 10 + 3 * 3, 23.0)
    assert sums["accuracy"] == (float((outputs.argmax(1) == targets).sum()), 23.0)
    sums, outputs, targets, weights = tally({"accuracy": accuracy, "f1": F1(classes=3)}, [10, 4], weighted=True)
    right = (outputs.argmax(1) == targets).double()
    assert sums["accuracy"] == (pytest.approx(float((right * weights).sum())), pytest.approx(float(weights.sum())))
    assert isinstance(sums["f1"][0], list) and len(sums["f1"][0]) == 9


def test_no_batches_give_zero() -> None:
    assert Tally({"accuracy": accuracy}).sums() == {"loss": (0.0, 0.0)}


def test_chunks_are_bounded_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(len(outputs))
        return outputs.sum(1)

    torch.manual_seed(0)
    whole = tally({"m": counted}, [8] * 10)[0]
    assert seen == [80]
    seen.clear()
    monkeypatch.setattr(torch_metrics, "CHUNK_BYTES", 3 * 8 * (3 * 4 + 8))
    torch.manual_seed(0)
    parts = tally({"m": counted}, [8] * 10)[0]
    assert seen == [24, 24, 24, 8]
    assert parts["m"][0] == pytest.approx(whole["m"][0])


def test_outputs_that_cannot_be_joined_are_counted_apart() -> None:
    made = Tally({"m": lambda outputs, targets: outputs["x"].flatten(1).sum(1)})
    for width in (3, 3, 5, 5, 4):
        made.add(torch.tensor(0.0), 2.0, 2.0, {"x": torch.ones(2, width), "aside": torch.tensor(1.0)}, (None,), None)
    assert made.sums()["m"] == (2 * (3 + 3 + 5 + 5 + 4), 10.0)
    made = Tally({"m": lambda outputs, targets: outputs[0].sum(1) + targets["t"]})
    for width in (3, 3, 5):
        made.add(torch.tensor(0.0), 2.0, 2.0, (torch.ones(2, width), [torch.ones(2)]), {"t": torch.ones(2)}, None)
    assert made.sums()["m"] == (2 * (3 + 3 + 5) + 6, 6.0)


@pytest.mark.parametrize("value", [None, np.array(["x"] * 8), ["x"] * 8], ids=["None", "text", "a list of text"])
def test_a_metric_of_no_numbers_is_named(value: Any) -> None:
    with pytest.raises(SpecError, match="'odd' must give a tensor"):
        tally({"odd": lambda outputs, targets: value}, [8])
    update = SimpleNamespace(update=lambda outputs, targets: value, result=float)
    with pytest.raises(SpecError, match="'odd': its update"):
        tally({"odd": update}, [8])


def test_wrong_metrics_are_named() -> None:
    with pytest.raises(SpecError, match=r"'mean' .* 1 for 8 rows \(2 batches joined\)"):
        tally({"mean": lambda outputs, targets: outputs.mean()}, [5, 3])

    class Unweighted:
        def update(self, outputs: Any, targets: Any) -> Any:
            return [len(outputs), 1]

        def result(self, total: Any) -> float:
            return float(total[0])

    assert tally({"u": Unweighted()}, [5, 3])[0]["u"] == ([8.0, 1.0], 8.0)
    with pytest.raises(SpecError, match="'u': the rows have weights"):
        tally({"u": Unweighted()}, [5, 3], weighted=True)


@pytest.mark.parametrize("metric", [AUC, F1])
def test_a_metric_of_one_output_among_several(metric: Any) -> None:
    logits, targets, weights = two_classes()
    alone = metric().update(logits, targets, weights)
    outputs, labels = {"late": logits, "delay": logits * 3}, {"late": targets, "delay": targets * 1.5}
    assert np.array_equal(metric(output="late").update(outputs, labels, weights), alone)
    assert np.array_equal(metric(output="late").update(outputs, targets, weights), alone)
    assert np.array_equal(metric(output=0, label="late").update((logits, logits * 3), labels, weights), alone)
    assert np.array_equal(metric(label="late").update(logits, labels, weights), alone)
    with pytest.raises(SpecError, match=r"2 outputs.* output='late', output='delay'"):
        metric().update(outputs, labels)
    with pytest.raises(SpecError, match=r"the data has 2 labels, and label=None names none: choose label='late'"):
        metric(output=1).update((logits, logits), labels)
    with pytest.raises(SpecError, match="output='late', but"):
        metric(output="late").update(logits, targets)


def test_metrics_of_several_outputs_over_a_partition(sk: Any) -> None:
    logits, targets, _ = two_classes(64)
    tally = Tally({"f1": F1(output="late"), "auc": AUC(output="late")})
    for start in range(0, 64, 16):
        cut = slice(start, start + 16)
        outputs = {"late": logits[cut], "delay": torch.zeros(16, 3)}
        tally.add(torch.tensor(1.0), 16.0, 16.0, outputs, {"late": targets[cut], "delay": torch.zeros(16)}, None)
    sums = tally.sums()
    assert F1().result(np.array(sums["f1"][0])) == pytest.approx(sk.f1_score(targets, logits > 0))
    assert sums["auc"][0] == AUC().update(logits, targets).tolist()


@pytest.mark.parametrize(
    ("metric", "text"),
    [
        (AUC(64, output="late"), "AUC(output='late', bins=64)"),
        (AUC(from_logits=False), "AUC(from_logits=False)"),
        (F1(), "F1()"),
        (TopK(3), "TopK(k=3)"),
    ],
)
def test_a_metric_is_shown_by_what_differs_from_its_defaults(metric: AUC | F1 | TopK, text: str) -> None:
    assert repr(metric) == text
    assert pickle.loads(pickle.dumps(metric)) == metric == eval(text)


@pytest.mark.parametrize("k", [1, 2, 5, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_top_k_is_that_of_scikit_learn(sk: Any, k: int, weighted: bool) -> None:
    outputs, targets = torch.tensor(RNG.normal(size=(500, 7))), torch.tensor(RNG.integers(0, 7, 500))
    weights = torch.tensor(RNG.uniform(0, 3, 500), dtype=torch.float32)
    weight = weights.double() if weighted else torch.ones(500, dtype=torch.float64)
    found = float((TopK(k)(outputs, targets) * weight).sum() / weight.sum())
    expected = 1.0 if k == 7 else sk.top_k_accuracy_score(targets, outputs, k=k, sample_weight=weight.numpy())
    assert found == pytest.approx(expected, abs=1e-12)


def test_top_1_is_accuracy_also_of_equal_outputs_and_nan() -> None:
    outputs = torch.tensor(RNG.integers(0, 3, (300, 4))).double()
    outputs[7, 2] = math.nan
    targets = torch.tensor(RNG.integers(0, 4, 300))
    for each in (targets, targets[:, None], torch.nn.functional.one_hot(targets, 4).double()):
        np.testing.assert_array_equal(TopK(1)(outputs, each), accuracy(outputs, each))
    assert torch.equal(TopK(4)(outputs, targets).isnan().nonzero(), torch.tensor([[7]]))
    assert (
        TopK(2, output="kind")({"kind": outputs, "late": targets}, targets).nansum()
        > accuracy(outputs, targets).nansum()
    )


def test_top_k_of_what_it_is_not_of() -> None:
    with pytest.raises(SpecError, match=r"TopK\(k=\) must be .*, got 0"):
        TopK(0)
    for shape in ((5,), (5, 2), (5, 3, 3)):
        with pytest.raises(SpecError, match=r"TopK\(k=3\) .*, got \(5,"):
            TopK(3)(torch.zeros(shape), torch.zeros(5))


def test_f1_of_more_classes_than_there_are_outputs() -> None:
    with pytest.raises(SpecError, match=r"F1\(classes=5.*: outputs must have shape \(rows, 5\), got \(8, 3\)"):
        F1(classes=5).update(torch.zeros(8, 3), torch.zeros(8))
