"""Create, change and merge objects as the API does."""

from __future__ import annotations

import copy
import uuid
from typing import Any

from kube.api.admission import admit
from kube.api.errors import already_exists, bad_request, conflict, forbidden, invalid, not_found, unknown
from kube.api.kinds import prepare, prepare_update
from kube.api.names import check_metadata, generated
from kube.api.resources import RBAC, Resource
from kube.control.store import Object, Store, is_deleting, stamp

KEPT = (
    "uid",
    "creationTimestamp",
    "namespace",
    "name",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)
"""Of the metadata, what a client cannot change."""
LIST_KEYS = {"ownerReferences": "uid", "containers": "name", "env": "name", "volumes": "name", "conditions": "type"}
"""How a strategic merge tells the items of a list apart; other lists are replaced."""


def create(store: Store, resource: Resource, namespace: str, obj: Object, *, dry_run: bool = False) -> Object:
    """Add an object.

    Raises:
        Refused: 403, 404 (no such namespace), 409, 422, 501.
    """
    obj = copy.deepcopy(obj)
    meta = obj.setdefault("metadata", {})
    if meta.get("namespace") and meta["namespace"] != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if not meta.get("name"):
        if not meta.get("generateName"):
            raise invalid(
                resource.kind,
                resource.group,
                "",
                [("metadata.name", "Required value: name or generateName is required")],
            )
        meta["name"] = generated(meta["generateName"])
    if namespace:
        meta["namespace"] = namespace
        place = store.get("namespaces", "", namespace)
        if place is None:
            raise not_found("namespaces", "", namespace)
        if is_deleting(place):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(resource.plural, resource.group, meta["name"], why)
    for name in ("resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"):
        meta.pop(name, None)
    meta.update(uid=str(uuid.uuid4()), creationTimestamp=stamp())
    if resource.plural in ("pods", "jobs"):
        meta["generation"] = 1
    obj.update(kind=resource.kind, apiVersion=resource.api_version)
    obj = prepare(resource.kind, obj, check_metadata(meta, resource.group == RBAC))
    admit(store, obj)
    if store.get(resource.plural, namespace, meta["name"]) is not None:
        raise already_exists(resource.plural, resource.group, meta["name"])
    return obj if dry_run else store.write(resource.plural, obj)


def update(
    store: Store, resource: Resource, old: Object, new: Object, *, subresource: str = "", dry_run: bool = False
) -> Object:
    """Replace an object by a changed one, or its status alone.

    Raises:
        Refused: 409, the old one is not what the client saw; 422.
    """
    name = old["metadata"]["name"]
    asked = new.get("metadata", {})
    if asked.get("name", name) != name:
        raise bad_request(f"the name of the object ({asked['name']}) does not match the name on the URL ({name})")
    for field in ("uid", "resourceVersion"):
        if asked.get(field) and asked[field] != old["metadata"][field]:
            raise conflict(resource.plural, resource.group, name)
    if subresource == "status":
        new = {**old, "status": new.get("status", {})}
    else:
        meta = {key: value for key, value in asked.items() if key not in (*KEPT, "resourceVersion")}
        meta |= {key: old["metadata"][key] for key in KEPT if key in old["metadata"]}
        new = {**new, "metadata": meta, "kind": old["kind"], "apiVersion": old["apiVersion"]}
        if "status" in resource.subresources and "status" in old:
            new["status"] = old["status"]
        if "generation" in meta and new.get("spec") != old.get("spec"):
            meta["generation"] += 1
        new = copy.deepcopy(new)
        prepare_update(resource.kind, old, new)
    return new if dry_run else store.put(resource.plural, new)


def merged(old: Object, patch: Object, content_type: str) -> Object:
    """Return an object after a patch.

    Raises:
        Refused: 400, 415 or 501.
    """
    if not isinstance(patch, dict):
        raise unknown("a JSON patch")
    if content_type == "application/merge-patch+json":
        return _merge(old, patch, strategic=False)
    if content_type == "application/strategic-merge-patch+json":
        return _merge(old, patch, strategic=True)
    raise unknown(f"a PATCH of type {content_type or 'none'}")


def _merge(old: Any, patch: Any, *, strategic: bool) -> Any:
    """RFC 7386; a strategic merge joins lists of which it knows the key."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if strategic and key.startswith("$"):
            raise unknown(f"the directive {key} of a strategic merge")
        if value is None:
            new.pop(key, None)
        elif strategic and isinstance(value, list) and key in LIST_KEYS:
            new[key] = _join(new.get(key) or [], value, LIST_KEYS[key])
        elif strategic and key == "finalizers":
            new[key] = [*(new.get(key) or []), *(one for one in value if one not in (new.get(key) or []))]
        else:
            new[key] = _merge(new.get(key), value, strategic=strategic)
    return new


def _join(old: list[Object], patch: list[Object], key: str) -> list[Object]:
    items = {item[key]: item for item in old}
    for item in patch:
        items[item[key]] = _merge(items.get(item[key]), item, strategic=True)
    return list(items.values())
