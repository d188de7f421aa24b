"""Which States are awaited, and which slots are late with them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hopyard.core.runs.states.durability import CUT_OFF, Durability
from hopyard.spec import Ref

SLOTS = st.integers(0, 3)
STEPS = st.integers(0, 9)
DOINGS = st.lists(
    st.tuples(
        st.sampled_from(["made", "settled", "stored", "gone", "away", "back", "wait"]), SLOTS, STEPS, st.integers(0, 40)
    ),
    max_size=60,
)


def ref(step: int) -> Ref:
    return Ref(0, step, step)


def test_a_slot_is_late_after_the_timeout() -> None:
    it = Durability(10.0)
    it.expect(ref(1), 0, 100.0)
    it.expect(ref(2), 1, 103.0)
    assert it.earliest() == 110.0
    assert it.expired(109.9) == []
    assert it.expired(110.0) == [(0, ref(1))]
    it.gone(0)
    assert it.earliest() == 113.0
    it.settled(ref(2))
    assert it.earliest() is None and it.expired(1e9) == [] and not len(it)


def test_no_slot_is_late_while_the_store_is_away() -> None:
    it = Durability(10.0)
    it.expect(ref(1), 0, 100.0)
    it.expect(ref(2), 1, 100.0)
    it.away(0, 104.0)
    it.away(0, 108.0)  # said again
    it.expect(ref(3), 0, 150.0)
    assert it.expired(1000.0) == [(1, ref(2))]
    it.gone(1)
    assert it.earliest() is None
    it.back(0, 1004.0)
    assert it.expired(1013.9) == []
    assert it.expired(1014.0) == [(0, ref(1))]  # its time began anew
    it.settled(ref(1))
    assert it.expired(1014.0) == [(0, ref(3))]


def test_a_slot_that_alone_does_not_reach_the_store_is_late() -> None:
    it = Durability(300.0)
    it.expect(ref(1), 0, 100.0)
    it.away(0, 104.0)
    it.stored(1, 104.0)  # perhaps before
    it.stored(1, 103.0)  # certainly before: its answer came late
    it.stored(0, 105.0)  # on its way home when it said so
    it.stored(1, 110.0)
    it.away(2, 120.0)  # others come and go
    it.back(2, 130.0)
    it.stored(1, 409.0)
    assert it.earliest() is None and it.expired(1e9) == []
    it.stored(1, 410.0)
    assert it.earliest() == 410.0 and it.expired(410.0) == [(0, ref(1))]
    it.back(0, 411.0)
    assert it.expired(710.9) == [] and it.expired(711.0) == [(0, ref(1))]


def test_a_store_that_returns_slot_by_slot_makes_none_late() -> None:
    it = Durability(30.0)
    for slot in range(3):
        it.expect(ref(slot), slot, 0.0)
        it.away(slot, 1.0)
    it.back(0, 9000.0)
    it.stored(0, 9000.0)
    it.stored(0, 9100.0)  # the others try again once a minute
    assert it.expired(9100.0) == []
    it.back(1, 9101.0)
    it.stored(0, 9150.0)
    assert it.expired(9150.0) == [(1, ref(1)), (2, ref(2))]


def test_states_of_a_cut_off_slot_get_their_time() -> None:
    it = Durability(600.0)
    it.away(0, 0.0)
    it.stored(1, 5.0)
    it.expect(ref(1), 0, 700.0)
    it.stored(1, 1299.0)
    assert it.expired(1e9) == []
    it.stored(1, 1300.0)
    assert it.expired(1300.0) == [(0, ref(1))]


def test_states_of_a_lost_slot_are_not_awaited() -> None:
    it = Durability(10.0)
    it.expect(ref(1), 0, 100.0)
    it.away(0, 101.0)
    it.gone(0)
    it.expect(ref(2), 0, 102.0)  # a slot of the same number, for the store is not away
    assert it.expired(112.0) == [(0, ref(2))]


def test_whoever_stores_is_not_late() -> None:
    it = Durability(10.0)
    it.expect(ref(1), 0, 100.0)
    it.expect(ref(2), 0, 101.0)
    it.stored(0, 109.0)
    it.settled(ref(1))
    it.stored(1, 109.0)  # a slot that is not there
    assert it.earliest() == 119.0 and it.expired(118.0) == []
    it.expect(ref(3), 0, 112.0)
    assert it.expired(119.0) == [(0, ref(2))]
    it.settled(ref(2))
    assert it.earliest() == 122.0


def test_slots_late_at_one_time_need_no_order_of_their_states() -> None:
    it = Durability(10.0)
    for step in (2, 1):
        it.expect(ref(step), 0, 100.0)
    it.expect(ref(3), 1, 100.0)
    assert it.expired(110.0) == [(0, ref(2)), (1, ref(3))]


@settings(max_examples=300)
@given(DOINGS)
def test_as_plain_bookkeeping_has_it(doings: list[tuple[str, int, int, int]]) -> None:
    """A slot that reaches the store is late with its oldest State when neither that was made, nor anything stored, nor
    the store reached again, within the timeout. Or when others stored something at both ends of such a time, at least
    CUT_OFF, in which it did not reach the store and owed that State."""
    timeout = 25
    it = Durability(float(timeout))
    last = dict.fromkeys(range(4), -1000)
    owed: dict[int, dict[Ref, int]] = {slot: {} for slot in range(4)}
    away: set[int] = set()
    since: dict[int, int] = {}
    alone: dict[int, int] = {}
    cut: set[int] = set()
    now = 0
    for what, slot, step, seconds in doings:
        now += seconds
        if what == "made" and not any(ref(step) in each for each in owed.values()):
            it.expect(ref(step), slot, float(now))
            owed[slot][ref(step)] = now
        elif what == "stored":
            it.stored(slot, float(now))
            last[slot] = now
            for each in away - {slot}:
                if since[each] != now:
                    alone.setdefault(each, now)
                oldest = next(iter(owed[each]), None)
                if each in alone and oldest and now - max(alone[each], owed[each][oldest]) >= CUT_OFF:
                    cut.add(each)
        elif what == "settled":
            it.settled(ref(step))
            for refs in owed.values():
                refs.pop(ref(step), None)
        elif what == "gone":
            it.gone(slot)
            away.discard(slot)
            cut.discard(slot)
            alone.pop(slot, None)
            owed[slot], last[slot] = {}, -1000
        elif what == "away":
            it.away(slot, float(now))
            if slot not in away:
                since[slot] = now
            away.add(slot)
        elif what == "back":
            it.back(slot, float(now))
            last[slot] = now if slot in away else last[slot]
            away.discard(slot)
            cut.discard(slot)
            alone.pop(slot, None)
        due = {
            (slot, next(iter(states)))
            for slot, states in owed.items()
            if states
            and (slot in cut if slot in away else now - max(next(iter(states.values())), last[slot]) >= timeout)
        }
        first = it.earliest()
        assert (first is not None and first <= now) is bool(due)
        assert set(it.expired(float(now))) == due
        assert len(it) == sum(map(len, owed.values()))
