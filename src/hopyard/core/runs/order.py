"""Which trial visits which partition when, and with which seed: pure functions of (seed, trial, epoch, partition).

Nothing here knows about workers, so nothing that follows from it can depend on them.
"""

from __future__ import annotations

from functools import lru_cache

from hopyard.core.keyed import keyed


def build_seed(seed: int, trial: int) -> int:
    """Return the seed of a trial's recipe, for its first weights."""
    return keyed(seed, "build", trial)


def partition_seed(seed: int, trial: int, epoch: int, partition: int) -> int:
    """Return the seed of dropout, augmentation and all else that is drawn while a trial goes over one partition."""
    return keyed(seed, "partition", trial, epoch, partition)


def shuffle_seed(seed: int, trial: int, epoch: int, partition: int) -> int:
    """Return the seed of the order of the rows of one partition in one epoch of one trial."""
    return keyed(seed, "shuffle", trial, epoch, partition)


def validation_seed(seed: int, trial: int, epoch: int, partition: int) -> int:
    """Return the seed of what a model draws while it is validated on one partition."""
    return keyed(seed, "validation", trial, epoch, partition)


def member_seed(seed: int, rank: int) -> int:
    """Return the seed of what one member of a gang draws, from that of a unit without one; rank 0 draws the same."""
    return keyed(seed, "member", rank) if rank else seed


def shard(rows: int, size: int, rank: int) -> tuple[int, int]:
    """Return (first, last + 1) of the rows of a batch that a member of a gang takes: the members' shares follow each
    other and differ by one row at most, the first ones are the larger. So each has a row where there are as many rows
    as members, and rank 0 has one wherever there is one."""
    each, more = divmod(rows, size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


@lru_cache(16)
def spread(partitions: int) -> tuple[int, ...]:
    """Return a permutation of the partitions of which every prefix is spread over all of them.

    Source: van der Corput, "Verteilungsfunktionen", Proc. Akad. Amsterdam 38, 1935: the sequence of base 2 (numbers
    with their bits reversed), scaled to the partitions, without duplicates.
    """
    bits = (partitions - 1).bit_length()
    reversed_bits = (sum((number >> bit & 1) << (bits - 1 - bit) for bit in range(bits)) for number in range(1 << bits))
    return tuple(dict.fromkeys(number * partitions >> bits for number in reversed_bits))


def start(trial: int, partitions: int) -> int:
    """Return where in the rotation over the partitions a trial begins, by `spread`: trials whose numbers follow each
    other begin far apart, so that each host has some."""
    return spread(partitions)[trial % partitions]


def visit(offset: int, step: int, partitions: int) -> tuple[int, int]:
    """Return (epoch, partition) that a trial visits after `step` partitions, by the Latin rotation (i + k) mod P. Its
    offset i is its `start`, unless the search gave it another one.

    Source: Cerebro, VLDB 2020, §4; there the rotation is over workers, here over partitions.
    """
    return step // partitions, (offset + step) % partitions
