"""Programs whose pods fit alone on four cores, and not together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import until
from kube.kubelet import missing
from kube.lab import Lab
from programs_together import one_leaves_its_places_to_another, two_complete

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Of two nodes with two cores each: four pods of one core."""
    with Lab(tmp_path_factory.mktemp("lab"), kubelet={"cpu": 2}, speed=20) as made:
        yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    yield
    until(lambda: not lab.left() and not lab.pods(), 90)


def test_a_program_with_too_few_pods_leaves_them_to_another(
    lab: Lab, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each pod takes a node."""
    one_leaves_its_places_to_another(lambda workers: lab.engine(workers=workers, devices=None, cpu=2), tmp_path, 2)
    warnings = [record.getMessage() for record in caplog.records if record.name == "hopyard.driver.programs.loop"]
    assert len(warnings) == 1 and "need 2 processes, and there are places for 1" in warnings[0]
    assert "deleted" not in caplog.text  # as if others had done it


@pytest.mark.long
def test_of_two_programs_that_do_not_fit_together_both_complete(lab: Lab, tmp_path: Path) -> None:
    for number in range(20):
        seconds, turns = two_complete(lambda workers: lab.engine(workers=workers, devices=None), tmp_path / str(number))
        print(f"{seconds:.1f} s, places given back {turns} times")
