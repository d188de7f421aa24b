"""A member of a gang in a process of its own, which imports this module by its name."""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch

from hopyard.exchange.buffers import Layout
from hopyard.exchange.shared import share


def share_once(connection: Connection) -> None:
    """Be rank 1 of two: take part in one exchange through shared memory, and in no other.

    Args:
        connection: gathers what both members hand over; then "took part" goes through it.
    """

    def gather(data: bytes) -> list[bytes]:
        connection.send(data)
        return list(connection.recv())

    memory = share(1, 2, gather)
    assert memory is not None
    memory.reduce(Layout(torch.float32, [100_000]), lambda _, part: part.fill_(2.0), lambda _, part: None)  # type: ignore[arg-type]
    connection.send("took part")
    connection.recv()
