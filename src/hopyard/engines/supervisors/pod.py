"""Process 1 of a pod: the supervisors of a host whose ticket is a file that may come late.

The pod's scheduler speaks to this process by SIGTERM, and hears by its exit code and its termination message. Of that
scheduler's API nothing is known here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.host import TERMINATED_CODE, UNFIT_CODE, SupervisorHost, shares
from hopyard.engines.supervisors.supervisor import host_name
from hopyard.errors import UsageError

TICKET_SECONDS = 150.0
"""How long to wait for the file: kubelets look for new Secrets about once a minute."""
LOOK_SECONDS = 0.2
"""Time between two looks for it."""
TERMINATION_LOG = "/dev/termination-log"
"""Where the scheduler looks for the reason of a container's end."""
MESSAGE_BYTES = 4096
"""Bytes of that file which are read."""


def run(slots: int, devices: str, path: Path) -> int:
    """Run supervisors until the driver ends them, or SIGTERM comes; return the exit code.

    Args:
        slots: how many.
        devices: "auto" or "none", see `host.shares`.
        path: the ticket's file.
    """
    signal.signal(signal.SIGTERM, _end)
    if not _comes(path):
        text = (
            f"{host_name()} has no ticket: {path} has not come within {TICKET_SECONDS:.0f} seconds; the driver may "
            "have ended meanwhile, or lack the right to make Secrets"
        )
        print(text, file=sys.stderr, flush=True)  # noqa: T201 - the pod's log
        _leave_message(text)
        return 1  # another pod may have one
    try:
        ticket = tickets.read(path)
    except UsageError as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 - the pod's log
        _leave_message(str(error))
        return UNFIT_CODE
    host = SupervisorHost(ticket, shares(slots, devices), pod=True)
    code = host.run()
    if code == UNFIT_CODE:
        _leave_message(host.fault)
    return code


def _end(number: int, frame: object) -> NoReturn:
    """End a process that has no supervisors yet."""
    raise SystemExit(TERMINATED_CODE)


def _comes(path: Path) -> bool:
    """Wait for the ticket's file. Return whether it is there in time."""
    deadline = time.monotonic() + TICKET_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def _leave_message(text: str) -> None:
    """Write why this process ends where the scheduler looks for it; outside of a container there is no such file."""
    with contextlib.suppress(OSError):
        file = os.open(TERMINATION_LOG, os.O_WRONLY | os.O_TRUNC)
        try:
            os.write(file, text.encode()[:MESSAGE_BYTES].decode(errors="ignore").encode())
        finally:
            os.close(file)
