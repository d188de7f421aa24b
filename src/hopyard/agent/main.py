"""An agent: a process that connects to the driver, receives its task, and works on it until it is told to end.

It runs units (`runs/service.py`), or hosts a task of a program (`programs/supervisor.py`).

Where it runs units it has three threads. The main one takes a unit, runs it and answers. A second seals and stores
States. The third is the connection's (`connection.py`).

Its keys come in the first line of standard input. The end of standard input means that the driver is gone; then the
agent ends as well. A companion process (`companion.py`) sees to that, and tells the driver that the agent lives.
"""

from __future__ import annotations

import faulthandler
import os
import secrets
import signal
import sys
import traceback

import msgspec

from hopyard import meter
from hopyard.agent.companion import STACKS, accompany
from hopyard.agent.connection import DriverConnection
from hopyard.agent.progress import Progress
from hopyard.core.messages import Card, Hello, Setup
from hopyard.core.programs.messages import HostTasks
from hopyard.system.limits import allow_all_files


def serve(card: Card, progress: Progress) -> None:
    """Connect to the driver and do the agent's work until the driver ends it."""
    connection = DriverConnection(card, progress)
    try:
        connection.send(Hello(card.slot))
        message = connection.receive()
        if isinstance(message, HostTasks):
            from hopyard.agent.programs.supervisor import TaskSupervisor

            progress.enter("idle")  # the task runs in a process of its own
            TaskSupervisor(card, connection, message, progress.companion).run()
        elif isinstance(message, Setup):
            from hopyard.agent.import_hooks import find_spark_files
            from hopyard.agent.runs.service import work

            find_spark_files()
            meter.count_with(progress)
            work(card, connection, message, progress)
        else:
            raise TypeError(f"the first message is Setup or HostTasks, not {type(message).__name__}")
    finally:
        connection.close()


def main() -> None:
    """`python -m hopyard.agent`, started by an engine."""
    allow_all_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the driver decides
    # The kernel sends it to the group of a stopped agent whose driver has ended. An agent that died from it would leave
    # orphans that its companion does not know. (A handler, unlike SIG_IGN, is not inherited by what the agent starts.)
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    faulthandler.enable()  # a crash leaves its stack in the log
    faulthandler.register(STACKS)
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            os._exit(1)
        data += byte
    card = msgspec.structs.replace(msgspec.json.decode(data, type=Card), incarnation=secrets.randbits(63))
    progress = Progress()
    accompany(card, progress)
    try:
        serve(card, progress)
    except Exception:  # noqa: BLE001 - the log is the only place left to say it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
