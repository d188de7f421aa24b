"""Agents on the executors of a Spark session: a job of one task for each, whose sitter minds it (`sitter.py`).

Spark places and isolates; Hopyard adds no daemon. Works with a classic session and with Spark Connect, as it needs
`mapInArrow` alone. Jobs that end are submitted again as long as a slot wants a seat; a task that Spark runs again, or
twice, is one more seat, never one more agent of a slot.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hopyard.engines.seats import Seats
from hopyard.engines.sitter import UNREACHED, Ticket, sit
from hopyard.errors import SpecError
from hopyard.hosts import LOOPBACK, address_towards
from hopyard.ports import Crew, Home
from hopyard.sessions import is_connect, is_stopped

log = logging.getLogger(__name__)

FEWER_SECONDS = 10.0
"""After the first seat, until it is said that there are fewer than asked for."""
FAILURES = 3
"""Jobs that may fail one after the other while no sitter comes, until the run gives up."""
AGAIN_SECONDS = 1.0
"""Before a job that failed is submitted again."""
MORE = (
    "more executors (spark.executor.instances, spark.cores.max, spark.dynamicAllocation.maxExecutors) or fewer cores a "
    "task (spark.task.cpus) would give them one"
)


@dataclass(frozen=True, slots=True, eq=False)
class Spark:
    """Worker processes on the executors of a Spark session, one for each task slot that it grants.

    Args:
        session: a SparkSession, classic or Connect. A pickle of the engine (a run directory has one) leaves it behind.
        workers: how many; fewer are used, with a warning, where Spark has fewer slots.
        host: name or address by which executors reach this process; None: `spark.driver.host`, or of a Connect client
            the address that it dials its server from.
        port: to listen on, and the two after it; 0: any that are free.
        threads: intra-op threads of each. Results may depend on it, so it is fixed and recorded.
        env: more environment for the workers.
        patience: seconds to wait for the first worker, until the run ends with an error.

    Raises:
        SpecError: a value is not allowed, or the session was stopped.
    """

    session: Any
    workers: int
    host: str | None = None
    port: int = 0
    threads: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    patience: float = 120.0
    name: str = field(default="spark", init=False)

    def __post_init__(self) -> None:
        if self.session is not None and not all(
            hasattr(self.session, name) for name in ("range", "conf", "createDataFrame")
        ):
            raise SpecError(f"Spark({type(self.session).__name__}): a SparkSession is needed")
        for name, least in (("workers", 1), ("threads", 1), ("port", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise SpecError(f"Spark({name}={value!r}): a whole number of at least {least} is needed")
        if self.port > 65533:
            raise SpecError(f"Spark(port={self.port}): 0, or at most 65533, as the two after it are used too")
        if self.host is not None and (not isinstance(self.host, str) or not self.host):
            raise SpecError(f"Spark(host={self.host!r}): a name or address that executors can dial is needed")
        if not isinstance(self.env, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in self.env.items()
        ):
            raise SpecError(f"Spark(env={self.env!r}): names and values are strings")
        if isinstance(self.patience, bool) or not isinstance(self.patience, (int, float)) or self.patience <= 0:
            raise SpecError(f"Spark(patience={self.patience!r}): seconds, more than 0, are needed")
        if self.session is not None:
            _alive(self.session)

    @property
    def address(self) -> tuple[str, int]:
        """Where the executors dial."""
        return self.host or _reached_by(_present(self.session)), self.port

    @property
    def apart(self) -> bool:
        """Executors are where Spark puts them."""
        return True

    def open(self, home: Home) -> Crew:
        """The crew, with nobody started yet."""
        return Executors(self, _present(self.session), home)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (None, self.workers, self.host, self.port, self.threads, dict(self.env), self.patience)
        return Spark, given


class Executors:
    """The agents of one run on Spark. Owner of the jobs that hold their seats."""

    def __init__(self, engine: Spark, session: Any, home: Home) -> None:
        self._session = session
        self._patience = engine.patience
        host, port = engine.address
        token = secrets.token_hex(16)
        self._seats = Seats(host, port + 1 if port else 0, token, home.log)
        self._ticket = Ticket(host, self._seats.port, token, home.card(0), engine.threads, dict(engine.env))
        self._tag = f"hopyard-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._jobs: set[threading.Thread] = set()
        self._failures = 0
        self._opened = time.monotonic()
        self._first = 0.0
        self._warned = False
        self._closed = False

    def start(self, slot: int) -> None:
        """Ask for a seat, where none is free."""
        self._seats.start(slot)
        self._submit()

    def end(self, slot: int) -> None:
        """End its agent."""
        self._seats.end(slot)

    def lost(self) -> list[tuple[int, str]]:
        """Those that ended since last asked.

        Raises:
            ResourceError: Spark gives no slot, or its executors cannot run agents.
        """
        self._look()
        return self._seats.lost()

    def watch(self) -> list[int]:
        """Readable when an agent ended."""
        return self._seats.watch()

    def waits(self, slot: int) -> bool:
        """Whether Spark has not given it a slot yet."""
        return self._seats.waits(slot)

    def device(self, slot: int) -> str:
        """ "cuda" when its task has GPUs (`spark.task.resource.gpu.amount`)."""
        return self._seats.device(slot)

    def close(self) -> None:
        """End all agents, give the slots back to Spark."""
        if self._closed:
            return
        with self._lock:
            self._closed = True
        self._seats.close()
        self._interrupt()
        patience = time.monotonic() + 10
        while (jobs := list(self._jobs)) and time.monotonic() < patience:
            jobs[0].join(0.5)
            self._interrupt()  # one that was about to be submitted

    def _interrupt(self) -> None:
        """End the jobs that still wait for a slot."""
        with contextlib.suppress(Exception):  # a session that was stopped has none
            self._session.interruptTag(self._tag)

    def _look(self) -> None:
        """Wait for the first worker no longer than allowed; say it when there are fewer than asked for."""
        now, missing = time.monotonic(), self._seats.missing
        if self._seats.came and not self._first:
            self._first = now
        if missing and not self._first and now - self._opened > self._patience:
            self._seats.give_up(
                f"Spark gave no slot within {self._patience:.0f} seconds (Spark(patience=…)): all its cores are "
                f"taken, or it has no executors; {MORE}"
            )
        if missing and self._first and not self._warned and now - self._first > FEWER_SECONDS:
            self._warned = True
            log.warning("%d workers, %d more wait for a slot of Spark: %s", self._seats.taken, missing, MORE)

    def _submit(self) -> None:
        """As many jobs as there are slots that want a seat or have one."""
        with self._lock:
            if self._closed:
                return
            for _ in range(self._seats.taken + self._seats.missing - len(self._jobs)):
                job = threading.Thread(target=self._job, name="hopyard-seat", daemon=True)
                self._jobs.add(job)
                job.start()

    def _job(self) -> None:
        """One job of one task: for as long as its sitter stays. Spark's calls are tied to the thread."""
        came = self._seats.came
        try:
            with contextlib.suppress(AttributeError):  # Connect has no context
                self._session.sparkContext.setJobDescription("Hopyard: holds the slot of one worker")
            self._session.addTag(self._tag)
            self._session.range(0, 1, 1, 1).mapInArrow(sit(self._ticket), "host string").collect()
            self._failures = 0
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is told, or tried again
            if not self._closed:
                self._failed(error, came)
        finally:
            with self._lock:
                self._jobs.discard(threading.current_thread())
        if not self._closed:
            self._submit()

    def _failed(self, error: Exception, came: int) -> None:
        """A job failed, and Spark does not try it again."""
        text = str(error)
        self._failures = 1 if self._seats.came > came else self._failures + 1
        why = _explained(text)
        if is_stopped(self._session):
            self._seats.give_up(_STOPPED)
        elif why and not self._seats.taken:
            self._seats.give_up(why)
        elif self._failures >= FAILURES and not self._seats.taken:
            self._seats.give_up(f"Spark cannot run workers: {_short(text)}")
        else:
            log.warning("a Spark task that held a worker's slot failed; it is asked for again: %s", _short(text))
            time.sleep(AGAIN_SECONDS)


_STOPPED = (
    "the Spark session was stopped while the run went on. Nothing is lost: hopyard.resume(directory, "
    "engine=hopyard.Spark(spark, workers=…)) goes on with another session"
)
_KNOWN = {
    UNREACHED: "an executor {detail}: give hy.Spark(host=…) an address of this machine that executors can dial, and "
    "port=… where a firewall lets three ports in a row through",
    "PYTHON_VERSION_MISMATCH": "executors run another Python than this process: {detail} Set PYSPARK_PYTHON (or "
    "spark.pyspark.python) to the same minor version before the session starts",
    "No module named 'hopyard": "Hopyard is not installed in the executors' Python: install it there, or send a packed "
    "environment (spark.archives) and point PYSPARK_PYTHON at its python. {detail}",
    "No module named": "the executors' Python lacks a package: {detail}. Install it there, or send a packed "
    "environment (spark.archives) and point PYSPARK_PYTHON at its python",
    "Cannot run program": "executors cannot start Python: {detail}. Set PYSPARK_PYTHON (or spark.pyspark.python) to a "
    "Python that is there on every executor",
}
"""Part of an error of Spark → what it means here."""


def _explained(text: str) -> str:
    for part, meaning in _KNOWN.items():
        if part in text:
            line = next((line.strip() for line in text.splitlines() if part in line), "")
            return meaning.format(detail=line.rpartition("Error: ")[2][:400])
    return ""


def _short(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return " … ".join(dict.fromkeys([*lines[:1], *lines[-1:]]))[:600]


def _present(session: Any) -> Any:
    """The session, or the one that is active in this process."""
    if session is not None:
        return session
    with contextlib.suppress(ImportError):
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            return active
    raise SpecError(
        "the run was started on Spark, and a Spark session does not outlive its process: give a new one, "
        "hopyard.resume(directory, engine=hopyard.Spark(spark, workers=…)), or go on with processes of this host, "
        "`hopyard resume RUN --workers 2`"
    )


def _alive(session: Any) -> None:
    """Raises SpecError when the session was stopped."""
    if is_stopped(session):
        raise SpecError("Spark(session): the session was stopped; make another with SparkSession.builder.getOrCreate()")


def _reached_by(session: Any) -> str:
    """The host by which executors reach this process."""
    if not is_connect(session):
        return str(session.conf.get("spark.driver.host", LOOPBACK))
    return address_towards(str(getattr(session.client, "host", LOOPBACK)))
