"""The companion of an agent: what it holds, what it costs, what happens when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.agent.progress import Progress
from hopyard.core.facts import Lost
from hopyard.engines.processes import Spawned
from hopyard.frameworks.linear import Linear
from hopyard.system.processes import COMPANION, Tree, descendants, ended, state_of
from jobs import CONFIGS, WIDTH, alive, companions, first_time, gone, journal, select

pytestmark = pytest.mark.slow


def eventually(found: Any, seconds: float = 60.0) -> bool:
    """Whether `found()` comes true."""
    end = time.monotonic() + seconds
    while not found():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


# ------------------------------------------------------------------------------------------------- the page


def test_a_fork_reads_the_agents_writes() -> None:
    """In a process of its own: libraries that other tests imported warn of a fork, and may deadlock in one."""
    code = """
import os
from pathlib import Path
from hopyard.agent.progress import Progress
from hopyard.core.liveness import PHASES
progress = Progress()
assert PHASES[progress.phase] == "build"
before = progress.advanced
read, write = os.pipe()
child = os.fork()
if child == 0:
    os.read(read, 1)
    good = progress.advanced == before + 8 and PHASES[progress.phase] == "train" and progress.taken == 41
    good = good and progress.folder == Path("/dev/shm/größe")
    os._exit(0 if good else 1)
progress.advance(7)
progress.enter("train")
progress.taken = 41
assert progress.folder is None
progress.folder = Path("/dev/shm/größe")
os.write(write, b".")
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_path_that_does_not_fit_is_left_out() -> None:
    progress = Progress()
    progress.folder = Path("/" + 5000 * "x")
    assert progress.folder is None


# ------------------------------------------------------------------------------------------------- processes


def test_a_tree_ends_whatever_it_made_of_itself() -> None:
    """A helper, one in a session of its own, one that is stopped, and one of a child that is stopped."""
    text = "sleep 600 & setsid sleep 600 & sleep 600 & kill -STOP $!; sh -c 'sleep 600 & wait' & sleep 0.3; wait"
    root = subprocess.Popen(["sh", "-c", text], process_group=0)
    assert eventually(lambda: len(descendants(root.pid)) >= 5)
    found = descendants(root.pid)
    os.kill(root.pid, signal.SIGSTOP)
    assert eventually(lambda: state_of(root.pid) == "T")
    Tree(root.pid).end()
    assert root.wait(60) == -signal.SIGKILL
    assert gone(list(found))
    assert ended(root.pid)


def test_an_engine_ends_what_an_agent_has_started_but_its_companion(tmp_path: Path) -> None:
    """Bug: helpers in sessions of their own lived on where the agent was killed, not its driver."""
    code = f"""
import os, subprocess, sys, time
from pathlib import Path
if not os.fork():
    os.setpgid(0, 0)
    Path("/proc/self/comm").write_text({COMPANION!r})
    time.sleep(600)
for session in (False, True):
    subprocess.Popen(["sleep", "600"], start_new_session=session)
time.sleep(600)
"""
    with (tmp_path / "log").open("wb") as log:
        agent = Spawned([sys.executable, "-c", code], os.environ, log, session=True)
    assert eventually(lambda: sorted(map(comm, descendants(agent.pid))) == [COMPANION[:15], "sleep", "sleep"])
    (companion,) = (each for each in descendants(agent.pid) if comm(each) != "sleep")
    helpers = descendants(agent.pid) - {companion}
    agent.kill()
    assert agent.wait(60) and agent.poll() == -signal.SIGKILL
    assert gone(list(helpers)) and not ended(companion)
    os.kill(companion, signal.SIGKILL)
    agent.close()


def comm(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def of_all_threads(process: int) -> float:
    """Seconds of the processor that the process itself has taken."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def test_processor_time_is_that_of_the_first_thread_and_of_children() -> None:
    """A thread that spins beside a first one that waits does not count; a compiler's does, and a child that computes,
    also ended."""
    code = """
import ctypes, subprocess, sys, threading, time
from hopyard.system.processes import name_threads
name_threads()
def spin(name=None):
    if name: ctypes.CDLL(None).prctl(15, name)
    while True: pass
if sys.argv[1] == "thread":
    threading.Thread(target=spin, daemon=True).start()
elif sys.argv[1] == "compiler":
    threading.Thread(target=spin, args=(b"tf_Compute",), daemon=True).start()
elif sys.argv[1] == "first":
    spin()
else:
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.5: pass"])
    subprocess.run([sys.executable, "-c", "while True: pass"])
print("there", flush=True)
time.sleep(600)
"""
    for what in ("thread", "first", "child", "compiler"):
        process = subprocess.Popen([sys.executable, "-c", code, what], stdout=subprocess.PIPE, process_group=0)
        try:
            tree = Tree(process.pid)
            if what == "thread":
                assert process.stdout is not None
                process.stdout.readline()
                before, spent = tree.cpu_seconds(), of_all_threads(process.pid)
                assert eventually(lambda spent=spent, process=process: of_all_threads(process.pid) - spent > 1.0, 60)
                assert tree.cpu_seconds() - before < 0.5
            else:
                before = tree.cpu_seconds()
                assert eventually(lambda tree=tree, before=before: tree.cpu_seconds() - before > 0.8, 60)
        finally:
            tree.end()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


# ------------------------------------------------------------------------------------------------- in a run


def looked_at(folder: Path, what: str) -> Any:
    """A recipe that does something to its own companion, once, in training, or writes down what it sees of it."""

    class Looks(Linear):
        def train(self, batch: Any) -> Any:
            if self.steps == 5 and first_time(str(folder / "once")):
                (other,) = companions(os.getpid())
                if what == "look":
                    files = [os.readlink(path) for path in Path(f"/proc/{other}/fd").iterdir()]
                    (folder / "files").write_text("\n".join(files))
                    (folder / "memory").write_text(Path(f"/proc/{other}/smaps_rollup").read_text())
                    (folder / "input").write_text(os.readlink("/proc/self/fd/0"))
                else:
                    os.kill(other, getattr(signal, what))
                    time.sleep(60)
            return super().train(batch)

    return lambda config: Looks(WIDTH, 2, lr=config["lr"], batch_size=16)


def test_the_companion_is_small_and_shares_nothing_with_the_agent(tmp_path: Path) -> None:
    run = select(tmp_path / "run", looked_at(tmp_path, "look"), CONFIGS[:1], engine=hy.Local(1, devices=None))
    assert run.status == "completed"
    files = (tmp_path / "files").read_text().splitlines()
    kinds = ("pipe:", "anon_inode:", "socket:", str(tmp_path / "run" / "logs"))
    assert all(file.startswith(kinds) for file in files), files
    assert (tmp_path / "input").read_text() == "/dev/null"  # the companion has the agent's own
    assert not any("/dev/shm" in file or "journal" in file for file in files)
    sizes = dict(line.split()[:2] for line in (tmp_path / "memory").read_text().splitlines()[1:])
    assert int(sizes["Pss:"]) < 60_000


@pytest.mark.parametrize("signal_name", ["SIGKILL", "SIGSTOP"])
def test_an_agent_whose_companion_is_gone_is_replaced(tmp_path: Path, signal_name: str) -> None:
    recipe = looked_at(tmp_path, signal_name)
    run = select(
        tmp_path / "run",
        recipe,
        CONFIGS[:1],
        engine=hy.Local(1, devices=None),
        timeouts=hy.Timeouts(heartbeat_timeout=1.5),
    )
    assert run.status == "completed"
    (lost,) = [line for line in journal(tmp_path / "run") if isinstance(line, Lost)]
    assert lost.reason.startswith("said nothing for ")
    assert alive([]) == []


ACCOMPANIED = """
import os, sys, time
from hopyard.agent.companion import accompany
from hopyard.agent.progress import Progress
from hopyard.core.messages import Card

progress = Progress()
accompany(Card(0, "tcp://127.0.0.1:9", "0" * 40, "0" * 40, "0" * 40), progress)
(child,) = [int(pid) for pid in open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read().split()]
until = time.monotonic() + 20
while not open(f"/proc/{child}/comm").read().startswith("hopyard-comp") and time.monotonic() < until:
    time.sleep(0.01)
print(progress.companion, child)
"""


def test_an_agent_knows_its_companion_whichever_of_them_runs_first() -> None:
    """Who hosts a program ends what a task left behind, but not its companion."""
    command = [sys.executable, "-c", ACCOMPANIED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        known, child = agent.stdout.readline().split()
        agent.stdin.close()
    assert known == child
    assert gone([int(child)])
