"""A Kubernetes cluster for tests: API server, scheduler and controllers in this process, without kubelets.

It is held to a real Kubernetes 1.36.2 by `test_conformance.py`. What it does not know it refuses with 501.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kube.api.access import ADMIN, NODE
from kube.api.admission import count_quotas
from kube.api.certificates import server_context
from kube.api.objects import create
from kube.api.resources import BY_PLURAL
from kube.api.routes import Api, Request
from kube.api.wire import Listener
from kube.client import Client
from kube.control.deletion import collect
from kube.control.jobs import Jobs
from kube.control.nodes import Evictions, mark_back, mark_lost, new_node
from kube.control.scheduler import schedule
from kube.control.store import Object, Store
from kube.faults import Faults

Hook = Callable[[Literal["before", "after"], Request], None]
Execute = Callable[[str, Sequence[str]], "subprocess.Popen[bytes]"]
"""(pod, command) → its process, with pipes for standard output and error."""


class Cluster:
    """Serves from `start` to `stop`, or as a context manager.

    Args:
        folder: takes certificates and logs.
        address: to listen at.
        port: 0: any.
        version: of Kubernetes, that it says it is.
        speed: by which the time of the controllers (back-off, ttl, tolerations) and of played kubelets runs faster.
        backoff: seconds until an index that failed once gets another pod.
        bookmarks: seconds from one bookmark of a watch to the next.

    Attributes:
        logs: the folder in which a kubelet writes the output of pods, `<namespace>_<pod>.log`.
        faults: that the next requests meet; those of kubelets meet none, and are neither hooked nor listed.
        on_request: called with "before" or "after" (all was done, nothing is answered) and each request, in the
            thread of its connection. It may wait, raise `Cut` to end the connection, or `Refused` to answer so.
        requests: (method, path with query) of all requests, oldest first.
        execute: runs a command in a pod, for its subresource exec; without it there is none.
        failures: of this class itself; `stop` raises the first.
    """

    def __init__(
        self,
        folder: Path,
        address: str = "127.0.0.1",
        port: int = 0,
        *,
        version: str = "1.36.2",
        speed: float = 1.0,
        backoff: float = 10.0,
        bookmarks: float = 5.0,
    ) -> None:
        self.address, self.port = address, port
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._context, self.ca = server_context(folder, address)
        self.store = Store(speed)
        self.api = Api(self.store, self.logs, version, bookmarks, self.token)
        self.faults = Faults()
        self.on_request: Hook | None = None
        self.execute: Execute | None = None
        self.requests: list[tuple[str, str]] = []
        self.failures: list[Exception] = []
        self._jobs = Jobs(self.store, self._create_pod, backoff)
        self._evictions = Evictions(self.store)
        self._tokens: dict[str, str] = {}
        self._lost: set[str] = set()
        self._listener: Listener | None = None
        self._stopped = False
        self._loop = threading.Thread(target=self._control, daemon=True, name="kube-controllers")
        for name in ("default", "kube-system"):
            with self.store.changed:
                create(self.store, BY_PLURAL["namespaces"], "", {"metadata": {"name": name}})

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether the API server is up; without it, no controller and no kubelet does anything."""
        return self._listener is not None

    @property
    def backoffs(self) -> list[tuple[str, int, float]]:
        """(Job, index, seconds) of each failure that is followed by another pod."""
        return self._jobs.backoffs

    def start(self) -> Self:
        self.listen()
        self._loop.start()
        return self

    def stop(self) -> None:
        """Stop all of it.

        Raises:
            Exception: whatever went wrong in here.
        """
        with self.store.changed:
            self._stopped = True
            self.store.changed.notify_all()
        self.close()
        if self._loop.is_alive():
            self._loop.join()
        if self.failures:
            raise self.failures[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def listen(self) -> None:
        """Bring the API server up, at the same port as before."""
        listener = Listener(self, self.address, self.port, self._context)
        self.port = listener.server_address[1]
        with self.store.changed:
            self._listener = listener
            self.store.changed.notify_all()

    def close(self) -> None:
        """Take the API server down: connections end, and are refused; objects stay."""
        with self.store.changed:
            listener, self._listener = self._listener, None
            self.store.changed.notify_all()
        if listener is not None:
            listener.close()

    def restart(self, seconds: float = 0) -> None:
        """Be down for a while."""
        self.close()
        time.sleep(seconds)
        self.listen()

    def set_speed(self, speed: float) -> None:
        """Let the time of controllers and played kubelets run at another speed from now on."""
        self.store.set_speed(speed)

    def compact(self) -> None:
        """Forget history: watches from a revision of before are answered with 410, those that are open go on."""
        self.store.compact()

    def add_node(
        self,
        name: str = "hop-0",
        *,
        cpu: str = "8",
        memory: str = "16Gi",
        gpus: int = 0,
        pods: int = 110,
        labels: dict[str, str] | None = None,
        taints: list[Object] | None = None,
    ) -> None:
        """Add a node that is ready; a kubelet must serve it."""
        room = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "10Gi"}
        if gpus:
            room["nvidia.com/gpu"] = str(gpus)
        with self.store.changed:
            self.store.write("nodes", new_node(name, room, labels or {}, taints or []))

    def lose_node(self, name: str) -> None:
        """Let a node vanish: its kubelet reaches nobody, and what was on it neither runs nor ends.

        Its pods are deleted after the 300 s for which pods tolerate that by default, and are gone once somebody
        deletes them with a grace period of 0.
        """
        with self.store.changed:
            self._lost.add(name)
            mark_lost(self.store, self._node(name))

    def find_node(self, name: str) -> None:
        """Let a node that was lost be there again."""
        with self.store.changed:
            self._lost.discard(name)
            mark_back(self.store, self._node(name))

    def _node(self, name: str) -> Object:
        node = self.store.get("nodes", "", name)
        if node is None:
            names = ", ".join(one["metadata"]["name"] for one in self.store.objects("nodes")) or "none"
            raise ValueError(f"there is no node {name!r}; nodes: {names}")
        return node

    def is_lost(self, user: str) -> bool:
        """Whether a user is the kubelet of a lost node."""
        return user.startswith(NODE) and user.removeprefix(NODE) in self._lost

    def token(self, user: str = ADMIN) -> str:
        """Return the token of a user; `admin` and kubelets, `system:node:<name>`, may do all, others what roles say."""
        token = f"token-of-{user}"
        self._tokens[token] = user
        return token

    def user_of(self, token: str) -> str | None:
        return self._tokens.get(token)

    def client(self, user: str = ADMIN) -> Client:
        """Return a client for tests."""
        return Client(self.url, {"Authorization": f"Bearer {self.token(user)}"}, self.ca)

    def kubeconfig(self, path: Path, user: str = ADMIN, namespace: str = "default") -> Path:
        """Write a kubeconfig of a user, and return its path."""
        authority = base64.b64encode(self.ca.read_bytes()).decode()
        context = {"cluster": "test", "user": user, "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}},
            ],
            "users": [{"name": user, "user": {"token": self.token(user)}}],
            "contexts": [{"name": "test", "context": context}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config, indent=1))
        return path

    def _create_pod(self, namespace: str, pod: Object) -> Object:
        return create(self.store, BY_PLURAL["pods"], namespace, pod)

    def _control(self) -> None:
        """Let the controllers do what is due, until `stop`."""
        with self.store.changed:
            while not self._stopped:
                try:
                    due = self._turn()
                except Exception as error:
                    self.failures.append(error)
                    return
                wait = None if due is None else max(0.0, (due - self.store.now()) / self.store.speed)
                self.store.changed.wait(wait)

    def _turn(self) -> float | None:
        """Let each controller act until none has anything to do, and return when one has."""
        while self.listening:
            before = self.store.revision
            collect(self.store)
            due = [self._evictions.run(), self._jobs.run()]
            schedule(self.store)
            count_quotas(self.store)
            if self.store.revision == before:
                return min((one for one in due if one is not None), default=None)
        return None
