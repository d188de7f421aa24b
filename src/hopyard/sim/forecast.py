"""The time that a run would take: the machine's makespan on so many slots, and the bound that no schedule can beat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hopyard.checks import whole
from hopyard.errors import SpecError
from hopyard.sim.world import Host, Seconds, World, lengths
from hopyard.spec import RunSpec, Unit
from hopyard.text import shown

LARGEST = 1e9
"""The greatest number of seconds, and of shares."""
WIDEST = 10.0
"""The greatest sigma: e^10 is a factor of 22,000."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The outcome of a simulated run.

    Attributes:
        makespan: seconds from the first slot to the last result.
        bound: seconds that no schedule can beat: the longest trial, or an even share of all work.
        ratio: makespan / bound.
        idle_share: part of the slots' time in which they did nothing, 0 to 1.
        units: partitions done, training and validation.
        rows_stored: partitions that all hosts store, over those of the table; 1 where all slots are on one host.
        hops: times that a State went from one host to another to be trained.
    """

    makespan: float
    bound: float
    ratio: float
    idle_share: float
    units: int
    rows_stored: float
    hops: int


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
    hosts: Sequence[Host] = (),
    copies: int | None = 1,
    hop: float = 0.0,
    fetch: float = 0.0,
) -> Forecast:
    """Run the machine itself against a virtual clock.

    Args:
        slots: number of slots; where there are `hosts`, they have as many workers.
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
        hosts: the hosts of the slots; empty: they are all on one.
        copies: as in `hy.Hopper`, but for "auto".
        hop: seconds that a State takes from one host to another.
        fetch: seconds that a host takes to fetch a partition.

    Raises:
        SpecError: a number is out of its range.
    """
    for name, value in (("slots", slots), ("trials", trials)):
        whole(name, value, 1)
    workers = sum(host.workers for host in hosts)
    if hosts and workers != slots:
        raise SpecError(f"hosts = {shown(hosts)} have {workers} workers, so slots must be {workers}, got {slots}")
    amounts = {
        "sigma": sigma,
        "noise": noise,
        "check": check,
        "hop": hop,
        "fetch": fetch,
        "group_seconds": group_seconds,
    }
    for name, amount in {"seconds": seconds, **amounts}.items():
        if not 0 <= amount <= LARGEST or (name == "sigma" and amount > WIDEST):
            most = WIDEST if name == "sigma" else LARGEST
            raise SpecError(f"{name} must be a number from 0 to {most:g}, got {shown(amount)}")
    if not seconds > 0:
        raise SpecError(f"seconds must be a number above 0, got {shown(seconds)}")
    spec = RunSpec(
        epochs=epochs,
        partitions=partitions,
        validation=validation,
        trials=trials,
        group_seconds=group_seconds,
        copies=copies,
    )
    unit_seconds = lengths(trials, sigma, noise, seed, check)

    def scaled(unit: Unit, partition: int) -> float:
        return seconds * unit_seconds(unit, partition)

    world = World(spec, slots, scaled, hosts=tuple(hosts), hop=hop, fetch=fetch)
    makespan = world.run()
    bound = lower_bound(spec, slots, scaled)
    busy = sum(world.busy.values())
    rows = sum(map(len, world.rows.values())) / (partitions + validation) if hosts else 1.0
    return Forecast(makespan, bound, makespan / bound, 1 - busy / (slots * makespan), world.units, rows, world.hops)


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
