"""Homes of partitions: the hosts on which the rows of each partition stay, so that models move and rows do not.

**Rules.** The partitions of each kind, training and validation, are cut into *blocks* of consecutive ones, as many as
the engine has workers. A host works on the blocks that are at home there. It becomes the home of a block when a unit
over it is first given out, or when it joins with rows of it (`Placed`). A block has `copies` homes, and a host
takes `copies` blocks for each of its workers, its *share*, next to each other where it can.

A block of which no home has a worker is *vacant*. Hosts below their share take vacant blocks at once, which is what a
new host does. After `GRACE` seconds, in which a lost worker comes back, all hosts do, and divide the block among them.
Where no training block wants a home, a host below its share becomes another home of any, so it does not idle.

A home is a preference of the scheduler, never a condition of a unit: an agent fetches the rows that it lacks, so any
agent can run any unit. `tiers` orders the blocks for a host; which of their trials it takes is `policy`'s choice.

A later driver cuts the partitions anew only if it has more workers. Where partitions have no homes (`RunSpec.copies`
is None, or all workers are on one host), there is one block of each kind, at home everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hopyard.core.runs.events import Placed
from hopyard.spec import PartitionRange, RowKind, RunSpec

GRACE = 30.0
"""Seconds after which hosts that have their share take blocks without a home."""

Tiers = tuple[tuple[int, ...], ...]
"""Blocks for a host: those of the first tier come before those of the second, and so on."""


class HomeBlocks:
    """The blocks of one kind, and their homes. Owner: `Homes`.

    Args:
        partitions: how many there are.
        count: into how many blocks they are cut; fewer where there are fewer partitions.
    """

    def __init__(self, partitions: int, count: int) -> None:
        self.cut = self.count = max(1, min(partitions, count))
        """Into how many blocks the partitions were cut, and how many there are since some were divided."""
        self.bounds = [block * partitions // self.count for block in range(self.count + 1)]
        """Block b has the partitions bounds[b] … bounds[b + 1] − 1."""
        self.of = self._of()
        """Partition → its block."""
        self.homes: list[tuple[str, ...]] = [()] * self.count
        """Hosts, the one that has been home for longest first; also those that have no worker at present."""
        self.vacant: dict[int, float] = {}
        """Block → since when no home of it has a worker."""
        self.free: set[int] = set()
        """Those that have been vacant for `GRACE` seconds."""

    def _of(self) -> list[int]:
        return [block for block in range(self.count) for _ in range(self.bounds[block], self.bounds[block + 1])]

    def size(self, block: int) -> int:
        """Return how many partitions a block has."""
        return self.bounds[block + 1] - self.bounds[block]

    def divide(self, partition: int) -> bool:
        """Split the block of this partition there. Return whether it was split."""
        if partition in self.bounds:
            return False
        block = self.of[partition]
        self.count += 1
        self.bounds.insert(block + 1, partition)
        self.homes.insert(block, self.homes[block])
        self.of = self._of()
        self.vacant = {n + shift: at for n, at in self.vacant.items() for shift in _moved(n, block)}
        self.free = {n + shift for n in self.free for shift in _moved(n, block)}
        return True

    def recut(self, count: int) -> HomeBlocks:
        """Return the same partitions in so many blocks. A block has the homes that all of its partitions had."""
        partitions = len(self.of)
        blocks = HomeBlocks(partitions, count)
        for block in range(blocks.count) if partitions else ():
            old = [self.homes[self.of[each]] for each in range(blocks.bounds[block], blocks.bounds[block + 1])]
            blocks.homes[block] = tuple([host for host in old[0] if all(host in homes for homes in old)])
        return blocks


class Homes:
    """The homes of all partitions of a run. Owner: `Machine`.

    Args:
        spec: the run's.

    Attributes:
        active: whether partitions have homes.
    """

    def __init__(self, spec: RunSpec) -> None:
        self.active = False
        self._copies = spec.copies
        self._members = spec.members
        self._workers = 0
        """Workers of the engine."""
        self._blocks: dict[RowKind, HomeBlocks] = {
            "train": HomeBlocks(spec.partitions, 1),
            "validate": HomeBlocks(spec.validation, 1),
        }
        self._hosts: dict[RowKind, dict[str, int]] = {"train": {}, "validate": {}}
        """Host → the slots there that train, and its workers, all of which validate. A gang over several hosts is on
        none of them."""
        self._rows: dict[str, tuple[PartitionRange, ...]] = {}
        """Host → the partitions that it had when it joined."""
        self._started = False
        """Whether this driver may give out units."""
        self._short: float | None = None
        """Since when fewer workers are there than the engine has; None: all are there."""
        self._waited = False
        """Whether that has been so for `GRACE` seconds."""
        self._tiers: dict[RowKind, dict[str | None, Tiers]] = {"train": {}, "validate": {}}
        self._ranks: dict[RowKind, dict[str | None, dict[int, int]]] = {"train": {}, "validate": {}}
        self._takers: dict[RowKind, list[str | None]] = {}
        self._amounts: dict[RowKind, dict[str, float]] = {}

    # ---------------------------------------------------------------- what an event changes

    def begin(self, workers: int, spec: RunSpec) -> None:
        """Begin with another driver, whose engine has so many workers; 0: they are on one host."""
        self._copies, self._members = spec.copies, spec.members
        self.active = bool(workers) and self._copies is not None
        self._workers = workers
        self._hosts = {"train": {}, "validate": {}}
        self._rows.clear()
        self._started, self._short, self._waited = False, None, False
        for kind, blocks in self._blocks.items():
            if not self.active:
                self._blocks[kind] = HomeBlocks(len(blocks.of), 1)
            elif min(len(blocks.of), self._slots(kind)) > blocks.cut:
                self._blocks[kind] = blocks.recut(self._slots(kind))
            self._blocks[kind].vacant.clear()
            self._blocks[kind].free.clear()
        self._changed()

    def join(self, kind: RowKind, host: str, rows: tuple[PartitionRange, ...] = ()) -> None:
        """Add a slot for units of this kind, whose host has these rows already."""
        hosts, blocks = self._hosts[kind], self._blocks[kind]
        hosts[host] = hosts.get(host, 0) + 1
        if rows:
            self._rows[host] = rows
        for block in [block for block in blocks.vacant if host in blocks.homes[block]]:
            del blocks.vacant[block]
            blocks.free.discard(block)
        if sum(self._hosts["validate"].values()) >= self._workers:
            self._short, self._waited = None, False
        self._changed()

    def leave(self, kind: RowKind, host: str, at: float) -> None:
        """Remove a slot."""
        hosts = self._hosts[kind]
        hosts[host] -= 1
        if not hosts[host]:
            del hosts[host]
            self._note_vacant(at)
        self._note_short(at)
        self._changed()

    def start(self, at: float) -> None:
        """Note that units may be given out: from now on, blocks without a home are vacant."""
        if self.active and not self._started:
            self._started = True
            self._note_vacant(at)
            self._note_short(at)

    def place(self, line: Placed) -> bool:
        """Let a host be home to partitions; their homes that have no worker are no longer homes. Returns whether that
        divides a block."""
        kind, first, end = line.partitions.kind, line.partitions.first, line.partitions.end
        blocks = self._blocks[kind]
        divided = [blocks.divide(partition) for partition in (first, end)]
        for block in range(blocks.of[first], blocks.of[end - 1] + 1):
            others = [host for host in blocks.homes[block] if host in self._hosts[kind] and host != line.host]
            blocks.homes[block] = (*others, line.host)
            blocks.vacant.pop(block, None)
            blocks.free.discard(block)
        self._changed()
        return any(divided)

    def tick(self, at: float) -> bool:
        """Note the time. Return whether blocks became free for all hosts, or workers of several hosts for gangs."""
        opened = self._members > 1 and not self._waited and self._short is not None and at >= self._short + GRACE
        self._waited = self._waited or opened
        for blocks in self._blocks.values():
            due = {block for block, since in blocks.vacant.items() if at >= since + GRACE} - blocks.free
            blocks.free |= due
            opened = opened or bool(due)
        if opened:
            self._changed()
        return opened

    # ---------------------------------------------------------------- asked

    def earliest(self) -> float | None:
        """Return when `tick` changes something next; None: never."""
        times = [
            since + GRACE
            for blocks in self._blocks.values()
            for block, since in blocks.vacant.items()
            if block not in blocks.free
        ]
        if self._members > 1 and self._short is not None and not self._waited:
            times.append(self._short + GRACE)
        return min(times, default=None) if self.active else None

    @property
    def settled(self) -> bool:
        """True if a gang over several hosts may be formed: all workers are there, or have been missing for `GRACE`."""
        return not self.active or self._short is None or self._waited

    def block(self, kind: RowKind, partition: int) -> int:
        """Return the block of a partition."""
        return self._blocks[kind].of[partition] if self.active else 0

    def at_home(self, host: str, kind: RowKind, partition: int) -> bool:
        """Return whether the partition is at home on this host; always, where partitions have no homes."""
        blocks = self._blocks[kind]
        return not self.active or host in blocks.homes[blocks.of[partition]]

    def homes(self, kind: RowKind, block: int, present: bool = True) -> Sequence[str]:
        """Return the hosts that are home to a block; if `present`, those with workers."""
        homes = self._blocks[kind].homes[block]
        return [host for host in homes if host in self._hosts[kind]] if present else homes

    def tiers(self, host: str | None, kind: RowKind) -> Tiers:
        """Return the blocks that a host works on, best first: those at home there, with vacant ones in its share of
        which it has rows, or that lie beside; other blocks in its share; those that any host may take. None stands for
        a gang over several hosts, which works on all alike."""
        tiers = self._tiers[kind].get(host)
        if tiers is None:
            tiers = self._tiers[kind][host] = self._ordered(host, kind)
        return tiers

    def rank(self, host: str | None, kind: RowKind, block: int) -> int:
        """Return the number of the host's tier that has the block, from 0; -1: none has."""
        ranks = self._ranks[kind].get(host)
        if ranks is None:
            tiers = self.tiers(host, kind)
            ranks = self._ranks[kind][host] = {block: rank for rank, tier in enumerate(tiers) for block in tier}
        return ranks.get(block, -1)

    def all_placed(self, kind: RowKind) -> bool:
        """Return whether each block has all of its homes, so that further hosts may become homes of any."""
        return all(len(self.homes(kind, block)) >= (self._copies or 1) for block in range(self._blocks[kind].count))

    def takers(self, kind: RowKind) -> list[str | None]:
        """Return the hosts that may take blocks beside those that are at home there."""
        takers = self._takers.get(kind)
        if takers is None:
            blocks, hosts = self._blocks[kind], [None, *self._hosts[kind]]
            takers = self._takers[kind] = [
                host
                for host in hosts
                if any(host not in blocks.homes[n] for tier in self.tiers(host, kind) for n in tier)
            ]
        return takers

    def run_length(self, host: str | None, partition: int, most: int) -> int:
        """Return how many consecutive training partitions, from this one on and at most so many, a unit on this host
        covers: it ends where its home does. What `claim` takes becomes one."""
        blocks = self._blocks["train"]
        if not self.active or host is None:
            return most
        claimed, partitions = self._piece(host, "train", partition), len(blocks.of)
        count = 1
        while count < most:
            following = (partition + count) % partitions
            if following not in claimed and host not in blocks.homes[blocks.of[following]]:
                break
            count += 1
        return count

    def together(self, host: str | None, kind: RowKind, partitions: Sequence[int]) -> list[int]:
        """Return those of the partitions that a unit on this host covers together: all at home there, else the first
        that it may take, with the others of its block."""
        blocks = self._blocks[kind]
        if not self.active or host is None:
            return list(partitions)
        if here := [each for each in partitions if host in blocks.homes[blocks.of[each]]]:
            return here
        ranked = [(rank, each) for each in partitions if (rank := self.rank(host, kind, blocks.of[each])) >= 0]
        claimed = self._piece(host, kind, min(ranked)[1] if ranked else partitions[0])
        return [each for each in partitions if each in claimed]

    def needed(self, partitions: Iterable[PartitionRange]) -> set[str]:
        """Return the hosts that are home to some of these partitions."""
        found = {(each.kind, self.block(each.kind, n)) for each in partitions for n in range(each.first, each.end)}
        return {host for kind, block in found for host in self.homes(kind, block)} if self.active else set()

    # ---------------------------------------------------------------- decisions

    def claim(self, host: str | None, kind: RowKind, partition: int, at: float) -> Placed | None:
        """Return the decision that makes this host home to the block of a partition; None: no decision is needed, or
        another host is home to it."""
        if host is None or self.at_home(host, kind, partition):
            return None
        if self.rank(host, kind, self._blocks[kind].of[partition]) < 0:
            return None
        claimed = self._piece(host, kind, partition)
        return Placed(at=at, host=host, partitions=PartitionRange(kind, claimed.start, claimed.stop))

    def adopt(self, host: str, at: float) -> Placed | None:
        """Return the decision for the block of which this host has the largest part; None: there is none. A host that
        has all rows of the table waits for its first units, as any block will do for it."""
        for kind, blocks in self._blocks.items() if self.active and host in self._rows else ():
            shares = [self._has(host, kind, block) for block in range(blocks.count)]
            if min(shares) == 1 or not self._below(host, kind):
                continue
            block = max(self._wanting(host, kind), key=shares.__getitem__, default=-1)
            if block >= 0 and shares[block]:
                first, end = blocks.bounds[block], blocks.bounds[block + 1]
                return Placed(at=at, host=host, partitions=PartitionRange(kind, first, end))
        return None

    def first(self, host: str, kind: RowKind) -> int:
        """Return the partition of which a host reads a batch before any unit runs: the first one that is at home there
        or can be, else 0."""
        blocks = self._blocks[kind]
        if not self.active or not blocks.of:
            return 0
        at_home = [block for block in range(blocks.count) if host in blocks.homes[block]]
        tiers = [min(tier) for tier in self.tiers(host, kind) if tier]
        return blocks.bounds[min(at_home) if at_home else min(tiers[:1], default=0)]

    # ---------------------------------------------------------------- inside

    def _piece(self, host: str, kind: RowKind, partition: int) -> range:
        """Return the partitions that `claim` takes with this one: its block, or, where that is free for all hosts, this
        host's part of it."""
        blocks = self._blocks[kind]
        block = blocks.of[partition]
        first, end = blocks.bounds[block], blocks.bounds[block + 1]
        if block in blocks.free and not self._below(host, kind):
            size = -(-blocks.size(block) // len(self._hosts[kind]))
            return range(partition, min(end, partition + size))
        return range(first, end)

    def _changed(self) -> None:
        for kind in self._blocks:
            self._tiers[kind].clear()
            self._ranks[kind].clear()
        self._takers.clear()
        self._amounts.clear()

    def _note_short(self, at: float) -> None:
        if self._started and self._short is None and sum(self._hosts["validate"].values()) < self._workers:
            self._short = at

    def _note_vacant(self, at: float) -> None:
        for kind, blocks in self._blocks.items() if self._started and self.active else ():
            for block, homes in enumerate(blocks.homes):
                known = block in blocks.vacant or not blocks.of
                if not known and self._hosts[kind].keys().isdisjoint(homes):
                    blocks.vacant[block] = at

    def _below(self, host: str, kind: RowKind) -> bool:
        """Return whether the host has less than its share, up to half a block."""
        return self._blocks_of(host, kind) + 0.5 < min(self._quota(host, kind), self._blocks[kind].cut)

    def _quota(self, host: str, kind: RowKind) -> int:
        slots = self._hosts["validate"].get(host, 0) // (self._members if kind == "train" else 1)
        return math.ceil((self._copies or 1) * self._blocks[kind].cut * slots / self._slots(kind))

    def _slots(self, kind: RowKind) -> int:
        """Return how many slots the engine has for units of this kind."""
        return max(1, self._workers // (self._members if kind == "train" else 1))

    def _blocks_of(self, host: str, kind: RowKind) -> float:
        """Return how many undivided blocks the partitions at home on a host amount to."""
        amounts = self._amounts.get(kind)
        if amounts is None:
            blocks = self._blocks[kind]
            amounts = self._amounts[kind] = {}
            for block, homes in enumerate(blocks.homes):
                for each in homes:
                    amounts[each] = amounts.get(each, 0.0) + blocks.size(block) * blocks.cut / max(1, len(blocks.of))
        return amounts.get(host, 0.0)

    def _has(self, host: str, kind: RowKind, block: int) -> float:
        """Return the part of a block whose rows the host had when it joined."""
        blocks, rows = self._blocks[kind], [each for each in self._rows.get(host, ()) if each.kind == kind]
        first, end = blocks.bounds[block], blocks.bounds[block + 1]
        return sum(max(0, min(end, each.end) - max(first, each.first)) for each in rows) / max(1, end - first)

    def _shared(self, host: str, kind: RowKind) -> set[int]:
        """Return the training blocks of which a host that joined late becomes another home, as all have their homes:
        those of hosts that have more than their share by a block, or, where it has less than its own, any."""
        blocks = self._blocks[kind]
        if kind == "validate" or host not in self._hosts[kind]:
            return set()
        if self._blocks_of(host, kind) - self._quota(host, kind) >= 0.5:
            return set()
        excess = {each: self._blocks_of(each, kind) - self._quota(each, kind) for each in self._hosts[kind]}
        rich = {each for each in excess if excess[each] >= 1}
        of_rich = {n for n in range(blocks.count) if (homes := self.homes(kind, n)) and rich.issuperset(homes)}
        anything = set(range(blocks.count)) if self._below(host, kind) else set()
        return {n for n in anything if self._has(host, kind, n) > 0.5} or of_rich or anything

    def _wanting(self, host: str, kind: RowKind) -> list[int]:
        """Return the blocks that another host than their homes may take: those with the fewest homes first."""
        blocks = self._blocks[kind]
        counts = [(len(self.homes(kind, block)), block) for block in range(blocks.count)]
        return [n for count, n in sorted(counts) if count < (self._copies or 1) and host not in blocks.homes[n]]

    def _ordered(self, host: str | None, kind: RowKind) -> Tiers:
        blocks = self._blocks[kind]
        everything = tuple(range(blocks.count))
        if not self.active or host is None:
            return (everything,)
        here = [block for block in everything if host in blocks.homes[block]]
        wanting = self._wanting(host, kind) if self._below(host, kind) else []
        if not wanting:
            return tuple(here), (), tuple(sorted((blocks.free | self._shared(host, kind)).difference(here)))
        least = len(self.homes(kind, wanting[0]))
        first = [block for block in wanting if len(self.homes(kind, block)) == least]
        beside = {(block + step) % blocks.count for block in here for step in (-1, 1)}
        known = [block for block in first if self._has(host, kind, block)]
        near = known or ([block for block in first if block in beside] if here else first)
        taken = {*here, *near}
        return (
            (*here, *near),
            tuple([block for block in first if block not in taken]),
            tuple([block for block in wanting if block not in taken and block not in first]),
        )


def _moved(block: int, divided: int) -> tuple[int, ...]:
    """Return by how much the number of a block grows as another one is divided; that one itself becomes two."""
    return (0, 1) if block == divided else (int(block > divided),)
