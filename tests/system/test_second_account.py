"""A run and a program of one account, while another account of the host tries to read them and to stop them.

The owner is root, or a user without rights; the stranger is another such user. What the stranger does is in functions
of this module, which a process of his calls. Each attack is also made on something undefended, where it works.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
import jobs
from hopyard.data.partitions import mapped
from hopyard.store.layout import Layout
from hopyard.system.processes import descendants
from hopyard.system.scratch import left, sweep

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="starts processes of other users: root may"
    ),
]

USER = 2_000_000 + 2 * os.getpid()
"""A user without an account, whom no other process of these tests takes: whoever starts a run removes what is left of
his own earlier ones."""
STRANGER = USER + 1
MEMORY = Path("/dev/shm")
"""Nothing is planted there in root's way, whose other runs on this host look there too."""
MODULES = ("queue", "sitecustomize", "usercustomize", "json", "numpy", "msgspec", "zmq", "hopyard", "jobs")
"""Modules that a file in the current folder might be taken for."""
CONNECTIONS = 40
"""How many connections the stranger holds at each port."""

# ---------------------------------------------------------------------------------------------- accounts


class Account:
    """A user of this host with a home of the usual mode, 0755.

    This Python, and the checkout, may lie in a folder that only root may search (/root). A process of the account has
    them open, and the other ones go by way of its descriptors.
    """

    def __init__(self, uid: int, world: Path) -> None:
        self.uid = uid
        self.home = world / f"home-{uid}"
        self.home.mkdir(mode=0o755)
        os.chown(self.home, uid, uid)
        self._world = world
        self._identity: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": [], "umask": 0o022}
        places: list[str | Path] = [
            sys.base_prefix,
            sysconfig.get_path("purelib"),
            Path(hy.__file__).parents[1],
            Path(jobs.__file__).parent,
            Path(__file__).parent,
        ]
        descriptors = [os.open(place, os.O_PATH | os.O_DIRECTORY) for place in places]
        self._keeper = subprocess.Popen(["sleep", "3000"], cwd="/", pass_fds=descriptors, **self._identity)
        python, *self._path = (f"/proc/{self._keeper.pid}/fd/{descriptor}" for descriptor in descriptors)
        self._python = f"{python}/bin/python{sysconfig.get_python_version()}"
        self._libraries = f"{python}/lib"
        for descriptor in descriptors:
            os.close(descriptor)

    def start(self, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Start this Python as the account's."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "TMPDIR": str(self._world / "tmp"),
            "PYTHONPATH": os.pathsep.join(self._path),
            "LD_LIBRARY_PATH": self._libraries,
        }
        return subprocess.Popen(
            [self._python, *words],
            cwd=self.home if cwd is None else cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **self._identity,
        )

    def run(self, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
        """Start it, wait, and return (exit code, standard output, standard error)."""
        process = self.start(*words, cwd=cwd)
        try:
            out, err = process.communicate(timeout=120)
        finally:
            end(process)
        return process.returncode, out, err

    @contextlib.contextmanager
    def doing(self, work: Callable[..., Any], *arguments: Any) -> Iterator[Any]:
        """Yield what a function of this module returns in a process of the account, which lives as long as the
        block."""
        code = (
            "import json, sys, test_second_account as module\n"
            f"print(json.dumps(module.{work.__name__}(*json.loads(sys.argv[1]))), flush=True)\n"
            "sys.stdin.read()\n"
        )
        process = self.start("-P", "-c", code, json.dumps(arguments, default=str))
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, process.communicate(timeout=60)[1]
            yield json.loads(line)
        finally:
            end(process)

    @property
    def pid(self) -> int:
        """A process of the account."""
        return self._keeper.pid

    def close(self) -> None:
        """End the process that has the folders open."""
        self._keeper.kill()
        self._keeper.wait()


def end(process: subprocess.Popen[str]) -> None:
    """Kill a process and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.fixture
def world() -> Iterator[Path]:
    """A folder that all accounts may search, as pytest's own (0700) is not; in it, a temporary directory and another
    one where all may write."""
    before = os.umask(0o022)
    path = Path(tempfile.mkdtemp(prefix="accounts-"))
    path.chmod(0o755)
    for name in ("tmp", "shared", "marks"):
        (path / name).mkdir()
        (path / name).chmod(0o1777)
    yield path
    shutil.rmtree(path)
    os.umask(before)


OBSTACLES: dict[int, str] = {}
"""uid → why that account cannot import Hopyard; "": it can."""


@pytest.fixture
def account(world: Path) -> Iterator[Callable[[int], Account]]:
    """uid → its account; skips where it cannot import Hopyard."""
    accounts: list[Account] = []

    def make(uid: int) -> Account:
        accounts.append(Account(uid, world))
        if uid not in OBSTACLES:
            code, _, err = accounts[-1].run("-P", "-c", "import jobs, test_second_account")
            OBSTACLES[uid] = err.strip()[-500:] or f"exit code {code}" if code else ""
        if OBSTACLES[uid]:
            pytest.skip(f"user {uid} cannot import Hopyard here: {OBSTACLES[uid]}")
        return accounts[-1]

    yield make
    for each in accounts:
        each.close()


@pytest.fixture(params=[0, USER], ids=["root", "user"])
def owner(request: pytest.FixtureRequest, account: Callable[[int], Account]) -> Account:
    return account(request.param)


@pytest.fixture
def stranger(account: Callable[[int], Account]) -> Account:
    return account(STRANGER)


# ---------------------------------------------------------------------------------------------- what the stranger does

HELD: list[Any] = []
"""Files and sockets that stay open as long as the stranger's process lives."""


def plant(world: str, uid: int) -> list[str]:
    """Put files in the owner's way: modules in a shared folder, and in the places for temporary files and for memory
    whatever begins as his own do. Return their paths.

    A file under a lease lets nobody else open it for 45 seconds (`/proc/sys/fs/lease-break-time`); and whoever leased
    it learns that somebody tried.
    """
    signal.signal(signal.SIGIO, lambda number, frame: Path(world, "marks", "opened").touch())
    for name in MODULES:
        code = f"import os\nopen(os.path.join({world!r}, 'marks', f'{name}-{{os.getuid()}}'), 'w').close()\n"
        Path(world, "shared", f"{name}.py").write_text(code)
        Path(world, "shared", name).mkdir()
        Path(world, "shared", name, "__init__.py").write_text(code)
    planted = [Path(world, "tmp", f"hopyard-{uid}")]
    planted[0].mkdir()
    temporary = Path(world, "tmp")
    for root in (temporary, MEMORY) if uid else (temporary,):
        for kind in (f"hopyard-{uid}-", "hopyard-task-", ".hopyard-task-", "hopyard-model-"):
            pipe, leased, file, link, empty = (root / f"{kind}{secrets.token_hex(8)}" for _ in range(5))
            for folder in (pipe, leased, empty):
                folder.mkdir()
                folder.chmod(0o777)
            os.mkfifo(pipe / "lock")
            (leased / "lock").write_text("1")
            for path in (pipe / "lock", leased / "lock"):
                path.chmod(0o666)
            HELD.append((leased / "lock").open("r+"))
            fcntl.fcntl(HELD[-1], fcntl.F_SETLEASE, fcntl.F_WRLCK)
            file.write_text("planted")
            link.symlink_to(leased)
            planted += [pipe, leased, file, link, empty]
            for path in (pipe, empty, leased):  # as if it had been there for long
                os.utime(path, (time.time() - 7200,) * 2)
    return [str(path) for path in planted]


def attack(
    paths: list[str], processes: list[int], ports: list[tuple[str, int]], reserved: list[int], sockets: list[str]
) -> dict[str, list[Any]]:
    """Return what the stranger succeeds in: which paths he reads, which he changes, which processes he may signal,
    which sockets and ports he connects to, which ports he takes. What he connects to he crowds: half of the
    connections send nothing, half of them noise, and all stay open."""
    return {
        "read": [path for path in paths if works(path, os.listdir, os.readlink, first_byte)],
        "processes": [pid for pid in processes if works(pid, lambda pid: os.kill(pid, 0))],
        "sockets": [path for path in sockets if works(path, lambda path: crowd(socket.AF_UNIX, path))],
        "ports": [tuple(port) for port in ports if works(tuple(port), lambda port: crowd(socket.AF_INET, port))],
        "taken": [port for port in reserved if works(port, listen)],
        "changed": [
            path for path in paths if works(path, write, lock, lambda path: os.chmod(path, 0o777), os.unlink, move)
        ],
    }


def works(value: Any, *ways: Callable[[Any], object]) -> bool:
    """Whether one of these calls raises no OSError."""
    for way in ways:
        with contextlib.suppress(OSError):
            way(value)
            return True
    return False


def first_byte(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.read(file, 1)
    finally:
        os.close(file)


def write(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))


def lock(path: str) -> None:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(file)


def move(path: str) -> None:
    os.rename(path, f"{path}-moved")


def crowd(family: int, address: Any) -> None:
    for number in range(CONNECTIONS):
        connection = socket.socket(family)
        connection.settimeout(10)
        connection.connect(address)
        HELD.append(connection)
        with contextlib.suppress(OSError):  # it may hang up while noise comes
            connection.sendall(random.Random(number).randbytes(1000 * (number % 2)))


def listen(port: int) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    HELD.append(listener)


# ---------------------------------------------------------------------------------------------- what there is to attack


def everything(*places: Path) -> list[str]:
    """Return the paths of folders, and of all that is in them."""
    return [str(path) for place in places if place.exists() for path in (place, *sorted(place.rglob("*")))]


def opened(processes: list[int]) -> tuple[set[str], set[str]]:
    """Return what these processes have open: paths of files and sockets; numbers of sockets."""
    links = []
    for process in processes:
        with contextlib.suppress(OSError):
            links += [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir()]
    numbers = {link[8:-1] for link in links if link.startswith("socket:[")}
    return {link for link in links if link.startswith("/") and " (deleted)" not in link}, numbers


def listening(numbers: set[str]) -> list[tuple[str, int]]:
    """Return the TCP ports at which these sockets listen."""
    ports = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in numbers:
            address, port = fields[1].split(":")
            host = socket.inet_ntoa(bytes.fromhex(address)[::-1])
            ports.append(("127.0.0.1" if host == "0.0.0.0" else host, int(port, 16)))
    return sorted(ports)


def bound(numbers: set[str]) -> list[str]:
    """Return the paths to which these Unix sockets are bound."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({fields[7] for fields in lines if len(fields) == 8 and fields[6] in numbers})


def commands(processes: list[int]) -> list[str]:
    """Return their command lines, which every user may read."""
    return [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in processes]


def attacked(
    owner: Account, stranger: Account, driver: subprocess.Popen[str], reserved: list[int], go: Path
) -> dict[str, list[Any]]:
    """Let the stranger attack a live run or program, and what it left open to him; then let it go on to its end."""
    processes = [driver.pid, *descendants(driver.pid)]
    files, numbers = opened(processes)
    ports, sockets = listening(numbers), bound(numbers)
    arenas = {Path(file).parent for file in files if file.startswith(f"{MEMORY}/hopyard-")}
    assert len(processes) > 3 and ports and arenas.union(sockets)
    temporary = [path for path in temporary_folder(owner).glob("*hopyard-*") if path.lstat().st_uid == owner.uid]
    paths = everything(
        *(owner.home / name for name in ("run", "program", "saved")), owner.home / ".cache", *arenas, *temporary
    )
    paths += [path for path in sorted(files) if path.startswith(str(owner.home)) and path not in paths]
    paths += [
        f"/proc/{pid}/{name}" for pid in processes for name in ("environ", "mem", "maps", "fd", "cwd", "root", "exe")
    ]
    unprotected = owner.home / "unprotected"
    unprotected.mkdir()
    unprotected.chmod(0o777)
    (unprotected / "file").write_text("open")
    with socket.socket(socket.AF_UNIX) as listener, socket.create_server(("127.0.0.1", 0)) as server:
        listener.bind(str(unprotected / "socket"))
        (unprotected / "socket").chmod(0o666)
        listener.listen(CONNECTIONS)
        free_port = jobs.free_port()
        own = ("127.0.0.1", int(server.getsockname()[1]))
        work = (
            [*paths, str(unprotected / "file")],
            [*processes, stranger.pid],
            [*ports, own],
            [*(port for _, port in ports), *reserved, free_port],
            [*sockets, str(unprotected / "socket")],
        )
        with stranger.doing(attack, *work) as succeeded:
            assert str(unprotected / "file") in succeeded["read"]
            assert str(unprotected / "file") in succeeded["changed"]
            assert succeeded["sockets"] == [str(unprotected / "socket")]
            assert [tuple(port) for port in succeeded["ports"]] == [*ports, own]
            assert succeeded["taken"] == [free_port]
            assert succeeded["processes"] == [stranger.pid]
            go.touch()
            out, err = driver.communicate(timeout=200)  # while the connections are held
    assert driver.returncode == 0, err
    for name in ("read", "changed"):
        succeeded[name].remove(str(unprotected / "file"))
    return {"out": json.loads(out), **succeeded}


def temporary_folder(owner: Account) -> Path:
    return owner.home.parent / "tmp"


def wait_for(paths: list[Path], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert driver.poll() is None, driver.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextlib.contextmanager
def planted_by(stranger: Account, world: Path, uid: int) -> Iterator[None]:
    """The stranger's files lie about in the block. After it, all must be where they were, and none was opened."""
    with stranger.doing(plant, world, uid) as planted:
        try:
            yield
            missing = [path for path in planted if not os.path.lexists(path)]
        finally:
            for path in map(Path, planted):
                if path.is_relative_to(MEMORY):
                    with contextlib.suppress(FileNotFoundError):
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    assert not missing, "files of another user were removed"
    assert not (world / "marks" / "opened").exists(), "a file of another user was opened"


# ---------------------------------------------------------------------------------------------- the attacks

RUN = """
import json, sys, time
from pathlib import Path
import hopyard as hy
from jobs import CONFIGS, Troubled, digests, select

home = Path.home()
ready, go = home / "ready", home / "go"

class Held(Troubled):
    def train(self, batch):
        if self.steps == 15 and self._config == CONFIGS[1]:
            ready.touch()
            while not go.exists():
                time.sleep(0.05)
        return super().train(batch)

def recipe(config):
    return Held(config)

run = select(home / "run", recipe, engine=hy.Local(2, devices=None, env={"HOPYARD_TEST_KEY": "secret"}))
print(json.dumps(digests(run)))
"""

PROGRAM = """
import json, os, time
from pathlib import Path
import hopyard as hy

home = Path.home()

def main(args, ctx):
    ready, go = args
    rows = total = 0
    for batch in ctx.feed().batches(100):
        if not rows:
            Path(f"{ready}-{ctx.index}.part").write_text(os.environ["TF_CONFIG"])
            Path(f"{ready}-{ctx.index}.part").rename(f"{ready}-{ctx.index}")
            while not Path(go).exists():
                time.sleep(0.05)
        rows, total = rows + len(batch["a"]), total + int(batch["a"].sum())
    ctx.report({"rows": rows, "total": total})

args = str(home / "ready"), str(home / "go")
engine = hy.Local(2, devices=None, env={"HOPYARD_TEST_KEY": "secret"})
program = hy.launch(main, args, roles={"worker": 2}, engine=engine, directory=home / "program")
taken = program.feed([{"a": n} for n in range(20_000)])
assert program.wait(200).status == "completed"
tasks = program.summary()["tasks"]
print(json.dumps([taken, *(sum(task["values"][name] for task in tasks) for name in ("rows", "total"))]))
"""


def started(owner: Account, world: Path, text: str) -> subprocess.Popen[str]:
    """The owner's script in a folder of his own, while he is in one where others write."""
    folder = owner.home / "job"
    folder.mkdir()
    (folder / "job.py").write_text(text)
    return owner.start(str(folder / "job.py"), cwd=world / "shared")


def is_listing(path: str, owner: Account) -> bool:
    """Whether a path is a folder of the data cache above its entries: it lists digests."""
    cache = owner.home / ".cache"
    return path in {str(cache / part) for part in ("", "hopyard", "hopyard/data", "hopyard/data/locks")}


@pytest.mark.long
def test_a_run(owner: Account, stranger: Account, world: Path, tmp_path: Path) -> None:
    undisturbed = jobs.select(tmp_path / "undisturbed")
    saved = undisturbed.best.save(owner.home / "saved")
    for path in (saved, *saved.iterdir()):
        os.chown(path, owner.uid, owner.uid)
    with planted_by(stranger, world, owner.uid):
        driver = started(owner, world, RUN)
        try:
            wait_for([owner.home / "ready"], driver)
            lines = commands([driver.pid, *descendants(driver.pid)])
            succeeded = attacked(owner, stranger, driver, [], owner.home / "go")
        finally:
            end(driver)
    assert succeeded["out"] == jobs.digests(undisturbed)
    shared = [str(path) for path in (saved, saved / "config.json", saved / "model.safetensors")]
    assert [path for path in succeeded["read"] if not is_listing(path, owner)] == shared, "a model is for others"
    assert [path for path in succeeded["changed"] if not is_listing(path, owner)] == shared, "who may read may lock"
    assert {line.split(" ", 1)[1] for line in lines[1:]} == {"-P -m hopyard.agent "}
    assert [path.name for path in (world / "marks").iterdir()] == [], "a planted module was imported"


@pytest.mark.long
def test_a_program_that_is_fed(owner: Account, stranger: Account, world: Path) -> None:
    with planted_by(stranger, world, owner.uid):
        driver = started(owner, world, PROGRAM)
        try:
            ready = [owner.home / f"ready-{index}" for index in range(2)]
            wait_for(ready, driver)
            addresses = json.loads(ready[0].read_text())["cluster"]["worker"]
            lines = commands([driver.pid, *descendants(driver.pid)])
            reserved = [int(address.rpartition(":")[2]) for address in addresses]
            succeeded = attacked(owner, stranger, driver, reserved, owner.home / "go")
        finally:
            end(driver)
    assert succeeded["out"] == [20_000, 20_000, sum(range(20_000))]
    assert [path for path in succeeded["read"] if not is_listing(path, owner)] == []
    assert [path for path in succeeded["changed"] if not is_listing(path, owner)] == []
    assert not [line for line in lines if "secret" in line]
    assert [path.name for path in (world / "marks").iterdir()] == [], "a planted module was imported"


@pytest.mark.slow
def test_modules_in_the_current_folder_are_imported_where_nothing_is_done_against_it(
    owner: Account, stranger: Account, world: Path
) -> None:
    """So the marks of the tests above would be there."""
    with planted_by(stranger, world, owner.uid):
        assert owner.run("-c", "import queue, hopyard", cwd=world / "shared")[0] == 0
    assert {path.name for path in (world / "marks").iterdir()} >= {f"queue-{owner.uid}", f"hopyard-{owner.uid}"}


# ---------------------------------------------------------------------------------------------- the command line

FINISHED = """
from pathlib import Path
from jobs import select
select(Path("runs/theirs"))
"""


def plant_runs(runs: str, journal: str) -> None:
    """Make directories that look like runs: one that nobody else may read, and such in which a file is a pipe, which
    whoever opens it waits for."""
    (Path(runs) / "closed").mkdir(mode=0o700)
    (Path(runs) / "loop").symlink_to("loop")
    for name in ("journal.jsonl", "summary.json", "lock", "program.jsonl"):
        layout = Layout(Path(runs) / f"pipe-{name}")
        layout.root.mkdir()
        if name != "journal.jsonl":
            layout.journal.write_text(journal)
        if name == "program.jsonl":
            layout.journal.unlink()
        os.mkfifo(layout.root / name)
        (layout.root / name).chmod(0o666)


def hopyard(account: Account, world: Path, *words: str) -> tuple[int, str, str]:
    code, out, err = account.run("-P", "-m", "hopyard", *words, cwd=world / "shared")
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.long
def test_ls_and_clean_of_a_stranger(owner: Account, stranger: Account, world: Path) -> None:
    """He sees that there is a run, and removes nothing of it, nor what the owner's killed processes left."""
    (world / "shared" / "runs").mkdir()
    (world / "shared" / "runs").chmod(0o1777)
    code, _, err = owner.run("-P", "-c", FINISHED, cwd=world / "shared")
    assert code == 0, err
    with dead_folders(owner, world) as dead:
        before = everything(world / "shared" / "runs", owner.home, *dead)
        code, out, err = hopyard(stranger, world, "ls", "runs")
        assert (code, err) == (0, "")
        assert out.splitlines()[1].split() == ["theirs", "not", "readable", "Permission", "denied"]
        for verb in ("show", "logs", "replay", "resume"):
            code, out, err = hopyard(stranger, world, verb, "runs/theirs")
            assert code == 2 and out == "" and len(err.splitlines()) == 1
            assert "runs/theirs: Permission denied" in err
        code, out, err = hopyard(stranger, world, "clean", "--yes", "--older-than", "0")
        assert (code, err) == (0, "") and out == "0 of 0 removed, 0 B\n"
        assert everything(world / "shared" / "runs", owner.home, *dead) == before
        code, out, _ = hopyard(owner, world, "clean", "--yes")
        assert code == 0 and not any(path.exists() for path in dead), out


@pytest.mark.long
def test_ls_and_clean_beside_what_a_stranger_planted(owner: Account, stranger: Account, world: Path) -> None:
    (world / "shared" / "runs").mkdir()
    (world / "shared" / "runs").chmod(0o1777)
    code, _, err = owner.run("-P", "-c", FINISHED, cwd=world / "shared")
    assert code == 0, err
    journal = Layout(world / "shared" / "runs" / "theirs").journal.read_text().splitlines(keepends=True)
    with (
        stranger.doing(plant_runs, world / "shared" / "runs", "".join(journal[: len(journal) // 2])) as done,
        planted_by(stranger, world, owner.uid),
    ):
        assert done is None
        before = everything(world / "shared" / "runs")
        code, out, err = hopyard(owner, world, "ls", "runs")
        assert (code, err) == (0, "")
        assert next(line for line in out.splitlines() if line.startswith("theirs")).split()[1] == "completed"
        code, out, err = hopyard(owner, world, "clean", "--yes", "--older-than", "0")
        assert (code, err) == (0, ""), out
        assert everything(world / "shared" / "runs") == before


@contextlib.contextmanager
def dead_folders(owner: Account, world: Path) -> Iterator[list[Path]]:
    """What processes of the owner's that were killed left: a folder in shared memory, one for a task."""
    roots = [world / "tmp", MEMORY] if owner.uid else [world / "tmp"]
    folders = [
        *(root / f"hopyard-{owner.uid}-{secrets.token_hex(8)}" for root in roots),
        roots[0] / f"hopyard-{owner.uid}-task-dead",
    ]
    for folder in folders:
        folder.mkdir(mode=0o700)
        (folder / "lock").touch(mode=0o600)
        for path in (folder, folder / "lock"):
            os.chown(path, owner.uid, owner.uid)
    try:
        yield folders
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


# ---------------------------------------------------------------------------------------------- one by one


@pytest.mark.slow
def test_shared_memory_of_another_user_is_neither_opened_nor_removed(stranger: Account, world: Path) -> None:
    """Bug: `sweep` opened every `lock`, and waited 45 seconds for each that its owner had under a lease."""
    with planted_by(stranger, world, os.geteuid()):
        assert sweep(world / "tmp") == left(world / "tmp") == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_cache_for_those_without_a_home_whose_name_is_taken(
    world: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Bug: whatever another user gave this name stopped every executor whose user has no home."""
    (world / "file").touch()
    monkeypatch.setattr(mapped, "default_root", lambda: world / "file" / "data")
    monkeypatch.setattr(tempfile, "tempdir", str(world / "tmp"))
    taken = world / "tmp" / f"hopyard-{os.geteuid()}"
    if kind == "folder":
        taken.mkdir()
    elif kind == "file":
        taken.touch()
    else:
        taken.symlink_to("nowhere")
    os.chown(taken, STRANGER, STRANGER, follow_symlinks=False)
    root = mapped._host_root("")
    assert root.is_dir() and root.parent.stat().st_mode & 0o777 == 0o700 and root.parent.stat().st_uid == os.geteuid()
    assert mapped._host_root("") == root, "other processes of this user find the same one"
