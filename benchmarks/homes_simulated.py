"""What homes of partitions cost in time, and what they save in rows: the scheduler in virtual time.

    python benchmarks/homes_simulated.py [seeds, default 200]

A host has one worker unless said otherwise, a trial three epochs, and a partition takes about a second. The bound is
the longest trial, or an even share of all work. "Beside copies=None": over the time of the same run where rows go
everywhere.
"""

import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean

from hopyard.sim.forecast import lower_bound
from hopyard.sim.world import Host, Sums, World, lengths
from hopyard.spec import PackedSums, RunSpec, Unit
from hopyard.stopping import ASHA

EPOCHS = 3


def run(
    seed: int,
    hosts: Sequence[Host],
    trials: int,
    partitions: int,
    *,
    sigma: float = 0.0,
    copies: int | None = 1,
    hop: float = 0.0,
    epochs: int = EPOCHS,
    stop: ASHA | None = None,
    sums: Sums | None = None,
    group_seconds: float = 1.0,
) -> tuple[float, float, World]:
    """Return the time of a run, the least time that it can take, and its world."""
    spec = RunSpec(
        epochs=epochs,
        partitions=partitions,
        validation=0,
        trials=trials,
        copies=copies,
        stop=stop,
        metric="loss" if stop else None,
        group_seconds=group_seconds,
    )
    seconds = lengths(trials, sigma, 0.1, seed)
    more = {} if sums is None else {"sums": sums}
    world = World(spec, 0, seconds, hosts=tuple(hosts), hop=hop, **more)
    return world.run(), lower_bound(spec, sum(host.workers for host in hosts), seconds), world


def losses(seed: int) -> Sums:
    """Return losses by which trials differ, and which fall from epoch to epoch."""

    def sums(unit: Unit, partition: int) -> PackedSums:
        return {"loss": (random.Random(f"{seed}/{unit.trial}").random() / (1 + unit.epoch), 1.0)}

    return sums


def row(text: str, wanted: float, values: Sequence[float], more: str = "") -> None:
    """Print one line."""
    print(f"{text}: {mean(values):.3f}, at most {wanted:g} is wanted; largest {max(values):.3f}{more}", flush=True)


def over_bound(
    text: str, wanted: float, seeds: int, hosts: Sequence[Host], trials: int, partitions: int, **more: float
) -> None:
    results = [run(seed, hosts, trials, partitions, **more) for seed in range(seeds)]
    stored = mean(world.fetched / partitions for _, _, world in results)
    row(text, wanted, [time / bound for time, bound, _ in results], f"; rows stored {stored:.2f} times the table")


def beside(text: str, wanted: float, seeds: int, one: Callable[[int, int | None], float]) -> None:
    row(text, wanted, [one(seed, 1) / one(seed, None) for seed in range(seeds)])


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    eight = [Host()] * 8
    for partitions in (8, 32):
        for sigma in (0.0, 0.5):
            text = f"8 hosts, 16 trials, {partitions} partitions, sigma {sigma:g}, over the bound"
            over_bound(text, 1.06, seeds, eight, 16, partitions, sigma=sigma)
    over_bound(
        "hosts of 1 and 4 workers, 64 partitions, over the bound",
        1.05,
        seeds,
        [Host(1), Host(4)],
        16,
        64,
    )
    for count, partitions in ((2, 32), (3, 32), (5, 64), (8, 32), (8, 64)):
        worlds = [
            run(seed, [Host()] * count, 16, partitions, group_seconds=10.0)[2] for seed in range(seeds // 10 or 1)
        ]
        hops = [world.hops / (16 * EPOCHS * count) for world in worlds]
        row(f"{count} hosts, {partitions} partitions, hops of a trial and epoch over the hosts", 1.05, hops)

    def hopping(hop: float, seed: int, copies: int | None) -> float:
        return run(seed, eight, 16, 64, hop=hop, copies=copies)[0]

    def asha(seed: int, copies: int | None) -> float:
        rule = ASHA(3)
        return run(seed, eight, 64, 32, copies=copies, epochs=27, stop=rule, sums=losses(seed), hop=0.5)[0]

    for hop, wanted in ((0.5, 1.1), (3.0, 1.6)):
        text = f"8 hosts, 16 trials, 64 partitions, a hop takes {hop:g} partitions, beside copies=None"
        beside(text, wanted, seeds // 4 or 1, partial(hopping, hop))
    beside(
        "8 hosts, ASHA(3) over 64 trials, a hop takes half a partition, beside copies=None", 1.25, seeds // 8 or 1, asha
    )
    for partitions, count in ((8, 3), (8, 5)):
        for copies in (1, 2):
            text = f"{count} hosts, {partitions} partitions, copies={copies}, over the bound"
            over_bound(
                text,
                1.3 if copies == 1 else 1.05,
                seeds // 4 or 1,
                [Host()] * count,
                16,
                partitions,
                copies=copies,
            )
    text = "16 hosts, 8 partitions, 32 trials, over the bound"
    over_bound(text, 1.1, seeds // 4 or 1, [Host()] * 16, 32, 8)
    late = [Host(joins=float(number)) for number in range(8)]
    over_bound("8 hosts that join a second apart, 32 partitions, over the bound", 1.1, seeds // 4 or 1, late, 16, 32)
    gone = [Host(lost=50.0), *[Host()] * 7]
    over_bound("one of 8 hosts is lost after 50 s, over the bound of 8", 1.5, seeds // 4 or 1, gone, 16, 32)
    back = [Host(lost=50.0, returns=60.0), *[Host()] * 7]
    over_bound("… and comes back after 10 s", 1.1, seeds // 4 or 1, back, 16, 32)


if __name__ == "__main__":
    main()
