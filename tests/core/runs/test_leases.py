"""Whose answers count, and until when."""

from hopyard.core.runs.events import Dispatch
from hopyard.core.runs.leases import Leases
from hopyard.spec import Unit


def line(slot, lease):
    return Dispatch(at=0.0, slot=slot, unit=Unit(lease, 0, "train", 0, (0,), None))


def test_an_answer_counts_once_and_from_its_slot_only():
    leases = Leases()
    leases.grant(line(1, 7), 10.0)
    assert leases.last == 7 and leases.stands(7)
    assert leases.accept(2, 7) is None
    assert leases.accept(1, 7) is not None
    assert leases.accept(1, 7) is None
    assert leases.accept(1, 99) is None


def test_a_revoked_lease_does_not_count_but_its_slot_owes_an_answer():
    leases = Leases()
    leases.grant(line(1, 7), 10.0)
    assert leases.revoke(7) is not None and leases.revoke(7) is None
    assert leases.accept(1, 7) is None
    assert leases.earliest() == 10.0 and leases.expired(10.0) == [1]
    leases.answered(1)
    assert leases.earliest() is None and leases.expired(1e9) == []


def test_a_unit_without_a_deadline_is_never_late():
    leases = Leases()
    leases.grant(line(1, 1), 10.0)
    assert leases.accept(1, 1) is not None
    leases.answered(1)
    leases.grant(line(1, 2))
    assert leases.earliest() is None and leases.expired(1e9) == [] and leases.stands(2)


def test_the_earliest_deadline_follows_the_slots():
    leases = Leases()
    leases.grant(line(1, 1), 600.0)
    leases.grant(line(2, 2), 50.0)
    assert leases.earliest() == 50.0
    leases.answered(1)
    leases.grant(line(1, 3), 30.0)  # sooner than the one before
    assert leases.earliest() == 30.0
    leases.answered(1)
    leases.grant(line(1, 4), 70.0)  # later
    assert leases.earliest() == 50.0
    leases.answered(2)
    assert leases.earliest() == 70.0
    leases.grant(line(2, 5), 65.0)
    assert (leases.expired(64.0), leases.expired(65.0), leases.expired(70.0)) == ([], [2], [2, 1])
    leases.clear()
    assert leases.earliest() is None and leases.last == 5 and len(leases) == 0
