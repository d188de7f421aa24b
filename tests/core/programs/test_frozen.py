"""Journals of programs of earlier versions fold to the same state, for ever.

A change that makes this fail breaks `hopyard show` of every program that is on a disk somewhere. Add a new pair of
files when the format grows; never change an old one. The three were written by `program_worlds.World` with the seeds
that their first lines name (`run_id`, in hexadecimal): restarts of the whole and of tasks alone, growth, overdue tasks,
lost slots.
"""

import json
from pathlib import Path

import pytest

from hopyard.core.programs.events import Assigned, Over, Restarting, decode
from hopyard.core.programs.machine import ProgramMachine, fold

HERE = Path(__file__).parent / "frozen"


def essentials(machine: ProgramMachine) -> dict:
    """What must never fold differently, as JSON has it."""
    return {
        "status": machine.status,
        "phase": machine.phase,
        "cause": machine.cause,
        "slot": machine.failed_slot,
        "restart": machine.restart,
        "incarnations": machine.incarnations,
        "until": machine.spec.until,
        "there": sorted(machine.places),
        "tasks": {
            str(slot): {
                "name": record.task.name,
                "rank": record.task.rank,
                "incarnation": record.incarnation,
                "status": record.status,
                "cause": record.cause,
                "up": record.up,
                "values": {name: repr(value) for name, value in record.values.items()},
                "step": record.step,
                "host": machine.known[slot].host,
            }
            for slot, record in sorted(machine.tasks.items())
        },
    }


def stages(lines: list) -> dict:
    """After how many lines → the state, wherever a decision was made."""
    return {
        str(count): essentials(fold(lines[:count]))
        for count, line in enumerate(lines, 1)
        if isinstance(line, (Assigned, Restarting, Over))
    }


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_old_journal_folds_to_the_same_state(path):
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    assert stages(lines) == json.loads(path.with_suffix(".json").read_text())


def test_there_are_some():
    assert len(list(HERE.glob("*.jsonl"))) >= 3
