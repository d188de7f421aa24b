"""A process of an example program is killed (kill -9) in training: what became of the program.

As a script it does so on Spark executors of one core each, in a session of its own:

    python tests/killed_in_training.py ps_tutorial "ps 0" task DIRECTORY
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import hopyard as hy
from example_modules import example

ARGUMENTS: dict[str, dict[str, Any]] = {
    "ps_tutorial": {"steps": 1200, "sync": False},
    "parameter_server_strategy": {"steps": 600, "save": 50, "rate": 0.2, "fail": None},
}
ROLES: dict[str, dict[str, int]] = {
    "ps_tutorial": {"worker": 2, "ps": 1},
    "parameter_server_strategy": {"chief": 1, "worker": 2, "ps": 1},
}
UNTIL = {"ps_tutorial": "workers", "parameter_server_strategy": "chief"}
KILL_AT = 200
"""Step, by which checkpoints have been written."""


def process_of(agent: int) -> int:
    """The process of the task that an agent hosts."""
    for path in Path(f"/proc/{agent}/task").glob("*/children"):
        for pid in path.read_text().split():
            if b"hopyard.agent.programs.task" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return int(pid)
    raise AssertionError(f"agent {agent} hosts no process")


def killed(
    name: str, victim: str, scope: Any, engine: Any, directory: Path, roles: dict[str, int] | None = None
) -> dict[str, Any]:
    """Launch the example, kill a task of it in training, wait for its end; how it stood then, and at which step it was
    killed. `roles`: others than ROLES[name]."""
    program = hy.launch(
        example(f"programs/{name}").main,
        ARGUMENTS[name],
        roles=roles or ROLES[name],
        until=UNTIL[name],
        max_restarts=1,
        restart_scope=scope,
        max_time=800,
        engine=engine,
        directory=directory,
    )
    with program:
        while (step := _step(program)) < KILL_AT and not program.done:
            time.sleep(0.01)
        if not program.done:
            tasks = {f"{task['role']} {task['index']}": task for task in program.summary()["tasks"]}
            os.kill(process_of(tasks[victim]["agent"]), signal.SIGKILL)
        program.wait(820)
    status = program.summary()
    results = {path.stem: json.loads(path.read_text()) for path in directory.glob("result*.json")}
    return {"status": status["status"], "restarts": status["restarts"], "killed at": step, "results": results}


def _step(program: hy.Program) -> int:
    return max((task["step"] or 0 for task in program.summary()["tasks"]), default=0)


def main() -> None:
    name, victim, scope, directory = sys.argv[1:]
    workers = sum(ROLES[name].values())
    engine = hy.Spark(hy.spark.session(executors=workers, cores=1), workers=workers)
    print(json.dumps(killed(name, victim, scope, engine, Path(directory))))


if __name__ == "__main__":
    main()
