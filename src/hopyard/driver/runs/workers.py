"""The workers of one driver, from the number that a slot gets to the end of its process: which are starting, which
hosts have no room, what each may release, and where its memory is. It starts and ends processes over the link; what an
end means for the trials, the machine decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Literal

from hopyard.core.facts import Lost
from hopyard.core.messages import NoRoom, Ready, Unfit
from hopyard.core.runs.events import Joined, Requested, Shrunk
from hopyard.core.runs.machine import Machine
from hopyard.driver.commit import Gone, Link
from hopyard.driver.logs import last_lines
from hopyard.errors import Inexact, PreflightError, ResourceError
from hopyard.ports.engines import GivesBack

log = logging.getLogger(__name__)

TAIL = 12
"""Lines of an agent's log that an error shows."""
FAILED_STARTS = 3
"""Agents that may end before any was ready; then the run gives up."""
SHORT_SECONDS = 120.0
"""Time that workers which are too few for a gang wait for another one, where the user allows smaller gangs."""


class Workers:
    """Keeps up the workers of a run.

    Args:
        link: starts and ends agents.
        machine: the run's; it is read, never changed.
        count: how many slots to keep up.
        log_of: slot → its log.
        first: the number of the first slot; slots of earlier drivers keep theirs.
        fingerprint: that of the first slot of earlier drivers; None: there was none.
        memory: the run's folder in shared memory; what an agent leaves there is deleted when the agent is ended.
        idle_timeout: seconds after which an idle slot is given back, except the last slot; None: never.
        shared: the agents, where others want their places too; None: the places are the run's own.
    """

    def __init__(
        self,
        link: Link,
        machine: Machine,
        count: int,
        log_of: Callable[[int], Path],
        first: int = 0,
        fingerprint: dict[str, Any] | None = None,
        memory: Path | None = None,
        idle_timeout: float | None = None,
        shared: GivesBack | None = None,
    ) -> None:
        self.count = count
        self.idle_timeout = idle_timeout
        self._link = link
        self._machine = machine
        self._log_of = log_of
        self._next_slot = first
        self._fingerprint = fingerprint
        self._memory = memory
        self._shared = shared
        self._given_back = 0
        """How many workers are requested again after a pause."""
        self._starting: set[int] = set()
        self._failed_starts = 0
        self._any_ready = False
        """Whether an agent of this driver was ever ready."""
        self._any_gang = False
        """Whether this driver ever had workers enough for a gang."""
        self._short_since: float | None = None
        """Since when there are fewer; None: there are not."""
        self._releases: dict[int, list[str]] = {}
        self._addresses: dict[int, tuple[str, str]] = {}
        """Slot → the memory that it shares, and the address at which others ask for States in it."""
        self._hosts: dict[int, str] = {}
        """Slot → the host of its agent, once that is ready."""
        self._unfit_slots: set[int] = set()
        """Slots that could not start as their host has no room, or a broken disk; until they end."""
        self._full_hosts: set[str] = set()
        """Hosts that have no room for rows, or cannot read them."""

    def start(self) -> None:
        """Start an agent for a new slot."""
        slot = self._next_slot
        self._next_slot += 1
        self._starting.add(slot)
        self._link.start(slot)

    def end(self, slot: int) -> None:
        """End the agent of a slot at once, if it is there, and delete what it left in shared memory."""
        self._starting.discard(slot)
        self._releases.pop(slot, None)
        self._addresses.pop(slot, None)
        self._hosts.pop(slot, None)
        self._link.end(slot)
        if self._memory is not None:
            for path in self._memory.glob(f"{slot}-*"):
                path.unlink(missing_ok=True)

    def ready(self, message: Ready, now: float) -> Joined:
        """An agent is ready: return the fact. The rows of its host are in that of the host's first worker alone.

        Raises:
            Inexact: its versions or processor differ from those of the run, which is to be exact.
        """
        self._starting.discard(message.slot)
        self._failed_starts = 0
        self._any_ready = True
        self._compare(message)
        self._addresses[message.slot] = message.memory, message.peer
        fields = {name: getattr(message, name) for name in ("slot", "host", "pid", "fingerprint", "device", "entry")}
        rows = () if message.host in self._hosts.values() else message.rows
        self._hosts[message.slot] = message.host
        return Joined(at=now, rows=rows, **fields)

    def unfit(self, message: Unfit) -> None:
        """An agent cannot do its work. Its end follows.

        Raises:
            PreflightError: none of this driver ever could.
            ResourceError: its host is at fault, and no other worker is left.
        """
        others = len(self._machine.workers) + len(self._starting - self._unfit_slots - {message.slot})
        enough = others >= self._least
        text = f"a worker cannot start: {message.error}{self.tail(message.slot)}"
        if not self._any_ready and not (message.host and enough):
            raise PreflightError([text])
        if message.host and not enough:
            raise ResourceError(f"{text}. {self._too_few}; nothing is lost: `hopyard resume` goes on")
        log.warning("slot %d cannot start: %s", message.slot, message.error)
        if message.host:
            self._unfit_slots.add(message.slot)

    def no_room(self, message: NoRoom, now: float, resume: str) -> list[Lost]:
        """A host has no room for rows, or cannot read them: end the slot that says so, and start no other.

        Args:
            message: what the slot sent.
            now: the time of the fact.
            resume: how the user goes on with the run, for the error.

        Raises:
            ResourceError: no other worker is left.
        """
        slot = self._machine.workers.record(message.slot)
        if slot is None:
            return []
        if len(self._machine.workers) - 1 + len(self._starting) < self._least:
            raise ResourceError(
                f"{message.error}. {self._too_few}; nothing is lost: make room there, or mend the disk, then {resume}"
            )
        if slot.host not in self._full_hosts:
            self._full_hosts.add(slot.host)
            log.warning(
                "%s. The run goes on without worker %d, and others of this host that find the same; they are not "
                "replaced",
                *(message.error, message.slot),
            )
        self.end(message.slot)
        return [Lost(at=now, slot=message.slot, reason=message.error, fault="data")]

    def gone(self, message: Gone, now: float) -> list[Lost]:
        """A slot ended: start another, unless the slot was given back, is replaced already, or its host has no room for
        it. Return the fact, if the machine knew the slot.

        Raises:
            ResourceError: several in a row ended before they were ready, and no other worker is left.
        """
        was_starting = message.slot in self._starting
        self.end(message.slot)
        if message.slot in self._unfit_slots:  # another would most likely come to the same host
            self._unfit_slots.discard(message.slot)
        elif was_starting:
            self._failed_starts += 1
            limit = FAILED_STARTS * (4 if self._any_ready else 1)  # agents that were ready may be killed now
            if self._failed_starts < limit:
                self.start()
            elif len(self._machine.workers) >= self._least:
                log.warning("slot %d is not replaced, as %d in a row ended at once", message.slot, self._failed_starts)
            else:
                raise ResourceError(
                    f"no worker comes up: {self._failed_starts} in a row ended before they were ready, the last one "
                    f"{message.reason}{self.tail(message.slot)}"
                )
        elif message.slot in self._machine.workers:
            self.start()
            fault: Literal["memory", "system"] = "memory" if message.memory else "system"
            return [Lost(at=now, slot=message.slot, reason=str(message.reason), fault=fault)]
        return []

    @property
    def _too_few(self) -> str:
        """Why the run cannot go on without another worker."""
        least = self._least
        return "No other worker is left" if least == 1 else f"A gang needs {least} workers, and fewer are left"

    @property
    def _least(self) -> int:
        """How many workers the run needs to go on."""
        spec = self._machine.spec
        least = 0 if spec.gang is None else spec.gang.least
        return least if least and self._any_gang else spec.members

    def shrunk(self, now: float) -> Shrunk | None:
        """Return the fact that gangs have fewer members from now on; None: they have not. It needs the user's leave,
        that there was a whole gang, and that no other worker starts, or none was ready for `SHORT_SECONDS`."""
        spec, present = self._machine.spec, len(self._machine.workers)
        if present >= spec.members:
            self._any_gang, self._short_since = True, None
            return None
        self._short_since = now if self._short_since is None else self._short_since
        coming = len(self._starting - self._unfit_slots)
        waits = present + coming >= spec.members and now < self._short_since + SHORT_SECONDS
        if waits or not 0 < self._least <= present:
            return None
        return Shrunk(at=now, members=present)

    def requested(self, now: float) -> Requested | None:
        """Return the fact of how many workers have not joined, where they may be too few for a gang and others want
        their places; None: the machine knows it."""
        if self._shared is None or self._machine.spec.members == 1:
            return None
        coming = len(self._starting - self._unfit_slots)
        unplaced = min(coming, self._shared.waiting())
        if (unplaced, coming - unplaced) == self._machine.holding.requested:
            return None
        return Requested(at=now, unplaced=unplaced, starting=coming - unplaced)

    def give_back(self, slots: Collection[int]) -> None:
        """Leave the places of these workers to others, and those of all that have not joined."""
        given_back = {*slots, *(self._starting - self._unfit_slots)}
        self._given_back += len(given_back)
        for slot in given_back:
            self.end(slot)
        if self._shared is not None:
            self._shared.give_back(given_back)

    def ask_again(self) -> None:
        """Ask for as many workers as were given back."""
        count, self._given_back, self._short_since = self._given_back, 0, None
        for _ in range(count):
            self.start()

    def release(self, slot: int, memory_key: str) -> None:
        """A slot may release a State in its memory, as soon as it is sent something."""
        self._releases.setdefault(slot, []).append(memory_key)

    def pop_releases(self, slot: int) -> tuple[str, ...]:
        """Return what a slot may release and was not sent yet."""
        return tuple(self._releases.pop(slot, ()))

    def peer(self, slot: int, maker: int) -> str | None:
        """Return the address at which `slot` asks `maker` for a State; None where it sees the maker's memory itself."""
        maker_memory, address = self._addresses.get(maker, ("", ""))
        memory, _ = self._addresses.get(slot, ("", ""))
        return address if maker_memory != memory and address else None

    def tail(self, slot: int) -> str:
        """Return the last lines of an agent's log, to be appended to an error."""
        path = self._log_of(slot)
        lines = last_lines(path, TAIL, "    ")
        return lines and f"{lines}\n  (whole log: {path})"

    def _compare(self, message: Ready) -> None:
        """Compare fingerprints: equal digests are promised for equal versions and processors only."""
        first, current = self._fingerprint, message.fingerprint
        if first is None or first == current:
            self._fingerprint = current
            return
        names = sorted(name for name in first.keys() | current.keys() if first.get(name) != current.get(name))
        text = f"slot {message.slot} has " + ", ".join(
            f"{name} {current.get(name)!r}, the run was begun with {first.get(name)!r}" for name in names
        )
        if self._machine.spec.exact is True:
            raise Inexact(f"{text}: its results may differ in the last bits; exact=True does not go on")
        if self._machine.spec.exact == "warn":
            log.warning("%s: its results may differ in the last bits", text)
        self._fingerprint = current
