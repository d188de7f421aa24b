"""A gang whose members are threads of this process: they meet on boards and are connected by gloo, as processes are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.exchange.board import Board
from hopyard.exchange.exchange import GangExchange
from hopyard.exchange.group import Group
from hopyard.spec import Gang

LOOPBACK = "127.0.0.1"
ALONE = Gang()


def boards(size: int) -> list[Board]:
    """Boards on which each member sees what the others publish, as through a driver."""
    made: list[Board] = []

    def publisher(rank: int) -> Callable[[int, str, bytes], None]:
        def publish(group: int, key: str, value: bytes) -> None:
            for other, board in enumerate(made):
                if other != rank:
                    board.add(group, key, value)

        return publish

    made += [Board(publisher(rank)) for rank in range(size)]
    return made


def exchanges(gang: Gang, number: int = 1, gpu_interface: str | None = None) -> list[GangExchange]:
    """`gpu_interface`: as for `Group`."""
    made = boards(gang.size)

    return [
        GangExchange(gang, Group(rank, gang.size, made[rank], number, LOOPBACK, gpu_interface))
        for rank in range(gang.size)
    ]


def together(work: Callable[[GangExchange], Any], members: Sequence[GangExchange]) -> list[Any]:
    """What the members' work returns, by rank."""
    with ThreadPoolExecutor(len(members)) as pool:
        results = list(pool.map(work, members))
    for member in members:
        member.close()
    return results


def partitions(rows: Sequence[int], weights: bool = False, seed: int = 0) -> list[Columns]:
    """Partitions of so many rows: 5 numbers, and a class of 3."""
    rng = np.random.default_rng(seed)
    return [
        Columns(
            rng.standard_normal((count, 5)),
            rng.integers(0, 3, count),
            rng.random(count).astype(np.float32) if weights else None,
            count,
        )
        for count in rows
    ]


def trained(build: Callable[[], Any], data: Sequence[Columns], batch_size: int, gang: Gang = ALONE) -> list[Any]:
    """The models of all members after one pass over all partitions, and the sums of each partition."""

    models = [build() for _ in range(gang.size)]  # one after the other: seeds are the whole process's

    def work(exchange: GangExchange | None) -> Any:
        model = models[0 if exchange is None else exchange.rank]
        model.set_exchange(exchange)
        rank, size = (0, 1) if exchange is None else (exchange.rank, exchange.size)
        whole = batch_size * (size if gang.exchange == "parameters" else 1)
        sums = [
            model.train_partition(PartitionLoader(columns, whole, 7 + number, 3, (rank, size)))
            for number, columns in enumerate(data)
        ]
        return model, sums

    if gang == ALONE:
        return [work(None)]
    return together(work, exchanges(gang))
