"""This worker as a member of gangs: the process group that it is in, and what happens when a unit is given up.

The main thread enters and leaves units; messages of the driver arrive in the connection's thread. Whatever fails here
or elsewhere, a member says once that it is out of a unit that was given up: by its own error, or by `Broken`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from hopyard.core.messages import Broken, GiveUpUnit, Membership, Publish, Published
from hopyard.exchange.board import Board, GangBroken
from hopyard.spec import Gang
from hopyard.system.network import interface_of

if TYPE_CHECKING:
    from hopyard.exchange.exchange import GangExchange


class GangMember:
    """The gangs of one worker, one after the other. Owner of its process group.

    Args:
        slot: the worker's.
        gang: how the members of this run train together.
        send: sends a message to the driver, from any thread.
        address: returns the address of this host that members reach; the argument: whether all are on this host.
    """

    def __init__(
        self, slot: int, gang: Gang, send: Callable[[Publish | Broken], None], address: Callable[[bool], str]
    ) -> None:
        self._slot, self._gang, self._send, self._address = slot, gang, send, address
        self._board = Board(lambda group, key, value: send(Publish(slot, group, key, value)))
        self._exchange: GangExchange | None = None
        self._group = 0
        """The number of the process group that this worker is in, or was in last."""
        self._lock = threading.Lock()
        self._lease = 0
        """The lease of the newest unit that this worker began as a member."""
        self._working = False
        self._given_up: set[int] = set()
        """Leases of units that are given up and that this worker has not left, or not begun."""

    def prepare(self) -> None:
        """Import what connects members, if it is there; preflight says so where it is not."""
        with suppress(ImportError):
            import hopyard.exchange.exchange  # noqa: F401

    def enter(self, membership: Membership, lease: int) -> GangExchange:
        """Begin a unit. Returns the exchange with the other members; it is connected when it is first used.

        Raises:
            GangBroken: the unit was given up already, or its group is broken.
        """
        from hopyard.exchange.exchange import GangExchange
        from hopyard.exchange.group import Group

        with self._lock:
            self._lease, self._working = lease, True
            if lease in self._given_up:
                raise GangBroken("the unit was given up before it began")
        if membership.group != self._group:
            self.close()
            self._group = membership.group
            group = Group(
                membership.rank,
                membership.size,
                self._board,
                membership.group,
                self._address(membership.one_host),
                interface_of(self._address(False)),  # NCCL takes one for the whole life of a process
            )
            self._exchange = GangExchange(self._gang, group)
        if self._exchange is None:
            raise GangBroken("its process group broke in an earlier unit")
        return self._exchange

    def leave(self, lease: int, well: bool, reported: bool = False) -> None:
        """End a unit.

        Args:
            lease: of the unit.
            well: whether the process group is still good.
            reported: whether the driver hears from this worker that it is out.
        """
        if not well:
            self.close()
        with self._lock:
            self._working = False
            given_up = lease in self._given_up
            self._given_up = {other for other in self._given_up if other > lease}
        if given_up and not reported:
            self._send(Broken(self._slot, lease))

    def published(self, message: Published) -> None:
        """Take what another member has published."""
        self._board.add(message.group, message.key, message.value)

    def give_up(self, message: GiveUpUnit) -> None:
        """Get out of a unit, or never begin it: it counts no longer, or another member is out of it."""
        with self._lock:
            ahead = message.lease > self._lease or (self._working and message.lease == self._lease)
            if ahead:
                self._given_up.add(message.lease)
        self._board.close(message.group)
        exchange = self._exchange
        if exchange is not None and message.group == self._group:
            exchange.abort()
        if not ahead:
            self._send(Broken(self._slot, message.lease))

    def close(self) -> None:
        """Hang up. The next unit connects the members of its gang anew."""
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None
