"""The driver in a pod of the cluster: its Job and its ConfigMap as plain values, and what such a pod knows of itself.

The Job has one pod. Kubernetes starts another one where it was lost, and each start goes on with the runs on its claim.
It ends the Job where another start would end the same way. The driver's pod owns the Jobs of its workers.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hopyard.engines.kubernetes import manifests
from hopyard.engines.kubernetes.manifests import CONTAINER, DRIVER, MANAGED_BY, PodSettings
from hopyard.errors import SpecError

RUNS_FOLDER = "/hopyard"
"""Working directory of the driver: its claim."""
SCRIPT_FOLDER = "/run/hopyard/script"
POD_FILE = "hopyard-pod.yaml"
"""Name of the file with the partial PodSpec of the workers."""
MOST_BYTES = 1 << 20
"""The largest content of a ConfigMap."""
KEEP_SECONDS = 86_400
"""How long a finished driver's Job stays, with its log."""
GRACE_SECONDS = 60
"""Time that a driver has to end its workers and to close its journals."""
FINAL_CODES = [1, 2, 3]
"""Exit codes after which another start would end the same way: the run failed, wrong usage, some trials failed."""
_OURS = re.compile(
    rf"serviceAccountName|automountServiceAccountToken|{manifests.OURS}"
    rf"|containers\[{CONTAINER}\]\.(workingDir|resources|volumeMounts\[{RUNS_FOLDER}/?\])"
)
"""Paths that `pod=` cannot change in the driver's pod."""


@dataclass(frozen=True)
class DriverSettings:
    """Settings of a driver's pod. It shares all others with the pods of its workers.

    Attributes:
        name: of the Job.
        files: name of its ConfigMap, of its own for each submission: an earlier one may be there still.
        claim: the PersistentVolumeClaim that has its run directories.
        account: its service account.
        restarts: how often it is started again.
        cpu: cores, a quantity like memory.
    """

    name: str
    files: str
    claim: str = "hopyard"
    account: str = "hopyard"
    restarts: int = 6
    cpu: str = "1"
    memory: str = "2Gi"


@dataclass(frozen=True)
class OwnPod:
    """The pod that this process is in."""

    namespace: str
    name: str
    uid: str
    driver: str
    """Name of the driver's Job; "": the pod is not one of `hopyard run --in-cluster`."""

    @property
    def reference(self) -> dict[str, str]:
        """The reference to this pod as an owner."""
        return {"apiVersion": "v1", "kind": "Pod", "name": self.name, "uid": self.uid}


def own_pod() -> OwnPod | None:
    """Return the pod that this process is in; None: in none, or its manifest does not say so."""
    namespace, name, uid = (os.environ.get(f"HOPYARD_POD_{which}", "") for which in ("NAMESPACE", "NAME", "UID"))
    return OwnPod(namespace, name, uid, os.environ.get("HOPYARD_DRIVER", "")) if namespace and name and uid else None


def config_map(
    driver: DriverSettings, files: Mapping[str, bytes], owner: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the ConfigMap with the files of a driver, by key; `owner`: a reference to its Job, with which it goes.

    Raises:
        SpecError: they are larger than a ConfigMap may be.
    """
    if (size := sum(map(len, files.values()))) > MOST_BYTES:
        raise SpecError(
            f"script and --pod have {size:,} bytes, and a ConfigMap takes {MOST_BYTES:,}: put the script into the "
            "image, and give its path there as image:/path/to/script.py"
        )
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for key, content in files.items():
        try:
            text[key] = content.decode()
        except UnicodeDecodeError:
            binary[key] = base64.b64encode(content).decode()
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": driver.files,
            "labels": {MANAGED_BY: "hopyard", DRIVER: driver.name},
            **({"ownerReferences": [dict(owner)]} if owner else {}),
        },
        "data": text,
        "binaryData": binary,
    }


def job(
    settings: PodSettings, driver: DriverSettings, words: Sequence[str], paths: Mapping[str, str]
) -> dict[str, Any]:
    """Return the Job of a driver.

    Args:
        settings: of its workers' pods. The image and `pod=` are the driver's too, so that it sees the same volumes.
        driver: what it has beside these.
        words: the arguments of `hopyard`.
        paths: key of its ConfigMap → name of the file in `SCRIPT_FOLDER`.
    """
    labels = {DRIVER: driver.name}
    metadata, _ = manifests.merged({"labels": labels}, settings.metadata, manifests.OUR_METADATA)
    spec, _ = manifests.merged(_spec(settings, driver, words, paths), settings.spec, _OURS)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": driver.name, "labels": {MANAGED_BY: "hopyard", **labels}},
        "spec": {
            "completionMode": "Indexed",
            "completions": 1,
            "parallelism": 1,
            "backoffLimitPerIndex": driver.restarts,
            "podFailurePolicy": {
                "rules": [  # the first that matches counts
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    {
                        "action": "FailJob",
                        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": FINAL_CODES},
                    },
                ]
            },
            "podReplacementPolicy": "Failed",  # two drivers at once would fight for the lock of the run
            "ttlSecondsAfterFinished": KEEP_SECONDS,
            "template": {"metadata": metadata, "spec": spec},
        },
    }


def _spec(
    settings: PodSettings, driver: DriverSettings, words: Sequence[str], paths: Mapping[str, str]
) -> dict[str, Any]:
    amounts = {"cpu": driver.cpu, "memory": driver.memory}
    escaped = [word.replace("$", "$$") for word in words]  # Kubernetes puts variables in place of $(NAME)
    own = {"NAMESPACE": "metadata.namespace", "NAME": "metadata.name", "UID": "metadata.uid"}
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["python", "-P", "-m", "hopyard", *escaped],
        "workingDir": RUNS_FOLDER,
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "HOPYARD_DRIVER", "value": driver.name},
            *(
                {"name": f"HOPYARD_POD_{name}", "valueFrom": {"fieldRef": {"fieldPath": path}}}
                for name, path in own.items()
            ),
        ],
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "securityContext": manifests.container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "hopyard-runs", "mountPath": RUNS_FOLDER},
            {"name": "hopyard-script", "mountPath": SCRIPT_FOLDER, "readOnly": True},
            {"name": "hopyard-tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }
    items = [{"key": key, "path": path} for key, path in paths.items()]
    return {
        "automountServiceAccountToken": True,
        "containers": [container],
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": manifests.pod_security(),
        "serviceAccountName": driver.account,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [
            {"name": "hopyard-runs", "persistentVolumeClaim": {"claimName": driver.claim}},
            {"name": "hopyard-script", "configMap": {"name": driver.files, "items": items}},
            {"name": "hopyard-tmp", "emptyDir": {}},
        ],
    }
