"""The options that say where work is done: --hosts and --kubernetes of several verbs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopyard.checks import no_such
from hopyard.cli.common import echo
from hopyard.errors import UsageError
from hopyard.text import shown

if TYPE_CHECKING:
    from hopyard.engines.hosts.engine import Hosts
    from hopyard.engines.kubernetes.engine import Kubernetes

HostNames = Annotated[
    str | None,
    typer.Option("--hosts", metavar="a,b:4", help="Hosts whose workers do it, by ssh; behind a colon how many."),
]
HostPython = Annotated[
    str | None, typer.Option("--python", metavar="PATH", help="The Python on the hosts. Default: this one's path.")
]
HostSsh = Annotated[str, typer.Option("--ssh", metavar="COMMAND", help="OpenSSH's client, with options.")]
PodImage = Annotated[
    str | None,
    typer.Option(
        "--kubernetes",
        metavar="IMAGE,workers=N",
        help="Pods whose workers do it: their image, and arguments of hy.Kubernetes such as gpus=1,namespace=ml.",
    ),
]
PodFile = Annotated[
    Path | None, typer.Option("--pod", metavar="FILE", help="A partial PodSpec in YAML or JSON, merged into the pods'.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only print what the cluster would be asked for, with --kubernetes.")
]
_WORDS = ("namespace", "context", "address", "cpu", "memory", "shm", "queue")
_NUMBERS = {"workers": int, "workers_per_pod": int, "port": int, "gpus": int, "threads": int, "start_timeout": float}


def engine_of(
    hosts: str | None,
    python: str | None,
    ssh: str,
    image: str | None = None,
    pod: Path | None = None,
    workers: int = 0,
    default_image: str = "",
) -> Hosts | Kubernetes | None:
    """Return the engine that the options name; None: neither hosts nor pods.

    Args:
        hosts: --hosts.
        python: --python.
        ssh: --ssh.
        image: --kubernetes.
        pod: --pod.
        workers: how many workers pods have, where the option does not say it; 0: it must.
        default_image: the image where the option begins with an argument; "": it must name one.

    Raises:
        UsageError: options do not go together, or cannot be read.
        SpecError: a value is not allowed.
    """
    if hosts is None and (python is not None or ssh != "ssh"):
        raise UsageError("--python and --ssh go with --hosts a,b:4, which is missing")
    if image is None and pod is not None:
        raise UsageError("--pod goes with --kubernetes IMAGE,workers=4, which is missing")
    if hosts is not None and image is not None:
        raise UsageError("--hosts and --kubernetes both say where the workers are: leave one out")
    if image is not None:
        return _kubernetes(image, pod, workers, default_image)
    if hosts is None:
        return None
    from hopyard.engines.hosts.engine import Hosts

    return Hosts([host.strip() for host in hosts.split(",")], python=python, ssh=ssh)


def print_manifests(engine: object) -> None:
    """Print what an engine would ask its cluster for, for --dry-run.

    Raises:
        UsageError: it asks no cluster.
    """
    from hopyard.engines.kubernetes.engine import Kubernetes

    if not isinstance(engine, Kubernetes):
        raise UsageError("--dry-run goes with --kubernetes IMAGE,workers=4, which is missing")
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"--dry-run needs PyYAML: pip install 'hopyard[kubernetes]' ({error})") from None
    echo(yaml.safe_dump_all(engine.manifests(), sort_keys=False).rstrip())


def _kubernetes(text: str, pod: Path | None, workers: int, default_image: str) -> Kubernetes:
    from hopyard.engines.kubernetes.engine import Kubernetes

    settings = text.split(",")
    image = default_image if default_image and "=" in settings[0] else settings.pop(0)
    given: dict[str, Any] = {"workers": workers} if workers else {}
    for setting in settings:
        name, equals, value = setting.strip().partition("=")
        if name not in (*_WORDS, *_NUMBERS):
            raise UsageError(f"--kubernetes {text}: {no_such('argument', [name], [*_NUMBERS, *_WORDS])}")
        if not equals or not value:
            raise UsageError(f"--kubernetes {text}: {name} needs a value, as in {name}=…")
        try:
            given[name] = _NUMBERS.get(name, str)(value)
        except ValueError:
            raise UsageError(f"--kubernetes {text}: {name} must be a number, got {shown(value)}") from None
    if "workers" not in given:
        raise UsageError(f"--kubernetes {text}: say how many workers, as in {image},workers=4")
    return Kubernetes(image=image, pod=None if pod is None else _pod(pod), **given)


def _pod(path: Path) -> Any:
    """Return the partial PodSpec in a file."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--pod {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"--pod needs PyYAML: pip install 'hopyard[kubernetes]' ({error})") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--pod {path} is no YAML: {error}") from None
