"""The quality of the schedules, so that it cannot rot; and what `predict` says of them."""

from statistics import mean

import pytest

from hopyard.errors import SpecError
from hopyard.sim import predict


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


def test_one_trial_cannot_use_two_slots():
    found = predict(2, 1, 4, 1, 10.0, noise=0.0)
    assert (found.makespan, found.bound, found.ratio, found.idle_share) == (40.0, 40.0, 1.0, 0.5)


def test_equal_seeds_give_equal_forecasts():
    assert predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4) == predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4)
    assert predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=4) != predict(3, 5, 4, 2, 1.0, sigma=0.5, seed=5)


@pytest.mark.parametrize("slots", [1, 3, 40])
def test_any_number_of_slots(slots):
    assert predict(slots, 4, 8, 1, 1.0, validation=10).ratio >= 1.0 - 1e-9


@pytest.mark.parametrize(("field", "value"), [("slots", 0), ("trials", 1.5), ("seconds", 0.0), ("epochs", 0)])
def test_what_is_refused(field, value):
    with pytest.raises(SpecError, match=f"{field} .*{value}"):
        predict(**{"slots": 1, "trials": 1, "partitions": 1, "epochs": 1, "seconds": 1.0, field: value})
