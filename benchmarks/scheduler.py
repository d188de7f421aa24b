"""How fast the machine decides, and how near its schedules come to what nobody can beat.

    python benchmarks/scheduler.py [completions, default 300000]

The rate is that of `Machine.handle` alone, on one core: 10,000 slots, 10,000 trials, 100 partitions; once on one host,
and once on a hundred, each of which is home to a partition. A completion is a `Done` (with the `Dispatch` that follows)
and the `Durable` behind it. The events are recorded first and then handled again in one go, so no clock is read in
between; the best of three counts, as other work on the machine only slows it.
"""

import gc
import sys
import time
from statistics import mean

from hopyard.core.runs.events import Done, Durable, Event
from hopyard.core.runs.machine import Machine
from hopyard.sim import Host, predict
from hopyard.sim.world import World
from hopyard.spec import RunSpec, Unit

SLOTS, TRIALS, PARTITIONS = 10_000, 10_000, 100
SPEC = RunSpec(epochs=1, partitions=PARTITIONS, validation=0, trials=TRIALS, copies=1)
HOSTS = 100


class Enough(Exception):
    pass


def record(count: int, hosts: int = 1) -> list[Event]:
    """The events of a simulated run up to so many completions."""

    def seconds(unit: Unit, partition: int) -> float:
        return 1.0 + (unit.trial * 7919 + partition * 104729) % 1000 / 1000

    world = World(SPEC, SLOTS, seconds, hosts=() if hosts == 1 else (Host(SLOTS // hosts),) * hosts)
    events: list[Event] = []
    handle = world.machine.handle
    left = count

    def watched(event: Event) -> list:
        nonlocal left
        events.append(event)
        left -= isinstance(event, Durable)
        if left < 0:
            raise Enough
        return handle(event)

    world.machine.handle = watched  # type: ignore[method-assign]
    try:
        world.run()
    except Enough:
        pass
    return events


def rate(events: list[Event]) -> float:
    """Completions a second."""
    first = next(n for n, event in enumerate(events) if isinstance(event, Done))
    machine = Machine(SPEC)
    for event in events[:first]:
        machine.handle(event)
    rest = events[first:]
    handle = machine.handle
    gc.collect()
    gc.freeze()  # the recorded events are the benchmark's, not the machine's
    start = time.perf_counter()
    for event in rest:
        handle(event)
    spent = time.perf_counter() - start
    gc.unfreeze()
    return sum(isinstance(event, Durable) for event in rest) / spent


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    for hosts in (1, HOSTS):
        events = record(count, hosts)
        rates = sorted(rate(events) for _ in range(3))
        place = "one host" if hosts == 1 else f"{hosts} hosts"
        print(f"handle, {place}: {rates[-1]:,.0f} completions/s (median {rates[1]:,.0f}; at least 50,000 are wanted)")
    for trials, sigma, wanted in ((64, 0.0, 1.015), (30, 0.0, 1.07), (64, 0.5, 1.35)):
        found = mean(predict(32, trials, 32, 3, 1.0, sigma=sigma, seed=seed).ratio for seed in range(10))
        print(f"makespan / lower bound, {trials} trials, sigma {sigma:g}: {found:.4f} (at most {wanted} is wanted)")


if __name__ == "__main__":
    main()
