"""Thirty random faults over three hosts, each with a real sshd: equal digests, a home for each partition, and nothing
left."""

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
from homes import moved, stored
from hopyard.core.runs.events import Dispatch, Done, Line
from hopyard.core.runs.machine import fold
from hopyard.data.manifest import folder_name
from hosts import Hosts
from jobs import CONFIGS, SLOW, dataset, digests, journal, script, select

MANY = [*CONFIGS, *({"lr": 0.002 * n} for n in range(1, 5))]
PARTITIONS, ROWS = 12, 2400
FAULTS = ("agent", "agent, frozen", "supervisor", "host process", "sshd", "cut off", "driver", "peers")


def started(job: str, folder: Path) -> subprocess.Popen[bytes]:
    """A driver; what it says goes to a file."""
    with (folder / "driver.log").open("ab") as log:
        return subprocess.Popen([sys.executable, job], cwd=folder, stdout=log, stderr=log, start_new_session=True)


def unanswered(lines: list[Line]) -> set[str]:
    """Return the names of partitions of units that no worker has finished: what it fetched for them, it could not
    report."""
    units = {line.unit.lease: line.unit for line in lines if isinstance(line, Dispatch)}
    for line in lines:
        if isinstance(line, Done):
            units.pop(line.lease, None)
    return {folder_name(unit.kind, partition) for unit in units.values() for partition in unit.partitions}


@pytest.mark.campaign
@pytest.mark.timeout(1200)
def test_thirty_random_faults_over_three_hosts(tmp_path: Path) -> None:
    """Hosts are cut off, from all or from each other, and mended; agents, supervisors, host processes, logins and
    drivers are killed or frozen."""
    rng, faults = random.Random(7), 0
    made = Hosts(tmp_path, names=("alpha", "beta", "gamma"))
    try:
        body = (
            f"{SLOW}\nengine = hy.Hosts(['alpha:1', 'beta:1', 'gamma:1'], ssh={made.ssh!r})\n"
            f"select(Path('run'), slow, {MANY!r}, epochs=70, engine=engine, resume=True,\n"
            f"       timeouts=hy.Timeouts(heartbeat_timeout=3.0),\n"
            f"       data=dataset({PARTITIONS}, rows={ROWS}), parallel=hy.Hopper(copies=1))\n"
        )
        job = str(script(tmp_path / "job.py", body))
        process = started(job, tmp_path)
        while process.poll() is None:
            time.sleep(rng.uniform(0.5, 4.0))
            name = rng.choice(made.names)
            what = rng.choice(FAULTS)
            if faults >= 30:
                process.wait(600)
                break
            if what == "driver":
                process.kill()
                process.wait()
                process = started(job, tmp_path)
            elif what == "cut off":
                made.network.cut(name)
                time.sleep(rng.uniform(0.5, 40.0))  # in 30 s another host becomes home to what is at home there
                made.network.mend(name)
            elif what == "peers":
                other = rng.choice([host for host in made.names if host != name])
                made.network.block(name, other)
                time.sleep(rng.uniform(0.5, 10.0))
                made.network.unblock(name, other)
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
        data = dataset(PARTITIONS, rows=ROWS)
        inline = select(tmp_path / "inline", configs=MANY, epochs=70, data=data)
        assert digests(hy.load(tmp_path / "run")) == digests(inline)
        lines, table = journal(tmp_path / "run"), data.prepare()
        places = fold(lines).places
        assert all(places.homes("train", places.block("train", partition)) for partition in range(PARTITIONS))
        rows, reported = stored(table, made.fetched(table).values()), moved(table, tmp_path / "run")
        unreported = stored(table, [unanswered(lines)])
        print(f"stored {rows:.2f}, moved {reported:.2f} and at most {unreported:.2f} of dead workers", flush=True)
        assert reported <= rows + 1e-9 and rows <= reported + unreported
        left = [made.run(name, "sh", "-c", "ls -d /root/.cache/hopyard/data/.tmp-*") for name in made.names]
        assert not any(left), left
    finally:
        made.close()
