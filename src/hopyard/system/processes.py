"""Processes as the system shows them: their state, descendants and processor time; and how to end them all.

The facts come from `/proc` where there is one, else from `ps`, which knows less: there a process has one processor time
for all its threads. This module uses the standard library only, and little of it, as a companion imports it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import threading
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
COMPILERS = ("tf_", "XLA", "xla", "llvm", "jax", "pjrt")
"""How the names of a compiler's threads begin. Most of its threads have no name, though, but that of the process: only
those of Python can be distinguished (`name_threads`)."""
PYTHON_THREAD = "python-thread"
"""Name of Python's threads."""
COMPANION = "hopyard-companion"
"""Name of the process that an agent has started to clean up after it. It ends by itself."""
ROUNDS = 20
"""How often to look for processes that were started while others were being stopped."""
_PROC = Path("/proc/self/stat").exists()


def watched(process: int) -> int:
    """Return a descriptor that becomes readable when the process ends; -1 where there is none to be had."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return -1


def peak_memory() -> int:
    """Return the most bytes of memory that this process had resident since its program began.

    On Linux `ru_maxrss` is no such peak: a program inherits that of the process that started it.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


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
    """Return one letter, as `ps` has it: "R", "S", "T" of one that is stopped, …; "X" of one that is gone."""
    if not _PROC:
        return (_ps("stat=", process) or "X")[0]
    fields = _fields(f"/proc/{process}/stat")
    return fields[0] if fields else "X"


def story(code: int) -> str:
    """Return how a process ended, from its exit code."""
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"ended with exit code {code}"


def name_threads() -> None:
    """Give threads that Python starts from now on a name of their own, for those who look at this process from outside:
    else they have the name of the process, as most threads of libraries do. (From 3.14 on Python names its threads.)"""
    original = getattr(threading.Thread, "_set_native_id", None)
    if original is None or not _PROC:
        return

    def set_native_id(thread: threading.Thread) -> None:
        original(thread)
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{thread.native_id}/comm").write_text(PYTHON_THREAD)

    threading.Thread._set_native_id = set_native_id  # type: ignore[attr-defined]


class Tree:
    """An agent and what it has started."""

    def __init__(self, root: int) -> None:
        self._root = root

    def cpu_seconds(self) -> float:
        """Return processor seconds of the agent's first thread, of compilers' threads in it, and of its descendants,
        those that have ended included. Other threads of Python do not count: one that spins beside a first one that
        waits for ever must not look like work."""
        if not _PROC:
            return sum(_clock(_ps("time=", process)) for process in (self._root, *descendants(self._root)))
        ticks = 0
        own, fields = _stat(f"/proc/{self._root}/stat")
        for thread in _numbers(f"/proc/{self._root}/task"):
            name, thread_fields = _stat(f"/proc/{self._root}/task/{thread}/stat")
            if thread_fields and (name == own or name.startswith(COMPILERS)):
                ticks += int(thread_fields[11]) + int(thread_fields[12])
        ticks += sum(map(int, fields[13:15]))  # of children that it waited for
        for process in descendants(self._root):
            ticks += sum(map(int, _fields(f"/proc/{process}/stat")[11:15]))
        return ticks / TICKS

    def end(self) -> None:
        """Kill the agent and all that it has started but its companion. They are stopped first: so none starts another
        meanwhile, and none loses its parent, by which it is recognized."""
        processes = {self._root}
        _signal(self._root, signal.SIGSTOP)
        for _ in range(ROUNDS):
            new = {each for each in descendants(self._root) - processes if not _is_companion(each)}
            if not new:
                break
            for process in new:
                _signal(process, signal.SIGSTOP)
            processes |= new
        for process in processes:
            _signal(process, signal.SIGKILL)
        self.end_group()

    def end_group(self) -> None:
        """Kill what is left of the agent's process group, which has its number."""
        with contextlib.suppress(OSError):
            os.killpg(self._root, signal.SIGKILL)


def descendants(process: int) -> set[int]:
    """Return the children of a process, their children, and so on, but not this process."""
    result: set[int] = set()
    pending = [process]
    children = None if _PROC and _lists_children() else _children()
    while pending:
        parent = pending.pop()
        for child in children_of(parent) if children is None else children.get(parent, ()):
            if child not in result and child != os.getpid():
                result.add(child)
                pending.append(child)
    return result


def _lists_children() -> bool:
    """Whether the kernel lists the children of a process; else all processes are searched."""
    return Path("/proc/self/task", str(os.getpid()), "children").exists()


def children_of(parent: int) -> list[int]:
    """Return the children of a process, of all its threads, where the kernel lists them."""
    children = []
    for thread in _numbers(f"/proc/{parent}/task"):
        with contextlib.suppress(OSError):
            children += [int(word) for word in Path(f"/proc/{parent}/task/{thread}/children").read_text().split()]
    return children


def _children() -> dict[int, list[int]]:
    """Return parent → children, of all processes."""
    children: dict[int, list[int]] = {}
    if _PROC:
        for process in _numbers("/proc"):
            if fields := _fields(f"/proc/{process}/stat"):
                children.setdefault(int(fields[1]), []).append(process)
        return children
    for line in _ps("pid=,ppid=").splitlines():
        child, parent = map(int, line.split())
        children.setdefault(parent, []).append(child)
    return children


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal()]  # noqa: PTH208 (a third of the time)
    except OSError:
        return []


def _is_companion(process: int) -> bool:
    return _stat(f"/proc/{process}/stat")[0] == COMPANION[:15]  # as the kernel cuts names


def _fields(path: str) -> list[str]:
    return _stat(path)[1]


def _stat(path: str) -> tuple[str, list[str]]:
    """Return (name, the fields after it) of a `stat` file; both are empty when it is gone."""
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

    selection = ["-p", str(process)] if process else ["-A"]
    result = subprocess.run(["ps", *selection, "-o", columns], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def _clock(text: str) -> float:
    """Return the seconds of "[[days-]hours:]minutes:seconds"."""
    days, _, rest = text.rpartition("-")
    seconds = 0.0
    for part in rest.split(":") if rest else ():
        seconds = seconds * 60 + float(part.replace(",", "."))
    return seconds + 86_400.0 * float(days or 0)
