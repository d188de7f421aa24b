"""Bad worlds drawn at random: how large a run is, and what goes wrong in it how often."""

from __future__ import annotations

from random import Random

import msgspec

from faults.world import Chaos
from hopyard.spec import Gang, RunSpec, Timeouts
from hopyard.stopping import ASHA, Asked, Hyperband, Median, Patience, Rule


def drawn(seed: int, gangs: bool = False, hosts: bool = False) -> Chaos:
    """Return one of endlessly many bad worlds; with `gangs`, one in which two or three workers train together; with
    `hosts`, one in which slots are on several hosts, and partitions have homes."""
    random = Random(seed)
    partitions = random.choice([1, 2, 3, 4, 5])
    validation = random.choice([0, 0, 1, 2, 3])
    trials = random.choice([1, 2, 3, 5])
    slots = random.choice([1, 2, 3, 5])
    spec = RunSpec(
        epochs=random.choice([1, 2, 3]),
        partitions=partitions,
        validation=validation,
        trials=trials,
        seed=seed,
        metric=random.choice([None, "loss", "val_loss"]) if validation else random.choice([None, "loss"]),
        mode=random.choice(["min", "max"]),
        group=random.choice([0, 1, 2, 3]),
        group_seconds=random.choice([0.0, 1.0]),
        strikes=random.choice([2, 3, 3, 50]),
        retries=random.choice([0, 0, 1, 8]),
        timeouts=Timeouts(unit_timeout=random.choice([20.0, 600.0]), durable_timeout=random.choice([30.0, 600.0])),
        gang=Gang(random.choice([2, 2, 3])) if gangs else None,
    )
    if spec.metric is not None and random.random() < 0.6:
        spec = msgspec.structs.replace(spec, epochs=random.choice([2, 3, 5]), trials=random.choice([2, 3, 5, 8]))
        spec = msgspec.structs.replace(
            spec,
            stop=random.choice(_rules(spec)),
            batch=(0, 0, 1, 2)[seed % 4],  # cohorts of synchronous rules
            max_time=random.choice([None, None, None, 5.0]),
            goal=random.choice([None, None, None, 3e5]),
        )
    trials, slots = spec.trials or trials, max(slots, spec.members)
    copies, cut = 1, 0
    if hosts:
        slots = max(slots, random.choice([2, 3, 5, 8]))
        copies, cut = random.choice([1, 1, 2]), random.choice([0, 0, 1])
        spec = msgspec.structs.replace(spec, copies=copies)
    return Chaos(
        spec,
        random.randrange,
        slots=slots,
        hosts=random.choice([2, 3, slots]) if hosts else 1,
        arrays=random.random() < 0.4,
        sick=frozenset([t for t in range(trials) if random.random() < 0.1]),
        unfit=frozenset([t for t in range(trials) if random.random() < 0.15]),
        weights={
            "cut": cut,
            "request": random.choice([0, 2, 6]) if gangs else 0,
            "lose": random.choice([0, 1, 3]),
            "leave": random.choice([0, 1, 4]),
            "fail": random.choice([0, 1, 2]),
            "tick": random.choice([0, 1]),
            "kill": random.choice([0, 0, 1]),
            "full": random.choice([0, 0, 1]),
            "starve": random.choice([0, 0, 2]),
            "wipe": random.choice([0, 0, 4]),
            "away": random.choice([0, 0, 1]),
            "write": random.choice([1, 4, 12]),
            "hear": random.choice([4, 16, 30]),
        },
        fragile=random.choice([0, 2, 3]),
        blind=random.choice([0, 1, 2, 3]),
        restless=random.choice([0, 1, 1]),
    )


def played(seed: int, gangs: bool = False, hosts: bool = False) -> list[bytes]:
    """Return the journal of a world that held every promise to its end."""
    world = drawn(seed, gangs, hosts)
    world.start()
    for _ in range(world.choose(150)):
        if world.ended:
            break
        world.step()
    world.finish()
    return world.journal


def _rules(spec: RunSpec) -> list[Rule | None]:
    """Return rules that fit a run."""
    rules: list[Rule | None] = [None, ASHA(2), ASHA(2, sync=True), ASHA(2, promote=False), Hyperband(2, sync=True)]
    rules += [Hyperband(2), Median(min_trials=1), Median(min_trials=1, sync=True), Patience(1), Asked()]
    return [*rules, ASHA(2, min_partitions=1)] if spec.metric == "loss" else rules
