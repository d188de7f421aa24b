"""The kinds of objects that the server keeps, and how a client discovers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
PODS = ("spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase")
INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
RBAC = "rbac.authorization.k8s.io"
SCHEDULING = "scheduling.k8s.io"
"""The group of PodGroups, since 1.37."""


@dataclass(frozen=True)
class Resource:
    """One kind of objects.

    Args:
        selectable: fields that a field selector may name, beside metadata.name and metadata.namespace.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()
    version: str = "v1"

    @property
    def api_version(self) -> str:
        """Return `batch/v1`, but `v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version


RESOURCES = (
    Resource("", "namespaces", "Namespace", namespaced=False, short=("ns",), selectable=("status.phase",)),
    Resource("", "nodes", "Node", namespaced=False, short=("no",), subresources=("status",)),
    Resource(
        "",
        "pods",
        "Pod",
        short=("po",),
        subresources=("status", "log", "eviction", "exec"),
        selectable=(*PODS, "status.podIP"),
    ),
    Resource("", "secrets", "Secret", selectable=("type",)),
    Resource("", "configmaps", "ConfigMap", short=("cm",)),
    Resource("", "serviceaccounts", "ServiceAccount", short=("sa",), subresources=("token",)),
    Resource("", "persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",)),
    Resource(
        "",
        "events",
        "Event",
        short=("ev",),
        selectable=(*(f"involvedObject.{name}" for name in INVOLVED), "reason", "type", "reportingComponent"),
    ),
    Resource("", "resourcequotas", "ResourceQuota", short=("quota",)),
    Resource("batch", "jobs", "Job", subresources=("status",), selectable=("status.successful",)),
    Resource(SCHEDULING, "podgroups", "PodGroup", version="v1beta1"),
    Resource(RBAC, "roles", "Role"),
    Resource(RBAC, "rolebindings", "RoleBinding"),
    Resource(RBAC, "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
)
BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
BY_KIND = {resource.kind: resource for resource in RESOURCES}
REVIEWS = "authorization.k8s.io"
"""The group of selfsubjectaccessreviews, which are answered and not kept."""
GROUPS = ("batch", RBAC, REVIEWS)


def discovery(path: str, version: str) -> dict[str, Any] | None:
    """Return the answer to a request of discovery, or None if `path` asks for something else. That there are PodGroups
    is told to those alone who ask for their group."""
    if path == f"/apis/{SCHEDULING}/v1beta1" and has_pod_groups(version):
        return {**_resource_list(SCHEDULING), "groupVersion": f"{SCHEDULING}/v1beta1"}
    if path == "/version":
        major, minor = version.split(".")[:2]
        return {"major": major, "minor": minor, "gitVersion": f"v{version}", "platform": "linux/amd64"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = [{"groupVersion": f"{group}/v1", "version": "v1"} for group in GROUPS]
        groups = [
            {"name": group, "versions": [one], "preferredVersion": one}
            for group, one in zip(GROUPS, versions, strict=True)
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    if path == "/openapi/v3":
        paths = ["api/v1", *(f"apis/{group}/v1" for group in GROUPS)]
        return {"paths": {at: {"serverRelativeURL": f"/openapi/v3/{at}?hash=1"} for at in paths}}
    for group in ("", *GROUPS):
        root = f"apis/{group}/v1" if group else "api/v1"
        if path == f"/{root}":
            return _resource_list(group)
        if path == f"/openapi/v3/{root}":
            return _openapi(root, group)
    return None


def has_pod_groups(version: str) -> bool:
    """Return whether a server of this version serves PodGroups."""
    return tuple(map(int, version.split(".")[:2])) >= (1, 37)


def _resource_list(group: str) -> dict[str, Any]:
    listed: list[dict[str, Any]] = []
    for one in RESOURCES:
        if one.group == group:
            common = {"namespaced": one.namespaced, "kind": one.kind, "singularName": one.kind.lower()}
            listed.append({**common, "name": one.plural, "shortNames": list(one.short), "verbs": VERBS})
            listed += [
                {**common, "name": f"{one.plural}/{sub}", "verbs": ["get", "patch"] if sub == "status" else ["create"]}
                for sub in one.subresources
            ]
    if group == REVIEWS:
        review = {"name": "selfsubjectaccessreviews", "kind": "SelfSubjectAccessReview", "singularName": ""}
        listed.append({**review, "namespaced": False, "verbs": ["create"]})
    version = f"{group}/v1" if group else "v1"
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def _openapi(root: str, group: str) -> dict[str, Any]:
    """kubectl sends `fieldValidation` only to a server whose PATCH knows it."""
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for one in RESOURCES:
        if one.group == group:
            patch = {
                "responses": {},
                "parameters": parameters,
                "x-kubernetes-group-version-kind": {"group": group, "version": "v1", "kind": one.kind},
            }
            scope = "/namespaces/{namespace}" if one.namespaced else ""
            paths[f"/{root}{scope}/{one.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1"}, "paths": paths}
