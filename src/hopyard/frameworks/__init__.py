"""What trains: Trainables for torch, Keras and NumPy, and how their States become plain arrays and come back.

    array.py             a linear model in NumPy, the framework of the tests
    torch.py             `Model`, and the names users need
    torch_state.py       what a torch model's State is, and how it is copied into a model that is already built
    torch_metrics.py     accuracy, AUC, F1, and sums over a partition
    torch_leaf.py        torch tensors ↔ NumPy arrays
    keras.py             `Model`, a compiled Keras model as a Trainable
    keras_state.py       what a Keras model's State is; which models differ in nothing else
    keras_sums.py        Keras' metrics as sums over rows
    keras_rows.py        rows and batches as Keras' loops take them
    keras_shapes.py      whether a model and a dataset fit
    keras_callbacks.py   the hooks of epochs and batches
    keras_tensorflow.py  keras_jax.py  keras_torch.py: going over rows, on each backend
    *_tools.py           of each framework: seeds, threads, determinism, files
    onednn.py            lines of TensorFlow that no setting keeps it from

This module imports no framework: it looks for one only among the modules that are imported already.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopyard.frameworks import onednn
from hopyard.ports import Trainable, Tree

TOOLS = {name: f"hopyard.frameworks.{name}_tools" for name in ("torch", "tensorflow", "jax", "keras")}
"""Framework → the module with its tools. Each has `prepare()` and `warm()`, which import and do what is put off until a
first step, `install(exact, threads)`, which sets the process up, `reseed(seed)`, called before each recipe and each
partition, `versions()`, and `held()` and `give_back(held)`, for what a run changes in the process (None: as it is at
first). Some have `fresh(seed, named)` and `settle()`, called before and after each recipe, `adopt(made)`, for what it
returned, `release()`, which gives back memory of a device that is kept for nothing, and WEIGHTS, `net`, `save_net`,
`load_net`, for models in files."""

_LACKING = {
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""dtypes of the package ml_dtypes, which NumPy cannot name by itself → safetensors' names."""


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


def imported() -> list[str]:
    """The frameworks that this process has imported."""
    return [name for name in TOOLS if name in sys.modules]


def tools(framework: str) -> ModuleType:
    """The module with the framework's tools; imports the framework."""
    return importlib.import_module(TOOLS[framework])


def release() -> None:
    """Give back the memory of devices that frameworks keep though nothing is in it: others share the device."""
    for framework in imported():
        if give_back := getattr(tools(framework), "release", None):
            give_back()


def quiet(backend: str = "") -> None:
    """Before TensorFlow or Keras is imported on behalf of the user: no chatter about instruction sets and missing GPUs
    unless the environment asks for it, and Keras' `backend` if one is known."""
    if "tensorflow" not in sys.modules and os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") != "0":
        onednn.hush()
    if backend and "keras" not in sys.modules and "KERAS_BACKEND" not in os.environ:
        os.environ["KERAS_BACKEND"] = backend
        with suppress(ImportError):  # whoever asked for the model will hear of it
            importlib.import_module("keras")
        del os.environ["KERAS_BACKEND"]  # the next run may have another


def environment(threads: int) -> dict[str, str]:
    """What the environment of a worker's process should have before a framework is imported, where the user has not
    said otherwise: the number of threads for those that cannot be told later, and GPUs that can be shared."""
    flags = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NPROC": str(threads)}
    return flags | ({"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {})


def processor() -> str:
    """The model of the processor, on which TensorFlow and XLA choose their kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def on_host(value: Any) -> NDArray[Any]:
    """A tensor or variable of any framework as a NumPy array; may be a view. (`np.asarray` warns of TensorFlow's.)"""
    if type(value).__module__.startswith("keras."):
        value = value.value
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    numpy = getattr(value, "numpy", None)
    array: NDArray[Any] = numpy() if callable(numpy) else np.asarray(value)
    return array


def lower(tree: Tree) -> Tree:
    """The tree with NumPy arrays, or Leaves, in the place of tensors. torch's on the host are not copied: the tree is
    good until they change; those of a GPU, and other frameworks' tensors and variables, are copied.

    Raises:
        SpecError: a tensor that is sparse, quantized, nested, on the meta device, or of a dtype without a name.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return _map(tree, (), None)
    from hopyard.frameworks.torch_leaf import lower_tensor

    return _map(tree, torch.Tensor, lower_tensor)


def lower_array(array: NDArray[Any]) -> NDArray[Any] | Leaf:
    """The array, or a Leaf when its dtype is one that NumPy has not by itself."""
    name = _LACKING.get(str(array.dtype))
    if name is None:
        return array
    return Leaf(array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8), name, "ml_dtypes")


def lift_array(leaf: Leaf) -> NDArray[Any]:
    """The array of which `lower_array` made a Leaf; a view."""
    import ml_dtypes

    name = next(name for name, stored in _LACKING.items() if stored == leaf.dtype)
    array: NDArray[Any] = leaf.array.view(getattr(ml_dtypes, name))
    return array


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
    """Seed `random`, NumPy's global generator, and those of every framework that is imported, on every device."""
    for framework in imported():  # first: Keras draws from `random` when it makes its own generator
        tools(framework).reseed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def _map(tree: Tree, tensor: Any, change: Any) -> Tree:
    kind = type(tree)
    if kind is dict:
        return {key: _map(value, tensor, change) for key, value in tree.items()}
    if kind is np.ndarray:
        return lower_array(tree) if tree.dtype.kind == "V" else tree
    if isinstance(tree, tensor):
        return change(tree)
    if isinstance(tree, (list, tuple)):
        items = [_map(value, tensor, change) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    if isinstance(tree, dict):  # OrderedDict: what torch's state_dict gives
        return {key: _map(value, tensor, change) for key, value in tree.items()}
    if hasattr(kind, "__array__") and not isinstance(tree, (np.generic, np.ndarray)):
        return lower_array(np.array(on_host(tree)))  # a tensor or variable of TensorFlow, JAX or Keras
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
    if is_leaf(tree) and tree.kind == "ml_dtypes":
        return lift_array(tree).copy()
    return tree
