"""The Spark jobs that hold the places of supervisors: one task each (`task.py`).

Jobs that end are submitted again as long as a slot wants a supervisor; a task that Spark runs again, or twice, is one
more supervisor, never one more agent of a slot. Supervisors that outlive a run stand by without their tasks, so that
others have the cores between two runs; tasks of the next run hold their slots again.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Collection
from dataclasses import replace
from itertools import takewhile
from typing import Any

from hopyard.engines.spark.task import supervise, supervise_in_rdd
from hopyard.engines.supervised import Placement
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.supervisor import UNREACHED
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.errors import ResourceError
from hopyard.ports.engines import LaunchInfo
from hopyard.sparkapi import is_connect, is_stopped

log = logging.getLogger(__name__)

FAILURES = 3
"""Jobs that may fail one after the other while no supervisor comes, until the run gives up."""
AGAIN_SECONDS = 1.0
"""Time before a job that failed is submitted again; it doubles with each whose supervisor cannot work for the run."""
MOST_SECONDS = 60.0
"""The longest time before such a job is submitted again."""
RELEASE_SECONDS = 5.0
"""How long jobs whose tasks were ordered to end alone may take."""
COMING_SECONDS = 1.0
"""At the end: how long tasks that begin may take to dial in, before those that Spark has no slot for are cancelled."""
END_SECONDS = 10.0
"""How long jobs that were cancelled may take to end."""
MORE = (
    "more executors (spark.executor.instances, spark.cores.max, spark.dynamicAllocation.maxExecutors) or fewer cores a "
    "task (spark.task.cpus) would give them one"
)
_OPEN: weakref.WeakKeyDictionary[Jobs, None] = weakref.WeakKeyDictionary()
"""Those of this process that have a run, the one whose run was opened first at the front."""
_OPEN_LOCK = threading.Lock()


class Jobs(Placement):
    """Owner of the jobs, one for each supervisor.

    Args:
        session: runs them.
        release_cores: how many slots others have the cores of for good, once each slot has an agent.
        supervisors: those that the jobs hold.
        ticket: of these.
    """

    remedy = f"for a slot of Spark: {MORE}"

    def __init__(self, session: Any, release_cores: int, supervisors: Supervisors, ticket: Ticket) -> None:
        self._session, self._ticket, self.supervisors = session, ticket, supervisors
        self._released = range(release_cores)
        self._lock = threading.Condition()
        """Notified when a job has ended, or the run has."""
        self._jobs: dict[int, threading.Thread] = {}
        self._submitted = 0
        self._cancelled: set[int] = set()
        """Jobs that hold no slot any more, and do not end."""
        self._leaving: dict[int, int] = {}
        """Job whose core is being released → the slot that it held."""
        self._open = False
        """Whether there is a run: else no job is submitted."""

    @property
    def usable(self) -> bool:
        """Whether another run can have agents there."""
        return self.supervisors.usable and not is_stopped(self._session)

    def begin(self, launch: LaunchInfo) -> None:
        """Begin a run."""
        with self._lock:
            self._open, self._failures, self._pause = True, 0, AGAIN_SECONDS
            self._tag = f"hopyard-{secrets.token_hex(4)}"  # jobs of the last one may still be cancelled
        self._logs, self._open_ended = launch.log(0).parent, launch.open_ended
        self._placed = False
        """True once every slot has had an agent."""
        self._withdrawn = False
        """Whether it has left its places to others."""
        with _OPEN_LOCK:
            _OPEN[self] = None

    def place(self) -> None:
        """Submit jobs for slots, unless other runs that were opened earlier still wait for theirs. Two gangs would wait
        forever if each had a part of the slots."""
        if not self._placed and self.supervisors.occupied and not self.supervisors.missing:
            self._placed = True
            if self._released:
                self.supervisors.release_cores(self._released)
        if not self._waiting():
            self.submit()

    @property
    def blocked(self) -> bool:
        """Return True if other runs of this process wait for slots or hold some, and end by themselves."""
        return not all(other._open_ended for other in (*self._waiting(), *self._holders()))

    def absence(self, when: str) -> str:
        """Return the sentence that no worker has a slot, and who of this process has some."""
        holders = self._holders()
        taken = ", ".join(sorted(f"those of {other._logs} hold {count}" for other, count in holders.items()))
        taken = taken and f". Of this process, {taken}"
        if any(other._open_ended for other in holders):
            taken += ": stop programs that nobody needs (hy.Program.running())"
        if self.blocked:
            taken += ". The time counts from when no other run of this process holds slots"
        return f"Spark gave no slot {when}: it has no executors yet, or all its cores are taken{taken}; {MORE}"

    def _waiting(self) -> list[Jobs]:
        """Return those that were opened earlier, and still wait for slots."""
        with _OPEN_LOCK:
            earlier = list(takewhile(lambda other: other is not self, _OPEN))
        return [other for other in earlier if other.supervisors.missing or not (other._placed or other._withdrawn)]

    def _holders(self) -> dict[Jobs, int]:
        """Return how many slots of Spark others of this process hold."""
        with _OPEN_LOCK:
            others = {other: other.supervisors.held for other in _OPEN if other is not self}
        return {other: count for other, count in others.items() if count}

    def submit(self) -> None:
        """Submit jobs until there is one for each slot that wants a supervisor or has one, except those whose cores are
        released. Cancelled jobs do not count, as their slots are taken from them before they end."""
        with self._lock:
            if not self._open:
                return
            for _ in range(self.supervisors.due - len(self._jobs.keys() - self._cancelled)):
                self._submitted += 1
                job = threading.Thread(
                    target=self._run, args=(self._submitted,), name="hopyard-supervisor", daemon=True
                )
                self._jobs[self._submitted] = job
                job.start()

    def cancel(self, jobs: set[int]) -> None:
        """Cancel jobs whose supervisor does not answer, or is gone while its task is not, and submit others in their
        place."""
        with self._lock:
            cancelling = [job for job in jobs if job in self._jobs and job not in self._cancelled]
            self._cancelled.update(cancelling)
        for job in cancelling:  # in threads, as a server may take its time
            threading.Thread(target=self._interrupt, args=(f"{self._tag}-{job}",), daemon=True).start()
        if cancelling:
            self.submit()

    def withdraw(self) -> None:
        """Cancel the jobs for which Spark has no slot. Those whose supervisors leave end with these."""
        self._withdrawn = True
        with self._lock:
            jobs = set(self._jobs)
        self.cancel(jobs - self.supervisors.jobs)

    def release_cores(self, slots: Collection[int]) -> None:
        """Let the tasks that hold these slots end alone. Takes about 70 ms.

        Raises:
            ResourceError: Spark did not end a task of theirs in time.
        """
        slots = set(slots)
        jobs = self.supervisors.release_cores(slots)
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
        """Ask Spark for tasks that hold the slots again, unless others have the cores for good."""
        if not self._released:
            self.supervisors.reacquire_cores()
            self.submit()

    def rest(self) -> None:
        """End all agents, and give the slots back to Spark; supervisors stand by."""
        held = self._end_run()
        self.supervisors.rest(self._released)
        self._end_jobs(held)
        with self._lock:  # those that do not end have no part in the next run
            self._cancelled.update(self._jobs)
            self._jobs.clear()
            self._leaving.clear()

    def close(self) -> None:
        """End all agents and supervisors, and give the slots back to Spark."""
        held = self._end_run()
        self.supervisors.dismiss()
        self._end_jobs(held)
        self.supervisors.close()

    def _end_run(self) -> set[int]:
        """Submit no job from now on; return those that have a supervisor."""
        with self._lock:
            self._open = False
            self._lock.notify_all()
        with _OPEN_LOCK:
            _OPEN.pop(self, None)
        return self.supervisors.jobs

    def _end_jobs(self, held: set[int]) -> None:
        """Wait for the end of all jobs, whose supervisors were ordered to let their tasks go; cancel those that Spark
        has no slot for, and those of `held`, which have a supervisor, that take too long."""
        with self._lock:  # a task that begins just now still finds the driver: Spark would print an error otherwise
            self._lock.wait_for(lambda: not self._jobs, COMING_SECONDS)
            self._lock.wait_for(lambda: held.isdisjoint(self._jobs.keys() - self._cancelled), RELEASE_SECONDS)
        if self._jobs:
            self._interrupt(self._tag)
        deadline = time.monotonic() + END_SECONDS
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

    def _mark(self, job: int, tag: str) -> None:
        """Tag the jobs of this thread, so that one, or all of the run, can be interrupted. A classic session's own tags
        are known only to the thread that set them (Spark 4), so `interruptTag` in another thread ends nothing there,
        and reports nothing."""
        for each in (tag, f"{tag}-{job}"):
            if is_connect(self._session):
                self._session.addTag(each)
            else:
                self._session.sparkContext.addJobTag(each)
        if not is_connect(self._session):
            self._session.sparkContext.setJobDescription("Hopyard: holds the slot of one worker")

    def _run(self, number: int) -> None:
        """Run one job of one task, for as long as its supervisor stays and its core is not released. Spark ties its
        calls to the thread."""
        admitted_before = self.supervisors.admitted_count
        try:
            self._mark(number, self._tag)
            ticket = replace(self._ticket, job=number)
            if is_connect(self._session):
                self._session.range(0, 1, 1, 1).mapInArrow(supervise(ticket), "host string").collect()
            else:  # no plan to make, no code to generate, and neither pandas nor Arrow to import in the task
                self._session.sparkContext.parallelize([number], 1).mapPartitions(supervise_in_rdd(ticket)).collect()
            self._failures = 0
            if self.supervisors.refused(number):
                self._await_another_host()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises is reported, or tried again
            if self._open and number not in self._cancelled:
                self._failed(error, admitted_before)
        finally:
            with self._lock:
                self._jobs.pop(number, None)
                self._leaving.pop(number, None)
                self._cancelled.discard(number)
                self._lock.notify_all()
        self.submit()

    def _await_another_host(self) -> None:
        """The job's supervisor cannot work for this run, and the next one may come to the same executor: wait before it
        is submitted again, ever longer."""
        with self._lock:
            pause, self._pause = self._pause, min(2 * self._pause, MOST_SECONDS)
            self._lock.wait_for(lambda: not self._open, pause)

    def _failed(self, error: Exception, admitted_before: int) -> None:
        """A job failed, and Spark does not try it again: give up, or wait before it is submitted again."""
        text = str(error)
        self._failures = 1 if self.supervisors.admitted_count > admitted_before else self._failures + 1
        explanation = explained(text, _python_of(self._session))
        if is_stopped(self._session):
            self.supervisors.give_up(_STOPPED)
        elif explanation and not self.supervisors.occupied:
            self.supervisors.give_up(explanation)
        elif self._failures >= FAILURES and not self.supervisors.occupied:
            self.supervisors.give_up(f"Spark cannot run workers: {_short(text)}")
        else:
            log.warning("a Spark task that held a worker's slot failed; it is asked for again: %s", _short(text))
            time.sleep(AGAIN_SECONDS)


_STOPPED = (
    "the Spark session was stopped while the run went on. Nothing is lost: hopyard.resume(directory, "
    "engine=hopyard.Spark(spark, workers=…)) goes on with another session"
)
_MEANINGS = {
    UNREACHED: "an executor {detail}: give hy.Spark(address=…) an address of this machine that executors can dial, and "
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


def explained(text: str, python: str = "") -> str:
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
