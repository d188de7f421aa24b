"""What every engine must do, over all of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import pages
from example_modules import EXAMPLES, example
from hopyard.engines.local import Processes
from hopyard.engines.supervisors.ticket import new, write
from hopyard.errors import ResourceError
from hopyard.ports.engines import Agents, GivesBack, LaunchInfo, ReleasesCores, is_engine, starts_agents
from hopyard.system.processes import children_of
from hosts import played_ssh
from jobs import alive, free_port, gone, until
from kube.kubelet import missing
from kube.lab import Lab
from played_spark import Session
from played_supervisors import command, parent

pytestmark = pytest.mark.cold

KEYS = dict.fromkeys(("server_key", "public_key", "secret_key"), "0" * 40)


@pytest.fixture(scope="module")
def spark(executors: Any) -> Any:
    return executors


@pytest.fixture
def launch(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LaunchInfo]:
    """Its card leads to a port where nobody answers: an agent with it dials, and waits."""
    in_pods = "kubernetes" in request.node.name
    host = request.getfixturevalue("lab").network.gateway if in_pods else "127.0.0.1"
    with socket.create_server((host, 0)) as port:
        card = {"slot": 0, "address": f"tcp://{host}:{port.getsockname()[1]}", **KEYS}
        text = json.dumps(card).encode() + b"\n"
        yield LaunchInfo(lambda slot: text, lambda slot: tmp_path / "logs" / f"{slot}.log")


SubprocessEngine = example("subprocess_engine").SubprocessEngine
CORES = len(os.sched_getaffinity(0))
BY_HOST = {
    **{"hosts": (CORES, 1), "hosts, started": (1, 1), "hosts, by hand": ()},
    **{"kubernetes": (1, 1), "kubernetes, started": (1, 1)},
}
"""Workers of each host, of engines that have more than one."""
OWN = ["subprocesses", "subprocesses, started"]
ON_SPARK = [
    pytest.param(name, marks=[pytest.mark.spark, pytest.mark.xdist_group("executors")])
    for name in ("spark", "spark, one beside the driver")
]

IN_PODS = [
    pytest.param(
        name,
        marks=[pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.xdist_group("kubernetes"), *marks],
    )
    for name, marks in {
        "kubernetes": [],
        "kubernetes, started": [pytest.mark.long],
        "kubernetes, two a pod": [pytest.mark.long],
        "kubernetes, two a pod, started": [],
    }.items()
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A cluster, of which nothing must be left at the end."""
    with Lab(tmp_path_factory.mktemp("lab"), speed=20) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(made.config))
        yield made
        until(lambda: not made.left() and not made.pods(), 90)


@pytest.fixture(scope="module")
def started_pods(lab: Lab) -> Iterator[hy.Kubernetes]:
    """An engine whose pods stay, from one test to the next."""
    with lab.engine(devices=None) as engine:
        yield engine


@pytest.fixture(scope="module")
def started_pod(lab: Lab) -> Iterator[hy.Kubernetes]:
    """The same, with both workers in one pod."""
    with lab.engine(devices=None, workers_per_pod=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def started() -> Iterator[hy.Local]:
    """An engine whose agents are forks."""
    with hy.Local(workers=2, devices=None) as engine:
        yield engine


@pytest.fixture(scope="module")
def started_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[hy.Hosts]:
    """An engine whose supervisors stay, from one test to the next."""
    with hy.Hosts(["a:1", "b:1"], ssh=played_ssh(tmp_path_factory.mktemp("hosts")), devices=None) as engine:
        yield engine


@pytest.fixture(scope="module")
def started_example() -> Iterator[Any]:
    with SubprocessEngine(workers=2) as engine:
        yield engine


@pytest.fixture(
    params=[*OWN, "local", "local, started", "hosts", "hosts, started", "hosts, by hand", *IN_PODS, *ON_SPARK]
)
def agents(request: pytest.FixtureRequest, launch: LaunchInfo, tmp_path: Path) -> Iterator[Agents]:
    engines: dict[str, Callable[[], Any]] = {
        "subprocesses": lambda: SubprocessEngine(workers=2),
        "subprocesses, started": lambda: request.getfixturevalue("started_example"),
        "local": lambda: hy.Local(workers=2, devices=None),
        "local, started": lambda: request.getfixturevalue("started"),
        "hosts, started": lambda: request.getfixturevalue("started_hosts"),
        "hosts": lambda: hy.Hosts(["a", "b:1"], ssh=played_ssh(tmp_path), devices=None),
        "hosts, by hand": lambda: hy.Hosts(join=ticket(tmp_path), workers=2),
        "kubernetes": lambda: request.getfixturevalue("lab").engine(devices=None),
        "kubernetes, started": lambda: request.getfixturevalue("started_pods"),
        "kubernetes, two a pod": lambda: request.getfixturevalue("lab").engine(devices=None, workers_per_pod=2),
        "kubernetes, two a pod, started": lambda: request.getfixturevalue("started_pod"),
        "spark": lambda: hy.Spark(request.getfixturevalue("spark"), workers=2),
        "spark, one beside the driver": lambda: hy.Spark(request.getfixturevalue("spark"), workers=2, driver_workers=1),
    }
    engine = engines[request.param]()
    assert engine.name == request.param.partition(",")[0]
    assert engine.workers >= 1
    assert engine.threads == 1
    assert engine.env == {}
    if "by hand" not in request.param:  # there the ticket has fixed ports
        near = engine.name != "kubernetes"
        assert engine.endpoint == ("127.0.0.1" if near else request.getfixturevalue("lab").network.gateway, 0)
    assert engine.start_timeout == (300.0 if engine.name == "kubernetes" else 120.0)
    assert engine.apart == (engine.name not in ("local", "subprocesses"))
    assert engine.workers_by_host == BY_HOST.get(request.param, (2,))
    assert engine.driver_workers == int("beside" in request.param)
    assert engine.shared_places == (engine.name in ("spark", "kubernetes"))
    assert is_engine(engine) and starts_agents(engine)
    made = engine.open(launch)
    yield made
    made.close()


def ticket(folder: Path) -> Path:
    """Of a pool that nobody joins."""
    write(folder / "ticket", new("127.0.0.1", free_port()))
    return folder / "ticket"


def test_the_page_on_engines_shows_the_one_that_is_tested_here() -> None:
    page = EXAMPLES.parent / "docs" / "add-an-engine.md"
    assert pages.blocks(page)[0].code == (EXAMPLES / "subprocess_engine.py").read_text()


def test_an_engine_whose_worker_is_this_process_starts_no_agents() -> None:
    engine = hy.Inline(threads=2)
    assert is_engine(engine) and not starts_agents(engine)
    assert (engine.workers, engine.workers_by_host, engine.threads, engine.env, engine.apart) == (1, (1,), 2, {}, False)
    assert not is_engine(hy.Inline) and not is_engine("local") and not is_engine(None)


def test_supervisors_dial_the_port_after_that_of_agents(launch: LaunchInfo) -> None:
    engine = hy.Spark(Session(1), workers=1, address="127.0.0.1", port=free_port() - 1)
    agents: Any = engine.open(launch)
    assert agents._supervisors.port == engine.endpoint[1] + 1
    agents.close()


def test_no_agent_is_there_before_the_start(agents: Agents) -> None:
    assert agents.lost() == []
    assert not select.select(agents.watch(), [], [], 0)[0]


@pytest.mark.slow
def test_starting_waits_for_no_agent_and_nothing_is_lost(agents: Agents) -> None:
    agents.start(0)  # one that never comes up: nobody answers it
    assert agents.lost() == []
    assert agents.device(0) == "cpu"


def test_ended_for_good_is_not_lost(agents: Agents) -> None:
    agents.start(0)
    agents.end(0)
    agents.end(0)
    agents.end(5)
    assert agents.lost() == []


def workers_below(process: int) -> set[int]:
    """Workers and their companions among the descendants of a process; forks have the command of their template."""
    below, template = set(), b"\0template\0" in command(process)
    for child in children_of(process):
        if b"hopyard.agent" in command(child) and (template or b"\0template\0" not in command(child)):
            below.add(child)
        below |= workers_below(child)
    return below


def without_companions() -> set[int]:
    """Workers among the descendants of this process: companions are children of theirs."""
    found = workers_below(os.getpid())
    return {pid for pid in found if not found & {*ancestors(pid)}}


def ancestors(process: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has ended since
        while (process := parent(process)) > 1:
            yield process


@pytest.mark.slow
def test_a_worker_that_is_killed_is_lost_once_and_the_next_one_ends_with_the_run(
    agents: Agents, request: pytest.FixtureRequest
) -> None:
    if "by hand" in request.node.callspec.id:
        pytest.skip("nobody joins")

    def up() -> set[int]:
        agents.start(0)
        return until(lambda: agents.lost() == [] and not agents.waits(0) and workers_below(os.getpid()))

    for pid in up():
        os.kill(pid, signal.SIGKILL)
    assert select.select(agents.watch(), [], [], 20)[0]
    ((slot, reason),) = until(agents.lost)
    assert slot == 0 and "was killed by SIGKILL" in reason
    assert agents.lost() == []
    pids = up()
    agents.close()
    assert gone(sorted(pids))


def test_a_run_that_releases_cores_goes_on(agents: Agents) -> None:
    if not isinstance(agents, ReleasesCores):
        pytest.skip("holds no cores of a cluster")
    agents.start(0)
    for _ in range(2):
        agents.release_cores([0])
        agents.reacquire_cores()
    assert agents.lost() == []


@pytest.mark.slow
def test_places_that_are_given_back_can_be_asked_for_again(agents: Agents, request: pytest.FixtureRequest) -> None:
    if not request.node.callspec.id.startswith(("spark", "kubernetes")):
        pytest.skip("nobody else wants its places")
    assert isinstance(agents, GivesBack)

    def up(slot: int) -> set[int]:
        before = workers_below(os.getpid())
        agents.start(slot)
        until(lambda: agents.lost() == [] and not agents.waits(slot) and without_companions() - before)
        return without_companions() - before

    one, other = up(1), up(0)
    assert agents.waiting() == 0
    agents.give_back([0])
    assert gone(sorted(other)) and alive(sorted(one)) == sorted(one)
    assert agents.lost() == [] and agents.waiting() == 0
    other = up(0)
    agents.give_back([0, 1])
    assert gone(sorted(one | other))
    assert up(1)
    assert agents.lost() == []


@pytest.mark.slow
def test_close_may_be_called_twice(agents: Agents) -> None:
    agents.start(0)
    agents.close()
    agents.close()
    assert agents.lost() == []


def pids(agents: Any) -> list[int]:
    """Their numbers, once a template has forked those that are forks."""
    processes = list(agents._running.values())
    for process in processes:
        while not process.pid:
            assert select.select([process.descriptor], [], [], 30)[0]
            assert agents.lost() == []
    return [process.pid for process in processes]


@pytest.fixture(scope="module")
def also_started() -> Iterator[hy.Local]:
    with hy.Local(workers=2, devices=None, env={"HOPYARD_TEST": "1"}) as engine:
        yield engine


@pytest.fixture(params=["cold", "warm"])
def local(request: pytest.FixtureRequest, launch: LaunchInfo) -> Iterator[Processes]:
    engine = hy.Local(workers=2, devices=None, env={"HOPYARD_TEST": "1"})
    made = Processes(engine if request.param == "cold" else request.getfixturevalue("also_started"), launch)
    yield made
    made.close()


def test_a_process_that_ends_is_lost_once_and_wakes_the_watch(local: Processes) -> None:
    local.start(3)
    (pid,) = pids(local)
    os.kill(pid, 9)
    assert select.select(local.watch(), [], [], 5)[0]
    assert local.lost() == [(3, f"process {pid} was killed by SIGKILL")]
    assert local.lost() == []
    assert local.watch() == []


def test_a_stopped_process_can_be_ended(local: Processes) -> None:
    local.start(0)
    (pid,) = pids(local)
    os.kill(pid, 19)
    local.end(0)
    assert not alive([pid])


def test_its_card_goes_by_pipe_alone(local: Processes, launch: LaunchInfo) -> None:
    local.start(0)
    (pid,) = pids(local)
    process = Path(f"/proc/{pid}")
    assert b"0000000000" not in process.joinpath("cmdline").read_bytes()
    end = time.monotonic() + 60
    while not (environment := process.joinpath("environ").read_bytes()) and time.monotonic() < end:
        time.sleep(0.001)  # the kernel has just begun with it
    assert b"0000000000" not in environment
    assert b"HOPYARD_TEST=1" in environment
    assert b"OMP_NUM_THREADS=1" in environment
    local.end(0)
    assert b"0000000000" not in launch.log(0).read_bytes()


@pytest.mark.slow
def test_the_end_of_its_input_ends_an_agent(local: Processes) -> None:
    local.start(0)
    (pid,) = pids(local)
    (process,) = local._running.values()
    process.stdin.close()
    assert gone([pid])  # it may still be starting


@pytest.mark.parametrize("warm", [False, True])
def test_a_process_that_cannot_be_started_is_a_lack_of_resources(
    launch: LaunchInfo, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    monkeypatch.setattr("hopyard.engines.local.AGENT", ["/nowhere/python"])
    monkeypatch.setattr("hopyard.engines.templates.TEMPLATE", ["/nowhere/python"])
    engine = hy.Local(workers=2, devices=None)
    if warm:
        engine.start()
    with pytest.raises(ResourceError, match="slot 1: no worker process"):
        engine.open(launch).start(1)


def test_a_log_that_cannot_be_written_is_a_lack_of_resources(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    launch = LaunchInfo(lambda slot: b"\n", lambda slot: tmp_path / "file" / "log")
    made = Processes(hy.Local(workers=1, devices=None), launch)
    with pytest.raises(ResourceError, match="slot 0"):
        made.start(0)


def all_of(*agents: Callable[..., Any]) -> list[str]:
    return sorted({name for each in agents for name in dir(each) if not name.startswith("_")})


def test_no_engine_has_more_than_the_port() -> None:
    from hopyard.engines.split import Split
    from hopyard.engines.supervised import SupervisedAgents

    assert all_of(Processes) == all_of(Agents)
    assert all_of(SupervisedAgents) == all_of(Split) == all_of(ReleasesCores, GivesBack)
