"""Gangs that fit into the cluster alone, and not together: each run gets all its pods, or leaves them to the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contention import SECONDS, alone, both, fit, yielded
from jobs import digests, until
from kube.client import MERGE
from kube.kubelet import missing
from kube.lab import Lab
from pods import joined

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:. workers on"),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A node with room for one pod; tests add others."""
    with Lab(tmp_path_factory.mktemp("lab"), nodes=1, kubelet={"cpu": 1}, speed=20) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    yield
    until(lambda: not lab.left() and not lab.pods(), 90)


@pytest.mark.long
def test_a_gang_that_does_not_fit_leaves_its_place_to_others(lab: Lab, tmp_path: Path) -> None:
    run = fit(tmp_path / "run", lab.engine(), members=2)
    joined(tmp_path / "run", 1)
    until(lambda: yielded(tmp_path / "run"), 60)
    until(lambda: not lab.pods(), 30)
    lab.add("node-1")
    run.wait(timeout=SECONDS)
    assert digests(run) == alone(tmp_path / "alone", 2)


@pytest.mark.long
def test_two_gangs_that_each_hold_some_places_both_end(lab: Lab, tmp_path: Path) -> None:
    """There is room for two pods of six until a run has given its own back, then for four."""
    four_places(lab)
    cordon(lab, True)
    runs = [fit(tmp_path / name, lab.engine(workers=3), members=3) for name in ("one", "other")]
    until(lambda: any(yielded(run.directory) for run in runs), 120)
    cordon(lab, False)
    for run in runs:
        run.wait(timeout=SECONDS)
    assert [digests(run) for run in runs] == [alone(tmp_path / "alone", 3)] * 2


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_gangs_of_three_on_four_places_both_end_each_time(lab: Lab, tmp_path: Path) -> None:
    """Twenty times, started together."""
    four_places(lab)
    expected = alone(tmp_path / "alone", 3)
    for number in map(str, range(20)):
        for run in both(tmp_path / number, lambda: lab.engine(workers=3)):
            assert digests(run) == expected


def four_places(lab: Lab) -> None:
    """Let the cluster have room for four pods."""
    while len(lab.kubelets) < 4:
        lab.add(f"node-{len(lab.kubelets)}")


def cordon(lab: Lab, closed: bool) -> None:
    """Let two of the nodes take no new pods, or take some again."""
    for name in ("node-2", "node-3"):
        lab.admin.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"unschedulable": closed}}, MERGE)
