"""Around a model: labels, files, outputs, the process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from hopyard.errors import SpecError
from hopyard.frameworks import release, seed_all
from hopyard.frameworks.torch.checks import label_fault
from hopyard.frameworks.torch.files import load, rest, save
from hopyard.frameworks.torch.model import Model
from hopyard.frameworks.torch.runtime import install
from hopyard.frameworks.torch.tensors import outputs_to_numpy
from rows import rows


class Tied(nn.Module):
    aside: Any

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("aside", torch.zeros(2), persistent=False)


def test_seed_all_seeds_all() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    seed_all(2**62 + 5)
    first = draw()
    seed_all(2**62 + 5)
    assert draw() == first
    seed_all(2**62 + 6)
    assert all(a != b for a, b in zip(draw(), first, strict=True))


def test_install_sets_threads_and_determinism() -> None:
    install(False, 1)
    assert torch.get_num_threads() == 1 and not torch.are_deterministic_algorithms_enabled()
    install("warn", 2)
    assert torch.get_num_threads() == 2 and torch.is_deterministic_algorithms_warn_only_enabled()
    install(True, 1)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()


@pytest.mark.parametrize("used", [True, False])
def test_a_gpus_memory_goes_back_where_one_is_used(used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[None] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(None))
    release()
    assert len(given) == used


def wrapped(module: nn.Module) -> Model:
    return Model(module, torch.optim.SGD(module.parameters(), lr=0.1), F.mse_loss)


def test_save_and_load_with_tied_weights(tmp_path: Path) -> None:
    one, two, path = Tied(), Tied(), tmp_path / "model.safetensors"
    one.aside += 1
    save(wrapped(one), path)
    assert load_file(path).keys() == {"embed.weight", *(f"norm.{k}" for k in one.norm.state_dict())}
    content = path.read_bytes()
    kept = rest(wrapped(one), None, content)
    assert list(kept) == ["module"] and list(kept["module"]) == ["buffers"]
    assert list(kept["module"]["buffers"]) == ["aside"]
    load(wrapped(two), content, kept)
    assert torch.equal(one.embed.weight, two.embed.weight) and two.out.weight is two.embed.weight
    assert torch.equal(one.aside, two.aside)
    with pytest.raises((RuntimeError, SpecError), match=r"size mismatch|Missing|missing"):
        load(wrapped(nn.Linear(3, 3)), content, kept)


def test_outputs_to_numpy() -> None:
    tensor = torch.randn(3, 2, requires_grad=True)
    assert np.array_equal(outputs_to_numpy(tensor), tensor.detach().numpy())
    told = outputs_to_numpy((tensor, {"a": tensor.bfloat16(), "none": None}))
    assert set(told) == {"0", "1"} and set(told["1"]) == {"a"} and told["1"]["a"].dtype == np.float32
    own = outputs_to_numpy(tensor.detach())
    own += 1
    assert not np.array_equal(own, tensor.detach().numpy())


@pytest.mark.parametrize(
    ("shape", "low", "high", "loss", "whole", "wanted"),
    [
        ((8, 10), 0, 9, F.cross_entropy, True, ""),
        ((8, 10), 0, 12, F.cross_entropy, True, "give the model 13 outputs, or number the labels from 0"),
        ((8, 10), -1, 9, nn.CrossEntropyLoss(torch.ones(10)), True, "label -1 has none"),
        ((8, 10), 1, 10, None, True, "labels go from 1 to 10, but the model has 10 outputs, for labels 0 to 9"),
        ((8, 10), -100, 9, F.cross_entropy, True, ""),  # what cross-entropy ignores
        ((8, 10), 0, 12, F.nll_loss, True, "label 12"),
        ((8, 10, 4, 4), 0, 12, F.cross_entropy, True, "label 12"),
        ((8, 3), 0, 57, lambda outputs, targets: (outputs - targets[:, None]).abs().mean(), True, ""),  # quantiles
        ((8, 10), 0, 12, F.cross_entropy, False, ""),
        ((8, 1), 0, 12, F.mse_loss, True, ""),
        ((8,), 0, 12, F.mse_loss, True, ""),
    ],
)  # fmt: skip
def test_label_fault(shape: tuple[int, ...], low: float, high: float, loss: Any, whole: bool, wanted: str) -> None:
    fault = label_fault(torch.randn(shape), low, high, loss, whole)
    assert wanted in fault and bool(fault) == bool(wanted)
    assert label_fault({"a": torch.randn(8, 2)}, 0, 12) == ""


def test_an_empty_feed_gives_zero_rows() -> None:
    net = nn.Linear(20, 5)
    model = Model(net, torch.optim.SGD(net.parameters()), F.cross_entropy)
    feed = rows(1)
    feed.sizes = []
    assert model.train_partition(feed) == {"loss": (0.0, 0.0)}
