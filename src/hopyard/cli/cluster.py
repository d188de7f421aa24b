"""A driver in a pod of the cluster: how it gets there, and what is asked of it afterwards.

Afterwards kubectl asks, with the rights of its user: for the output of the pod by its log, for runs by a command in it.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hopyard.checks import no_such
from hopyard.cli.common import IN_IMAGE, echo, terminable
from hopyard.errors import ResourceError, UsageError
from hopyard.text import shown

if TYPE_CHECKING:
    from hopyard.engines.kubernetes.api import Api, ApiError
    from hopyard.engines.kubernetes.driver_pod import DriverSettings

InCluster = Annotated[
    bool, typer.Option("--in-cluster", help="Run the driver in a pod of the cluster too, with --kubernetes.")
]
DriverPod = Annotated[
    str | None,
    typer.Option(
        "--driver-pod",
        metavar="claim=NAME,…",
        help="That pod: its claim, account, cpu, memory, restarts and name. Default: claim=hopyard,account=hopyard.",
    ),
]
DriverName = Annotated[
    str | None,
    typer.Option(
        "--driver",
        metavar="[NAMESPACE/]NAME",
        help="The driver in the cluster that owns it, as --in-cluster named it.",
    ),
]
JOB = "batch.kubernetes.io/job-name"
"""Label of the pods of a Job."""
LOOK_SECONDS = 1.0
"""Time between two looks for the next pod of a driver whose output is followed."""
_HERE = ("in_cluster", "driver_pod", "dry_run", "resume", "kubernetes", "pod", "script", "arguments")
"""Parameters of a verb that its driver in the cluster does not get as they are."""
_QUANTITIES = ("cpu", "memory")


def requested(in_cluster: bool, driver_pod: str | None) -> bool:
    """Return whether the driver is to be in the cluster. Raises UsageError for --driver-pod alone."""
    if driver_pod is not None and not in_cluster:
        raise UsageError("--driver-pod goes with --in-cluster, which is missing")
    return in_cluster


def submit(context: typer.Context, engine: object, about: str | None, dry_run: bool) -> None:
    """Create the driver of the verb that `context` is of, and say what to do next.

    Args:
        context: of `run` or `launch`, with all its parameters.
        engine: that these name.
        about: --driver-pod.
        dry_run: only print what would be created.

    Raises:
        UsageError: options do not go together, or the cluster lacks what the driver needs.
        SpecError: a value is not allowed.
    """
    from hopyard.engines.kubernetes import driver_pod, manifests
    from hopyard.engines.kubernetes.api import ApiError
    from hopyard.engines.kubernetes.engine import Kubernetes

    if not isinstance(engine, Kubernetes):
        raise UsageError("--in-cluster goes with --kubernetes IMAGE,workers=4, which is missing")
    given = context.params
    if given["script"].name.startswith("..") or str(given["script"]) == IN_IMAGE:
        raise UsageError(
            f"{given['script']}: a ConfigMap takes no file whose name begins with .., and {IN_IMAGE} a path"
        )
    terminable()
    driver = driver_settings(about, given["script"])
    files, paths = {}, {}
    if not str(given["script"]).startswith(IN_IMAGE):
        files["script"], paths["script"] = given["script"].read_bytes(), given["script"].name
    if given["pod"] is not None:
        files["pod"], paths["pod"] = given["pod"].read_bytes(), driver_pod.POD_FILE
    config_map = driver_pod.config_map(driver, files)
    job = driver_pod.job(engine.settings, driver, _words(context, driver), paths)
    if dry_run:
        _print(config_map, job)
        return
    api = engine.api
    _require(api, "serviceaccounts", driver.account, "account")
    _require(api, "persistentvolumeclaims", driver.claim, "claim")
    try:
        owner = manifests.owner(api.create("jobs", job))
        try:
            api.create("configmaps", driver_pod.config_map(driver, files, owner))
        except BaseException:  # Ctrl-C and SIGTERM too: the pod would wait for its files
            api.delete("jobs", driver.name)
            raise
    except ApiError as error:
        raise _refusal(api, error, driver) from None
    name = f"{api.namespace}/{driver.name}"
    echo(f"driver {name}: its runs are on the claim {driver.claim}")
    echo(f"  hopyard logs --driver {name} --follow      # what it prints")
    echo(f"  kubectl delete job -n {api.namespace} {driver.name}      # ends it")


def driver_settings(text: str | None, script: Path) -> DriverSettings:
    """Return what --driver-pod says. The name is made of the script's unless it is given.

    Raises:
        UsageError: it cannot be read.
        SpecError: a value is not allowed.
    """
    from hopyard.engines.kubernetes import driver_pod, manifests

    fields = ("claim", "account", *_QUANTITIES, "restarts", "name")
    given: dict[str, Any] = {}
    for setting in (text or "").split(",") if text is not None else ():
        name, equals, value = setting.strip().partition("=")
        if name not in fields:
            raise UsageError(f"--driver-pod {text}: {no_such('setting', [name], list(fields))}")
        if not equals or not value:
            raise UsageError(f"--driver-pod {text}: {name} needs a value, as in {name}=…")
        given[name] = value
    for name in given.keys() & {"claim", "account"}:
        manifests.dns_name(f"--driver-pod {name}", given[name], dots=True)
    if "restarts" in given:
        if not re.fullmatch(r"[0-9]{1,4}", given["restarts"]):
            raise UsageError(
                f"--driver-pod restarts must be a whole number from 0 to 9999, got {shown(given['restarts'])}"
            )
        given["restarts"] = int(given["restarts"])
    amounts = {name: given[name] for name in _QUANTITIES if name in given}
    checked = manifests.pod_settings("driver", shm="1Mi", **amounts)
    given |= {name: getattr(checked, name) for name in amounts}
    stem = re.sub(r"[^a-z0-9]+", "-", script.stem.lower()).strip("-")[:40].strip("-") or "driver"
    mark = secrets.token_hex(3)
    given.setdefault("name", f"{stem}-{mark}")
    if len(given["name"]) > 60:
        raise UsageError(f"--driver-pod name must have at most 60 characters, got {shown(given['name'])}")
    manifests.dns_name("--driver-pod name", given["name"])
    return driver_pod.DriverSettings(**given, files=f"{given['name'][:50]}-{mark}")


def forward(driver: str, *words: str) -> int:
    """Run a command of `hopyard` in the pod of a driver, and return its exit code.

    Raises:
        UsageError: kubectl is missing, or refuses; or the driver's name is none.
        ResourceError: the pod does not run.
    """
    place, name = _named(driver)
    _kubectl("get", *place, "job", name)
    running = [pod["metadata"]["name"] for pod in _pods(place, name) if pod["status"].get("phase") == "Running"]
    if not running:
        raise ResourceError(
            f"the pod of the driver {driver} does not run: its runs are on its claim, and `hopyard logs --driver "
            f"{driver}` shows what it has printed"
        )
    command = ["exec", *place, running[-1], "--container=hopyard", "--", "python", "-P", "-m", "hopyard", *words]
    with subprocess.Popen([_program(), *command], stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            echo(line, nl=False)
    return process.returncode


def print_output(driver: str, follow: bool, tail: int | None) -> None:
    """Print what the pods of a driver have printed, one start after another.

    Args:
        driver: [namespace/]name.
        follow: go on until its Job is over.
        tail: only so many last lines of each; None: all.

    Raises:
        UsageError: kubectl is missing, or refuses; or the driver's name is none, or no pod has begun.
    """
    from hopyard.engines.kubernetes.reasons import is_finished

    place, name = _named(driver)
    options = ["--container=hopyard", "--timestamps", *(["--follow"] if follow else [])]
    seen: dict[str, str] = {}  # pod → the time of its last line
    complete: set[str] = set()
    while True:
        try:  # before its pods, so that none is missed
            job = json.loads(_kubectl("get", *place, "job", name, "-o", "json"))
        except UsageError:
            if not seen:
                raise
            break  # it was deleted meanwhile
        for pod in _pods(place, name):
            which, phase = pod["metadata"]["name"], pod["status"].get("phase", "Pending")
            if phase == "Pending" or which in complete:
                continue
            if which not in seen:
                echo(f"==> {which} <==")
            since = f"--since-time={seen[which]}" if seen.get(which) else f"--tail={-1 if tail is None else tail}"
            seen[which] = _print_log(seen.get(which, ""), *place, which, *options, since)
            if phase != "Running":  # else the connection may have ended before the pod
                complete.add(which)
        if is_finished(job) or not follow:
            break
        time.sleep(LOOK_SECONDS)
    if not seen:
        look = f"kubectl describe pods {' '.join([*place, '-l', f'{JOB}={name}'])}"
        raise UsageError(f"no pod of the driver {driver} has begun: `{look}` says why")


def _print_log(seen: str, *words: str) -> str:
    """Print the lines of a log that are younger than this time; return that of the last one."""
    with subprocess.Popen([_program(), "logs", *words], stdout=subprocess.PIPE, text=True, errors="replace") as process:
        assert process.stdout is not None
        for line in process.stdout:
            stamp, _, text = line.partition(" ")
            if stamp > seen:  # of one length all, so that they sort as texts
                echo(text, nl=False)
                seen = stamp
    return seen


def _words(context: typer.Context, driver: DriverSettings) -> list[str]:
    """Return the command line of the driver in the cluster: that of this process, for a cluster that it is part of."""
    from hopyard.engines.kubernetes import driver_pod

    given, words = context.params, [str(context.info_name), "--resume"]
    for option in context.command.params:
        name = str(option.name)
        source = context.get_parameter_source(name)
        if name not in _HERE and source is not None and source.name == "COMMANDLINE":
            words += [option.opts[0]] if given[name] is True else [option.opts[0], str(given[name])]
    image, *settings = given["kubernetes"].split(",")
    inside = [setting for setting in settings if setting.strip().partition("=")[0] not in ("context", "namespace")]
    words += ["--kubernetes", ",".join([image, *inside])]
    if given["pod"] is not None:
        words += ["--pod", f"{driver_pod.SCRIPT_FOLDER}/{driver_pod.POD_FILE}"]
    if "directory" in given and given["directory"] is None:
        words += ["--directory", f"{driver_pod.RUNS_FOLDER}/runs/{driver.name}"]
    script = str(given["script"])
    in_image = script.startswith(IN_IMAGE)
    words.append(script.removeprefix(IN_IMAGE) if in_image else f"{driver_pod.SCRIPT_FOLDER}/{given['script'].name}")
    return [*words, *(given["arguments"] or ())]


def _require(api: Api, resource: str, name: str, setting: str) -> None:
    """Raise UsageError unless the namespace has this object, as far as this user may know it."""
    from hopyard.engines.kubernetes.api import ApiError

    try:
        api.get(resource, name)
    except ApiError as error:
        if error.status == 404:
            raise UsageError(
                f"the namespace {api.namespace} has no {resource.removesuffix('s')} {name}: docs/kubernetes.md has its "
                f"manifest; or name another one by --driver-pod {setting}=…"
            ) from None
        if error.status != 403:
            raise UsageError(api.why(error)) from None


def _refusal(api: Api, error: ApiError, driver: DriverSettings) -> UsageError:
    """Return the error for a driver that could not be created."""
    if error.reason == "AlreadyExists":
        return UsageError(
            f"the namespace {api.namespace} has a driver {driver.name} already: `kubectl delete job -n {api.namespace} "
            f"{driver.name}` ends it; or give another --driver-pod name=…"
        )
    return UsageError(api.why(error))


def _print(*objects: dict[str, Any]) -> None:
    """Print manifests, files as text."""
    import yaml

    echo(yaml.safe_dump_all(objects, sort_keys=False).rstrip())


def _named(driver: str) -> tuple[list[str], str]:
    """Return kubectl's option for the namespace of a driver, and its name."""
    namespace, slash, name = driver.rpartition("/")
    part = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
    if not re.fullmatch(part, name) or (slash and not re.fullmatch(part, namespace)):
        raise UsageError(f"--driver must be such as train-1a2b3c or ml/train-1a2b3c, got {shown(driver)}")
    return ["--namespace", namespace] if slash else [], name


def _pods(place: list[str], name: str) -> list[dict[str, Any]]:
    """Return the pods of a driver, oldest first."""
    pods = json.loads(_kubectl("get", *place, "pods", "-l", f"{JOB}={name}", "-o", "json"))["items"]
    return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def _kubectl(*words: str) -> str:
    """Return what kubectl prints. Raises UsageError if it is missing, or fails."""
    done = subprocess.run([_program(), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"kubectl {words[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _program() -> str:
    """Return the path of kubectl."""
    if (path := shutil.which("kubectl")) is None:
        raise UsageError("--driver asks the cluster by kubectl, which is not on PATH: install it")
    return path
