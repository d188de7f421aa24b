"""Events of the cluster's own components."""

from __future__ import annotations

import uuid

from kube.api.resources import BY_KIND
from kube.control.store import Object, Store, stamp


def record(store: Store, about: Object, kind: str, reason: str, message: str, component: str) -> None:
    """Add an event, or count one more of the same.

    Args:
        kind: Normal or Warning.
    """
    meta = about["metadata"]
    involved = {
        "kind": about["kind"],
        "apiVersion": BY_KIND[about["kind"]].api_version,
        "name": meta["name"],
        "uid": meta["uid"],
        "resourceVersion": meta["resourceVersion"],
        **({"namespace": meta["namespace"]} if "namespace" in meta else {}),
    }
    namespace = meta.get("namespace", "default")
    for event in store.objects("events", namespace):
        same = event["involvedObject"]["uid"] == meta["uid"] and event["reason"] == reason
        if same and event["message"] == message:
            store.put("events", {**event, "count": event["count"] + 1, "lastTimestamp": stamp()})
            return
    name = f"{meta['name']}.{uuid.uuid4().hex[:16]}"
    store.write(
        "events",
        {
            "kind": "Event",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": str(uuid.uuid4()),
                "creationTimestamp": stamp(),
            },
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message,
            "count": 1,
            "firstTimestamp": stamp(),
            "lastTimestamp": stamp(),
            "source": {"component": component},
            "reportingComponent": component,
        },
    )
