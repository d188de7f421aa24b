"""A standalone master with two workers that share neither memory nor the run's directory with each other or the driver:
mount namespaces play the hosts. States go from peer to peer, and through the driver to its disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import hopyard as hy
from clusters import Cluster, drive
from homes import fetched, moved, stored
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Done, Failed, Joined
from hopyard.data.manifest import read_manifest
from hosts import FIVE, NAMES, may_unshare
from jobs import CONFIGS, agents, digests, gone, journal, select

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("clusters")]  # one cluster at a time
pytest.importorskip("pyspark")


MANY = [*CONFIGS[:3], *({"lr": 0.001 * n} for n in range(1, 8))]
"""So many trials that however slow one host is, the other has States that it needs."""


@pytest.fixture(scope="module")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the driver works; the workers see an empty folder there."""
    return tmp_path_factory.mktemp("driver")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, hidden: Path) -> Iterator[Cluster]:
    may_unshare("--mount", "--uts")
    made = Cluster(tmp_path_factory.mktemp("cluster"), hidden)
    yield made
    made.close()


@pytest.mark.long
def test_hosts_that_share_nothing(cluster: Cluster, hidden: Path, tmp_path: Path) -> None:
    """In one session: plain, encrypted, and with an executor that is killed."""
    met = {name: tmp_path / name for name in ("plain", "encrypted")}
    for folder in met.values():
        folder.mkdir()
    meeting = {name: [{**config, "at": 3, "do": f"meet {met[name]}"} for config in MANY] for name in met}
    killed = [dict(config) for config in CONFIGS[:3]]
    killed[1] |= {"at": 15, "do": "executor", "once": str(tmp_path / "once")}
    err = drive(
        cluster,
        hidden,
        f"""
engine = hy.Spark(spark, workers=2)
select(Path("plain"), troubled, {meeting["plain"]!r}, epochs=6, engine=engine)
select(Path("encrypted"), troubled, {meeting["encrypted"]!r}, epochs=6, engine=engine, encrypt=True)
select(Path("killed"), troubled, {killed!r}, epochs=6, engine=engine)
""",
    )
    assert "their States go through this process" in err
    many = digests(select(tmp_path / "many", configs=MANY, epochs=6))
    for name, reference in {"plain": many, "encrypted": many, "killed": many[:3]}.items():
        run = hy.load(hidden / name)
        assert digests(run) == reference, name
        assert gone(agents(hidden / name))
    for name in met:
        lines = journal(hidden / name)
        assert {line.host for line in lines if isinstance(line, Joined)} == {"alpha", "beta"}
        assert not [line for line in lines if isinstance(line, (Failed, Lost))]
    assert len([line for line in journal(hidden / "killed") if isinstance(line, Lost)]) == 1
    lines = [line for name in ("plain", "encrypted", "killed") for line in journal(hidden / name)]
    assert [line for line in lines if isinstance(line, Done) and line.hop_bytes], "nothing hopped"
    assert run.best.model() is not None


@pytest.mark.long
def test_dynamic_allocation(cluster: Cluster, hidden: Path, tmp_path: Path) -> None:
    """Nobody is there at first, executors come for the supervisors; one is killed, and others come."""
    (folder := hidden / "dynamic").mkdir()
    settings = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.executorIdleTimeout": "1s",
    }
    extra = {"at": 15, "do": "executor", "once": str(tmp_path / "once")}
    configs = [{**config, **extra} if n == 1 else config for n, config in enumerate(CONFIGS)]
    drive(cluster, folder, f"select(Path('run'), troubled, {configs!r}, engine=hy.Spark(spark, workers=2))", **settings)
    assert len([line for line in journal(folder / "run") if isinstance(line, Lost)]) == 1
    assert digests(hy.load(folder / "run")) == digests(select(tmp_path / "inline"))


@pytest.mark.long
@pytest.mark.parametrize("copies", [1, 2])
def test_rows_come_to_their_homes_once(cluster: Cluster, hidden: Path, tmp_path: Path, copies: int) -> None:
    """From the driver, and (`path=`) from storage that all share. A second run over the same data moves what
    copies lack, if any do."""
    check_homes(cluster, hidden, tmp_path, NAMES, copies)


@pytest.mark.long
@pytest.mark.parametrize(("count", "copies"), [(3, 1), (5, 1), (5, 2)])
def test_rows_come_to_their_homes_once_on_more_hosts(hidden: Path, tmp_path: Path, count: int, copies: int) -> None:
    may_unshare("--mount", "--uts")
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster", hidden, names=FIVE[:count])
    try:
        check_homes(cluster, hidden, tmp_path, FIVE[:count], copies)
    finally:
        cluster.close()


def check_homes(cluster: Cluster, hidden: Path, tmp_path: Path, names: Sequence[str], copies: int) -> None:
    (folder := hidden / f"homes {len(names)} {copies}").mkdir()
    rows, partitions = 4000 + 10 * len(names) + copies, 4 * len(names)
    drive(
        cluster,
        folder,
        f"""
os.environ["XDG_CACHE_HOME"] = str(Path("cache").absolute())  # where the workers see nothing
x, y = table({rows})
frame = spark.createDataFrame([(*map(float, row), int(label)) for row, label in zip(x, y)], [*"abcdef", "y"])
shared = hy.Dataset.spark(
    frame, features=[*"abcdef"], label="y", validation=0.25, partitions={partitions}, path={str(tmp_path / "shared")!r}
)
how = dict(configs={MANY!r}, engine=hy.Spark(spark, workers={len(names)}), parallel=hy.Hopper(copies={copies}))
for kind, data in (("driver", dataset(partitions={partitions}, rows={rows})), ("shared", shared)):
    for name in ("run", "again"):
        select(Path(f"{{kind}} {{name}}"), data=data, **how)
    select(Path(f"{{kind}} local"), configs={MANY!r}, data=data)
""",
    )
    for kind in ("driver", "shared"):
        run, again, local = (folder / f"{kind} {name}" for name in ("run", "again", "local"))
        table = read_manifest((run / "manifest.json").read_bytes())
        here = [fetched(cluster.cache(name), table) for name in names]
        assert moved(table, run) <= copies + 0.1, kind
        assert len([rows for rows in here if rows]) > 1, kind  # the last executor may come too late for any
        # a second home that lacks rows may become another host's before its own has joined
        assert 1.0 <= stored(table, here) <= copies + (0.1 if copies == 1 else 0.3), kind
        assert moved(table, run) + moved(table, again) == pytest.approx(stored(table, here)), kind
        assert digests(hy.load(run)) == digests(hy.load(again)) == digests(hy.load(local)), kind
