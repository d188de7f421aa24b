"""Run directories on real HDFS and S3: drivers that are killed with their disks, and drivers that race."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopyard as hy
from jobs import digests, select
from stores.servers import URLS, client, s3
from url_drivers import INLINE, final, is_overtaken, lives_through_lost_disks, lose_disk

pytestmark = pytest.mark.slow
LONG = pytest.mark.long
STORES = ["s3", *(pytest.param(kind, marks=LONG) for kind in ("moto", "hdfs", "webhdfs"))]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return URLS[request.param](request, tmp_path)


def test_a_run_goes_on_from_a_url(url: str) -> None:
    run = select(url)
    lose_disk(url)
    assert final(url) == digests(run)
    more = hy.resume(url, epochs=3, trust=True)
    lose_disk(url)
    assert final(url) == digests(more)


@LONG
@pytest.mark.parametrize("kills", [5, pytest.param(30, marks=pytest.mark.campaign)])
def test_a_driver_that_loses_its_disk_goes_on_to_the_same_bits(tmp_path: Path, url: str, kills: int) -> None:
    lives_through_lost_disks(tmp_path, url, kills, epochs=4 if kills < 10 else 16)


@LONG
@pytest.mark.parametrize(
    "race", [*range(5), *(pytest.param(race, marks=pytest.mark.campaign) for race in range(5, 100))]
)
def test_a_driver_that_was_stopped_ends_when_another_one_has_gone_on(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, race: int
) -> None:
    """All but the first few without processes of workers, which decide nothing here."""
    is_overtaken(tmp_path, url, monkeypatch, race, *([INLINE] if race > 4 else []))


def test_a_store_that_lets_two_writers_win_is_refused(tmp_path: Path) -> None:
    with s3(tmp_path, "rclone") as server, client(server):
        with pytest.raises(hy.SpecError, match="directory"):
            select(f"{server.url}/run")
        assert digests(select(tmp_path / "run", store=f"{server.url}/states")) == digests(select(tmp_path / "here"))
