"""What the system tells of processes: their state, their descendants, their processor time; and how to end them all.

From `/proc` where there is one, else from `ps`, which knows less: there a process has one processor time for all its
threads. Standard library only, and little of it, as a companion imports this.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
COMPILERS = ("tf_", "XLA", "xla", "llvm", "jax", "pjrt")
"""How names of threads begin that belong to a compiler. Most of its threads have no name, though, but that of the
process: only those of Python are told apart (`name_threads`)."""
PYTHON_THREAD = "python-thread"
"""Name of threads of Python."""
ROUNDS = 20
"""Of looking for processes that were started while others were being stopped."""
_PROC = Path("/proc/self/stat").exists()


def watched(process: int) -> int:
    """A descriptor that becomes readable when the process ends; -1 where there is none to be had."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return -1


def ended(process: int) -> bool:
    """Whether there is no such process any longer."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return state_of(process) in "ZX"


def state_of(process: int) -> str:
    """One letter, as `ps` has it: "R", "S", "T" of one that is stopped, …; "X" of one that is gone."""
    if not _PROC:
        return (_ps("stat=", process) or "X")[0]
    fields = _fields(f"/proc/{process}/stat")
    return fields[0] if fields else "X"


def name_threads() -> None:
    """Give threads that Python starts from now on a name of their own, for who looks at this process from outside:
    else they have the name of the process, as most threads of libraries do. (From 3.14 on Python names its threads.)"""
    before = getattr(threading.Thread, "_set_native_id", None)
    if before is None or not _PROC:
        return

    def set_native_id(thread: threading.Thread) -> None:
        before(thread)
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(PYTHON_THREAD)

    threading.Thread._set_native_id = set_native_id  # type: ignore[attr-defined]


class Tree:
    """An agent and what it has started."""

    def __init__(self, root: int) -> None:
        self._root = root

    def cpu_seconds(self) -> float:
        """Processor seconds of the agent's first thread, of compilers' threads in it, and of its descendants, those
        that have ended included. Other threads of Python do not count: one that spins beside a first one that waits
        for ever must not look like work."""
        if not _PROC:
            return sum(_clock(_ps("time=", process)) for process in (self._root, *descendants(self._root)))
        ticks = 0
        own, fields = _named(f"/proc/{self._root}/stat")
        for thread in _numbers(f"/proc/{self._root}/task"):
            name, used = _named(f"/proc/{self._root}/task/{thread}/stat")
            if used and (name == own or name.startswith(COMPILERS)):
                ticks += int(used[11]) + int(used[12])
        ticks += sum(map(int, fields[13:15]))  # of children that it waited for
        for process in descendants(self._root):
            ticks += sum(map(int, _fields(f"/proc/{process}/stat")[11:15]))
        return ticks / TICKS

    def end(self) -> None:
        """Kill the agent and all that it has started. They are stopped first: so none starts another meanwhile, and
        none loses its parent, by which it is known."""
        found = {self._root}
        _signal(self._root, signal.SIGSTOP)
        for _ in range(ROUNDS):
            new = descendants(self._root) - found
            if not new:
                break
            for process in new:
                _signal(process, signal.SIGSTOP)
            found |= new
        for process in found:
            _signal(process, signal.SIGKILL)
        self.end_group()
        until = time.monotonic() + 2.0
        while not ended(self._root) and time.monotonic() < until:
            time.sleep(0.002)

    def end_group(self) -> None:
        """Kill what is left of the agent's process group, which has its number."""
        with contextlib.suppress(OSError):
            os.killpg(self._root, signal.SIGKILL)


def descendants(process: int) -> set[int]:
    """The children of a process, their children, and so on, but not this process."""
    found: set[int] = set()
    waiting = [process]
    children = None if _PROC and _lists_children() else _children()
    while waiting:
        parent = waiting.pop()
        for child in _of(parent) if children is None else children.get(parent, ()):
            if child not in found and child != os.getpid():
                found.add(child)
                waiting.append(child)
    return found


def _lists_children() -> bool:
    """Whether the kernel does so itself; else all processes are looked through."""
    return Path("/proc/self/task", str(os.getpid()), "children").exists()


def _of(parent: int) -> list[int]:
    found = []
    for thread in _numbers(f"/proc/{parent}/task"):
        with contextlib.suppress(OSError):
            found += [int(word) for word in Path(f"/proc/{parent}/task/{thread}/children").read_text().split()]
    return found


def _children() -> dict[int, list[int]]:
    """Parent → children, of all processes."""
    found: dict[int, list[int]] = {}
    if _PROC:
        for process in _numbers("/proc"):
            if fields := _fields(f"/proc/{process}/stat"):
                found.setdefault(int(fields[1]), []).append(process)
        return found
    for line in _ps("pid=,ppid=").splitlines():
        child, parent = map(int, line.split())
        found.setdefault(parent, []).append(child)
    return found


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 (a third of the time)
    except OSError:
        return []


def _fields(path: str) -> list[str]:
    return _named(path)[1]


def _named(path: str) -> tuple[str, list[str]]:
    """(name, the fields behind it) of a `stat`; empty when it is gone."""
    try:
        with open(path) as file:  # noqa: PTH123
            head, _, tail = file.read().rpartition(")")
    except OSError:
        return "", []
    return head.partition("(")[2], tail.split()


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)


def _ps(columns: str, process: int = 0) -> str:
    import subprocess

    which = ["-p", str(process)] if process else ["-A"]
    done = subprocess.run(["ps", *which, "-o", columns], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _clock(text: str) -> float:
    """Seconds of "[[days-]hours:]minutes:seconds"."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":") if rest else ():
        seconds = seconds * 60 + float(part.replace(",", "."))
    return seconds + 86_400.0 * float(days or 0)
