"""Which States are awaited, and which slots are late with them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.core.durability import Durability
from hopyard.spec import Ref

SLOTS = st.integers(0, 3)
STEPS = st.integers(0, 9)
DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["made", "settled", "gone", "away", "back", "expired"]), SLOTS, STEPS, st.integers(0, 40)
    ),
    max_size=60,
)


def ref(step: int) -> Ref:
    return Ref(0, step, step)


def test_a_state_is_late_after_the_timeout_and_then_not_awaited_any_more() -> None:
    it = Durability(10.0)
    it.made(ref(1), 0, 100.0)
    it.made(ref(2), 1, 103.0)
    assert it.earliest() == 110.0
    assert it.expired(109.9) == []
    assert it.expired(110.0) == [(0, ref(1))]
    assert it.earliest() == 113.0
    it.settled(ref(2))
    assert it.earliest() is None and it.expired(1e9) == [] and not len(it)


def test_nobody_is_late_while_the_store_is_away() -> None:
    it = Durability(10.0)
    it.made(ref(1), 0, 100.0)
    it.made(ref(2), 1, 100.0)
    it.away(0, 104.0)
    it.away(0, 108.0)  # said again
    it.made(ref(3), 0, 150.0)
    assert it.expired(1000.0) == [(1, ref(2))]
    assert it.earliest() is None
    it.back(0, 1004.0)
    assert it.expired(1009.9) == []
    assert it.expired(1010.0) == [(0, ref(1))]  # it had 6 seconds left
    assert it.expired(1013.9) == []
    assert it.expired(1014.0) == [(0, ref(3))]


def test_what_a_slot_that_is_gone_made_is_not_awaited() -> None:
    it = Durability(10.0)
    it.made(ref(1), 0, 100.0)
    it.away(0, 101.0)
    it.gone(0)
    it.made(ref(2), 0, 102.0)  # a slot of the same number, for the store is not away
    assert it.expired(112.0) == [(0, ref(2))]


@settings(max_examples=200, deadline=None)
@given(DOINGS)
def test_as_plain_bookkeeping_has_it(doings: list[tuple[str, int, int, int]]) -> None:
    """Each State runs out of seconds one by one, while its slot reaches the store."""
    timeout = 25
    it = Durability(float(timeout))
    left: dict[Ref, list[int]] = {}
    away: set[int] = set()
    now = 0
    for what, slot, step, seconds in doings:
        now += seconds
        for entry in left.values():
            entry[1] -= 0 if entry[0] in away else seconds
        if what == "made" and ref(step) not in left:
            it.made(ref(step), slot, float(now))
            left[ref(step)] = [slot, timeout]
        elif what == "settled":
            it.settled(ref(step))
            left.pop(ref(step), None)
        elif what == "gone":
            it.gone(slot)
            away.discard(slot)
            left = {each: entry for each, entry in left.items() if entry[0] != slot}
        elif what == "away":
            it.away(slot, float(now))
            away.add(slot)
        elif what == "back":
            it.back(slot, float(now))
            away.discard(slot)
        elif what == "expired":
            late = {(entry[0], each) for each, entry in left.items() if entry[1] <= 0 and entry[0] not in away}
            first = it.earliest()
            assert (first is not None and first <= now) is bool(late)
            assert set(it.expired(float(now))) == late
            left = {each: entry for each, entry in left.items() if (entry[0], each) not in late}
        assert len(it) == len(left)
