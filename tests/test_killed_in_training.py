"""Parameter server, chief and worker of the example programs, each killed (kill -9) in training: the program goes on
from its checkpoint, and ends right, whatever is started again and wherever it runs."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from killed_in_training import ARGUMENTS, ROLES, killed

MISSING = [name for name in ("tensorflow", "sklearn", "pyspark") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.spark,
    pytest.mark.tensorflow,
    pytest.mark.programs,
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are looked up in /proc"),
]
VICTIMS = {
    "ps_tutorial": {"ps": "ps 0", "chief": "worker 0", "worker": "worker 1"},
    "parameter_server_strategy": {"ps": "ps 0", "chief": "chief 0", "worker": "worker 1"},
}


def told(name: str, victim: str, scope: str, engine: str, directory: Path, roles: dict[str, int]) -> dict[str, Any]:
    if engine == "local":
        return killed(name, victim, scope, hy.Local(workers=sum(roles.values()), devices=None), directory, roles)
    script = Path(__file__).with_name("killed_in_training.py")
    done = subprocess.run(
        [sys.executable, str(script), name, victim, scope, str(directory)],
        cwd=directory.parent,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stderr[done.stderr.find("Traceback") :][:6000]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


CELLS = itertools.product(VICTIMS, ("ps", "chief", "worker"), ("task", "program"), ("local", "spark"))
ALWAYS = {("ps_tutorial", "ps", "task", "local"): {"worker": 1, "ps": 1}}
"""With as few tasks as it needs, all of which start again and import TensorFlow. The others take an hour together:
`pytest -m campaign`. In `test_example_programs.py` a chief of the other example alone goes on from its checkpoint."""


@pytest.mark.parametrize(
    ("name", "role", "scope", "engine"),
    [cell if cell in ALWAYS else pytest.param(*cell, marks=pytest.mark.campaign) for cell in CELLS],
)
def test_a_killed_program_goes_on_from_its_checkpoint(
    name: str, role: str, scope: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    victim = VICTIMS[name][role]
    roles = ALWAYS.get((name, role, scope, engine), ROLES[name])
    found = told(name, victim, scope, engine, tmp_path / "run", roles)
    assert (found["status"], found["restarts"]) == ("completed", 1)
    results, steps = found["results"], ARGUMENTS[name]["steps"]
    leader = results["result-0" if name == "ps_tutorial" else "result"]
    assert leader["accuracy"] > 0.8
    # Asynchronous workers count on one variable without a lock: each tells what it saw last, a few steps late.
    reached = max(told.get("reached", told["steps"]) for told in results.values())
    assert reached >= steps - 20 * (name == "ps_tutorial")
    went_on = role == "worker" and scope == "task"  # the leader never ended
    saved = leader["began"] - 1 if name == "ps_tutorial" else leader["began"]
    assert saved < 50 if went_on else 50 <= saved < steps, "it did not go on from a checkpoint"
    if name == "ps_tutorial":
        assert sorted(results) == [f"result-{index}" for index in range(roles["worker"])]
        if went_on:
            assert results["result-1"]["began"] > found["killed at"], "the variables were lost"
