"""The quality of the schedules, so that it cannot rot; and what `predict` says of them."""

from statistics import mean

import pytest

from hopyard.errors import SpecError
from hopyard.sim import Host, predict


@pytest.mark.parametrize(("trials", "sigma", "most"), [(64, 0.0, 1.02), (30, 0.0, 1.08), (64, 0.5, 1.3)])
def test_schedules_come_near_to_what_nobody_can_beat(trials, sigma, most):
    found = [predict(32, trials, 32, 3, 1.0, sigma=sigma, group_seconds=0.0, seed=seed) for seed in range(2)]
    assert all(one.ratio >= 1.0 - 1e-9 for one in found)
    assert mean([one.ratio for one in found]) <= most


def test_two_slots_end_three_equal_trials_together():
    assert predict(2, 3, 32, 3, 1.0).ratio < 1.05


def test_validation_is_work_too():
    without = predict(4, 8, 4, 2, 1.0, noise=0.0)
    beside = predict(4, 8, 4, 2, 1.0, noise=0.0, validation=4, check=0.5)
    assert without.units == 8 * 4 * 2 and beside.units == 2 * without.units
    assert beside.bound == pytest.approx(1.5 * without.bound)
    assert beside.ratio < 1.15


def test_a_single_trial_cannot_use_two_slots():
    found = predict(2, 1, 4, 1, 10.0, noise=0.0)
    assert (found.makespan, found.bound, found.ratio, found.idle_share) == (40.0, 40.0, 1.0, 0.5)


def test_equal_seeds_give_equal_forecasts():
    assert predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4) == predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4)
    assert predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4) != predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=5)


@pytest.mark.parametrize("slots", [1, 3, 40])
def test_any_number_of_slots(slots):
    assert predict(slots, 4, 8, 1, 1.0, validation=10).ratio >= 1.0 - 1e-9


@pytest.mark.parametrize(("partitions", "sigma", "most"), [(8, 0.0, 1.04), (8, 0.5, 1.12), (32, 0.5, 1.06)])
def test_homes_keep_all_hosts_busy_with_one_copy_of_the_table(partitions, sigma, most):
    found = [predict(8, 16, partitions, 3, 1.0, sigma=sigma, seed=seed, hosts=[Host()] * 8) for seed in range(3)]
    assert mean([one.ratio for one in found]) <= most
    assert [one.rows_stored for one in found] == [1.0] * 3
    anywhere = predict(8, 16, partitions, 3, 1.0, hosts=[Host()] * 8, copies=None)
    assert anywhere.rows_stored == 8.0 and anywhere.hops < found[0].hops


def test_hosts_work_in_proportion_to_their_workers():
    found = predict(5, 16, 64, 3, 1.0, hosts=[Host(1), Host(4)])
    assert found.ratio <= 1.05 and found.rows_stored == 1.0


@pytest.mark.parametrize("hosts", [2, 4, 8])
def test_a_trial_hops_once_for_each_host_and_epoch(hosts):
    found = predict(hosts, 16, 32, 3, 1.0, hosts=[Host()] * hosts, group_seconds=10.0)
    assert found.hops <= 1.05 * hosts * 16 * 3


def test_a_second_copy_keeps_hosts_busy_where_partitions_do_not_divide():
    one, two = (predict(3, 16, 8, 3, 1.0, hosts=[Host()] * 3, copies=copies) for copies in (1, 2))
    assert one.ratio == pytest.approx(1.13, abs=0.02) and two.ratio <= 1.02
    assert (one.rows_stored, two.rows_stored) == (1.0, 2.0)


def test_hosts_beyond_the_partitions_do_not_idle():
    assert predict(16, 32, 8, 3, 1.0, hosts=[Host()] * 16).idle_share < 0.1


def test_hosts_that_come_late_fetch_nothing_twice():
    hosts = [Host(joins=float(number)) for number in range(8)]
    assert predict(8, 16, 32, 3, 1.0, hosts=hosts).rows_stored == 1.0


def test_the_rows_of_a_lost_host_are_fetched_once_more():
    stays, comes_back = Host(lost=50.0), Host(lost=50.0, returns=60.0)
    lost = predict(8, 16, 32, 3, 1.0, hosts=[stays, *[Host()] * 7])
    back = predict(8, 16, 32, 3, 1.0, hosts=[comes_back, *[Host()] * 7])
    assert 1.0 < lost.rows_stored <= 1.25 and back.rows_stored == 1.0
    assert back.ratio < 1.15 < lost.ratio < 1.5


def test_hops_and_fetches_take_time():
    hosts = [Host()] * 4
    free = predict(4, 8, 8, 2, 1.0, noise=0.0, hosts=hosts)
    hops = predict(4, 8, 8, 2, 1.0, noise=0.0, hosts=hosts, hop=0.5)
    fetches = predict(4, 8, 8, 2, 1.0, noise=0.0, hosts=hosts, fetch=2.0)
    assert free.makespan < fetches.makespan <= free.makespan + 4.0 and free.makespan < hops.makespan


def test_slots_are_the_workers_of_the_hosts():
    with pytest.raises(SpecError, match="slots must be 5, got 4"):
        predict(4, 1, 1, 1, 1.0, hosts=[Host(1), Host(4)])


LARGE = [("sigma", 1000.0), ("hop", float("inf"))]


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots", 0), ("trials", 1.5), ("seconds", 0.0), ("epochs", 0), *LARGE],
)
def test_refusals_of_predict(field, value):
    with pytest.raises(SpecError, match=f"{field} .*{value}"):
        predict(**{"slots": 1, "trials": 1, "partitions": 1, "epochs": 1, "seconds": 1.0, field: value})
