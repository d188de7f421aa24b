"""The cluster for tests does what a real one did: the same experiments, compared with transcripts of Kubernetes 1.36.2.

`HOPYARD_KUBE_REAL=<kubeconfig>` runs them on a real cluster instead; see `experiments.py`.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from kube.experiments import EXPERIMENTS, Lab, played, real_cluster, run
from kube.played_kubelet import PlayedKubelet
from kube.server import Cluster
from kube.transcripts import OBSERVED, Record, parsed

REAL = os.environ.get("HOPYARD_KUBE_REAL", "")
BACKOFFS = (0, 10, 20, 40)


def classes(waits: list[tuple[str, float]]) -> list[tuple[str, int]]:
    """Return the back-off to which each wait belongs; a real server counts from whole seconds."""
    return [(pod, min(BACKOFFS, key=lambda one: abs(one - seconds))) for pod, seconds in waits]


def compare(expected: Record, observed: Record) -> None:
    """Each pod went through what the transcript tells of it, in this order, and perhaps more after that."""
    assert observed.others == expected.others
    assert set(observed.pods) == set(expected.pods)
    begun = {pod: states[: len(expected.pods[pod])] for pod, states in observed.pods.items()}
    assert begun == expected.pods


def on_double(experiment: Callable[[Lab], None], folder: Path, *, hurried: bool) -> None:
    expected = parsed((OBSERVED / f"{experiment.__name__}.txt").read_text())
    with Cluster(folder) as cluster:
        cluster.add_node()
        with PlayedKubelet(cluster, played):
            lab = run(experiment, cluster.client(), "hop", cluster.set_speed if hurried else None)
    compare(expected, parsed("\n".join(lab.lines)))
    backoffs = [(f"{job}-{index}.2", seconds) for job, index, seconds in cluster.backoffs]
    assert set(classes(expected.waits)) <= set(backoffs)
    if not expected.waits:
        assert not {pod for pod, _ in backoffs} & set(expected.pods)


@pytest.mark.slow
@pytest.mark.parametrize(
    "experiment",
    [
        pytest.param(one, marks=[pytest.mark.long] if one.__name__ not in ("refused", "no_room") else [])
        for one in EXPERIMENTS
    ],
    ids=lambda one: one.__name__,
)
def test_the_double_does_what_a_real_cluster_did(experiment: Callable[[Lab], None], tmp_path: Path) -> None:
    on_double(experiment, tmp_path, hurried=True)


@pytest.mark.long
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.__name__)
def test_at_the_pace_of_a_real_cluster(experiment: Callable[[Lab], None], tmp_path: Path) -> None:
    on_double(experiment, tmp_path, hurried=False)


@pytest.mark.long
@pytest.mark.skipif(not REAL, reason="HOPYARD_KUBE_REAL names no kubeconfig of a real cluster")
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda one: one.__name__)
def test_a_real_cluster_does_what_it_did(experiment: Callable[[Lab], None]) -> None:
    expected = parsed((OBSERVED / f"{experiment.__name__}.txt").read_text())
    with real_cluster(REAL) as admin:
        observed = parsed("\n".join(run(experiment, admin, f"hopyard-{secrets.token_hex(4)}").lines))
    compare(expected, observed)
    assert classes(observed.waits) == classes(expected.waits)


def test_a_transcript_that_differs_is_seen() -> None:
    text = (OBSERVED / "exit_1.txt").read_text()
    changes = [("exit=[1]", "exit=[2]"), ("'failed': 1", "'failed': 2"), ("a-0-qg9xg", "a-1-qg9xg")]
    for old, new in changes:
        with pytest.raises(AssertionError):
            compare(parsed(text), parsed(text.replace(old, new)))
    assert classes(parsed(text).waits) == [("a-0.2", 10)]
