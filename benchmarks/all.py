"""Every benchmark in turn, each with its figures; it takes an hour and a half. A machine that does other work at the
same time spoils them. `chaos.py` is not among them: it is a campaign of hours.

    python benchmarks/all.py [NAME …]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ALL = (
    "scheduler",
    "control",
    "hop",
    "data_vs_limit",
    "ragged",
    "efficiency",
    "keras_vs_limit",
    "spark_vs_limit",
    "spark_data",
    "spark_transform",
    "program_start",
    "warm",
    "feed",
    "program_kills",
    "bulk",
    "stores",
    "hop_hosts",
    "journal",
    "many_agents",
    "follower",
    "tracking",
    "tracked",
    "urls",
    "samplers",
    "exact",
    "sparknet",
    "allreduce",
    "rounds",
    "scaling",
)
SHORT = {
    "rounds": ["--workers", "2,5", "--every", "1,10,50", "--delays", "0,50"],
    "scaling": ["--workers", "1,2,8"],
}
"""Arguments with which a benchmark takes a few minutes."""


def main() -> int:
    names = sys.argv[1:] or ALL
    worst = 0
    for name in names:
        print(f"== {name}", flush=True)
        began = time.perf_counter()
        script = Path(__file__).with_name(f"{name}.py")
        command = [sys.executable, "-W", "ignore", script, *SHORT.get(name, ())]
        code = subprocess.run(command, check=False).returncode
        print(f"-- {name}: {time.perf_counter() - began:.0f} s, exit code {code}", flush=True)
        worst = max(worst, code)
    return worst


if __name__ == "__main__":
    sys.exit(main())
