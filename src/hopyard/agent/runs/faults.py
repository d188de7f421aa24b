"""Whose fault an error was that ended a unit. What follows from it is decided in `core/runs/faults.py`.

The worker wraps what it does itself (States, rows) in errors of Hopyard's own, so what is left is the recipe's, and is
looked at by its class. Frameworks are not imported for that: their classes are known by name.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from hopyard.errors import DataError, HopyardError, ResourceError
from hopyard.spec import Fault, Ref
from hopyard.store.guard import StoreUnreachable
from hopyard.store.tree import StateError
from hopyard.system.files import FULL

MISTAKES = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors of the operating system that a recipe raises and that do not go away when the unit is tried again."""
BROKEN = (
    *FULL,
    *(errno.EIO, errno.EROFS, errno.ENXIO, errno.ENODEV, errno.EBADMSG),
    getattr(errno, "EUCLEAN", errno.EIO),
)
"""What a disk says that is full, broken, or was made read-only because it is damaged."""
_MEMORY = {("torch", "OutOfMemoryError"), ("tensorflow", "ResourceExhaustedError")}
_EXHAUSTED = (
    "RESOURCE_EXHAUSTED",
    "CUDA out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""How errors begin to tell that are of no class of their own: JAX's, torch's on a CPU, cuBLAS'."""
_ON_HOST = ("DefaultCPUAllocator", "device:CPU", "by allocator cpu", "by allocator mklcpu")


class Missing(HopyardError):
    """A State is neither in shared memory nor in the store, or is damaged there."""

    def __init__(self, ref: Ref, message: str) -> None:
        self.ref = ref
        super().__init__(message)


class Unreadable(HopyardError):
    """Rows could not be read, which may be over the next time: a file server that blinks."""


class HostFault(HopyardError):
    """This host cannot keep or read rows: its disk is full or broken. Another host may."""


class Blame(NamedTuple):
    """Whose fault it was. `device`: of memory, the device's."""

    fault: Fault
    device: bool = False


def blame(error: BaseException, accelerated: bool) -> Blame:
    """Whose fault an error was that ended a unit or a check.

    Args:
        error: it.
        accelerated: whether the worker computes on an accelerator.
    """
    if (found := _memory(error)) is not None:
        return Blame("memory", accelerated and found)
    if isinstance(error, (StoreUnreachable, Missing)):
        return Blame("store")
    if isinstance(error, DataError):
        return Blame("data")
    if isinstance(error, (StateError, Unreadable)):
        return Blame("system")
    if isinstance(error, OSError) and not isinstance(error, MISTAKES):
        return Blame("system")
    return Blame("user")


def _memory(error: BaseException) -> bool | None:
    """Whether memory ran out: None: no; False: certainly the host's; True: perhaps a device's."""
    seen = 0
    one: BaseException | None = error
    while one is not None and seen < 10:
        if isinstance(one, MemoryError) or (isinstance(one, OSError) and one.errno == errno.ENOMEM):
            return False
        names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(one).__mro__}
        whole = str(one)
        text = f"{whole[:4000]} {whole[-4000:]}"  # TensorFlow tells first where in the graph it was
        speaks = isinstance(one, RuntimeError) or ("tensorflow", "OpError") in names
        if names & _MEMORY or (speaks and any(word in text for word in _EXHAUSTED)):
            return not any(word in text for word in _ON_HOST)
        one, seen = one.__cause__, seen + 1
    return None


class Reading:
    """Around what reads rows: tells its errors by whether this host is to blame, or may be only for now.

    Args:
        what: is read, for messages.
        host: this one's name.

    Raises:
        HostFault: its disk is full or broken.
        Unreadable: anything else that the operating system or a network says.
        DataError: the rows are not what they should be.
    """

    __slots__ = ("_host", "_what")

    def __init__(self, what: str, host: str) -> None:
        self._what, self._host = what, host

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ResourceError):
            raise HostFault(f"host {self._host}: {error}") from error
        if not isinstance(error, (OSError, DataError)):
            return
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            return
        if cause.errno in BROKEN:
            raise HostFault(f"host {self._host} cannot read or keep {self._what}: {error}") from error
        text = f"host {self._host} cannot read {self._what} at present: {type(cause).__name__}: {error}"
        raise Unreadable(text) from error
