"""What a thousand pods ask of the API server, and what they cost the driver.

    python benchmarks/kubernetes_pods.py [--pods 1000] [--nodes 20]    # one or two minutes

The API server is that of the tests, and its pods are played: they run, and nothing dials. So this is the driver's part
until supervisors dial in; `many_agents.py` has the part from then on. The driver is a process of its own: it asks for
the pods, sees all of them run, and deletes them. Requests are counted by the server; the watch that brings the changes
of pods is one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

from kube.played_kubelet import Life, PlayedKubelet  # noqa: E402
from kube.server import Cluster  # noqa: E402

SECONDS = 600.0


def drive(pods: int) -> None:
    """Ask for so many pods, wait until all run, and let them go; print the seconds of each and of the processor."""
    import hopyard as hy
    from hopyard.ports.engines import LaunchInfo

    engine = hy.Kubernetes(pods, "hopyard:played", memory="64Mi", shm="1Mi", cpu=0.01, start_timeout=SECONDS)
    launch = LaunchInfo(lambda slot: b"{}", lambda slot: Path(os.devnull))
    agents = engine.open(launch)
    began, cpu = time.monotonic(), time.process_time()
    for slot in range(pods):
        agents.start(slot)
    watcher = None
    while watcher is None or sum(pod["status"]["phase"] == "Running" for pod in watcher.objects.values()) < pods:
        agents.lost()
        watcher = agents._placement._watcher  # type: ignore[attr-defined]
        time.sleep(0.5)
    up = {"up": time.monotonic() - began, "processor": time.process_time() - cpu}
    began, cpu = time.monotonic(), time.process_time()
    agents.close()
    print(json.dumps(up | {"end": time.monotonic() - began, "processor at the end": time.process_time() - cpu}))


def kind_of(line: tuple[str, str]) -> str:
    """Return a request as what it asks: "POST jobs"."""
    method, path = line
    if "watch=true" in path:
        return "watch pods"
    words = re.sub(r"\?.*", "", path).split("/")
    named = words[-1].startswith("hopyard-")
    return f"{method} {words[-2 if named else -1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--drive", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.drive:
        drive(given.pods)
        return
    for pods in (1, given.pods):
        with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
            for number in range(given.nodes):
                cluster.add_node(f"node-{number}", cpu="100", memory="1000Gi", pods=1 + given.pods // given.nodes)
            config = cluster.kubeconfig(Path(folder) / "config")
            with PlayedKubelet(cluster, lambda pod: Life()):
                words = [sys.executable, __file__, "--drive", "--pods", str(pods)]
                env = {**os.environ, "KUBECONFIG": str(config)}
                done = subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True)
            counts = Counter(kind_of(line) for line in cluster.requests)
            print(f"{pods} pods: {len(cluster.requests)} requests: {dict(counts)}")
            print(
                f"  seconds: { {name: round(value, 2) for name, value in json.loads(done.stdout).items()} }", flush=True
            )


if __name__ == "__main__":
    main()
