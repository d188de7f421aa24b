"""Converts the State of a Trainable for the codec: tensors of frameworks to NumPy arrays or Leaves, and back.

This module imports no framework: it looks for torch only among the modules that are imported already.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopyard.ports.states import Leaf, Tree
from hopyard.ports.training import LoadCopies, Trainable

_EXTRA_DTYPES = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""dtypes of the package ml_dtypes, which NumPy cannot name by itself → safetensors' names."""


def on_host(value: Any) -> NDArray[Any]:
    """Return a tensor or variable of any framework as a NumPy array, perhaps a view. (`np.asarray` warns about
    TensorFlow's.)"""
    if type(value).__module__.startswith("keras."):
        value = value.value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    numpy = getattr(value, "numpy", None)
    array: NDArray[Any] = numpy() if callable(numpy) else np.asarray(value)
    return array


def lower(tree: Tree) -> Tree:
    """Return the tree with NumPy arrays, or Leaves, instead of tensors. torch's tensors on the host are not copied, so
    the tree is valid until they change; those on a GPU, and other frameworks' tensors and variables, are copied.

    Raises:
        SpecError: a tensor is sparse, quantized, nested, on the meta device, or of a dtype without a name.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return _map(tree, (), None)
    from hopyard.frameworks.torch.tensors import lower_tensor

    return _map(tree, torch.Tensor, lower_tensor)


def lower_array(array: NDArray[Any]) -> NDArray[Any] | Leaf:
    """Return the array, or a Leaf when NumPy does not have its dtype by itself."""
    name = _EXTRA_DTYPES.get(str(array.dtype))
    if name is None:
        return array
    return Leaf(array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8), name, "ml_dtypes")


def lift_array(leaf: Leaf) -> NDArray[Any]:
    """Return the array that `lower_array` made into this Leaf, as a view."""
    import ml_dtypes

    name = next(name for name, stored in _EXTRA_DTYPES.items() if stored == leaf.dtype)
    array: NDArray[Any] = leaf.array.view(getattr(ml_dtypes, name))
    return array


def lift(tree: Tree) -> Tree:
    """Return the tree with torch tensors (on the host) where they were before `lower`. Every array is a separate,
    writable copy, tensors 64-byte aligned, so that nothing in it changes when the buffer is used again."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, dict):
        return {key: lift(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [lift(value) for value in tree]
    if isinstance(tree, tuple):
        return tuple(lift(value) for value in tree)
    if isinstance(tree, Leaf) and tree.kind == "torch":
        from hopyard.frameworks.torch.tensors import lift_leaf

        return lift_leaf(tree)
    if isinstance(tree, Leaf) and tree.kind == "ml_dtypes":
        return lift_array(tree).copy()
    return tree


def capture(trainable: Trainable) -> Tree:
    """Return the State of `trainable`, ready for the codec; valid until it trains on."""
    return lower(trainable.state())


def restore(trainable: Trainable, tree: Tree) -> None:
    """Loads a decoded tree. A Trainable whose `load` copies gets views of the buffer, which saves a copy; others get
    arrays that they may keep."""
    trainable.load(tree if isinstance(trainable, LoadCopies) and trainable.load_copies else lift(tree))


def _map(tree: Tree, tensor: Any, convert: Any) -> Tree:
    tree_type = type(tree)
    if isinstance(tree, dict):  # also OrderedDict, as torch's state_dict returns
        return {key: _map(value, tensor, convert) for key, value in tree.items()}
    if tree_type is np.ndarray:
        return lower_array(tree) if tree.dtype.kind == "V" else tree
    if isinstance(tree, tensor):
        return convert(tree)
    if isinstance(tree, (list, tuple)):
        items = [_map(value, tensor, convert) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    if hasattr(tree_type, "__array__") and not isinstance(tree, (np.generic, np.ndarray)):
        return lower_array(np.array(on_host(tree)))  # a tensor or variable of TensorFlow, JAX or Keras
    return tree
