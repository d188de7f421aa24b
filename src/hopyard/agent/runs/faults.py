"""Decides whose fault an error was that ended a unit. `core/runs/faults/` decides what follows from it.

The worker wraps errors of its own work (States, rows) in Hopyard's own classes, so all other errors are the recipe's
and are judged by their class. Frameworks are not imported for that: their classes are recognized by name.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from hopyard.errors import DataError, HopyardError, ResourceError
from hopyard.spec import Fault, Ref
from hopyard.store.guard import StoreUnreachable
from hopyard.store.tree import StateError
from hopyard.system.files import FULL
from hopyard.text import message_of

MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that a recipe raises and that do not go away when the unit is tried again."""
BROKEN = (
    *FULL,
    *(errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EBADMSG),
    getattr(errno, "EUCLEAN", errno.EIO),
)
"""Errors of a disk that is full, broken, or was made read-only because it is damaged."""
_MEMORY = {("torch", "OutOfMemoryError"), ("tensorflow", "ResourceExhaustedError")}
_EXHAUSTED = (
    "RESOURCE_EXHAUSTED",
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""Phrases in errors that have no class of their own: JAX's, torch's on a CPU, cuBLAS'."""
_ON_HOST = ("DefaultCPUAllocator", "device:CPU", "by allocator cpu", "by allocator mklcpu")


class Missing(HopyardError):
    """A State is neither in shared memory nor in the store, or is damaged there."""

    def __init__(self, ref: Ref, message: str) -> None:
        self.ref = ref
        super().__init__(message)


class Unreadable(HopyardError):
    """Rows could not be read, which may pass: a file server that is away for a moment."""


class HostFault(HopyardError):
    """This host cannot keep or read rows: its disk is full or broken. Another host may."""


class Blame(NamedTuple):
    """Whose fault it was. `device`: where memory ran out, it was the device's."""

    fault: Fault
    device: bool = False


def blame(error: BaseException, accelerated: bool) -> Blame:
    """Return whose fault an error was that ended a unit or a check.

    Args:
        error: the error.
        accelerated: whether the worker computes on an accelerator.
    """
    if (on_device := _out_of_memory(error)) is not None:
        return Blame("memory", accelerated and on_device)
    if isinstance(error, (StoreUnreachable, Missing)):
        return Blame("store")
    if isinstance(error, DataError):
        return Blame("data")
    if isinstance(error, (StateError, Unreadable)):
        return Blame("system")
    if isinstance(error, OSError) and not isinstance(error, MISTAKES):
        return Blame("system")
    return Blame("user")


def _out_of_memory(error: BaseException) -> bool | None:
    """Return whether memory ran out. None: no; False: certainly the host's; True: perhaps a device's."""
    depth = 0
    cause: BaseException | None = error
    while cause is not None and depth < 10:
        if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno == errno.ENOMEM):
            return False
        names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(cause).__mro__}
        message = message_of(cause)
        text = f"{message[:4000]} {message[-4000:]}"  # TensorFlow first says where in the graph it was
        is_framework_error = isinstance(cause, RuntimeError) or ("tensorflow", "OpError") in names
        if names & _MEMORY or (is_framework_error and any(phrase in text for phrase in _EXHAUSTED)):
            return not any(phrase in text for phrase in _ON_HOST)
        cause, depth = cause.__cause__, depth + 1
    return None


@contextmanager
def reading(rows: str, host: str) -> Iterator[None]:
    """Surrounds the reading of rows: classifies errors by whether this host is to blame, or perhaps only for now.

    Args:
        rows: name of the rows, for messages.
        host: name of this host.

    Raises:
        HostFault: the host's disk is full or broken.
        Unreadable: any other error of the operating system or a network.
        DataError: the rows are not what they should be.
    """
    try:
        yield
    except (OSError, DataError, ResourceError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        out_of_memory = isinstance(cause, OSError) and cause.errno == errno.ENOMEM
        if isinstance(error, ResourceError) and not out_of_memory:
            raise HostFault(f"host {host}: {error}") from error
        if not isinstance(cause, OSError):
            raise
        if cause.errno in BROKEN:
            raise HostFault(f"host {host} cannot read or keep {rows}: {error}") from error
        text = f"host {host} cannot read {rows} at present: {type(cause).__name__}: {error}"
        raise Unreadable(text) from error
