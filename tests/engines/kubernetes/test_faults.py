"""Runs on pods whatever fails: the API server, memory, nodes, images, drivers. Digests stay, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Deferred, Dispatch, Done, Joined
from hopyard.engines.kubernetes import jobs, watcher
from jobs import SLOW, digests, gone, journal, losses, script, select, troubled, until
from kube.api.routes import Request
from kube.kubelet import missing
from kube.lab import NAMESPACE, Lab
from kube.node import cgroups
from pods import MANY, Gate, image, joined, joined_now, kill, left, once, pod_of, process, requested

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.usefixtures("settings"),
]
LONG = pytest.mark.long
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NEEDS_MEMORY = pytest.mark.skipif(not missing() and bool(cgroups.version()[1]), reason="no memory limits here")
OTHER = "import hopyard\nhopyard.__version__ = '0.0.9'"


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return digests(select(tmp_path_factory.mktemp("inline") / "run", configs=MANY, epochs=2))


def begins(line: Any, trial: int) -> bool:
    """Whether this line gives out a unit of this trial."""
    return isinstance(line, Dispatch) and line.unit.trial == trial


def slots_of(directory: Path, trial: int) -> list[int]:
    """Return where units of this trial have been, in order."""
    lines = [line for line in journal(directory) if isinstance(line, Dispatch)]
    return [line.slot for line in lines if line.unit.trial == trial]


def units(directory: Path) -> int:
    """Return how many units are done."""
    return sum(isinstance(line, Done) for line in journal(directory))


# ---------------------------------------------------------------- the API server fails


def test_a_run_starts_and_ends_whatever_the_api_server_answers(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    faults = [
        lab.cluster.faults.add(kind, pattern)  # type: ignore[arg-type]
        for kind, pattern in (
            *((503, "GET /version"), (410, "watch=true"), (500, r"GET .*/pods\?"), ("cut", "watch=true")),
            *(
                (429, r"POST .*/jobs\?"),
                ("lost", r"POST .*/jobs\?"),
                (500, "POST .*/secrets"),
                ("lost", "POST .*/secre"),
            ),
            *((500, "DELETE .*-1$"), ("lost", "DELETE .*-1$"), (429, "DELETE .*-2$")),
        )
    ]
    run = select(tmp_path / "run", configs=MANY, engine=lab.engine())
    assert digests(run) == expected and not losses(tmp_path / "run")
    assert not [fault for fault in faults if fault.times]
    assert not lab.objects("jobs")


@LONG
def test_a_watch_that_says_nothing_any_more_costs_only_time(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    lab.cluster.faults.add("half-open", "watch=true", times=100)
    gate = Gate(lab)
    run = select(tmp_path / "run", troubled, gate.configs, engine=lab.engine(), wait=False)
    kill(lab, next(iter(joined(tmp_path / "run", 2))))
    joined(tmp_path / "run", 3)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected and len(losses(tmp_path / "run")) == 1


@LONG
def test_what_is_missing_while_the_api_server_is_away_is_asked_for_afterwards(
    lab: Lab, tmp_path: Path, expected: list[str]
) -> None:
    """Units that run do not notice."""
    first, second = Gate(lab, trials=1), Gate(lab, trials=2)
    configs = [first.configs[0], *second.configs[1:]]
    run = select(tmp_path / "run", troubled, configs, engine=lab.engine(), wait=False)
    joined(tmp_path / "run", 2)
    slot = until(lambda: slots_of(tmp_path / "run", 0))[-1]
    host = next(host for host, line in joined_now(tmp_path / "run").items() if line.slot == slot)
    pid = process(lab, pod_of(lab, host), "process 1")
    lab.cluster.close()
    try:
        os.kill(pid, signal.SIGKILL)
        until(lambda: losses(tmp_path / "run"), 60)
        before = units(tmp_path / "run")
        with second.open():
            until(lambda: units(tmp_path / "run") > before + 2, 60)
    finally:
        lab.cluster.listen()
    joined(tmp_path / "run", 3)
    with first.open(), second.open():
        run.wait(timeout=100)
    assert digests(run) == expected and len(losses(tmp_path / "run")) == 1


@LONG
def test_an_outage_of_an_hour_is_nothing(
    lab: Lab, tmp_path: Path, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many tries fail as in an hour. Pauses grow to the longest one, here of 20 ms."""
    for module, first in ((jobs, "AGAIN_SECONDS"), (watcher, "FIRST_SECONDS")):
        monkeypatch.setattr(module, first, 0.001)
        monkeypatch.setattr(module, "MOST_SECONDS", 0.02)
    monkeypatch.setattr(jobs, "LOOK_SECONDS", 0.02)
    gate = Gate(lab)
    run = select(tmp_path / "run", troubled, gate.configs, engine=lab.engine(), wait=False)
    hosts = joined(tmp_path / "run", 2)
    hour = lab.cluster.faults.add(503, r"POST .*/jobs\?", times=360, retry_after=0)
    kill(lab, next(iter(hosts)))
    until(lambda: not hour.times, 100)
    joined(tmp_path / "run", 3)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected
    assert len(requested(lab, r"POST .*/jobs\?fieldV")) < 400


def test_the_pauses_grow(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_SECONDS", 0.8)
    lab.cluster.faults.add(500, r"POST .*/jobs\?", times=1000)
    at: list[float] = []

    def look(when: str, request: Request) -> None:
        if when == "before" and (request.method, request.path.rpartition("/")[2]) == ("POST", "jobs"):
            at.append(time.monotonic())

    lab.cluster.on_request = look
    with pytest.raises(hy.ResourceError, match=r"within 4 seconds .*a test asked for it \(500 InternalError\)"):
        select(tmp_path / "run", engine=lab.engine(start_timeout=4.0))
    pauses = [later - earlier for earlier, later in pairwise(at)]
    assert all(pause > 0.9 * least for pause, least in zip(pauses, [0.2, 0.4, *[0.8] * 10], strict=False))
    assert len(pauses) >= 2


@LONG
def test_a_run_whose_api_server_is_away_at_its_end(
    lab: Lab, tmp_path: Path, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(lab)
    run = select(tmp_path / "run", troubled, gate.configs, engine=lab.engine(), wait=False)
    joined(tmp_path / "run", 2)
    pids = [lab.kubelet_of(pod).pid(pod) for pod in lab.pods()]
    lab.cluster.close()
    try:
        with gate.open():
            run.wait(timeout=100)
        assert gone(pids)
    finally:
        lab.cluster.listen()
    assert digests(run) == expected
    warned = [line.getMessage() for line in caplog.records if line.name.startswith("hopyard.engines")]
    assert len(warned) == 1 and "are not deleted yet" in warned[0]
    until(lambda: not left(lab), 120)  # by the ttl of the Jobs


@LONG
def test_missing_pods_cost_few_requests_and_others_none(lab: Lab, tmp_path: Path) -> None:
    before = len(requested(lab, ""))
    with pytest.raises(hy.ResourceError, match="hopyard:none cannot be pulled"):
        select(tmp_path / "none", engine=lab.engine(workers=8, image="hopyard:none", start_timeout=6.0))
    assert 6 <= len(requested(lab, "")) - before <= 6 + 6 * 3
    gate = Gate(lab)
    run = select(tmp_path / "run", troubled, gate.configs, engine=lab.engine(), wait=False)
    joined(tmp_path / "run", 2)
    time.sleep(0.5)  # the answer to a look at what was missing
    before = len(requested(lab, ""))
    time.sleep(3.0)
    assert [each for each in requested(lab, "")[before:] if not each.startswith("PATCH")] == []  # every 20 s
    with gate.open():
        run.wait(timeout=100)


# ---------------------------------------------------------------- memory


@pytest.fixture(params=[True, False], ids=["the pod", "the agent"])
def cramped(lab: Lab, request: pytest.FixtureRequest) -> str:
    """A node, on which the kernel kills pods as a whole where memory runs out, or one process."""
    name = "cramped-whole" if request.param else "cramped"
    if name not in lab.kubelets:
        lab.add(name, group_kill=request.param)
    return name


@LONG
@NEEDS_MEMORY
def test_who_ran_out_of_memory_is_tried_alone(lab: Lab, tmp_path: Path, expected: list[str], cramped: str) -> None:
    """Whether its agent was killed or its whole pod: the others of the pod rest meanwhile."""
    with once(lab) as address:
        configs = [*MANY[:3], MANY[3] | {"at": 8, "do": f"eat {address}"}, *MANY[4:]]
        engine = lab.engine(
            workers_per_pod=2, memory="512Mi", shm="64Mi", pod={"nodeSelector": {"kubernetes.io/hostname": cramped}}
        )
        run = select(tmp_path / "run", troubled, configs, engine=engine)
    assert digests(run) == expected
    lines = journal(tmp_path / "run")
    lost = [line for line in lines if isinstance(line, Lost)]
    assert len(lost) == (2 if cramped == "cramped-whole" else 1), losses(tmp_path / "run")
    assert all("memory" in line.reason for line in lost)
    assert [line.trial for line in lines if isinstance(line, Deferred) and line.fault == "memory" and line.trial == 3]
    assert alone(lines, 3, max(lines.index(line) for line in lost))


def alone(lines: list[Any], trial: int, after: int) -> bool:
    """Whether the first unit of a trial after this line ran while no other did."""
    first = next(n for n, line in enumerate(lines) if n > after and begins(line, trial))
    lease = lines[first].unit.lease
    last = next(n for n, line in enumerate(lines) if isinstance(line, Done) and line.lease == lease)
    running: set[int] = set()
    for line in lines[:first]:
        if isinstance(line, Dispatch):
            running.add(line.unit.lease)
        elif isinstance(line, Done):
            running.discard(line.lease)
        elif isinstance(line, Lost):
            running.clear()  # those of others are done by then, or lost as well
    return not running and not any(isinstance(line, Dispatch) for line in lines[first + 1 : last])


@LONG
@NEEDS_MEMORY
def test_a_trial_that_always_takes_too_much_memory_fails_alone(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    with socket.create_server((lab.network.gateway, 0), backlog=100) as server:
        address = ":".join(map(str, server.getsockname()[:2]))
        configs = [*MANY[:3], MANY[3] | {"at": 8, "do": f"eat {address}"}, *MANY[4:]]
        run = select(tmp_path / "run", troubled, configs, engine=lab.engine(memory="512Mi", shm="64Mi"))
    failed = run.trials[3]
    assert failed.status == "failed" and "out of memory, also in a new worker" in failed.error
    assert "used more than its memory of 512Mi: give more memory=" in failed.error
    assert [found for n, found in enumerate(digests(run)) if n != 3] == expected[:3] + expected[4:]


# ---------------------------------------------------------------- nodes and images


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A cluster for a test alone, without nodes."""
    with Lab(tmp_path / "own", 0, speed=20) as made:
        monkeypatch.setenv("KUBECONFIG", str(made.config))
        yield made
        until(lambda: not left(made), 120)


@LONG
def test_a_node_is_gone(own: Lab, tmp_path: Path, expected: list[str]) -> None:
    for name in ("node-0", "node-1"):
        own.add(name)
    gate = Gate(own)
    run = select(tmp_path / "run", troubled, gate.configs, engine=own.engine(), wait=False)
    joined(tmp_path / "run", 2)
    own.cluster.lose_node("node-1")
    own.kubelets.pop("node-1").vanish()
    joined(tmp_path / "run", 3)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected and len(losses(tmp_path / "run")) == 1
    own.admin.delete("/api/v1/nodes/node-1")  # until then its pod cannot be known to have ended


@LONG
def test_a_node_whose_image_is_another_version_is_left_out(
    own: Lab, tmp_path: Path, folder: Path, expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is the emptier one, so all that is asked for comes there; and it is asked for ever later."""
    own.add("good")
    own.add("bad", images={"hopyard:test": image(folder, OTHER)})
    gate = Gate(own, trials=1)
    run = select(tmp_path / "run", troubled, gate.configs, engine=own.engine(), wait=False)
    joined(tmp_path / "run", 1)
    time.sleep(5)
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected and not losses(tmp_path / "run")
    assert len(joined_now(tmp_path / "run")) == 1
    warned = [line.getMessage() for line in caplog.records if "turned away" in line.getMessage()]
    assert len(warned) == 1 and warned[0].startswith("a pod on node bad has another version"), warned
    assert len(requested(own, r"POST .*/jobs\?")) <= 6


def test_nodes_that_all_have_another_version_end_the_run(
    own: Lab, tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own.add("bad", images={"hopyard:test": image(folder, OTHER)})
    began = time.monotonic()
    with pytest.raises(hy.ResourceError, match=r"another version of Hopyard than the driver \(0\.0\.9"):
        select(tmp_path / "run", engine=own.engine())
    assert time.monotonic() - began < 200  # start_timeout is 300 s


@LONG
def test_pods_that_cannot_reach_this_process_end_the_run(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(hy.ResourceError, match=r"the pod cannot work: .* cannot reach the driver at 127\.0\.0\.1"):
        select(tmp_path / "run", engine=lab.engine(address="127.0.0.1"))


@LONG
def test_pods_that_crash_are_no_storm(lab: Lab, tmp_path: Path, folder: Path, images: dict[str, Any]) -> None:
    images["hopyard:crash"] = image(folder, "raise SystemExit(1)")
    before = len(requested(lab, r"POST .*/jobs\?"))
    with pytest.raises(hy.ResourceError, match="ended with exit code 1"):
        select(tmp_path / "run", engine=lab.engine(image="hopyard:crash", start_timeout=7.5))
    assert 2 <= len(requested(lab, r"POST .*/jobs\?")) - before <= 4  # at 0, 1, 3 and 7 s at the earliest


# ---------------------------------------------------------------- started engines


@LONG
def test_a_started_engine_keeps_its_pods_and_replaces_those_that_are_lost(
    lab: Lab, tmp_path: Path, expected: list[str]
) -> None:
    gates = [Gate(lab) for _ in range(4)]

    def run(number: int, count: int = 2) -> tuple[Any, set[str]]:
        directory = tmp_path / str(number)
        made = select(directory, troubled, gates[number].configs, engine=engine, wait=False)
        return made, set(joined(directory, count))

    def end(made: Any, number: int) -> None:
        with gates[number].open():
            made.wait(timeout=100)
        assert digests(made) == expected and not losses(tmp_path / str(number))

    with lab.engine() as engine:
        made, hosts = run(0)
        end(made, 0)
        assert len(lab.pods()) == 2
        made, again = run(1)
        assert again == hosts
        end(made, 1)
        lost = min(hosts)
        kill(lab, lost)
        made, others = run(2)
        assert lost not in others and hosts - {lost} <= others
        beside, own = run(3)  # at the same time
        assert not own & others
        end(beside, 3)
        end(made, 2)
        until(lambda: len(lab.pods()) == 2)
    until(lambda: not lab.pods())
    assert not lab.objects("jobs")


@LONG
def test_a_run_goes_on_with_another_engine_and_back(lab: Lab, tmp_path: Path, expected: list[str]) -> None:
    directory, gate = tmp_path / "run", Gate(lab, trials=1)
    engines: list[Callable[[], Any]] = [lab.engine, lambda: hy.Local(2, devices=None), lab.engine]
    for number, engine in enumerate(engines):
        more = {"engine": engine(), "wait": False}
        run = select(directory, troubled, gate.configs, **more) if not number else hy.resume(directory, **more)
        count = 2 * number + 2
        until(lambda: sum(isinstance(line, Joined) for line in journal(directory)) >= count, 60)  # noqa: B023
        if number < 2:
            run.stop()
            with suppress(hy.HopyardError):
                run.wait(timeout=60)
            until(lambda: not lab.pods())
    with gate.open():
        run.wait(timeout=100)
    assert digests(run) == expected


# ---------------------------------------------------------------- many faults


@pytest.mark.campaign
@pytest.mark.timeout(1800)
def test_thirty_random_faults(lab: Lab, tmp_path: Path) -> None:
    """Pods are deleted, cut off and mended; parts of them killed or frozen; the API server restarts or refuses, and
    the driver is killed and starts again."""
    rng, faults = random.Random(7), 0
    body = (
        f"{SLOW}\nengine = hy.Kubernetes(3, 'hopyard:hasty', memory='1Gi', shm='256Mi')\n"
        f"select(Path('run'), slow, {MANY!r}, epochs=240, engine=engine, resume=True,\n"
        "       timeouts=hy.Timeouts(heartbeat_timeout=5.0))\n"
    )
    job = str(script(tmp_path / "job.py", body))

    def begin() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen([sys.executable, job], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)

    def on_pod(act: Callable[[str], object]) -> bool:
        try:
            act(rng.choice(sorted(lab.pods())))
        except (IndexError, KeyError, StopIteration, ProcessLookupError, RuntimeError):  # it is on its way
            return False
        return True

    def cut(pod: str) -> None:
        kubelet = lab.kubelet_of(pod)
        kubelet.link(pod, False)
        time.sleep(rng.uniform(0.5, 15.0))  # after 5 s another is asked for
        kubelet.link(pod, True)

    def signalled(part: str, number: int) -> Callable[[], bool]:
        return lambda: on_pod(lambda pod: os.kill(process(lab, pod, part), number))

    kinds: dict[str, Callable[[], object]] = {
        "delete": lambda: on_pod(lambda pod: lab.admin.delete(f"{PODS}/{pod}")),
        "cut off": lambda: on_pod(cut),
        "restart": lambda: lab.cluster.restart(rng.uniform(0, 12)),
        "refusals": lambda: lab.cluster.faults.add(rng.choice([429, 500, 503]), r"places|POST .*/jobs\?", 5),
        "expired": lambda: lab.cluster.faults.add(410, "watch=true.*places", 3),
        "lost answers": lambda: lab.cluster.faults.add("lost", r"POST|PATCH|DELETE .*/jobs", 2),
        "process 1": signalled("process 1", signal.SIGKILL),
        "agent": signalled("agent", signal.SIGKILL),
        "agent, frozen": signalled("agent", signal.SIGSTOP),
        "supervisor": signalled("supervisor", signal.SIGKILL),
        "supervisor, frozen": signalled("supervisor", signal.SIGSTOP),
    }
    driver = begin()
    try:
        while faults < 30 and driver.poll() is None:
            time.sleep(rng.uniform(0.5, 4.0))
            what = rng.choice([*kinds, "driver"])
            if what == "driver":
                driver.kill()
                driver.wait()
                driver = begin()
            elif kinds[what]() is False:
                continue
            faults += 1
            print(f"{faults}: {what}", flush=True)
        assert driver.wait(900) == 0, (tmp_path / "log").read_text()[-3000:]
    finally:
        driver.kill()
        driver.wait()
    assert faults == 30, f"the run was over after {faults} faults"
    assert digests(hy.load(tmp_path / "run")) == digests(select(tmp_path / "inline", configs=MANY, epochs=240))
