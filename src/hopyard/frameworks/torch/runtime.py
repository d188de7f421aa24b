"""torch's `Runtime`: seeds, threads and determinism of the process.

What is global to the process is changed here only, and only by `reseed` and `install`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Literal

import torch

from hopyard.frameworks.torch.files import FILE
from hopyard.ports.frameworks import Export, Runtime


def install(exact: bool | Literal["warn"], threads: int) -> None:
    """Sets this process up for a run: `threads` for one operation and between operations (0: unchanged); deterministic
    kernels when `exact` is True (an operation without one raises) or "warn" (it warns).

    On CUDA, cuBLAS also needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the environment before it starts; the engine sets it.
    """
    if threads and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if threads and torch.get_num_interop_threads() != threads:
        # can be set once, before the first parallel work; has no influence on results
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(threads)
    if exact in (True, "warn"):
        if "torch._inductor" in sys.modules:
            torch.use_deterministic_algorithms(True, warn_only=exact == "warn")
        else:  # the same, but for torch.compile; the line above would import it, for 1.2 s
            torch.set_deterministic_debug_mode("warn" if exact == "warn" else "error")


def prepare() -> None:
    """Imports in advance what recipes use."""
    import hopyard.frameworks.torch.model  # noqa: F401


def warm() -> None:
    """Does in advance what torch puts off until an optimizer's first step (importing its compiler takes 1.3 s)."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.SGD([parameter], lr=0.0).step()


def release() -> None:
    """Frees the GPU memory that the allocator reserves for later tensors."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def versions() -> dict[str, Any]:
    """Return the versions and settings that digests may depend on."""
    return {
        "torch": str(torch.__version__),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "torch_threads": torch.get_num_threads(),
    }


def snapshot() -> Any:
    """Return what a run changes in this process."""
    return torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()


def restore(before: Any) -> None:
    """Restores what `snapshot` returned."""
    if before is None:  # the recipe imported torch
        torch.set_deterministic_debug_mode("default")
        return
    state, threads, mode = before
    torch.set_rng_state(state)
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)


def parameters(value: Any) -> list[Any]:
    """Return what training changes in a module: parameters that need gradients, and statistics of batches; and their
    memory, which a new parameter may share with an older tensor. [] for anything else."""
    if not isinstance(value, torch.nn.Module):
        return []
    tensors: list[torch.Tensor] = [parameter for parameter in value.parameters() if parameter.requires_grad]
    norms = [part for part in value.modules() if isinstance(part, torch.nn.modules.batchnorm._NormBase)]
    tensors += [norm.running_mean for norm in norms if norm.running_mean is not None]
    found: list[Any] = list(tensors)
    for tensor in tensors:
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # sparse, or without a shape yet
            found.append(tensor.untyped_storage())
    return found


def reseed(seed: int) -> None:
    """Seeds torch's generators on every device."""
    if hasattr(torch, "accelerator") and torch.accelerator.current_accelerator() is None:  # 2.5 has no such module
        # `manual_seed` notes the stack, in text, for each kind of GPU that this build of torch cannot use: that takes
        # as long as a small batch.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def exports() -> dict[str, Export]:
    """Return the formats that modules are exported in, by the end of a path."""
    from hopyard.frameworks.torch.export import EXPORTS

    return EXPORTS


RUNTIME = Runtime(
    versions,
    prepare=prepare,
    late=("torch._dynamo",),
    warm=warm,
    install=install,
    reseed=reseed,
    parameters=parameters,
    snapshot=snapshot,
    restore=restore,
    release=release,
    file=FILE,
    exports=exports,
)
