"""Hosts of their own on this one: network, mount, pid and uts namespaces over an overlay of `/`, each with a real sshd.

A network namespace alone would share all files. The code that is tested is there read only, wherever it lies. Debian's
openssh-server is taken from the system, or unpacked from its package. Tests are skipped where either is not to be had.
"""

from __future__ import annotations

import fcntl
import functools
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from hopyard.data.manifest import Manifest
from hopyard.system.processes import children_of

NAMES = ("alpha", "beta")
FIVE = (*NAMES, "gamma", "delta", "epsilon")
PLAYED = """#!/bin/sh
# Plays ssh: runs the command in a shell of this host.
if [ "$1" = -G ]; then echo "hostname 127.0.0.1"; exit 0; fi
while [ $# -gt 2 ]; do shift; done
exec sh -c "$2"
"""
PACKAGES = ("openssh-server", "libwrap0")
SSHD = """
Port 22
HostKey /etc/ssh/hopyard_key
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
AuthorizedKeysFile /etc/ssh/hopyard_authorized
PidFile /run/sshd.pid
LogLevel ERROR
"""
ROOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {base}
mkdir {base}/upper {base}/work {base}/root
root={base}/root
mount -t overlay overlay -o lowerdir=/,upperdir={base}/upper,workdir={base}/work $root
mount -t proc proc $root/proc
mount --rbind /dev $root/dev
mount -t tmpfs -o size=256m tmpfs $root/dev/shm
mount -t tmpfs tmpfs $root/run
mount -t tmpfs tmpfs $root/tmp
{code}
{shared}
mkdir -p $root/run/sshd $root/var/empty
hostname {name}
chroot $root sh -c '
set -e
grep -q ^sshd: /etc/passwd || echo sshd:x:74:65534::/run/sshd:/usr/sbin/nologin >> /etc/passwd
cat > /etc/ssh/hopyard_key; chmod 600 /etc/ssh/hopyard_key
' < {folder}/host_key
cp {folder}/id.pub $root/etc/ssh/hopyard_authorized
cp {folder}/sshd_config $root/etc/ssh/hopyard_config
{packages}
touch {folder}/{name}.ready
exec chroot $root sh -c '
LD_LIBRARY_PATH=/opt/hopyard-sshd/lib {sshd} -D -e -f /etc/ssh/hopyard_config &
exec sleep infinity'
"""


_networks = itertools.count()
"""So many were made in this process."""


class Network:
    """A bridge, with a host for each name behind it: an address, and loopback, of its own."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        number, count = os.getpid(), next(_networks)
        net = f"10.{200 + (number + count) % 50}.{number // 50 % 250}"
        self.own = f"{net}.1"
        self.addresses = {name: f"{net}.{2 + n}" for n, name in enumerate(names)}
        self._bridge = f"hyb{number}.{count}"
        self._spaces = {name: f"hopyard-{number}.{count}-{name}" for name in names}
        self._wires = {name: f"hyv{number}.{count}.{n}" for n, name in enumerate(names)}
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("addr", "add", f"{self.own}/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")
        for name in names:
            space, wire = self._spaces[name], self._wires[name]
            self._ip("netns", "add", space)
            self._ip("link", "add", wire, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip("link", "set", wire, "master", self._bridge, "up")
            self._ip("-n", space, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self._ip("-n", space, "link", "set", device, "up")

    def add_ipv6(self) -> None:
        """Give this host and the others addresses of IPv6 as well."""
        prefix = f"fd00:{os.getpid() & 0xFFFF:x}:"
        self.own_six = f"{prefix}:1"
        self.six = {name: f"{prefix}:{2 + n}" for n, name in enumerate(self.addresses)}
        self._ip("addr", "add", f"{self.own_six}/64", "dev", self._bridge, "nodad")
        for name, address in self.six.items():
            self._ip("-n", self._spaces[name], "addr", "add", f"{address}/64", "dev", "eth0", "nodad")

    def enter(self, name: str) -> list[str]:
        """What to put before a command that shall run on the host."""
        return ["ip", "netns", "exec", self._spaces[name]]

    def cut(self, name: str) -> None:
        """Let nothing through to this host, nor from it."""
        self._ip("link", "set", self._wires[name], "down")

    def mend(self, name: str) -> None:
        """Let all through again."""
        self._ip("link", "set", self._wires[name], "up")

    def block(self, name: str, other: str) -> None:
        """Let nothing through between two hosts."""
        for one, two in ((name, other), (other, name)):
            self._ip("-n", self._spaces[one], "route", "add", "blackhole", f"{self.addresses[two]}/32")

    def unblock(self, name: str, other: str) -> None:
        """Let all through again."""
        for one, two in ((name, other), (other, name)):
            self._ip("-n", self._spaces[one], "route", "del", "blackhole", f"{self.addresses[two]}/32")

    def traffic(self) -> tuple[int, int, int]:
        """Return the bytes that all hosts have sent, and those that this one has sent to them and received."""

        def count(device: str, what: str) -> int:
            return int(Path(f"/sys/class/net/{device}/statistics/{what}_bytes").read_text())

        sent = sum(count(wire, "rx") for wire in self._wires.values())
        return sent, count(self._bridge, "tx"), count(self._bridge, "rx")

    def close(self) -> None:
        for space in self._spaces.values():
            self._ip("netns", "del", space)
        self._ip("link", "del", self._bridge)

    @staticmethod
    def _ip(*command: str) -> None:
        subprocess.run(["ip", *command], check=True, timeout=20)


def played_ssh(folder: Path) -> str:
    """A command that takes ssh's options, and runs everything on this host."""
    path = folder / "played-ssh"
    path.write_text(PLAYED)
    path.chmod(0o700)
    return str(path)


def may_unshare(*spaces: str) -> None:
    """Skip the test where namespaces cannot be made."""
    if not shutil.which("unshare") or subprocess.run(["unshare", *spaces, "true"], check=False).returncode:
        pytest.skip("no namespaces may be made here")


@functools.cache
def sshd() -> Path | None:
    """The folder of an unpacked openssh-server; None: the system has one, at /usr/sbin/sshd. Skips where there is
    neither."""
    if Path("/usr/sbin/sshd").exists():
        return None
    folder = Path(tempfile.gettempdir(), f"tests-of-hopyard-sshd-{os.geteuid()}")  # "hopyard-…" would be swept
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "root" / "usr" / "sbin" / "sshd").exists():
            if not shutil.which("apt-get"):
                pytest.skip("no sshd here, and no apt-get that could bring one")
            for command in (
                ["apt-get", "download", *PACKAGES],
                ["sh", "-c", "for d in *.deb; do dpkg-deb -x $d root; done"],
            ):
                done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
                if done.returncode:
                    pytest.skip(f"no sshd here, and its package does not come: {done.stderr.strip()[-200:]}")
    return folder / "root"


def code_elsewhere() -> list[Path]:
    """Folders of this checkout and of what it imports that hosts would not have: they lie in another file system than
    `/`, or where a host has an empty one of its own."""
    checkout, own = Path(__file__).resolve().parents[1], [Path("/dev"), Path("/run"), Path("/tmp")]
    needed = {checkout, *(Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if Path(path).is_dir())}
    hidden = sorted(
        path.absolute()
        for path in needed
        if path.stat().st_dev != Path("/").stat().st_dev or any(place in path.absolute().parents for place in own)
    )
    return [path for path in hidden if not any(other in path.parents for other in hidden)]


class Hosts:
    """Hosts with an sshd each, and the keys and settings of a client that may log in.

    Args:
        folder: takes keys, settings and logs.
        names: of the hosts.
        shared: folders that all of them share with this one.
    """

    def __init__(self, folder: Path, names: Sequence[str] = NAMES, shared: Iterable[Path] = ()) -> None:
        if os.geteuid() or not shutil.which("ssh") or not shutil.which("ip"):
            pytest.skip("hosts are made of namespaces: that needs root, ip and ssh")
        may_unshare("--mount", "--uts", "--net", "--pid", "--fork")
        self.folder, self.names, self._shared = folder, names, list(shared)
        self.shared = self._shared[0] if self._shared else folder
        package = sshd()
        for key in ("id", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
        (folder / "sshd_config").write_text(SSHD)
        self.network = Network(names)
        public = (folder / "host_key.pub").read_text().split()[:2]
        (folder / "known").write_text("".join(f"{name} {' '.join(public)}\n" for name in names))
        (folder / "config").write_text(
            f"IdentityFile {folder / 'id'}\nIdentitiesOnly yes\nUser root\nUserKnownHostsFile {folder / 'known'}\n"
            "StrictHostKeyChecking yes\nGlobalKnownHostsFile /dev/null\n"
            + "".join(
                f"Host {name}\n HostName {self.network.addresses[name]}\n HostKeyAlias {name}\n" for name in names
            )
        )
        self.ssh = f"ssh -F {folder / 'config'}"
        """The command that logs in to them by name."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            self._start(name, package)
        for name in names:
            self._wait(name)

    def _start(self, name: str, package: Path | None) -> None:
        base = self.folder / f"{name}.disk"
        base.mkdir(exist_ok=True)
        imported = "\n".join(
            f"mkdir -p $root{path}; mount --bind {path} $root{path}; mount -o remount,bind,ro $root{path}"
            for path in code_elsewhere()
        )
        shared = "\n".join(f"mkdir -p $root{path} && mount --bind {path} $root{path}" for path in self._shared)
        packages = ""
        program = "/usr/sbin/sshd"
        if package is not None:
            program = "/opt/hopyard-sshd/sshd"
            packages = (
                f"mkdir -p $root/opt/hopyard-sshd/lib; cp {package}/usr/sbin/sshd $root/opt/hopyard-sshd/; "
                f"cp -L {package}/usr/lib/*/libwrap.so.0 $root/opt/hopyard-sshd/lib/"
            )
        body = ROOT.format(
            base=base, code=imported, shared=shared, name=name, folder=self.folder, packages=packages, sshd=program
        )
        ends_with_this = ["setpriv", "--pdeathsig", "KILL"]
        spaces = ["unshare", "--mount", "--uts", "--pid", "--ipc", "--fork", "--kill-child"]
        command = [*ends_with_this, *self.network.enter(name), *spaces]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [*command, "sh", "-c", body],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait(self, name: str) -> None:
        """Until its sshd answers."""
        end = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection((self.network.addresses[name], 22), 1) as line:
                    assert line.recv(4).startswith(b"SSH-")
                    return
            except (OSError, AssertionError):
                log = (self.folder / f"{name}.log").read_text()
                assert time.monotonic() < end and self.processes[name].poll() is None, log
                time.sleep(0.02)

    def init(self, name: str) -> int:
        """The process, as this host counts, that is number 1 on a host."""
        (child,) = children_of(self.processes[name].pid)
        return child

    def run(self, name: str, *words: str) -> str:
        """What a command prints that is run on a host, past its sshd."""
        command = ["nsenter", "--target", str(self.init(name)), "--all", "--root", "--wd", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout

    def fetched(self, manifest: Manifest) -> dict[str, set[str]]:
        """Host → the names of the partitions of this table that are in its own cache."""
        root, found = "/root/.cache/hopyard/data", {}
        for name in self.names:
            entries = [entry for entry in self.run(name, "ls", root).split() if entry.startswith(f"{manifest.key}-")]
            found[name] = {entry.removeprefix(f"{manifest.key}-") for entry in entries}
        return found

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        """A process on a host, past its sshd; it ends with the one that is returned."""
        inside = ["setpriv", "--pdeathsig", "KILL", *words]
        command = ["nsenter", "--target", str(self.init(name)), "--all", "--root", "--wd", *inside]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def tree(self, name: str) -> dict[str, int]:
        """What runs on a host for a run of one worker there → its process."""
        found = self.hopyard(name)
        (host,) = (pid for pid in found if self._parent(pid) not in found and children_of(pid))
        (supervisor,) = children_of(host)
        (agent,) = (pid for pid in children_of(supervisor) if pid in found)
        return {"sshd": self._login(host), "host process": host, "supervisor": supervisor, "agent": agent}

    def _login(self, pid: int) -> int:
        """The sshd of the login that started a process."""
        while "sshd" not in Path(f"/proc/{pid}/comm").read_text():
            pid = self._parent(pid)
        return pid

    @staticmethod
    def _parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def hopyard(self, name: str) -> dict[int, str]:
        """The processes of Hopyard on a host, as this host counts → their command lines."""
        found, pending = {}, [self.init(name)]
        while pending:
            for child in children_of(pending.pop()):
                pending.append(child)
                try:
                    words = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                    state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
                except OSError:
                    continue
                if "hopyard" in words and "sshd" not in words and state not in "ZX":
                    found[child] = words
        return found

    def nothing_left(self, names: Iterable[str] = (), seconds: float = 60.0) -> bool:
        """Whether no process and no shared memory of Hopyard stays on the hosts."""
        end = time.monotonic() + seconds
        while any(self.hopyard(name) or "hopyard" in self.run(name, "ls", "/dev/shm") for name in names or self.names):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def close(self) -> None:
        for process in self.processes.values():
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.network.close()
