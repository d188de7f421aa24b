"""Tensors of batches and of States: from NumPy arrays and back, without a copy where none is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hopyard.errors import SpecError
from hopyard.ports.states import Leaf

NAMES: dict[torch.dtype, str] = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.complex128: "C128",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
if hasattr(torch, "float8_e8m0fnu"):  # torch 2.7
    NAMES[torch.float8_e8m0fnu] = "F8_E8M0"
_DTYPES = {name: dtype for dtype, name in NAMES.items()}
_VIEW_DTYPES = {"BF16": (torch.uint16, np.dtype("u2"))} | {
    name: (torch.uint8, np.dtype("u1")) for name in _DTYPES if name.startswith("F8_")
}
"""dtypes that NumPy lacks → the dtypes of torch and NumPy as which their bytes are viewed."""


def lower_tensor(tensor: torch.Tensor) -> Leaf:
    """Return the tensor as a Leaf: a view of its memory on the host, a copy from a GPU. Strides are kept.

    Raises:
        SpecError: it is not a plain strided tensor, or its dtype has no name in safetensors.
    """
    name = NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type == "meta":
        raise SpecError(
            f"a tensor of dtype {tensor.dtype}, layout {tensor.layout}, device {tensor.device} cannot be part of a "
            "State; strided tensors of numbers are allowed: leave it out in `state`, or store it as one"
        )
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if name in _VIEW_DTYPES:
        plain = plain.view(_VIEW_DTYPES[name][0])
    elif plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return Leaf(plain.numpy(), name, "torch")


def lift_leaf(leaf: Any) -> torch.Tensor:
    """Return a new tensor on the host, contiguous, and 64-byte aligned like all of torch's own."""
    tensor = torch.empty(leaf.array.shape, dtype=_DTYPES[leaf.dtype])
    copy_into(tensor, leaf)
    return tensor


def dtype_of(value: Any) -> torch.dtype | None:
    """Return the torch dtype of a tensor, a Leaf, or a NumPy array; None for anything else."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, np.ndarray):
        return _TORCH_DTYPES.get(value.dtype)
    return _DTYPES.get(getattr(value, "dtype", ""))


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, a Leaf, or a NumPy array."""
    return tuple((value if isinstance(value, (torch.Tensor, np.ndarray)) else value.array).shape)


def copy_into(target: torch.Tensor, value: Any) -> None:
    """Copies the values of a tensor, a Leaf, or a NumPy array of the same shape and dtype into `target`."""
    target = target.detach()
    if isinstance(value, torch.Tensor):
        target.copy_(value.detach())
        return
    if target.device.type != "cpu":
        target.copy_(lift_leaf(value if not isinstance(value, np.ndarray) else _leaf(value)))
        return
    array: NDArray[Any] = value if isinstance(value, np.ndarray) else value.array
    view_dtypes = _VIEW_DTYPES.get(NAMES[target.dtype])
    # NumPy copies, not torch: `from_numpy` warns about read-only memory, and shared memory is read-only for readers
    np.copyto((target if view_dtypes is None else target.view(view_dtypes[0])).numpy(), array, casting="no")


def _leaf(array: NDArray[Any]) -> Leaf:
    return Leaf(array, next(name for name, dtype in _DTYPES.items() if dtype is _TORCH_DTYPES[array.dtype]), "numpy")


_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    torch.empty(0, dtype=dtype).numpy().dtype: dtype for name, dtype in _DTYPES.items() if name not in _VIEW_DTYPES
}


def tensors(value: Any, device: torch.device) -> Any:
    """Return the arrays of a batch as tensors on `device`: views on the host where memory is writable and 64-byte
    aligned, else copies, because misaligned inputs change the bits of `linear`."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: tensors(item, device) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        tensor = value
    elif value.flags.writeable and value.flags.c_contiguous:
        tensor = torch.from_numpy(value)
    else:  # torch warns about read-only memory, rightly: a module may work in place
        tensor = torch.from_numpy(np.array(value, order="C"))
    if device.type != "cpu":
        return tensor.to(device)
    return tensor.clone(memory_format=torch.contiguous_format) if tensor.data_ptr() % 64 else tensor


def outputs_to_numpy(outputs: Any) -> Any:
    """Return outputs of a module as new NumPy arrays on the host: tensor → array, dict → dict, list or tuple → dict
    by position ("0", "1", …). Half precision that NumPy lacks becomes float32."""
    if isinstance(outputs, dict):
        return {key: outputs_to_numpy(value) for key, value in outputs.items() if value is not None}
    if isinstance(outputs, (list, tuple)):
        return {str(n): outputs_to_numpy(value) for n, value in enumerate(outputs)}
    tensor = outputs.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())
