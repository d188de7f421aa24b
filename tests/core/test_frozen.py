"""Journals of earlier versions fold to the same state, for ever.

A change that makes this fail breaks the resume of every run that is on a disk somewhere. Add a new pair of files when
the format grows; never change an old one. `journal-1` was written by `hopyard.sim.chaos.drawn(None)`: slots lost and
replaced, system and user failures, validation, folds, drivers killed and resumed.
"""

import json
from pathlib import Path

import pytest

from hopyard.core.events import Finished, Resumed, decode
from hopyard.core.machine import Machine, fold

HERE = Path(__file__).parent / "frozen"


def essentials(machine: Machine) -> dict:
    """What must never fold differently, as JSON has it."""
    return {
        "status": machine.status,
        "trials": {
            str(trial.id): {
                "config": trial.config,
                "status": trial.status,
                "fault": trial.fault,
                "error": trial.error,
                "step": trial.step,
                "safe": trial.safe,
                "best": trial.best,
                "history": {str(epoch): values for epoch, values in sorted(trial.history.items())},
                "states": {str(step): [str(s.ref), s.digest] for step, s in sorted(trial.states.items())},
                "digests": {str(step): digest for step, digest in sorted(trial.digests.items())},
            }
            for trial in machine.trials.values()
        },
        "kept": sorted(str(ref) for ref in machine.kept()),
        "last lease": machine.leases.last,
        "slots": sorted(machine.slots),
    }


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_old_journal_folds_to_the_same_state(path):
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    found = {}
    for count in range(1, len(lines) + 1):
        if count == len(lines) or isinstance(lines[count], (Resumed, Finished)):
            found[str(count)] = essentials(fold(lines[:count]))
    assert found == json.loads(path.with_suffix(".json").read_text())
