"""Around a torch model: seeds, threads and determinism of the process, files, outputs, labels.

What is global to the process is changed here only, and only by `seed_all` and `install`, which the agent calls.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from hopyard.frameworks import seed_all

WEIGHTS = "model.safetensors"
"""The file of a saved model."""


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Set this process up for a run: `threads` for one operation, and between operations (0: as it is); deterministic
    kernels when `exact` is True (an operation without one raises) or "warn" (it warns).

    On CUDA, cuBLAS also needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before it starts: the engine's part.
    """
    if threads and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if threads and torch.get_num_interop_threads() != threads:
        # can be set once, before the first parallel work; of no influence on results
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(threads)
    if exact in (True, "warn"):
        if "torch._inductor" in sys.modules:
            torch.use_deterministic_algorithms(True, warn_only=exact == "warn")
        else:  # the same, but for torch.compile; the line above would import it, for 1.2 s
            torch.set_deterministic_debug_mode("warn" if exact == "warn" else "error")


def prepare() -> None:
    """Import what recipes use, beforehand."""
    import hopyard.frameworks.torch  # noqa: F401


def warm() -> None:
    """What torch puts off until an optimizer's first step (it imports its compiler, for 1.3 s), done beforehand."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()


def release() -> None:
    """Give back what the allocator keeps of a GPU's memory for tensors to come."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def versions() -> dict[str, Any]:
    """What equal digests may depend on."""
    return {
        "torch": str(torch.__version__),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
    }


def held() -> Any:
    """What a run changes in this process."""
    return torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()


def give_back(before: Any) -> None:
    """Put it back."""
    if before is None:  # torch came with the recipe
        torch.set_deterministic_debug_mode("default")
        return
    state, threads, mode = before
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)


def reseed(seed: int) -> None:
    """Seed torch's generators on every device."""
    torch.manual_seed(seed)


def outputs_to_numpy(outputs: Any) -> Any:
    """Outputs of a module as NumPy arrays of their own on the host: tensor → array, dict → dict, list or tuple → dict
    by position ("0", "1", …). Half precision that NumPy lacks becomes float32."""
    if isinstance(outputs, dict):
        return {key: outputs_to_numpy(value) for key, value in outputs.items() if value is not None}
    if isinstance(outputs, (list, tuple)):
        return {str(n): outputs_to_numpy(value) for n, value in enumerate(outputs)}
    tensor = outputs.detach().cpu()
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    return np.array(tensor.numpy())


def save_net(module: torch.nn.Module, path: str | Path) -> None:
    """Write the module's tensors as safetensors, under a temporary name first: `path` is there whole or not at all."""
    from safetensors.torch import save_model

    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    try:
        save_model(module, os.fspath(part))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def load_net(module: torch.nn.Module, path: str | Path) -> torch.nn.Module:
    """Read what `save_net` wrote into a module of the same build; it is in evaluation mode then. RuntimeError when they
    differ."""
    from safetensors.torch import load_model

    load_model(module, os.fspath(path))
    return module.eval()


def net(trainable: Any) -> torch.nn.Module:
    """The module of a `Model`, in evaluation mode."""
    module: torch.nn.Module = trainable.module
    return module.eval()


def label_fault(
    outputs: Any, low: float, high: float, loss: Callable[..., Any] | None = None, whole: bool = True
) -> str:
    """What is wrong with labels of [low, high] for these outputs; "" when nothing is, or when it cannot be told.

    Labels are class numbers when they are whole and the outputs have a second axis of at least 2. Whether the loss
    can take the ends of the range (a quantile loss takes any number) is tried on one row on the host; on a GPU a label
    out of range ends the whole CUDA context, in a batch that may come hours later.

    Args:
        outputs: of one batch, tensor of shape (rows, classes, …); anything else is not judged.
        low: smallest label of the whole dataset.
        high: largest.
        loss: the model's; None: cross-entropy is assumed.
        whole: whether the labels are whole numbers.
    """
    if not whole or not isinstance(outputs, torch.Tensor) or outputs.ndim < 2 or outputs.shape[1] < 2:
        return ""
    classes = outputs.shape[1]
    wrong = [int(label) for label in (low, high) if not 0 <= label < classes]
    if not wrong or all(_takes(loss, outputs, label) for label in wrong):
        return ""
    return (
        f"labels go from {low:g} to {high:g}, but the model has {classes} outputs, for labels 0 to {classes - 1}: "
        f"label {wrong[0]} has none; give the model {int(high) + 1} outputs, or number the labels from 0"
    )


def _takes(loss: Callable[..., Any] | None, outputs: torch.Tensor, label: int) -> bool:
    loss = torch.nn.functional.cross_entropy if loss is None else loss
    row = outputs[:1].detach().float().cpu()
    target = torch.full((1, *row.shape[2:]), label, dtype=torch.int64)
    moved = loss.to("cpu") if isinstance(loss, torch.nn.Module) else loss
    try:
        with torch.inference_mode():
            moved(row, target)
    except (IndexError, RuntimeError, ValueError):
        return False
    finally:
        if isinstance(loss, torch.nn.Module):
            loss.to(outputs.device)
    return True


def tensors(value: Any, device: torch.device) -> Any:
    """Arrays of a batch as tensors on `device`: views on the host where memory is writable and 64-byte aligned, else
    copies; misaligned inputs change the bits of `linear`."""
    if value is None:
        return None
    if isinstance(value, dict):
        return {name: tensors(item, device) for name, item in value.items()}
    if isinstance(value, torch.Tensor):
        made = value
    elif value.flags.writeable and value.flags.c_contiguous:
        made = torch.from_numpy(value)
    else:  # torch warns about memory that is read-only, rightly: a module may work in place
        made = torch.from_numpy(np.array(value, order="C"))
    if device.type != "cpu":
        return made.to(device)
    return made.clone(memory_format=torch.contiguous_format) if made.data_ptr() % 64 else made


__all__ = [
    "install",
    "label_fault",
    "load_net",
    "net",
    "outputs_to_numpy",
    "save_net",
    "seed_all",
    "tensors",
]
