"""Bad worlds: whatever goes wrong, in whatever order, every promise of the machine holds after every step.

What goes wrong and what must hold is in `faults.world`. To look at many more worlds than a test run has time
for: `HOPYARD_WORLDS=5000 pytest tests/core/runs/test_worlds.py`.
"""

import functools
import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from faults.promises import Broken
from faults.world import Chaos
from faults.worlds import drawn, played
from hopyard.core.runs.codec import decode
from hopyard.core.runs.events import Placed
from hopyard.spec import RunSpec

WORLDS = int(os.environ.get("HOPYARD_WORLDS", "150"))
pytestmark = pytest.mark.xdist_group("worlds")  # worlds are made once for all tests of a process


@functools.cache
def live(seed: int, gangs: bool = False, hosts: bool = False) -> list[bytes]:
    """Return the journal of a world that held every promise to its end."""
    return live_anew(seed, gangs, hosts)


def live_anew(seed: int, gangs: bool = False, hosts: bool = False) -> list[bytes]:
    """As `live`; it does not remember."""
    return played(seed, gangs, hosts)


@pytest.mark.parametrize("block", [0, 1, 2, *(pytest.param(block, marks=pytest.mark.long) for block in range(3, 10))])
def test_every_promise_holds_in_many_bad_worlds(block: int) -> None:
    for seed in range(block * WORLDS // 10, (block + 1) * WORLDS // 10):
        try:
            live(seed)
        except Exception as error:
            raise AssertionError(f"world {seed}: {error}") from error


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 10))])
def test_every_promise_holds_where_workers_train_in_gangs(block: int) -> None:
    for seed in range(block * WORLDS // 5, (block + 1) * WORLDS // 5):
        try:
            live(seed, gangs=True)
        except Exception as error:
            raise AssertionError(f"world {seed}: {error}") from error


@pytest.mark.parametrize("gangs", [False, True])
@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 5))])
def test_every_promise_holds_where_partitions_have_homes(block: int, gangs: bool) -> None:
    for seed in range(block * WORLDS // 10, (block + 1) * WORLDS // 10):
        try:
            live(seed, gangs, hosts=True)
        except Exception as error:
            raise AssertionError(f"world {seed}: {error}") from error


def test_partitions_change_their_homes_in_the_bad_worlds() -> None:
    changed = 0
    for seed in range(WORLDS // 5):
        homes: dict[tuple[str, int], str] = {}
        for line in map(decode, live(seed, hosts=True)):
            if isinstance(line, Placed):
                for partition in range(line.partitions.first, line.partitions.end):
                    key = line.partitions.kind, partition
                    changed += homes.setdefault(key, line.host) != line.host
    assert changed > 20


def test_workers_are_given_back_in_the_bad_worlds() -> None:
    lines = [line for seed in range(WORLDS // 5) for line in live(seed, gangs=True)]
    assert sum(b'"type":"Yielded"' in line for line in lines) > 2


def test_equal_seeds_give_equal_journals() -> None:
    for seed in range(8):
        assert live_anew(seed) == live(seed)


@pytest.mark.slow
def test_the_worlds_are_bad_enough() -> None:
    said = b"".join(line for seed in range(90) for line in live(seed))
    for fact in ("Lost", "Left", "Failed", "Tick", "Resumed", "Checked", "Deferred", "StoreAway", "Extended"):
        assert said.count(b'"type":"%s"' % fact.encode()) > 5, fact
    for fact in ("Paused", "Granted", "Stopped", "Closed"):
        assert said.count(b'"type":"%s"' % fact.encode()) > 5, fact
    for fact in ("Forgotten", "Retried"):
        assert said.count(b'"type":"%s"' % fact.encode()) > 2, fact
    for word in (
        b'"gone":[[',
        b',"fold",',
        b',"validate",',
        b'"fault":"user"',
        b'"fault":"system"',
        b'"fault":"memory"',
        b'"missing":[',
        b'"status":"partial"',
    ):
        assert word in said, word


def test_a_broken_promise_is_seen() -> None:
    world = drawn(3)
    world.start()
    while not world.machine.leases:
        world.step()
    slot, _ = next(iter(world.machine.leases.standing().values()))
    world.machine.slots[slot].busy = 0
    with pytest.raises(Broken, match="lease"):
        world.look()


class Worlds(RuleBasedStateMachine):
    """The same, with steps that hypothesis chooses and shrinks."""

    @initialize(
        random=st.randoms(use_true_random=False),
        epochs=st.integers(1, 3),
        partitions=st.integers(1, 4),
        validation=st.integers(0, 3),
        trials=st.integers(1, 4),
        group=st.integers(0, 3),
        arrays=st.booleans(),
    )
    def begin(self, random, epochs, partitions, validation, trials, group, arrays) -> None:
        spec = RunSpec(
            epochs=epochs, partitions=partitions, validation=validation, trials=trials, group=group, metric="loss"
        )
        self.world = Chaos(spec, random.randrange, slots=3, arrays=arrays, sick=frozenset([1]), restless=2)
        self.world.start()
        self.world.join()

    def do(self, name: str) -> None:
        if not self.world.ended:
            getattr(self.world, name)()
        if not self.world.killed:
            self.world.look()

    @precondition(lambda self: not self.world.killed)
    @rule(
        name=st.sampled_from(
            [
                *("join", "work", "work", "hear", "hear", "write", "lose", "leave", "fail", "tick", "kill", "full"),
                *("starve", "wipe", "away"),
            ]
        )
    )
    def happens(self, name: str) -> None:
        self.do(name)

    @precondition(lambda self: self.world.killed)
    @rule()
    def resumed(self) -> None:
        self.do("resume")

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.finish()


TestWorlds = pytest.mark.slow(Worlds.TestCase)
TestWorlds.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


class MoreWorlds(Worlds):
    """The same, more often."""


TestMoreWorlds = pytest.mark.long(MoreWorlds.TestCase)
TestMoreWorlds.settings = settings(TestWorlds.settings, max_examples=75)
