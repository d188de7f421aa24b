"""torch's `Runtime`: seeds, threads and determinism of the process.

What is global to the process is changed here only, and only by `reseed` and `install`.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Literal

import torch

from hopyard.frameworks.torch.files import FILE
from hopyard.ports import Runtime


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
    import hopyard.frameworks.torch.model  # noqa: F401


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


def snapshot() -> Any:
    """What a run changes in this process."""
    return torch.get_rng_state(), torch.get_num_threads(), torch.get_deterministic_debug_mode()


def restore(before: Any) -> None:
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


RUNTIME = Runtime(
    versions,
    prepare=prepare,
    warm=warm,
    install=install,
    reseed=reseed,
    snapshot=snapshot,
    restore=restore,
    release=release,
    file=FILE,
)
