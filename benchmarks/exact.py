"""The same bits whatever happens: random faults against one undisturbed run.

    python benchmarks/exact.py [--runs 30] [--seed 0] [--framework torch|array]

Each run trains the same six configurations under a random number of workers (1 to 4, or inline), random grouping, and
one kind of trouble: none; `kill -9` of a random worker at a random time (once or several times); `SIGSTOP` of a worker
(for ever, or until it comes back as a zombie); `kill -9` of the driver, then resume. The digests of all final States
must be those of an undisturbed run inline. Prints a line for each run, and how many were equal last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Joined
from hopyard.store.journal import read

JOB = """
import json, sys
import numpy as np
import hopyard as hy

how = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
x = rng.standard_normal((how["rows"], 20)).astype("f4")
y = (x @ rng.standard_normal(20) + rng.standard_normal(len(x)) > 0).astype("i8")

def torch_recipe(config):
    import torch
    w = config["width"]
    net = torch.nn.Sequential(torch.nn.Linear(20, w), torch.nn.BatchNorm1d(w), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                              torch.nn.Linear(w, 2))
    return hy.torch.Model(net, optimizer=torch.optim.Adam(net.parameters(), lr=config["lr"]),
                          loss=torch.nn.functional.cross_entropy, metrics={"accuracy": hy.torch.accuracy},
                          batch_size=config["batch_size"])

def array_recipe(config):
    from hopyard.frameworks.linear import Linear
    return Linear(20, 2, lr=config["lr"], batch_size=config["batch_size"])

if how["resume"]:
    run = hy.resume(how["directory"])
else:
    space = hy.Space(lr=hy.loguniform(1e-3, 1e-2), width=hy.choice([16, 64]), batch_size=hy.choice([16, 64]))
    run = hy.select({"torch": torch_recipe, "array": array_recipe}[how["framework"]], space,
                    hy.Dataset.numpy(x, y, validation=0.2, partitions=6), search=hy.Random(6), epochs=3,
                    metric="val_loss", mode="min", directory=how["directory"], parallel=hy.Hopper(group=how["group"]),
                    engine=hy.Local(workers=how["workers"]) if how["workers"] else hy.Inline())
print("DIGESTS " + json.dumps([t.digest for t in run.trials] + [run.best.id, run.best.epoch]))
"""
TROUBLES = ("none", "kill", "kills", "stop", "zombie", "driver", "drivers")


def start(how: dict[str, object], folder: Path) -> subprocess.Popen[str]:
    script = folder / "job.py"
    script.write_text(JOB)
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), json.dumps(how)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def digests(job: subprocess.Popen[str]) -> list[str]:
    out, err = job.communicate(timeout=300)
    found = [line for line in out.splitlines() if line.startswith("DIGESTS ")]
    if not found:
        raise RuntimeError(f"the job gave nothing:\n{out[-2000:]}\n{err[-4000:]}")
    if "defect" in err:
        raise RuntimeError(err[-4000:])
    return list(json.loads(found[0].removeprefix("DIGESTS ")))


def workers(directory: Path) -> list[int]:
    """Process ids of the agents that the journal knows and that are alive."""
    journal = directory / "journal.jsonl"
    if not journal.exists():
        return []
    pids = [line.pid for line in read(journal, CODEC) if isinstance(line, Joined)]
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def wait_for(directory: Path, count: int, job: subprocess.Popen[str]) -> bool:
    """Until the journal has so many lines; False when the job ended before."""
    journal = directory / "journal.jsonl"
    while job.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.005)
    return False


def one(how: dict[str, object], trouble: str, dice: random.Random, folder: Path) -> list[str]:
    directory = Path(str(how["directory"]))
    job = start(how, folder)
    line = 12
    for _ in range({"none": 0, "kills": 4, "drivers": 3}.get(trouble, 1)):
        line += dice.randrange(4, 60)
        if not wait_for(directory, line, job):
            break
        time.sleep(dice.random() * 0.05)
        alive = workers(directory)
        if trouble.startswith("driver"):
            job.send_signal(signal.SIGKILL)
            job.communicate()
            job = start({**how, "resume": True}, folder)
        elif alive and trouble.startswith("kill"):
            os.kill(dice.choice(alive), signal.SIGKILL)
        elif alive:
            victim = dice.choice(alive)
            os.kill(victim, signal.SIGSTOP)
            if trouble == "zombie":
                time.sleep(dice.random() * 3)
                os.kill(victim, signal.SIGCONT)
    return digests(job)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--framework", choices=("torch", "array"), default="torch")
    asked = parser.parse_args()
    dice = random.Random(asked.seed)
    equal = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = {"framework": asked.framework, "rows": 16000, "group": "auto", "resume": False}
        reference = digests(start({**plain, "workers": 0, "directory": str(folder / "reference")}, folder))
        for number in range(asked.runs):
            trouble = TROUBLES[number % len(TROUBLES)]
            many = dice.choice([1, 2, 3, 4]) if trouble != "none" else [1, 2, 3, 4, 0][number // len(TROUBLES) % 5]
            group = dice.choice(["auto", "off", 4])
            how = {**plain, "workers": many, "group": group, "directory": str(folder / f"run-{number}")}
            began = time.perf_counter()
            same = one(how, trouble, dice, folder) == reference
            equal += same
            print(
                f"run {number:2d}  {trouble:8s} {many or 'inline'} workers, group {group}: "
                f"{'equal' if same else 'DIFFERENT'} ({time.perf_counter() - began:.1f} s)",
                flush=True,
            )
    print(f"{equal} of {asked.runs} runs ended in equal digests")
    return 0 if equal == asked.runs else 1


if __name__ == "__main__":
    sys.exit(main())
