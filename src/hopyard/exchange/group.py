"""The process group of a gang: torch.distributed's gloo between the members, which met on a board; beside it sockets of
their own for averages, and NCCL for what lies on GPUs.

torch's global process group is not touched: the user's code may have its own. Sockets are bound to the one address by
which the members reach each other. gloo knows no authentication; only numbers go over it, no pickled objects.

When a member is gone, its neighbours' operations fail at once and the others' never do: whoever sees an error closes
its group, so that its neighbours see one, and so on. Time-outs come last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import ProcessGroupGloo, Store  # type: ignore[attr-defined]

from hopyard.exchange import gpus
from hopyard.exchange.blocks import BlockAverager
from hopyard.exchange.board import Board, GangBroken
from hopyard.exchange.buffers import PIECE_BYTES
from hopyard.exchange.peers import CONNECT_SECONDS, connect

SILENT_SECONDS = 3600.0
"""Time that one operation of gloo waits for others; in averages over sockets there is none. A member that makes no
progress is noticed by the driver before."""


class Rendezvous(Store):
    """The part of a board that belongs to one group, as torch asks for it.

    Args:
        board: of this process.
        group: the number of the group.
    """

    def __init__(self, board: Board, group: int) -> None:
        super().__init__()
        self._board, self._group = board, group

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        """Publish a value."""
        self._board.set(self._group, key, bytes(value))

    def get(self, key: str) -> bytes:
        """Return a value, once it is published."""
        return self._board.get(self._group, key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait until values are published, however long that takes."""
        for key in keys:
            self._board.get(self._group, key)


class Group:
    """A member's end of the group, connected when it is first used. All call the same operations in the same order.

    Args:
        rank, size: which member this is, of how many.
        board: where the members meet.
        number: the number of the group on the board.
        address: the address of this host by which the other members reach it.
        gpu_interface: the network interface for what is exchanged between GPUs; "": any; None: what lies there goes
            through the hosts' memory.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        board: Board,
        number: int,
        address: str,
        gpu_interface: str | None = None,
    ) -> None:
        self.rank, self.size = rank, size
        self._board, self._number, self._address = board, number, address
        self._gpu_interface = gpu_interface
        self._group: Any = None
        self._blocks: BlockAverager | None = None
        self._gpus: gpus.Gpus | None = None
        self._memory: dict[torch.dtype, torch.Tensor] = {}
        self._aborted = self._closed = False
        self._reduced = self._copied = 0
        """Bytes that were added up or averaged in all, and what `gather` and `broadcast` have sent."""

    @property
    def sent(self) -> int:
        """Bytes that this member has sent to the others.

        What goes over its own sockets is counted. Gloo and NCCL do not say: of n bytes that k members add up
        or average, each sends 2 (k − 1) n / k, as in a ring; of n bytes that it gives to all, (k − 1) n. What
        rank 0 alone gives, (k − 1) n in all, is shared among the members.

        Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
        Distrib. Comput. 69, 2009, §3.
        """
        reduced = self._reduced + (0 if self._gpus is None else self._gpus.reduced)
        written = 0 if self._blocks is None else self._blocks.sent
        return 2 * (self.size - 1) * reduced // self.size + self._copied + written

    def connect(self) -> None:
        """Connect the members, if they are not; waits until all of them are there.

        Raises:
            GangBroken: they could not be connected, or their unit was given up.
        """
        if self.size == 1 or self._group is not None:
            return
        if self._closed:
            raise GangBroken("this member has hung up")
        store = Rendezvous(self._board, self._number)
        store.set(f"here/{self.rank}", b"" if self._gpu_interface is None else gpus.identity())
        identities = [store.get(f"here/{each}") for each in range(self.size)]  # one may build its model for minutes
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=self._address)]
        options._timeout = timedelta(seconds=CONNECT_SECONDS)
        self._group = self._guarded(lambda: ProcessGroupGloo(store, self.rank, self.size, options))
        self._group._set_default_timeout(timedelta(seconds=SILENT_SECONDS))
        if gpus.reachable(identities):
            self._connect_gpus(store)

    def _connect_gpus(self, store: Rendezvous) -> None:
        """Connect the GPUs, if all members can."""
        fault = ""
        try:
            self._gpus = gpus.prepare(store, self.rank, self.size, self._gpu_interface or "", self._guarded)
        except RuntimeError as error:
            fault = _reason(error)
        if not (faults := self._faults(fault)) and self._gpus is not None:
            if self._aborted:
                self._gpus.abort()
            fault = self._gpus.meet()
            if self._aborted:
                self.close()
                raise GangBroken("the unit was given up while its members met")
            faults = self._faults(fault)
        if faults:
            if self._gpus is not None:
                self._gpus.close()
            self._gpus = None
            warnings.warn(
                f"NCCL cannot connect the GPUs of this gang, so arrays go through the hosts' memory; {faults[0]}",
                stacklevel=2,
            )

    def _faults(self, own: str) -> list[str]:
        """Return what is wrong at any member."""
        faults = self.gather(own.encode())
        return [f"member {rank}: {each.decode()}" for rank, each in enumerate(faults) if each]

    @property
    def gpus(self) -> gpus.Gpus | None:
        """The same members, for what lies on their GPUs; None: that goes through the hosts' memory."""
        self.connect()
        return self._gpus

    def memory(self, numbers: int, dtype: torch.dtype) -> torch.Tensor:
        """Return memory on the host for one operation. It is kept: new pages cost more than what is done in them."""
        if dtype not in self._memory or len(self._memory[dtype]) < numbers:
            self._memory[dtype] = torch.empty(numbers, dtype=dtype)
        return self._memory[dtype][:numbers]

    def add(self, flat: torch.Tensor) -> None:
        """Replace a tensor of one axis on the host by the sum over all members, with the same bits everywhere."""
        self._reduced += flat.nbytes
        pieces = torch.split(flat, PIECE_BYTES // flat.element_size())
        for work in [self._guarded(partial(self._alive().allreduce, piece)) for piece in pieces]:
            self._guarded(work.wait)

    def average(self, flat: torch.Tensor, rows: float) -> None:
        """Replace a tensor of one axis on the host by the average over all members, weighted by the members' rows, with
        the same bits everywhere. It is as long as those of other members. `rows`: of this member."""
        try:
            if self._blocks is None:
                peers = connect(self.rank, self.size, self._address, self.gather, lambda: self._aborted)
                self._blocks = BlockAverager(peers, self.rank)
                if self._aborted:
                    self._blocks.abort()
            self._blocks.average(flat, rows)
        except BaseException:
            self.close()  # so that the others notice
            raise

    def broadcast(self, flat: torch.Tensor) -> None:
        """Replace a tensor on the host by that of rank 0."""
        if self.size > 1:
            self._guarded(lambda: self._alive().broadcast(flat, 0).wait())
            self._copied += (self.size - 1) * flat.nbytes // self.size

    def gather(self, data: bytes) -> list[bytes]:
        """Return the data of all members, by rank."""
        if self.size == 1:
            return [data]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._guarded(lambda: self._alive().allgather(lengths, torch.tensor([len(data)])).wait())
        counts = [int(length) for length in lengths]
        padded = torch.zeros(max(*counts, 1), dtype=torch.uint8)
        if data:
            padded[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everything = [torch.empty_like(padded) for _ in range(self.size)]
        self._guarded(lambda: self._alive().allgather(everything, padded).wait())
        self._copied += (self.size - 1) * (lengths[0].nbytes + padded.nbytes)
        return [part[:count].numpy().tobytes() for part, count in zip(everything, counts, strict=True)]

    def abort(self) -> None:
        """Break off, from any thread, what does not notice by itself that a member is gone."""
        self._aborted = True
        for part in (self._gpus, self._blocks):
            if part is not None:
                part.abort()

    def close(self) -> None:
        """Hang up, which the other members notice."""
        self._closed = True
        self.abort()
        for part in (self._blocks, self._gpus):
            if part is not None:
                part.close()
        self._group = self._blocks = self._gpus = None

    def _alive(self) -> Any:
        self.connect()
        return self._group

    def _guarded(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except RuntimeError as error:
            self.close()
            raise GangBroken(f"the exchange between the members of the gang broke: {_reason(error)}") from None


def _reason(error: RuntimeError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
