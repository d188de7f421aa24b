"""Agents as plain processes of this host.

Each is started as `python -m hopyard.agent` with its card on standard input, which stays open: its end shows the
agent's companion that the driver is gone, however it went. What an agent prints goes to its log.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from hopyard.checks import sequence, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.errors import ResourceError, SpecError
from hopyard.ports import Agents, LaunchInfo, OutOfMemory
from hopyard.system.network import LOOPBACK
from hopyard.system.oom import RAN_OUT, Kills
from hopyard.system.processes import watched
from hopyard.text import shown

log = logging.getLogger(__name__)

AGENT = (sys.executable, "-P", "-m", "hopyard.agent")
"""How an agent is started. Without -P, Python would look for modules in the current folder first, where this process
may not look at all: a file `queue.py` there would be imported in the place of Python's own."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
START_SECONDS = 120.0
"""How long the processes of a program may take to come up."""
END_SECONDS = 2.0
"""How long to wait for a killed process. One in uninterruptible sleep, as on a file server that is away, ends later."""
COMPANION_SECONDS = 1.0
"""How long an agent's companion may take to end after it."""


def python_path() -> str:
    """Return where this process looks for modules, as PYTHONPATH, so that an agent finds the same ones. An
    interactive session, whose path has "", looks in the current folder."""
    paths = []
    for path in sys.path:
        with contextlib.suppress(FileNotFoundError):  # the current folder was removed
            paths.append(path or os.getcwd())  # noqa: PTH109 - a text
    return os.pathsep.join(paths)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpus() -> list[str]:
    """Return the GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1", "NoDevFiles")]
    devices = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted(devices, key=int)


@dataclass(frozen=True, slots=True)
class Local:
    """Worker processes on this host.

    Args:
        workers: how many; None: as many as devices, or, where there are none, as cores.
        threads: intra-op threads of each. Results may depend on it, so it is fixed and recorded.
        devices: "auto": each worker gets one GPU, in turn, where there are GPUs; a list such as [0, 0, 1, 1]: the GPU
            of each worker, sharing allowed; None: the CPU.
        env: more environment for the workers. Its values are in no file, but of variables on which bits depend
            (KERAS_BACKEND, XLA_FLAGS and the like): whoever resumes the run has them in the environment of his process,
            or gives an engine again.

    Raises:
        SpecError: a value is not allowed.
    """

    workers: int = None  # type: ignore[assignment]  # resolved below, so that it reads as a number
    threads: int = 1
    devices: Literal["auto"] | Sequence[int | str] | None = "auto"
    env: Mapping[str, str] = field(default_factory=dict)
    name: str = field(default="local", init=False)
    apart: bool = field(default=False, init=False, repr=False)
    in_process: bool = field(default=False, init=False, repr=False)
    address: tuple[str, int] = field(default=(LOOPBACK, 0), init=False, repr=False)
    states_port: int = field(default=0, init=False, repr=False)
    start_timeout: float = field(default=START_SECONDS, init=False, repr=False)
    driver_workers: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        named = sequence(self.devices)
        if named is None:
            devices: list[str] = []
        elif isinstance(named, str) and named == "auto":
            devices = gpus()
        elif not isinstance(named, list) or not all(isinstance(device, (int, str)) for device in named):
            raise SpecError(
                f'Local(devices=…) must be "auto", None or a list such as [0, 0, 1, 1], got {shown(self.devices)}'
            )
        else:
            devices = [str(device) for device in named]
        workers = self.workers if self.workers is not None else len(devices) or cores()
        workers = whole("Local(workers=)", workers, 1)
        object.__setattr__(self, "threads", whole("Local(threads=)", self.threads, 1))
        object.__setattr__(self, "env", worker_environment("Local(env=)", self.env))
        if isinstance(named, list) and workers > len(devices):
            raise SpecError(
                f"Local(devices=…) must name one device for each of {workers} workers, got {shown(named)}; "
                "name one several times to share it"
            )
        object.__setattr__(self, "workers", workers)
        object.__setattr__(self, "devices", tuple(devices))

    def open(self, launch: LaunchInfo) -> Agents:
        """Return the agents, of which none is started yet.

        Raises:
            SpecError: this engine comes from a pickle, which has no values of env=.
        """
        refuse_missing(self.env, "Local")
        return Processes(self, launch)


class Processes:
    """The processes of one run. Owner: the driver's loop."""

    def __init__(self, engine: Local, launch: LaunchInfo) -> None:
        self._engine = engine
        self._launch = launch
        self._running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        self._dying: list[tuple[subprocess.Popen[bytes], int]] = []
        """Killed processes that have not ended yet, though their slots are free."""
        self._devices: dict[int, str] = {}
        self._kills = Kills()
        self._counters: dict[int, tuple[Path, int] | None] = {}
        """Slot → what counts the processes of its cgroup that were killed for want of memory, and its count before."""

    def start(self, slot: int) -> None:
        """Start a process for this slot.

        Raises:
            ResourceError: the system has no room for another process.
        """
        engine = self._engine
        variables = dict(os.environ)
        variables.update(dict.fromkeys(THREADS, str(engine.threads)))
        variables["PYTHONPATH"] = python_path()
        variables["PYTHONUNBUFFERED"] = "1"
        if device := self._free_device():
            self._devices[slot] = device
            variables["CUDA_VISIBLE_DEVICES"] = device
            variables.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        variables.update(engine.env)
        path = self._launch.log(slot)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:
                process = subprocess.Popen(
                    AGENT,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=variables,
                    process_group=0,  # what it starts ends with it
                )
        except OSError as error:
            raise ResourceError(f"slot {slot}: no worker process could be started: {error}") from error
        stdin: IO[bytes] | None = process.stdin
        assert stdin is not None
        self._counters[slot] = self._kills.watch(process.pid)  # before its card, without which it does nothing
        with contextlib.suppress(BrokenPipeError):
            stdin.write(self._launch.card(slot))
            stdin.flush()
        self._running[slot] = process, watched(process.pid)

    def end(self, slot: int) -> None:
        """Kill the process and wait for its end, though not for long. A stopped one (SIGSTOP) ends too."""
        process, descriptor = self._running.pop(slot, (None, -1))
        self._counters.pop(slot, None)
        self._devices.pop(slot, None)
        if process is None:
            return
        _kill_group(process)
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._dying.append((process, descriptor))
        else:
            self._forget(process, descriptor)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call."""
        lost = []
        for process, descriptor in [each for each in self._dying if each[0].poll() is not None]:
            self._dying.remove((process, descriptor))
            self._forget(process, descriptor)
        for slot, (process, descriptor) in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._devices.pop(slot, None)
                _kill_group(process)
                self._forget(process, descriptor)
                reason = f"process {process.pid} {story(code)}"
                counter = self._counters.pop(slot, None)
                if code == -signal.SIGKILL and self._kills.killed(counter):
                    reason = OutOfMemory(f"{reason}{RAN_OUT}")
                lost.append((slot, reason))
        return lost

    def watch(self) -> list[int]:
        """Return a descriptor for each process; none where the system has none (then `lost` is called now and then)."""
        return [descriptor for _, descriptor in self._running.values() if descriptor >= 0]

    def waits(self, slot: int) -> bool:
        """Return False: a process is started or it is not."""
        return False

    def device(self, slot: int) -> str:
        """Return "cuda" when the worker has a GPU of its own or shares one, else "cpu"."""
        return "cuda" if slot in self._devices else "cpu"

    def close(self) -> None:
        """End all. Agents that were ordered to end have a moment to do so by themselves."""
        deadline = time.monotonic() + 0.5
        for process, _ in self._running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process, _ in self._running.values():
            _kill_group(process)
        for slot in list(self._running):
            self.end(slot)
        self.lost()
        for process, descriptor in self._dying:
            log.warning("process %d was killed and has not ended: it may wait for a file server", process.pid)
            if descriptor >= 0:
                os.close(descriptor)
        self._dying.clear()

    def _free_device(self) -> str:
        """Return the device that the fewest workers have; "" where there are none."""
        devices = list(self._engine.devices or ())
        if not devices:
            return ""
        in_use = list(self._devices.values())
        for device in devices:
            if in_use.count(str(device)) < devices.count(device):
                return str(device)
        return str(min(devices, key=lambda device: in_use.count(str(device))))

    @staticmethod
    def _forget(process: subprocess.Popen[bytes], descriptor: int) -> None:
        if process.stdin is not None and not process.stdin.closed:
            poll = select.poll()
            poll.register(process.stdin, 0)
            poll.poll(COMPANION_SECONDS * 1000)  # the companion, which alone can read from it, ends by itself
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if descriptor >= 0:
            os.close(descriptor)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def story(code: int) -> str:
    """Return how a process ended, from its exit code."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"
