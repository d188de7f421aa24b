"""A thousand agents on one driver: how soon they are up, what a message costs the driver, 5,000 trials through them.

    python benchmarks/many_agents.py [--agents 1000] [--processes 20] [--trials 5000] [--apart] [--profile]

The driver is a real one, in a process of its own: `hy.select` with an engine of this script, its journal, its encrypted
socket, its stores. The agents are threads, some dozens in a process: each has what an agent has (a `DriverConnection`
of two sockets and a thread, a third socket for heartbeats, a worker with shared memory of its own and a thread that
stores States) and runs the agent's own code (`agent.runs.service.work`). Their units do nothing, so all that takes
time is Hopyard. Only what belongs to a process is missing: a companion each, for which one thread sends the heartbeats
of all agents of a process, spread over time.

The first trial's check waits until all agents are up, and some seconds longer; so the costs of joining, of standing by
and of the selection are told apart. The driver shares the machine's cores with all agents: its wall time is theirs too.

Goals: up within 60 s; at most 1 ms of the driver's processor a message; at most 1 GB of its memory; every trial
completed, by one unit each.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import faulthandler
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import zmq

import hopyard as hy
from hopyard.agent.connection import DriverConnection, dial
from hopyard.agent.progress import Progress
from hopyard.agent.runs import service
from hopyard.core.messages import Beat, Card, Hello, Setup, pack
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Checked, Dispatch, Done, Finish, Joined, Lost
from hopyard.driver.router import Router
from hopyard.driver.runs.loop import RunLoop
from hopyard.driver.runs.workers import Workers
from hopyard.ports.engines import LaunchInfo
from hopyard.store.journal import read
from hopyard.system.processes import story
from nothing import Nothing, rows

UP_SECONDS, MESSAGE_MS, MEMORY = 60.0, 1.0, 1e9
STANDING_BY = 5.0
"""Seconds for which all agents are up and nothing happens but heartbeats."""
CLOSE_SECONDS = 20.0


# ------------------------------------------------------------------------------------------------------ the agents


class Agent(NamedTuple):
    """What sends the heartbeats of one agent."""

    card: Card
    progress: Progress
    socket: zmq.Socket[bytes]


def host() -> None:
    """A process of agents: each card on standard input is one more, until standard input ends or all have ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    threading.stack_size(1 << 19)

    def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
        """Seeds, settings and warnings are the process's."""
        turn = threading.Lock()

        def in_turn(*arguments: Any) -> Any:
            with turn:
                return function(*arguments)

        return in_turn

    service.assemble = one_by_one(service.assemble)
    service.UnitService.do = one_by_one(service.UnitService.do)  # type: ignore[method-assign]
    agents: list[Agent] = []
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    threading.Thread(target=send_heartbeats, args=(agents,), daemon=True).start()
    threads = []
    for line in sys.stdin.buffer:
        card = msgspec.structs.replace(msgspec.json.decode(line, type=Card), incarnation=os.getpid())
        progress = Progress()
        agents.append(Agent(card, progress, dial(context, card, "b", {zmq.LINGER: 0, zmq.SNDHWM: 2})))
        threads.append(threading.Thread(target=run_agent, args=(card, progress)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    sys.stderr.flush()
    os._exit(0)


def run_agent(card: Card, progress: Progress) -> None:
    """Be an agent, as `agent.main.serve` is."""
    connection = DriverConnection(card, progress)
    try:
        connection.send(Hello(card.slot))
        setup = connection.receive()
        assert isinstance(setup, Setup)
        service.work(card, connection, setup, progress)
    finally:
        connection.close()


def send_heartbeats(agents: list[Agent]) -> None:
    """Send a heartbeat of each agent in each interval."""
    number = 0
    while True:
        if not agents:
            time.sleep(0.05)
            continue
        card, progress, socket = agents[number % len(agents)]
        with contextlib.suppress(zmq.Again):
            socket.send(pack(Beat(card.slot, progress.advanced, progress.phase, 0.0, progress.taken)), zmq.NOBLOCK)
        number += 1
        time.sleep(card.beat / len(agents))


# ------------------------------------------------------------------------------------------------------ the engine


@dataclass(frozen=True)
class Crowd:
    """An engine whose agents are threads of a few processes on this host."""

    workers: int
    processes: int
    apart: bool = False
    name: str = "crowd"
    threads: int = 1
    env: dict[str, str] = field(default_factory=dict)
    in_process: bool = False
    endpoint: tuple[str, int] = ("127.0.0.1", 0)
    start_timeout: float = 120.0
    driver_workers: int = 0

    def open(self, launch: LaunchInfo) -> Threads:
        return Threads(self, launch)


class Threads:
    """The agents of one run."""

    def __init__(self, engine: Crowd, launch: LaunchInfo) -> None:
        self._each = -(-engine.workers // engine.processes)
        self._launch = launch
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._slots: dict[int, list[int]] = {}

    def start(self, slot: int) -> None:
        number = slot // self._each
        if number not in self._processes:
            log = self._launch.log(number)
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as output:
                command = [sys.executable, "-W", "ignore", __file__, "--host"]
                self._processes[number] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        process = self._processes[number]
        assert process.stdin is not None
        process.stdin.write(self._launch.card(slot))
        process.stdin.flush()
        self._slots.setdefault(number, []).append(slot)

    def end(self, slot: int) -> None:
        """What it still says is dropped."""

    def lost(self) -> list[tuple[int, str]]:
        ended = {number: code for number, each in self._processes.items() if (code := each.poll()) is not None}
        return [(slot, story(code)) for number, code in ended.items() for slot in self._slots.pop(number, ())]

    def watch(self) -> list[int]:
        return []

    def waits(self, slot: int) -> bool:
        return False

    def device(self, slot: int) -> str:
        return "cpu"

    def close(self) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


# ------------------------------------------------------------------------------------------------------ the driver


class Mark(NamedTuple):
    """How far the driver was at one moment."""

    at: float
    processor: float
    messages: dict[str, int]


class Watch:
    """Counts the driver's messages, and notes what it has used when something has happened."""

    def __init__(self, agents: int) -> None:
        self.marks: dict[str, Mark] = {}
        self.messages: Counter[str] = Counter()
        self._left = agents
        self._count(Router, "_heartbeat", "heartbeats")
        self._count(Router, "_numbered", "from agents")
        self._count(Router, "_write", "to agents")
        ready, events, carry_out = Workers.ready, RunLoop._events, RunLoop._do

        def on_ready(workers: Workers, message: Any, now: float) -> Joined:
            self._left -= 1
            if not self._left:
                self.mark("up")
            return ready(workers, message, now)

        def on_message(loop: RunLoop, message: Any) -> Any:
            if isinstance(message, Checked):
                self.mark("checked")
            return events(loop, message)

        def on_command(loop: RunLoop, command: Any) -> None:
            if isinstance(command, Finish):
                self.mark("finished")
            carry_out(loop, command)

        Workers.ready, RunLoop._events, RunLoop._do = on_ready, on_message, on_command  # type: ignore[method-assign]

    def mark(self, name: str) -> None:
        self.marks[name] = Mark(time.monotonic(), time.process_time(), dict(self.messages))

    def _count(self, owner: Any, name: str, what: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            self.messages[what] += 1
            return original(*arguments)

        setattr(owner, name, counted)


def drive(options: argparse.Namespace) -> None:
    """Run, and print what came of it as one line of JSON."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    data = rows()
    data.prepare()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory(dir=".") as name, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(name).absolute()
        gate, seconds = str(folder / "all-up"), STANDING_BY

        def recipe(config: dict[str, Any]) -> Nothing:
            while not os.path.exists(gate):
                time.sleep(0.05)
            return Nothing()

        watch = Watch(options.agents)

        def open_gate() -> None:
            while "up" not in watch.marks:
                time.sleep(0.05)
            time.sleep(seconds)
            Path(gate).touch()

        threading.Thread(target=open_gate, daemon=True).start()
        watch.mark("begun")
        if profile is not None:
            profile.enable()
        run = hy.select(
            recipe, hy.Space(first=hy.uniform(0.0, 1.0)), data, search=hy.Random(options.trials), epochs=1,
            metric="loss", mode="min", engine=Crowd(options.agents, options.processes, options.apart),
            parallel=hy.Hopper(group="off"), directory=folder / "run", exact=False,
        )  # fmt: skip
        if profile is not None:
            profile.disable()
            profile.dump_stats(options.profile)
        ended = time.monotonic()
        lines = list(read(run.directory / "journal.jsonl", CODEC))
        units = Counter(line.unit.trial for line in lines if isinstance(line, Dispatch))
        answers = Counter(line.lease for line in lines if isinstance(line, Done))
        facts = {
            "marks": {name: mark._asdict() for name, mark in watch.marks.items()},
            "ended": ended,
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "before": before,
            "joined": sum(isinstance(line, Joined) for line in lines),
            "lost": sum(isinstance(line, Lost) for line in lines),
            "completed": sum(trial.status == "completed" and bool(trial.digest) for trial in run.trials),
            "once": sum(count == 1 for count in units.values()) if max(answers.values()) == 1 else 0,
            "busy": len({line.slot for line in lines if isinstance(line, Dispatch)}),
        }
    sys.stdout.write(json.dumps(facts) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--apart", action="store_true", help="as if agents might be on other hosts")
    parser.add_argument("--profile", metavar="FILE", help="write a profile of the driver's loop, which slows it down")
    parser.add_argument("--host", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.host:
        host()
    if options.drive:
        drive(options)
        return 0
    command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--drive"]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    facts = json.loads(finished.stdout)
    begun, up, checked, end = (Mark(**facts["marks"][name]) for name in ("begun", "up", "checked", "finished"))

    def cost(what: str, first: Mark, last: Mark) -> float:
        counts = {name: last.messages[name] - first.messages.get(name, 0) for name in last.messages}
        messages, processor, wall = sum(counts.values()), last.processor - first.processor, last.at - first.at
        named = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        each = processor / messages * 1e3
        print(f"{what}: {wall:.1f} s, {processor:.1f} s of the driver's processor; {named}: {each:.2f} ms a message")
        return each

    print(f"{facts['joined']:,} agents up after {up.at - begun.at:.1f} s (at most {UP_SECONDS:.0f})")
    each = max(
        cost("all come up", begun, up),
        cost("all stand by", up, checked),
        cost(f"{options.trials:,} trials that do nothing", checked, end),
    )
    print(f"at most {each:.2f} ms of the driver's processor a message (at most {MESSAGE_MS:g})")
    print(f"memory of the driver: {facts['memory'] / 1e6:.0f} MB, {facts['before'] / 1e6:.0f} before (at most 1,000)")
    print(
        f"{facts['completed']:,} of {options.trials:,} trials completed, {facts['once']:,} by one unit each, on "
        f"{facts['busy']:,} agents; {facts['lost']} agents lost; closed {facts['ended'] - end.at:.1f} s later"
    )
    right = facts["completed"] == facts["once"] == options.trials and not facts["lost"]
    good = right and up.at - begun.at <= UP_SECONDS and each <= MESSAGE_MS and facts["memory"] <= MEMORY
    return not good


if __name__ == "__main__":
    sys.exit(main())
