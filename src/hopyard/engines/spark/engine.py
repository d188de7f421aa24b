"""Agents on the executors of a Spark session: a job of one task for each, whose supervisor runs it (`task.py`).

Spark places and isolates; Hopyard adds no daemon. Works with a classic session, by an RDD, and with Spark Connect, by
`mapInArrow` (`jobs.py`).

Cores can be released: jobs end while their agents go on, so that other jobs of the session find room, and come back
after those. In between Spark may place anything beside an agent, also on its GPU; where it allocates dynamically, an
executor without a task is idle, and may be removed with its agent (after `executorIdleTimeout`, 60 s). The same holds
of a started engine between two runs: no core is held, and supervisors stand by in the executors.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from hopyard.checks import flag, scalar, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.local import Local, Processes
from hopyard.engines.spark.jobs import RELEASE_SECONDS, Jobs, Settings
from hopyard.engines.split import Split
from hopyard.engines.warm import Startable, Warm
from hopyard.errors import ResourceError, SpecError
from hopyard.ports import Agents, LaunchInfo
from hopyard.sparkapi.session import is_connect, is_stopped
from hopyard.system.network import LOOPBACK, address_towards
from hopyard.text import shown

log = logging.getLogger(__name__)

NONE_SECONDS = 15.0
"""Time without any supervisor until a warning says what is waited for."""
FEWER_SECONDS = 10.0
"""Time after the first supervisor until a warning says that there are fewer than requested."""
MORE = (
    "more executors (spark.executor.instances, spark.cores.max, spark.dynamicAllocation.maxExecutors) or fewer cores a "
    "task (spark.task.cpus) would give them one"
)


_OPEN: weakref.WeakKeyDictionary[Executors, None] = weakref.WeakKeyDictionary()
"""Those of this process that were not closed, the one that was opened first at the front."""
_OPEN_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Spark(Startable):
    """Worker processes on the executors of a Spark session, one for each task slot that it grants.

    Between `start` and `stop`, or in a `with` block, supervisors stay in the executors when a run is over, each with a
    process that has imported the framework of the first run, and the workers of later runs are forks of it, as for
    `Local`. Between two runs they hold no core. Workers beside the driver start as without. `workers` is the number of
    each run: a second run at the same time asks Spark for as many more once each worker of the first has its slot, and
    waits for the end of the first where none are free.

    Args:
        session: a SparkSession, classic or Connect. A pickle of the engine (a run directory has one) leaves it behind.
        workers: how many; fewer are used, with a warning, where Spark has fewer slots.
        host: name or address by which executors reach this process; None: `spark.driver.host`, or of a Connect client
            the address that it dials its server from. Where that is an address of this machine, no other is listened
            on; a name is looked up here.
        port: to listen on for agents, for their supervisors the next one, for States the one after that; 0: any that
            are free.
        threads: intra-op threads of each. Results may depend on it, so it is fixed and recorded.
        env: more environment for the workers, as for `Local`. It travels in Spark's tasks, and Spark may spill these to
            disk; of an engine that was started it comes by TLS, whose key travels in the tasks.
        start_timeout: seconds to wait for the first worker, until the run ends with an error. They count from when no
            other run of this process holds slots of Spark.
        driver_workers: so many of the workers, the last ones, are processes of this machine and take no slot of Spark:
            enough for the parameter servers of a program, which get them.
        release_cores: let other jobs of the session have the cores of the workers, once each has its slot: these then
            share the executors' processors. Executors must stay while they have no task (no dynamic allocation).

    Raises:
        SpecError: a value is not allowed, or the session was stopped.
    """

    session: Any
    workers: int
    host: str | None = None
    port: int = 0
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    driver_workers: int = 0
    release_cores: bool = False
    name: str = field(default="spark", init=False)
    apart: bool = field(default=True, init=False, repr=False)
    in_process: bool = field(default=False, init=False, repr=False)
    _standby: Warm[Jobs] = field(default_factory=Warm, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.session is not None and not all(
            hasattr(self.session, name) for name in ("range", "conf", "createDataFrame")
        ):
            raise SpecError(f"Spark(…) must be given a SparkSession, got {type(self.session).__name__}")
        for name, least in (("workers", 1), ("threads", 1), ("port", 0), ("driver_workers", 0)):
            object.__setattr__(self, name, whole(f"Spark({name}=)", getattr(self, name), least))
        if self.driver_workers >= self.workers:
            raise SpecError(
                f"Spark(driver_workers=…) must be less than workers={self.workers}, got {self.driver_workers}; for "
                "workers on this host alone use hy.Local"
            )
        if self.port > 65533:
            raise SpecError(f"Spark(port={self.port}): 0, or at most 65533, as the two after it are used too")
        object.__setattr__(self, "host", scalar(self.host))
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise SpecError(f"Spark(host=…) must be a name or address that executors can dial, got {shown(self.host)}")
        object.__setattr__(self, "release_cores", flag("Spark(release_cores=)", self.release_cores))
        object.__setattr__(self, "env", worker_environment("Spark(env=)", self.env))
        object.__setattr__(self, "start_timeout", seconds("Spark(start_timeout=)", self.start_timeout))
        if self.session is not None:
            _check_session(self.session)

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """All workers, where the session's master is this machine; elsewhere Spark places them."""
        session = _active_session(self.session)
        local = not is_connect(session) and str(session.sparkContext.master).startswith("local")
        return (self.workers,) if local else ()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) that executors dial."""
        return self.host or _driver_host(_active_session(self.session)), self.port

    @property
    def supervisors_port(self) -> int:
        """The port that supervisors dial."""
        return self.port + 1 if self.port else 0

    @property
    def states_port(self) -> int:
        """The port at which States are stored and read."""
        return self.port + 2 if self.port else 0

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, of which none is started yet.

        Raises:
            SpecError: this engine comes from a pickle, which has no values of env=.
        """
        refuse_missing(self.env, "Spark")
        executors = Executors(self, _active_session(self.session), launch)
        if not self.driver_workers:
            return executors
        env = {"CUDA_VISIBLE_DEVICES": "", **self.env}  # the driver's GPUs are not for roles that ask for GPUs
        local = Processes(Local(workers=self.driver_workers, threads=self.threads, devices=None, env=env), launch)
        return Split(executors, local, range(self.workers - self.driver_workers, self.workers))

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self.start_timeout, self.driver_workers, self.release_cores
        return Spark, (None, self.workers, self.host, self.port, self.threads, self.env, *rest)


class Executors:
    """The agents of one run on Spark.

    Args:
        engine: the run's.
        session: of Spark.
        launch: the run's.
    """

    def __init__(self, engine: Spark, session: Any, launch: LaunchInfo) -> None:
        self._start_timeout = engine.start_timeout
        self._workers = engine.workers
        self._logs = launch.log(0).parent
        self._open_ended = launch.open_ended
        self._release_cores = engine.release_cores
        """Whether others have the cores for good, once each slot has an agent."""
        self._placed = False
        """Whether each slot has had an agent."""
        host, _ = engine.address
        port, env = engine.supervisors_port, dict(engine.env)
        settings = Settings(host, port, engine.threads, env, engine.workers, engine.release_cores)
        self._warm = engine._standby
        self._jobs = self._warm.take(launch, lambda lasting: Jobs(session, settings, launch, lasting=lasting))
        self._supervisors = self._jobs.supervisors
        self._opened = self._timeout_began = time.monotonic()
        self._first_arrival = 0.0
        self._warned_of_none = self._warned = False
        self._closed = False
        with _OPEN_LOCK:
            _OPEN[self] = None

    def start(self, slot: int) -> None:
        """Ask for an agent, and for a supervisor where none is free. Where another run is first, `lost` asks later."""
        self._supervisors.start(slot)
        self._submit()

    def end(self, slot: int) -> None:
        """End the agent of this slot."""
        self._supervisors.end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call.

        Raises:
            ResourceError: Spark gives no slot, or its executors cannot run agents.
        """
        if self._closed:
            return []
        self._check_slots()
        if not self._placed and self._supervisors.occupied and not self._supervisors.missing:
            self._placed = True
            if self._release_cores:
                self._supervisors.release_cores(range(self._workers))
        return self._supervisors.lost()

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when an agent has ended."""
        return [] if self._closed else self._supervisors.watch()

    def waits(self, slot: int) -> bool:
        """Whether Spark has not granted a place for this slot yet, or what its agent needs is being imported."""
        return self._supervisors.waits(slot)

    def device(self, slot: int) -> str:
        """Return "cuda" when its task has GPUs (`spark.task.resource.gpu.amount`), else "cpu"."""
        return self._supervisors.device(slot)

    def release_cores(self, slots: Collection[int]) -> None:
        """Release the cores that Spark counts for these slots, until `reacquire_cores`; their agents go on. Takes about
        70 ms.

        Raises:
            ResourceError: Spark did not end a task of theirs in time.
        """
        if self._closed:  # the places may be those of another run by now
            return
        if unreleased := self._jobs.release(slots):
            raise ResourceError(
                f"slots {', '.join(map(str, unreleased))}: Spark did not end the tasks that hold them within "
                f"{RELEASE_SECONDS:.0f} seconds, so there may be no room for another job; the executors' logs, or the "
                "stages that are active in Spark's UI, say what keeps them"
            )

    def reacquire_cores(self) -> None:
        """Ask Spark for tasks that hold the slots again; returns at once. They come when Spark has room. Does nothing
        where the engine has `release_cores=True`."""
        if self._release_cores or self._closed:
            return
        self._supervisors.reacquire_cores()
        self._jobs.submit()

    def close(self) -> None:
        """End all agents, give the slots back to Spark."""
        if self._closed:
            return
        self._closed = True
        with _OPEN_LOCK:
            _OPEN.pop(self, None)
        self._warm.give_back(self._jobs)

    def _submit(self) -> list[Executors]:
        """Ask Spark for slots, unless others that were opened earlier still wait for theirs; return those. Two gangs
        would wait forever if each had a part of the slots."""
        with _OPEN_LOCK:
            earlier = list(takewhile(lambda other: other is not self, _OPEN))
        waiting = [other for other in earlier if not other._placed or other._supervisors.missing]
        if not waiting:
            self._jobs.submit()
        return waiting

    def _check_slots(self) -> None:
        """Cancel abandoned jobs, give up if no worker came in time, and warn when there are fewer than requested."""
        self._jobs.cancel(self._supervisors.abandoned())
        now, missing = time.monotonic(), self._supervisors.missing
        waiting = self._submit() if missing else []
        if self._supervisors.admitted_count and not self._first_arrival:
            self._first_arrival = now
        if missing and not self._first_arrival:
            self._check_none(now, waiting)
        elif missing and not self._warned and now - self._first_arrival > FEWER_SECONDS:
            self._warned = True
            log.warning("%d workers, %d more wait for a slot of Spark: %s", self._supervisors.occupied, missing, MORE)

    def _check_none(self, now: float, waiting: list[Executors]) -> None:
        """Warn where no worker has come yet, and give up in time. Time in which another run of this process waits for
        slots or holds some does not count, as runs end by themselves."""
        holders = self._holders()
        taken = ", ".join(sorted(f"those of {other._logs} hold {count}" for other, count in holders.items()))
        taken = taken and f". Of this process, {taken}"
        if any(other._open_ended for other in holders):
            taken += ": stop programs that nobody needs (hy.Program.running())"
        start = ""
        if not all(other._open_ended for other in (*waiting, *holders)):
            self._timeout_began, start = now, ", from when no other run of this process holds slots"
        if now - self._opened > NONE_SECONDS and not self._warned_of_none:
            self._warned_of_none = True
            log.warning(
                "no worker has a slot of Spark yet, after %.0f seconds: its executors are still coming up, or other "
                "jobs have all cores%s; %.0f seconds are waited (Spark(start_timeout=…))%s",
                *(now - self._opened, taken, self._start_timeout, start),
            )
        if now - self._timeout_began > self._start_timeout:
            self._supervisors.give_up(
                f"Spark gave no slot within {self._start_timeout:.0f} seconds (Spark(start_timeout=…)): all its cores "
                f"are taken, or it has no executors{taken}; {MORE}"
            )

    def _holders(self) -> dict[Executors, int]:
        """Return how many slots of Spark others of this process hold."""
        with _OPEN_LOCK:
            others = {other: other._supervisors.held for other in _OPEN if other is not self}
        return {other: count for other, count in others.items() if count}


def _active_session(session: Any) -> Any:
    """Return the session, or the one that is active in this process. Raises SpecError when there is none any more."""
    if session is not None:
        _check_session(session)
        return session
    with contextlib.suppress(ImportError):
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            return active
    raise SpecError(
        "Spark(session=None): this process has no active Spark session; give one, hy.Spark(spark, workers=…). A "
        "run that was started on Spark goes on with hy.resume(directory, engine=hy.Spark(spark, workers=…)), or with "
        "processes of this host, `hopyard resume RUN --workers 2`"
    )


def _check_session(session: Any) -> None:
    """Raise SpecError when the session was stopped."""
    if is_stopped(session):
        raise SpecError(
            "Spark(session): the session was stopped; make another with SparkSession.builder.getOrCreate(), and an "
            "engine with it"
        )


def _driver_host(session: Any) -> str:
    """Return the host by which executors reach this process."""
    if not is_connect(session):
        return str(session.conf.get("spark.driver.host", LOOPBACK))
    return address_towards(str(getattr(session.client, "host", LOOPBACK)))
