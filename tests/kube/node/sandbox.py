"""The namespaces of a pod. Its container is process 1 of its own pid, net, mount, uts and ipc namespaces.

The root is an overlay of this machine's `/`, so that it has Python and the code that is tested; /tmp, /run, /dev and
/sys are its own. What a pod writes, other than in volumes, takes memory and counts as such.

Nothing outlives the thread that starts a pod: the kernel ends the first process with that thread, and with process 1
all others, the network device and the mounts.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from hopyard.system.processes import children_of
from hosts import code_elsewhere
from kube.node.cgroups import Cgroup
from kube.node.identities import Identity
from kube.node.network import ip
from kube.node.volumes import Memory, Mount

PROGRAMS = ("chmod", "cp", "env", "ip", "mount", "nsenter", "pivot_root", "setpriv", "umount", "unshare")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fd", "stdin", "stdout", "stderr")
SPACES = ("--mount", "--uts", "--ipc", "--net", "--pid")
INIT = 'setpriv --pdeathsig=KILL sh -c "$0"; exit $?'
"""Starts process 1 of a pod. (`unshare --fork` of util-linux 2.38 returns 1 for a child that was killed.)"""
HOSTS = """127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
{address}\t{name}
"""
OWN = ("/tmp", "/run")
"""Folders that are not those of this machine."""


@dataclass(frozen=True)
class Address:
    """The place of a pod in the network. `device`: the name of its end on this machine."""

    ip: str
    gateway: str
    bridge: str
    device: str


@dataclass(frozen=True)
class Container:
    """What runs in a sandbox."""

    command: Sequence[str]
    env: Mapping[str, str]
    folder: str
    """The working directory."""
    hostname: str
    identity: Identity
    mounts: Sequence[Mount]
    memory: Sequence[Memory]
    message_path: str = "/dev/termination-log"
    """The file whose content the status of the pod has when it is over."""
    gpus: bool = False
    read_only: bool = False


class SandboxError(Exception):
    """The namespaces of a pod could not be made."""


class Sandbox:
    """The process of one pod, started at once; `folder` is its own for its time."""

    def __init__(
        self, container: Container, address: Address, folder: Path, log: Path, cgroup: Cgroup | None = None
    ) -> None:
        self.address, self._folder, self._container = address, folder, container
        (folder / "base").mkdir()
        (folder / "fstab").write_text("".join(f"{line}\n" for line in _table(container, folder / "base", cgroup)))
        (folder / "hosts").write_text(HOSTS.format(address=address.ip, name=container.hostname))
        (folder / "ptmx").symlink_to("pts/ptmx")
        (folder / "message").touch()
        (folder / "message").chmod(0o666)
        script = "\n".join(_script(container, address, folder, cgroup))
        read, write = os.pipe()
        with os.fdopen(read) as ready, log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    ["setpriv", "--pdeathsig=KILL", "unshare", *SPACES, "sh", "-c", INIT, script],
                    env={"PATH": SYSTEM_PATH},
                    stdin=write,  # the script says there that it is done
                    stdout=output,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    start_new_session=True,
                )
            finally:
                os.close(write)
            try:
                self.pidfd = os.pidfd_open(self._process.pid)
                if not ready.readline():
                    self._process.wait()
                    os.close(self.pidfd)
                    raise SandboxError(log.read_text(errors="replace")[-1000:] or "it was killed")
            except BaseException:
                self._process.kill()
                self._process.wait()
                raise
        (self.pid,) = children_of(self._process.pid) or [0]
        # The network lasts until `close`, as that of a real pod does: what was sent at the end arrives.
        self._network = os.open(f"/proc/{self._process.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def message(self) -> str:
        """Return the beginning of the termination message file."""
        with (self._folder / "message").open("rb") as file:
            return file.read(4096).decode(errors="replace")

    def terminate(self) -> None:
        """Send SIGTERM to process 1."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End all processes."""
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Return the exit code, as containers have it, once all processes are gone."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def processes(self) -> dict[int, str]:
        """Return the processes, as this machine numbers them → their command lines."""
        found: dict[int, str] = {}
        pending = [self.pid]
        while pending:
            process = pending.pop()
            with contextlib.suppress(OSError):
                state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
                words = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                pending += children_of(process)
                if state not in "ZX":
                    found[process] = words.strip()
        return found

    def execute(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start another command in the container, as its user, with pipes for output and errors."""
        container = self._container
        env = [f"{name}={value}" for name, value in container.env.items()]
        words = [*container.identity.setpriv(), "env", "-i", *env, *command]
        inside = f"cd {quote(container.folder)} && exec {join(words)}"
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return subprocess.Popen(
            ["nsenter", f"--target={self.pid}", *spaces, "sh", "-c", inside],
            env={"PATH": SYSTEM_PATH},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def link(self, up: bool) -> None:
        """Let packets through to the pod and from it, or none. Raises CalledProcessError if it is over."""
        ip("link", "set", self.address.device, "up" if up else "down")

    def close(self) -> None:
        """Kill what runs, and remove the network."""
        self.kill()
        self._process.wait()
        os.close(self.pidfd)
        os.close(self._network)
        remove_device(self.address.device)

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid or self._process.pid, number)


def remove_device(name: str) -> None:
    """Remove a network device that the kernel may be removing already."""
    subprocess.run(["ip", "link", "del", name], stderr=subprocess.DEVNULL, timeout=60, check=False)


@functools.cache
def missing() -> str:
    """Return the reason why no pods can be made here; "" if they can."""
    if sys.platform != "linux" or os.geteuid():
        return "pods are made of namespaces: that needs Linux and root"
    if absent := [name for name in PROGRAMS if not shutil.which(name, path=SYSTEM_PATH)]:
        return f"pods need {', '.join(absent)}: install iproute2 and util-linux"
    if not Path(sys.executable).with_name("python").exists():
        return f"no `python` beside {sys.executable}"
    if closed := [path for path in (Path(__file__), *code_elsewhere()) if not path.stat().st_mode & 0o004]:
        return f"other users cannot read {closed[0]}: pods that are not root need the code (umask 022)"
    done = subprocess.run(
        ["unshare", *SPACES, "sh", "-c", "true; exit $?"], capture_output=True, text=True, timeout=60, check=False
    )
    return f"no namespaces may be made here: {done.stderr.strip()}" if done.returncode else ""


def _script(container: Container, address: Address, folder: Path, cgroup: Cgroup | None) -> Iterator[str]:
    """Yield the lines that make a pod of the namespaces that they run in. Programs are few: each takes milliseconds."""
    base, own = quote(str(folder / "base")), f"/proc/{os.getpid()}/ns/net"
    yield f"""exec 2>&1
set -e
umask 022
echo {quote(container.hostname)} > /proc/sys/kernel/hostname
{{
ip -batch - <<'END'
link add eth0 type veth peer name {address.device} netns {own}
addr add {address.ip}/16 dev eth0
link set lo up
link set eth0 up
route add default via {address.gateway}
END
nsenter --net={own} ip link set {address.device} master {address.bridge} up
}} &
mount -t tmpfs -o mode=755 pod {base}
mkdir {base}/upper {base}/work {base}/root
mount -a -T {quote(str(folder / "fstab"))}
cd {base}/root
cp -a {join(_devices(container.gpus))} {quote(str(folder / "ptmx"))} dev
: > .{quote(container.message_path)}
mount --bind {quote(str(folder / "message"))} .{quote(container.message_path)}
echo {quote(container.hostname)} > etc/hostname
cat {quote(str(folder / "hosts"))} > etc/hosts"""
    if closed := _closed():
        yield f"chmod o+rx {join(f'.{path}' for path in closed)}"
    enter = ""
    if cgroup is not None:
        yield f"echo 0 > {cgroup.path}/cgroup.procs"
        enter = "unshare --cgroup " if cgroup.version.number == 2 else ""
    yield "wait $!\npivot_root . .\numount -l ."
    for path in ["/", *OWN] if container.read_only else []:
        if path not in {mount.target for mount in container.mounts}:
            yield f"mount -o remount,bind,ro {path}"
    yield f"cd {quote(container.folder)}\necho ready >&0\nexec </dev/null"
    env = [f"{name}={value}" for name, value in container.env.items()]
    yield f"exec {enter}{join([*container.identity.setpriv(), 'env', '-i', *env, *container.command])}"


def _table(container: Container, base: Path, cgroup: Cgroup | None) -> Iterator[str]:
    """Yield the lines of the fstab of a pod: what is mounted where, in this order."""
    root = base / "root"

    def line(target: Path | str, kind: str, options: str, source: str = "none") -> str:
        words = (source, str(target), kind, f"X-mount.mkdir,{options}", "0", "0")
        return " ".join(word.replace("\\", "\\134").replace(" ", "\\040").replace("\t", "\\011") for word in words)

    yield line(root, "overlay", f"lowerdir=/,upperdir={base}/upper,workdir={base}/work")
    yield line(root / "proc", "proc", "rw")
    yield line(root / "sys", "sysfs", "ro")
    yield line(root / "dev", "tmpfs", "mode=755")
    yield line(root / "dev/pts", "devpts", "newinstance,ptmxmode=666,mode=620")
    yield line(root / "dev/shm", "tmpfs", "mode=1777,size=64m")
    for path in OWN:
        yield line(f"{root}{path}", "tmpfs", f"mode={1777 if path == '/tmp' else 755}")
    for memory in container.memory:
        yield line(memory.folder, "tmpfs", memory.options)
    for mount in [*(Mount(str(path), str(path), read_only=True) for path in code_elsewhere()), *container.mounts]:
        yield line(f"{root}{mount.target}", "none", "bind,ro" if mount.read_only else "bind", mount.source)
    if cgroup is not None and cgroup.version.number == 1:
        yield line(root / "sys/fs/cgroup", "tmpfs", "mode=755")
        yield line(root / "sys/fs/cgroup/memory", "none", "bind,ro", str(cgroup.path))
    elif cgroup is not None:
        yield line(root / "sys/fs/cgroup", "none", "bind,ro", str(cgroup.path))


def _devices(gpus: bool) -> list[str]:
    """Return what /dev of a pod has."""
    wanted = [Path("/dev", name) for name in DEVICES]
    return [str(path) for path in wanted if os.path.lexists(path)] + [
        str(path) for path in Path("/dev").glob("nvidia*") if gpus
    ]


@functools.cache
def _closed() -> list[Path]:
    """Return the folders above the code that only root may enter: the pod's copies of these are opened to all. Those
    below a folder of the pod's own are made anew there."""
    code = {Path(__file__).resolve().parents[1], *(Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path))}
    bound = [*code_elsewhere(), *map(Path, OWN)]
    folders = {folder for path in code if path.is_dir() for folder in (path, *path.parents)}
    folders |= {folder for path in code if path.is_dir() for folder in (path.resolve(), *path.resolve().parents)}
    return sorted(
        folder
        for folder in folders
        if folder.stat().st_mode & 0o005 != 0o005 and not any(path in (folder, *folder.parents) for path in bound)
    )
