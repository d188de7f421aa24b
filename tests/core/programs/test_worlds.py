"""Random programs: their journals fold to the state of the machine that wrote them, and each comes to its end."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from hopyard.core.facts import Tick
from hopyard.core.programs.events import Over, decode, encode
from program_worlds import World
from snapshots import program_fold, program_snapshot


def test_no_decision_precedes_a_timeout() -> None:
    for seed in range(100):
        world = World(seed, shared=seed % 2 == 0)
        for _ in world.run():
            due = world.machine.due(world.now)
            end = world.now + 10_000.0 if due is None else due
            for at in (world.now + (end - world.now) / 2, end - 1e-3):
                if at > world.now:
                    assert not world.machine.handle(Tick(at=at)), f"world {seed}: due at {due}, now {at}"


def test_journals_fold_to_the_machine_that_wrote_them() -> None:
    seen: Counter[str] = Counter()
    for seed in range(300):
        world = World(seed, shared=seed % 2 == 0)
        for number, _ in enumerate(world.run()):
            assert number < 5000, f"world {seed} does not end"
            if number % 7 == 0:
                assert program_snapshot(program_fold(world.lines)) == program_snapshot(world.machine), (
                    f"world {seed}, step {number}"
                )
        told = program_snapshot(program_fold(decode(encode(line)) for line in world.lines))
        assert repr(told) == repr(program_snapshot(world.machine))  # NaN is not equal to itself
        assert isinstance(world.lines[-1], Over)
        seen += Counter(type(line).__name__ for line in world.lines)
        seen[f"{world.machine.status}"] += 1
    assert all(
        seen[name] > 4
        for name in ("Yielded", "AskedAgain", "Restarting", "Overdue", "Lost", "Stop", "Closing", "completed", "failed")
    ), seen


@pytest.mark.parametrize("seed", range(20))
def test_no_more_restarts_than_allowed(seed: int) -> None:
    world = World(1000 + seed)
    for _ in world.run():
        pass
    spent = [line.spent for line in world.lines if hasattr(line, "spent")]
    assert all(later - before in (0, 1) for before, later in pairwise(spent))
    assert max(spent, default=0) <= world.machine.spec.max_restarts
