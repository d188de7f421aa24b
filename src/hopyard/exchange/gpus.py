"""The exchange of arrays on GPUs, by NCCL, where each member has a GPU of its own.

NCCL does not notice that a member is gone. The driver says so, and the connection's thread aborts what this one does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
    AllgatherOptions,
    AllreduceOptions,
    AllToAllOptions,
)

from hopyard.exchange.buffers import average_of

SHARED = "NCCL_MULTI_RANK_GPU_ENABLE"
"""The environment variable by which NCCL (from 2.31 on) lets several members have one GPU: for trials, it is slow."""
INTERFACE = "NCCL_SOCKET_IFNAME"
UNWATCHED = "TORCH_NCCL_BLOCKING_WAIT"
"""Set, torch starts no thread that watches what is under way, and ends the process where that fails."""
MEET_SECONDS = 120.0
"""Time for NCCL to connect the members, once all of them are prepared."""
ABORT_SECONDS = 10.0
"""Time for NCCL to give back what it has."""
_MAY_SHARE = "shared GPU"
AVERAGED_BYTES = 64 << 20
"""Bytes that are averaged at a time: as many are received beside them."""

Guard = Callable[[Callable[[], Any]], Any]
"""Calls an operation of the process group; raises GangBroken where that fails."""


def identity() -> bytes:
    """Return what names the GPU on which torch works in this process, and its NCCL; empty: it cannot be used."""
    if not (dist.is_nccl_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return b""
    if not hasattr(dist.ProcessGroupNCCL, "abort"):  # torch 2.5
        return b""
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    kind = _MAY_SHARE if os.environ.get(SHARED) == "1" else "GPU"
    return f"NCCL {version}, {kind} {gpu}".encode()


def reachable(identities: Sequence[bytes]) -> bool:
    """Whether members with these GPUs can be connected by one NCCL."""
    versions = {each.partition(b",")[0] for each in identities}
    may_share = all(_MAY_SHARE.encode() in each for each in identities)
    return all(identities) and len(versions) == 1 and (may_share or len(set(identities)) == len(identities))


def prepare(store: Store, rank: int, size: int, interface: str, guard: Guard) -> Gpus:
    """Return this member's part, which is not connected yet. Nobody is waited for.

    Args:
        store: where the members meet.
        rank, size: which member this is, of how many.
        interface: the network interface that leads to the others, if the user's environment names none; "": any.
        guard: calls what they exchange.

    Raises:
        RuntimeError: NCCL or the GPU cannot do that.
    """
    if interface:
        os.environ.setdefault(INTERFACE, f"={interface}")  # it alone, and none whose name begins like it
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(days=1)
    with _unwatched():
        group: Any = dist.ProcessGroupNCCL(PrefixStore("gpus", store), rank, size, options)
    return Gpus(group, size, torch.device("cuda", torch.cuda.current_device()), _settle, guard)


@contextmanager
def _unwatched() -> Iterator[None]:
    before = os.environ.get(UNWATCHED)
    os.environ[UNWATCHED] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[UNWATCHED]
        else:
            os.environ[UNWATCHED] = before


def _now(kind: type[Any]) -> Any:
    """Return options of an operation that goes in the current stream, not in one of NCCL's own."""
    options = kind()
    if hasattr(options, "asyncOp"):
        options.asyncOp = False
    return options


def _settle(work: Any) -> None:
    """Wait until the GPU has done it; other threads of Python go on."""
    if not hasattr(AllreduceOptions, "asyncOp"):  # until torch 2.7
        work.synchronize()  # the current stream waits for NCCL's
    torch.cuda.current_stream().synchronize()


class Gpus:
    """One member's part in what all exchange on their GPUs. All call the same operations in the same order.

    Args:
        group: of torch.distributed, of all members.
        size: how many they are.
        device: this member's.
        settle: waits for an operation of the group.
        guard: calls it.
    """

    def __init__(
        self, group: Any, size: int, device: torch.device, settle: Callable[[Any], None], guard: Guard
    ) -> None:
        self._group, self._size, self._device, self._settle, self._guard = group, size, device, settle, guard
        self.reduced = 0
        """Bytes that were added up or averaged."""
        self._one = torch.ones(1, device=device)
        self._aborted = threading.Event()
        self._aborting = threading.Thread(target=self._abort, name="hopyard-abort", daemon=True)
        self._lock = threading.Lock()

    def meet(self) -> str:
        """Connect the members. Returns what is wrong; "": nothing."""
        late = threading.Timer(MEET_SECONDS, self.abort)
        late.daemon = True
        late.start()
        try:
            self._settle(self._group.allreduce([self._one], _now(AllreduceOptions)))
        except RuntimeError as error:
            return str(error) or type(error).__name__
        finally:
            late.cancel()
        return "they did not meet" if self._aborted.is_set() else ""

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies on this member's GPU."""
        return tensor.device == self._device

    def memory(self, numbers: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory on the GPU for one operation."""
        return torch.empty(numbers, dtype=dtype, device=self._device)

    def add(self, flat: torch.Tensor) -> None:
        """Replace a tensor of one axis by the sum over all members, as `Group.add` does.

        Raises:
            GangBroken: a member is gone.
        """
        self._do(lambda: self._group.allreduce([flat], _now(AllreduceOptions)))
        self.reduced += flat.nbytes

    def average(self, flat: torch.Tensor, rows: float) -> None:
        """Replace a tensor of one axis by the average over all members, as `Group.average` does. Each member averages a
        block: its length is a multiple of their number.

        Raises:
            GangBroken: a member is gone.
        """
        counts = torch.zeros(self._size, dtype=torch.float64, device=flat.device)
        self._gather(counts, torch.full_like(counts[:1], rows))
        most = max(1, AVERAGED_BYTES // flat.element_size() // self._size) * self._size
        for piece in torch.split(flat, most):
            self._average(piece, counts.tolist())
        self.reduced += flat.nbytes

    def _average(self, piece: torch.Tensor, counts: Sequence[float]) -> None:
        received = torch.empty_like(piece)
        self._do(lambda: self._group.alltoall_base(received, piece, [], [], _now(AllToAllOptions)))
        blocks = list(received.view(self._size, -1))
        average = torch.empty_like(blocks[0])
        average_of(blocks, counts, average)
        self._gather(piece, average)

    def _gather(self, all_of_it: torch.Tensor, own: torch.Tensor) -> None:
        self._do(lambda: self._group._allgather_base(all_of_it, own, _now(AllgatherOptions)))

    def _do(self, begin: Callable[[], Any]) -> None:
        """Begin an operation of the group, and wait for its end."""

        def done() -> None:
            self._settle(begin())
            if self._aborted.is_set():
                raise RuntimeError("the unit was given up")

        self._guard(done)

    def abort(self) -> None:
        """Break off what is under way, from any thread; nothing else can be exchanged. Does not wait for NCCL."""
        with self._lock:
            if not self._aborted.is_set():
                self._aborted.set()
                self._aborting.start()

    def close(self) -> None:
        """Break off what is under way, and give back what NCCL has."""
        self.abort()
        self._aborting.join(ABORT_SECONDS)

    def _abort(self) -> None:
        with suppress(RuntimeError):  # whom that leaves waiting, the driver ends
            self._group.abort()
