"""A campaign of random troubles: the same bits, little done again, nothing left behind.

    python benchmarks/chaos.py [--runs 300] [--engine local|spark] [--framework torch|array] [--seed 0]
                               [--only TROUBLE …] [--cold 40] [--lock 120] [--jobs 1]

Each run trains the same six configurations (`chaos_job.py`) under a random number of workers and random grouping, while
one trouble of the table `TROUBLES` happens at random times. A driver that ended is resumed. With `--jobs`, so many runs
go on side by side. A run is good when

- the digests of all final States, the best trial and its epoch are those of an undisturbed run inline;
- no unit was done again whose State was durable before (what is in flight on a lost slot is one unit);
- nothing is left: no process that carries the run's mark, no entry in /dev/shm, no file in TMPDIR.

Full disks are small file systems of their own (tmpfs), which only root can mount; without root these troubles are
skipped, and the last line says so. Prints a line for each run, then how many were good of each trouble.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Dispatch, Done, Durable, Joined, Line
from hopyard.store.journal import read
from hopyard.system.scratch import left as unlocked

HERE = Path(__file__).parent
MARK = "HOPYARD_CHAOS"
HEARTBEAT_TIMEOUT = 3.0
"""Seconds; short, so that a stopped worker is found soon."""
RESUMES = 12
"""A run that its driver could not end within so many starts is bad."""
PATIENCE = 600.0
"""Seconds that one start of the driver may take."""
LEFT_SECONDS = 30.0
"""For what is left to be gone."""
SHARED = Path("/dev/shm")


@dataclass
class Job:
    """One run and the folders around it. Owner of its driver's process."""

    how: dict[str, Any]
    folder: Path
    trouble: dict[str, Any]
    dice: random.Random
    seen: int = 0
    """Lines of the journal when the last trouble happened."""
    resumes: int = 0
    driver: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("tmp", "cache", "store"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.how = {
            "directory": str(self.folder / "run"),
            "store": f"shaky://{self.folder / 'store'}",
            "heartbeat_timeout": HEARTBEAT_TIMEOUT,
            "resume": False,
            "failed": False,
            "engine": "local",
            **self.how,
        }
        self.start()

    @property
    def directory(self) -> Path:
        """Of the run."""
        return Path(str(self.how["directory"]))

    @property
    def mark(self) -> str:
        """The environment variable that all processes of this run carry."""
        return f"{MARK}={self.folder}"

    def start(self) -> None:
        """The driver, for the first time or again."""
        with (self.folder / "stdout").open("wb") as out, (self.folder / "stderr").open("ab") as err:
            self.driver = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(HERE / "chaos_job.py"), json.dumps(self.how)],
                stdout=out,
                stderr=err,
                text=True,
                env={
                    **os.environ,
                    MARK: str(self.folder),
                    "TMPDIR": str(self.folder / "tmp"),
                    "XDG_CACHE_HOME": str(self.folder / "cache"),
                    "SHAKY": str(self.folder / "mode"),
                    "NETWORK": str(self.folder / "network"),
                    "TROUBLE": json.dumps(self.trouble),
                    "PYTHONPATH": os.pathsep.join([str(self.folder.parent / "plugin"), *filter(None, sys.path)]),
                },
            )

    def resume(self) -> None:
        """Start the driver again, as its user would."""
        self.resumes += 1
        self.how["resume"] = True
        self.start()

    def journal(self) -> list[Line]:
        """What is in the journal now."""
        path = self.directory / "journal.jsonl"
        return list(read(path, CODEC)) if path.exists() else []

    def proceeded(self, lines: int) -> bool:
        """Wait until the journal has so many more lines; False when the driver ended before."""
        path = self.directory / "journal.jsonl"
        while self.driver.poll() is None:
            if path.exists() and path.read_bytes().count(b"\n") >= self.seen + lines:
                self.seen += lines
                return True
            time.sleep(0.01)
        return False

    def processes(self, *words: str) -> list[int]:
        """Those that carry the mark and have one of these words in their command line, the driver not among them."""
        return [pid for pid in _marked(self.mark) if pid != self.driver.pid and _command(pid, words)]

    def workers(self) -> list[int]:
        """The agents that the journal knows and that are alive."""
        pids = [line.pid for line in self.journal() if isinstance(line, Joined)]
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    def mode(self, mode: str) -> None:
        """How the store behaves from now on; "" is well."""
        path = self.folder / "mode.new"
        path.write_text(mode)
        path.rename(self.folder / "mode")

    def result(self) -> list[Any] | None:
        """What the driver printed at its end."""
        lines = [line for line in (self.folder / "stdout").read_text().splitlines() if line.startswith("DIGESTS ")]
        return list(json.loads(lines[-1].removeprefix("DIGESTS "))) if lines else None

    def end(self) -> list[Any] | None:
        """Wait for the end, resuming what was interrupted, and once what was lost to poison: of four kills three may
        have come upon one unit."""
        while True:
            try:
                self.driver.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                return None
            result = self.result()
            if result is not None and (all(result[:-2]) or self.how["failed"]):
                return result
            self.how["failed"] = result is not None
            if self.resumes >= RESUMES:
                return None
            self.resume()

    def kill(self) -> None:
        """End what is left."""
        for pid in [self.driver.pid, *_marked(self.mark)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.driver.wait()


def _marked(mark: str) -> Iterator[int]:
    """The processes whose environment has this entry."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _command(pid: int, words: tuple[str, ...]) -> bool:
    with suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return not words or any(word in text for word in words)
    return False


# ---------------------------------------------------------------- troubles


def _some(job: Job, pids: list[int], number: signal.Signals) -> int | None:
    if not pids:
        return None
    victim = job.dice.choice(pids)
    with suppress(ProcessLookupError):
        os.kill(victim, number)
        return victim
    return None


def kill_worker(job: Job) -> None:
    """`kill -9` of a worker."""
    _some(job, job.workers(), signal.SIGKILL)


def stop_worker(job: Job) -> None:
    """`SIGSTOP` of a worker, for ever."""
    _some(job, job.workers(), signal.SIGSTOP)


def zombie_worker(job: Job) -> None:
    """A worker that is stopped, and comes back when it may have been replaced."""
    victim = _some(job, job.workers(), signal.SIGSTOP)
    time.sleep(job.dice.random() * 2 * HEARTBEAT_TIMEOUT)
    if victim is not None:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGCONT)


def kill_driver(job: Job) -> None:
    """`kill -9` of the driver, then resume."""
    job.driver.kill()
    job.driver.wait()
    job.resume()


def pause_driver(job: Job) -> None:
    """The driver does not run for longer than the heartbeat's time-out."""
    job.driver.send_signal(signal.SIGSTOP)
    time.sleep(HEARTBEAT_TIMEOUT * (1 + job.dice.random()))
    job.driver.send_signal(signal.SIGCONT)


def kill_executor(job: Job) -> None:
    """`kill -9` of an executor's JVM."""
    _some(job, job.processes("CoarseGrainedExecutorBackend"), signal.SIGKILL)


def kill_supervisor(job: Job) -> None:
    """`kill -9` of the Python worker that places an agent."""
    _some(job, job.processes("pyspark.daemon", "pyspark/daemon"), signal.SIGKILL)


def stop_supervisor(job: Job) -> None:
    """`SIGSTOP` of the Python worker that places an agent, for ever."""
    _some(job, job.processes("pyspark.daemon", "pyspark/daemon"), signal.SIGSTOP)


def _store(mode: str) -> Callable[[Job], None]:
    def trouble(job: Job) -> None:
        job.mode(mode)
        time.sleep(job.dice.random() * 5)
        job.mode("")

    trouble.__doc__ = f"The store: {mode}, for up to 5 s."
    return trouble


def _network(what: str, longest: float) -> Callable[[Job], None]:
    def trouble(job: Job) -> None:
        path = job.folder / "network.new"
        path.write_text(f"{what} {job.dice.random() * longest:.3f}")
        path.rename(job.folder / "network")

    trouble.__doc__ = f"The connections of all agents {what} what comes, for up to {longest:g} s."
    return trouble


def remove_shared_memory(job: Job) -> None:
    """Somebody removes the run's folder in shared memory, as systemd's RemoveIPC does at a logout."""
    for folder in _shared(job):
        shutil.rmtree(folder, ignore_errors=True)


def _shared(job: Job) -> set[Path]:
    """The folders in shared memory that processes of this run have files of."""
    folders = set()
    for pid in [job.driver.pid, *_marked(job.mark)]:
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                name = line.partition("/dev/shm/")[2].split("/")[0]
                if name.startswith("hopyard"):
                    folders.add(SHARED / name)
    return folders


def _full(name: str) -> Callable[[Job], None]:
    def trouble(job: Job) -> None:
        ballast = job.folder / name / "ballast"
        _fill(ballast)
        job.proceeded(1 << 30) if job.dice.random() < 0.2 else time.sleep(job.dice.random() * 4)
        ballast.unlink(missing_ok=True)

    trouble.__doc__ = f"The file system of {name} is full for up to 4 s, or until the driver ended."
    return trouble


def _fill(ballast: Path) -> None:
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def nothing(job: Job) -> None:
    """What happens is in the job itself."""


@dataclass(frozen=True)
class Trouble:
    """One kind of trouble."""

    happen: Callable[[Job], None]
    times: int = 1
    """At most so often in one run."""
    job: str = ""
    """What the job itself does: "cold" or "lock"."""
    small: str = ""
    """Folder of the run that is a small file system of its own."""
    engine: str = ""
    """The engine that it is for; "": all."""


TROUBLES = {
    "none": Trouble(nothing, 0),
    "kill": Trouble(kill_worker),
    "kills": Trouble(kill_worker, 4),
    "stop": Trouble(stop_worker),
    "zombie": Trouble(zombie_worker),
    "driver": Trouble(kill_driver),
    "drivers": Trouble(kill_driver, 3),
    "pause": Trouble(pause_driver),
    "executor": Trouble(kill_executor, 2, engine="spark"),
    "supervisor-kill": Trouble(kill_supervisor, 2, engine="spark"),
    "supervisor-stop": Trouble(stop_supervisor, 1, engine="spark"),
    "store-fails": Trouble(_store("fail"), 2),
    "store-stalls": Trouble(_store("stall"), 2),
    "store-readonly": Trouble(_store("readonly"), 2),
    "store-slow": Trouble(_store("slow"), 2),
    "messages-lost": Trouble(_network("swallow", 2.0), 3),
    "messages-late": Trouble(_network("hold", 2.5), 3),
    "memory": Trouble(remove_shared_memory, 2),
    "full-run": Trouble(_full("run"), 2, small="run"),
    "full-store": Trouble(_full("store"), 2, small="store"),
    "full-cache": Trouble(_full("cache"), 1, small="cache"),
    "cold": Trouble(kill_worker, 1, job="cold"),
    "lock": Trouble(nothing, 0, job="lock"),
}


# ---------------------------------------------------------------- what must hold


def redone(lines: list[Line]) -> tuple[int, int]:
    """(partitions trained again though a State behind them was durable, partitions trained again in all)."""
    units = {line.unit.lease: line.unit for line in lines if isinstance(line, Dispatch)}
    reached: dict[int, int] = {}
    durable: dict[int, int] = {}
    wrong = again = 0
    for line in lines:
        if isinstance(line, Durable):
            durable[line.ref.trial] = max(durable.get(line.ref.trial, 0), line.ref.step)
        elif isinstance(line, Done) and (unit := units[line.lease]).kind == "train":
            for step in range(unit.step + 1, unit.step + 1 + len(line.parts)):
                again += step <= reached.get(unit.trial, 0)
                wrong += step <= durable.get(unit.trial, 0)
            reached[unit.trial] = max(reached.get(unit.trial, 0), unit.step + len(line.parts))
    return wrong, again


def left(job: Job, before: set[str]) -> list[str]:
    """Processes, shared memory and temporary files that are still there a moment after the end."""
    end = time.monotonic() + LEFT_SECONDS
    while True:
        found = [f"process {pid}" for pid in _marked(job.mark)]
        found += [str(path) for path in unlocked(SHARED) if path.name not in before]  # a run beside this locks its own
        found += [f"TMPDIR/{name}" for name in _entries(job.folder / "tmp") if not name.startswith(_OF_OTHERS)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.2)


_OF_OTHERS = ("blockmgr-", "spark-", "hsperfdata", "liblz4", "libsnappy", "libzstd", "libnetty", "torch", "matplotlib")
"""What Spark, Java and torch leave when they are killed."""


def _entries(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.exists() else set()


@contextmanager
def small(folder: Path) -> Iterator[None]:
    """A file system of 24 MB at this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "chaos", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


@dataclass(frozen=True)
class Outcome:
    """What came out of one run."""

    digests: list[Any] | None
    wrong: int
    again: int
    remains: list[str]
    resumes: int

    def faults(self, reference: list[Any] | None) -> list[str]:
        """What does not hold."""
        found = []
        if self.digests is None:
            found.append("no result")
        elif reference is not None and self.digests != reference:
            found.append("OTHER DIGESTS")
        if self.wrong:
            found.append(f"{self.wrong} partitions done again that were durable")
        return found + [f"left: {', '.join(self.remains)}"] * bool(self.remains)


def one(name: str, how: dict[str, Any], job_trouble: dict[str, Any], folder: Path, dice: random.Random) -> Outcome:
    """One run under one trouble."""
    trouble = TROUBLES[name]
    before = _entries(SHARED)
    with ExitStack() as stack:
        if trouble.small:
            stack.enter_context(small(folder / trouble.small))
        if trouble.small == "run":
            how = {**how, "directory": str(folder / "run" / "run")}
        job = Job(how, folder, job_trouble, dice)
        stack.callback(job.kill)
        line = 12
        for _ in range(trouble.times):
            if not job.proceeded(line):
                break
            line = dice.randrange(4, 60)
            time.sleep(dice.random() * 0.05)
            trouble.happen(job)
        digests = job.end()
        remains = left(job, before)
        wrong, again = redone(job.journal())
    return Outcome(digests, wrong, again, remains, job.resumes)


def plugin(folder: Path) -> None:
    """Make `shaky://` known to every process that has this folder on its path, as an installed package would."""
    info = folder / "shaky-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shaky\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[fsspec.specs]\nshaky = chaos_job:Shaky\n")
    (folder / "chaos_job.py").write_bytes((HERE / "chaos_job.py").read_bytes())


def main() -> int:
    """Run the campaign; 0 when every run was good."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("local", "spark"), default="local")
    parser.add_argument("--framework", choices=("torch", "array"), default="torch")
    parser.add_argument("--only", nargs="+", choices=sorted(TROUBLES))
    parser.add_argument("--cold", type=float, default=40.0, help="seconds of a compile in each cold worker")
    parser.add_argument("--lock", type=float, default=120.0, help="seconds of a call that holds the interpreter's lock")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--keep", action="store_true", help="keep the folders of bad runs")
    asked = parser.parse_args()
    names = [
        name
        for name, trouble in TROUBLES.items()
        if trouble.engine in ("", asked.engine) and (not asked.only or name in asked.only)
    ]
    skipped = [name for name in names if TROUBLES[name].small and os.geteuid() != 0]
    names = [name for name in names if name not in skipped]
    good: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    plugin(root / "plugin")
    plain = {"framework": asked.framework, "rows": 16000, "group": "auto", "engine": asked.engine}
    inline = {**plain, "engine": "local", "workers": 0}
    reference = one("none", inline, {}, root / "reference", random.Random(asked.seed)).digests
    if reference is None:
        print((root / "reference" / "stderr").read_text()[-4000:], file=sys.stderr)
        return 1

    def numbered(number: int) -> tuple[str, bool]:
        name = names[number % len(names)]
        dice = random.Random(f"{asked.seed} {number}")
        how = {**plain, "workers": dice.choice([1, 2, 3, 4][: 4 if asked.engine == "local" else 2])}
        how["group"] = dice.choice(["auto", "off", 4])
        folder = root / f"run-{number}"
        own = TROUBLES[name].job
        job_trouble = {own: getattr(asked, own), "once": str(folder / "once")} if own else {}
        began = time.perf_counter()
        outcome = one(name, how, job_trouble, folder, dice)
        faults = outcome.faults(reference)
        kept = f"\n         kept: {folder}" if faults and asked.keep else ""
        print(
            f"run {number:3d}  {name:15s} {how['workers']} workers, group {how['group']}: "
            f"{'; '.join(faults) or 'good'} "
            f"({outcome.again} partitions done again, {outcome.resumes} resumes, {time.perf_counter() - began:.1f} s)"
            f"{kept}",
            flush=True,
        )
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)
        return name, not faults

    with ThreadPoolExecutor(asked.jobs) as pool:
        for name, well in pool.map(numbered, range(asked.runs)):
            runs[name] += 1
            good[name] += well
    for name in names:
        print(f"{name:15s} {good[name]} of {runs[name]} good")
    if skipped:
        print(f"skipped, as only root can mount small file systems: {', '.join(skipped)}")
    print(f"{good.total()} of {runs.total()} runs were good")
    if not asked.keep:
        shutil.rmtree(root, ignore_errors=True)
    return 0 if good == runs else 1


if __name__ == "__main__":
    sys.exit(main())
