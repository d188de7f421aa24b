"""Hosts: which values it takes, what it says of hosts that cannot be used, and runs by a command that plays ssh."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pickle
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hopyard as hy
from hopyard.cli import app
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Began, Joined, Resumed
from hopyard.doctor import examine_hosts
from hopyard.engines import survey
from hopyard.engines.hosts import ssh as module
from hopyard.engines.hosts.login import Login
from hopyard.engines.hosts.reach import PEER
from hopyard.engines.hosts.ssh import SshTarget, targets
from hopyard.engines.supervisors import ticket as tickets
from hopyard.ports.engines import LaunchInfo
from hosts import played_ssh
from jobs import CONFIGS, agents, alive, dataset, digests, driver, free_port, gone, journal, script, select, troubled


@pytest.fixture
def ssh(tmp_path: Path) -> str:
    return played_ssh(tmp_path)


def test_how_hosts_are_named() -> None:
    assert targets("Hosts(hosts)", ["a", "b:4", "user@c", "user@d.lab:2", "[2001:db8::1]:3", "::1", "u@fe80::2"]) == (
        SshTarget("a", None),
        SshTarget("b", 4),
        SshTarget("user@c", None),
        SshTarget("user@d.lab", 2),
        SshTarget("2001:db8::1", 3),
        SshTarget("::1", None),
        SshTarget("u@fe80::2", None),
    )


@pytest.mark.parametrize(
    ("hosts", "more", "message"),
    [
        ("a,b", {}, r"Hosts\(hosts\) must .*, got 'a,b'"),
        ([], {}, r"Hosts\(hosts\) must be"),
        (["a", 3], {}, r"Hosts\(hosts\) must be"),
        (["-oProxyCommand=x"], {}, r"got '-oProxyCommand=x'"),
        (["x@-oProxyCommand=y"], {}, r"got 'x@-oProxyCommand=y'"),
        (["a\0:1"], {}, r"Hosts\(hosts\) must be"),
        (["a b"], {}, "got 'a b'"),
        (["a:0"], {}, "got 'a:0'"),
        (["a", "a:2"], {}, r"'a' appears twice; a:4 are four workers"),
        (["a"], {"workers": 2}, r'"a:4"'),
        (["a"], {"threads": 0}, r"Hosts\(threads=\) must be .*, got 0"),
        (["a"], {"ssh": ""}, r"Hosts\(ssh=\) must be a command"),
        (["a"], {"ssh": "ssh 'x"}, r"Hosts\(ssh=\): .* is no command"),
        (["a"], {"devices": [0]}, r'Hosts\(devices=\) must be "auto" or None'),
        (["a"], {"port": 65534}, r"Hosts\(port=\) must be .*, got 65534"),
        (["a"], {"address": ""}, r"Hosts\(address=\) must be .*, got ''"),
        (["a"], {"python": ""}, r"Hosts\(python=\) must be the path"),
        (["a"], {"env": {"A": 1}}, r"Hosts\(env=\)\['A'\], of type int"),
        (None, {}, "either a list"),
        (["a"], {"join": "x"}, "either a list"),
        (None, {"join": "x"}, "say how many workers"),
        (None, {"join": "x", "workers": 1, "port": 3}, "address and port"),
    ],
)
def test_values_that_are_not_allowed(hosts: Any, more: dict[str, Any], message: str) -> None:
    with pytest.raises(hy.SpecError, match=message):
        hy.Hosts(hosts, **more)


def test_a_pickle_has_no_secrets_and_asks_hosts_again(ssh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = hy.Hosts(["a:2", "[::1]:3"], ssh=ssh, env={"PASSWORD": "the secret"}, port=7000, threads=2)
    data = pickle.dumps(engine)
    assert b"the secret" not in data and "the secret" not in repr(engine)
    monkeypatch.setenv("PASSWORD", "x")
    again = pickle.loads(data)
    assert repr(again) == repr(engine) == "Hosts(['a:2', '[::1]:3'])"
    assert (again.ssh, again.threads, again.endpoint[1], again.env) == (engine.ssh, 2, 7000, {"PASSWORD": "x"})
    assert again.workers == 5


def answer(**fields: Any) -> str:
    """What a host answers, as a line of a shell."""
    line = json.dumps({"python": module.PYTHON, "host": "b", "time": 0} | fields)  # type: ignore[attr-defined]
    return f"echo; echo 'hopyard-host {line}'"


def said(tmp_path: Path, body: str, **more: Any) -> str:
    """What is said of a host whose login does `body`."""
    path = tmp_path / "ssh"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    with pytest.raises(hy.ResourceError) as caught:
        hy.Hosts(["beta:1"], ssh=str(path), **more).workers  # noqa: B018
    assert "\n" not in str(caught.value)
    return str(caught.value)


HEAVY = 'shift $(($# - 1)); exec sh -c "$1"'
"""Runs the command."""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo banner >&2; echo 'Host key verification failed.' >&2; exit 255",
         r"beta: Host key verification failed\.; try `.*/ssh beta true`"),
        ("echo 'root@beta: Permission denied (publickey).' >&2; exit 255", r"beta: root@beta: Permission denied"),
        ("exit 255", r"beta: exit code 255; try"),
        ("echo 'sh: 1: /opt/py: not found' >&2; exit 127",
         r"beta has no Python at .*not found\); give hy\.Hosts\(python="),
        (answer(python="3.9"),
         r"beta has Python 3\.9 as .*, and this process is \d\.\d+: .*give hy\.Hosts\(python=…\) a Python"),
        (answer(fault="No module named msgspec"),
         r"beta has no Hopyard in .* \(No module named msgspec\): install it there \(pip install hopyard=="),
        (answer(version="0.0.1"),
         r"beta has Hopyard 0\.0\.1 in .*, and this process \d.*: install the same on both"),
        ("echo 'hopyard-host {}'", "beta answers what cannot be read"),
        ("echo Traceback >&2; echo 'ValueError: x' >&2; exit 1", "beta: ValueError: x"),
        ("printf 'a\\007b\\n' >&2; exit 255", r"beta: a\\x07b"),
    ],
)  # fmt: skip
def test_an_unusable_host_is_reported(tmp_path: Path, body: str, message: str) -> None:
    assert re.search(message, said(tmp_path, body))


def test_a_missing_command_is_reported() -> None:
    with pytest.raises(hy.ResourceError, match=r"a: /nowhere/ssh cannot be run: .*; b: /nowhere/ssh cannot be run"):
        hy.Hosts(["a:1", "b:1"], ssh="/nowhere/ssh").workers  # noqa: B018


def test_the_probe_of_a_real_python(tmp_path: Path, ssh: str) -> None:
    (tmp_path / "hopyard.py").write_text("raise SystemExit(9)")  # in the folder of the login: no concern of ours
    (host,) = hy.Hosts(["user@beta"], ssh=ssh, python=sys.executable).surveyed
    assert host.slots == (len(host.gpus) or len(os.sched_getaffinity(0))) and abs(host.clock) < 5
    assert "torch" in host.frameworks
    assert re.search(r"has no Python at /nowhere/python \(.*not found", said(tmp_path, HEAVY, python="/nowhere/python"))


def test_a_host_whose_gpus_are_left_alone_has_a_worker_for_each_core(tmp_path: Path) -> None:
    path = tmp_path / "ssh"
    path.write_text(f"#!/bin/sh\n{answer(version=hy.__version__, cores=7, gpus=['0', '1'])}\n")
    path.chmod(0o700)
    assert hy.Hosts(["beta"], ssh=str(path)).workers == 2
    assert hy.Hosts(["beta"], ssh=str(path), devices=None).workers == 7


@pytest.mark.parametrize("code", [survey.ASK, PEER])
def test_the_probe_of_a_host_is_one_line(code: str) -> None:
    """Bug: csh as login shell said "Unmatched '"."""
    line = survey.one_line(code)
    assert "\n" not in line and "!" not in line
    assert eval(line.removeprefix("exec")) == code


def test_the_address_that_hosts_dial(monkeypatch: pytest.MonkeyPatch) -> None:
    towards = {"a": "10.0.0.1", "b": "10.0.0.1", "c": "192.168.0.1", "d": "", "here": "127.0.0.1"}
    monkeypatch.setattr("hopyard.engines.hosts.engine.address_for", lambda ssh, target: towards[target.host])
    assert hy.Hosts(["a", "b", "here"]).endpoint == ("10.0.0.1", 0)
    assert hy.Hosts(["here"], port=7000).endpoint == ("127.0.0.1", 7000)
    assert hy.Hosts(["a", "c"], address="head.lab").endpoint == ("head.lab", 0)
    with pytest.raises(
        hy.SpecError, match=r"a is reached from 10\.0\.0\.1, c is reached from 192\.168\.0\.1: give addr"
    ):
        hy.Hosts(["a", "c"]).endpoint  # noqa: B018
    with pytest.raises(hy.SpecError, match=r": d is no name .*address="):
        hy.Hosts(["a", "d"]).endpoint  # noqa: B018


# ------------------------------------------------------------------------------------------ tickets


def test_a_run_whose_ticket_is_gone_can_still_be_read(tmp_path: Path) -> None:
    """Its pickle has the path alone; who goes on with the run needs the ticket, or gives an engine."""
    tickets.write(tmp_path / "pool.ticket", tickets.new("head.lab", 7700))
    data = pickle.dumps(hy.Hosts(join=tmp_path / "pool.ticket", workers=2))
    assert b"PRIVATE" not in data
    assert pickle.loads(data).endpoint == ("head.lab", 7700)
    (tmp_path / "pool.ticket").unlink()
    engine = pickle.loads(data)
    assert engine.workers == 2
    with pytest.raises(hy.UsageError, match=r"pool\.ticket cannot be read"):
        engine.endpoint  # noqa: B018


def test_a_ticket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "pool.ticket"
    ticket = tickets.new("head.lab", 7700)
    tickets.write(path, ticket)
    assert path.stat().st_mode & 0o777 == 0o600
    assert tickets.read(path) == ticket and ticket.port == 7701
    assert ticket.token not in repr(ticket) and "PRIVATE" not in repr(ticket)
    assert hy.Hosts(join=path, workers=2).endpoint == ("head.lab", 7700)
    with pytest.raises(hy.UsageError, match="is there already"):
        tickets.write(path, ticket)
    path.chmod(0o640)
    with pytest.raises(hy.UsageError, match=r"has mode 0640: others may read it.*chmod 600"):
        tickets.read(path)
    path.chmod(0o600)
    path.write_text("[]")
    with pytest.raises(hy.UsageError, match=r"pool\.ticket: .*no ticket"):
        hy.Hosts(join=path, workers=2).endpoint  # noqa: B018
    with pytest.raises(hy.UsageError, match=r"cannot be read: No such file.*`hopyard ticket` makes one"):
        tickets.read(tmp_path / "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_ticket_in_a_secret_is_for_the_group_that_it_is_mounted_for(tmp_path: Path) -> None:
    """As Kubernetes mounts one for `fsGroup`: root's, by links that are exchanged when it changes."""
    file, path = tmp_path / "..2026_1" / "ticket", tmp_path / "ticket"
    file.parent.mkdir()
    (tmp_path / "..data").symlink_to(file.parent.name)
    path.symlink_to("..data/ticket")
    ticket = tickets.new("head.lab", 7700)
    tickets.write(file, ticket)
    own, foreign = os.getegid(), max(os.getgroups(), default=0) + 1
    for owner, group, mode, read in [
        (0, own, 0o440, True),
        (0, own, 0o400, True),
        (0, foreign, 0o400, True),
        (0, foreign, 0o440, False),
        (1, own, 0o440, False),
        (0, own, 0o640, False),
        (0, own, 0o460, False),
        (0, own, 0o444, False),
    ]:
        os.chown(file, owner, group)
        file.chmod(mode)
        if read:
            assert tickets.read(path) == ticket
        else:
            with pytest.raises(hy.UsageError, match=f"ticket has mode {mode:04o}"):
                tickets.read(path)


def test_a_pickle_opens_elsewhere_and_without_its_ticket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the pickle of a run did not load where its ticket was deleted, or its path was relative."""
    monkeypatch.chdir(tmp_path)
    tickets.write(Path("pool.ticket"), tickets.new("head.lab", 7700))
    data = pickle.dumps(hy.Hosts(join="pool.ticket", workers=2))
    monkeypatch.chdir("/")
    assert pickle.loads(data).endpoint == ("head.lab", 7700)
    (tmp_path / "pool.ticket").unlink()
    assert pickle.loads(data).join == str(tmp_path / "pool.ticket")


@pytest.mark.parametrize("address", ["", "head lab"])
def test_a_ticket_is_refused_an_address_that_cannot_be_dialled(tmp_path: Path, address: str) -> None:
    refused = CliRunner().invoke(app, ["ticket", str(tmp_path / "pool.ticket"), "--address", address])
    assert refused.exit_code == 2 and "--address must be" in refused.stderr
    assert not (tmp_path / "pool.ticket").exists()


def test_a_ticket_that_does_not_fit_on_the_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(ticket: tickets.Ticket) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tickets, "line_of", full)
    with pytest.raises(hy.UsageError, match=r"pool\.ticket cannot be written: No space left on device"):
        tickets.write(tmp_path / "pool.ticket", tickets.new("head.lab", 7700))
    assert not (tmp_path / "pool.ticket").exists()


def test_an_agent_refuses_a_ticket_that_others_may_read(tmp_path: Path) -> None:
    path = tmp_path / "pool.ticket"
    made = CliRunner().invoke(app, ["ticket", str(path), "--address", "head.lab"])
    assert made.exit_code == 0 and f"hopyard agent --join {path}" in made.stdout
    path.chmod(0o644)
    refused = CliRunner().invoke(app, ["agent", "--join", str(path)])
    assert refused.exit_code == 2 and "has mode 0644: others may read it" in refused.stderr


# ------------------------------------------------------------------------------------------ logins


def test_a_login_by_a_wrapper_that_stays_is_cut_with_all_that_it_started(tmp_path: Path) -> None:
    """Bug: only the wrapper was killed, and its child, which held standard error, kept the driver for ever."""
    path = tmp_path / "ssh"
    path.write_text(f"#!/bin/sh\nsleep 30 &\necho $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/child\nwait\n")
    path.chmod(0o700)
    login = Login([str(path)], SshTarget("beta", 1), "python", 1, "none", tickets.new("head.lab", 7700))
    login.begin()
    end = time.monotonic() + 60
    while not (tmp_path / "child").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    login.close(time.monotonic())
    assert gone([int((tmp_path / "child").read_text())])
    assert not login._thread.is_alive()


def test_output_of_a_host_is_escaped() -> None:
    login = Login(["ssh"], SshTarget("beta", 1), "python", 1, "none", tickets.new("head.lab", 7700))
    assert login._explained(3, "a\x1b[2Jb\n").startswith(r"beta: a\x1b[2Jb: give hy.Hosts(address=")
    assert login._explained(78, "banner\nb has no \x1b[2Jtorch\n") == r"b has no \x1b[2Jtorch"


# ------------------------------------------------------------------------------------------ the command line


@pytest.mark.slow
def test_doctor_looks_at_hosts(tmp_path: Path, ssh: str) -> None:
    found = examine_hosts(hy.Hosts(["a:1", "b:2"], ssh=ssh, port=free_ports()))
    assert [finding.name for finding in found] == ["a", "b", "ssh", "reach"]
    assert all(finding.ok for finding in found)
    assert found[1].text.startswith("2 workers; ") and "this host at 127.0.0.1" in found[3].text
    (*_, reach) = examine_hosts(hy.Hosts(["a:1"], ssh=ssh, address="192.0.2.1"))  # of a network for examples
    assert not reach.ok


def free_ports() -> int:
    """The first of three that are free."""
    while True:
        port = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for n in (1, 2):
                stack.enter_context(socket.create_server(("127.0.0.1", port + n)))
            return port


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--hosts", "a:0"], "got 'a:0'"),
        (["run", "--python", "/x"], "--python and --ssh go with --hosts"),
        (["launch", "--roles", "worker=1", "--hosts", "a:1", "--engine", "spark"], "leave --engine and --master out"),
        (["resume", "--hosts", "a:1", "--workers", "2"], "the number stands with the option: --hosts a:2"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, words: list[str], message: str) -> None:
    path = tmp_path / "script.py"
    path.touch()
    refused = CliRunner().invoke(app, [*words, str(path)])
    assert refused.exit_code == 2 and message in refused.stderr


# ------------------------------------------------------------------------------------------ runs


def on_hosts(directory: Path, ssh: str, **more: Any) -> Any:
    return select(directory, engine=hy.Hosts(["a:1", "b:1"], ssh=ssh), **more)


@pytest.mark.slow
def test_a_selection_and_a_worker_that_is_killed(tmp_path: Path, ssh: str) -> None:
    configs = [dict(config) for config in CONFIGS]
    configs[1] |= {"at": 15, "do": "kill", "once": str(tmp_path / "once")}
    run = on_hosts(tmp_path / "run", ssh, recipe=troubled, configs=configs)
    assert digests(run) == digests(select(tmp_path / "inline"))
    (lost,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    assert re.search(r"process \d+ on \S+ was killed by SIGKILL", lost.reason)
    assert gone(agents(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "copies", "workers"), [(["a:1", "b:1"], 1, 2), (["a:1", "b:1"], None, 0), (["a:2"], 1, 0)]
)
def test_the_journal_says_by_how_many_workers_partitions_are_cut(
    tmp_path: Path, ssh: str, caplog: pytest.LogCaptureFixture, hosts: list[str], copies: int | None, workers: int
) -> None:
    parallel = hy.Hopper(copies=copies)
    select(tmp_path / "run", engine=hy.Hosts(hosts, ssh=ssh), data=dataset(partitions=3), parallel=parallel)
    began, *_ = journal(tmp_path / "run")
    assert isinstance(began, Began) and began.workers == workers
    assert ("3 partitions over 2 workers" in caplog.text) == bool(workers)
    with pytest.warns(UserWarning, match="cores") if len(os.sched_getaffinity(0)) < 2 else contextlib.nullcontext():
        hy.resume(tmp_path / "run", engine=hy.Local(2, devices=None), epochs=3)
    (resumed,) = [line for line in journal(tmp_path / "run") if isinstance(line, Resumed)]
    assert resumed.workers == 0


def launch(tmp_path: Path) -> LaunchInfo:
    card = b'{"slot": 0, "address": "tcp://127.0.0.1:%d", "server_key": "", "public_key": "", "secret_key": ""}\n'
    return LaunchInfo(lambda slot: card % free_port(), lambda slot: tmp_path / f"{slot}.log")


@pytest.mark.slow
def test_hosts_that_cannot_reach_the_driver_are_named_with_its_address(tmp_path: Path) -> None:
    """As behind a firewall: the login works, and the ports are closed."""
    path = tmp_path / "ssh"
    path.write_text("""#!/bin/sh
shift $(($# - 1)); case "$1" in *supervisors*) read ticket; sed -E 's/"port":[0-9]+/"port":1/' <<EOF | sh -c "$1"
$ticket
EOF
exit 3;; *) exec sh -c "$1"; esac
""")
    path.chmod(0o700)
    agents = hy.Hosts(["beta:1"], ssh=str(path), address="127.0.0.1").open(launch(tmp_path))
    try:
        agents.start(0)
        with pytest.raises(hy.ResourceError, match=r"beta: \S+ cannot reach .*127\.0\.0\.1:1 \(.*refused\)"):
            for _ in range(1000):
                agents.lost()
                time.sleep(0.01)
    finally:
        agents.close()


@pytest.mark.slow
def test_agents_that_cannot_reach_the_driver_do_not_dial_for_ever(tmp_path: Path, ssh: str) -> None:
    """The port of supervisors is open, that of messages is not."""
    agents = hy.Hosts(["beta:1"], ssh=ssh).open(launch(tmp_path))
    try:
        agents.start(0)
        end = time.monotonic() + 20
        while not (lost := agents.lost()):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert re.search(r"cannot reach the driver at 127\.0\.0\.1:\d+ \(.*refused\)", lost[0][1])
    finally:
        agents.close()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["driver", pytest.param("ssh", marks=pytest.mark.long)])
def test_nothing_stays_when_the_driver_or_ssh_is_killed(tmp_path: Path, ssh: str, what: str) -> None:
    """The run goes on after the line, as hosts are logged in to again, and after the driver by `resume`."""
    configs = [dict(config) for config in CONFIGS]
    configs[0] |= {"at": 15, "do": f"wait for {tmp_path / 'go'}"}
    body = f"select(Path('run'), troubled, {configs!r}, engine=hy.Hosts(['a:1'], ssh={ssh!r}))"
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    end = time.monotonic() + 30
    while not (started := [line.pid for line in journal(tmp_path / "run") if isinstance(line, Joined)]
               if (tmp_path / "run" / "journal.jsonl").exists() else []):  # fmt: skip
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    (agent,) = started
    supervisor = parent(agent)
    host = parent(supervisor)
    os.kill(process.pid if what == "driver" else host, signal.SIGKILL)
    assert gone([agent, supervisor, host])
    (tmp_path / "go").touch()
    _, errors = process.communicate(timeout=60)
    if what == "driver":
        hy.resume(tmp_path / "run")
    else:
        assert process.returncode == 0, errors
        assert "logged in to again" in errors
    assert digests(hy.load(tmp_path / "run")) == digests(select(tmp_path / "inline"))
    assert not alive(agents(tmp_path / "run"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
