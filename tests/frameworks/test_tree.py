"""Trees with torch tensors to trees without, and back."""

from __future__ import annotations

import subprocess
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from hopyard.errors import SpecError
from hopyard.frameworks.torch.tensors import _DTYPES, copy_into
from hopyard.frameworks.tree import lift, lower, restore
from hopyard.store.tree import decode, encode


def there_and_back(tree: Any) -> Any:
    return lift(decode(memoryview(encode(lower(tree))).toreadonly()))


@pytest.mark.parametrize("dtype", _DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (2, 3, 4)])
def test_every_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    # one byte of each number is 0 or 1: valid for every dtype, bool too
    bits = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    back = there_and_back({"x": tensor})["x"]
    assert back.dtype is dtype and back.shape == tensor.shape and back.data_ptr() % 64 == 0
    assert back.reshape(-1, 1).view(torch.uint8).tolist() == tensor.reshape(-1, 1).view(torch.uint8).tolist()


def test_strides_conjugates_and_parameters() -> None:
    base = torch.randn(6, 8)
    complex_ = torch.randn(3, 2, dtype=torch.complex64)
    tree = [
        base.t(),
        base[::2, ::3],
        base.expand(2, 6, 8),
        torch.nn.Parameter(base),
        complex_.conj(),
        complex_.conj().imag,
    ]
    for tensor, back in zip(tree, there_and_back(tree), strict=True):
        assert torch.equal(tensor, back) and back.is_contiguous() and not back.requires_grad
    assert torch.equal(there_and_back([base.bfloat16().t()])[0], base.bfloat16().t())


def test_lower_does_not_copy_and_lift_does() -> None:
    tensor, array = torch.zeros(8), np.zeros(8)
    lowered = lower([tensor, array])
    tensor += 1
    assert lowered[0].array.tolist() == [1] * 8 and lowered[1] is array
    lifted = lift(lowered)
    tensor += 1
    array += 1
    assert lifted[0].tolist() == [1] * 8 and lifted[1].tolist() == [0] * 8


def test_kinds_survive_in_any_container() -> None:
    tree = {"a": [torch.ones(2), np.ones(2), (torch.zeros(1), "s", None, 0.5)], 3: OrderedDict(b=torch.ones(1), a=True)}
    back = there_and_back(tree)
    assert isinstance(back["a"][0], torch.Tensor) and isinstance(back["a"][1], np.ndarray)
    assert isinstance(back["a"][2], tuple) and isinstance(back["a"][2][0], torch.Tensor)
    assert back["a"][2][1:] == ("s", None, 0.5) and isinstance(back[3]["b"], torch.Tensor) and back[3]["a"] is True


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), torch.eye(2).to_mkldnn()])
def test_leaves_that_cannot_be_stored(tensor: torch.Tensor) -> None:
    with pytest.raises(SpecError, match="part of a State"):
        lower({"x": tensor})


def test_copy_into_refuses_another_dtype() -> None:
    with pytest.raises(TypeError):
        copy_into(torch.zeros(3), np.zeros(3))


def test_restore_gives_users_copies_and_ours_views() -> None:
    class Mine:
        def load(self, tree: Any) -> None:
            self.tree = tree

    class Ours(Mine):
        load_copies = True

    data = encode(lower({"t": torch.ones(16), "a": np.ones(16)}))
    mine, ours = Mine(), Ours()
    restore(mine, decode(data))  # type: ignore[arg-type]
    restore(ours, decode(data))  # type: ignore[arg-type]
    data[-192:] = bytes(192)  # 16 float32 and 16 float64
    assert mine.tree["t"].sum() == 16 and mine.tree["a"].sum() == 16
    assert ours.tree["a"].sum() == 0 and not isinstance(ours.tree["t"], torch.Tensor)


@pytest.mark.slow
def test_torch_is_imported_only_where_installed() -> None:
    script = """
import sys, numpy as np
from hopyard.frameworks import seed_all
from hopyard.frameworks.tree import capture, lift, lower, restore
from hopyard.frameworks.linear import Linear
tree = {"a": np.ones(3)}
assert lower(tree) == tree and lift(tree)["a"].sum() == 3
seed_all(2**62 + 1)
restore(Linear(3, 2, 0.1, 4), capture(Linear(3, 2, 0.1, 4)))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
