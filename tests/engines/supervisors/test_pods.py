"""The process 1 of a pod: an ordinary process, and the first one of a pid namespace. Its driver is this process; its
agents dial a port where nobody answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from hopyard.certificate import make_certificate
from hopyard.engines.supervisors import host
from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.messages import Prepare
from hopyard.engines.supervisors.pool import Supervisors
from hopyard.engines.supervisors.ticket import Ticket
from hopyard.system.processes import children_of
from jobs import alive, gone, until
from played_supervisors import KEYS, TOKEN, Played, agents_of

HERE = socket.gethostname()
FIRST = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
RUN = """
import sys
from pathlib import Path
from hopyard.engines.supervisors import host, pod
host.CUT_SECONDS, pod.TICKET_SECONDS, pod.TERMINATION_LOG = 1.0, 0.5, sys.argv[1]
raise SystemExit(pod.run(int(sys.argv[2]), "none", Path(sys.argv[3])))
"""
"""The same as `python -m hopyard.engines.supervisors`, with shorter times and another termination log."""
DRIVER = """
import sys, time
from hopyard.engines.supervisors import ticket as tickets
from hopyard.engines.supervisors.pool import Supervisors
from pathlib import Path
pool = Supervisors("127.0.0.1", 0, "the token", lambda slot: Path("none"), keep_idle=True)
tickets.write(Path(sys.argv[1]), tickets.Ticket("127.0.0.1", pool.port, "the token"))
while True:
    print(pool.admitted_count, flush=True)
    time.sleep(0.05)
"""


def namespaces() -> bool:
    """Whether this process may make a pid namespace."""
    try:
        return subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


class Driver:
    """The driver's side of pods."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = socket.create_server(("127.0.0.1", 0))
        card = {"slot": 0, "address": f"tcp://127.0.0.1:{self.port.getsockname()[1]}", **KEYS}
        self.prepare = Prepare(json.dumps(card), 1, {})
        self.certificate = make_certificate()
        self.file = folder / "ticket"
        self.ticket: Ticket | None = None
        self.supervisors: Supervisors | None = None
        self.pods: list[Pod] = []

    def open(self, *, expected: int = 0, required: tuple[str, ...] = ()) -> Supervisors:
        """Listen, and make the ticket."""
        self.supervisors = Supervisors(
            "127.0.0.1",
            0,
            TOKEN,
            self.log,
            certificate=self.certificate,
            prepare=replace(self.prepare, required=required),
            task_name="supervisor",
            expected=expected,
            keep_idle=True,
        )
        self.ticket = Ticket("127.0.0.1", self.supervisors.port, TOKEN, certificate=self.certificate)
        return self.supervisors

    def log(self, slot: int) -> Path:
        return self.folder / f"{slot}.log"

    def write(self) -> None:
        """Bring the ticket, whole at once, as a kubelet does."""
        assert self.ticket is not None
        tickets.write(self.folder / "new", self.ticket)
        (self.folder / "new").rename(self.file)

    def close(self) -> None:
        Played.all_leave()
        if self.supervisors is not None:
            self.supervisors.close()
        for pod in self.pods:
            pod.close()
        self.port.close()


class Pod:
    """A process 1, or an ordinary process that does the same."""

    def __init__(
        self,
        driver: Driver,
        way: str = "a process",
        slots: int = 1,
        *,
        quick: bool = False,
        node: str = "",
    ) -> None:
        python = [*(FIRST if way == "process 1" else []), sys.executable, "-P"]
        if quick:
            command = [*python, "-c", RUN, str(driver.folder / "message"), str(slots), str(driver.file)]
        else:
            module = ["-m", "hopyard.engines.supervisors", str(slots), "none"]
            command = [*python, *module, "--ticket", str(driver.file)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HOPYARD_NODE": node},
        )
        self.first = self.process.pid if way == "a process" else until(lambda: children_of(self.process.pid))[0]
        self.seen: set[int] = set()
        driver.pods.append(self)

    def pairs(self) -> dict[int, int]:
        """Supervisor → its agent."""
        found = {one: agent for one in children_of(self.first) for agent in agents_of(one)}
        self.seen |= {*found, *found.values()}
        return found

    def end(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.first, number)

    def result(self) -> tuple[int, str, str]:
        """(exit code, standard output, standard error), once it has ended."""
        output, errors = self.process.communicate(timeout=60)
        return self.process.returncode, output, errors

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        assert gone(sorted(self.seen))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["a process", "process 1"])
def way(request: pytest.FixtureRequest) -> str:
    if request.param == "process 1" and not namespaces():
        pytest.skip("pid namespaces need root and unshare")
    return str(request.param)


def sentence(driver: Driver, errors: str) -> str:
    """The only sentence of a pod's errors, which is in its termination message too."""
    (line,) = errors.splitlines()
    assert (driver.folder / "message").read_text() == line
    return line


@pytest.fixture
def message(driver: Driver) -> Path:
    """What a container finds at /dev/termination-log."""
    path = driver.folder / "message"
    path.write_text("of before, and longer than what comes now " * 20)
    return path


@pytest.mark.slow
def test_a_pod_that_is_told_to_end_tells_the_driver(driver: Driver, way: str) -> None:
    supervisors = driver.open()
    driver.write()
    pod = Pod(driver, way, 2, node="n7")
    for slot in (3, 4):
        supervisors.start(slot)
    until(lambda: len(pod.pairs()) == 2)
    assert supervisors.hosts == {HERE: True}
    pod.end()
    lost: list[tuple[int, str]] = []
    until(lambda: lost.extend(supervisors.lost()) or len(lost) == 2)
    assert sorted(lost) == [(slot, f"its pod {HERE} on node n7 was told to end (SIGTERM)") for slot in (3, 4)]
    assert pod.result() == (143, "", "")
    assert gone(sorted(pod.seen))


@pytest.mark.slow
def test_frozen_processes_do_not_keep_a_pod(driver: Driver, way: str) -> None:
    supervisors = driver.open()
    driver.write()
    pod = Pod(driver, way)
    supervisors.start(3)
    ((supervisor, agent),) = until(lambda: pod.pairs().items())
    for process in (agent, supervisor):
        os.kill(process, signal.SIGSTOP)
    pod.end()
    assert until(supervisors.lost) == [(3, f"its pod {HERE} was told to end (SIGTERM)")]
    assert pod.result()[0] == 143
    assert gone([supervisor, agent])


@pytest.mark.slow
@pytest.mark.parametrize("what", ["the ticket", "the driver"])
def test_a_pod_is_told_to_end_while_it_waits_for(driver: Driver, way: str, what: str) -> None:
    with contextlib.ExitStack() as stack:
        if what == "the driver":  # which takes connections, and says nothing
            driver.ticket = Ticket("127.0.0.1", driver.port.getsockname()[1], TOKEN, certificate=driver.certificate)
            driver.write()
        pod = Pod(driver, way)
        if what == "the driver":
            stack.enter_context(driver.port.accept()[0])
        until(lambda: catches(pod.first, signal.SIGTERM))
        pod.end()
        assert pod.result() == (143, "", "")


def catches(process: int, number: int) -> bool:
    """Whether a process has a handler of this signal."""
    status = Path(f"/proc/{process}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) & 1 << (number - 1))


@pytest.mark.slow
def test_a_ticket_that_comes_late_and_a_driver_that_orders_to_leave(driver: Driver, way: str) -> None:
    supervisors = driver.open()
    supervisors.start(3)
    pod = Pod(driver, way, 2)
    until(lambda: catches(pod.first, signal.SIGTERM))
    assert supervisors.admitted_count == 0
    driver.write()
    until(lambda: pod.pairs() and supervisors.admitted_count == 2)
    supervisors.close()
    assert pod.result() == (0, "", "")


@pytest.mark.slow
def test_what_agents_print_is_printed_too(driver: Driver) -> None:
    supervisors = driver.open()
    driver.write()
    pod = Pod(driver)
    supervisors.start(3)
    ((_, agent),) = until(lambda: pod.pairs().items())
    until(lambda: catches(agent, signal.SIGUSR1))
    os.kill(agent, signal.SIGUSR1)  # it prints the stacks of its threads
    until(lambda: driver.log(3).exists() and "most recent call first" in driver.log(3).read_text())
    supervisors.close()
    code, output, errors = pod.result()
    assert (code, errors) == (0, "") and "most recent call first" in output
    assert output == driver.log(3).read_text()


@pytest.mark.slow
def test_output_that_nobody_reads_holds_up_no_agent() -> None:
    code = "from hopyard.engines.supervisors.supervisor import _echo; _echo(b'x' * 1_000_000)"
    read, write = os.pipe()
    try:
        subprocess.run([sys.executable, "-P", "-c", code], stdout=write, check=True, timeout=60)
        assert os.read(read, 10) == b"x" * 10
    finally:
        os.close(read)
        os.close(write)


@pytest.mark.slow
def test_orphans_are_reaped(driver: Driver, way: str) -> None:
    """A supervisor that is killed gets a successor, and what it leaves becomes its pod's."""
    supervisors = driver.open()
    driver.write()
    pod = Pod(driver, way, node="n7")
    supervisors.start(3)
    ((supervisor, agent),) = until(lambda: pod.pairs().items())
    os.kill(supervisor, signal.SIGKILL)
    assert until(supervisors.lost) == [(3, f"its supervisor on {HERE} on node n7 ended")]
    assert gone([supervisor, agent])
    supervisors.start(4)
    ((successor, _),) = until(lambda: pod.pairs().items())
    assert successor != supervisor
    until(lambda: children_of(pod.first) == [successor])


@pytest.mark.slow
def test_a_pod_that_is_killed_leaves_nothing(driver: Driver, way: str) -> None:
    supervisors = driver.open()
    driver.write()
    pod = Pod(driver, way)
    supervisors.start(3)
    until(lambda: pod.pairs())
    pod.end(signal.SIGKILL)
    until(supervisors.lost)
    assert gone(sorted(pod.seen))


@pytest.mark.slow
def test_a_driver_that_is_killed_lets_pods_end(driver: Driver, way: str) -> None:
    command = [sys.executable, "-P", "-c", DRIVER, str(driver.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            pod = Pod(driver, way, 2, quick=True)
            assert process.stdout is not None
            assert any(line == "2\n" for line in process.stdout)
        finally:
            process.kill()
    assert pod.result()[:2] == (0, "")


@pytest.mark.slow
def test_orphans_end_in_a_pod_that_was_cut_off(driver: Driver) -> None:
    """What an agent has started, and whose parent has ended, has no parent there but process 1."""
    if not namespaces():
        pytest.skip("pid namespaces need root and unshare")
    command = [sys.executable, "-P", "-c", DRIVER, str(driver.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            pod = Pod(driver, "process 1")
            assert process.stdout is not None
            assert any(line == "1\n" for line in process.stdout)
            inside = ["nsenter", "--target", str(pod.first), "--pid"]
            subprocess.run([*inside, "sh", "-c", "setsid sleep 600 &"], check=True)
            (orphan,) = until(lambda: [pid for pid in children_of(pod.first) if "sleep" in command_of(pid)])
            time.sleep(host.ORPHANED_SECONDS + host.LOOK_SECONDS + 0.5)
            assert alive([orphan])
        finally:
            process.kill()
    assert gone([orphan], 5.0)
    assert alive([pod.first])


def command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().decode()
    except OSError:
        return ""


@pytest.mark.slow
def test_a_pod_without_a_ticket(driver: Driver, message: Path) -> None:
    code, output, errors = Pod(driver, quick=True).result()
    assert (code, output) == (1, "")
    assert sentence(driver, errors).startswith(f"{HERE} has no ticket: {driver.file} has not come within")


@pytest.mark.slow
def test_a_ticket_that_others_may_read(driver: Driver, message: Path) -> None:
    driver.open()
    driver.write()
    driver.file.chmod(0o644)
    assert Pod(driver, quick=True).result()[0] == 78
    assert "has mode 0644" in message.read_text()


@pytest.mark.slow
def test_a_pod_that_cannot_reach_the_driver(driver: Driver, message: Path, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    driver.ticket = Ticket("127.0.0.1", port, TOKEN, certificate=driver.certificate)
    driver.write()
    code, output, errors = Pod(driver, way, 3, quick=True, node="n7").result()
    assert (code, output) == (78, "")
    assert sentence(driver, errors).startswith(f"{HERE} on node n7 cannot reach the driver at 127.0.0.1:{port} (")


@pytest.mark.slow
def test_a_pod_of_another_version(driver: Driver, message: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("hopyard.engines.supervisors.record.__version__", "9.9")
    supervisors = driver.open(expected=4)
    driver.write()
    code, output, errors = Pod(driver, way, 3, quick=True, node="n7").result()
    assert (code, output) == (78, "")
    text = sentence(driver, errors)
    assert text.startswith(f"{HERE} on node n7 has another version of Hopyard") and "the driver has 9.9" in text
    assert supervisors.refusals == [text.replace(f"{HERE} on", "a supervisor on")] and supervisors.lost() == []


@pytest.mark.slow
def test_a_pod_without_a_framework_that_the_run_requires(driver: Driver, message: Path, way: str) -> None:
    """Its slot waits for another one, and is not lost."""
    supervisors = driver.open(expected=2, required=("json", "no_such_framework"))
    driver.write()
    supervisors.start(3)
    code, output, errors = Pod(driver, way, quick=True).result()
    assert (code, output) == (78, "")
    assert sentence(driver, errors).startswith(f"{HERE} has no no_such_framework in {sys.executable}")
    until(lambda: supervisors.admitted_count == 0)
    assert supervisors.lost() == [] and supervisors.waits(3)


@pytest.mark.slow
def test_a_framework_that_only_agents_find(driver: Driver) -> None:
    """By the path that the run sets for them."""
    (driver.folder / "only_there.py").touch()
    driver.prepare = replace(driver.prepare, env={"PYTHONPATH": str(driver.folder)})
    supervisors = driver.open(required=("only_there",))
    driver.write()
    pod = Pod(driver)
    supervisors.start(3)
    until(pod.pairs)
    assert supervisors.refusals == []
