"""The process of which agents are forked: `python -m hopyard.agent template PARENT THREADS FRAMEWORK…`.

It imports what an agent of a run imports until its first unit, and then forks an agent for each request that comes on
its standard input, a socket. It reads no recipe and no data, computes nothing, and touches no GPU.
`engines/templates.py` has the other end, and says what a request brings.

It keeps each agent's number from being used again until the other end has closed the agent's socket. It ends when the
process that started it has ended, and its agents with it, as their companions see to; or, when there will be no more
requests, with its last agent.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from hopyard.agent.main import main
from hopyard.agent.runs import service
from hopyard.engines.templates import REASON, ChildEnded, Forked, Refused, Report, line_of, variables_of
from hopyard.frameworks import environment, quiet, runtime
from hopyard.system.limits import allow_all_files
from hopyard.system.processes import watched
from hopyard.text import escaped, message_of

WORK = service.work
"""What an agent imports once it knows that it is to run units."""
SAFE = frozenset({"jemalloc_bg_thd"})
"""Threads that a fork need not have: jemalloc, which is Arrow's, does their work itself then."""
USED_GPU = ("/dev/nvidia-uvm", "/dev/kfd")
"""Files that a process has open once it has used a GPU."""
NO_CUDA = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With this variable torch looks for GPUs without using one, whatever is imported."""


def serve(parent: int, threads: int, frameworks: Sequence[str]) -> None:
    """Import the frameworks, then fork agents until there will be no more requests, and no agent is left.

    Args:
        parent: the process that started this one.
        threads: intra-op threads of frameworks.
        frameworks: names of `hopyard.frameworks.FRAMEWORKS`.
    """
    driver = watched(os.getppid())
    if os.getppid() != parent:  # it ended while this process began, whose parent is another one now
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as an agent does, see `main`
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    allow_all_files()  # two of each agent, and what comes with requests; agents do it too
    _Server(driver, prepare(threads, frameworks)).run()


def prepare(threads: int, frameworks: Sequence[str]) -> str:
    """Import the frameworks. Return why no agent may be forked; "": one may."""
    for name, value in environment(threads).items():
        os.environ.setdefault(name, value)
    quiet()
    check = os.environ.get(NO_CUDA)
    os.environ[NO_CUDA] = "1"
    gc.disable()  # looking for garbage among what imports make takes a quarter of TensorFlow's time
    try:
        for framework in frameworks:
            runtime(framework).prepare()
            for module in runtime(framework).late:
                importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - agents without a template show it to the user
        return _report(f"{framework} cannot be imported: {type(error).__name__}: {message_of(error)}")
    finally:
        gc.enable()
        if check is None:
            del os.environ[NO_CUDA]
        else:
            os.environ[NO_CUDA] = check
    gc.collect()
    gc.freeze()  # leaves the pages of memory that are shared with agents alone
    return _report(obstacle())


def _report(reason: str) -> str:
    """Return a reason as it fits into one message, whatever characters it has."""
    return escaped(reason)[:REASON]


def obstacle() -> str:
    """Return why this process cannot be forked safely, as it is now; "": it can."""
    if not (probe := _forked()):
        os._exit(0)
    os.waitpid(probe, 0)
    # Libraries that end their threads before a fork, as OpenBLAS does, have done so by now.
    if threads := sorted(_threads()):
        return f"threads are left by what was imported ({', '.join(threads)}), which a fork would not have"
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith(USED_GPU):
                return "what was imported has used a GPU, which a fork cannot use then"
    return ""


def _threads() -> list[str]:
    """Return the names of the threads beside this one that are not safe."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if task.name != str(os.getpid()):
                names.append((task / "comm").read_text(errors="replace").strip())
    return [name for name in names if name not in SAFE]


def _forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork beside threads: `obstacle` knows which there are
        return os.fork()


Files = tuple[int, int, int, int]
"""Descriptors of a request: its text, the agent's standard input, its log, the folder that it begins in."""


@dataclass(slots=True)
class _Agent:
    pid: int
    report: socket.socket
    process: int
    """Descriptor that is readable when it has ended; -1: it has, and the number may be that of another file by now."""
    closed: bool = False
    """Whether nobody wants to know its end any more."""


class _Server:
    """Answers requests. Owner of the agents' processes, not of what they do.

    Args:
        driver: descriptor that is readable when the process that started this one has ended.
        refusal: why no agent is forked; "": agents are.
    """

    def __init__(self, driver: int, refusal: str) -> None:
        self._requests = socket.socket(fileno=0)
        self._driver, self._refusal = driver, refusal
        self._given = variables_of(Path("/proc/self/environ").read_bytes())
        """The variables with which this process began."""
        self._set_by_imports = {name: v for name, v in os.environ.items() if self._given.get(name) != v}
        self._agents: dict[int, _Agent] = {}
        """Descriptor of its report, and of its process → the agent."""
        self._poll = select.poll()
        for file in (self._requests.fileno(), driver):
            self._poll.register(file, select.POLLIN)
        self._open = True

    def run(self) -> None:
        """Fork agents until there will be no more requests and no agent is left, or the driver has ended."""
        while self._open or self._agents:
            for file, _ in self._poll.poll():
                if file == self._driver:
                    return
                if file == self._requests.fileno():
                    self._receive()
                elif (agent := self._agents.get(file)) is not None:
                    if file == agent.process:
                        self._on_end(agent)
                    else:
                        self._on_close(agent)

    def _receive(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._requests, 1, 5)
        if not data:
            self._open = False
            self._poll.unregister(self._requests.fileno())
            return
        text, stdin, log, folder, file = descriptors
        report = socket.socket(fileno=file)
        report.setblocking(False)
        try:
            variables = variables_of(os.pread(text, os.fstat(text).st_size, 0))
            if refusal := self._refusal or self._conflict(variables):
                _send(report, Refused(refusal))
                report.close()
            elif _hung_up(report):
                report.close()
            else:
                self._fork(variables, (text, stdin, log, folder), report)
        finally:
            for descriptor in (text, stdin, log, folder):
                os.close(descriptor)

    def _conflict(self, variables: Mapping[str, str]) -> str:
        """Return why the imports might have set other variables, had they seen those of this request; "": they had."""
        names = [
            name
            for name, value in self._set_by_imports.items()
            if variables.get(name) not in (self._given.get(name), value)
        ]
        return _report(f"imports set {', '.join(names)}, and a run has another value") if names else ""

    def _fork(self, variables: dict[str, str], files: Files, report: socket.socket) -> None:
        try:
            pid = _forked()
        except OSError as error:
            _send(report, Refused(f"the system has no room for another process: {error}"))
            report.close()
            return
        if not pid:
            self._become_agent(variables, files, report)
        with contextlib.suppress(OSError):  # the agent does it too: it must be done before its number is known
            os.setpgid(pid, pid)
        agent = _Agent(pid, report, watched(pid))
        for file in (report.fileno(), agent.process):
            self._agents[file] = agent
            self._poll.register(file, select.POLLIN)
        _send(report, Forked(pid))

    def _on_end(self, agent: _Agent) -> None:
        """Report the end of an agent, which stays a zombie until it is closed."""
        self._forget(agent.process)
        os.close(agent.process)
        agent.process = -1
        if agent.closed:
            os.waitpid(agent.pid, 0)
            return
        result = os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
        assert result is not None
        _send(agent.report, ChildEnded(result.si_status if result.si_code == os.CLD_EXITED else -result.si_status))

    def _on_close(self, agent: _Agent) -> None:
        """Nobody wants to know the end of an agent any more: end it, and let its number go."""
        self._forget(agent.report.fileno())
        agent.report.close()
        agent.closed = True
        if agent.process >= 0:
            with contextlib.suppress(OSError):
                os.killpg(agent.pid, signal.SIGKILL)
        else:
            os.waitpid(agent.pid, 0)

    def _forget(self, file: int) -> None:
        self._poll.unregister(file)
        del self._agents[file]

    def _become_agent(self, variables: dict[str, str], files: Files, report: socket.socket) -> NoReturn:
        """Be an agent that has just imported what this process has."""
        try:
            os.setpgid(0, 0)
            _, stdin, log, folder = files
            os.fchdir(folder)
            printed = os.pread(1, os.fstat(1).st_size, 0)
            self._requests.detach()
            for file, descriptor in ((stdin, 0), (log, 1), (log, 2)):
                os.dup2(file, descriptor)
            for file in (*files, report.detach(), self._driver, *self._agents):
                os.close(file)
            os.environ.clear()
            os.environ.update(variables | dict(self._set_by_imports))
            time.tzset()
            os.write(1, printed)
            sys.argv[1:] = []
            tempfile.tempdir = None
            np.random.seed()  # Python does this with its own generator
            main()
        except BaseException:  # noqa: BLE001 - the agent's log is the only place left to say it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)


def _hung_up(report: socket.socket) -> bool:
    poll = select.poll()
    poll.register(report, select.POLLIN)
    return bool(poll.poll(0))


def _send(report: socket.socket, message: Report) -> None:
    with contextlib.suppress(OSError):  # nobody wants to know it any more
        report.send(line_of(message))
