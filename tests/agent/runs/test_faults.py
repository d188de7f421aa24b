"""Whose fault an error was: frameworks' own classes are known without importing any framework."""

from __future__ import annotations

import errno
from typing import Any

import pytest

import hopyard as hy
from hopyard.agent.runs.faults import Blame, HostFault, Missing, Unreadable, blame, reading
from hopyard.errors import ResourceError
from hopyard.spec import Ref
from hopyard.store.guard import StoreUnreachable
from hopyard.store.tree import StateError


def like(module: str, name: str, base: type[Exception] = RuntimeError) -> type[Exception]:
    """An error class as a framework has it."""
    return type(name, (base,), {"__module__": module})


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ValueError("x"), "user"),
        (RuntimeError("shapes differ"), "user"),
        (SystemExit(1), "user"),
        (FileNotFoundError("x"), "user"),
        (hy.DataError("x"), "data"),
        (ConnectionResetError("x"), "system"),
        (TimeoutError("x"), "system"),
        (OSError(errno.ESTALE, "Stale file handle"), "system"),
        (StateError("x"), "system"),
        (Unreadable("x"), "system"),
        (StoreUnreachable("x"), "store"),
        (Missing(Ref(0, 1, 1), "x"), "store"),
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 8 TB"), "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "memory"),
        (like("torch", "OutOfMemoryError")("CUDA out of memory."), "memory"),
        (like("torch.cuda", "OutOfMemoryError")("CUDA out of memory."), "memory"),
        (like("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", Exception)("OOM"), "memory"),
        (like("jaxlib._jax", "XlaRuntimeError")("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), "memory"),
    ],
)
def test_whose_fault_it_was(error: BaseException, fault: Any) -> None:
    assert blame(error, accelerated=False) == Blame(fault, False)


def test_memory_of_the_device_or_of_the_host() -> None:
    cuda = like("torch", "OutOfMemoryError")("CUDA out of memory.")
    assert blame(cuda, accelerated=True) == Blame("memory", True)
    assert blame(MemoryError(), accelerated=True) == Blame("memory", False)
    cpu = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
    assert blame(cpu, accelerated=True) == Blame("memory", False)
    tensorflow = like("tensorflow.python.framework.errors_impl", "ResourceExhaustedError", Exception)
    on_gpu = tensorflow("OOM when allocating tensor on /job:localhost/device:GPU:0 by allocator GPU_0_bfc")
    on_cpu = tensorflow("OOM when allocating tensor on /job:localhost/device:CPU:0 by allocator cpu")
    assert blame(on_gpu, accelerated=True).device and not blame(on_cpu, accelerated=True).device


def test_tensorflows_errors_of_libraries_beneath_it() -> None:
    operation = like("tensorflow.python.framework.errors_impl", "OpError", Exception)
    internal = like("tensorflow.python.framework.errors_impl", "InternalError", operation)
    trace = 200 * "File x, line 1, in <module>\n"
    assert blame(internal(f"{trace}CUBLAS_STATUS_ALLOC_FAILED"), accelerated=True) == Blame("memory", True)
    assert blame(internal(f"{trace}cuDNN has another version"), accelerated=True).fault == "user"


def test_a_memory_error_is_found_in_the_chain_of_causes() -> None:
    error = ValueError("while training")
    error.__cause__ = MemoryError()
    assert blame(error, accelerated=False).fault == "memory"


def test_torchs_own_errors() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 48, dtype=torch.float64)
    assert blame(caught.value, accelerated=False) == Blame("memory", False)
    assert blame(torch.OutOfMemoryError("CUDA out of memory."), accelerated=True) == Blame("memory", True)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (ResourceError("no room for the data cache"), HostFault),
        (OSError(errno.EROFS, "Read-only file system"), HostFault),
        (FileNotFoundError(errno.ENOENT, "No such file"), Unreadable),
        (TimeoutError(), Unreadable),
        (hy.DataError("the digest is another"), hy.DataError),
        (ValueError("x"), ValueError),
    ],
)
def test_errors_of_reading_rows(raised: Exception, told: type[Exception]) -> None:
    with pytest.raises(told), reading("train partition 0", "here"):
        raise raised
