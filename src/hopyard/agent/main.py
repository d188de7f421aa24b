"""An agent: a process that dials home, is told what it is for, and does that until it is told to end.

It runs units (`runs/service.py`), or hosts a task of a program (`programs/supervisor.py`).

Three threads where it runs units. The main one takes a unit, runs it and answers. A second seals and stores States. The
third is the connection's (`connection.py`).

Keys come on standard input, first line; its end means that the driver is gone, and the agent with it. To see to that,
and to tell the driver that the agent lives, is the work of a companion process (`companion.py`).
"""

from __future__ import annotations

import faulthandler
import os
import resource
import secrets
import signal
import sys
import traceback

import msgspec

from hopyard import meter
from hopyard.agent.companion import STACKS, accompany
from hopyard.agent.connection import Connection
from hopyard.agent.progress import Progress
from hopyard.core.messages import Card, Hello, Setup
from hopyard.core.programs.messages import Host


def serve(card: Card, progress: Progress) -> None:
    """The life of an agent."""
    connection = Connection(card, progress)
    try:
        connection.send(Hello(card.slot))
        first = connection.receive()
        if isinstance(first, Host):
            from hopyard.agent.programs.supervisor import TaskSupervisor

            progress.enter("idle")  # the task has a process of its own
            TaskSupervisor(card, connection, first, progress.companion).run()
        elif isinstance(first, Setup):
            from hopyard.agent.runs.service import work

            meter.count_with(progress)
            work(card, connection, first, progress)
        else:
            raise TypeError(f"the first message is Setup or Host, not {type(first).__name__}")
    finally:
        connection.close()


def main() -> None:
    """`python -m hopyard.agent`, started by an engine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each mapped column of each partition is a file
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the driver decides
    # The kernel sends it to the group of a stopped agent whose driver has ended. An agent that died of it would leave
    # orphans that its companion does not know. (A handler, unlike SIG_IGN, is not inherited by what the agent starts.)
    signal.signal(signal.SIGHUP, lambda number, frame: None)
    faulthandler.enable()  # a crash leaves its stack in the log
    faulthandler.register(STACKS)
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            os._exit(1)
        data += more
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
