"""Workers in pods of a Kubernetes cluster: a pod is a host, with a supervisor for each of its workers.

Hopyard needs no operator, no Service and no DNS: pods dial the driver by address, and never talk to the API server.
What brings them is in `jobs.py`, what they are in `manifests.py`, and why none comes in `reasons.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hopyard import checks
from hopyard.checks import scalar, seconds, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.kubernetes import manifests
from hopyard.engines.kubernetes.api import Api
from hopyard.engines.kubernetes.driver_pod import own_pod
from hopyard.engines.kubernetes.jobs import Pods
from hopyard.engines.kubernetes.manifests import pod_settings
from hopyard.engines.supervised import SupervisedAgents, Warm
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.engines.warm import Startable
from hopyard.errors import SpecError
from hopyard.ports.engines import Agents, LaunchInfo
from hopyard.system.network import address_towards, is_loopback
from hopyard.text import shown

log = logging.getLogger(__name__)


class Kubernetes(Startable):
    """Worker processes in pods of a Kubernetes cluster.

    Between `start` and `stop`, or in a `with` block, pods stay when a run is over, each worker with a process that has
    imported the framework of the first run, and the workers of later runs are forks of it, as for `hy.Local`. They cost
    what pods cost until then. A second run at the same time has pods of its own.

    Args:
        workers: how many, a multiple of `workers_per_pod`.
        image: with Python and Hopyard, the same minor version of Python and the same version of Hopyard as here.
        workers_per_pod: workers of one pod share its memory, its cache and its GPUs, as those of one host do.
        namespace: None: that of the context, or of this pod.
        context: of the kubeconfig; None: the current one, or in a pod the cluster's own.
        address: name or address of this host that pods can dial; None: the one that connections to the API server
            have, or where that is on this host, the one on the default route.
        port: to listen on for workers, for their supervisors the next one, for States the one after that; 0: any that
            are free.
        cpu: cores of each pod, as 4 or "500m"; None: `threads` for each of its workers.
        memory: of each pod, with its shared memory, as "16Gi"; None: 2 GiB for each worker.
        gpus: of each pod; they go to its workers in turn.
        shm: shared memory of each pod, as "1Gi".
        threads: intra-op threads of each worker. Results may depend on it, so it is fixed and recorded.
        env: more environment for the workers, as for `hy.Local`. It goes to pods by TLS alone.
        devices: "auto": workers get the pod's GPUs; None: the CPU.
        queue: Kueue's LocalQueue, by which pods are admitted.
        pod: a partial PodSpec, such as {"nodeSelector": {"gpu": "a100"}}, that is merged into the pods' by name; a
            key "metadata" may have labels and annotations, which the Jobs get too. What Hopyard needs wins, which a
            warning says. The run directory keeps it, so secrets go by `secretKeyRef`.
        start_timeout: seconds to wait for the first worker, until the run ends with an error.

    Raises:
        SpecError: a value is not allowed.
    """

    name = "kubernetes"
    apart = True
    in_process = False
    driver_workers = 0
    shared_places = True

    def __init__(
        self,
        workers: int,
        image: str,
        *,
        workers_per_pod: int = 1,
        namespace: str | None = None,
        context: str | None = None,
        address: str | None = None,
        port: int = 0,
        cpu: float | str | None = None,
        memory: str | None = None,
        gpus: int = 0,
        shm: str = "1Gi",
        threads: int = 1,
        env: Mapping[str, str] | None = None,
        devices: Any = "auto",
        queue: str | None = None,
        pod: Mapping[str, Any] | None = None,
        start_timeout: float = 300.0,
    ) -> None:
        self.workers = whole("Kubernetes(workers=)", workers, 1)
        self.workers_per_pod = whole("Kubernetes(workers_per_pod=)", workers_per_pod, 1)
        if self.workers % self.workers_per_pod:
            raise SpecError(
                f"Kubernetes(workers={self.workers}) must be a multiple of workers_per_pod={self.workers_per_pod}, "
                "so that all pods are equal"
            )
        self.threads = whole("Kubernetes(threads=)", threads, 1)
        self.env = worker_environment("Kubernetes(env=)", {} if env is None else env)
        self.start_timeout = seconds("Kubernetes(start_timeout=)", start_timeout)
        self._address = checks.address("Kubernetes(address=)", address)
        self._port = whole("Kubernetes(port=)", port, 0, 65533)
        self.settings = pod_settings(
            scalar(image),
            workers_per_pod=self.workers_per_pod,
            threads=self.threads,
            cpu=scalar(cpu),
            memory=scalar(memory),
            gpus=gpus,
            shm=scalar(shm),
            devices=devices,
            queue=scalar(queue),
            pod=pod,
        )
        if clashes := manifests.clashes(self.settings):
            log.warning("Kubernetes(pod=): %s: these are Hopyard's own, and stay", ", ".join(clashes))
        self.namespace = None if namespace is None else manifests.dns_name("Kubernetes(namespace=)", scalar(namespace))
        self.context = scalar(context)
        if self.context is not None and not (isinstance(self.context, str) and self.context):
            raise SpecError(f"Kubernetes(context=) must name a context of the kubeconfig, got {shown(context)}")
        self._api: Api | None = None
        self._standby: Warm = Warm()

    def __repr__(self) -> str:
        return f"Kubernetes(workers={self.workers}, image={self.settings.image!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what was asked for, with context and namespace as they were found. A pickle has no connection to the
        cluster, and is not started."""
        found = {} if self._api is None else {"context": self._api.context, "namespace": self._api.namespace}
        return self.__dict__ | found | {"_api": None, "_standby": Warm()}

    @property
    def api(self) -> Api:
        """The API server of the context.

        Raises:
            SpecError: there is no such context, or the package kubernetes is missing.
        """
        if self._api is None:
            self._api = Api(self.context, self.namespace)
        return self._api

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """Workers of each pod."""
        return (self.workers_per_pod,) * (self.workers // self.workers_per_pod)

    @property
    def endpoint(self) -> tuple[str, int]:
        """(host, port) that workers dial. Raises SpecError as `api` does."""
        if self._address:
            return self._address, self._port
        host = "" if is_loopback(self.api.host) else self.api.host  # as of kind and minikube
        return address_towards(host), self._port

    def manifests(self) -> list[dict[str, Any]]:
        """Return what a run asks the cluster for, without its secrets: a Job and a Secret. Nothing is started."""
        pods = self.workers // self.workers_per_pod
        job = manifests.job(self.settings, "hopyard-00000000", 1, pods)
        secret = manifests.secret("hopyard-00000000", b"...", [])
        for each in (job, secret) if self.namespace else ():
            each["metadata"]["namespace"] = self.namespace
        return [job, secret]

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, of which none is started yet.

        Raises:
            SpecError: this engine comes from a pickle, which has no values of env=; or there is no such context.
            ResourceError: a port is taken.
        """
        refuse_missing(self.env, "Kubernetes")
        api, settings, own = self.api, self.settings, own_pod()
        if own is not None and own.namespace != api.namespace:  # an owner must be in the namespace of what it owns
            own = None

        def place(supervisors: Supervisors, ticket: Ticket) -> Pods:
            return Pods(api, settings, supervisors, ticket, own, -(-launch.together // settings.workers_per_pod))

        return SupervisedAgents(self, launch, place, standby=self._standby, task_name="pod")
