"""The Jobs and the Secret of a set of places, as plain values. Nothing here talks to anybody.

A set of places is one Secret with the ticket, and Indexed Jobs, one for each time that pods were asked for. Kubernetes
replaces no pod: the driver asks for another Job. The Secret belongs to the Jobs, and they end by themselves.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hopyard import checks
from hopyard.checks import one_of, scalar, whole
from hopyard.errors import SpecError
from hopyard.text import shown

CONTAINER = "hopyard"
MANAGED_BY, PLACES, QUEUE = "app.kubernetes.io/managed-by", "hopyard.dev/places", "kueue.x-k8s.io/queue-name"
DRIVER = "hopyard.dev/driver"
"""Labels; the last: the Job of a driver that is in a pod itself, on all that belongs to it."""
TICKET_FOLDER = "/run/hopyard/ticket"
USER = 65532
"""User and group of the processes in pods, the "nonroot" of distroless images. `pod=` may set others."""
KEEP_SECONDS = 600
"""How long a finished Job stays."""
GRACE_SECONDS = 20
"""Time between SIGTERM and SIGKILL."""
LEAST_MEMORY = 64 << 20

_KEYS = {
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
"""List of a PodSpec → the field by which its items are merged (`patchMergeKey` of the API's reference). Others are
replaced; of these, tolerations for example, none is ours."""
OURS = (
    r"restartPolicy|hostname|volumes\[hopyard-[^]]*\]"
    r"|containers\[hopyard\]\.(image|command|args|terminationMessage(Path|Policy)"
    r"|resources\.(requests|limits)\.(cpu|memory|nvidia\.com/gpu)"
    r"|env\[HOPYARD_[^]]*\]|volumeMounts\[(/run/hopyard(/[^]]*)?|/dev/shm)/?\])"
)
"""Pattern of the paths that `pod=` cannot change."""
_OURS = re.compile(OURS)
_AMOUNTS = re.compile(r"containers\[hopyard\]\.resources(\.(requests|limits))?")
"""Paths that `pod=` can extend, and not remove."""
_REFUSED = {
    "hostNetwork": "a pod must have a network and a host name of its own",
    "setHostnameAsFQDN": "a pod is known by its short host name",
}
"""Field of a PodSpec → why it is refused."""
OUR_METADATA = re.compile(r"labels\.(app\.kubernetes\.io/managed-by|hopyard\.dev/.*)")
_QUANTITY = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(|[kMGTPE]|[KMGTPE]i)")
_POWERS = {"": 1, "k": 10**3, **{letter: 1000**n for n, letter in enumerate("MGTPE", 2)}} | {
    f"{letter}i": 1024**n for n, letter in enumerate("KMGTPE", 1)
}
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::\w[\w.-]{0,127})?(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?",
    re.ASCII,
)
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class PodSettings:
    """Checked settings of pods, as `pod_settings` returns them."""

    image: str
    workers_per_pod: int
    cpu: str
    """A quantity, like memory and shm."""
    memory: str
    gpus: int
    shm: str
    devices: str
    """ "auto" or "none"."""
    queue: str
    """The LocalQueue of Kueue; "": none."""
    spec: Mapping[str, Any]
    """A partial PodSpec of the user."""
    metadata: Mapping[str, Any]
    """Labels and annotations of the user."""


def pod_settings(
    image: Any,
    *,
    workers_per_pod: Any = 1,
    threads: int = 1,
    cpu: Any = None,
    memory: Any = None,
    gpus: Any = 0,
    shm: Any = "1Gi",
    devices: Any = "auto",
    queue: Any = None,
    pod: Any = None,
) -> PodSettings:
    """Return the settings of pods.

    Args:
        image: a reference of an image that has Python, Hopyard and the framework.
        workers_per_pod: at least 1.
        threads: of each worker.
        cpu: cores of a pod, a number or a quantity such as "500m"; None: one for each thread of its workers.
        memory: of a pod, a quantity such as "8Gi"; None: 2 GiB for each worker.
        gpus: of a pod.
        shm: size of /dev/shm, a quantity; it counts as memory of the pod.
        devices: "auto" or None.
        queue: the name of a LocalQueue of Kueue.
        pod: a partial PodSpec, `{"nodeSelector": {…}}` for example; beside its fields, "metadata" may hold labels and
            annotations. A template, `{"metadata": {…}, "spec": {…}}`, is taken too. None as a value removes a default.

    Raises:
        SpecError: a value is not allowed.
    """
    workers = whole("Kubernetes(workers_per_pod=)", workers_per_pod, 1)
    cores = workers * threads if cpu is None else _cpu(cpu)
    memory_text, memory_bytes = _size("memory", f"{2 * workers}Gi" if memory is None else memory, LEAST_MEMORY)
    shm_text, shm_bytes = _size("shm", shm, 1 << 20)
    if shm_bytes > memory_bytes:
        raise SpecError(
            f"Kubernetes(shm={shm_text!r}) must be at most memory={memory_text!r}: what is in /dev/shm counts as "
            "memory of the pod; give more memory= or less shm="
        )
    cards = whole("Kubernetes(gpus=)", gpus, 0)
    if one_of("Kubernetes(devices=)", devices, ("auto", None)) is None and cards:
        raise SpecError(f"Kubernetes(gpus={cards}, devices=None): workers would leave the GPUs unused; leave one out")
    spec, metadata = _parted(pod)
    return PodSettings(
        image=_image(image),
        workers_per_pod=workers,
        cpu=_cores(cores),
        memory=memory_text,
        gpus=cards,
        shm=shm_text,
        devices="none" if devices is None else "auto",
        queue="" if queue is None else dns_name("Kubernetes(queue=)", queue, dots=True),
        spec=spec,
        metadata=metadata,
    )


def dns_name(name: str, value: Any, dots: bool = False) -> str:
    """Return the argument `name`, a name as objects of Kubernetes have one; `dots`: it may have several parts.

    Raises:
        SpecError: it is none.
    """
    parts = value.split(".") if isinstance(value, str) and dots else [value]
    if isinstance(value, str) and len(value) <= 63 and all(map(_LABEL.fullmatch, parts)):
        return str(value)
    raise SpecError(
        f"{name} must be a name of at most 63 of a-z, 0-9 and -{' and .' if dots else ''}, with a letter or digit at "
        f"both ends, got {shown(value)}"
    )


def job(
    settings: PodSettings,
    places: str,
    number: int,
    pods: int,
    *,
    driver: str = "",
    driver_pod: Mapping[str, str] | None = None,
    group: str = "",
) -> dict[str, Any]:
    """Return the Job of this number, from 1, of a set of places. None of its pods is ever replaced.

    Args:
        settings: of its pods.
        places: name of the set.
        number: of the Job.
        pods: how many it has.
        driver: name of the driver's Job, where the driver is in a pod too.
        driver_pod: reference to that pod, which becomes the owner of the Job.
        group: the PodGroup of its pods; "": none.
    """
    queue = {QUEUE: settings.queue} if settings.queue else {}
    metadata, spec, _ = _template(settings, places)
    metadata["labels"] |= {DRIVER: driver} if driver else {}
    if group:
        spec["schedulingGroup"] = {"podGroupName": group}
    owners = {"ownerReferences": [dict(driver_pod)]} if driver_pod else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{places}-{number}", **metadata, "labels": metadata["labels"] | queue, **owners},
        "spec": {
            "completionMode": "Indexed",
            "completions": pods,
            "parallelism": pods,
            "backoffLimitPerIndex": 0,
            "maxFailedIndexes": pods,
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            **({"suspend": True} if queue else {}),  # Kueue resumes it
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def secret(places: str, ticket: bytes, owners: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the Secret of a set of places; `owners`: references to its Jobs, with the last of which it vanishes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": places,
            "labels": {MANAGED_BY: "hopyard", PLACES: places},
            "ownerReferences": [dict(each) for each in owners],
        },
        "data": {"ticket": base64.b64encode(ticket).decode()},
    }


def pod_group(places: str, name: str, pods: int, secret_object: Mapping[str, Any]) -> dict[str, Any]:
    """Return a PodGroup of a set of places, of which no pod is scheduled before so many are; `secret_object`: what the
    API returned for its Secret, with which it vanishes."""
    metadata = secret_object["metadata"]
    secret_reference = {"apiVersion": "v1", "kind": "Secret", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": name,
            "labels": {MANAGED_BY: "hopyard", PLACES: places},
            "ownerReferences": [secret_reference],
        },
        "spec": {"schedulingPolicy": {"gang": {"minCount": pods}}},
    }


def owner(job_object: Mapping[str, Any]) -> dict[str, str]:
    """Return the reference to a Job as an owner, from what the API returned for it."""
    metadata = job_object["metadata"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}


def clashes(settings: PodSettings) -> tuple[str, ...]:
    """Return the paths of `pod=` that have no effect, because they are Hopyard's."""
    return _template(settings, "")[2]


def merged(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], protected: re.Pattern[str] = _OURS
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Merge a user's partial PodSpec into ours, as a strategic merge patch does: mappings by key, lists of named items
    by name, other lists as a whole; None removes.

    Returns:
        The merged PodSpec, and the paths at which ours was kept although the user's differs.

    Raises:
        SpecError: the user's has another shape.
    """
    lost: list[str] = []
    return _mapping(ours, theirs, "", protected, lost), tuple(lost)


def _template(settings: PodSettings, places: str) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Return metadata and PodSpec of pods, and the paths of `pod=` without effect."""
    metadata, lost = merged({"labels": {MANAGED_BY: "hopyard", PLACES: places}}, settings.metadata, OUR_METADATA)
    spec, more = merged(_spec(settings, places), settings.spec)
    return metadata, spec, (*(f"metadata.{path}" for path in lost), *more)


def _spec(settings: PodSettings, places: str) -> dict[str, Any]:
    amounts = {"cpu": settings.cpu, "memory": settings.memory}
    if settings.gpus:
        amounts["nvidia.com/gpu"] = str(settings.gpus)
    slots, ticket = str(settings.workers_per_pod), f"{TICKET_FOLDER}/ticket"
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "command": [
            *("python", "-P", "-m", "hopyard.engines.supervisors", slots, settings.devices, "--ticket", ticket)
        ],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "HOPYARD_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # of an image without Hopyard, what Python says
        "volumeMounts": [
            {"name": "hopyard-ticket", "mountPath": TICKET_FOLDER, "readOnly": True},
            {"name": "hopyard-shm", "mountPath": "/dev/shm"},  # noqa: S108 - a container has 64 MiB there otherwise
            {"name": "hopyard-tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    return {
        "automountServiceAccountToken": False,  # pods never talk to the API
        "containers": [container],
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [
            # the first Job is there before its Secret is
            {"name": "hopyard-ticket", "secret": {"secretName": places, "defaultMode": 0o440, "optional": True}},
            {"name": "hopyard-shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm}},
            {"name": "hopyard-tmp", "emptyDir": {}},
        ],
    }


def pod_security() -> dict[str, Any]:
    """Return the security context of pods."""
    profile = {"type": "RuntimeDefault"}
    return {
        **{"fsGroup": USER, "runAsGroup": USER, "runAsNonRoot": True, "runAsUser": USER},
        "seccompProfile": profile,
    }


def container_security() -> dict[str, Any]:
    """Return the security context of the container of a pod."""
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def _mapping(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str, protected: re.Pattern[str], lost: list[str]
) -> dict[str, Any]:
    result = dict(ours)
    for key, value in theirs.items():
        path = f"{at}.{key}" if at else key
        if protected.fullmatch(path):
            if value != ours.get(key):
                lost.append(path)
        elif key in _KEYS and (not at or at.endswith("]")):
            result[key] = _list(ours.get(key, []), value, path, _KEYS[key], protected, lost)
        elif value is None and _AMOUNTS.fullmatch(path):
            lost.append(path)
        elif value is None:
            result.pop(key, None)
        elif isinstance(ours.get(key), dict):
            _shape(path, value, Mapping, "a mapping")
            result[key] = _mapping(ours[key], value, path, protected, lost)
        else:
            result[key] = value
    return result


def _list(
    ours: list[dict[str, Any]], theirs: Any, at: str, key: str, protected: re.Pattern[str], lost: list[str]
) -> list[dict[str, Any]]:
    _shape(at, theirs, list, "a list")
    items = {each[key]: each for each in ours}
    for place, each in enumerate(theirs):
        _shape(f"{at}[{place}]", each, Mapping, "a mapping")
        if not isinstance(each.get(key), (str, int)):
            ours_too = f"; Hopyard's own has the name {CONTAINER!r}" if at == "containers" else ""
            raise SpecError(f"Kubernetes(pod=): {at}[{place}] has no {key!r}, by which it is merged{ours_too}")
        name, path = each[key], f"{at}[{each[key]}]"
        if protected.fullmatch(path):
            if each != items.get(name):
                lost.append(path)
        else:
            items[name] = _mapping(items.get(name, {}), each, path, protected, lost)
    return list(items.values())


def _shape(path: str, value: Any, kind: Any, expected: str) -> None:
    if not isinstance(value, kind):
        raise SpecError(f"Kubernetes(pod=): {path} must be {expected}, got {shown(value)}")


def _parted(pod: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the PodSpec and the metadata of the argument `pod`, as copies."""
    if pod is None:
        return {}, {}
    if not isinstance(pod, Mapping):
        raise SpecError(f"Kubernetes(pod=) must be a partial PodSpec, a mapping, got {shown(pod)}")
    try:
        parts = json.loads(json.dumps(pod, default=_jsonable, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"Kubernetes(pod=) must hold only what JSON can (text, numbers, lists, mappings): {error}"
        ) from None
    metadata = parts.pop("metadata", {})
    spec = parts.pop("spec", None)
    if spec is not None and (others := parts.keys() - {"apiVersion", "kind"}):
        raise SpecError(
            f'Kubernetes(pod=) has "spec" and beside it {shown(sorted(others))}: give either the fields of a PodSpec, '
            'or a template with "metadata" and "spec" alone'
        )
    parts = parts if spec is None else spec
    _shape("spec", parts, dict, "a mapping")
    _shape("metadata", metadata, dict, "a mapping")
    if others := metadata.keys() - {"labels", "annotations"}:
        raise SpecError(
            f"Kubernetes(pod=): metadata has {shown(sorted(others))}; only labels and annotations are taken"
        )
    for name, values in metadata.items():
        _shape(f"metadata.{name}", values, dict, "a mapping")
        for key, value in values.items():
            _shape(f"metadata.{name}[{key!r}]", value, str, "text")
    merged(_spec(_PROBE, ""), parts)  # raises where a shape does not fit
    for name, why in _REFUSED.items():
        if parts.get(name):
            raise SpecError(f"Kubernetes(pod=): {name} is refused: {why}")
    if others := [each["name"] for each in parts.get("containers", ()) if each["name"] != CONTAINER]:
        raise SpecError(
            f"Kubernetes(pod=): containers has {shown(others)} beside {CONTAINER!r}, and a pod does not end before "
            'others do; put side-cars into initContainers, with restartPolicy "Always"'
        )
    return parts, metadata


def _jsonable(value: Any) -> Any:
    """Return a mapping or a scalar of NumPy as JSON has it."""
    plain = dict(value) if isinstance(value, Mapping) else scalar(value)
    if plain is value:
        raise TypeError(f"got {shown(value)}")
    return plain


def _image(value: Any) -> str:
    if isinstance(value, str) and len(value) <= 1000 and _IMAGE.fullmatch(value):
        return str(value)
    raise SpecError(
        "Kubernetes(image) must be a reference of an image in small letters, such as "
        f'"registry.example.com/team/hopyard:1", got {shown(value)}'
    )


def _size(name: str, value: Any, least: int) -> tuple[str, int]:
    """Return a size as a quantity, and its bytes."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise SpecError(f'Kubernetes({name}=) must be a quantity such as "8Gi" or "512Mi", got {shown(value)}')
    size = int(float(match[1]) * _POWERS[match[2]])
    if size < least:
        raise SpecError(
            f"Kubernetes({name}={value!r}) is {size:,} bytes, and must be at least {least >> 20}Mi; Gi and Mi are units"
        )
    return str(value), size


def _cpu(value: Any) -> float:
    """Return the cores that the argument `cpu` means."""
    if not isinstance(value, str):
        return checks.number("Kubernetes(cpu=)", value, 0.001)
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(m?)", value)
    cores = 0.0 if match is None else float(match[1]) / (1000 if match[2] else 1)
    if cores < 0.001:
        raise SpecError(f'Kubernetes(cpu=) must be a number of cores such as 4 or "500m", got {shown(value)}')
    return cores


def _cores(cores: float) -> str:
    milli = round(cores * 1000)
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


_PROBE = PodSettings("x", 1, "1", "1Gi", 0, "1Gi", "auto", "", {}, {})
