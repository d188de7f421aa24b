"""Cerebro's table in small: what model hopping and its peers take, store and move for the same 16 trainings.

    python benchmarks/cerebro_table.py [--quick] [--epochs 3] [--columns hosts,tasks] [--results FILE] [--docs]
    python benchmarks/cerebro_table.py --from FILE [--docs]

Sixteen convolutional nets (`cerebro_nets.py`) train for equal epochs on MNIST images, on hosts made of namespaces
(`tests/hosts.py`): each has an address, processes, memory and files of its own, and one core, with threads=1.
Times are those of two hosts on two cores. Eight hosts share these cores for one epoch, for what they store and move.
The driver runs beside them, on the same cores. Columns:

    local     hy.Hopper() in two processes of one host
    hosts     hy.Hopper(copies=1) on hy.Hosts
    spark     hy.Hopper(copies=1) on hy.Spark: a worker of a standalone cluster on each host
    tasks     hy.TaskParallel() on hy.Hosts: each trial has one host for an epoch, so each host copies the table
    allreduce hy.AllReduce() on hy.Hosts: a gang of all hosts trains one net after the other
    averaging hy.LocalSGD() on hy.Hosts: the same, whose members average once an epoch
    servers   TensorFlow's asynchronous parameter servers by hy.launch on hy.Hosts: `cerebro_nets.servers`

Engines are started, and have trained a small net with all workers, before a column begins. Bytes are those that the
hosts' interfaces count from then on, States on their way to the driver's disk and messages included. Time and idle
share go from when all workers are up until the last net is through; those of the parameter servers leave out the
building of graphs and the start of processes. `--docs` writes the table, the list and the picture of
`docs/cerebro-table.md`, also from an earlier file of results. It needs root, ip, ssh and mlxtend, and takes less than
30 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import cerebro_nets as nets  # noqa: E402
import cerebro_page as page  # noqa: E402
import hopyard as hy  # noqa: E402
from cerebro_hosts import Machines, Watch, machines, spark_session  # noqa: E402
from hopyard.core.runs.codec import CODEC  # noqa: E402
from hopyard.core.runs.events import Finished, Joined  # noqa: E402
from hopyard.store.journal import read  # noqa: E402
from hopyard.store.layout import Layout  # noqa: E402
from jobs import free_port  # noqa: E402

ALIKE = ("local", "hosts", "spark", "tasks")
"""Columns whose nets must have equal digests."""
WARM_ROWS = 80
SECONDS = 1200
"""Most time of the program of `servers`."""


@dataclass(frozen=True)
class Size:
    """How much is trained.

    Attributes:
        epochs: on two hosts.
        many: how many hosts share the cores for one epoch.
    """

    rows: int = 5000
    trials: int = 16
    epochs: int = 3
    many: int = 8


QUICK = Size(rows=500, trials=4, epochs=2, many=3)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@dataclass
class Job:
    """What a column is asked to do.

    Attributes:
        cache: folder on each host that takes its rows.
        before: what had been stored and moved when it began.
    """

    x: Any
    y: Any
    configs: list[dict[str, Any]]
    epochs: int
    there: Machines
    directory: Path
    cache: str
    before: dict[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        return {"stored": self.there.stored(self.cache), **self.there.traffic()}

    def begin(self) -> None:
        """Count from now on."""
        self.before = self.counts()

    def train(self, engine: Any, parallel: Any, partitions: int = nets.PARTITIONS) -> dict[str, Any]:
        """Train by `hy.select`, on an engine whose workers are all up."""
        with engine:
            small = nets.dataset(self.x[:WARM_ROWS], self.y[:WARM_ROWS], 1)
            hy.fit(
                nets.recipe,
                self.configs[0],
                small,
                epochs=1,
                engine=engine,
                parallel=hy.AllReduce(self.there.count),
                directory=self.directory / "warm",
            )
            self.begin()
            run = hy.select(
                nets.recipe,
                None,
                nets.dataset(self.x, self.y, partitions),
                search=hy.Configs(self.configs),
                epochs=self.epochs,
                metric="val_top1",
                mode="max",
                engine=engine,
                parallel=parallel,
                directory=self.directory / "run",
            )
            counts = self.counts()
        return {"counts": counts, **run_figures(run, self.there.count)}


ACCOUNT = {
    "stored": "rows_bytes",
    "rows": "fetched_bytes",
    "hopped": "hop_bytes",
    "exchanged": "exchanged_bytes",
    "states": "state_bytes",
}
"""What the report of a run has of each host, and sums of it here."""


def account(summary: dict[str, Any]) -> dict[str, Any]:
    """Return what the product itself has counted, over all hosts."""
    hosts = summary.get("hosts", {}).values()
    sums = {name: sum(host[key] or 0 for host in hosts) for name, key in ACCOUNT.items()}
    return {**sums, "peak": max((host["peak_bytes"] for host in hosts), default=0), "idle": summary["idle_share"]}


def run_figures(run: hy.Run, workers: int) -> dict[str, Any]:
    """Return what a run has of itself: its window, its report's account, errors by epoch, digests."""
    lines = list(read(Layout(run.directory).journal, CODEC))
    joined = [line.at for line in lines if isinstance(line, Joined)][:workers]
    end = next(line.at for line in lines if isinstance(line, Finished))
    if len(joined) < workers:
        say(f"only {len(joined)} of {workers} workers took part")
    errors = [
        [[1 - epoch[f"val_{name}"] for name in ("top1", "top5")] for epoch in trial.history.values()]
        for trial in run.trials
    ]
    digests = [trial.digest for trial in run.trials]
    return {
        "windows": [[joined[-1], end]],
        "account": account(run.summary()),
        "errors": errors,
        "digests": digests,
    }


def servers(job: Job) -> dict[str, Any]:
    """Train by a program, whose rows are fed to its tasks."""
    count = job.there.count
    here = job.there.hosts is None
    engine: Any = hy.Local(count, devices=None) if here else job.there.engine(job.cache)
    ports = [free_port() for _ in range(count)] if here else []
    job.begin()
    program = hy.launch(
        nets.servers,
        {"configs": job.configs, "epochs": job.epochs, "ports": ports},
        roles={"worker": count},
        until="all",
        engine=engine,
        directory=job.directory,
    )
    x, y, xv, yv = nets.split(job.x, job.y)
    program.feed({"x": x, "y": y}, name="train")
    program.feed({"x": xv, "y": yv}, name="validate")
    program.wait(timeout=SECONDS)
    printed = [program.logs("worker", index).splitlines() for index in range(count)]
    told = [[json.loads(line.partition(nets.MARK)[2]) for line in lines if nets.MARK in line] for lines in printed]
    rows = sum(task[0]["rows"] for task in told)
    by_net = [[task[1 + number] for task in told] for number in range(len(job.configs))]
    errors = []
    for net in by_net:
        sums = [[sum(task["right"][epoch][n] for task in net) for n in range(3)] for epoch in range(job.epochs)]
        errors.append([[1 - first / all_rows, 1 - fifth / all_rows] for first, fifth, all_rows in sums])
    return {
        "counts": {**job.counts(), "stored": rows * (x[0].nbytes + y[0].nbytes)},
        "windows": [[min(task["window"][0] for task in net), max(task["window"][1] for task in net)] for net in by_net],
        "account": {},
        "errors": errors,
    }


def local(job: Job) -> dict[str, Any]:
    return job.train(hy.Local(job.there.count, devices=None), hy.Hopper(copies=1))


def spark(job: Job) -> dict[str, Any]:
    with spark_session(job.there) as session:
        engine = hy.Spark(session, workers=job.there.count, env={"XDG_CACHE_HOME": job.cache})
        return job.train(engine, hy.Hopper(copies=1))


COLUMNS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "local": local,
    "hosts": lambda job: job.train(job.there.engine(job.cache), hy.Hopper(copies=1)),
    "spark": spark,
    "tasks": lambda job: job.train(job.there.engine(job.cache), hy.TaskParallel()),
    "allreduce": lambda job: job.train(job.there.engine(job.cache), hy.AllReduce(job.there.count)),
    "averaging": lambda job: job.train(
        job.there.engine(job.cache), hy.LocalSGD(job.there.count, every=10**6), partitions=1
    ),
    "servers": servers,
}


def measured(column: str, job: Job, table: int) -> dict[str, Any]:
    """Return the figures of one column.

    Args:
        table: bytes of the rows.
    """
    began = time.time()
    with Watch(job.there.roots) as watch:
        figures = COLUMNS[column](job)
    moved = {name: count - job.before[name] for name, count in figures.pop("counts").items()}
    stored = moved.pop("stored") if job.there.hosts else table
    windows = figures.pop("windows")
    seconds = sum(end - begin for begin, end in windows)
    cores = min(job.there.count, len(os.sched_getaffinity(0)))
    used = sum(watch.used(begin, end) for begin, end in windows)
    return {
        "hosts": job.there.count,
        "epochs": job.epochs,
        "trials": len(job.configs),
        "seconds": seconds,
        "whole_seconds": time.time() - began,
        "idle": max(0.0, 1 - used / (seconds * cores)),
        "stored": stored / table,
        "table": table,
        "moved": moved,
        "peak": watch.peak,
        "java_peak": watch.java_peak,
        **figures,
    }


def measure(columns: Sequence[str], size: Size, results: dict[str, Any], keep: Callable[[], None]) -> None:
    """Measure columns on two hosts, then on many; `results` has each as soon as it is there."""
    configs = nets.configs()[: size.trials]
    x, y = nets.images(size.rows)
    table = nets.dataset(x, y).prepare().bytes
    results["table"] = {"rows": len(x), "bytes": table}
    for kind, count, epochs in (("two", 2, size.epochs), ("many", size.many, 1)):
        wanted = [column for column in columns if kind == "two" or column != "local"]
        if not wanted:
            continue
        say(f"making {count} hosts")
        with tempfile.TemporaryDirectory() as name, machines(count, Path(name) / "hosts") as hosts:
            for column in wanted:
                say(f"{column}: {len(configs)} nets, {epochs} epochs of {len(x)} rows, {count} hosts")
                there = Machines(count, Path(name)) if column == "local" else hosts
                job = Job(x, y, configs, epochs, there, Path(name) / column, hosts.next_cache())
                try:
                    figures = results[kind][column] = measured(column, job, table)
                except (hy.HopyardError, TimeoutError) as error:
                    say(f"{column} is left out: {error}")
                    results["left out"].append(f"{column}, {count} hosts")
                    continue
                keep()
                say(
                    f"{column}: {figures['seconds'] / epochs:.1f} s an epoch, idle {figures['idle']:.0%}, stored "
                    f"{figures['stored']:.2f}, moved {sum(figures['moved'].values()) / 1e6:.1f} MB, peak "
                    f"{figures['peak'] / 1e6:.0f} MB; {figures['whole_seconds']:.0f} s in all"
                )
        digests = {column: results[kind][column]["digests"] for column in ALIKE if column in results[kind]}
        results[kind + " equal"] = equal = len({tuple(each) for each in digests.values()}) <= 1
        if digests:
            say(f"{count} hosts: the nets of {', '.join(digests)} have {'equal' if equal else 'DIFFERENT'} digests")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, nets and hosts, for trying: three minutes")
    parser.add_argument("--epochs", type=int, help="epochs on two hosts, in place of the usual number")
    parser.add_argument("--columns", type=lambda text: text.split(","), default=list(COLUMNS))
    parser.add_argument("--results", type=Path, default=Path("cerebro-table.json"), help="file to write")
    parser.add_argument("--from", dest="source", type=Path, help="show an earlier file of results; measure nothing")
    parser.add_argument("--docs", action="store_true", help="write the table and the picture of docs/cerebro-table.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.columns) - set(COLUMNS):
        parser.error(f"--columns: {', '.join(sorted(unknown))} are unknown, there are {', '.join(COLUMNS)}")
    if arguments.source:
        results = json.loads(arguments.source.read_text())
    else:
        began = time.time()
        os.environ |= {"PYSPARK_PYTHON": sys.executable, "TF_CPP_MIN_LOG_LEVEL": "3"}
        results = {"machine": page.machine(), "two": {}, "many": {}, "left out": []}

        def keep() -> None:
            results["minutes"] = (time.time() - began) / 60
            arguments.results.write_text(json.dumps(results, indent=1))

        with tempfile.TemporaryDirectory() as cache:
            os.environ["XDG_CACHE_HOME"] = cache
            size = QUICK if arguments.quick else Size()
            measure(arguments.columns, replace(size, epochs=arguments.epochs or size.epochs), results, keep)
        keep()
        say(f"{results['minutes']:.1f} minutes; figures are in {arguments.results}")
    print(f"{page.table(results)}\n\nWhere hopping is worse:\n{page.worse(results)}")
    if arguments.docs:
        page.write(results)
    return len(results["left out"]) > 0


if __name__ == "__main__":
    sys.exit(main())
