"""The machine of a program after its journal; and all state of a machine that matters, as plain values: equal for equal
journals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from hopyard.core.programs.events import ProgramLine
from hopyard.core.programs.machine import ProgramMachine, begun
from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.core.runs.scheduling.homes import Homes
from hopyard.core.runs.search import Search
from hopyard.core.runs.states.durability import Durability


def snapshot(machine: Machine) -> dict[str, Any]:
    """Return the state of a run. (Where a State lies in shared memory is not in the journal.)"""
    omitted = ("queue_version", "states", "epochs", "earlier")
    return {
        "trials": {
            trial.id: {name: getattr(trial, name) for name in TrialRecord.__struct_fields__ if name not in omitted}
            | {"states": {step: (s.ref, s.maker, s.digest, s.parked) for step, s in trial.states.items()}}
            | {"earlier": trial.earlier and (trial.earlier.recipe, trial.earlier.best, list(trial.earlier.states))}
            | {
                "epochs": {
                    epoch: (record.train, record.validate, record.pending, record.folding, record.parked)
                    for epoch, record in sorted(trial.epochs.items())
                }
            }
            for trial in machine.trials.values()
        },
        "slots": {
            slot.id: (
                *(slot.host, slot.pid, slot.device, slot.busy, slot.trial, slot.step),
                *(sorted(slot.memory_only), slot.used, slot.away),
                *(slot.trains, slot.members, slot.together, slot.group),
            )
            for slot in machine.slots.values()
        },
        "leases": {
            lease: (slot, unit.trial, unit.kind, unit.epoch, unit.partitions, unit.start)
            for lease, (slot, unit) in machine.leases.standing().items()
        },
        "deadlines": machine.leases.deadlines(),
        "awaited": awaited(machine._run.durability),
        "exhausted": machine.exhausted,
        "search": _search(machine.search),
        "places": homes(machine.places),
        "folds": folds(machine),
        "isolated": sorted(n for n, trial in machine.trials.items() if trial.isolated and not trial.ended),
        "faults": machine.faults,
        "names": machine.names,
        "checking": checking(machine),
        "status": machine.status,
        "holding": (
            machine.holding.requested,
            machine.holding._until,
            machine.holding.turn,
            machine.workers.formed > 0,
        ),
        "defects": machine.defects,
        "warnings": machine.warnings,
    }


def folds(machine: Machine) -> list[tuple[int, int]]:
    """Return (trial, epoch) whose arrays wait to be turned into values."""
    return list(machine.scheduler._folds)


def checking(machine: Machine) -> tuple[int, int] | None:
    """Return (slot, trial) of the check that is under way."""
    return machine._preflight._checking


def awaited(durability: Durability) -> dict[str, tuple[int, float]]:
    """Return State → (slot, when that slot is late with it)."""
    return {
        str(ref): (slot, max(made_at, owing.stored) + durability._timeout)
        for slot, owing in durability._slots.items()
        for ref, made_at in owing.states.items()
    }


def homes(places: Homes) -> dict[str, Any]:
    """Return the homes of all partitions."""
    return {
        "homes": {kind: (blocks.bounds, blocks.homes) for kind, blocks in places._blocks.items()},
        "vacant": {kind: (blocks.vacant, blocks.free) for kind, blocks in places._blocks.items()},
        "hosts": places._hosts,
        "short": (places._short, places._waited),
    }


def _search(search: Search) -> dict[str, Any]:
    standing = search.standing
    return {
        "active": sorted(standing.active),
        "undecided": dict(sorted(standing.undecided.items())),
        "paused": sorted(standing.paused),
        "closed": search.closed,
        "error": search.error,
        "deadline": search._deadline,
        "rungs": search.rungs(),
    }


def program_snapshot(machine: ProgramMachine) -> dict[str, Any]:
    """Return the state of a program."""
    own = {name: value for name, value in vars(machine).items() if name not in ("spec", "_out")}
    plain: dict[str, Any] = msgspec.to_builtins(own, str_keys=True)
    return plain


def program_fold(lines: Iterable[ProgramLine]) -> ProgramMachine:
    """Return the machine after all lines of a program's journal."""
    first, *rest = lines
    machine = begun(first)
    for line in (first, *rest):
        machine.apply(line)
    return machine
