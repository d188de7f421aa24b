"""Thirty random faults over three hosts, each with a real sshd: equal digests, and nothing left."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hopyard as hy
from hosts import Hosts
from jobs import CONFIGS, digests, script, select

MANY = [*CONFIGS, *({"lr": 0.002 * n} for n in range(1, 5))]
SLOW = """
import time
class Slow(Linear):
    def train(self, batch):
        time.sleep(0.05)
        return super().train(batch)
def slow(config):
    return Slow(WIDTH, 2, lr=config["lr"], batch_size=16)
"""


def started(job: str, folder: Path) -> subprocess.Popen[bytes]:
    """A driver; what it says goes to a file."""
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, job], cwd=folder, stdout=log, stderr=log, start_new_session=True)


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_thirty_random_faults_over_three_hosts(tmp_path: Path) -> None:
    """Hosts are cut off and mended; agents, supervisors, host processes, logins and drivers are killed or frozen."""
    rng, faults = random.Random(7), 0
    made = Hosts(tmp_path, names=("alpha", "beta", "gamma"))
    try:
        body = (
            f"{SLOW}\nengine = hy.Hosts(['alpha:1', 'beta:1', 'gamma:1'], ssh={made.ssh!r})\n"
            f"select(Path('run'), slow, {MANY!r}, epochs=70, engine=engine, heartbeat_timeout=3.0, resume=True)\n"
        )
        job = str(script(tmp_path / "job.py", body))
        process = started(job, tmp_path)
        while process.poll() is None:
            time.sleep(rng.uniform(0.5, 4.0))
            name = rng.choice(made.names)
            what = rng.choice(["agent", "agent, frozen", "supervisor", "host process", "sshd", "cut off", "driver"])
            if faults >= 30:
                process.wait(600)
                break
            if what == "driver":
                process.kill()
                process.wait()
                process = started(job, tmp_path)
            elif what == "cut off":
                made.network.cut(name)
                time.sleep(rng.uniform(0.5, 30.0))
                made.network.mend(name)
            else:
                try:
                    tree = made.tree(name)
                except (ValueError, OSError):  # it is being started
                    continue
                with contextlib.suppress(ProcessLookupError):
                    os.kill(tree[what.partition(",")[0]], signal.SIGSTOP if "frozen" in what else signal.SIGKILL)
            faults += 1
            print(f"{faults}: {what} on {name}", flush=True)
        assert process.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
        assert faults == 30, f"the run was over after {faults} faults"
        assert made.nothing_left()
        assert digests(hy.load(tmp_path / "run")) == digests(select(tmp_path / "inline", configs=MANY, epochs=70))
    finally:
        made.close()
