"""How far a run is: the share of its training that is done, and the seconds that are left. Pure functions of its
machine."""

from __future__ import annotations

from hopyard.core.runs.machine import Machine
from hopyard.core.runs.records import TrialRecord
from hopyard.spec import RunSpec


def share(machine: Machine) -> float:
    """Return the share of all training steps that are done, from 0 to 1. Trials that failed or were stopped count as
    done. O(trials)."""
    spec, trials = machine.spec, machine.trials.values()
    total = (spec.trials or len(trials)) * spec.steps
    done = sum(spec.steps if trial.status in ("failed", "stopped") else trial.step for trial in trials)
    return done / total if total else 0.0


def seconds_left(machine: Machine) -> float | None:
    """Return the seconds until the run ends: its work over its slots, but no less than its longest trial. None: there
    is nothing to estimate from, or a rule decides how far trials go. O(trials)."""
    spec, trials = machine.spec, machine.trials.values()
    if machine.status != "running" or not machine.slots or spec.stop is not None:
        return None
    if not any(trial.seconds for trial in trials):
        return None
    remaining = [trial_seconds_left(trial, spec) for trial in trials if not trial.ended]
    if not remaining:
        return 0.0
    missing = max(0, (spec.trials or 0) - len(trials))
    return max(*remaining, sum(remaining) * (1 + missing / len(trials)) / len(machine.slots))


def trial_seconds_left(trial: TrialRecord, spec: RunSpec) -> float:
    """Return the seconds of work that are left of a trial: training, and the validations of its epochs."""
    validations = (spec.epochs - len(trial.history)) * spec.validation
    return trial.remaining + validations * (trial.check_seconds or 0.3 * trial.seconds)
