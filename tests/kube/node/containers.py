"""What a container of a pod is made of: its image, command and environment. Images are environments of this Python."""

from __future__ import annotations

import base64
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from kube.node.client import Object
from kube.node.identities import ConfigError, identity
from kube.node.sandbox import SYSTEM_PATH, Container
from kube.node.volumes import Fetch, Mount, Volumes

Image = Mapping[str, str] | Path | str
"""Environment variables, or a folder, readable for all, that is the first in PYTHONPATH."""


class StartError(Exception):
    """The command of a container is not there: the container ends at once, with code 128."""


def container(
    pod: Object, node: str, image: Image, volumes: Volumes, fetch: Fetch, address: str, server: str = ""
) -> Container:
    """Return the container of a pod. Raises ConfigError or StartError."""
    spec, own = pod["spec"], pod["spec"]["containers"][0]
    if len(spec["containers"]) > 1 or spec.get("initContainers") or spec.get("restartPolicy") != "Never":
        raise ConfigError("this kubelet runs pods of one container, with restartPolicy Never")
    user = identity(pod, own)
    env = {"PATH": f"{Path(sys.executable).parent}:{SYSTEM_PATH}", "HOME": "/" if user.user else "/root"}
    env |= {"HOSTNAME": hostname(pod)} | _server(server) | _variables(image)
    env |= _environment(pod, own, node, fetch, address)
    command = [_expanded(word, env) for word in [*(own.get("command") or ()), *(own.get("args") or ())]]
    if not command:
        raise ConfigError("no command specified")
    if not shutil.which(command[0], path=env["PATH"]):
        raise StartError(
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            f'failed: unable to start container process: exec: "{command[0]}": executable file not found in $PATH'
        )
    limits = (own.get("resources") or {}).get("limits") or {}
    return Container(
        command=command,
        env=env,
        folder=own.get("workingDir") or "/",
        hostname=hostname(pod),
        identity=user,
        mounts=[*_folders(image), *volumes.mounts()],
        memory=volumes.memory,
        message_path=own.get("terminationMessagePath") or "/dev/termination-log",
        gpus=bool(int(limits.get("nvidia.com/gpu", 0))),
        read_only=bool((own.get("securityContext") or {}).get("readOnlyRootFilesystem")),
    )


def _server(url: str) -> dict[str, str]:
    """Return the variables that say where the API server is."""
    where = urlsplit(url)
    return {"KUBERNETES_SERVICE_HOST": str(where.hostname), "KUBERNETES_SERVICE_PORT": str(where.port)} if url else {}


def hostname(pod: Object) -> str:
    """Return the name that a pod has for itself."""
    return str(pod["spec"].get("hostname") or pod["metadata"]["name"])[:63]


def _variables(image: Image) -> dict[str, str]:
    """Return what an image sets."""
    if not isinstance(image, (Path, str)):
        return dict(image)
    return {"PYTHONPATH": os.pathsep.join([str(image), *filter(None, [os.environ.get("PYTHONPATH")])])}


def _folders(image: Image) -> list[Mount]:
    """Return the folder of an image, at its own place: pods do not share /tmp."""
    if not isinstance(image, (Path, str)):
        return []
    if Path(image).stat().st_mode & 0o005 != 0o005:
        raise ConfigError(f"the folder {image} of this image must be readable for all")
    return [Mount(str(image), str(image), read_only=True)]


def _environment(pod: Object, own: Object, node: str, fetch: Fetch, address: str) -> dict[str, str]:
    """Return the variables that a pod sets."""
    env: dict[str, str] = {}
    for entry in own.get("env") or ():
        source = entry.get("valueFrom") or {}
        if "fieldRef" in source:
            env[entry["name"]] = _field(pod, source["fieldRef"]["fieldPath"], node, address)
        elif "secretKeyRef" in source:
            value = _secret_key(pod, source["secretKeyRef"], fetch)
            env |= {} if value is None else {entry["name"]: value}
        elif source:
            raise ConfigError(f"this kubelet has no values of {', '.join(source)}")
        else:
            env[entry["name"]] = _expanded(entry.get("value") or "", env)
    if own.get("envFrom"):
        raise ConfigError("this kubelet has no envFrom")
    return env


def _field(pod: Object, path: str, node: str, address: str) -> str:
    """Return the value of a fieldRef."""
    name, _, key = path.partition("['")
    if key:
        return str((pod["metadata"].get(name.removeprefix("metadata.")) or {}).get(key.removesuffix("']"), ""))
    meta = pod["metadata"]
    values = {f"metadata.{name}": str(meta[name]) for name in ("name", "namespace", "uid")}
    values |= {"status.podIP": address, "status.podIPs": address, "spec.nodeName": pod["spec"]["nodeName"]}
    values |= {"status.hostIP": node, "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default")}
    if path not in values:
        raise ConfigError(f"this kubelet has no field {path}: it has {', '.join(values)}")
    return values[path]


def _secret_key(pod: Object, reference: Object, fetch: Fetch) -> str | None:
    """Return a value of a Secret; None where it is optional and missing."""
    secret, optional = fetch("secrets", reference["name"]), reference.get("optional")
    data = (secret or {}).get("data") or {}
    if reference["key"] in data:
        return base64.b64decode(data[reference["key"]]).decode()
    if optional:
        return None
    if secret is None:
        raise ConfigError(f'secret "{reference["name"]}" not found')
    raise ConfigError(
        f"couldn't find key {reference['key']} in Secret {pod['metadata']['namespace']}/{reference['name']}"
    )


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Replace $(NAME) by variables that are set, and $$ by $."""
    return re.sub(r"\$\$|\$\(([^)]*)\)", lambda each: env.get(each[1], each[0]) if each[1] else "$", text)
