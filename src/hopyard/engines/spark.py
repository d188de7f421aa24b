"""Agents on the executors of a Spark session: a job of one task for each, whose supervisor runs it (`spark_task.py`).

Spark places and isolates; Hopyard adds no daemon. Works with a classic session, by an RDD, and with Spark Connect, by
`mapInArrow`. Jobs that end are submitted again as long as a slot wants a supervisor; a task that Spark runs again, or
twice, is one more supervisor, never one more agent of a slot.

Cores can be released: jobs end while their agents go on, so that other jobs of the session find room, and come back
after those. In between Spark may place anything beside an agent, also on its GPU; where it allocates dynamically, an
executor without a task is idle, and may be removed with its agent (after `executorIdleTimeout`, 60 s).
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hopyard.checks import flag, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.local import Local, Processes
from hopyard.engines.spark_task import supervise, supervise_in_rdd
from hopyard.engines.split import Split
from hopyard.engines.supervisors.messages import Prepare
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import UNREACHED
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.errors import ResourceError, SpecError
from hopyard.ports import Agents, LaunchInfo
from hopyard.sparkapi.session import is_connect, is_stopped
from hopyard.system.network import LOOPBACK, address_towards
from hopyard.text import shown

log = logging.getLogger(__name__)

FEWER_SECONDS = 10.0
"""Time after the first supervisor until a warning says that there are fewer than requested."""
FAILURES = 3
"""Jobs that may fail one after the other while no supervisor comes, until the run gives up."""
AGAIN_SECONDS = 1.0
"""Time before a job that failed is submitted again."""
RELEASE_SECONDS = 5.0
"""How long jobs whose tasks were ordered to end alone may take."""
COMING_SECONDS = 1.0
"""At the end: how long tasks that begin may take to dial in, before those that Spark has no slot for are cancelled."""
MORE = (
    "more executors (spark.executor.instances, spark.cores.max, spark.dynamicAllocation.maxExecutors) or fewer cores a "
    "task (spark.task.cpus) would give them one"
)


_OPEN: weakref.WeakSet[Executors] = weakref.WeakSet()
"""Those of this process that were not closed."""
_OPEN_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Spark:
    """Worker processes on the executors of a Spark session, one for each task slot that it grants.

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
            disk.
        start_timeout: seconds to wait for the first worker, until the run ends with an error.
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
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise SpecError(f"Spark(host=…) must be a name or address that executors can dial, got {shown(self.host)}")
        flag("Spark(release_cores=)", self.release_cores)
        object.__setattr__(self, "env", worker_environment("Spark(env=)", self.env))
        object.__setattr__(self, "start_timeout", seconds("Spark(start_timeout=)", self.start_timeout))
        if self.session is not None:
            _check_session(self.session)

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
    """The agents of one run on Spark. Owner of the jobs that hold their supervisors."""

    def __init__(self, engine: Spark, session: Any, launch: LaunchInfo) -> None:
        self._session = session
        self._start_timeout = engine.start_timeout
        self._workers = engine.workers
        self._logs = launch.log(0).parent
        self._release_cores = engine.release_cores
        """Whether others have the cores for good, once each slot has an agent."""
        self._placed = False
        """Whether each slot has had an agent."""
        host, _ = engine.address
        token = secrets.token_hex(16)
        self._supervisors = Supervisors(host, engine.supervisors_port, token, launch.log)
        prepare = Prepare(launch.card(0).decode(), engine.threads, dict(engine.env))
        self._ticket = Ticket(host, self._supervisors.port, token, prepare)
        self._tag = f"hopyard-{secrets.token_hex(4)}"
        self._lock = threading.Condition()
        """Notified when a job has ended."""
        self._jobs: dict[int, threading.Thread] = {}
        self._submitted = 0
        self._cancelled: set[int] = set()
        """Jobs that hold no slot any more, and do not end."""
        self._leaving: dict[int, int] = {}
        """Job whose core is being released → the slot that it held."""
        self._failures = 0
        self._opened = time.monotonic()
        self._first_arrival = 0.0
        self._warned = False
        self._closed = False
        with _OPEN_LOCK:
            _OPEN.add(self)

    def start(self, slot: int) -> None:
        """Ask for an agent, and for a supervisor where none is free."""
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
        self._check_slots()
        if self._release_cores and not self._placed and self._supervisors.occupied and not self._supervisors.missing:
            self._placed = True
            self._supervisors.release_cores(range(self._workers))
        return self._supervisors.lost()

    def watch(self) -> list[int]:
        """Return a descriptor that is readable when an agent has ended."""
        return self._supervisors.watch()

    def waits(self, slot: int) -> bool:
        """Whether Spark has not granted a place for this slot yet."""
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
        slots = set(slots)
        jobs = self._supervisors.release_cores(slots)
        with self._lock:
            self._leaving.update((job, slot) for job, slot in jobs.items() if job in self._jobs)
            self._lock.wait_for(lambda: slots.isdisjoint(self._leaving.values()), RELEASE_SECONDS)
            unreleased = sorted(slots & set(self._leaving.values()))
        if unreleased:
            raise ResourceError(
                f"slots {', '.join(map(str, unreleased))}: Spark did not end the tasks that hold them within "
                f"{RELEASE_SECONDS:.0f} seconds, so there may be no room for another job; the executors' logs, or the "
                "stages that are active in Spark's UI, say what keeps them"
            )

    def reacquire_cores(self) -> None:
        """Ask Spark for tasks that hold the slots again; returns at once. They come when Spark has room. Does nothing
        where the engine has `release_cores=True`."""
        if self._release_cores:
            return
        self._supervisors.reacquire_cores()
        self._submit()

    def close(self) -> None:
        """End all agents, give the slots back to Spark."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
        with _OPEN_LOCK:
            _OPEN.discard(self)
        self._supervisors.dismiss()
        with self._lock:  # a task that begins just now still finds the driver: Spark would print an error otherwise
            self._lock.wait_for(lambda: not self._jobs, COMING_SECONDS)
        self._interrupt(self._tag)
        self._supervisors.close()
        deadline = time.monotonic() + 10
        while (jobs := list(self._jobs.values())) and time.monotonic() < deadline:
            jobs[0].join(0.5)
            self._interrupt(self._tag)  # one that was about to be submitted

    def _interrupt(self, tag: str) -> None:
        """End the jobs that have this tag."""
        with contextlib.suppress(Exception):  # a session that was stopped has none
            if is_connect(self._session):
                self._session.interruptTag(tag)
            else:
                self._session.sparkContext.cancelJobsWithTag(tag)

    def _mark(self, job: int) -> None:
        """Tag the jobs of this thread, so that one, or all of the run, can be interrupted. A classic session's own tags
        are known only to the thread that set them (Spark 4), so `interruptTag` in another thread ends nothing there,
        and reports nothing."""
        for tag in (self._tag, f"{self._tag}-{job}"):
            if is_connect(self._session):
                self._session.addTag(tag)
            else:
                self._session.sparkContext.addJobTag(tag)
        if not is_connect(self._session):
            self._session.sparkContext.setJobDescription("Hopyard: holds the slot of one worker")

    def _cancel(self, jobs: set[int]) -> None:
        """Cancel jobs whose supervisor does not answer, or is gone while its task is not, and submit others in their
        place."""
        with self._lock:
            cancelling = [job for job in jobs if job in self._jobs and job not in self._cancelled]
            self._cancelled.update(cancelling)
        for job in cancelling:  # in threads, as a server may take its time
            threading.Thread(target=self._interrupt, args=(f"{self._tag}-{job}",), daemon=True).start()
        if cancelling:
            self._submit()

    def _check_slots(self) -> None:
        """Cancel abandoned jobs, give up if no worker came in time, and warn when there are fewer than requested."""
        self._cancel(self._supervisors.abandoned())
        now, missing = time.monotonic(), self._supervisors.missing
        if self._supervisors.admitted_count and not self._first_arrival:
            self._first_arrival = now
        if missing and not self._first_arrival and now - self._opened > self._start_timeout:
            self._supervisors.give_up(
                f"Spark gave no slot within {self._start_timeout:.0f} seconds (Spark(start_timeout=…)): all its cores "
                f"are taken, or it has no executors{self._taken_here()}; {MORE}"
            )
        if missing and self._first_arrival and not self._warned and now - self._first_arrival > FEWER_SECONDS:
            self._warned = True
            log.warning("%d workers, %d more wait for a slot of Spark: %s", self._supervisors.occupied, missing, MORE)

    def _taken_here(self) -> str:
        """Return what of this process holds slots of Spark, for a message."""
        with _OPEN_LOCK:
            others = {str(other._logs): other._supervisors.occupied for other in _OPEN if other is not self}
        held = ", ".join(f"those of {logs} hold {count}" for logs, count in sorted(others.items()) if count)
        return f". Of this process, {held}: stop what nobody needs (hy.Program.running())" if held else ""

    def _submit(self) -> None:
        """Submit jobs until there is one for each slot that wants a supervisor or has one, except those whose cores are
        released. Cancelled jobs do not count, as their slots are taken from them before they end."""
        with self._lock:
            if self._closed:
                return
            for _ in range(self._supervisors.due - len(self._jobs.keys() - self._cancelled)):
                self._submitted += 1
                job = threading.Thread(
                    target=self._job, args=(self._submitted,), name="hopyard-supervisor", daemon=True
                )
                self._jobs[self._submitted] = job
                job.start()

    def _job(self, number: int) -> None:
        """Run one job of one task, for as long as its supervisor stays and its core is not released. Spark ties its
        calls to the thread."""
        admitted_before = self._supervisors.admitted_count
        try:
            self._mark(number)
            ticket = replace(self._ticket, job=number)
            if is_connect(self._session):
                self._session.range(0, 1, 1, 1).mapInArrow(supervise(ticket), "host string").collect()
            else:  # no plan to make, no code to generate, and neither pandas nor Arrow to import in the task
                self._session.sparkContext.parallelize([number], 1).mapPartitions(supervise_in_rdd(ticket)).collect()
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is reported, or tried again
            if not self._closed and number not in self._cancelled:
                self._failed(error, admitted_before)
        finally:
            with self._lock:
                del self._jobs[number]
                self._leaving.pop(number, None)
                self._cancelled.discard(number)
                self._lock.notify_all()
        if not self._closed:
            self._submit()

    def _failed(self, error: Exception, admitted_before: int) -> None:
        """A job failed, and Spark does not try it again: give up, or wait before it is submitted again."""
        text = str(error)
        self._failures = 1 if self._supervisors.admitted_count > admitted_before else self._failures + 1
        explanation = _explained(text, _python_of(self._session))
        if is_stopped(self._session):
            self._supervisors.give_up(_STOPPED)
        elif explanation and not self._supervisors.occupied:
            self._supervisors.give_up(explanation)
        elif self._failures >= FAILURES and not self._supervisors.occupied:
            self._supervisors.give_up(f"Spark cannot run workers: {_short(text)}")
        else:
            log.warning("a Spark task that held a worker's slot failed; it is asked for again: %s", _short(text))
            time.sleep(AGAIN_SECONDS)


_STOPPED = (
    "the Spark session was stopped while the run went on. Nothing is lost: hopyard.resume(directory, "
    "engine=hopyard.Spark(spark, workers=…)) goes on with another session"
)
_MEANINGS = {
    UNREACHED: "an executor {detail}: give hy.Spark(host=…) an address of this machine that executors can dial, and "
    "port=… where a firewall lets three ports in a row through",
    "PYTHON_VERSION_MISMATCH": "executors run another Python than this process: {detail} Set PYSPARK_PYTHON (or "
    "spark.pyspark.python) to the same minor version before the session starts",
    "No module named 'hopyard": "Hopyard is not installed in the executors' Python{python}. Usually PYSPARK_PYTHON (or "
    "spark.pyspark.python) was not set, and the environment that the driver runs from is not activated: set it to a "
    "Python that has Hopyard on every executor, for example {ours}, before the session starts; or install Hopyard "
    "there; or send a packed environment (spark.archives) and point PYSPARK_PYTHON at its python. {detail}",
    "No module named": "the executors' Python{python} lacks a package: {detail}. Install it there, or send a packed "
    "environment (spark.archives) and point PYSPARK_PYTHON at its python",
    "Cannot run program": "executors cannot start Python: {detail}. Set PYSPARK_PYTHON (or spark.pyspark.python) to a "
    "Python that is there on every executor",
}
"""Part of an error of Spark → what it means here."""


def _python_of(session: Any) -> str:
    """Return the Python that the session's executors run, by its settings; empty: a server of Connect knows it."""
    return "" if is_connect(session) else str(getattr(session.sparkContext, "pythonExec", ""))


def _explained(text: str, python: str = "") -> str:
    """Return what an error of Spark means, "" where that is not known; `python`: of the executors."""
    for part, meaning in _MEANINGS.items():
        if part in text:
            line = next((line.strip() for line in text.splitlines() if part in line), "")
            python_note = f", which is {python!r}" if python else ""
            return meaning.format(detail=line.rpartition("Error: ")[2][:400], python=python_note, ours=sys.executable)
    return ""


def _short(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:600]


def _active_session(session: Any) -> Any:
    """Return the session, or the one that is active in this process."""
    if session is not None:
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
        raise SpecError("Spark(session): the session was stopped; make another with SparkSession.builder.getOrCreate()")


def _driver_host(session: Any) -> str:
    """Return the host by which executors reach this process."""
    if not is_connect(session):
        return str(session.conf.get("spark.driver.host", LOOPBACK))
    return address_towards(str(getattr(session.client, "host", LOOPBACK)))
