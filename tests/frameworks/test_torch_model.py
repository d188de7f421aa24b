"""`Model`: what it computes, what it refuses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.frameworks import framework_of, seed_all
from hopyard.frameworks.torch.checks import loss_fault
from hopyard.frameworks.torch.model import AUC, Model, accuracy
from hopyard.frameworks.torch.tensors import tensors
from hopyard.frameworks.tree import capture, restore
from hopyard.ports.training import (
    SupportsDevice,
    SupportsEpochEnd,
    SupportsLabelCheck,
    SupportsLossCheck,
    SupportsPredict,
    SupportsResult,
    SupportsWholePartition,
)
from hopyard.spec import Batch
from hopyard.store.tree import decode, encode
from rows import Rows, aligned, rows


def linear(**more: Any) -> Model:
    torch.manual_seed(0)
    net = nn.Linear(20, 5)
    more.setdefault("loss", F.cross_entropy)
    return Model(net, more.pop("optimizer", torch.optim.SGD(net.parameters(), lr=0.1)), more.pop("loss"), **more)


def bits(model: Model) -> bytes:
    return bytes(encode(capture(model)))


def test_offers_what_the_ports_ask() -> None:
    model = linear()
    assert isinstance(model, SupportsWholePartition) and isinstance(model, SupportsEpochEnd)
    assert isinstance(model, SupportsResult) and isinstance(model, SupportsPredict)
    assert isinstance(model, SupportsDevice) and isinstance(model, SupportsLabelCheck)
    assert isinstance(model, SupportsLossCheck)
    assert model.load_copies and framework_of(model) == "torch"
    assert model.batch_size is None and linear(batch_size=8).batch_size == 8


def test_trains_as_a_plain_loop_does() -> None:
    model, feed = linear(metrics={"accuracy": accuracy}), rows(3)
    torch.manual_seed(0)
    net = nn.Linear(20, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_sum, right = 0.0, 0
    for start in range(0, 50, 16):
        x, y = torch.tensor(feed.inputs[start : start + 16]), torch.tensor(feed.targets[start : start + 16])
        optimizer.zero_grad()
        outputs = net(x)
        loss = F.cross_entropy(outputs, y)
        loss.backward()
        optimizer.step()
        loss_sum += float(loss.detach()) * len(x)
        right += int((outputs.argmax(1) == y).sum())
    sums = model.train_partition(feed)
    assert sums["loss"] == (pytest.approx(loss_sum, rel=1e-12), 50.0) and sums["accuracy"] == (right, 50.0)
    assert torch.equal(model.module.weight, net.weight) and torch.equal(model.module.bias, net.bias)  # type: ignore[arg-type]


def test_batch_by_batch_is_the_same_as_the_partition() -> None:
    def noisy(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return inputs + torch.randn(inputs.shape, generator=generator)

    whole, single = linear(augment=noisy), linear(augment=noisy)
    sums = whole.train_partition(rows(3))
    parts = [single.train(batch) for batch in rows(3)]
    assert bits(whole) == bits(single)
    assert sums["loss"][0] == pytest.approx(sum(part["loss"][0] for part in parts))


def test_a_partition_done_again_draws_the_same() -> None:
    def noisy(inputs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return inputs + torch.randn(inputs.shape, generator=generator)

    model = linear(augment=noisy)
    first = bits(model)
    model.train_partition(rows(3))
    once = bits(model)
    restore(model, decode(first))
    for batch in rows(3):  # as an attempt that failed half-way would
        model.train(batch)
    restore(model, decode(first))
    for batch in rows(3):
        model.train(batch)
    assert bits(model) == once


def test_evaluation_changes_nothing_and_uses_eval_mode() -> None:
    net = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 5))
    model = Model(net, torch.optim.Adam(net.parameters()), F.cross_entropy, {"accuracy": accuracy})
    model.train_partition(rows(1))
    before = bits(model)
    seed_all(1)
    first = model.evaluate_partition(rows(2))
    seed_all(2)
    assert model.evaluate_partition(rows(2)) == first
    assert bits(model) == before
    assert model.evaluate(next(iter(rows(2, size=50))))["loss"][0] == pytest.approx(first["loss"][0])
    # what evaluation left behind must not be in the way of training
    model.train_partition(rows(1))


def test_weights_weigh_loss_metrics_and_rows() -> None:
    feed = rows(4)
    feed.weights = np.random.default_rng(0).uniform(0, 2, 50).astype(np.float32)
    feed.weights[16:32] = 0  # a whole batch that counts for nothing
    model = linear(loss=nn.CrossEntropyLoss(reduction="none"), metrics={"accuracy": accuracy})
    got = model.evaluate_partition(feed)
    outputs = model.module(torch.tensor(feed.inputs)).detach()
    each = F.cross_entropy(outputs, torch.tensor(feed.targets), reduction="none").double()
    weights = torch.tensor(feed.weights).double()
    assert got["loss"] == (pytest.approx(float((each * weights).sum()), rel=1e-6), pytest.approx(float(weights.sum())))
    assert got["accuracy"][1] == got["loss"][1]
    before = model.module.weight.clone()  # type: ignore[operator]
    model.train_partition(feed)
    assert torch.isfinite(model.module.weight).all() and not torch.equal(before, model.module.weight)  # type: ignore[arg-type]


def test_equal_weights_are_as_none() -> None:
    feed, plain = rows(4), rows(4)
    feed.weights = np.ones(50, np.float32)
    weighted, model = linear(loss=nn.CrossEntropyLoss(reduction="none")), linear()
    assert weighted.train_partition(feed)["loss"] == pytest.approx(model.train_partition(plain)["loss"])
    assert torch.allclose(weighted.module.weight, model.module.weight)  # type: ignore[arg-type]


def test_losses_of_the_wrong_shape() -> None:
    feed = rows(4)
    feed.weights = np.ones(50, np.float32)
    with pytest.raises(SpecError, match=r'weights, .*shape \(\) for 16 rows; .*reduction="none"'):
        linear().train_partition(feed)
    with pytest.raises(SpecError, match=r"shape \(16, 5\) for 16 rows"):
        linear(loss=lambda outputs, targets: outputs).train_partition(rows(4))
    sums = linear(loss=nn.CrossEntropyLoss(reduction="none")).train_partition(rows(4))
    assert sums["loss"] == pytest.approx(linear().train_partition(rows(4))["loss"])


def test_dicts_of_inputs_and_targets() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Embedding(7, 4)

        def forward(self, x: torch.Tensor, kind: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": self.a(x) + self.b(kind), "half": self.a(x).bfloat16()}

    def loss(outputs: Any, targets: Any) -> torch.Tensor:
        return F.cross_entropy(outputs["out"], targets["y"]) + F.mse_loss(outputs["out"][:, 0], targets["z"])

    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((10, 3), dtype=np.float32), "kind": rng.integers(0, 7, 10)}
    targets = {"y": rng.integers(0, 4, 10), "z": np.zeros(10, np.float32)}
    net = Two()
    model = Model(
        net,
        torch.optim.Adam(net.parameters()),
        loss,
        {"right": lambda outputs, targets: outputs["out"].argmax(1) == targets["y"]},
    )
    feed = Rows(inputs, targets, 4)
    feed.rows, feed.sizes = 10, [4, 4, 2]
    sums = model.train_partition(feed)
    assert sums["right"][1] == 10.0
    predicted = model.predict(Batch(inputs, None, None, 10))
    assert set(predicted) == {"out", "half"} and predicted["out"].shape == (10, 4)
    assert predicted["half"].dtype == np.float32


def test_result_folds_numbers_and_arrays() -> None:
    model = linear(metrics={"accuracy": accuracy, "auc": AUC(4)})
    assert model.result("accuracy", 3.0, 4.0) == 0.75 and model.result("loss", 1.0, 2.0) == 0.5
    assert np.isnan(model.result("loss", 0.0, 0.0))
    assert model.result("auc", [1.0, 0, 0, 0, 0, 0, 0, 1.0], 2.0) == 1.0
    with pytest.raises(SpecError, match="no result"):
        model.result("accuracy", [1.0, 2.0], 2.0)


def test_clip_norm_bounds_the_step() -> None:
    model = linear(clip_norm=1e-3)
    before = model.module.weight.detach().clone(), model.module.bias.detach().clone()  # type: ignore[operator]
    model.train(next(iter(rows(1, size=50))))
    moved = torch.cat([(before[0] - model.module.weight).flatten(), before[1] - model.module.bias])  # type: ignore[operator]
    assert float(moved.detach().norm()) == pytest.approx(1e-4, rel=1e-3)


def test_autocast_runs_in_half_precision() -> None:
    seen: list[torch.dtype] = []

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.dtype)
        return F.cross_entropy(outputs, targets)

    for autocast in ("bfloat16", torch.bfloat16):
        model = linear(loss=loss, autocast=autocast)
        model.train_partition(rows(1))
        model.evaluate_partition(rows(1))
        assert model.predict(next(iter(rows(1)))).dtype == np.float32
    assert set(seen) == {torch.bfloat16} and model.module.weight.dtype is torch.float32


def test_the_scaler_is_part_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    # on the host in the place of CUDA: the same class, and the same road through step, state and load
    def scale(model: Model) -> None:
        model._scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3)

    monkeypatch.setattr(Model, "_set_scaler", scale)
    one, two = linear(autocast="float16", clip_norm=1.0), linear(autocast="float16", clip_norm=1.0)
    two.train_partition(rows(9))
    for number in range(3):
        model, other = (one, two) if number % 2 == 0 else (two, one)
        model.train_partition(rows(number))
        assert model.state()["scaler"]["scale"] > 2.0**14
        restore(other, decode(encode(capture(model))))
        assert bits(model) == bits(other)
    alone = linear(autocast="float16", clip_norm=1.0)
    for number in range(3):
        alone.train_partition(rows(number))
    assert bits(alone) == bits(one)


def test_a_scheduler_keeps_its_types_and_functions() -> None:
    def build() -> Model:
        net = nn.Linear(20, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler
        both = [schedule.MultiStepLR(optimizer, [2, 2, 3]), schedule.LambdaLR(optimizer, Decay(0.5))]
        return Model(net, optimizer, F.cross_entropy, scheduler=schedule.ChainedScheduler(both))

    one, two = build(), build()
    for number in range(2):
        one.train_partition(rows(number))
        one.end_epoch()
    restore(two, decode(encode(capture(one))))
    steps, decay = two.scheduler._schedulers
    assert steps.milestones == Counter([2, 2, 3]) and isinstance(steps.milestones, Counter)
    assert isinstance(decay.lr_lambdas[0], Decay) and decay.lr_lambdas[0].calls == 3
    assert two.optimizer.param_groups[0]["lr"] == one.optimizer.param_groups[0]["lr"]


class Decay:
    """A schedule that is an object: torch keeps its attributes in the scheduler's state."""

    def __init__(self, rate: float) -> None:
        self.rate, self.calls = rate, 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return float(self.rate**epoch)


def test_schedulers_step_by_epoch_or_by_batch() -> None:
    for every, wanted in (("epoch", 0.05), ("batch", 0.1 * 0.5**4)):
        net = nn.Linear(20, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        model = Model(net, optimizer, F.cross_entropy, scheduler=scheduler, scheduler_every=every)  # type: ignore[arg-type]
        model.train_partition(rows(1))
        model.end_epoch()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)
    linear().end_epoch()


def test_state_of_a_loss_and_extra_state_are_kept() -> None:
    class Margin(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.notes = {"seen": 0}

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.notes["seen"] += 1
            return F.cross_entropy(outputs * self.scale, targets)

        def get_extra_state(self) -> Any:
            return {**self.notes, "tensor": torch.ones(2)}

        def set_extra_state(self, state: Any) -> None:
            assert isinstance(state.pop("tensor"), torch.Tensor)
            self.notes = state

    def build() -> Model:
        torch.manual_seed(0)
        net, loss = nn.Linear(20, 5), Margin()
        return Model(net, torch.optim.Adam([*net.parameters(), *loss.parameters()]), loss)

    one, two = build(), build()
    one.train_partition(rows(1))
    restore(two, decode(encode(capture(one))))
    assert bits(one) == bits(two) and two.loss.notes == {"seen": 4}  # type: ignore[union-attr]
    one.train_partition(rows(2))
    two.train_partition(rows(2))
    assert bits(one) == bits(two)


def test_a_state_of_another_build_is_refused() -> None:
    data = decode(encode(capture(linear())))
    wide = nn.Linear(20, 6)
    with pytest.raises(SpecError, match=r"parameter 'bias' .* shape \(5,\).*\(6,\)"):
        restore(Model(wide, torch.optim.SGD(wide.parameters()), F.cross_entropy), data)
    half = nn.Linear(20, 5).double()
    with pytest.raises(SpecError, match=r"dtype torch\.float32"):
        restore(Model(half, torch.optim.SGD(half.parameters()), F.cross_entropy), data)
    deep = nn.Sequential(nn.Linear(20, 5))
    with pytest.raises(SpecError, match=r"missing there: \['bias', 'weight'\]"):
        restore(Model(deep, torch.optim.SGD(deep.parameters()), F.cross_entropy), data)
    net = nn.Linear(20, 5)
    groups: list[dict[str, Any]] = [{"params": [net.weight]}, {"params": [net.bias]}]
    with pytest.raises(SpecError, match=r"1 param groups, .* 2"):
        restore(Model(net, torch.optim.SGD(groups), F.cross_entropy), data)


def test_load_takes_torch_tensors_too() -> None:
    one, two = linear(), linear()
    one.train_partition(rows(1))
    two.load(one.state())
    assert bits(one) == bits(two)
    one.train_partition(rows(1))
    assert bits(one) != bits(two)  # nothing is shared


def test_place_keeps_parameters_and_moves_state() -> None:
    model = linear(loss=nn.CrossEntropyLoss(torch.ones(5)))
    weight = model.module.weight
    model.train_partition(rows(1))
    model.to_device("cpu")
    assert model.module.weight is weight and model.device == torch.device("cpu")


class Kept:
    """A metric as torchmetrics has them."""

    def update(self, outputs: Any, targets: Any) -> None: ...
    def compute(self) -> float:
        return 0.0

    __call__ = update


FAULTY = (
    *("loss", "reserved", "metric", "every", "size", "size bool", "clip", "clip text", "autocast", "autocast dtype"),
    *("augment", "augment deep", "scheduler", "scheduler dict", "loss class", "metric class", "torchmetrics"),
    *("plateau", "lbfgs"),
)
"""Of what `faulty` gives; it makes optimizers, and the first one of a process imports torch's compiler."""


def faulty() -> dict[str, tuple[dict[str, Any], str]]:
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    schedule = torch.optim.lr_scheduler
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    return {
        "loss": ({"loss": 3}, r"loss must be .*, got 3"),
        "reserved": ({"metrics": {"loss": accuracy}}, 'metrics: "loss"'),
        "metric": ({"metrics": {"m": 3}}, r"metrics\['m'\] must be .*, got 3"),
        "every": ({"scheduler_every": "step"}, r"scheduler_every must be .*, got 'step'"),
        "size": ({"batch_size": 0}, "batch_size must be .*, got 0"),
        "size bool": ({"batch_size": True}, "batch_size must be .*, got True"),
        "clip": ({"clip_norm": 0}, "clip_norm must be .*, got 0"),
        "clip text": ({"clip_norm": "1"}, "clip_norm must be .*, got '1'"),
        "autocast": ({"autocast": "float8"}, r"autocast must be .*, got 'float8'"),
        "autocast dtype": ({"autocast": torch.float64}, r"autocast must be .*, got torch.float64"),
        "augment": ({"augment": lambda inputs: inputs}, "augment"),
        "augment deep": ({"augment": deep}, "augment must be a function"),
        "scheduler": ({"scheduler": schedule.StepLR(other, 1)}, "another optimizer"),
        "scheduler dict": ({"scheduler": {"interval": "epoch"}}, "scheduler must be .*, got {'interval': 'epoch'}"),
        "loss class": ({"loss": nn.CrossEntropyLoss}, r"the class CrossEntropyLoss; give an instance: Cross"),
        "metric class": ({"metrics": {"a": AUC}}, r"metrics\['a'\] is the class AUC; give an instance: AUC\(\)"),
        "torchmetrics": ({"metrics": {"a": Kept()}}, r"metrics\['a'\] has update and no result"),
        "plateau": ({"scheduler": schedule.ReduceLROnPlateau(other)}, "ReduceLROnPlateau"),
        "lbfgs": ({"optimizer": torch.optim.LBFGS([nn.Parameter(torch.ones(1))])}, "LBFGS"),
    }


@pytest.mark.parametrize("name", FAULTY)
def test_arguments_that_cannot_be(name: str) -> None:
    assert set(faulty()) == set(FAULTY)
    more, message = faulty()[name]
    with pytest.raises(SpecError, match=message):
        linear(**more)


def test_lazy_modules_are_refused() -> None:
    net = nn.LazyLinear(5)
    with pytest.raises(SpecError, match="'weight' has no shape yet"):
        Model(net, torch.optim.SGD(net.parameters()), F.cross_entropy)


@pytest.mark.parametrize("offset", [4, 8, 32])
def test_misaligned_and_read_only_inputs_are_copied(offset: int) -> None:
    cpu = torch.device("cpu")
    good = aligned((4, 4), np.float32)
    good[...] = 1
    assert tensors(good, cpu).data_ptr() == good.ctypes.data
    bad = aligned((4, 4), np.float32, offset)
    bad[...] = 2
    assert tensors(bad, cpu).data_ptr() % 64 == 0 and torch.equal(tensors(bad, cpu), torch.full((4, 4), 2.0))
    good.flags.writeable = False
    made = tensors(good, cpu)
    made += 1
    assert good.sum() == 16 and made.data_ptr() % 64 == 0
    assert tensors({"a": bad.T, "b": None}, cpu)["a"].is_contiguous()


def test_labels_out_of_range_are_found_before_training() -> None:
    batch = next(iter(rows(1)))
    model = linear()
    assert model.label_fault(batch, 0, 4) == ""
    assert re.search("label 12 has none; .*13 outputs", model.label_fault(batch, 0, 12))
    assert "label -1 has none" in model.label_fault(batch, -1, 4)


# ---------------------------------------------------------------- labels and the loss


def net(width: int, loss: Any, last: Any = None) -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, width), *([] if last is None else [last]))
    return Model(module, torch.optim.SGD(module.parameters(), lr=0.1), loss)


def labelled(dtype: Any, classes: int = 2) -> Batch:
    batch = next(iter(rows(1, classes=classes)))
    batch.targets = batch.targets.astype(dtype)
    return batch


PAIRS = "outputs have shape (rows, 1) and label 'y' has shape (rows,), so the loss compares each output with the labels"
SHAPE = "outputs have shape (rows, 1) and label 'y' has shape (rows,), which {} does not take; return outputs.squeeze"
FLOAT = "label 'y' is int64, and the loss ({}) takes floating-point labels (float32): make the column a "
CLASSES = "label 'y' is float32, and the loss ({}) takes class numbers (int64): make the column an integer one"


@pytest.mark.parametrize(
    ("width", "loss", "dtype", "message"),
    [
        (1, nn.MSELoss(), np.float32, PAIRS),
        (1, nn.MSELoss(reduction="none"), np.float32, PAIRS),
        (1, F.l1_loss, np.float32, PAIRS),
        (1, nn.HuberLoss(), np.float32, PAIRS),
        (1, lambda outputs, targets: ((outputs - targets) ** 2).mean(), np.float32, PAIRS),
        (1, nn.BCEWithLogitsLoss(), np.float32, SHAPE.format("BCEWithLogitsLoss")),
        (1, nn.BCEWithLogitsLoss(), np.int64, FLOAT.format("BCEWithLogitsLoss")),
        (1, nn.MSELoss(), np.int64, PAIRS),
        (5, F.cross_entropy, np.float32, CLASSES.format("cross_entropy")),
        (5, nn.CrossEntropyLoss(), np.float32, CLASSES.format("CrossEntropyLoss")),
    ],
)
def test_labels_that_the_loss_takes_otherwise_are_explained(width: int, loss: Any, dtype: Any, message: str) -> None:
    fault = net(width, loss).loss_fault(labelled(dtype), "y")
    assert fault.startswith(message)
    assert "write targets." in fault or "squeeze(-1) from the module" in fault


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss(), lambda o, t: F.cross_entropy(o, t)])
@pytest.mark.parametrize("last", [None, nn.Flatten(0)], ids=["(rows, 1)", "(rows,)"])
@pytest.mark.parametrize(
    ("labels", "holds"),
    [
        (lambda y: y * 2.0 - 1, "holds -1,"),
        (lambda y: y * 2 - 1, "holds -1,"),
        (lambda y: y + 0.5, "holds 1.5,"),
        (lambda y: y * 1.0, "is float32,"),
    ],
)
def test_cross_entropy_of_one_output(loss: Any, last: Any, labels: Callable[[Any], Any], holds: str) -> None:
    """Bug: it was said to squeeze the outputs, and cross entropy takes a flat batch for the classes of one row."""
    batch = labelled(np.int64)
    made = labels(batch.targets)
    batch.targets = made.astype(np.float32) if made.dtype.kind == "f" else made
    fault = net(1, loss, last).loss_fault(batch, "y")
    assert fault.startswith("the loss is cross entropy, which takes class numbers 0, 1, …") and "squeeze" not in fault
    assert f"label 'y' {holds}" in fault
    assert net(1, F.binary_cross_entropy_with_logits, nn.Flatten(0)).loss_fault(labelled(np.float32), "y") == ""


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits])
def test_integer_labels_of_a_flat_output(loss: Any) -> None:
    model, name = net(1, loss, nn.Flatten(0)), getattr(loss, "__name__", "BCEWithLogitsLoss")
    assert model.loss_fault(labelled(np.int64), "y").startswith(FLOAT.format(name))
    assert model.loss_fault(labelled(np.float32), "y") == ""
    assert net(1, nn.MSELoss(), nn.Flatten(0)).loss_fault(labelled(np.int64), "y") == ""  # torch makes them float32


@pytest.mark.parametrize(
    ("width", "loss", "dtype"),
    [
        (5, F.cross_entropy, np.int64),
        (1, lambda outputs, targets: F.mse_loss(outputs.squeeze(), targets), np.float32),
        (1, lambda outputs, targets: F.mse_loss(outputs[:, 0], targets), np.float32),
        (1, lambda outputs, targets: F.mse_loss(outputs, targets.unsqueeze(1)), np.float32),
        (1, lambda outputs, targets: F.mse_loss(outputs.squeeze(1), targets.float()), np.int64),
        (1, lambda outputs, targets: outputs.mean(), np.float32),
        (1, lambda outputs, targets: (outputs[:, :1] - targets).abs().max(1).values.mean(), np.float32),  # on purpose
        (3, nn.MSELoss(), np.float32),  # no shape that would help is known: training says what torch says
        (5, nn.NLLLoss(), np.int64),
    ],
)
def test_losses_that_take_the_labels_row_by_row_pass(width: int, loss: Any, dtype: Any) -> None:
    assert net(width, loss).loss_fault(labelled(dtype), "y") == ""


def test_a_net_that_gives_one_constant_hides_nothing() -> None:
    model = net(1, nn.MSELoss())
    for parameter in model.module.parameters():
        nn.init.zeros_(parameter)
    assert model.loss_fault(labelled(np.float32), "y").startswith(PAIRS)


def test_of_several_labels_those_that_the_loss_does_not_take_are_named() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.late, self.long = nn.Linear(20, 1), nn.Linear(20, 1)

        def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"late": self.late(inputs).squeeze(1), "long": self.long(inputs).squeeze(1)}

    def loss(outputs: Any, targets: Any) -> torch.Tensor:
        return sum(
            (F.binary_cross_entropy_with_logits(outputs[name], targets[name]) for name in outputs), torch.zeros(())
        )

    module = Two()
    model = Model(module, torch.optim.SGD(module.parameters(), lr=0.1), loss)
    batch = labelled(np.int64)
    whole = batch.targets
    part = whole * np.float32(0.5)
    batch.targets = {"late": whole, "long": part}
    fault = model.loss_fault(batch, "late, long")
    assert fault.startswith("label 'late' is int64") and fault.endswith("or write targets['late'].float() in the loss")
    batch.targets = {"late": whole, "long": whole}
    fault = model.loss_fault(batch, "late, long")
    assert "label 'late' is int64" in fault and "label 'long' is int64" in fault
    batch.targets = {"late": whole.astype(np.float32), "long": part}
    assert model.loss_fault(batch, "late, long") == ""


def test_the_check_of_the_loss_changes_nothing() -> None:
    def spoils(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(outputs.squeeze(1), targets)
        targets += 1
        return loss

    module = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = Model(module, torch.optim.Adam(module.parameters()), spoils)
    batch, before = labelled(np.float32), bits(model)
    targets = batch.targets.copy()
    assert model.loss_fault(batch, "y") == ""
    assert bits(model) == before and np.array_equal(batch.targets, targets)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_preflight_refuses_an_output_that_the_loss_would_broadcast(tmp_path: Any) -> None:
    def recipe(config: Any, ctx: Any) -> Any:
        module = nn.Linear(6, 1)
        return Model(module, torch.optim.SGD(module.parameters(), lr=config["lr"]), nn.MSELoss())

    x = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
    data = hy.Dataset.numpy(x, x[:, 0] * 2)
    with pytest.raises(hy.PreflightError, match=r"outputs have shape \(rows, 1\) and label '\w+' has shape \(rows,\)"):
        hy.fit(recipe, {"lr": 0.1}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.MSELoss(), "so the loss compares each output with the labels of all rows"),
        (lambda outputs, targets: ((outputs - targets) ** 2).mean(), "compares each output with the labels of all"),
        (nn.BCEWithLogitsLoss(), "which BCEWithLogitsLoss does not take"),
        (lambda outputs, targets: F.mse_loss(outputs, targets.squeeze(-1)), ""),
        (lambda outputs, targets: F.mse_loss(outputs, targets[:, 0]), ""),
        (lambda outputs, targets: F.mse_loss(outputs[:, None], targets), ""),
        (
            lambda outputs, targets: (outputs[:, None] - targets.squeeze(-1)).abs().max(1).values.mean(),
            "",
        ),  # on purpose
    ],
)
def test_flat_outputs_and_a_column_of_labels(loss: Any, message: str) -> None:
    batch = labelled(np.float32)
    batch.targets = batch.targets[:, None]
    fault = net(1, loss, nn.Flatten(0)).loss_fault(batch, "y")
    assert bool(fault) == bool(message) and message in fault
    if message:
        assert fault.startswith("outputs have shape (rows,) and label 'y' has shape (rows, 1)")
        assert "return outputs.unsqueeze(-1) from the module" in fault


@pytest.mark.parametrize(
    ("loss", "needs"),
    [
        (F.cross_entropy, True),
        (nn.MSELoss(), True),
        (lambda outputs, targets: ((outputs - targets) ** 2).mean(), True),
        (lambda outputs, targets: outputs.square().mean(), False),
        (lambda outputs, targets: outputs[0, 99], False),  # broken, and no label would mend it
    ],
)
def test_a_loss_that_lacks_a_label_says_so(loss: Any, needs: bool) -> None:
    batch = labelled(np.float32)
    batch.targets = None
    fault = net(2, loss).loss_fault(batch, "")
    assert bool(fault) == needs
    if needs:
        assert fault.startswith("the data has no label") and fault.endswith("name it, Dataset(…, label=…)")


def test_preflight_refuses_labels_that_the_loss_would_broadcast(tmp_path: Any) -> None:
    def recipe(config: Any) -> Any:
        module = nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))
        return Model(module, torch.optim.SGD(module.parameters(), lr=config["lr"]), nn.MSELoss())

    x = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
    data = hy.Dataset.numpy(x, x[:, :1] * 2)
    with pytest.raises(hy.PreflightError, match=r"outputs have shape \(rows,\) and label '\w+' has shape \(rows, 1\)"):
        hy.fit(recipe, {"lr": 0.1}, data, epochs=1, engine=hy.Inline(), directory=tmp_path / "run")


def test_evaluate_names_a_label_that_the_model_has_no_output_for(tmp_path: Any) -> None:
    def recipe(config: Any) -> Any:
        module = nn.Linear(6, 3)
        return Model(module, torch.optim.SGD(module.parameters(), lr=config["lr"]), nn.CrossEntropyLoss())

    x = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
    y = np.arange(64) % 3
    directory = tmp_path / "run"
    run = hy.fit(recipe, {"lr": 0.1}, hy.Dataset.numpy(x, y), epochs=1, engine=hy.Inline(), directory=directory)
    assert run.best.evaluate({"inputs": x, "targets": y})["loss"] > 0
    y[5] = 7
    with pytest.raises(
        hy.DataError, match=r"column 'targets': .* labels 0 to 2: label 7 has none; .*or drop such rows"
    ):
        run.best.evaluate({"inputs": x, "targets": y})


def test_a_loss_that_refuses_other_shapes_by_itself_is_no_fault() -> None:
    """Preflight tries losses with shapes that the model never gives."""

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        assert outputs.ndim == 2, "only (rows, 1)"
        return torch.nn.functional.mse_loss(outputs, targets[:, None])

    assert loss_fault(torch.zeros(8, 1), torch.arange(8.0), loss, "y") == ""


def test_a_loss_is_tried_as_a_copy() -> None:
    class Counting(torch.nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return torch.nn.functional.mse_loss(outputs.squeeze(1), targets)

    loss = Counting()
    assert loss_fault(torch.zeros(8, 1), torch.arange(8.0), loss, "y") == ""
    assert loss.calls == 0


def test_labels_that_are_all_equal_hide_no_broadcasting() -> None:
    """The first batch of a rare event, or of sorted rows."""

    def squeezes(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs.squeeze(1), targets)

    own: Any = lambda outputs, targets: ((outputs - targets) ** 2).mean()  # noqa: E731
    assert "outputs have shape (rows, 1)" in loss_fault(torch.zeros(8, 1), torch.zeros(8), own, "late")
    assert loss_fault(torch.zeros(8, 1), torch.zeros(8), squeezes, "late") == ""


@pytest.mark.parametrize("shape", [(8, 1), (8,)])
def test_a_class_loss_with_one_output_is_refused(shape: tuple[int, ...]) -> None:
    """Floating-point labels would make cross entropy take the whole batch for one row."""
    fault = loss_fault(torch.zeros(shape), torch.arange(8) % 3, torch.nn.CrossEntropyLoss(), "kind")
    assert "give the model 3 outputs (ctx.classes)" in fault
