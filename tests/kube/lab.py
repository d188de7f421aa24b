"""A cluster whose pods run: API server, controllers, nodes with kubelets, and a user who has the rights of a driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import yaml

from hopyard.engines.kubernetes.manifests import MANAGED_BY
from kube.client import Client, Object
from kube.kubelet import Delays, Kubelet, Network
from kube.server import Cluster

PAGE = Path(__file__).parent.parent.parent / "docs" / "kubernetes.md"
USER, NAMESPACE = "driver", "lab"
MANAGED = f"labelSelector={MANAGED_BY}%3Dhopyard"
QUICK = Delays(mount=0.1, image=0.2, config=0.1, content=0.1, longest=0.5)


def manifests(kind: str) -> list[Object]:
    """Return the manifests of the block of the page on Kubernetes that has one of this kind."""
    blocks = [block.split("```")[0] for block in PAGE.read_text().split("```yaml\n")[1:]]
    text = next(block for block in blocks if f"kind: {kind}\n" in block)
    return list(yaml.safe_load_all(text))


def role() -> Object:
    """Return the Role that the page shows."""
    return manifests("Role")[0]


class Lab:
    """A context manager.

    Args:
        folder: takes all files.
        nodes: how many.
        images: as for `Kubelet`.
        level: of Pod Security.
        kubelet: more arguments of all kubelets.
        cluster: more arguments of the `Cluster`.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int = 2,
        *,
        images: Mapping[str, Any] | None = None,
        level: str = "restricted",
        kubelet: Mapping[str, Any] = {},
        **cluster: Any,
    ) -> None:
        self._folder, self._stack = folder, ExitStack()
        self._images = {"hopyard:test": {}} if images is None else images
        self._names = [f"node-{number}" for number in range(nodes)]
        self._level, self._kubelet, self._cluster = level, kubelet, cluster
        self.kubelets: dict[str, Kubelet] = {}

    def __enter__(self) -> Self:
        with self._stack:
            self.network = Network()
            self._stack.callback(self.network.close)
            self.cluster = self._stack.enter_context(
                Cluster(self._folder, self.network.gateway, **{"bookmarks": 1.0} | self._cluster)
            )
            self.cluster.execute = lambda pod, command: self.kubelet_of(pod).execute(pod, command)
            self.admin: Client = self.cluster.client()
            self._admit()
            self.config = self.cluster.kubeconfig(self._folder / "kubeconfig", USER, NAMESPACE)
            for name in self._names:
                self.add(name)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def add(self, name: str, **more: Any) -> Kubelet:
        """Add a node."""
        token = self.cluster.token(f"system:node:{name}")
        settings = {"directory": self._folder, "network": self.network, "images": self._images}
        kubelet = Kubelet(self.cluster.url, token, name, **{"delays": QUICK, **settings, **self._kubelet, **more})
        self.kubelets[name] = kubelet
        self._stack.callback(kubelet.stop)
        kubelet.start()
        return kubelet

    def engine(self, **arguments: Any) -> Any:
        """Return an engine of this cluster, for two workers in pods of their own."""
        import hopyard as hy

        return hy.Kubernetes(**{"workers": 2, "image": "hopyard:test", "memory": "1Gi", "shm": "256Mi", **arguments})

    def objects(self, resource: str) -> list[Object]:
        """Return the objects of Hopyard of one resource: "jobs", "pods" or "secrets"."""
        groups = {"jobs": "apis/batch/v1", "podgroups": "apis/scheduling.k8s.io/v1beta1"}
        group = groups.get(resource, "api/v1")
        listing = self.admin.get(f"/{group}/namespaces/{NAMESPACE}/{resource}?{MANAGED}")
        return list(listing["items"])

    def pods(self) -> Sequence[str]:
        """Return the names of the pods that run."""
        return [name for kubelet in self.kubelets.values() for name in kubelet.running()]

    def kubelet_of(self, pod: str) -> Kubelet:
        """Return the kubelet that runs a pod."""
        return next(kubelet for kubelet in self.kubelets.values() if pod in kubelet.running())

    def left(self) -> list[str]:
        """Return what of Hopyard's is still there."""
        return [
            f"{resource} {each['metadata']['name']}"
            for resource in ("jobs", "pods", "secrets", "configmaps")
            for each in self.objects(resource)
        ]

    def _admit(self) -> None:
        """Make the namespace, and give the driver's user its Role."""
        labels = {"pod-security.kubernetes.io/enforce": self._level}
        self.admin.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
        authority = {"ca.crt": self.cluster.ca.read_text()}
        root = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self.admin.post(root, {"metadata": {"name": "kube-root-ca.crt"}, "data": authority})
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}"
        self.admin.post(f"{rbac}/roles", role())
        account, binding_of_account, claim = manifests("ServiceAccount")
        binding_of_account["subjects"][0]["namespace"] = NAMESPACE
        core = f"/api/v1/namespaces/{NAMESPACE}"
        self.admin.post(f"{core}/serviceaccounts", account)
        self.admin.post(f"{core}/persistentvolumeclaims", claim)
        self.admin.post(f"{rbac}/rolebindings", binding_of_account)
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "hopyard"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "hopyard"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
        }
        self.admin.post(f"{rbac}/rolebindings", binding)
