"""A kubelet whose pods are real processes of this machine, each in namespaces of its own. It needs root.

It speaks the plain API of Kubernetes, so that it serves any API server::

    with Kubelet(url, token, "node-0", directory=tmp_path, images={"hopyard:test": {}}) as kubelet:
        ...  # pods that are bound to node-0 run, and reach this process at kubelet.gateway

or `python -m kube.kubelet URL NODE… --directory FOLDER --image NAME`, with the token in KUBE_TOKEN. Pods run one
container with restartPolicy Never. Users, capabilities, Secrets, termination messages and memory limits are real. CPU
limits, probes and seccomp are ignored; what else it does not know it refuses.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from kube.node import cgroups, statuses
from kube.node.client import AWAY, MERGE, Client, Object, RefusedError
from kube.node.containers import Image
from kube.node.events import Events
from kube.node.network import Network
from kube.node.pods import Delays, Node, Pod
from kube.node.sandbox import Address, Sandbox, missing

__all__ = ["Delays", "Kubelet", "Network", "missing"]


class Kubelet:
    """The kubelet of one node.

    Args:
        url: of the API server.
        token: by which the server knows it; "" for none.
        node: the name of the node, which is registered.
        directory: takes logs (`logs/<namespace>_<pod>.log`, which stay), and volumes while their pods last. Kubelets
            may share one.
        network: shared by the nodes of a cluster; None: one of its own, which ends with it.
        images: name → environment variables, or the folder, readable for all, that is first in
            PYTHONPATH. Others cannot be pulled.
        cpu, memory, gpus: what the node can give to pods.
        delays: how long it waits for what.
        group_kill: whether a pod ends as a whole when memory runs out for one of its processes, as on nodes with
            cgroups of version 2; else only that process.
    """

    def __init__(
        self,
        url: str,
        token: str,
        node: str,
        *,
        directory: Path,
        network: Network | None = None,
        images: Mapping[str, Image] = {},
        cpu: int | str = 8,
        memory: str = "16Gi",
        gpus: int = 0,
        delays: Delays = Delays(),  # noqa: B008 - frozen
        group_kill: bool = True,
    ) -> None:
        self.name, self.directory = node, directory
        self.without_limits = cgroups.version()[1]
        """The reason why memory limits do not hold here; "" where they do."""
        self._capacity = {"cpu": str(cpu), "memory": memory, "pods": "110", "ephemeral-storage": "10Gi"}
        if gpus:
            self._capacity["nvidia.com/gpu"] = str(gpus)
        self._network = Network() if network is None else network
        self._owns_network = network is None
        self.gateway = self._network.gateway
        """The address of this process in the network of pods."""
        self.bridge = self._network.bridge
        self._client = Client(url, token)
        self._events = Events(self._client, node)
        self._node = Node(
            client=self._client,
            events=self._events,
            directory=directory,
            bridge=self._network.bridge,
            images=images,
            delays=delays,
            group_kill=group_kill,
            server=url,
        )
        self._node.logs.mkdir(parents=True, exist_ok=True)
        self._number = self._network.node()
        self._next = 1
        self._ready_since = ""
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"kubelet {node}", daemon=True)
            for target in (self._watch, self._heartbeats)
        ]

    def start(self) -> Kubelet:
        """Register the node, and run its pods in threads of this process."""
        try:
            self._register()
        except BaseException:
            self.stop()
            raise
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """Kill all pods without a report, and leave nothing but logs."""
        self._end(cut=False)
        if self._owns_network:
            self._network.close()

    def vanish(self) -> None:
        """Let the node be gone at once: nobody hears of its end, neither the API server nor a peer of its pods."""
        self._end(cut=True)

    def pid(self, pod: str) -> int:
        """Return process 1 of a pod, as this machine numbers it."""
        return self._sandbox(pod).pid

    def processes(self, pod: str) -> dict[int, str]:
        """Return the processes of a pod, as this machine numbers them → their command lines."""
        return self._sandbox(pod).processes()

    def running(self) -> list[str]:
        """Return the names of the pods whose containers run, in order."""
        with self._lock:
            return sorted(pod.name for pod in self._pods.values() if pod.sandbox and not pod.over.is_set())

    def execute(self, pod: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start another command in the container of a pod."""
        return self._sandbox(pod).execute(command)

    def link(self, pod: str, up: bool) -> None:
        """Cut a pod off from the network, or join it again."""
        self._sandbox(pod).link(up)

    def log(self, pod: str, namespace: str = "default") -> str:
        """Return what a pod has printed."""
        return (self._node.logs / f"{namespace}_{pod}.log").read_text(errors="replace")

    def __enter__(self) -> Kubelet:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _sandbox(self, name: str) -> Sandbox:
        """Return that of a pod that runs."""
        with self._lock:
            found = [pod for pod in self._pods.values() if pod.name == name and pod.sandbox and not pod.over.is_set()]
        if not found or found[0].sandbox is None:
            raise KeyError(f"no pod {name} runs on {self.name}: there are {', '.join(self.running()) or 'none'}")
        return found[0].sandbox

    def _end(self, cut: bool) -> None:
        with self._lock:
            self._stopped.set()
            pods = list(self._pods.values())
        self._client.close()
        for pod in pods if cut else ():
            if pod.sandbox is not None:
                with contextlib.suppress(subprocess.CalledProcessError):  # it has ended meanwhile
                    pod.sandbox.link(False)
        for pod in pods:
            pod.kill()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for pod in pods:
            pod.join()
        self._events.close()
        with contextlib.suppress(OSError):  # another node has pods there
            (self.directory / "pods").rmdir()

    def _register(self) -> None:
        """Make the node, or take it over, with what it has."""
        labels = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": labels}, "spec": {}}
        try:
            self._client.call("POST", "/api/v1/nodes", node)
        except RefusedError as error:
            if error.code != 409:
                raise
        # Else the node controller would have to: a server may have none.
        self._client.call("PATCH", f"/api/v1/nodes/{self.name}", {"spec": {"taints": None}}, kind=MERGE)
        self._heartbeat()

    def _heartbeat(self) -> None:
        """Say that the node is ready."""
        at = statuses.now()
        self._ready_since = self._ready_since or at
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
        }
        self._client.patch_status(
            f"/api/v1/nodes/{self.name}",
            {
                "capacity": self._capacity,
                "allocatable": self._capacity,
                "addresses": [
                    {"type": "InternalIP", "address": self.gateway},
                    {"type": "Hostname", "address": self.name},
                ],
                "conditions": [{**ready, "lastHeartbeatTime": at, "lastTransitionTime": self._ready_since}],
            },
        )

    def _heartbeats(self) -> None:
        while not self._stopped.wait(self._node.delays.heartbeat):
            with contextlib.suppress(RefusedError, *AWAY):
                self._heartbeat()

    def _watch(self) -> None:
        """Follow the pods of this node."""
        mine = {"fieldSelector": f"spec.nodeName={self.name}"}
        while not self._stopped.is_set():
            try:
                listed = self._client.call("GET", "/api/v1/pods", query=mine)
                self._reconcile(listed["items"])
                version = str(listed["metadata"]["resourceVersion"])
                for event in self._client.watch("/api/v1/pods", {**mine, "resourceVersion": version}):
                    if event["type"] == "ERROR":
                        break
                    if event["type"] == "DELETED":
                        self._forget(event["object"]["metadata"]["uid"])
                    elif event["type"] != "BOOKMARK":
                        self._see(event["object"])
            except (RefusedError, *AWAY):
                self._stopped.wait(0.2)

    def _reconcile(self, pods: Sequence[Object]) -> None:
        """Take a list of all pods: those that are not in it were deleted meanwhile."""
        for uid in set(self._pods) - {pod["metadata"]["uid"] for pod in pods}:
            self._forget(uid)
        for pod in pods:
            self._see(pod)

    def _see(self, manifest: Object) -> None:
        """Run a pod that is new, and tell the others what has changed."""
        uid = manifest["metadata"]["uid"]
        with self._lock:
            if uid in self._pods:
                self._pods[uid].update(manifest)
            elif manifest["status"].get("phase", "Pending") == "Pending" and not self._stopped.is_set():
                pod = self._pods[uid] = Pod(manifest, self._node, self._address())
                pod.update(manifest)

    def _forget(self, uid: str) -> None:
        """End a pod that the API server has no more."""
        with self._lock:
            pod = self._pods.pop(uid, None)
        if pod is not None:
            pod.kill()
            pod.join()

    def _address(self) -> Address:
        """Return an address that no pod has."""
        used = {pod.address.ip for pod in self._pods.values() if not pod.over.is_set()}
        while True:
            self._next = self._next % 254 + 1
            ip = f"10.{self._network.number}.{self._number}.{self._next}"
            if ip not in used:
                device = f"{self._network.bridge}p{self._number}.{self._next}"
                return Address(ip, self.gateway, self._network.bridge, device)


def main(words: Sequence[str] | None = None) -> None:
    """Run kubelets until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m kube.kubelet", description=__doc__)
    parser.add_argument("url")
    parser.add_argument("nodes", nargs="+", metavar="node")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--image", action="append", default=[], help="its name, or name=folder")
    given = parser.parse_args(words)
    if reason := missing():
        sys.exit(reason)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit())  # an Event that is set here could wait for its own lock
    images: dict[str, Image] = {}
    for text in given.image:
        name, _, folder = text.partition("=")
        images[name] = Path(folder) if folder else {}
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        for node in given.nodes:
            token = os.environ.get("KUBE_TOKEN", "")
            kubelet = Kubelet(given.url, token, node, directory=given.directory, network=network, images=images)
            stack.enter_context(kubelet)
        print(network.gateway, flush=True)
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
