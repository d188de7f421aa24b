"""Journals of programs fold to the same state, for ever.

A change that makes this fail breaks `hopyard show` of every program that is on a disk somewhere. Add a new pair of
files when the format grows; never change an old one. (Until the first release they may be written anew: `python
test_frozen.py`.) They are of `program_worlds.World`: restarts of the whole and of tasks alone, growth, overdue tasks,
lost slots, slots that are given back.
"""

import json
from pathlib import Path
from typing import get_args

import pytest

from hopyard.core.programs.events import (
    AskedAgain,
    Assigned,
    Decision,
    Happened,
    Over,
    Restarting,
    Yielded,
    decode,
    encode,
)
from hopyard.core.programs.machine import ProgramMachine
from program_worlds import World
from snapshots import program_fold

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
        str(count): essentials(program_fold(lines[:count]))
        for count, line in enumerate(lines, 1)
        if isinstance(line, (Yielded, AskedAgain, Assigned, Restarting, Over))
    }


def folded(path: Path) -> dict:
    """`stages` of a journal, as JSON has it."""
    return stages([decode(line) for line in path.read_bytes().splitlines()])


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_a_journal_folds_to_the_same_state(path):
    assert folded(path) == json.loads(path.with_suffix(".json").read_text())


def test_they_have_every_kind_of_line():
    kinds = {json.loads(line)["type"] for path in HERE.glob("*.jsonl") for line in path.read_bytes().splitlines()}
    assert kinds == {kind.__name__ for kind in (*get_args(Happened), *get_args(Decision))}


if __name__ == "__main__":
    for number, (seed, shared) in enumerate(((648, False), (302, False), (83, False), (1138, True)), 1):
        world, target = World(seed, shared), HERE / f"program-{number}.jsonl"
        list(world.run())
        target.write_bytes(b"".join(encode(line) + b"\n" for line in world.lines))
        target.with_suffix(".json").write_text(json.dumps(folded(target), indent=1, sort_keys=True) + "\n")
