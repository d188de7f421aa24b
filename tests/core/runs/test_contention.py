"""Runs whose gangs fit alone, and not together, on places that they share: all of them end."""

import pytest

from tenants import Cluster, Tenant

ALONE = 60.0
"""Most seconds that one of these runs takes when it is alone: 8 units of a gang and 4 validations, about 5 s each."""


def contend(seed, *, places=4, runs=2, **more):
    cluster = Cluster(places, seed)
    tenants = [Tenant(cluster, f"{seed}/{name}", **more) for name in range(runs)]
    cluster.run()
    return tenants


def test_a_run_that_is_alone_gives_nothing_back():
    for seed in range(20):
        (tenant,) = contend(seed, places=3, runs=1)
        assert tenant.machine.status == "completed" and tenant.ended_at < ALONE and not tenant.turns


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, 10))])
def test_two_runs_that_do_not_fit_together_both_end(block):
    turns = []
    for seed in range(100 * block, 100 * (block + 1)):
        tenants = contend(seed)
        assert [tenant.machine.status for tenant in tenants] == ["completed", "completed"], seed
        assert max(tenant.ended_at for tenant in tenants) < 2 * ALONE + 60.0, seed
        turns.append(sum(tenant.turns for tenant in tenants))
    assert sum(map(bool, turns)) > 90, "else they had no need to give anything back"


def test_without_it_they_wait_for_ever(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hopyard.core.runs.holding.hold_seconds", lambda key, turn: 1e9)
    stuck = 0
    for seed in range(20):
        tenants = contend(seed)
        stuck += all(tenant.machine.status == "running" for tenant in tenants)
    assert stuck > 2


def test_many_runs_end():
    for seed in range(10):
        tenants = contend(seed, places=5, runs=5)
        assert {tenant.machine.status for tenant in tenants} == {"completed"}, seed
        assert max(tenant.ended_at for tenant in tenants) < 5 * ALONE + 300.0, seed


def test_a_run_of_two_gangs_and_a_run_of_one_end():
    for seed in range(15):
        cluster = Cluster(6, seed)
        tenants = [
            Tenant(cluster, f"{seed}/wide", workers=6, trials=4),
            Tenant(cluster, f"{seed}/narrow", begins=cluster.random.uniform(0, 30)),
        ]
        cluster.run()
        assert {tenant.machine.status for tenant in tenants} == {"completed"}, seed
