"""What trains: Trainables for torch and NumPy, and how their States become plain arrays and come back.

    array.py          a linear model in NumPy, the framework of the tests
    torch.py          `Model`, and the names users need
    torch_state.py    what a torch model's State is, and how it is copied into a model that is already built
    torch_metrics.py  accuracy, AUC, F1, and sums over a partition
    torch_tools.py    seeds, threads, files, labels
    torch_leaf.py     torch tensors ↔ NumPy arrays

This module imports no framework: it looks for torch only among the modules that are imported already.
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopyard.ports import Trainable, Tree


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A tensor of a framework as NumPy sees it. The codec takes anything with these three attributes for one.

    Attributes:
        array: the values; dtypes that NumPy lacks as uint16 or uint8 of the same shape.
        dtype: safetensors' name of the real dtype: "F32", "BF16", …
        kind: the framework whose tensor it is: "torch".
    """

    array: NDArray[Any]
    dtype: str
    kind: str


def is_leaf(value: Any) -> bool:
    """Whether `value` is a Leaf, ours or the codec's (rooms do not import each other)."""
    return hasattr(value, "array") and hasattr(value, "dtype") and hasattr(value, "kind")


def lower(tree: Tree) -> Tree:
    """The tree with Leaves in the place of torch tensors. Tensors of the host are not copied: the tree is good until
    they change; those of a GPU are copied to the host.

    Raises:
        SpecError: a tensor that is sparse, quantized, nested, on the meta device, or of a dtype without a name.
    """
    torch = sys.modules.get("torch")
    if torch is None:  # then nothing in the tree is a tensor
        return tree
    from hopyard.frameworks.torch_leaf import lower_tensor

    return _map(tree, torch.Tensor, lower_tensor)


def lift(tree: Tree) -> Tree:
    """The tree with torch tensors (on the host) where they were when it was lowered. Every array is a copy of its
    own, writable, tensors 64-byte aligned, so that nothing of it changes when the buffer is used again."""
    return _lift(tree)


def capture(trainable: Trainable) -> Tree:
    """The State of `trainable`, ready for the codec; good until it trains on."""
    return lower(trainable.state())


def restore(trainable: Trainable, tree: Tree) -> None:
    """Load a decoded tree. Trainables that say `copies = True` (ours) get views of the buffer, which saves a copy;
    those of users get arrays that are theirs to keep."""
    trainable.load(tree if getattr(trainable, "copies", False) else lift(tree))


def seed_all(seed: int) -> None:
    """Seed `random`, NumPy's global generator, and torch's on every device where torch is imported."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _map(tree: Tree, tensor: type, change: Any) -> Tree:
    kind = type(tree)
    if kind is dict:
        return {key: _map(value, tensor, change) for key, value in tree.items()}
    if isinstance(tree, tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        items = [_map(value, tensor, change) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):  # OrderedDict: what torch's state_dict gives
        return {key: _map(value, tensor, change) for key, value in tree.items()}
    return tree


def _lift(tree: Tree) -> Tree:
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, dict):
        return {key: _lift(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_lift(value) for value in tree]
    if isinstance(tree, tuple):
        return tuple(_lift(value) for value in tree)
    if is_leaf(tree) and tree.kind == "torch":
        from hopyard.frameworks.torch_leaf import lift_leaf

        return lift_leaf(tree)
    return tree
