"""Runs in pods that share nothing, under an API server that is held to a real one: the digests of `Inline` whatever
breaks, and nothing left."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import programs
from gang_jobs import network
from homes import fetched, moved, stored
from hopyard.core.runs.events import Done, Durable, Joined
from jobs import dataset, digests, driver, gone, journal, losses, script, select, troubled, until
from kube.client import MERGE
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab
from pods import MANY, Gate, joined, joined_now, pod_of, process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
]
LONG = pytest.mark.long
OTHER = f"""
__version__, __path__ = "0.0.9", [{str(Path(hy.__file__).parent)!r}]
"""
"""Hopyard's code under another version."""
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Its controllers' time runs 20 times as fast: finished Jobs are deleted after 30 s."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as other:  # pods have a /tmp of their own
        os.chmod(other, 0o755)
        (Path(other) / "hopyard").mkdir()
        (Path(other) / "hopyard" / "__init__.py").write_text(OTHER)
        images = {"hopyard:test": {}, "hopyard:other": Path(other)}
        with Lab(tmp_path_factory.mktemp("lab"), images=images, speed=20) as made:
            yield made


@pytest.fixture(autouse=True)
def settings(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kubeconfig of the driver's user; and at the end nothing must be left of it."""
    monkeypatch.setenv("KUBECONFIG", str(lab.config))
    yield
    until(lambda: not lab.left() and not lab.pods(), 90)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return digests(select(tmp_path_factory.mktemp("inline") / "run", configs=MANY, epochs=2))


@pytest.mark.parametrize("per_pod", [pytest.param(1, marks=LONG), 2])
def test_a_selection_gives_the_same_bits(lab: Lab, tmp_path: Path, expected: list[str], per_pod: int) -> None:
    workers, gate = 2 * per_pod, Gate(lab, trials=2 * per_pod)
    engine = lab.engine(workers=workers, workers_per_pod=per_pod)
    run = select(tmp_path / "run", troubled, gate.configs, engine=engine, wait=False)
    joined(tmp_path / "run", 2)
    until(lambda: sum(isinstance(line, Joined) for line in journal(tmp_path / "run")) == workers)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected and not losses(tmp_path / "run")
    hosts = [line.host for line in journal(tmp_path / "run") if isinstance(line, Joined)]
    assert len(set(hosts)) == 2 and len(hosts) == workers


@LONG
@pytest.mark.parametrize("per_pod", [1, 2])
def test_a_gang_gives_the_same_bits(lab: Lab, tmp_path: Path, per_pod: int) -> None:
    """Its members exchange gradients from pod to pod, or within one."""
    how: dict[str, Any] = {"epochs": 2, "parallel": hy.AllReduce()}
    run = hy.fit(
        *(network, {"lr": 0.05}, dataset()),
        engine=lab.engine(workers_per_pod=per_pod, memory="2Gi"),
        directory=tmp_path / "run",
        **how,
    )
    local = hy.fit(
        *(network, {"lr": 0.05}, dataset()), engine=hy.Local(2, devices=None), directory=tmp_path / "local", **how
    )
    assert digests(run) == digests(local)
    hosts = {line.host for line in journal(tmp_path / "run") if isinstance(line, Joined)}
    assert len(hosts) == 2 // per_pod


@LONG
def test_rows_are_stored_about_once_over_four_pods(lab: Lab, tmp_path: Path) -> None:
    data, gate = dataset(partitions=16, rows=4001), Gate(lab, trials=4)
    how: dict[str, Any] = {"data": data, "parallel": hy.Hopper(copies=1)}
    with lab.engine(workers=4) as engine:
        run = select(tmp_path / "run", troubled, gate.configs, engine=engine, wait=False, **how)
        joined(tmp_path / "run", 4)
        with gate.open():
            run.wait(timeout=100)
        table = data.prepare()
        roots = [Path(f"/proc/{lab.kubelet_of(pod).pid(pod)}/root") for pod in lab.pods()]
        held = [fetched(root / "tmp" / ".cache", table) for root in roots]
    assert all(held) and 1.0 <= stored(table, held) <= 1.1
    assert moved(table, tmp_path / "run") == pytest.approx(stored(table, held))
    assert digests(run) == digests(select(tmp_path / "inline", configs=MANY, data=data))


DISRUPTIONS: dict[str, Callable[[Lab, str], object]] = {
    "deleted": lambda lab, pod: lab.admin.delete(f"{PODS}/{pod}"),
    "evicted": lambda lab, pod: lab.admin.post(
        f"{PODS}/{pod}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    ),
    "agent": lambda lab, pod: os.kill(process(lab, pod, "agent"), signal.SIGKILL),
    "agent, frozen": lambda lab, pod: os.kill(process(lab, pod, "agent"), signal.SIGSTOP),
    "supervisor": lambda lab, pod: os.kill(process(lab, pod, "supervisor"), signal.SIGKILL),
    "supervisor, frozen": lambda lab, pod: os.kill(process(lab, pod, "supervisor"), signal.SIGSTOP),
    "process 1": lambda lab, pod: os.kill(process(lab, pod, "process 1"), signal.SIGKILL),
    "cut off": lambda lab, pod: lab.kubelet_of(pod).link(pod, False),
}


@pytest.mark.parametrize(
    "what", ["deleted", *(pytest.param(what, marks=LONG) for what in DISRUPTIONS if what != "deleted")]
)
def test_a_pod_costs_its_slots_and_the_run_goes_on(
    lab: Lab, tmp_path: Path, expected: list[str], what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its trial goes on elsewhere, from its last State, and another pod comes for it."""
    gate = Gate(lab)
    run = select(
        *(tmp_path / "run", troubled, gate.configs),
        engine=lab.engine(),
        wait=False,
        timeouts=hy.Timeouts(heartbeat_timeout=3.0 if "agent, frozen" in what else 15.0),
    )
    host, worker = next(iter(joined(tmp_path / "run", 2).items()))
    until(
        lambda: [each for each in journal(tmp_path / "run") if isinstance(each, Durable) and each.slot == worker.slot]
    )
    DISRUPTIONS[what](lab, pod_of(lab, host))
    until(lambda: losses(tmp_path / "run"), 60)
    stays = what.startswith(("agent", "supervisor"))
    if not stays:
        until(lambda: len(joined_now(tmp_path / "run")) == 3, 60)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected
    assert len(losses(tmp_path / "run")) == 1
    assert len(joined_now(tmp_path / "run")) == (2 if stays else 3)
    assert [line for line in journal(tmp_path / "run") if isinstance(line, Done) and line.hop_bytes]


def test_a_program_knows_its_tasks_by_the_addresses_of_pods(lab: Lab, tmp_path: Path) -> None:
    body = (
        "import os, socket\n"
        "print(os.environ['JOB_NAME'], os.environ['TASK_INDEX'], os.environ['WORKER_HOSTS'], flush=True)\n"
        "assert socket.gethostbyname(socket.gethostname()) in os.environ['WORKER_HOSTS']\n"
    )
    (tmp_path / "train.py").write_text(body)
    program = hy.launch(tmp_path / "train.py", roles={"worker": 2}, engine=lab.engine(), directory=tmp_path / "program")
    assert program.wait().status == "completed"


@LONG
def test_tensorboard_of_a_program_has_the_address_of_its_pod(lab: Lab, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    logs = "/tmp/summaries"
    with hy.launch(
        programs.summarizes,
        logs,
        roles={"worker": 2},
        engine=lab.engine(memory="4Gi"),
        directory=tmp_path / "program",
        tensorboard=logs,
    ) as program:
        address, points = programs.page_of(program)
        assert points == programs.SUMMARIES
        assert address in {pod["status"]["podIP"] for pod in lab.objects("pods")}


@pytest.mark.parametrize(
    ("image", "message"),
    [
        pytest.param(
            "hopyard:none", r"no pod has dialled .* within 6 seconds .*image hopyard:none cannot be pulled", marks=LONG
        ),
        ("hopyard:other", r"another version of Hopyard than the driver \(0\.0\.9"),
    ],
)
def test_why_no_pod_comes(lab: Lab, tmp_path: Path, image: str, message: str) -> None:
    with pytest.raises(hy.ResourceError, match=message):
        select(tmp_path / "run", engine=lab.engine(image=image, start_timeout=6.0))


@LONG
def test_a_driver_that_is_killed_leaves_nothing_and_is_resumed(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    gate = Gate(lab)
    body = (
        "engine = hy.Kubernetes(2, 'hopyard:test', memory='1Gi', shm='256Mi')\n"
        f"select(Path('run'), troubled, {gate.configs!r}, engine=engine)"
    )
    started = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    hosts = joined(tmp_path / "run", 2)
    pids = [lab.kubelet_of(pod).pid(pod) for pod in lab.pods()]
    os.kill(started.pid, signal.SIGKILL)
    started.communicate()
    assert len(hosts) == 2 and gone(pids, 60)
    with gate.open():
        assert digests(hy.resume(tmp_path / "run")) == expected


@LONG
def test_a_run_waits_in_a_queue_until_its_job_is_admitted(
    lab: Lab, tmp_path: Path, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    run = select(tmp_path / "run", configs=MANY, engine=lab.engine(queue="research"), wait=False)
    until(lambda: "Kueue has not admitted the Job from queue research" in caplog.text, 60)
    for job in lab.objects("jobs"):  # what Kueue does
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job['metadata']['name']}"
        lab.admin.call("PATCH", path, {"spec": {"suspend": False}}, MERGE)
    run.wait(timeout=100)
    assert digests(run) == expected


@LONG
def test_a_job_that_is_suspended_in_a_run_is_gone_after_it(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    """As a queue does when another takes its room: nothing may bring the Job's pods again."""
    gate = Gate(lab)
    run = select(tmp_path / "run", troubled, gate.configs, engine=lab.engine(), wait=False)
    joined(tmp_path / "run", 2)
    (job,) = lab.objects("jobs")
    lab.admin.merge(
        f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job['metadata']['name']}", {"spec": {"suspend": True}}
    )
    joined(tmp_path / "run", 4)
    assert [each["metadata"]["name"] for each in lab.objects("jobs")] != [job["metadata"]["name"]]
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected
    assert not lab.objects("jobs")
