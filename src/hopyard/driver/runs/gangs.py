"""The driver's part in gangs: it passes on what members publish, and finds out why an exchange broke.

A member whose exchange with the others broke seldom knows why: a peer's process was killed, or a peer's recipe raised.
Such members say `Broken`, and the others are told to give the unit up; the cause comes as a fact of its own (`Failed`
of a member, or the loss of one). Where all members say `Broken`, the network between them is the cause.
"""

from __future__ import annotations

from hopyard.core.messages import Broken, GiveUpUnit, Membership, Publish, Published
from hopyard.core.runs.events import Failed, GiveUp
from hopyard.core.runs.machine import Machine
from hopyard.driver.commit import Link


class GangMessages:
    """Messages from and to the members of gangs. It decides nothing that the journal must know.

    Args:
        machine: the run's; it is read, never changed.
        link: to the agents.
    """

    def __init__(self, machine: Machine, link: Link) -> None:
        self._machine = machine
        self._link = link
        self._out: dict[int, dict[int, str]] = {}
        """Lease → members that are out of its unit → why, as they see it."""

    def membership(self, slot: int, rank: int) -> Membership:
        """Return the place of a member in the gang that a unit was given to."""
        record, workers = self._machine.slots[slot], self._machine.workers
        hosts = {one.host for member in record.members if (one := workers.record(member)) is not None}
        return Membership(rank, len(record.members), record.group, len(hosts) == 1)

    def publish(self, message: Publish) -> None:
        """Pass a value on to the other members of the sender's gang."""
        slot = self._machine.workers.slot_of(message.slot)
        if slot is not None and slot.group == message.group:
            for member in slot.members:
                if member != message.slot:
                    self._link.send(member, Published(message.group, message.key, message.value))

    def broken(self, message: Broken, now: float) -> list[Failed]:
        """Note that a member is out of its unit. Returns the failure, where all of them are and none says why."""
        busy = {slot.busy for slot in self._machine.slots.values()}  # also with what counts no longer
        self._out = {lease: out for lease, out in self._out.items() if lease in busy}
        slot = self._machine.workers.slot_of(message.slot)
        if slot is None or not slot.together or slot.busy != message.lease:
            return []
        out = self._out.setdefault(message.lease, {})
        first = not out
        out[message.slot] = message.error
        if first:
            for member in slot.members:
                if member != message.slot:
                    self._link.send(member, GiveUpUnit(message.lease, slot.group))
        if len(out) < len(slot.members):
            return []
        error = next((text for text in out.values() if text), "the members of a gang gave a unit up")
        return [Failed(at=now, slot=slot.id, lease=message.lease, fault="system", error=error)]

    def give_up(self, command: GiveUp) -> None:
        """Tell members to give up a unit that counts no longer."""
        for member in command.members:
            self._link.send(member, GiveUpUnit(command.lease, command.group))
