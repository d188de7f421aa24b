"""From a request to its answer: which object, which verb, which options."""

from __future__ import annotations

import base64
import binascii
import copy
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kube.api.access import ACCOUNT, Deed, check, review
from kube.api.errors import Refused, bad_request, conflict, expired, not_found, unknown
from kube.api.fields import check_fields
from kube.api.objects import create, merged, update
from kube.api.resources import BY_PLURAL, REVIEWS, SCHEDULING, Resource, discovery, has_pod_groups
from kube.api.selectors import selects
from kube.api.streams import Body, log, stamped, watch
from kube.control.deletion import delete
from kube.control.scheduler import set_condition
from kube.control.store import Object, Store, is_finished

PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v1|v1beta1)(?:/namespaces/(?P<namespace>[^/]+)(?=/[a-z]))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[a-z]+))?)?"
)
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
OPTIONS = {
    "get": {"pretty"},
    "list": {"labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch"},
    "watch": {"labelSelector", "fieldSelector", "resourceVersion", "timeoutSeconds", "allowWatchBookmarks", "watch"},
    "create": {"fieldValidation", "fieldManager", "dryRun"},
    "delete": {"propagationPolicy", "gracePeriodSeconds", "dryRun"},
    "log": {"follow", "tailLines", "limitBytes", "container", "timestamps", "sinceTime"},
}
OPTIONS["update"] = OPTIONS["patch"] = OPTIONS["create"]
OPTIONS["deletecollection"] = OPTIONS["list"] | OPTIONS["delete"]
COMMON = {"pretty", "timeout"}
ORPHANED = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)


@dataclass
class Request:
    """What a client asks."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    content_type: str
    user: str


@dataclass
class Answer:
    """What it gets: an object, a text, or a stream of parts."""

    code: int
    body: Object | str | Iterator[bytes]
    warnings: list[str] = field(default_factory=list)


class Api:
    """Answers requests on a store.

    Args:
        logs: the folder of pods' output, `<namespace>_<pod>.log`.
        version: of Kubernetes, that it says it is.
        bookmarks: seconds from one bookmark of a watch to the next.
        token: user → their token.
    """

    def __init__(self, store: Store, logs: Path, version: str, bookmarks: float, token: Callable[[str], str]) -> None:
        self._token = token
        self._store, self._logs, self._version, self._bookmarks = store, logs, version, bookmarks

    def answer(self, request: Request) -> Answer:
        """Answer a request.

        Raises:
            Refused: with the status to answer instead.
        """
        path = request.path.rstrip("/")
        if path in ("/healthz", "/readyz", "/livez"):
            return Answer(200, "ok")
        found = discovery(path, self._version)
        if found is not None and request.method == "GET":
            return Answer(200, found)
        match = PATH.fullmatch(path)
        if match is None and path.startswith(f"/apis/{SCHEDULING}"):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if match is None:
            raise unknown(f"the path {path}")
        group, plural = match["group"] or "", match["plural"]
        if (group, plural) == (REVIEWS, "selfsubjectaccessreviews") and request.method == "POST":
            with self._store.changed:
                return Answer(201, review(self._store, request.user, request.body))
        resource = BY_PLURAL.get(plural)
        if path.startswith(f"/apis/{SCHEDULING}") and not has_pod_groups(self._version):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if resource is None or (resource.group, resource.version) != (group, match["version"]):
            raise unknown(f"the resource {plural} of the group {group!r}")
        place, name, sub = match["namespace"] or "", match["name"] or "", match["subresource"] or ""
        if sub and sub not in resource.subresources:
            raise unknown(f"the subresource {plural}/{sub}")
        verb = VERBS.get(request.method, request.method)
        if not name and verb in ("get", "delete"):
            verb = "deletecollection" if verb == "delete" else "list"
            verb = "watch" if verb == "list" and request.query.get("watch") in ("true", "1") else verb
        if resource.namespaced and not place and verb not in ("list", "watch"):
            raise unknown(f"{verb} of {plural} in no namespace")
        with self._store.changed:
            inside = place if resource.namespaced else (name if plural == "namespaces" else "")
            check(self._store, request.user, Deed(verb, group, plural, sub, inside, name))
        known = OPTIONS["log" if sub == "log" else verb] | COMMON
        if more := {key for key, value in request.query.items() if value not in ("", "false")} - known:
            raise unknown(f"the option {', '.join(sorted(more))} of {verb} {plural}")
        if sub == "log":
            return self._log(place, name, request.query)
        with self._store.changed:
            return self._do(resource, verb, place, name, sub, request)

    def _do(self, resource: Resource, verb: str, place: str, name: str, sub: str, request: Request) -> Answer:
        query = request.query
        dry_run = _dry_run(query, request.body)
        if verb == "list":
            return Answer(200, self._list(resource, place, query))
        if verb == "watch":
            return Answer(200, self._watch(resource, place, query))
        if verb == "deletecollection":
            found = self._list(resource, place, query)
            for obj in found["items"]:
                self._delete(resource, obj, query, request.body, dry_run)
            return Answer(200, found)
        if verb == "create" and not name:
            body, warnings = self._checked(resource, request.body, query)
            if verb == "create" and not isinstance(body, dict):
                raise bad_request("the object provided is unrecognized")
            return Answer(201, create(self._store, resource, place, body, dry_run=dry_run), warnings)
        old = self._store.get(resource.plural, place, name)
        if old is None:
            raise not_found(resource.plural, resource.group, name)
        if verb == "create" and sub == "token":
            return Answer(201, {"status": {"token": self._token(f"{ACCOUNT}{place}:{name}")}})
        if verb == "create" and sub == "eviction":
            return self._evict(old, request.body, dry_run)
        if verb == "get":
            return Answer(200, old)
        if verb == "delete":
            return self._delete(resource, old, query, request.body, dry_run)
        if verb not in ("update", "patch"):
            raise unknown(f"{verb} of one of {resource.plural}")
        new = request.body if verb == "update" else merged(old, request.body, request.content_type)
        new, warnings = self._checked(resource, new, query)
        return Answer(200, update(self._store, resource, old, new, subresource=sub, dry_run=dry_run), warnings)

    def _checked(self, resource: Resource, body: Any, query: dict[str, str]) -> tuple[Object, list[str]]:
        if not isinstance(body, dict):
            raise bad_request(f"the body of the request must be an object, got {type(body).__name__}")
        for name, own in (("kind", resource.kind), ("apiVersion", resource.api_version)):
            if body.get(name, own) != own:
                raise bad_request(f"the {name} of the object is {body[name]!r}, and {own!r} is expected here")
        version = resource.api_version if resource.group == "" else "v1"
        return check_fields(resource.kind, version, body, query.get("fieldValidation") or "Warn")

    def _list(self, resource: Resource, place: str, query: dict[str, str]) -> Object:
        wanted = selects(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        if query.get("resourceVersionMatch") == "Exact":
            raise unknown("resourceVersionMatch=Exact")
        first, revision = 0, self._store.revision
        if token := query.get("continue"):
            try:
                revision, first = json.loads(base64.b64decode(token))
            except (ValueError, TypeError, binascii.Error):
                raise bad_request("continue key is not valid") from None
            if revision < self._store.oldest:
                raise expired(revision, self._store.oldest)
        found = [obj for obj in self._store.objects(resource.plural, place) if wanted(obj)]
        meta: Object = {"resourceVersion": str(revision)}
        limit = int(query.get("limit") or 0)
        if limit and len(found) > first + limit:
            meta["continue"] = base64.b64encode(json.dumps([revision, first + limit]).encode()).decode()
            meta["remainingItemCount"] = len(found) - first - limit
            found = found[: first + limit]
        items = [
            {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")} for obj in found[first:]
        ]
        kinds = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return {**kinds, "metadata": meta, "items": items}

    def _watch(self, resource: Resource, place: str, query: dict[str, str]) -> Body:
        wanted = selects(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        bookmarks = self._bookmarks if query.get("allowWatchBookmarks") in ("true", "1") else None
        asked = query.get("resourceVersion") or "0"
        if not asked.isdigit():
            raise bad_request(f'invalid resource version "{asked}"')
        timeout = float(query.get("timeoutSeconds") or 1800)
        return watch(self._store, resource, place, wanted, int(asked), timeout, bookmarks)

    def _delete(self, resource: Resource, obj: Object, query: dict[str, str], body: Any, dry_run: bool) -> Answer:
        options = body if isinstance(body, dict) else {}
        known = {"kind", "apiVersion", "propagationPolicy", "gracePeriodSeconds", "preconditions", "dryRun"}
        if more := set(options) - known:
            raise unknown(f"the option {', '.join(sorted(more))} of a deletion")
        obj = self._store.get(resource.plural, obj["metadata"].get("namespace", ""), obj["metadata"]["name"]) or obj
        for name, value in (options.get("preconditions") or {}).items():
            real = obj["metadata"][name]
            if value is not None and real != value:
                title = {"uid": "UID"}.get(name, name)
                why = f"Precondition failed: {title} in precondition: {value}, {title} in object meta: {real}"
                raise conflict(resource.plural, resource.group, obj["metadata"]["name"], why)
        policy = query.get("propagationPolicy") or options.get("propagationPolicy")
        grace = query.get("gracePeriodSeconds", options.get("gracePeriodSeconds"))
        warnings = [ORPHANED] if resource.plural == "jobs" and policy is None else []
        if dry_run:
            return Answer(200, obj)
        seconds = None if grace is None else int(grace)
        obj, gone = delete(self._store, resource.plural, obj, grace=seconds, propagation=policy)
        if not gone or resource.plural == "pods":
            return Answer(200, obj, warnings)
        details = {"name": obj["metadata"]["name"], "group": resource.group, "kind": resource.plural}
        details["uid"] = obj["metadata"]["uid"]
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Answer(200, status, warnings)

    def _evict(self, pod: Object, body: Any, dry_run: bool) -> Answer:
        checked, _ = check_fields("Eviction", "v1", body, "Strict")
        options = checked.get("deleteOptions") or {}
        if not dry_run:
            if not is_finished(pod):
                pod = set_condition(pod, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")
                pod = self._store.put("pods", copy.deepcopy(pod))
            delete(self._store, "pods", pod, grace=options.get("gracePeriodSeconds"))
        return Answer(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})

    def _log(self, place: str, name: str, query: dict[str, str]) -> Answer:
        with self._store.changed:
            pod = self._store.get("pods", place, name)
        if pod is None:
            raise not_found("pods", "", name)
        containers = [one["name"] for one in pod["spec"]["containers"]]
        asked = query.get("container") or containers[0]
        if len(containers) > 1:
            raise unknown("the logs of one of several containers")
        if asked not in containers:
            raise bad_request(f"container {asked} is not valid for pod {name}")
        waiting = [
            one["state"]["waiting"] for one in pod["status"].get("containerStatuses", []) if "waiting" in one["state"]
        ]
        if pod["status"]["phase"] == "Pending":
            reason = waiting[0]["reason"] if waiting else "ContainerCreating"
            raise bad_request(f'container "{asked}" in pod "{name}" is waiting to start: {reason}')
        file = self._logs / f"{place}_{name}.log"
        tail = int(query["tailLines"]) if query.get("tailLines") else None
        follow = query.get("follow") in ("true", "1")
        most = int(query["limitBytes"]) if query.get("limitBytes") else None
        body = log(self._store, pod, file, follow=follow, tail=tail, limit=most)
        return Answer(200, stamped(body, pod, file, tail) if query.get("timestamps") == "true" else body)


def _dry_run(query: dict[str, str], body: Any) -> bool:
    asked = query.get("dryRun") or (body.get("dryRun") if isinstance(body, dict) else None)
    if asked in (None, "", []):
        return False
    if asked in ("All", ["All"]):
        return True
    raise Refused(422, "Invalid", f"Invalid value: {asked}: dryRun must be All")
