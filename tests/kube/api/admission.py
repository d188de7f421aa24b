"""What keeps a pod, or another object, out of a namespace: quotas and the Pod Security Standard."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from kube.api.errors import forbidden, qualified
from kube.api.resources import BY_KIND
from kube.control.quantities import amount, requests, written
from kube.control.store import Object, Store, is_finished

VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)


def admit(store: Store, obj: Object) -> None:
    """Check an object that is about to be created.

    Raises:
        Refused: 403, in the words of the real server.
    """
    meta = obj["metadata"]
    namespace = store.get("namespaces", "", meta.get("namespace", ""))
    if obj["kind"] == "Pod" and namespace is not None:
        labels = namespace["metadata"].get("labels", {})
        if labels.get("pod-security.kubernetes.io/enforce") == "restricted" and (faults := violations(obj["spec"])):
            why = f'violates PodSecurity "restricted:latest": {", ".join(faults)}'
            raise forbidden("pods", "", meta["name"], why)
    account = obj["spec"]["serviceAccountName"] if obj["kind"] == "Pod" else "default"
    if account != "default" and store.get("serviceaccounts", meta["namespace"], account) is None:
        where = f"error looking up service account {meta['namespace']}/{account}"
        raise forbidden("pods", "", meta["name"], f'{where}: serviceaccount "{account}" not found')
    if "namespace" in meta:
        for quota in store.objects("resourcequotas", meta["namespace"]):
            _charge(store, quota, obj)


def _charge(store: Store, quota: Object, obj: Object) -> None:
    hard = quota["spec"].get("hard", {})
    asked = _usage([obj], hard)
    resource = BY_KIND[obj["kind"]]
    meta = obj["metadata"]
    if obj["kind"] == "Pod" and (missing := [name for name in hard if name not in asked and "count/" not in name]):
        names = ",".join(container["name"] for container in obj["spec"]["containers"])
        why = f"failed quota: {quota['metadata']['name']}: must specify {','.join(sorted(missing))} for: {names}"
        if any(name != "requests.nvidia.com/gpu" for name in missing):
            raise forbidden("pods", "", meta["name"], why)
    used = usage(store, quota)
    over = [name for name in sorted(asked) if asked[name] and used[name] + asked[name] > amount(hard[name])]
    if over:
        parts = (
            ",".join(f"{name}={written(numbers[name])}" for name in over)
            for numbers in (asked, used, {name: amount(hard[name]) for name in over})
        )
        requested, in_use, limited = parts
        sentence = f"exceeded quota: {quota['metadata']['name']}, requested: {requested}, used: {in_use}"
        raise forbidden(resource.plural, resource.group, meta["name"], f"{sentence}, limited: {limited}")


def usage(store: Store, quota: Object) -> dict[str, Fraction]:
    """Return what is used, for each name of the quota."""
    hard = quota["spec"].get("hard", {})
    objects = [obj for _, obj in store.all() if obj["metadata"].get("namespace") == quota["metadata"]["namespace"]]
    return {name: Fraction(0) for name in hard} | _usage(objects, hard)


def _usage(objects: list[Object], hard: dict[str, Any]) -> dict[str, Fraction]:
    used: dict[str, Fraction] = {}

    def add(name: str, value: Fraction) -> None:
        if name in hard:
            used[name] = used.get(name, Fraction(0)) + value

    for obj in objects:
        resource = BY_KIND[obj["kind"]]
        add(f"count/{qualified(resource.plural, resource.group)}", Fraction(1))
        if obj["kind"] == "Pod" and not is_finished(obj):
            add("pods", Fraction(1))
            for name, value in requests(obj).items():
                add(f"requests.{name}", value)
                add(name, value)
            for name, value in requests(obj, "limits").items():
                add(f"limits.{name}", value)
    return used


def count_quotas(store: Store) -> None:
    """Tell in the status of each quota what is used."""
    for quota in store.objects("resourcequotas"):
        used = {name: written(value) for name, value in usage(store, quota).items()}
        store.put("resourcequotas", {**quota, "status": {"hard": quota["spec"].get("hard", {}), "used": used}})


def violations(spec: Object) -> list[str]:
    """Return what the standard `restricted` finds in a pod, in the words of the real server."""
    pod = spec.get("securityContext") or {}
    containers = spec["containers"]
    contexts = [(container["name"], container.get("securityContext") or {}) for container in containers]
    faults: list[str] = []
    if hosts := [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]:
        faults.append(f"host namespaces ({', '.join(hosts)})")
    ports = [container for container in containers if any(one.get("hostPort") for one in container.get("ports") or [])]
    if ports:
        numbers = ", ".join(
            str(one["hostPort"]) for container in ports for one in container["ports"] if "hostPort" in one
        )
        faults.append(f"hostPort ({_containers([one['name'] for one in ports])} uses hostPort {numbers})")

    def need(names: list[str], title: str, must: str, pod_or: bool = False) -> None:
        if names:
            where = f"pod or {_containers(names)}" if pod_or else _containers(names)
            faults.append(f"{title} ({where} must {must})")

    need(
        [name for name, context in contexts if context.get("privileged")],
        "privileged",
        "not set securityContext.privileged=true",
    )
    need(
        [name for name, context in contexts if context.get("allowPrivilegeEscalation") is not False],
        "allowPrivilegeEscalation != false",
        "set securityContext.allowPrivilegeEscalation=false",
    )
    need(
        [
            name
            for name, context in contexts
            if "ALL" not in (context.get("capabilities") or {}).get("drop", [])
            or set((context.get("capabilities") or {}).get("add") or []) - {"NET_BIND_SERVICE"}
        ],
        "unrestricted capabilities",
        'set securityContext.capabilities.drop=["ALL"]',
    )
    for volume in spec.get("volumes") or []:
        if wrong := [key for key in volume if key != "name" and key not in VOLUMES]:
            what = f'volume "{volume["name"]}" uses restricted volume type "{wrong[0]}"'
            faults.append(f"restricted volume types ({what})")
    need(
        [name for name, context in contexts if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True],
        "runAsNonRoot != true",
        "set securityContext.runAsNonRoot=true",
        pod_or=True,
    )
    if pod.get("runAsUser") == 0:
        faults.append("runAsUser=0 (pod must not set runAsUser=0)")
    need([name for name, context in contexts if context.get("runAsUser") == 0], "runAsUser=0", "not set runAsUser=0")
    profiles = ("RuntimeDefault", "Localhost")
    need(
        [
            name
            for name, context in contexts
            if ((context.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")) not in profiles
        ],
        "seccompProfile",
        'set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"',
        pod_or=True,
    )
    return faults


def _containers(names: list[str]) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return f"container{'s' if len(names) > 1 else ''} {quoted}"
