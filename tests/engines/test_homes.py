"""Partitions that have homes, on hosts that share nothing but the network: rows come to a host once, and stay; the
digests are those of `Local`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from gang_jobs import network
from homes import moved, stored
from hopyard.core.runs.events import Done, Joined
from hosts import FIVE, Hosts
from jobs import CONFIGS, dataset, digests, journal, losses, select, until

pytestmark = pytest.mark.slow

MANY = [*CONFIGS, *({"lr": 0.002 * n} for n in range(1, 5))]
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    shared = tmp_path_factory.mktemp("shared")
    made = Hosts(tmp_path_factory.mktemp("hosts"), FIVE, shared=[shared])
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_left(hosts: Hosts) -> Iterator[None]:
    yield
    assert hosts.nothing_left(), {name: hosts.hopyard(name) for name in hosts.names}


@pytest.mark.parametrize(
    ("count", "copies"),
    [(3, 1), *(pytest.param(count, copies, marks=LONG) for count, copies in ((2, 1), (5, 1), (3, 2), (5, 2)))],
)
def test_rows_come_to_their_homes_once(hosts: Hosts, tmp_path: Path, count: int, copies: int) -> None:
    """In the first run. With one home each, nothing moves in a second one over the same data, nor in one that goes on;
    with two, what second homes lack."""
    data = dataset(partitions=4 * count, rows=4000 + 10 * count + copies)  # a table that no other test has
    engine = hy.Hosts([f"{name}:1" for name in FIVE[:count]], ssh=hosts.ssh)
    local = select(tmp_path / "local", configs=MANY, data=data, engine=hy.Local(2, devices=None))
    how: dict[str, Any] = {"configs": MANY, "data": data, "engine": engine, "parallel": hy.Hopper(copies=copies)}
    assert digests(select(tmp_path / "run", **how)) == digests(local)
    table = data.prepare()
    first = hosts.fetched(table)
    assert 1.0 <= stored(table, first.values()) <= copies + 0.1
    assert moved(table, tmp_path / "run") == pytest.approx(stored(table, first.values()))
    for name, host in hy.load(tmp_path / "run").summary()["hosts"].items():
        assert host["rows_bytes"] == pytest.approx(stored(table, [first[name]]) * table.bytes) and first[name], name
    assert digests(select(tmp_path / "again", **how)) == digests(local)
    longer = hy.resume(tmp_path / "run", epochs=3)
    rows = stored(table, hosts.fetched(table).values())
    assert rows <= copies + (0.1 if copies == 1 else 0.3), "another run has moved rows that were there"
    assert moved(table, tmp_path / "run") + moved(table, tmp_path / "again") == pytest.approx(rows)
    assert digests(longer) == digests(hy.resume(tmp_path / "local", epochs=3))


@LONG
def test_a_host_is_home_in_proportion_to_its_workers(hosts: Hosts, tmp_path: Path) -> None:
    """And they share what it fetches."""
    data = dataset(partitions=12, rows=4002)
    engine = hy.Hosts(["alpha:2", "beta:1"], ssh=hosts.ssh)
    run = select(tmp_path / "run", configs=MANY, data=data, engine=engine, parallel=hy.Hopper(copies=1))
    table = data.prepare()
    rows = {name: stored(table, [names]) for name, names in hosts.fetched(table).items() if names}
    assert rows.keys() == {"alpha", "beta"} and 0.6 < rows["alpha"] / sum(rows.values()) < 0.75
    assert 1.0 <= sum(rows.values()) <= 1.1 and moved(table, tmp_path / "run") == pytest.approx(sum(rows.values()))
    assert digests(run) == digests(select(tmp_path / "inline", configs=MANY, data=data))


@LONG
def test_a_gang_over_several_hosts_has_no_homes(hosts: Hosts, tmp_path: Path) -> None:
    """Each of its hosts fetches what it visits, and a second run moves nothing."""
    data = dataset(partitions=4, rows=4003)
    how: dict[str, Any] = {"configs": CONFIGS[:2], "data": data, "recipe": network}
    how["parallel"] = hy.Hopper(gang=2, copies=1)
    engine = hy.Hosts(["alpha:1", "beta:1"], ssh=hosts.ssh)
    expected = digests(select(tmp_path / "local", engine=hy.Local(2, devices=None), **how))
    for name in ("run", "again"):
        assert digests(select(tmp_path / name, engine=engine, **how)) == expected
    held = hosts.fetched(table := data.prepare())
    both = moved(table, tmp_path / "run") + moved(table, tmp_path / "again")
    assert both == pytest.approx(stored(table, held.values()))
    assert moved(table, tmp_path / "run") >= 2 * sum(part.bytes for part in table.train) / table.bytes
    assert all({f"train-{n:05d}" for n in range(4)} <= held[name] for name in ("alpha", "beta"))


@pytest.mark.long
def test_hosts_that_join_one_after_another_fetch_nothing_twice(hosts: Hosts, tmp_path: Path) -> None:
    """Each comes when the one before has finished a unit."""
    names, data = FIVE[:3], dataset(partitions=12, rows=4001)
    path = hosts.shared / "pool.ticket"
    hopyard = [sys.executable, "-P", "-m", "hopyard"]
    ticket = [*hopyard, "ticket", str(path), "--address", hosts.network.own, "--port", "7710"]
    subprocess.run(ticket, check=True, stdout=subprocess.DEVNULL)
    pool = []
    try:
        run = select(
            tmp_path / "run",
            configs=MANY,
            data=data,
            engine=hy.Hosts(join=path, workers=3),
            parallel=hy.Hopper(copies=1),
            wait=False,
        )
        for name in names:
            pool.append(
                hosts.start(name, "env", "-u", "XDG_CACHE_HOME", *hopyard, "agent", "--join", str(path), "--slots", "1")
            )
            until(partial(answered, tmp_path / "run", name))
        run.wait(timeout=100)
    finally:
        for process in pool:
            process.kill()
            process.wait()
    table = data.prepare()
    assert 1.0 <= stored(table, hosts.fetched(table).values()) <= 1.1
    assert moved(table, tmp_path / "run") == pytest.approx(stored(table, hosts.fetched(table).values()))
    assert not losses(tmp_path / "run")
    assert digests(run) == digests(select(tmp_path / "inline", configs=MANY, data=data))


def answered(directory: Path, name: str) -> bool:
    """Whether a worker of this host has finished a unit."""
    try:
        lines = journal(directory)
    except (FileNotFoundError, hy.HopyardError):
        return False
    host = {line.slot: line.host for line in lines if isinstance(line, Joined)}
    return name in {host[line.slot] for line in lines if isinstance(line, Done)}
