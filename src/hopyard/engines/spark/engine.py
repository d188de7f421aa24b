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
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hopyard import checks
from hopyard.checks import flag, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.local import Local, Processes
from hopyard.engines.spark.jobs import Jobs
from hopyard.engines.split import Split
from hopyard.engines.supervised import SupervisedAgents, Warm
from hopyard.engines.warm import Startable
from hopyard.errors import SpecError
from hopyard.ports.engines import Agents, LaunchInfo
from hopyard.sparkapi import is_connect, is_stopped
from hopyard.system.network import LOOPBACK, address_towards


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
        address: name or address by which executors reach this process; None: `spark.driver.host`, or of a Connect
            client the address that it dials its server from. Where that is an address of this machine, no other is
            listened on; a name is looked up here.
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
    address: str | None = None
    port: int = 0
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    start_timeout: float = 120.0
    driver_workers: int = 0
    release_cores: bool = False
    name: str = field(default="spark", init=False)
    apart: bool = field(default=True, init=False, repr=False)
    in_process: bool = field(default=False, init=False, repr=False)
    shared_places: bool = field(default=True, init=False, repr=False)
    _standby: Warm = field(default_factory=Warm, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.session is not None and not all(
            hasattr(self.session, name) for name in ("range", "conf", "createDataFrame")
        ):
            raise SpecError(f"Spark(…) must be given a SparkSession, got {type(self.session).__name__}")
        for name, least in (("workers", 1), ("threads", 1), ("driver_workers", 0)):
            object.__setattr__(self, name, whole(f"Spark({name}=)", getattr(self, name), least))
        object.__setattr__(self, "port", whole("Spark(port=)", self.port, 0, 65533))
        if self.driver_workers >= self.workers:
            raise SpecError(
                f"Spark(driver_workers=…) must be less than workers={self.workers}, got {self.driver_workers}; for "
                "workers on this host alone use hy.Local"
            )
        object.__setattr__(self, "address", checks.address("Spark(address=)", self.address))
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
    def endpoint(self) -> tuple[str, int]:
        """(host, port) that executors dial."""
        return self.address or _driver_host(_active_session(self.session)), self.port

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, of which none is started yet.

        Raises:
            SpecError: this engine comes from a pickle, which has no values of env=.
        """
        refuse_missing(self.env, "Spark")
        session = _active_session(self.session)
        jobs = partial(Jobs, session, self.workers if self.release_cores else 0)
        executors = SupervisedAgents(
            self, launch, jobs, standby=self._standby, task_name="Spark task", keep_idle=False, in_clear=True
        )
        if not self.driver_workers:
            return executors
        env = {"CUDA_VISIBLE_DEVICES": "", **self.env}  # the driver's GPUs are not for roles that ask for GPUs
        local = Processes(Local(workers=self.driver_workers, threads=self.threads, devices=None, env=env), launch)
        return Split(executors, local, range(self.workers - self.driver_workers, self.workers))

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self.start_timeout, self.driver_workers, self.release_cores
        return Spark, (None, self.workers, self.address, self.port, self.threads, self.env, *rest)


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
