"""Which pods of a run are there, and how many more to ask for: decisions, without calls and without a clock.

A place is one pod that was asked for: an index of an Indexed Job, which Kubernetes never retries. Its key is the name
of its host, `<set of places>-<number of the Job>-<index>`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hopyard.engines.kubernetes.reasons import PodEnd, end_of

LEAST_SECONDS = 1.0
"""Time until pods are asked for again after one that ended without having had an agent; it doubles with each round."""
MOST_SECONDS = 60.0
"""The longest time until pods are asked for again."""
AWAY_SECONDS = 5.0
"""A pod that has had supervisors, and has none for so long, is lost. One that was killed has a successor sooner."""


@dataclass(slots=True)
class Place:
    """One pod that was asked for."""

    job: int
    """Number of its Job."""
    seen: bool = False
    """Whether its pod has been created."""
    scheduled: bool = False
    """True once its pod has a node."""
    admitted: bool = False
    """Whether it has had a supervisor."""
    hosted: bool = False
    """Whether it has had an agent."""
    away_since: float | None = None
    """Since when it has no supervisor any more."""
    silent: bool = False
    """Whether it has had none for so long that it is taken for lost."""
    ended: bool = False
    """Whether it is gone, or about to be."""
    end_reported: bool = False
    """Whether `note_pods` has returned its end."""

    @property
    def lost(self) -> bool:
        """Whether another one is to take its place."""
        return self.ended or self.silent


class Places:
    """The pods of one set of places.

    Args:
        name: of the set.
        per_pod: workers of each pod.
    """

    def __init__(self, name: str, per_pod: int) -> None:
        self.name, self._per_pod = name, per_pod
        self._places: dict[str, Place] = {}
        self.next_job = 1
        """Number of the Job that is asked for next."""
        self._unfit: dict[str, str] = {}
        """Host → why it cannot work here, of the pods that said so."""
        self._works = False
        """Whether a pod has had an agent."""
        self._pause, self._again_at, self._last_failed_job = 0.0, 0.0, 0
        """The pause of the last round, until when it lasts, and the last Job that was asked for before it."""

    def add(self, pods: int) -> None:
        """Note that the next Job, of so many pods, was asked for."""
        for index in range(pods):
            self._places[f"{self.name}-{self.next_job}-{index}"] = Place(self.next_job)
        self.next_job += 1

    @property
    def jobs(self) -> set[int]:
        """The numbers of the Jobs that may be there."""
        return {place.job for place in self._places.values()}

    def has(self, pod: Mapping[str, Any]) -> bool:
        """Return whether a pod is one of these, and was not given back."""
        return pod["spec"].get("hostname") in self._places

    @property
    def coming(self) -> int:
        """How many workers have a node, and no supervisor yet."""
        return self._per_pod * sum(
            place.scheduled and not place.admitted and not place.lost for place in self._places.values()
        )

    def wanted(self, due: int, now: float) -> int:
        """Return how many pods to ask for now, so that `due` workers have a place."""
        alive = sum(not place.lost for place in self._places.values())
        short = -(-due // self._per_pod) - alive
        return short if short > 0 and now >= self._again_at else 0

    def note_supervisors(self, hosts: Mapping[str, bool], now: float) -> None:
        """Note who has dialled the driver. `hosts`: host → whether it has had an agent, of those with a supervisor."""
        for host, place in self._places.items():
            if host in hosts:
                place.admitted, place.away_since, place.silent = True, None, False
                if hosts[host] and not place.hosted:
                    place.hosted, self._works, self._pause = True, True, 0.0
            elif place.admitted and place.away_since is None:
                place.away_since = now
            elif place.away_since is not None and now - place.away_since > AWAY_SECONDS and not place.lost:
                place.silent = True
                self._delay(place, now)

    def note_pods(self, pods: Collection[Mapping[str, Any]], now: float) -> dict[str, PodEnd]:
        """Note what the API server shows. Return host → end, of pods that have ended since the last call.

        Args:
            pods: all that it shows.
            now: the time.
        """
        ends: dict[str, PodEnd] = {}
        shown = {pod["spec"].get("hostname"): pod for pod in pods}
        for host, place in list(self._places.items()):
            pod = shown.get(host)
            if pod is None:
                if place.seen:
                    self._end(place, now)
                    del self._places[host]
                continue
            place.seen, place.scheduled = True, bool(pod["spec"].get("nodeName"))
            end = end_of(pod)
            if end is not None and not place.end_reported:  # without its name, as each that is asked for has another
                end = replace(end, sentence=end.sentence.replace(f"{host} on node ", "a pod on node "))
                ends[host], place.end_reported = end, True
                if end.unfit:
                    self._unfit[host] = end.sentence
            if end is not None and end.code == 0:  # it left as the driver ordered
                place.ended = True
            elif end is not None or "deletionTimestamp" in pod["metadata"]:
                self._end(place, now)
        return ends

    def give_back(self, busy: Collection[str]) -> None:
        """Forget the Jobs that have no agent, and pods of others that leave.

        Args:
            busy: hosts where agents run.
        """
        kept = {place.job for host, place in self._places.items() if host in busy}
        self._places = {
            host: place
            for host, place in self._places.items()
            if host in busy or (place.job in kept and not place.admitted)
        }

    def forget(self, job: int, now: float) -> None:
        """Note that this Job is gone: those of its pods that were never seen will not come."""
        for place in self._places.values():
            if place.job == job and not place.seen:
                self._end(place, now)

    def unseen_jobs(self) -> list[int]:
        """Return the Jobs of which a pod has not been created yet."""
        return sorted({place.job for place in self._places.values() if not place.seen and not place.lost})

    def hopeless(self, due: int) -> str:
        """Return why no pod can work here, where all have ended with that; "" as long as one may."""
        wanted, places = -(-due // self._per_pod), self._places.values()
        if self._works or not all(place.lost for place in places) or len(self._unfit) < max(1, wanted):
            return ""
        return "; ".join(dict.fromkeys(self._unfit.values()))

    def _end(self, place: Place, now: float) -> None:
        """Note that this place is gone."""
        if not place.lost:
            self._delay(place, now)
        place.ended = True

    def _delay(self, place: Place, now: float) -> None:
        """Delay the next round for a place that had no agent, each later round by twice that."""
        if not place.hosted and place.job > self._last_failed_job:
            self._last_failed_job = self.next_job - 1
            self._pause = min(MOST_SECONDS, max(LEAST_SECONDS, 2 * self._pause))
            self._again_at = now + self._pause
