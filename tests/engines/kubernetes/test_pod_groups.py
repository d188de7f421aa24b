"""Programs on Kubernetes 1.37, whose scheduler places all pods of a PodGroup or none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hopyard.engines.kubernetes import manifests
from jobs import until
from kube.client import MERGE
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab, role
from pods import left, requested
from programs_together import two_complete

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]
ROLE = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/hopyard"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Of two nodes with two cores each: four pods of one core."""
    with Lab(tmp_path_factory.mktemp("lab"), kubelet={"cpu": 2}, speed=20, version="1.37.0") as made:
        yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    lab.cluster.requests.clear()
    yield
    until(lambda: not left(lab) and not lab.objects("podgroups"), 90)


def engine(lab: Lab, workers: int, **more: Any) -> Any:
    return lab.engine(workers=workers, devices=None, **more)


def test_the_scheduler_places_all_pods_of_a_program_or_none(lab: Lab, tmp_path: Path) -> None:
    """Two programs of three on four places: none holds places that are too few, so none gives any back."""
    _, turns = two_complete(lambda workers: engine(lab, workers), tmp_path)
    assert turns == 0
    assert len(requested(lab, "POST .*/podgroups")) == 2


@pytest.mark.long
def test_a_driver_that_may_make_no_pod_groups_gives_places_back(lab: Lab, tmp_path: Path) -> None:
    rules = [rule for rule in role()["rules"] if "podgroups" not in rule["resources"]]
    lab.admin.call("PATCH", ROLE, {"rules": rules}, MERGE)
    try:
        two_complete(lambda workers: engine(lab, workers), tmp_path)
    finally:
        lab.admin.call("PATCH", ROLE, {"rules": role()["rules"]}, MERGE)
    assert not requested(lab, "POST .*/podgroups")


def test_a_pod_group_goes_with_the_secret() -> None:
    secret = {"metadata": {"name": "hopyard-1", "uid": "u"}}
    group = manifests.pod_group("hopyard-1", "hopyard-1-4", 3, secret)
    owner = {"apiVersion": "v1", "kind": "Secret", **secret["metadata"]}
    assert group["metadata"]["ownerReferences"] == [owner]
    assert group["spec"] == {"schedulingPolicy": {"gang": {"minCount": 3}}}
