"""Agents that run below supervisors: what the engines of all clusters have in common.

An engine says how its supervisors are *placed*, by a `Placement`. All else is here: `SupervisedAgents` are the agents
of one run, and `Warm` keeps the placement of a started engine, with its supervisors, from one run to the next.
"""

from __future__ import annotations

import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from hopyard.certificate import make_certificate
from hopyard.engines.supervisors.messages import Prepare
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.record import Unexplained
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.engines.warm import Standby
from hopyard.ports.engines import AgentEngine, LaunchInfo

log = logging.getLogger(__name__)

NONE_SECONDS = 15.0
"""Time without any supervisor until a warning says what is waited for."""
FEWER_SECONDS = 10.0
"""Time after the first supervisor until a warning says that there are fewer than requested."""
EXPLAIN_SECONDS = 3.0
"""How long the loss of an agent is held back whose reason may come."""


class Placement(Protocol):
    """How one engine places supervisors, for one run after another. Subclass it: what few engines need has a body here.

    Attributes:
        supervisors: those that have dialled in, and how many there should be (`due`).
        remedy: how slots get a supervisor that wait for one while others work; empty: nobody is warned of that.
        coming: how many supervisors have a place where they are still being brought up, as far as that is known.
    """

    supervisors: Supervisors
    remedy: str = ""
    coming: int = 0

    @abstractmethod
    def place(self) -> None:
        """Bring up supervisors until there are `supervisors.due`; return at once. Called when a slot is started, often
        while a slot has no supervisor, and once more when each has. Call `supervisors.give_up` when none can come."""

    @abstractmethod
    def absence(self, when: str) -> str:
        """Return a sentence: no supervisor has come `when` ("within 120 seconds (…)"), why, and what to do."""

    @abstractmethod
    def close(self) -> None:
        """Let all supervisors leave, by `supervisors.close`, and end all that was placed."""

    def begin(self, launch: LaunchInfo) -> None:
        """Begin a run."""
        return

    def rest(self) -> None:
        """End a run of a started engine: supervisors stand by for the next one."""
        self.supervisors.rest()

    def cancel(self, jobs: set[int]) -> None:
        """End what holds the places of supervisors that do not answer, or are gone; `jobs`: those of their tickets."""
        return

    def withdraw(self) -> None:
        """Leave places to others: end what holds none yet, and what holds those of supervisors that leave. Called where
        the engine has `shared_places`; returns at once."""
        return

    def explain(self, host_name: str) -> str | None:
        """Return why the supervisors of a host are gone that have said nothing, maybe as an `OutOfMemory`; "": nobody
        knows; None: it may be known soon."""
        return ""

    def release_cores(self, slots: Collection[int]) -> None:
        """See `ports.engines.ReleasesCores`. Nothing is released where others have no use for the cores."""
        return

    def reacquire_cores(self) -> None:
        """See `ports.engines.ReleasesCores`."""
        return

    @property
    def blocked(self) -> bool:
        """Return True if other runs of this process hold the places and will end. That time does not count."""
        return False

    @property
    def usable(self) -> bool:
        """Whether nothing is known that keeps another run from having agents there."""
        return self.supervisors.usable


class Warm(Standby[Placement]):
    """The placements of one engine: at most one that no run has. A run takes it, and gives it back at its end. A second
    run at the same time has one of its own."""

    def __init__(self) -> None:
        super().__init__(lambda placement: placement.close())

    def take(self, make: Callable[[bool], Placement], renew: Callable[[Placement], None]) -> Placement:
        """Return the placement of a run.

        Args:
            make: makes one, lasting or not.
            renew: begins the run in one that is kept.
        """
        self._leave_to_parent()
        with self._lock:
            lasting = self.started
            placement = self._items.popitem()[1] if lasting and self._items else None
        if placement is not None and not placement.usable:
            placement.close()
            placement = None
        if placement is None:
            placement = make(lasting)
        else:
            try:
                renew(placement)
            except BaseException:
                placement.close()
                raise
        self.begin_run()
        return placement

    def give_back(self, placement: Placement) -> None:
        """End a run, and keep its placement for the next one, where that is possible."""
        self.end_run()
        keep = False
        try:
            if placement.supervisors.lasting and self.started and not self._items and placement.usable:
                placement.rest()
                with self._lock:
                    keep = self.started and not self._items and placement.usable
                    if keep:
                        self._items[()] = placement
        finally:
            if not keep:
                placement.close()


class SupervisedAgents:
    """The agents of one run, each below a supervisor. Owner: the driver's loop.

    Args:
        engine: the run's.
        launch: the run's.
        place: makes the placement of supervisors, which dial in with a copy of this ticket. It must not hold the
            engine, which would never be garbage while the placement is kept.
        standby: what the engine keeps between runs; None: nothing.
        ticket: of supervisors that are placed by others; None: a new one.
        task_name: what holds the place of a supervisor, for messages.
        keep_idle: keep supervisors that nobody needs at the moment: nothing else wants their place.
        in_clear: tickets go to supervisors as the cluster's own secrets do, and have all that agents need, unless
            supervisors outlive the run. Else it comes by TLS.
    """

    def __init__(
        self,
        engine: AgentEngine,
        launch: LaunchInfo,
        place: Callable[[Supervisors, Ticket], Placement],
        *,
        standby: Warm | None = None,
        ticket: Ticket | None = None,
        task_name: str = "supervisor",
        keep_idle: bool = True,
        in_clear: bool = False,
    ) -> None:
        def prepare(lasting: bool) -> Prepare:
            card, env = launch.card(0).decode(), dict(engine.env)
            return Prepare(card, engine.threads, env, launch.frameworks, lasting, launch.required)

        def make(lasting: bool) -> Placement:
            card, clear = prepare(lasting), in_clear and not lasting
            host, port = engine.endpoint
            certificate = "" if clear else make_certificate()
            own = ticket or Ticket(host, port and port + 1, secrets.token_hex(16), certificate=certificate)
            supervisors = Supervisors(
                own.host,
                own.port,
                own.token,
                launch.log,
                certificate=own.certificate,
                prepare=None if clear else card,
                task_name=task_name,
                expected=engine.workers,
                keep_idle=keep_idle,
                lasting=lasting,
            )
            placement = place(supervisors, replace(own, port=supervisors.port, prepare=card if clear else None))
            placement.begin(launch)
            return placement

        def renew(placement: Placement) -> None:
            placement.begin(launch)
            placement.supervisors.renew(launch.log, prepare(True))

        self._standby = standby or Warm()
        self._placement = self._standby.take(make, renew)
        self._supervisors = self._placement.supervisors
        self._limit, self._setting = engine.start_timeout, f"({type(engine).__name__}(start_timeout=…))"
        self._opened = self._timeout_began = time.monotonic()
        self._first_arrival = 0.0
        self._held: dict[int, tuple[Unexplained, float]] = {}
        """Slot whose agent is lost → its reason, and until when a better one is waited for."""
        self._missing = 0
        """How many slots had no supervisor at the last look."""
        self._warned_of_none = self._warned = self._closed = False

    def start(self, slot: int) -> None:
        """Ask for an agent, and for a supervisor where none is free."""
        self._supervisors.start(slot)
        self._placement.place()
        self._missing = 1

    def end(self, slot: int) -> None:
        """End the agent of this slot."""
        self._held.pop(slot, None)
        self._supervisors.end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call.

        Raises:
            ResourceError: no supervisor has come in time, or none can run agents.
        """
        if self._closed:
            return []
        self._placement.cancel(self._supervisors.abandoned())
        missing = self._supervisors.missing
        if missing or self._missing:
            self._placement.place()
        if missing:
            self._check(missing)
        self._missing = missing
        return self._explained(self._supervisors.lost(), time.monotonic())

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when an agent has ended."""
        return [] if self._closed else self._supervisors.watch()

    def waits(self, slot: int) -> bool:
        """Whether no supervisor has this slot yet, or what its agent needs is being imported."""
        return self._supervisors.waits(slot)

    def device(self, slot: int) -> str:
        """Return "cuda" where the supervisor of this slot has a GPU, else "cpu"."""
        return self._supervisors.device(slot)

    def waiting(self) -> int:
        """Return how many slots wait for a place in the cluster."""
        return max(0, self._supervisors.missing - self._placement.coming)

    def give_back(self, slots: Collection[int]) -> None:
        """End the agents of these slots, and leave their places to others; returns at once."""
        if self._closed:
            return
        for slot in slots:
            self._held.pop(slot, None)
        self._supervisors.give_back(slots)
        self._placement.withdraw()
        self._missing = self._supervisors.missing

    def release_cores(self, slots: Collection[int]) -> None:
        """Release the cores that a cluster counts for these slots, until `reacquire_cores`; their agents go on.

        Raises:
            ResourceError: the cluster did not take them back in time.
        """
        if not self._closed:  # the placement may be that of another run by now
            self._placement.release_cores(slots)

    def reacquire_cores(self) -> None:
        """Ask for the cores again; returns at once."""
        if not self._closed:
            self._placement.reacquire_cores()

    def close(self) -> None:
        """End all agents, and what was placed for them, unless it stays for the next run."""
        if not self._closed:
            self._closed = True
            self._standby.give_back(self._placement)

    def _explained(self, lost: list[tuple[int, str]], now: float) -> list[tuple[int, str]]:
        """Return the agents that are lost, with what the placement knows; hold back those of which it may know soon."""
        self._held |= {slot: (why, now + EXPLAIN_SECONDS) for slot, why in lost if isinstance(why, Unexplained)}
        lost = [(slot, why) for slot, why in lost if not isinstance(why, Unexplained)]
        for slot, (why, until) in list(self._held.items()):
            better = self._placement.explain(why.host_name)
            if better is not None or now > until:
                del self._held[slot]
                lost.append((slot, better or str(why)))
        return lost

    def _check(self, missing: int) -> None:
        """Warn where no supervisor has come yet, and give up in time; warn where there are fewer than requested."""
        now = time.monotonic()
        if self._supervisors.admitted_count:
            self._first_arrival = self._first_arrival or now
            if self._placement.remedy and not self._warned and now - self._first_arrival > FEWER_SECONDS:
                self._warned = True
                log.warning("workers up: %d; %d wait %s", self._supervisors.occupied, missing, self._placement.remedy)
            return
        if self._placement.blocked:
            self._timeout_began = now
        if now - self._timeout_began > self._limit:
            absence = self._placement.absence(f"within {self._limit:.0f} seconds {self._setting}")
            self._supervisors.give_up("; ".join([absence, *self._supervisors.refusals]))
        elif now - self._opened > NONE_SECONDS and not self._warned_of_none:
            self._warned_of_none = True
            when = f"yet; {self._limit:.0f} seconds are waited {self._setting}"
            log.warning("%s", self._placement.absence(when))
