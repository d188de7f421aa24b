"""Everything Hopyard raises, one tree:

    HopyardError                exit code 1
    ├── UsageError              2   a request cannot be carried out as it stands (also a ValueError)
    │   ├── SpecError           2   a value is not allowed: names the field, the value, what is allowed
    │   ├── DataError           2   the data cannot be used: names the column, the place, the value
    │   ├── PreflightError      2   the first trials cannot start: all faults together
    │   └── RunDirectoryError   2   the run directory exists, or is not one; 4: it is in use
    ├── JournalError            1   the journal is damaged, or of a newer version
    ├── RunFailed               1   every trial failed, or none has a finite metric
    ├── ProgramFailed           1   a task of a program failed: names the first cause, its host and log
    ├── FeedError               1   a feed of a program cannot go on
    ├── Inexact                 1   `exact=True` cannot be kept, or a replay gave other bits
    ├── TrialFailed             3   the model of a failed trial was asked for
    └── ResourceError           4   disk, memory or slots ran out; `hopyard resume` goes on

Errors that Hopyard catches itself, such as a store that cannot be reached, are beside the code that raises them.

Each class carries its `exit_code`; `hopyard run script.py` turns it into the process's.
"""

from __future__ import annotations

from hopyard.text import readable


class HopyardError(Exception):
    """The root of all errors that Hopyard raises. Its text can be shown anywhere: control characters, which a name or a
    value may bring, are spelled out, and lines that nobody would read are cut."""

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(readable(arg) if isinstance(arg, str) else arg for arg in args))


class UsageError(HopyardError, ValueError):
    """A request cannot be carried out as it stands."""

    exit_code = 2


class SpecError(UsageError):
    """A value is not allowed."""


class DataError(UsageError):
    """The data cannot be used as described."""


class PreflightError(UsageError):
    """The first trials cannot start. `faults` lists every fault found."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        lines = "\n".join(f"  {n}. {fault}" for n, fault in enumerate(faults, 1))
        super().__init__(f"nothing was trained; preflight found {len(faults)} fault(s):\n{lines}")


class RunDirectoryError(UsageError):
    """The run directory exists already, is in use, or holds no run."""


class JournalError(HopyardError):
    """The journal is damaged, or was written by a newer version."""


class RunFailed(HopyardError):
    """Every trial of a run failed, or none has a finite value of its metric."""


class ProgramFailed(HopyardError):
    """A program failed. The message has the traceback of the task that failed first.

    Attributes:
        task: the task, for example "worker 1"; empty where no task is to blame.
        host: the host on which it ran.
        log: the path of its log.
    """

    def __init__(self, message: str, task: str = "", host: str = "", log: str = "") -> None:
        self.task, self.host, self.log = task, host, log
        super().__init__(message)


class FeedError(HopyardError):
    """A feed cannot go on: its rows cannot be given exactly once, nobody takes them, or no more are wanted."""


class Inexact(HopyardError):
    """`exact=True` cannot be kept, or a replay gave other bits."""


class TrialFailed(HopyardError):
    """The model of a failed trial was asked for."""

    exit_code = 3


class ResourceError(HopyardError):
    """Disk, memory or slots ran out. Nothing is lost: `hopyard resume` goes on when there is room."""

    exit_code = 4
