"""What is frozen stays out of the State of a torch model, and what writes to it is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hopyard.errors import SpecError
from hopyard.frameworks.frozen import read
from hopyard.frameworks.torch.model import Model
from hopyard.frameworks.tree import capture, restore
from hopyard.store.tree import decode, encode
from rows import rows


class Net(nn.Module):
    """A frozen part, with statistics of batches and a constant buffer, below a head that is trained."""

    body: Any
    head: Any
    scale: Any

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8))
        self.register_buffer("scale", torch.rand(8))
        torch.manual_seed(0)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x) * self.scale)
        return y


def model(net: nn.Module | None = None, freeze: str = "body", loss: Any = F.cross_entropy, **more: Any) -> Any:
    net = net or Net()
    made = Model(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), loss, **more)
    if freeze:
        net.get_submodule(freeze).requires_grad_(False)  # the model is made already
    return made


def bits(trainable: Model) -> bytes:
    return bytes(encode(capture(trainable)))


def names(trainable: Model, part: str = "module") -> list[str]:
    return [name for kind in ("parameters", "buffers") for name in trainable.state()[part][kind]]


STATISTICS = ["body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"]


def test_what_needs_no_gradients_is_not_in_the_state() -> None:
    assert names(model()) == ["head.weight", "head.bias", "scale", *STATISTICS]
    assert "base" in model().state() and "base" not in model(freeze="").state()
    assert names(model(base=["scale", "*running*"])) == ["head.weight", "head.bias", STATISTICS[2]]
    assert names(model(state=["body.0.*"]))[:2] == ["body.0.weight", "body.0.bias"]
    assert names(model(base=["*"], state=["head.*", "body.1.*"]))[:2] == ["body.1.weight", "body.1.bias"]


def test_layers_that_the_optimizer_was_not_given_can_be_named() -> None:
    net = Net()
    trainable = Model(net, torch.optim.SGD(net.head.parameters(), lr=0.1), F.cross_entropy, base=["body.*.weight"])
    trainable.train_partition(rows(0))
    assert names(trainable)[:2] == ["body.0.bias", "body.1.bias"]
    stepped = model(freeze="", base=["body.0.*"])
    stepped.train_partition(rows(0))
    with pytest.raises(SpecError, match=r"'body\.0\.weight' has changed"):
        stepped.state()


def test_a_state_without_its_base_trains_to_the_same_bits() -> None:
    straight, hopping = model(), [model(), model()]
    data = bits(hopping[0])
    for number in range(4):
        straight.train_partition(rows(number))
        restore(hopping[number % 2], decode(data))
        hopping[number % 2].train_partition(rows(number))
        data = bits(hopping[number % 2])
    assert data == bits(straight)
    whole = model(freeze="", state=["*"])
    whole.module.body.requires_grad_(False)
    for number in range(4):
        whole.train_partition(rows(number))
    assert torch.equal(whole.module.head.weight, straight.module.head.weight)
    assert len(bits(whole)) > len(data)


def shape(net: Net) -> None:
    net.body[0] = nn.Linear(20, 8, bias=False)


def dtype(net: Net) -> None:
    net.body[0].bias = nn.Parameter(net.body[0].bias.detach().double())


def name(net: Net) -> None:
    net.other = nn.Parameter(torch.zeros(1), requires_grad=False)


def value(net: Net) -> None:
    net.body[0].weight.data[7, 19] += 1e-3


@pytest.mark.parametrize("change", [shape, dtype, name, value])
def test_a_state_with_another_base_is_refused(change: Callable[[Net], None]) -> None:
    state, net = decode(bits(model())), Net()
    change(net)
    with pytest.raises(SpecError, match=r"digest [0-9a-f]{16}.* bytes, digest [0-9a-f]{16}.*state="):
        restore(model(net), state)


def test_frozen_here_and_not_there_is_refused_both_ways() -> None:
    with pytest.raises(SpecError, match=r"built model \(none\)"):
        restore(model(freeze=""), decode(bits(model())))
    other = model(freeze="")
    other.module.body[0].weight.data += 1
    with pytest.raises(SpecError, match=r"not those of the built model \(4 of 736 bytes"):
        restore(model(), decode(bits(other)))


def test_a_whole_state_from_before_fits_where_its_frozen_parameters_are_the_same() -> None:
    before = model(freeze="")
    before.module.head.weight.data += 1
    tree = before.state()
    for state in (tree, decode(bits(before))):
        after = model()
        after.load(state)
        assert torch.equal(after.module.head.weight, before.module.head.weight)
        assert "body.0.weight" not in names(after)
    after = model(Net(seed=1))
    with pytest.raises(SpecError, match="frozen parameters"):
        after.load(tree)


def test_models_without_frozen_parameters_keep_their_bytes() -> None:
    plain = model(freeze="")
    assert plain.state().keys() == {"module", "optimizer"} and plain.frozen_bytes() == 0
    assert model().frozen_bytes() == 4 * (20 * 8 + 8 + 8 + 8)


# ------------------------------------------------------------------------------------------------ shared memory


def test_tied_weights_are_frozen_under_their_first_name_or_trained_under_it() -> None:
    def tied(freeze: bool) -> Any:
        net: Any = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5))
        net[1].weight = net[0].weight
        net[0].weight.requires_grad_(not freeze)
        return model(net, freeze="")

    assert names(tied(False)) == ["0.weight", "0.bias", "1.bias", "2.weight", "2.bias"]
    assert names(tied(True)) == ["0.bias", "1.bias", "2.weight", "2.bias"]
    frozen = tied(True)
    frozen.train_partition(rows(0))
    restore(frozen, decode(bits(frozen)))
    assert frozen.frozen_bytes() == 4 * 400
    by_its_other_name = model(frozen.module, freeze="", state=["1.weight"])
    assert names(by_its_other_name)[0] == "0.weight"


def test_frozen_parameters_that_share_memory_with_trained_ones_change_with_them() -> None:
    net: Any = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 5))
    net[1].weight = nn.Parameter(net[0].weight.data, requires_grad=False)
    net[2].bias = nn.Parameter(net[0].bias.data[:5], requires_grad=False)
    net[2].weight.requires_grad_(False)
    trainable = model(net, freeze="")
    assert names(trainable) == ["0.weight", "0.bias", "1.weight", "1.bias", "2.bias"]
    trainable.train_partition(rows(0))
    assert torch.equal(net[1].weight, net[0].weight)
    trainable.state()


def test_a_frozen_part_of_the_loss_stays_too() -> None:
    class Distance(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.anchor = nn.Parameter(torch.ones(5), requires_grad=False)
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(outputs * self.anchor * self.weight, targets)

    trainable = model(loss=Distance())
    assert names(trainable, "loss") == ["weight"]
    data = bits(trainable)
    other = model(loss=Distance())
    restore(other, decode(data))
    other.loss.anchor.data += 1
    assert other.changed_frozen() == ["anchor"]
    fresh = model(loss=Distance())
    fresh.loss.anchor.data += 1
    with pytest.raises(SpecError, match="frozen parameters"):
        restore(fresh, decode(data))


# ------------------------------------------------------------------------------------------------ what writes


@torch.no_grad()
def multiply(net: Net) -> None:
    net.body[0].weight.mul_(2.0)


@torch.no_grad()
def copy(net: Net) -> None:
    net.body[0].weight.copy_(torch.zeros(8, 20))


def replace_data(net: Net) -> None:
    net.body[0].weight.data = torch.zeros(8, 20)


def replace(net: Net) -> None:
    net.body[0].weight = nn.Parameter(torch.zeros(8, 20), requires_grad=False)


def thaw(net: Net) -> None:
    net.body[0].weight.requires_grad_()


@pytest.mark.parametrize("write", [multiply, copy, replace_data, replace, thaw])
def test_a_frozen_parameter_that_is_written_is_named(write: Callable[[Net], None]) -> None:
    trainable = model()
    trainable.train_partition(rows(0))
    write(trainable.module)
    trainable.train_partition(rows(1))
    with pytest.raises(SpecError, match=r"'body\.0\.weight'.*state="):
        trainable.state()


@torch.no_grad()
def test_equal_values_that_are_written_or_moved_are_no_change() -> None:
    trainable = model()
    weight = trainable.module.body[0].weight
    state = bits(trainable)
    weight.mul_(1.0)
    assert bits(trainable) == state
    weight.data = weight.data.clone()
    assert bits(trainable) == state
    weight.mul_(2.0)
    with pytest.raises(SpecError, match=r"'body\.0\.weight'"):
        trainable.state()


def beside(net: Net) -> None:
    net.body[0].weight.data.mul_(2)


def by_numpy(net: Net) -> None:
    net.body[0].weight.detach().numpy()[3, 4] += 1


@pytest.mark.parametrize("write", [beside, by_numpy])
def test_what_counters_of_versions_miss_is_found_by_digests(write: Callable[[Net], None]) -> None:
    trainable = model()
    trainable.train_partition(rows(0))
    assert trainable.changed_frozen() == []
    write(trainable.module)
    trainable.state()
    assert trainable.changed_frozen() == ["body.0.weight"]


def test_the_first_step_is_looked_at_too() -> None:
    """Of a trial that begins, no State is loaded or taken before its first unit."""
    net = Net()
    net.register_forward_pre_hook(lambda *_: multiply(net))
    trainable = model(net)
    trainable.train_partition(rows(0))
    with pytest.raises(SpecError, match=r"'body\.0\.weight'"):
        trainable.state()


# ------------------------------------------------------------------------------------------------ patterns


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"base": ["scal"]}, r"base: 'scal'.*did you mean 'scale'\?"),
        ({"state": ["body.0.*", "tail.*"]}, r"state: 'tail\.\*'.*'head\.weight'"),
    ],
)
def test_a_pattern_that_matches_nothing_is_refused(keywords: Any, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        model(**keywords).state()


@pytest.mark.parametrize("keyword", ["base", "state"])
def test_patterns_are_a_list(keyword: str) -> None:
    with pytest.raises(SpecError, match=f"{keyword} must be a list"):
        model(None, **{keyword: "scale"})


# ------------------------------------------------------------------------------------------------ digests


def test_digests_are_of_the_bytes_whatever_the_strides() -> None:
    array = np.arange(6000.0, dtype="f4").reshape(60, 100)
    same = [array, np.asfortranarray(array), np.repeat(array, 2, axis=1)[:, ::2]]
    assert len({read([("a", each)]).digest for each in same}) == 1
    others = [array.T, array.reshape(-1), array.view("i4"), array + 1]
    assert len({read([("a", each)]).digest for each in (array, *others)}) == 5
    assert read([("b", array)]).digest != read([("a", array)]).digest
    assert read([]).digest == ""
    one, other = [[("a", array), ("b", array[:1])], [("b", array[:1]), ("a", array)]]
    assert read(one).digest == read(other).digest
