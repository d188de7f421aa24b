"""Agents as forks of a process that has imported what they need.

Most of the time from an agent's start to its first unit goes into imports: of a framework, seconds. A *template*
(`agent/template.py`) is a process that has imported an agent's modules and the frameworks of a run, and has run nothing
of a user's. A fork of it is an agent as it is after these imports, and goes on as any other. This module has the other
end: it starts templates, and asks them for agents. It knows no slots and no runs.

What an agent inherits from its parent it gets with the request, as the process that asks has it now: variables, current
folder, standard input, log. What was read when modules were imported is part of the key by which a template is found
(`key_of`). Where that differs, there is another template. Limits, affinity and umask are those of the template, as with
`multiprocessing`'s forkserver. Where an import has left threads behind, which a fork would not have, or has touched a
GPU, the template refuses, and agents start without one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import IO

import msgspec

from hopyard.engines.processes import Spawned, close_input, kill_group, kill_tree
from hopyard.engines.warm import Standby
from hopyard.system.processes import story

log = logging.getLogger(__name__)

TEMPLATE = (sys.executable, "-P", "-m", "hopyard.agent", "template")
"""How a template is started; the number of this process and of threads follow, and the names of frameworks."""
MOST = 4
"""How many templates an engine keeps; the least recently used ends first."""
END_SECONDS = 2.0
"""How long to wait for the end of a template that has no agents."""
IMPORT_SECONDS = 120.0
"""How long to wait for an agent of a template that may still be importing, until the agent starts without it."""
REASON = 1000
"""Most characters of a reason, so that a report fits into MESSAGE."""
MESSAGE = 4096
"""Most bytes of a report."""
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LANG", "LC_", "HOME", "PATH", "TMPDIR", "XDG_CONFIG_HOME"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_", "ONEDNN_", "DNNL_", "NPROC"),
    *("NPY_", "NUMPY_", "ARROW_", "ABSL_", "GRPC_", "PROTOCOL_BUFFERS_", "KERAS_", "JAX", "XLA_", "TF_", "TF2_"),
    *("TORCH", "PYTORCH_", "ATEN_", "TRITON_", "CUDA_", "CUDNN_", "NCCL_", "NVIDIA_", "ROCR_", "HIP_", "HSA_"),
)
"""Beginnings of the names of variables that Python, its libraries or a framework may read as they are imported."""
READ_LATER = frozenset({"CUDA_VISIBLE_DEVICES"})
"""Variables with such names that are read when a GPU is first used."""
QUIET = ("TF_CPP_MIN_LOG_LEVEL", "2")
"""What a template sets if nobody has (`frameworks.quiet`). An inline run sets it in its process, for good."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """From a template: the agent is this process, whose group has its number."""

    pid: int


class ChildEnded(msgspec.Struct, frozen=True, tag=True):
    """From a template: the agent has ended with this exit code, or, negative, by this signal. Its number is not used
    again before the other end of the socket is closed."""

    code: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """From a template: it forks no agents, for this reason."""

    reason: str


Report = Forked | ChildEnded | Refused
report_of = msgspec.json.Decoder(Report).decode
line_of = msgspec.json.Encoder().encode


def request(variables: Mapping[str, str]) -> bytes:
    """Return the text of a request to fork an agent that has these variables: NAME=VALUE, each followed by a zero byte.
    They are bytes, as the system has them, of which not all are UTF-8."""
    return b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())


def variables_of(text: bytes) -> dict[str, str]:
    """Return the variables of a request."""
    lines = [os.fsdecode(line) for line in text.split(b"\0") if line]
    return dict((name, value) for name, _, value in (line.partition("=") for line in lines))


class Fork:
    """A process that a template was asked for, with the attributes and methods of `Spawned`; its `pid` is 0 at first.

    Args:
        template: which was asked.
        report: socket on which the template reports; its end ends the process.
        stdin: the other end of its standard input.
    """

    def __init__(self, template: Template, report: socket.socket, stdin: IO[bytes]) -> None:
        self.pid = 0
        self.stdin = stdin
        self.refused = False
        self.counted = template.pid
        self._template = template
        self._report = report
        self._code: int | None = None
        self._orphaned = False
        """Whether the template has ended; then its exit code is the one that is known."""
        self._asked = time.monotonic()

    @property
    def descriptor(self) -> int:
        """A descriptor that is readable when there is something for `poll`."""
        return self._report.fileno()

    def poll(self) -> int | None:
        """Return its exit code; None: it has not ended."""
        while self._code is None and not self.refused:
            try:
                data = self._report.recv(MESSAGE)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._take(report_of(data) if data else None)
        if not self.pid and not self.refused and time.monotonic() - self._asked > IMPORT_SECONDS:
            self._refuse(f"it has not answered for {IMPORT_SECONDS:.0f} seconds")
        return self._code

    def _take(self, report: Report | None) -> None:
        match report:
            case Forked(pid=pid):
                self.pid = pid
            case ChildEnded(code=code):
                self._code = code
            case Refused(reason=reason):
                self._refuse(reason)
            case None if self.pid:
                self._orphaned = True
                self._code = self._template.exit_code()
            case None:
                code = self._template.exit_code()
                self._template.killed = code == -signal.SIGKILL
                self._refuse(
                    f"it {story(code)}" + ("; the next worker has another one" if self._template.killed else "")
                )

    def _refuse(self, reason: str) -> None:
        self.refused = True
        self._template.refuse(reason)

    def wait(self, seconds: float) -> bool:
        """Wait for its end; not where there is no process yet."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._report, select.POLLIN)
        while self.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0 or not self.pid:
                return not self.pid
            poll.poll(math.ceil(left * 1000))
        return True

    def kill(self) -> None:
        """Kill it and all that it started. Where there is no process yet, `close` prevents that there will be one."""
        runs = self.poll() is None
        if self.pid:
            if runs:
                kill_tree(self.pid)
            kill_group(self.pid)

    def close(self) -> None:
        """Forget it, and let its number go."""
        if not self.pid:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        close_input(self.stdin)
        with contextlib.suppress(OSError):
            self._report.shutdown(socket.SHUT_RDWR)  # a process that was forked of this one may have it too
        self._report.close()

    def story(self, code: int, where: str = "") -> str:
        """Return how it ended."""
        if self._orphaned:
            return f"process {self.pid}{where} ended as process {self.counted}, of which it was forked, {story(code)}"
        return f"process {self.pid}{where} {story(code)}"


Process = Spawned | Fork
"""An agent's process. Owner: the agents of one run."""


class Template:
    """One template. Any thread may use it.

    Args:
        frameworks: what it imports.
        threads: intra-op threads of frameworks.
        variables: its environment.
        warn: is told why it forks no agents, if it does not.

    Raises:
        OSError: no process could be started.
    """

    def __init__(
        self, frameworks: Sequence[str], threads: int, variables: Mapping[str, str], warn: Callable[[str], None]
    ) -> None:
        self.frameworks = tuple(frameworks)
        self._warn = warn
        self.refusal = ""
        """Why it forks no agents; "": it does."""
        self.killed = False
        """Whether it was killed before it could: by others, so that another one may do better."""
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._requests.setblocking(False)
        output = os.memfd_create("hopyard-template")  # what imports print, for the log of each agent
        try:
            self._process = subprocess.Popen(
                [*TEMPLATE, str(os.getpid()), str(threads), *frameworks],
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(variables),
                process_group=0,  # Ctrl-C goes to the whole terminal
            )
        except BaseException:
            self._requests.close()
            raise
        finally:
            theirs.close()
            os.close(output)

    @property
    def pid(self) -> int:
        """Number of its process."""
        return self._process.pid

    def fork(self, variables: Mapping[str, str], log: IO[bytes]) -> Fork:
        """Ask for an agent.

        Args:
            variables: its environment.
            log: takes what it prints.

        Raises:
            OSError: the template has ended, or the system has no descriptors left.
        """
        with contextlib.ExitStack() as stack:

            def passed(descriptor: int) -> int:
                stack.callback(os.close, descriptor)
                return descriptor

            text = passed(os.memfd_create("hopyard-request"))
            os.write(text, request(variables))
            read_end, write_end = os.pipe()
            stdin = os.fdopen(write_end, "wb")
            passed(read_end)
            try:
                folder = passed(os.open(".", os.O_PATH | os.O_DIRECTORY))  # which may have been removed
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                stack.callback(theirs.close)
                ours.setblocking(False)
                try:
                    with self._lock:
                        descriptors = [text, read_end, log.fileno(), folder, theirs.fileno()]
                        socket.send_fds(self._requests, [b"."], descriptors)
                except BaseException:
                    ours.close()
                    raise
            except BaseException:
                stdin.close()
                raise
        return Fork(self, ours, stdin)

    def refuse(self, reason: str) -> None:
        """Note that it forks no agents, and why."""
        with self._lock:
            if not self.refusal:
                self.refusal = reason
                imported = " and ".join(self.frameworks) or "Hopyard"
                self._warn(
                    f"workers are not forked of one process that has imported {imported}, but each imports it: {reason}"
                )

    def exit_code(self) -> int:
        """Return how its process ended, which has ended or is about to."""
        with self._lock:
            try:
                return self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                return self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        with self._lock:
            return self._process.poll() is not None

    def close(self, seconds: float = 0.0) -> None:
        """Let it end as soon as it has no agents, and wait for that, though not longer than so many seconds."""
        with contextlib.suppress(OSError):
            self._requests.shutdown(socket.SHUT_RDWR)
        if self._requests.fileno() < 0:
            return
        self._requests.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, name="hopyard-template", daemon=True).start()

    def kill(self) -> None:
        """End it now. Its agents end with it."""
        self._requests.close()
        with self._lock, contextlib.suppress(subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait(END_SECONDS)


class Templates(Standby[Template]):
    """The templates of one engine, or of one supervisor, by `key_of`. Any thread may use them.

    Args:
        warn: is told what people are to know; None: this module's logger.
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(_close)
        self._warn = warn or log.warning

    def start(self) -> None:
        """Have agents forked of templates from now on, where the system can do that."""
        if hasattr(os, "pidfd_open") and hasattr(os, "memfd_create"):
            super().start()
        else:
            self._warn("workers are forked of a process that has imported what they need on Linux only")

    def kill(self) -> None:
        """End the templates and their agents now; the next agent has another template."""
        with self._lock:
            while self._items:
                self._items.popitem()[1].kill()

    def fork(
        self, frameworks: Sequence[str], threads: int, variables: Mapping[str, str], log: IO[bytes]
    ) -> Fork | None:
        """Ask for an agent; return None where it has to start without a template. Returns at once.

        Args:
            frameworks: what it has imported.
            threads: intra-op threads of frameworks.
            variables: its environment.
            log: takes what it prints.

        Raises:
            OSError: no template could be started.
        """
        if not self.started:
            return None
        key = key_of(frameworks, threads, variables)
        with self._lock:
            if not self.started:
                return None
            template = self._items.pop(key, None)
            if template is not None and template.ended and (template.killed or not template.refusal):
                template.close()
                template = None
            if template is None:
                while len(self._items) >= MOST:
                    self._items.pop(next(iter(self._items))).close()
                template = Template(frameworks, threads, _without_device(variables), self._warn)
            self._items[key] = template
            if template.refusal:
                template.close()
                return None
            try:
                return template.fork(variables, log)
            except (BrokenPipeError, ConnectionResetError):  # it has ended just now: the next one has another
                return None
            except BlockingIOError:  # it still imports, and as many requests wait for it as its socket takes
                return None
            except OSError as error:
                if error.errno == errno.ETOOMANYREFS:  # the same, with as many descriptors under way as are allowed
                    return None
                raise


def key_of(frameworks: Sequence[str], threads: int, variables: Mapping[str, str]) -> Hashable:
    """Return what must be equal for agents of one template."""
    read = frozenset(
        (name, value)
        for name, value in variables.items()
        if name.startswith(READ_AT_IMPORT) and name not in READ_LATER and (name, value) != QUIET
    )
    return tuple(frameworks), threads, read


def _without_device(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in READ_LATER}


def _close(template: Template) -> None:
    template.close(END_SECONDS)
