"""The time that a run would take: the machine's makespan on so many slots, and the bound that no schedule can beat."""

from __future__ import annotations

from dataclasses import dataclass

from hopyard.checks import whole
from hopyard.errors import SpecError
from hopyard.sim.world import Seconds, World, lengths
from hopyard.spec import RunSpec, Unit
from hopyard.text import shown


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outcome of a simulated run.

    Attributes:
        makespan: seconds from the first slot to the last result.
        bound: seconds that no schedule can beat: the longest trial, or an even share of all work.
        ratio: makespan / bound.
        idle_share: part of the slots' time in which they did nothing, 0 to 1.
        units: partitions done, training and validation.
    """

    makespan: float
    bound: float
    ratio: float
    idle_share: float
    units: int


def predict(
    slots: int,
    trials: int,
    partitions: int,
    epochs: int,
    seconds: float,
    *,
    sigma: float = 0.0,
    noise: float = 0.1,
    check: float = 0.3,
    validation: int = 0,
    group_seconds: float = 1.0,
    seed: int = 0,
) -> Forecast:
    """Run the machine itself against a virtual clock.

    Args:
        slots: number of slots.
        trials: number of trials, all proposed at the start.
        partitions: training partitions.
        epochs: epochs of each trial.
        seconds: time that a trial takes for one training partition, on average (a median when `sigma` is not 0).
        sigma: trials differ by a lognormal factor of this width; 0: they are equal.
        noise: relative width of the normal noise on each unit.
        check: time of a validation partition, relative to a training one.
        validation: validation partitions.
        group_seconds: units are grouped up to about this much work.
        seed: seed of lengths and noise.

    Raises:
        SpecError: a number is out of its range.
    """
    for name, value in (("slots", slots), ("trials", trials)):
        whole(name, value, 1)
    if not seconds > 0:
        raise SpecError(f"seconds must be a number above 0, got {shown(seconds)}")
    spec = RunSpec(
        epochs=epochs, partitions=partitions, validation=validation, trials=trials, group_seconds=group_seconds
    )
    unit_seconds = lengths(trials, sigma, noise, seed, check)

    def scaled(unit: Unit, partition: int) -> float:
        return seconds * unit_seconds(unit, partition)

    world = World(spec, slots, scaled)
    makespan = world.run()
    bound = lower_bound(spec, slots, scaled)
    busy = sum(world.busy.values())
    return Forecast(makespan, bound, makespan / bound, 1 - busy / (slots * makespan), world.units)


def lower_bound(spec: RunSpec, slots: int, seconds: Seconds) -> float:
    """Return the seconds that no schedule can beat: max(longest trial, even share of all work).

    Args:
        spec: the run's.
        slots: number of slots.
        seconds: how long a partition of a unit takes.
    """
    longest = work = 0.0
    for trial in range(spec.trials or 0):
        alone = 0.0
        for epoch in range(spec.epochs):
            for partition in range(spec.partitions):
                alone += seconds(Unit(0, trial, "train", epoch, (partition,), None), partition)
            for partition in range(spec.validation):
                work += seconds(Unit(0, trial, "validate", epoch, (partition,), None), partition)
        work += alone
        longest = max(longest, alone)
    return max(longest, work / slots)
