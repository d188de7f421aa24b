"""Agents as plain processes of this host.

Each is started as `python -m hopyard.agent` with its card on standard input, which stays open: its end shows the
agent's companion that the driver is gone, however it went. What an agent prints goes to its log. The agents of an
engine that was started are forks of a process that has imported what they need (`templates.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from hopyard.checks import sequence, whole
from hopyard.engines.environment import refuse_missing, worker_environment
from hopyard.engines.processes import Spawned
from hopyard.engines.templates import Process, Templates
from hopyard.engines.warm import Startable
from hopyard.errors import ResourceError, SpecError
from hopyard.ports.engines import Agents, LaunchInfo, OutOfMemory
from hopyard.system.network import LOOPBACK
from hopyard.system.oom import RAN_OUT, Kills
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


def python_path() -> str:
    """Return where this process looks for modules, as PYTHONPATH, so that an agent finds the same ones, whatever folder
    it begins in. An interactive session, whose path has "", looks in the current folder."""
    paths = []
    for path in sys.path:
        with contextlib.suppress(FileNotFoundError):  # the current folder was removed
            paths.append(path if os.path.isabs(path) else os.path.abspath(path))  # noqa: PTH100, PTH117 - texts
    return os.pathsep.join(paths)


def agent_environment(threads: int, gpus: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an agent: that of this process, and what its run adds.

    Args:
        threads: intra-op threads.
        gpus: those that it may use, with commas between them; empty: as this process.
        env: the values of the engine's env=.
    """
    variables = dict(os.environ)
    variables.update(dict.fromkeys(THREADS, str(threads)))
    variables["PYTHONPATH"] = python_path()
    variables["PYTHONUNBUFFERED"] = "1"
    if gpus:
        variables["CUDA_VISIBLE_DEVICES"] = gpus
        variables.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    variables.update(env)
    return variables


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
class Local(Startable):
    """Worker processes on this host.

    Between `start` and `stop`, or in a `with` block, the engine keeps a process that has imported the framework of the
    first run, and the workers of that run and of later ones are forks of it: they are up in a fraction of a second. A
    fork begins as a new process does, so results are the same, and nothing of one run reaches another. `workers` is the
    number of each run: two at the same time have twice as many.

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
    endpoint: tuple[str, int] = field(default=(LOOPBACK, 0), init=False, repr=False)
    start_timeout: float = field(default=START_SECONDS, init=False, repr=False)
    driver_workers: int = field(default=0, init=False, repr=False)
    shared_places: bool = field(default=False, init=False, repr=False)
    _standby: Templates = field(default_factory=Templates, init=False, repr=False, compare=False)

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

    @property
    def workers_by_host(self) -> tuple[int, ...]:
        """All workers, on this host."""
        return (self.workers,)

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
        self._running: dict[int, Process] = {}
        self._dying: list[Process] = []
        """Killed processes that have not ended yet, though their slots are free."""
        self._devices: dict[int, str] = {}
        self._kills = Kills()
        self._counters: dict[int, tuple[Path, int] | None] = {}
        """Slot → what counts the processes of its cgroup that were killed for want of memory, and its count before."""
        self._closed = False
        engine._standby.begin_run()

    def start(self, slot: int) -> None:
        """Start a process for this slot.

        Raises:
            ResourceError: the system has no room for another process.
        """
        if device := self._free_device():
            self._devices[slot] = device
        self._start(slot, lambda variables, log: self._fork(variables, log) or _spawn(variables, log))

    def _start(self, slot: int, start: Callable[[dict[str, str], IO[bytes]], Process]) -> None:
        variables = agent_environment(self._engine.threads, self._devices.get(slot, ""), self._engine.env)
        path = self._launch.log(slot)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as log:
                process = start(variables, log)
        except OSError as error:
            raise ResourceError(f"slot {slot}: no worker process could be started: {error}") from error
        self._counters[slot] = self._kills.watch(process.counted)  # before its card, without which it does nothing
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(self._launch.card(slot))
            process.stdin.flush()
        self._running[slot] = process

    def _fork(self, variables: dict[str, str], log: IO[bytes]) -> Process | None:
        return self._engine._standby.fork(self._launch.frameworks, self._engine.threads, variables, log)

    def end(self, slot: int) -> None:
        """Kill the process and wait for its end, though not for long. A stopped one (SIGSTOP) ends too."""
        process = self._running.pop(slot, None)
        self._counters.pop(slot, None)
        self._devices.pop(slot, None)
        if process is None:
            return
        process.kill()
        if process.wait(END_SECONDS):
            process.close()
        else:
            self._dying.append(process)

    def lost(self) -> list[tuple[int, str]]:
        """Return (slot, reason) of the agents that ended since the last call."""
        lost = []
        for process in [each for each in self._dying if each.poll() is not None]:
            self._dying.remove(process)
            process.close()
        for slot, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                del self._running[slot]
                self._devices.pop(slot, None)
                process.kill()
                process.close()
                reason = process.story(code)
                counter = self._counters.pop(slot, None)
                if code == -signal.SIGKILL and self._kills.killed(counter):
                    reason = OutOfMemory(f"{reason}{RAN_OUT}")
                lost.append((slot, reason))
            elif process.refused:
                process.close()
                self._start(slot, _spawn)
        return lost

    def watch(self) -> list[int]:
        """Return a descriptor for each process; none where the system has none (then `lost` is called now and then)."""
        return [process.descriptor for process in self._running.values() if process.descriptor >= 0]

    def waits(self, slot: int) -> bool:
        """Whether the process of which its agent will be forked is still importing."""
        return slot in self._running and not self._running[slot].pid

    def device(self, slot: int) -> str:
        """Return "cuda" when the worker has a GPU of its own or shares one, else "cpu"."""
        return "cuda" if slot in self._devices else "cpu"

    def close(self) -> None:
        """End all. Agents that were ordered to end have a moment to do so by themselves."""
        if self._closed:
            return
        self._closed = True
        self._engine._standby.end_run()
        deadline = time.monotonic() + 0.5
        for process in self._running.values():
            process.wait(max(0.0, deadline - time.monotonic()))
        for process in self._running.values():
            process.kill()
        for slot in list(self._running):
            self.end(slot)
        self.lost()
        for process in self._dying:
            log.warning("process %d was killed and has not ended: it may wait for a file server", process.pid)
            process.close()
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


def _spawn(variables: dict[str, str], log: IO[bytes]) -> Process:
    return Spawned(AGENT, variables, log)
