"""Two hosts that share nothing but the network, each with a real sshd (`hosts.py`): runs on them give the digests of
`Local` whatever breaks, and leave nothing behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import programs
from gang_jobs import network
from hopyard.core.runs.events import Done, Durable, Joined
from hosts import Hosts
from jobs import CONFIGS, dataset, digests, driver, gone, journal, losses, script, select, troubled, until

pytestmark = pytest.mark.slow

MANY = [*CONFIGS, *({"lr": 0.002 * n} for n in range(1, 5))]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    shared = tmp_path_factory.mktemp("shared")
    made = Hosts(tmp_path_factory.mktemp("hosts"), shared=[shared])
    yield made
    made.close()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return digests(select(tmp_path_factory.mktemp("inline") / "run", configs=MANY, epochs=2))


@pytest.fixture(autouse=True)
def nothing_left(hosts: Hosts) -> Iterator[None]:
    yield
    assert hosts.nothing_left(), {name: hosts.hopyard(name) for name in hosts.names}


def engine(hosts: Hosts, **more: Any) -> hy.Hosts:
    return hy.Hosts(["alpha:1", "beta:1"], ssh=hosts.ssh, **more)


def waiting(hosts: Hosts, name: str) -> list[dict[str, Any]]:
    """Trials of which the first two wait, in the middle of their epochs, for a file on what the hosts share."""
    configs = [dict(config) for config in MANY]
    for n in range(2):
        configs[n] |= {"at": 8, "do": f"wait for {hosts.shared / name}"}
    return configs


def joined(directory: Path, count: int) -> dict[str, Joined]:
    """Host → its worker, once so many are there."""
    return until(lambda: found if len(found := _joined(directory)) >= count else None)


def _joined(directory: Path) -> dict[str, Joined]:
    try:
        return {line.host: line for line in journal(directory) if isinstance(line, Joined)}
    except (FileNotFoundError, hy.HopyardError):
        return {}


def test_a_selection_gives_the_same_bits_on_hosts_that_share_nothing(
    hosts: Hosts, tmp_path: Path, expected: list[str]
) -> None:
    met = hosts.shared / "met"
    met.mkdir()
    configs = [{**config, "at": 3, "do": f"meet {met}"} for config in MANY]
    run = select(tmp_path / "run", troubled, configs, engine=engine(hosts))
    assert digests(run) == expected
    assert set(_joined(tmp_path / "run")) == {"alpha", "beta"} and not losses(tmp_path / "run")


def test_the_report_says_what_hosts_have_fetched(hosts: Hosts, tmp_path: Path) -> None:
    """Rows that no host has before; then another run over the same, for which nothing is fetched twice."""
    data = dataset(rows=252)
    size, total = data.prepare().bytes, dict.fromkeys(hosts.names, 0)
    for name in ("first", "second"):
        met = hosts.shared / f"met {name}"
        met.mkdir()
        configs = [{**config, "at": 3, "do": f"meet {met}"} for config in MANY]
        run = select(tmp_path / name, troubled, configs, data=data, engine=engine(hosts))
        records = run.summary()["hosts"]
        assert set(records) == set(_joined(tmp_path / name)) == {"alpha", "beta"}
        for host, record in records.items():
            total[host] += record["fetched_bytes"]
            assert 0 < record["rows_bytes"] <= total[host] <= size and record["peak_bytes"] > 1 << 20
            assert name == "second" or record["rows_bytes"] == record["fetched_bytes"]
        assert sum(record["rows_bytes"] for record in records.values()) >= size
        assert "\nHosts (" in run.report()


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "what",
    [
        "agent",
        pytest.param("agent, frozen", marks=LONG),
        pytest.param("supervisor", marks=LONG),
        pytest.param("host process", marks=LONG),
        pytest.param("sshd", marks=LONG),
        pytest.param("cut off", marks=LONG),
    ],
)
def test_a_host_costs_its_slot_and_the_run_goes_on(
    hosts: Hosts, tmp_path: Path, expected: list[str], what: str
) -> None:
    """Whatever is killed, stopped or cut, on one of them; its trial goes on elsewhere, from its last State."""
    go = hosts.shared / f"go {what}"
    run = select(
        tmp_path / "run",
        troubled,
        waiting(hosts, go.name),
        engine=engine(hosts),
        wait=False,
        timeouts=hy.Timeouts(heartbeat_timeout=3.0 if "frozen" in what else 15.0),
    )
    slot = joined(tmp_path / "run", 2)["beta"].slot
    until(lambda: [line for line in journal(tmp_path / "run") if isinstance(line, Durable) and line.slot == slot])
    tree = hosts.tree("beta")
    try:
        if what == "cut off":
            hosts.network.cut("beta")
        else:
            part = what.partition(",")[0]
            os.kill(tree[part], signal.SIGSTOP if "frozen" in what else signal.SIGKILL)
        until(lambda: losses(tmp_path / "run"))
        if what == "cut off":  # before it is there again
            assert hosts.nothing_left(["beta"], seconds=60), hosts.hopyard("beta")
    finally:
        hosts.network.mend("beta")
        go.touch()
    run.wait(timeout=100)
    assert digests(run) == expected
    assert len(losses(tmp_path / "run")) == 1
    assert [line for line in journal(tmp_path / "run") if isinstance(line, Done) and line.hop_bytes], "nothing hopped"
    assert gone([pid for name, pid in tree.items() if name != "sshd"])


@LONG
def test_a_driver_that_is_killed_leaves_nothing_and_is_resumed(
    hosts: Hosts, tmp_path: Path, expected: list[str]
) -> None:
    """On the hosts, and here."""
    go = hosts.shared / "go on"
    body = (
        f"engine = hy.Hosts(['alpha:1', 'beta:1'], ssh={hosts.ssh!r})\n"
        f"select(Path('run'), troubled, {waiting(hosts, go.name)!r}, engine=engine)"
    )
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    joined(tmp_path / "run", 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert hosts.nothing_left()
    go.touch()
    shutil.copytree(tmp_path / "run", tmp_path / "here")
    for name, engine in {"run": None, "here": hy.Local(1)}.items():
        assert digests(hy.resume(tmp_path / name, engine=engine)) == expected


def test_a_wrong_key_a_refused_login_and_a_wrong_python(hosts: Hosts, tmp_path: Path) -> None:
    """One sentence with the host's name, before anything is started."""
    (tmp_path / "known").write_text((hosts.folder / "known").read_text().replace("beta", "gamma"))
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    settings = (hosts.folder / "config").read_text().replace(str(hosts.folder / "id"), str(tmp_path / "other"))
    (tmp_path / "config").write_text(settings)
    cases: dict[str, dict[str, Any]] = {
        "beta: Host key verification failed": {"ssh": f"{hosts.ssh} -o UserKnownHostsFile={tmp_path / 'known'}"},
        "beta: root@.*Permission denied": {"ssh": f"ssh -F {tmp_path / 'config'}"},
        "beta has no Python at /nowhere/python": {"python": "/nowhere/python"},
        "beta has Python 2": {"python": "/opt/hopyard-sshd/python"},
        "connect to host .* port 1: Connection refused": {"ssh": f"{hosts.ssh} -p 1"},
    }
    hosts.run("beta", "sh", "-c", """
mkdir -p /opt/hopyard-sshd
echo '#!/bin/sh
echo "hopyard-host {\\"python\\": \\"2.7\\", \\"host\\": \\"b\\", \\"time\\": 0}"' > /opt/hopyard-sshd/python
chmod 755 /opt/hopyard-sshd/python""")  # fmt: skip
    for message, more in cases.items():
        with pytest.raises(hy.ResourceError, match=message):
            select(tmp_path / "run", engine=hy.Hosts(["beta:1"], **{"ssh": hosts.ssh} | more))
        assert not (tmp_path / "run").exists()
    with pytest.raises(hy.ResourceError, match=r"gamma: .*not resolve hostname"):
        hy.Hosts(["gamma"], ssh=hosts.ssh).workers  # noqa: B018


def test_hosts_join_with_a_ticket_and_no_login(hosts: Hosts, tmp_path: Path, expected: list[str]) -> None:
    """They stand by, and take part in one run after the other; one comes in the middle."""
    path = hosts.shared / "pool.ticket"
    hopyard = [sys.executable, "-P", "-m", "hopyard"]
    made = subprocess.run(
        [*hopyard, "ticket", str(path), "--address", hosts.network.own, "--port", "7700"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "hopyard agent --join" in made.stdout
    pool = [hosts.start("alpha", *hopyard, "agent", "--join", str(path), "--slots", "1")]
    try:
        for number in range(2):
            configs = [{**config, "at": 3, "do": f"meet {hosts.shared / f'met {number}'}"} for config in MANY]
            (hosts.shared / f"met {number}").mkdir()
            run = select(
                tmp_path / f"run {number}", troubled, configs, engine=hy.Hosts(join=path, workers=2), wait=False
            )
            if not number:
                joined(tmp_path / "run 0", 1)
                pool.append(hosts.start("beta", *hopyard, "agent", "--join", str(path), "--slots", "1"))
            run.wait(timeout=100)
            assert digests(run) == expected and not losses(tmp_path / f"run {number}")
            assert set(_joined(tmp_path / f"run {number}")) == {"alpha", "beta"}
    finally:
        for process in pool:
            process.kill()
            process.wait()


@LONG
def test_the_command_line(hosts: Hosts, tmp_path: Path) -> None:
    """`run` and `doctor`."""
    hopyard = [sys.executable, "-P", "-m", "hopyard"]
    on = ["--hosts", "alpha:1,beta:1", "--ssh", hosts.ssh]
    job = script(tmp_path / "job.py", "select(Path('run'), engine=None)")
    done = subprocess.run([*hopyard, "run", *on, str(job)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(_joined(tmp_path / "run")) <= {"alpha", "beta"}
    done = subprocess.run([*hopyard, "doctor", *on], capture_output=True, text=True, check=False)
    assert re.search(r"ok +alpha +1 worker; .* cores?, no GPU; torch.*it calls itself alpha", done.stdout), done.stdout
    assert re.search(rf"ok +reach +all dial this host at {re.escape(hosts.network.own)}, and each other", done.stdout)
    hosts.network.block("alpha", "beta")
    try:
        done = subprocess.run([*hopyard, "doctor", *on], capture_output=True, text=True, check=False)
    finally:
        hosts.network.unblock("alpha", "beta")
    assert re.search(r"warn +reach +beta cannot dial alpha at 10\.\S+:\d+: ", done.stdout), done.stdout


TASK = """
import os, sys
print(os.environ["RANK"], os.environ["MASTER_ADDR"], os.uname().nodename, flush=True)
"""


@LONG
def test_a_gang_over_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """Its members meet over the run's wire, and exchange gradients from host to host. Each host fetches all rows that
    train."""
    data = dataset(rows=244)
    arguments: dict[str, Any] = {"epochs": 2, "parallel": hy.AllReduce()}
    run = hy.fit(network, {"lr": 0.05}, data, engine=engine(hosts), directory=tmp_path / "run", **arguments)
    assert set(_joined(tmp_path / "run")) == {"alpha", "beta"}
    local = hy.fit(
        network, {"lr": 0.05}, data, engine=hy.Local(2, devices=None), directory=tmp_path / "local", **arguments
    )
    assert digests(run) == digests(local)
    records = run.summary()["hosts"]
    train = sum(part.bytes for part in data.prepare().train)
    for record in records.values():  # validation runs on one of them
        assert train <= record["fetched_bytes"] == record["rows_bytes"] <= data.prepare().bytes
        assert record["exchanged_bytes"] == run.summary()["exchanged_bytes"] / 2 > 0
        assert record["peak_bytes"] > 1 << 20


@LONG
def test_over_ipv6(hosts: Hosts, tmp_path: Path) -> None:
    """Addresses that go into URLs, certificates and messages have colons."""
    hosts.network.add_ipv6()
    names = [f"[{hosts.network.six[name]}]:1" for name in hosts.names]
    six = hy.Hosts(names, ssh=f"{hosts.ssh} -o HostKeyAlias=alpha")
    assert six.endpoint == (hosts.network.own_six, 0)
    run = select(tmp_path / "run", engine=six)
    assert digests(run) == digests(select(tmp_path / "inline"))


@pytest.mark.programs
@LONG
def test_a_program_is_fed_over_hosts(hosts: Hosts, tmp_path: Path) -> None:
    program = hy.launch(
        programs.collects, roles={"worker": 2}, engine=engine(hosts), directory=tmp_path / "program", until="all"
    )
    program.feed([{"a": n} for n in range(1000)])
    assert program.wait(timeout=60).status == "completed"
    tasks = program.summary()["tasks"]
    assert sum(task["values"]["rows"] for task in tasks) == 1000
    assert sum(task["values"]["total"] for task in tasks) == sum(range(1000))
    assert {task["host"] for task in tasks} == {"alpha", "beta"}


@pytest.mark.programs
def test_a_program_over_hosts(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    program = hy.launch(
        tmp_path / "task.py", [], roles={"worker": 2}, engine=engine(hosts), directory=tmp_path / "program"
    ).wait(timeout=60)
    assert program.status == "completed"
    assert {task["host"] for task in program.summary()["tasks"]} == {"alpha", "beta"}


@pytest.mark.programs
@LONG
def test_tensorboard_of_a_program_over_hosts(hosts: Hosts, tmp_path: Path) -> None:
    """It listens on the first task's host, whose name nobody else knows, at the address by which it is reached."""
    pytest.importorskip("tensorboard")
    logs = "/tmp/summaries"
    with hy.launch(
        programs.summarizes,
        logs,
        roles={"worker": 2},
        engine=engine(hosts),
        directory=tmp_path / "program",
        tensorboard=logs,
    ) as program:
        address, points = programs.page_of(program)
        [first] = [task["host"] for task in program.summary()["tasks"] if task["index"] == 0]
        assert (address, points) == (hosts.network.addresses[first], programs.SUMMARIES)
