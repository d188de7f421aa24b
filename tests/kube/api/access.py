"""Who may do what: users by token, roles by RBAC."""

from __future__ import annotations

from typing import NamedTuple

from kube.api.errors import Refused, forbidden
from kube.control.store import Object, Store

ADMIN = "admin"
ACCOUNT = "system:serviceaccount:"
"""Before namespace and name of a service account, separated by a colon, the user that its pods are."""
NODE = "system:node:"
"""Before the name of the node, the user that its kubelet is."""


class Deed(NamedTuple):
    """What somebody wants to do."""

    verb: str
    group: str
    resource: str
    subresource: str
    namespace: str
    name: str


def is_trusted(user: str) -> bool:
    """Whether no role limits a user: the administrator, and kubelets."""
    return user == ADMIN or user.startswith(NODE)


def check(store: Store, user: str, deed: Deed) -> None:
    """Raise Refused (403) unless the user may do it."""
    if allowed(store, user, deed) is None:
        resource = f"{deed.resource}/{deed.subresource}" if deed.subresource else deed.resource
        where = f'in the namespace "{deed.namespace}"' if deed.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {deed.verb} resource "{resource}" in API group "{deed.group}" {where}'
        raise forbidden(deed.resource, deed.group, deed.name, why)


def unauthorized() -> Refused:
    return Refused(401, "Unauthorized", "Unauthorized")


def allowed(store: Store, user: str, deed: Deed) -> str | None:
    """Return why a user may do it, or None."""
    if is_trusted(user):
        return ""
    bindings = [(one, "") for one in store.objects("clusterrolebindings")]
    if deed.namespace:
        bindings += [(one, deed.namespace) for one in store.objects("rolebindings", deed.namespace)]
    for binding, namespace in bindings:
        if user not in map(_user_of, binding.get("subjects") or []):
            continue
        reference = binding["roleRef"]
        if reference["kind"] == "ClusterRole":
            role = store.get("clusterroles", "", reference["name"])
        else:
            role = store.get("roles", namespace, reference["name"])
        if role is not None and any(_covers(rule, deed) for rule in role.get("rules") or []):
            name = f"{binding['metadata']['name']}/{namespace}" if namespace else binding["metadata"]["name"]
            kind, role_kind = binding["kind"], reference["kind"]
            return f'RBAC: allowed by {kind} "{name}" of {role_kind} "{reference["name"]}" to User "{user}"'
    return None


def _user_of(subject: Object) -> str:
    """Return the user that a subject of a binding means."""
    account = subject["kind"] == "ServiceAccount"
    return f"{ACCOUNT}{subject['namespace']}:{subject['name']}" if account else str(subject["name"])


def _covers(rule: Object, deed: Deed) -> bool:
    resource = f"{deed.resource}/{deed.subresource}" if deed.subresource else deed.resource

    def has(names: list[str] | None, wanted: str) -> bool:
        return wanted in (names or []) or "*" in (names or [])

    named = not rule.get("resourceNames") or deed.name in rule["resourceNames"]
    return (
        has(rule.get("apiGroups"), deed.group)
        and has(rule.get("resources"), resource)
        and has(rule.get("verbs"), deed.verb)
        and named
    )


def review(store: Store, user: str, body: Object) -> Object:
    """Answer a SelfSubjectAccessReview."""
    asked = (body.get("spec") or {}).get("resourceAttributes")
    if asked is None:
        why, may = "", is_trusted(user)
    else:
        deed = Deed(
            asked.get("verb", ""),
            asked.get("group", ""),
            asked.get("resource", ""),
            asked.get("subresource", ""),
            asked.get("namespace", ""),
            asked.get("name", ""),
        )
        found = allowed(store, user, deed)
        why, may = found or "", found is not None
    status = {"allowed": may, **({"reason": why} if why else {})}
    return {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "metadata": {},
        "spec": body.get("spec", {}),
        "status": status,
    }
