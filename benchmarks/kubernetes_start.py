"""How soon agents are up on pods, and what pods cost, beside hosts and `Local(2)` on the same machine.

    python benchmarks/kubernetes_start.py [--repeats 3] [--pods 1 2 4 16]    # needs root; some minutes

Up: from the moment when all pods run, as the kubelet says, until all their agents are ready; beside it, the same from
the call of `select` on as many hosts by an ssh that is played. The recipe imports no framework. Pods are processes in
namespaces under the API server of the tests, so what a real cluster takes to schedule pods and pull images is in
neither. Loss: from the SIGKILL of a pod's process 1 until its status says so, and from then to the request for
another. Efficiency: wall time with two pods ÷ that of `Local(2)`, on the long units of `efficiency.py`, agents up.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import hopyard as hy  # noqa: E402
from bare_hosts import selected  # noqa: E402
from efficiency import PARTITIONS, SIZES, make  # noqa: E402
from hopyard.core.runs.events import Joined  # noqa: E402
from hosts import played_ssh  # noqa: E402
from jobs import journal, select, troubled, until  # noqa: E402
from kube.api.routes import Answer, Request  # noqa: E402
from kube.lab import Lab  # noqa: E402
from pods import Gate, joined, left, pod_of, process  # noqa: E402


def running(lab: Lab, count: int, found: list[float]) -> None:
    """Note when so many pods run."""
    until(lambda: len(lab.pods()) >= count, 120)
    found.append(time.time())


def up(directory: Path, engine: Any, count: int) -> float:
    """Return when the agents of a run were ready."""
    select(directory, configs=[{"lr": 0.1}] * count, epochs=1, engine=engine)
    return max(line.at for line in journal(directory) if isinstance(line, Joined))


def on_pods(lab: Lab, directory: Path, count: int) -> float:
    """Return the seconds from pods that run to agents that are ready."""
    found: list[float] = []
    watch = threading.Thread(target=running, args=(lab, count, found))
    watch.start()
    gate = Gate(lab, trials=count)
    configs = [dict(gate.configs[0]) for _ in range(count)]
    run = select(directory, troubled, configs, engine=lab.engine(workers=count, memory="512Mi"), wait=False)
    hosts = joined(directory, count)
    watch.join()
    with gate.open():
        run.wait()
    until(lambda: not left(lab), 120)
    return max(line.at for line in hosts.values()) - found[0]


def on_hosts(ssh: str, directory: Path, count: int) -> float:
    """Return the seconds from the call to agents that are ready."""
    began = time.time()
    return up(directory, hy.Hosts([f"host-{number}:1" for number in range(count)], ssh=ssh), count) - began


def replacement(lab: Lab, directory: Path) -> tuple[float, float]:
    """Return the seconds from the end of a pod until its status says so, and from then to the request for another."""
    gate, at = Gate(lab), list[float]()
    known: list[float] = []

    answer = lab.cluster.api.answer

    def look(request: Request) -> Answer:
        if request.method == "POST" and request.path.endswith("/jobs"):
            at.append(time.monotonic())
        found = answer(request)
        if request.path.endswith("/status") and request.body["status"].get("phase") == "Failed":
            known.append(time.monotonic())
        return found

    run = select(directory, troubled, gate.configs, engine=lab.engine(), wait=False)
    host = next(iter(joined(directory, 2)))
    pid = process(lab, pod_of(lab, host), "process 1")
    lab.cluster.api.answer = look  # type: ignore[method-assign]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    until(lambda: at and known)
    lab.cluster.api.answer = answer  # type: ignore[method-assign]
    with gate.open():
        run.wait()
    until(lambda: not left(lab), 120)
    return known[0] - began, at[0] - known[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--pods", type=int, nargs="*", default=[1, 2, 4, 16])
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    os.environ["KUBECONFIG"] = str(folder / "lab" / "kubeconfig")
    ssh = played_ssh(folder)
    data = hy.Dataset.numpy(*make(int(SIZES["long"] * PARTITIONS / 0.8)), validation=0.2, partitions=PARTITIONS)
    data.prepare()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with Lab(folder / "lab", speed=20) as lab:
        for count in options.pods:
            pods, hosts = [], []
            for n in range(options.repeats):
                pods.append(on_pods(lab, folder / f"pods{count}-{n}", count))
                hosts.append(on_hosts(ssh, folder / f"hosts{count}-{n}", count))
            print(
                f"{count} pods run → agents up: {statistics.median(pods):.2f} s | as many hosts, from the call: "
                f"{statistics.median(hosts):.2f} s (load {os.getloadavg()[0]:.1f})",
                flush=True,
            )
        lost = [replacement(lab, folder / f"lost{n}") for n in range(options.repeats)]
        seen, asked = (statistics.median(found) for found in zip(*lost, strict=True))
        print(
            f"SIGKILL of a pod → its status says so: {seen:.2f} s; → another is asked for: {asked:.2f} s (at most 0.2)",
            flush=True,
        )
        ratios = []
        for n in range(options.repeats):
            engines = {"pods": lab.engine(memory="2Gi", cpu=1), "local": hy.Local(2, devices=None)}
            seconds, digests = {}, []
            for name in ("local", "pods") if n % 2 else ("pods", "local"):
                _, seconds[name], found = selected(engines[name], data, folder / f"{name}{n}")
                until(lambda: not left(lab), 120)
                digests.append(found)
            assert digests[0] == digests[1]
            ratios.append(seconds["pods"] / seconds["local"])
            print(f"2 pods {seconds['pods']:.2f} s, Local(2) {seconds['local']:.2f} s", flush=True)
    print(f"2 pods / Local(2): {statistics.median(ratios):.3f} (at most 1.05)")


if __name__ == "__main__":
    main()
