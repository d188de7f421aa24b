"""Journals of earlier versions fold to the same state, for ever.

A change that makes this fail breaks the resume of every run that is on a disk somewhere. Add a new pair of files when
the format grows; never change an old one. (Until the first release they may be written anew: `freeze`.) `journal-1`
is of a world of `faults.world`: slots lost and replaced, system and user failures, validation, folds, drivers
killed and resumed; `journal-2` of one that is given more epochs and a trial as well; `journal-3` and `journal-4` of
synchronous and asynchronous successive halving; `journal-5` of slots on several hosts, whose partitions have homes.
"""

import json
import sys
from pathlib import Path

import pytest

from hopyard.core.runs.events import Finished, Resumed, decode
from hopyard.core.runs.machine import Machine, fold

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
                "safe": trial.durable_step,
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
        **({"homes": machine.places.snapshot()["homes"]} if machine.places.active else {}),
    }


def folded(path: Path) -> dict:
    """What a journal folds to where a driver ended."""
    lines = [decode(line) for line in path.read_bytes().splitlines()]
    found = {}
    for count in range(1, len(lines) + 1):
        if count == len(lines) or isinstance(lines[count], (Resumed, Finished)):
            found[str(count)] = essentials(fold(lines[:count]))
    return found


@pytest.mark.parametrize("path", sorted(HERE.glob("*.jsonl")), ids=lambda path: path.stem)
def test_an_old_journal_folds_to_the_same_state(path):
    assert json.loads(json.dumps(folded(path))) == json.loads(path.with_suffix(".json").read_text())


def freeze(seed: int, name: str, hosts: bool = False) -> None:
    """Write a pair, from the world of this seed: a new one when the format grows; an old one anew only before the first
    release."""
    from faults.worlds import drawn

    world = drawn(seed, hosts=hosts)
    world.start()
    for _ in range(60):
        if not world.ended:
            world.step()
    world.finish()
    target = HERE / f"{name}.jsonl"
    target.write_bytes(b"".join(line + b"\n" for line in world.journal))
    target.with_suffix(".json").write_text(json.dumps(folded(target), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    freeze(int(sys.argv[1]), sys.argv[2], hosts="hosts" in sys.argv[3:])
