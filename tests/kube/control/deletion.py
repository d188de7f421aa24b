"""How objects end: grace periods, finalizers, and what becomes of an owner's dependents."""

from __future__ import annotations

import copy

from kube.api.errors import bad_request
from kube.control.store import Object, Store, is_deleting, is_finished, stamp

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
HOLDS = {"Background": None, "Foreground": FOREGROUND, "Orphan": ORPHAN}


def delete(
    store: Store, resource: str, obj: Object, *, grace: int | None = None, propagation: str | None = None
) -> tuple[Object, bool]:
    """Delete an object, or begin to.

    Args:
        grace: seconds that a pod gets; None: what its spec says.
        propagation: Background, Foreground or Orphan; None: the default, which orphans the pods of Jobs.

    Returns:
        The object, and whether it is gone.
    """
    if propagation is None:
        propagation = "Orphan" if resource == "jobs" else "Background"
    if propagation not in HOLDS:
        raise bad_request(f'invalid propagationPolicy "{propagation}": must be one of {", ".join(HOLDS)}')
    if resource == "pods":
        return _delete_pod(store, obj, grace)
    new = copy.deepcopy(obj)
    meta = new["metadata"]
    hold = HOLDS[propagation]
    if hold and hold not in meta.get("finalizers", []):
        meta.setdefault("finalizers", []).append(hold)
    if not meta.get("finalizers") and resource != "namespaces":
        return store.drop(resource, new), True
    if resource == "namespaces":
        new["status"] = {"phase": "Terminating"}
    if not is_deleting(new):
        meta.update(deletionTimestamp=stamp(), deletionGracePeriodSeconds=0)
    return store.put(resource, new), False


def _delete_pod(store: Store, pod: Object, grace: int | None) -> tuple[Object, bool]:
    """A pod that runs nowhere has no grace period; one that runs ends when its kubelet deletes it with none."""
    if grace is None:
        grace = pod["spec"]["terminationGracePeriodSeconds"]
    if not pod["spec"].get("nodeName") or is_finished(pod):
        grace = 0
    if is_deleting(pod) and pod["metadata"]["deletionGracePeriodSeconds"] <= grace:
        return pod, False
    new = copy.deepcopy(pod)
    new["metadata"].update(deletionTimestamp=stamp(grace), deletionGracePeriodSeconds=grace)
    new = store.write("pods", new)
    if grace or new["metadata"].get("finalizers"):
        return new, False
    return store.drop("pods", new), True


def without_finalizer(obj: Object, name: str) -> Object:
    """Return a copy of an object that this finalizer does not hold."""
    new = copy.deepcopy(obj)
    new["metadata"]["finalizers"] = [one for one in new["metadata"].get("finalizers", []) if one != name]
    return new


def collect(store: Store) -> None:
    """Delete what has lost its owners, and end the deletion of owners that waited for their dependents."""
    by_uid = {obj["metadata"]["uid"]: (resource, obj) for resource, obj in store.all()}
    dependents: dict[str, list[tuple[str, Object]]] = {}
    for resource, obj in store.all():
        references = obj["metadata"].get("ownerReferences") or []
        for reference in references:
            dependents.setdefault(reference["uid"], []).append((resource, obj))
        if not references or is_deleting(obj):
            continue
        there = [one for one in references if one["uid"] in by_uid]
        staying = [one for one in there if not _waits(by_uid[one["uid"]][1], FOREGROUND)]
        if not staying:
            delete(store, resource, obj, propagation="Foreground" if there and resource != "pods" else "Background")
        elif len(staying) < len(references):
            new = copy.deepcopy(obj)
            new["metadata"]["ownerReferences"] = staying
            store.put(resource, new)
    for uid, (resource, obj) in by_uid.items():
        if _waits(obj, ORPHAN):
            for kind, dependent in dependents.get(uid, []):
                new = copy.deepcopy(dependent)
                kept = [one for one in new["metadata"]["ownerReferences"] if one["uid"] != uid]
                new["metadata"]["ownerReferences"] = kept
                store.put(kind, new)
            store.put(resource, without_finalizer(obj, ORPHAN))
        elif _waits(obj, FOREGROUND) and uid not in dependents:
            store.put(resource, without_finalizer(obj, FOREGROUND))
        elif resource == "namespaces" and is_deleting(obj):
            _empty(store, obj)


def _waits(obj: Object, finalizer: str) -> bool:
    return is_deleting(obj) and finalizer in obj["metadata"].get("finalizers", [])


def _empty(store: Store, namespace: Object) -> None:
    """Delete what a namespace that is being deleted holds, then itself."""
    inside = [
        (resource, obj)
        for resource, obj in store.all()
        if obj["metadata"].get("namespace") == namespace["metadata"]["name"]
    ]
    for resource, obj in inside:
        if not is_deleting(obj):
            delete(store, resource, obj, propagation="Background")
    if not inside:
        store.drop("namespaces", namespace)
