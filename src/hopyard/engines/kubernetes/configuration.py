"""Which cluster, and as whom: the kubeconfig, or what Kubernetes gives to a pod."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hopyard.checks import no_such
from hopyard.errors import SpecError
from hopyard.text import error_line, shown

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The credentials of a pod."""


def configure(configuration: Any, context: str | None) -> tuple[str | None, str]:
    """Read server and credentials as kubectl does.

    Args:
        configuration: a `kubernetes.client.Configuration`, changed in place.
        context: of the kubeconfig; None: its current one, or without a kubeconfig the pod that this process is in.

    Returns:
        The context, None in a pod; and its namespace, "" where it has none.

    Raises:
        SpecError: there is no configuration, or no such context.
    """
    where = os.environ.get("KUBECONFIG") or "~/.kube/config"
    # as the client looks; `Path` raises for a user without a home, as users of pods are
    if any(os.path.exists(os.path.expanduser(each)) for each in where.split(os.pathsep)):  # noqa: PTH110, PTH111
        return _from_kubeconfig(configuration, where, context)
    if context is not None:
        raise SpecError(
            f"Kubernetes(context={shown(context)}): there is no kubeconfig {where}; set KUBECONFIG to the path of one, "
            "or leave context= out in a pod"
        )
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise SpecError(
            f"there is no kubeconfig {where}, and this process is in no pod of a cluster: set KUBECONFIG to the path "
            "of one with which `kubectl get pods` works"
        )
    from kubernetes.config.incluster_config import InClusterConfigLoader

    try:
        InClusterConfigLoader(ACCOUNT / "token", ACCOUNT / "ca.crt").load_and_set(configuration)
    except Exception as error:  # noqa: BLE001 - ConfigException, or what reading a file raises
        raise SpecError(
            f"this process is in a pod that has no usable credentials of a service account ({error_line(error)}): give "
            "the pod a serviceAccountName, and leave automountServiceAccountToken on"
        ) from None
    try:
        return None, (ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return None, ""


def _from_kubeconfig(configuration: Any, where: str, context: str | None) -> tuple[str, str]:
    from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

    try:
        files = KubeConfigMerger(where)
        contexts = [node.value["name"] for node in files.config.value["contexts"]]
        name = context if context is not None else files.config.value.get("current-context")
    except Exception as error:  # noqa: BLE001 - YAML that is none, or of another shape
        raise SpecError(f"the kubeconfig {where} cannot be read: {error_line(error)}") from None
    if not name:
        raise SpecError(
            f"the kubeconfig {where} has no current context: give context=, one of {shown(contexts)}, or set "
            "KUBECONFIG to the path of another"
        )
    if name not in contexts:
        asked = "Kubernetes(context=)" if context is not None else "current-context"
        raise SpecError(f"{asked} = {shown(name)}: the kubeconfig {where} has {no_such('context', [name], contexts)}")
    try:
        loader = KubeConfigLoader(
            files.config, active_context=name, config_base_path=None, config_persister=files.save_changes
        )
        loader.load_and_set(configuration)
        return name, str(loader.current_context["context"].get("namespace") or "")
    except Exception as error:  # noqa: BLE001 - a cluster or a file that is not there, a field of another type
        raise SpecError(
            f"context {shown(name)} of the kubeconfig {where} cannot be used: {error_line(error)}"
        ) from None
