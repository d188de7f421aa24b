"""What the server fills in, refuses and does not know, kind by kind."""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Callable
from typing import Any

from kube.api.errors import invalid, unknown
from kube.api.names import Causes, check_label, check_labels, check_subdomain

Object = dict[str, Any]
GIVEN_UP = 2147483647
NODE_ABSENT = ("not-ready", "unreachable")
SECURITY = "pod-security.kubernetes.io"
UNKNOWN_OF_PODS = frozenset({
    "activeDeadlineSeconds", "affinity", "ephemeralContainers", "hostnameOverride", "initContainers", "os", "overhead",
    "preemptionPolicy", "priorityClassName", "readinessGates", "resourceClaims", "resources", "runtimeClassName",
    "schedulingGates", "setHostnameAsFQDN", "topologySpreadConstraints",
})  # fmt: skip
UNKNOWN_OF_JOBS = frozenset({"managedBy", "manualSelector", "selector", "successPolicy"})
UNKNOWN_OF_CONTAINERS = frozenset({"lifecycle", "livenessProbe", "readinessProbe", "startupProbe", "restartPolicy"})
QUOTAS = frozenset(
    f"{prefix}{name}" for name in ("cpu", "memory") for prefix in ("", "requests.", "limits.")
) | {"pods", "requests.nvidia.com/gpu"}  # fmt: skip


def prepare(kind: str, obj: Object, causes: Causes) -> Object:
    """Return a new object as it is stored: with defaults, checked.

    Args:
        causes: for which it is refused anyway.

    Raises:
        Refused: 422, a value is not allowed; 501, a real server would do something here.
    """
    obj = copy.deepcopy(obj)
    causes = [*causes, *(PREPARE[kind](obj) if kind in PREPARE else [])]
    if causes:
        raise invalid(kind, "batch" if kind == "Job" else "", obj["metadata"]["name"], list(dict.fromkeys(causes)))
    return obj


def prepare_update(kind: str, old: Object, new: Object) -> None:
    """Check a change of an object.

    Raises:
        Refused: 422, a field is immutable, or its new value is not allowed.
    """
    causes = UPDATE[kind](old, new) if kind in UPDATE else []
    causes += check_labels("metadata.labels", new["metadata"].get("labels"))
    if causes:
        raise invalid(kind, "batch" if kind == "Job" else "", new["metadata"]["name"], causes)


def _refuse_unknown(what: str, spec: Object, names: frozenset[str]) -> None:
    for name in sorted(names & {key for key, value in spec.items() if value not in (None, False, [], {})}):
        raise unknown(f"{what}.{name}")


def _secret(secret: Object) -> Causes:
    causes: Causes = []
    secret.setdefault("type", "Opaque")
    data = dict(secret.get("data") or {})
    for key, value in (secret.pop("stringData", None) or {}).items():
        data[key] = base64.b64encode(value.encode()).decode()
    size = 0
    for key, value in data.items():
        causes += check_labels(f"data[{key}]", {key: ""})
        try:
            size += len(base64.b64decode(value, validate=True))
        except binascii.Error as error:
            causes.append((f"data[{key}]", f"Invalid value: illegal base64 data: {error}"))
    if size > 1 << 20:
        causes.append(("data", "Too long: may not be more than 1048576 bytes"))
    if data:
        secret["data"] = data
    return causes


def _namespace(namespace: Object) -> Causes:
    labels = namespace["metadata"].setdefault("labels", {})
    labels["kubernetes.io/metadata.name"] = namespace["metadata"]["name"]
    for key, value in labels.items():
        prefix, _, name = key.rpartition("/")
        if prefix == SECURITY and (name != "enforce" or value not in ("privileged", "restricted")):
            raise unknown(f"the namespace label {key}={value}")
    namespace["spec"] = {"finalizers": ["kubernetes"]}
    namespace["status"] = {"phase": "Active"}
    return check_label("metadata.name", namespace["metadata"]["name"])


def _node(node: Object) -> Causes:
    node.setdefault("spec", {})
    node.setdefault("status", {})
    return []


def _quota(quota: Object) -> Causes:
    for name in quota.get("spec", {}):
        if name != "hard":
            raise unknown(f"ResourceQuota.spec.{name}")
    for name in quota["spec"].get("hard", {}):
        if name not in QUOTAS and not name.startswith("count/"):
            raise unknown(f"ResourceQuota.spec.hard of {name}")
    quota.setdefault("status", {})
    return []


def _pod(pod: Object) -> Causes:
    spec = pod.setdefault("spec", {})
    spec.setdefault("restartPolicy", "Always")
    if spec["restartPolicy"] != "Never":
        raise unknown(f"Pod.spec.restartPolicy {spec['restartPolicy']}")
    spec.setdefault("serviceAccountName", "default")
    tolerations = spec.setdefault("tolerations", [])
    for name in NODE_ABSENT:
        key = f"node.kubernetes.io/{name}"
        if not any(one.get("key") in (key, None, "") and one.get("effect") != "NoSchedule" for one in tolerations):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            tolerations.append(toleration)
    pod["status"] = {"phase": "Pending", "qosClass": _qos(spec)}
    causes = _pod_spec(spec, "spec")
    if hostname := spec.get("hostname"):
        causes += check_label("spec.hostname", hostname)
    return causes


def _qos(spec: Object) -> str:
    resources = [one.get("resources") or {} for one in spec.get("containers", [])]
    if not any(one.get("requests") or one.get("limits") for one in resources):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= set(one.get("limits") or {}) for one in resources)
    same = all((one.get("requests") or one.get("limits")) == one.get("limits") for one in resources)
    return "Guaranteed" if whole and same else "Burstable"


def _pod_spec(spec: Object, path: str) -> Causes:
    """Fill in and check what pods and the templates of Jobs share."""
    _refuse_unknown("Pod.spec", spec, UNKNOWN_OF_PODS)
    if spec.setdefault("schedulerName", "default-scheduler") != "default-scheduler":
        raise unknown(f"the scheduler {spec['schedulerName']}")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for toleration in spec.get("tolerations") or []:
        if toleration.get("operator") not in (None, "", "Equal", "Exists"):
            raise unknown(f"a toleration with the operator {toleration['operator']}")
    causes: Causes = []
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    for volume in spec.get("volumes") or []:
        causes += check_label(f"{path}.volumes[*].name", volume["name"])
    if not spec.get("containers"):
        causes.append((f"{path}.containers", "Required value"))
    for index, container in enumerate(spec.get("containers") or []):
        at = f"{path}.containers[{index}]"
        _refuse_unknown("Container", container, UNKNOWN_OF_CONTAINERS)
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        causes += check_label(f"{at}.name", container.get("name", ""))
        if not container.get("image"):
            causes.append((f"{at}.image", "Required value"))
        causes += [
            (f"{at}.volumeMounts[{number}].name", f'Not found: "{mount["name"]}"')
            for number, mount in enumerate(container.get("volumeMounts") or [])
            if mount["name"] not in volumes
        ]
        causes += _resources(container.setdefault("resources", {}), at)
    return causes


def _resources(resources: Object, at: str) -> Causes:
    from kube.control.quantities import amount

    causes: Causes = []
    limits = resources.get("limits") or {}
    if limits:
        resources["requests"] = {**limits, **(resources.get("requests") or {})}
    requests = resources.get("requests") or {}
    for name, value in requests.items():
        if name in limits and amount(value) > amount(limits[name]):
            causes.append(
                (f"{at}.resources.requests", f'Invalid value: "{value}": must be less than or equal to {name} limit')
            )
        if "/" in name and limits.get(name) != value:
            causes.append(
                (f"{at}.resources.limits", "Required value: Limit must be set for non overcommitable resources")
            )
    return causes


def _job(job: Object) -> Causes:
    spec, meta = job.setdefault("spec", {}), job["metadata"]
    _refuse_unknown("Job.spec", spec, UNKNOWN_OF_JOBS)
    if spec.get("completionMode") != "Indexed":
        raise unknown(f"Job.spec.completionMode {spec.get('completionMode', 'NonIndexed')}")
    spec.setdefault("parallelism", 1)
    spec.setdefault("suspend", False)
    spec.setdefault("backoffLimit", GIVEN_UP if spec.get("backoffLimitPerIndex") is not None else 6)
    replaces = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    spec.setdefault("podReplacementPolicy", replaces)
    own = {"batch.kubernetes.io/controller-uid": meta["uid"], "batch.kubernetes.io/job-name": meta["name"]}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
    template = spec.setdefault("template", {})
    labels = {**own, "controller-uid": meta["uid"], "job-name": meta["name"]}
    template.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    meta["labels"] = meta.get("labels") or dict(template["metadata"]["labels"])
    job["status"] = {}
    causes = _job_spec(spec)
    causes += check_labels("spec.template.labels", template["metadata"]["labels"])
    if (count := spec.get("completions")) and not causes:
        causes += check_label("metadata.name", f"{meta['name']}-{count - 1}")
    return causes


def _job_spec(spec: Object) -> Causes:
    causes: Causes = []
    for name in ("parallelism", "completions", "backoffLimit", "backoffLimitPerIndex", "maxFailedIndexes"):
        if (spec.get(name) or 0) < 0:
            causes.append((f"spec.{name}", f"Invalid value: {spec[name]}: must be greater than or equal to 0"))
    if (spec.get("ttlSecondsAfterFinished") or 0) < 0:
        causes.append(("spec.ttlSecondsAfterFinished", "Invalid value: must be greater than or equal to 0"))
    completions = spec.get("completions")
    if completions is None:
        causes.append(("spec.completions", "Required value: when completion mode is Indexed"))
    if (most := spec.get("maxFailedIndexes")) is not None:
        if spec.get("backoffLimitPerIndex") is None:
            causes.append(("spec.backoffLimitPerIndex", "Required value: when maxFailedIndexes is specified"))
        if completions is not None and most > completions:
            message = f"Invalid value: {most}: must be less than or equal to completions"
            causes.append(("spec.maxFailedIndexes", message))
    pod = spec["template"].setdefault("spec", {})
    policy = pod.get("restartPolicy")
    if policy == "OnFailure":
        raise unknown("Job.spec.template.spec.restartPolicy OnFailure")
    if policy != "Never":
        how = "Required value" if policy is None else f'Unsupported value: "{policy}"'
        allowed = 'valid values: "OnFailure", "Never"' if policy is None else 'supported values: "OnFailure", "Never"'
        causes.append(("spec.template.spec.restartPolicy", f"{how}: {allowed}"))
    if spec.get("podFailurePolicy") and spec.get("podReplacementPolicy") != "Failed":
        value = spec.get("podReplacementPolicy")
        message = f'Unsupported value: "{value}": supported values: "Failed"'
        causes.append(("spec.podReplacementPolicy", message))
    return causes + _pod_spec(pod, "spec.template.spec")


def _pod_update(old: Object, new: Object) -> Causes:
    if {**old["spec"], "tolerations": 0} == {**new["spec"], "tolerations": 0}:
        return []
    allowed = "`spec.containers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions)"
    return [("spec", f"Forbidden: pod updates may not change fields other than {allowed}")]


def _secret_update(old: Object, new: Object) -> Causes:
    causes = _secret(new)
    if old.get("immutable") and old.get("data") != new.get("data"):
        causes.append(("data", "Forbidden: field is immutable when `immutable` is set"))
    if old["type"] != new["type"]:
        causes.append(("type", f'Invalid value: "{new["type"]}": field is immutable'))
    return causes


def _job_update(old_job: Object, new_job: Object) -> Causes:
    old, new = old_job["spec"], new_job["spec"]
    causes: Causes = []
    fixed = (
        "template",
        "selector",
        "completionMode",
        "backoffLimitPerIndex",
        "podFailurePolicy",
        "podReplacementPolicy",
    )
    for name in fixed:
        if old.get(name) != new.get(name):
            if name == "template" and old.get("suspend"):
                raise unknown("a change of the template of a suspended Job")
            causes.append((f"spec.{name}", f"Invalid value: {new.get(name)!r}: field is immutable"))
    changed = old.get("completions") != new.get("completions")
    if changed and new.get("completions") != new.get("parallelism"):
        message = f"Invalid value: {new.get('completions')}: can only be modified in tandem with spec.parallelism"
        causes.append(("spec.completions", message))
    return causes + _job_spec(new)


def _role_binding(binding: Object) -> Causes:
    causes: Causes = []
    if binding.get("roleRef", {}).get("kind") not in ("Role", "ClusterRole"):
        causes.append(("roleRef.kind", 'Unsupported value: supported values: "Role", "ClusterRole"'))
    for subject in binding.get("subjects") or []:
        if subject.get("kind") not in ("User", "ServiceAccount"):
            raise unknown(f"a subject of kind {subject.get('kind')}")
    return causes


def _pod_group(group: Object) -> Causes:
    policy = group.get("spec", {}).get("schedulingPolicy") or {}
    if "gang" not in policy:
        raise unknown("a PodGroup without a gang")
    group["status"] = {}
    return [] if policy["gang"].get("minCount", 0) > 0 else [("spec.schedulingPolicy.gang.minCount", "Required value")]


def _claim(claim: Object) -> Causes:
    """It is bound at once: each node has its folder."""
    claim["status"] = {"phase": "Bound", "accessModes": claim["spec"].get("accessModes", [])}
    return _generated_name(claim)


def _generated_name(obj: Object) -> Causes:
    return check_subdomain("metadata.name", obj["metadata"]["name"])


PREPARE: dict[str, Callable[[Object], Causes]] = {
    "Job": _job,
    "Namespace": _namespace,
    "Node": _node,
    "Pod": _pod,
    "ResourceQuota": _quota,
    "RoleBinding": _role_binding,
    "ClusterRoleBinding": _role_binding,
    "Secret": _secret,
    "ConfigMap": _generated_name,
    "ServiceAccount": _generated_name,
    "PodGroup": _pod_group,
    "PersistentVolumeClaim": _claim,
}
UPDATE: dict[str, Callable[[Object, Object], Causes]] = {
    "Job": _job_update,
    "Pod": _pod_update,
    "ResourceQuota": lambda old, new: _quota(new),
    "RoleBinding": lambda old, new: _role_binding(new),
    "ClusterRoleBinding": lambda old, new: _role_binding(new),
    "Secret": _secret_update,
}
