"""The pods of one set of places: the Jobs that bring them, the Secret that lets them in, and why none comes.

A thread reconciles the pods that are wanted with those that are there, as controllers of Kubernetes do. An API server
that is away delays new pods, and nothing else: workers that are up do not need it.

A driver that is killed leaves nothing for long. Its pods end, Kubernetes deletes their Jobs ten minutes later, and the
Secret with the last of them. The first Job is created before the Secret, so that the Secret has an owner from the
beginning; a pod that finds no Secret ends.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from datetime import UTC, datetime
from typing import Any

from hopyard.engines.kubernetes import manifests, reasons
from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.engines.kubernetes.driver_pod import OwnPod
from hopyard.engines.kubernetes.manifests import PodSettings
from hopyard.engines.kubernetes.places import Places
from hopyard.engines.kubernetes.reasons import PodEnd
from hopyard.engines.kubernetes.watcher import PATIENCE_SECONDS, Watcher
from hopyard.engines.supervised import Placement
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket, line_of
from hopyard.ports.engines import OutOfMemory
from hopyard.system.network import joined

log = logging.getLogger(__name__)

OLDEST = (1, 29)
"""The first version of Kubernetes that has `backoffLimitPerIndex`."""
LOOK_SECONDS = 1.0
"""The longest time between two looks at what has become of pods."""
STEP_SECONDS = 0.05
"""The shortest one: a thousand pods that start bring thousands of changes."""
INQUIRE_SECONDS = 2.0
"""Time between two looks at events."""
AGAIN_SECONDS = 0.2
"""Time before the API server is asked again after an error; it doubles with each."""
MOST_SECONDS = 10.0
"""The longest time before it is asked again."""
END_SECONDS = 10.0
"""How long the deletion of Jobs may take at the end."""
REFUSED_SECONDS = 60.0
"""How long an API server may refuse calls, as of a namespace that was deleted, until a run without workers ends."""
UNKNOWN_SECONDS = 10.0
"""How long an API server may be away at the beginning, when it is not known to be one."""
INQUIRED = 3
"""Pods, and Jobs without, that are looked at each time: the others mostly wait for the same."""
RENEWED = "hopyard.dev/renewed"
"""Annotation of the Secret: when its driver was last known to live."""
RENEW_SECONDS = 20.0
"""Time between two renewals of it, by which `sweep.py` tells the Secret of a driver that lives."""
WATCH, EVENTS = "watch", "events"
SAY_SECONDS = 2.0
"""A reason that lasts this long is logged. Shorter ones resolve themselves."""
RENEW_AGAIN_SECONDS = 2.0
"""Time until the next try, after one that failed."""


class Pods(Placement):
    """Owner of the Jobs and the Secret.

    Args:
        api: of the cluster.
        settings: what a pod is.
        supervisors: those that the pods have.
        ticket: of these.
        own_pod: the pod that this process is in, which will own the Jobs; None: it is in none of this namespace.
        together: how many pods must be there for any of them to be of use.
    """

    def __init__(
        self,
        api: Api,
        settings: PodSettings,
        supervisors: Supervisors,
        ticket: Ticket,
        own_pod: OwnPod | None = None,
        together: int = 1,
    ) -> None:
        self._own_pod, self._together = own_pod, together
        self._grouped: bool | None = None
        """True if pods belong to a PodGroup; None: not known yet."""
        self._group = ""
        """Its name, if there is one."""
        self._api, self._settings, self.supervisors = api, settings, supervisors
        self.name = f"hopyard-{secrets.token_hex(4)}"
        self._ticket, self._address = line_of(ticket), joined(ticket.host, ticket.port)
        self._places = Places(self.name, settings.workers_per_pod)
        self._owners: dict[int, dict[str, Any]] = {}
        """Number of a Job → reference to it, of those that there are."""
        self._undeletable: set[int] = set()
        """Numbers of Jobs that are not needed, and whose deletion was refused. `close` tries again."""
        self._owned = 0
        """Number of the last Job that owns the Secret."""
        self._wakes = threading.Condition()
        self._wake_pending = self._withdrawing = self._closing = False
        self._began = self._refused_at = 0.0
        """Since when calls are made, and since when the API server refuses them for good."""
        self._checked = False
        """Whether the version of the cluster has been checked. No Job is created before that."""
        self._leftovers_removed = False
        self._inquired_at = self._renewed_at = 0.0
        self._why: dict[str, tuple[str, float]] = {}
        """Name of a pod or Job, "", WATCH or EVENTS for the API server → why nothing comes of it, and since when."""
        self._ends: dict[str, PodEnd] = {}
        """Host → how its pod ended."""
        self._turn = 0
        """How many Jobs without pods have been looked at."""
        self._undeleted = False
        """Whether Jobs may remain in the cluster, of which `close` warns."""
        self._queued = False
        """Whether a Job is suspended, for example queued by Kueue."""
        self._events: dict[str, str] = {}
        """Name of a pod that does not start → what its events say."""
        self._warned: set[str] = set()
        self._watcher: Watcher | None = None
        self._thread = threading.Thread(target=self._run, name="hopyard-pods", daemon=True)

    def place(self) -> None:
        """Let the thread look whether pods are missing."""
        with self._wakes:
            if not self._thread.ident and not self._closing:
                self._undeleted = True
                self._thread.start()
        self._wake()

    def withdraw(self) -> None:
        """Let the thread delete the Jobs that have no agent. Pods of others end with their supervisors."""
        self._withdrawing = True
        self._wake()

    def absence(self, when: str) -> str:
        """Return the sentence that no pod has a supervisor here."""
        look = f"kubectl get pods -n {self._api.namespace} -l {manifests.PLACES}={self.name}"
        return f"no pod has dialled {self._address} {when}: {self._reasons() or f'`{look}` shows what there is'}"

    @property
    def remedy(self) -> str:  # type: ignore[override]  # what others have as text depends on the cluster here
        """Why slots wait for a pod."""
        why = self._reasons()
        return f"for a pod{': ' if why else ''}{why}"

    @property
    def blocked(self) -> bool:
        """Return True while Jobs wait in a queue, which may take hours: that time does not count."""
        return self._queued

    def explain(self, host_name: str) -> str | None:
        """Return how the pod of that name ended; None: the API server has not said it yet."""
        if (end := self._ends.get(host_name)) is None:
            return None
        reason = f"its pod {host_name} ended: {end.sentence}"
        return OutOfMemory(reason) if end.out_of_memory else reason

    def close(self) -> None:
        """End all agents and pods, and delete their Jobs, with which the Secret goes."""
        self.supervisors.close()
        with self._wakes:
            self._closing = True
        self._wake()
        if self._thread.ident:
            self._thread.join(END_SECONDS)
            if self._undeleted:
                log.warning(
                    "the Jobs %s-… are not deleted yet, as the API server does not answer: their pods end, and "
                    "Kubernetes deletes the Jobs ten minutes later",
                    self.name,
                )

    # ---------------------------------------------------------------- the thread

    def _wake(self) -> None:
        with self._wakes:
            self._wake_pending = True
            self._wakes.notify_all()

    def _run(self) -> None:
        """Keep pods up until `close`, then delete their Jobs."""
        try:
            self._watcher = Watcher(self._api, "pods", labels=f"{manifests.PLACES}={self.name}", changed=self._wake)
            self._keep_up()
        except Exception as error:  # whatever it is: else the run would wait for ever for pods that nobody asks for
            log.exception("the thread that asks for pods ended")
            self.supervisors.give_up(f"no more pods can be asked for: {type(error).__name__}: {error}")
        finally:
            if self._watcher is not None:
                self._watcher.close()
            self._delete()

    def _remove_leftovers(self) -> None:
        """Delete the Jobs of a pod that was this driver before: while its pods wait, they may take the room of ours."""
        own = self._own_pod
        if self._leftovers_removed or own is None or not own.driver:
            return
        try:
            for job in self._api.list("jobs", labels=f"{manifests.DRIVER}={own.driver},{manifests.PLACES}")["items"]:
                if own.uid not in [owner["uid"] for owner in job["metadata"].get("ownerReferences", ())]:
                    self._api.delete("jobs", job["metadata"]["name"])
        except ApiError as error:
            if error.away:
                raise
            self._warn_once(self._api.why(error))  # they end by themselves, once they have run
        self._leftovers_removed = True

    def _keep_up(self) -> None:
        """Look again whenever something has changed, and after errors of the API server ever later."""
        self._began = self._refused_at = time.monotonic()
        pause = AGAIN_SECONDS
        while not self._closing:
            wait = STEP_SECONDS
            try:
                self._step(time.monotonic())
                pause, self._refused_at = AGAIN_SECONDS, time.monotonic()
                self._why.pop("", None)
            except ApiError as error:
                self._refused(error)
                wait, pause = max(pause, min(error.retry_after, PATIENCE_SECONDS)), min(2 * pause, MOST_SECONDS)
            with self._wakes:
                self._wakes.wait_for(lambda: self._closing, wait)
                self._wakes.wait_for(lambda: self._wake_pending or self._closing, LOOK_SECONDS)
                self._wake_pending = False

    def _step(self, now: float) -> None:
        """Look what is there, and ask for what is missing."""
        assert self._watcher is not None
        if why := self._fault_of_cluster():
            self.supervisors.give_up(why)
            return
        self._remove_leftovers()
        self._renew(now)
        if self._owned < max(self._owners, default=0):
            self._admit()
        pods = self._watcher.objects
        seen = [*self._watcher.removed(), *pods.values()]
        if ends := self._places.note_pods(seen, now):
            self._ends |= ends
            self.supervisors.wake()
        for end in ends.values():
            if end.code != 0:
                self._warn_once(end.sentence)
        for pod in seen:
            if "deletionTimestamp" in pod["metadata"] and self._places.has(pod):
                self._warn_once(reasons.of_pod(pod))
        self._places.note_supervisors(self.supervisors.hosts, now)
        if self._withdrawing:
            self._withdrawing = False
            self._places.give_back(self.supervisors.busy_hosts)
        self._delete_unneeded()
        self.coming = self._places.coming
        due = self.supervisors.due
        if why := self._places.hopeless(due):
            self.supervisors.give_up(why)
        elif pods_wanted := self._places.wanted(due, now):
            self._ask(pods_wanted)
        if self.supervisors.missing:
            self._explain({name: pod for name, pod in pods.items() if self._places.has(pod)}, now)
        else:
            self._why.clear()

    def _renew(self, now: float) -> None:
        """Show that this driver lives, before any call that a quota may refuse again and again."""
        if not self._owned or now - self._renewed_at < RENEW_SECONDS:
            return
        changes = {RENEWED: datetime.now(UTC).isoformat()}
        try:
            self._api.patch("secrets", self.name, {"metadata": {"annotations": changes}})
            self._renewed_at = now
        except ApiError as error:  # pods come all the same
            self._renewed_at = now - RENEW_SECONDS + RENEW_AGAIN_SECONDS
            if error.status == 403:
                self._warn_once(f"{self._api.why(error)}; `hopyard doctor --sweep` takes this driver for gone")

    def _fault_of_cluster(self) -> str:
        """Return why the cluster is too old; "" once it is known not to be."""
        if not self._checked:
            version = self._api.version()
            if version < OLDEST:
                return (
                    f"{self._api.server} is Kubernetes {version[0]}.{version[1]}, and Hopyard needs "
                    f"{OLDEST[0]}.{OLDEST[1]} or newer (a Job's backoffLimitPerIndex); give another context="
                )
            self._checked = True
        return ""

    def _ask(self, pods: int) -> None:
        """Ask for a Job of so many pods. Where the answer to an earlier try was lost, the Job of that try counts."""
        number, own = self._places.next_job, self._own_pod
        if not self._owners:  # the group of an earlier turn may be about to go, with its Secret
            self._group = f"{self.name}-{number}"
        manifest = manifests.job(
            *(self._settings, self.name, number, pods),
            driver=own.driver if own is not None else "",
            driver_pod=own.reference if own is not None else None,
            group=self._group if self._groups() else "",
        )
        try:
            job = self._api.create("jobs", manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            job = self._api.get("jobs", f"{self.name}-{number}")
        self._places.add(int(job["spec"]["completions"]))
        self._inquired_at = time.monotonic()
        self._owners[number] = manifests.owner(job)
        self._admit()

    def _delete_unneeded(self) -> None:
        """Delete Jobs whose pods are gone, or not wanted any more: one that a queue suspended would bring its pods
        again. With the last Job the Secret goes, at once: else it might go as the next Job has become its owner."""
        for job in self._owners.keys() - self._places.jobs:
            try:
                self._api.delete("jobs", f"{self.name}-{job}")
            except ApiError as error:
                if error.away:
                    raise
                self._undeletable.add(job)
                self._warn_once(self._api.why(error))
            del self._owners[job]
        if self._owned and not self._owners:
            with contextlib.suppress(ApiError):
                self._api.delete("secrets", self.name)
            self._owned = 0

    def _admit(self) -> None:
        """Let the Secret have all Jobs as its owners; create it where it is not there."""
        owners = list(self._owners.values())
        try:
            if self._owned:
                self._api.patch("secrets", self.name, {"metadata": {"ownerReferences": owners}})
            else:
                self._create_secret(owners)
        except ApiError as error:
            if not self._owned or error.status not in {403, 404}:
                raise
            try:
                self._create_secret(owners)  # a refusal does not say whether it is there
            except ApiError as again:
                if error.status != 403 or again.status != 403:
                    raise
                self._warn_once(self._api.why(again))  # pods come all the same, until the Jobs that own it are deleted
        self._owned = max(self._owners)

    def _create_secret(self, owners: list[dict[str, Any]]) -> None:
        """Create the Secret, unless it is there: the answer to an earlier try may have been lost."""
        try:
            secret = self._api.create("secrets", manifests.secret(self.name, self._ticket, owners))
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            secret = self._api.patch("secrets", self.name, {"metadata": {"ownerReferences": owners}})
        if self._groups():
            try:
                self._api.create("podgroups", manifests.pod_group(self.name, self._group, self._together, secret))
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise

    def _groups(self) -> bool:
        """Return whether the scheduler of the cluster is to place all pods or none. Where it cannot, the driver gives
        back pods that are too few."""
        if self._grouped is None:
            spec = self._settings.spec
            others = self._settings.queue or "schedulerName" in spec or "schedulingGroup" in spec
            self._grouped = (
                self._together > 1
                and not others
                and self._api.serves("podgroups")
                and self._api.allowed("create", "podgroups")
            )
        return self._grouped

    def _refused(self, error: ApiError) -> None:
        """Note that a call failed; give up where no pod can come."""
        why, now = self._api.why(error), time.monotonic()
        self._note("", why, now)
        if error.away or self.supervisors.occupied:
            self._refused_at = now
        unknown = not self._checked and now - self._began > UNKNOWN_SECONDS
        if (unknown or not error.away) and not self.supervisors.admitted_count:
            self.supervisors.give_up(why)
        elif now - self._refused_at > REFUSED_SECONDS:
            self.supervisors.give_up(f"no worker is left, and no pod can come: {why}")

    # ---------------------------------------------------------------- reasons

    def _reasons(self) -> str:
        """Return why pods do not come, each reason once."""
        fault = self._watcher.fault if self._watcher is not None else ""
        return "; ".join(dict.fromkeys([*(why for why, _ in list(self._why.values())), *([fault] if fault else [])]))

    def _warn_once(self, sentence: str) -> None:
        """Warn, once of each sentence, and not of pods that were turned away, which has been said."""
        known = sentence in self._warned or any(why in sentence for why in self.supervisors.refusals)
        if sentence and not known:
            self._warned.add(sentence)
            log.warning("%s", sentence)

    def _explain(self, pods: dict[str, dict[str, Any]], now: float) -> None:
        """Find out why pods are not there, from themselves at each look, from events every few seconds."""
        assert self._watcher is not None
        self._note(WATCH, self._watcher.fault, now)
        if now - self._inquired_at >= INQUIRE_SECONDS:
            self._inquired_at = now
            try:
                self._inquire(pods, now)
                self._why.pop(EVENTS, None)
            except ApiError as error:  # pods come all the same
                self._note(EVENTS, self._api.why(error), now)
        for name, pod in pods.items():
            end = self._ends.get(pod["spec"].get("hostname"))
            why = reasons.of_pod(pod) if end is None else end.sentence if end.code != 0 else ""
            self._note(name, why or self._events.get(name, "") or reasons.of_start(pod), now)
        jobs = {f"{self.name}-{number}" for number in self._places.unseen_jobs()}
        for name in self._why.keys() - {"", WATCH, EVENTS, *jobs, *pods}:
            del self._why[name]

    def _inquire(self, pods: dict[str, dict[str, Any]], now: float) -> None:
        """Look at events: some reasons are nowhere else."""
        unseen = self._places.unseen_jobs()
        self._queued = False
        turn, self._turn = self._turn % max(1, len(unseen)), self._turn + INQUIRED
        for number in (unseen[turn:] + unseen[:turn])[:INQUIRED]:
            name = f"{self.name}-{number}"
            try:
                job = self._api.get("jobs", name)
            except ApiError as error:
                if error.status != 404:
                    raise
                self._places.forget(number, now)
                continue
            self._queued = self._queued or bool(job["spec"].get("suspend"))
            self._note(name, reasons.of_job(job) or reasons.of_events(self._api.events("Job", name)), now)
        pending = [name for name, pod in pods.items() if reasons.of_start(pod) and not reasons.of_pod(pod)]
        self._events = {name: reasons.of_events(self._api.events("Pod", name)) for name in pending[:INQUIRED]}

    def _note(self, name: str, why: str, now: float) -> None:
        """Keep why nothing comes of a pod or Job, and warn of what lasts; "": nothing is known."""
        if not why:
            self._why.pop(name, None)
            return
        known, since = self._why.get(name, ("", now))
        self._why[name] = why, since if why == known else now
        if now - self._why[name][1] >= SAY_SECONDS:
            self._warn_once(why)

    def _delete(self) -> None:
        """Delete the Jobs, and the next one, which is there if the answer to its creation was lost."""
        pause, deadline = AGAIN_SECONDS, time.monotonic() + END_SECONDS
        jobs = sorted({*self._undeletable, *self._owners, self._places.next_job}) if self._checked else []
        while jobs and time.monotonic() < deadline:
            try:
                self._api.delete("jobs", f"{self.name}-{jobs[0]}")
                jobs.pop(0)
            except ApiError as error:
                if not error.away:
                    log.warning("Job %s-%d cannot be deleted: %s", self.name, jobs.pop(0), self._api.why(error))
                    continue
                time.sleep(max(0.0, min(max(pause, error.retry_after), deadline - time.monotonic())))
                pause = min(2 * pause, MOST_SECONDS)
        self._undeleted = bool(jobs)
