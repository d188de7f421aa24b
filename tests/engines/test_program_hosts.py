"""Programs on two Spark hosts with addresses, processes, memory and files of their own: namespaces play them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import programs
from clusters import Cluster, drive
from hosts import NAMES, Network, may_unshare

pytestmark = [pytest.mark.spark, pytest.mark.programs, pytest.mark.long, pytest.mark.xdist_group("clusters")]

MAINS = """
import json, socket, os
import hopyard as hy
import programs

def meets(args, ctx):
    '''Every task listens where the others were told to find it, and dials them all.'''
    told = json.loads(os.environ["TF_CONFIG"])
    own = told["cluster"][told["task"]["type"]][told["task"]["index"]]
    here, endpoint = socket.create_server(("", int(own.rpartition(":")[2])), reuse_port=True), []
    for others in told["cluster"].values():
        for other in others:
            host, _, port = other.rpartition(":")
            for turn in range(200):
                try:
                    endpoint.append(socket.create_connection((host, int(port)), 5))
                    break
                except ConnectionRefusedError:
                    import time
                    time.sleep(0.05)
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    mine = torch.full((3,), float(ctx.rank + 1))
    dist.all_reduce(mine)
    dist.barrier()
    dist.destroy_process_group()
    ctx.report({"sum": float(mine[0]), "endpoints": len(endpoint), "local_rank": ctx.local_rank}, step=1)
    print("on", socket.gethostname(), own)

def sums(args, ctx):
    total = rows = 0
    for batch in ctx.feed().batches(100):
        column = batch["a"] if "a" in batch else batch["_1"]
        total, rows = total + int(column.sum()), rows + len(column)
    ctx.report({"total": total, "rows": rows}, step=1)

def keeps(args, ctx):
    ctx.checkpoint({"a": 1}, step=1)

def doubles(args, ctx):
    feed = ctx.feed("infer")
    for batch in feed.batches(100):
        feed.answer(batch["_1"] * 2)

def dies(args, ctx):
    import signal, time
    from hopyard.system.network import java_above
    if ctx.index == 1:
        time.sleep(1)
        os.kill(java_above(), signal.SIGKILL)
    time.sleep(1000)

def launch(name, main, roles, **how):
    return hy.launch(main, None, roles=roles, engine=engine, directory=Path(name), **how)

def values(program):
    return [task["values"] for task in program.summary()["tasks"]]

engine = hy.Spark(spark, workers=2)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    may_unshare("--net", "--mount", "--uts", "--pid")
    if not shutil.which("ip"):
        pytest.skip("no addresses can be given here: `ip` is not installed")
    network = Network()
    made = Cluster(tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("driver"), network)
    yield made
    made.close()
    network.close()


BODY = """
program = launch("meets", meets, {"worker": 2})
program.wait()
found["meets"] = values(program)
found["logs"] = [program.logs("worker", 0), program.logs("worker", 1)]
frame = spark.range(0, 20000, 1, 8).withColumnRenamed("id", "a")
for workers in (2, 1):
    program = launch(f"sums{workers}", sums, {"worker": workers})
    program.feed(frame)
    program.wait()
    found[f"sums{workers}"] = values(program)
try:
    launch("keeps", keeps, {"worker": 1}).wait()
except hy.ProgramFailed as error:
    found["keeps"] = str(error)
logs = "/tmp/summaries"
how = {"roles": {"worker": 2}, "engine": engine, "directory": Path("shown"), "tensorboard": logs}
with hy.launch(programs.summarizes, logs, **how) as program:
    found["page"] = programs.page_of(program)
    found["first"] = next(task["host"] for task in program.summary()["tasks"] if task["index"] == 0)
program = launch("doubles", doubles, {"worker": 1})
found["doubles"] = program.infer(spark.sparkContext.parallelize([(n,) for n in range(20000)], 8)).collect()
program.stop()
"""
DIES = """
program = launch("dies", dies, {"worker": 2})
try:
    program.wait()
except hy.HopyardError as error:
    found["dies"] = str(error)
"""


@pytest.fixture(scope="module")
def found(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What one driver found out, in a session that speculates; the last of its programs loses a host."""
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    copies = tmp_path_factory.mktemp("copies")
    body = (
        f"found, copies = {{}}, Path({str(copies)!r})\n{BODY}{TWICE}{DIES}\nPath('told').write_text(json.dumps(found))"
    )
    err = drive(cluster, cluster.hidden, f"{MAINS}\n{body}", **settings)
    assert "cannot reach the driver" not in err
    return json.loads((cluster.hidden / "told").read_text())


def test_programs_across_hosts(cluster: Cluster, found: Any) -> None:
    assert [one["sum"] for one in found["meets"]] == [3.0, 3.0]
    assert [one["endpoints"] for one in found["meets"]] == [2, 2]
    assert [one["local_rank"] for one in found["meets"]] == [0, 0]
    assert cluster.network is not None
    text = "".join(found["logs"])
    for name in NAMES:
        assert f"on {name} {cluster.network.addresses[name]}:" in text
    for workers in (1, 2):
        assert sum(one["rows"] for one in found[f"sums{workers}"]) == 20000
        assert sum(one["total"] for one in found[f"sums{workers}"]) == sum(range(20000))
    assert "the program's directory" in found["keeps"]
    assert found["doubles"] == [2 * n for n in range(20000)]


def test_tensorboard_is_on_the_host_of_the_first_task(cluster: Cluster, found: Any) -> None:
    assert cluster.network is not None
    assert found["page"] == [cluster.network.addresses[found["first"]], [list(each) for each in programs.SUMMARIES]]


def test_a_lost_host_is_named(found: Any) -> None:
    assert "worker 1" in found["dies"] and "executor" in found["dies"]


def test_rows_come_once_though_spark_speculates(found: Any) -> None:
    """The first copy of one task is slow, a second one is started on the other host, and both send."""
    for kind in ("rdd", "frame"):
        assert sorted(found[kind]["copies"]) == [0, 1], "Spark did not speculate"
        assert found[kind]["rows"] == 4000
        assert found[kind]["total"] == sum(range(4000))
    assert found["answers"] == [2 * n for n in range(4000)]


TWICE = """
import time
from pyspark import TaskContext

def slowly(kind):
    folder = copies / kind
    folder.mkdir()

    def one(rows):
        context = TaskContext.get()
        if context.partitionId() != 3:
            yield from rows
            return
        copy = context.attemptNumber()
        (folder / str(copy)).touch()
        until = time.monotonic() + 60
        for n, row in enumerate(rows):
            while copy == 0 and n == 600 and not (folder / "1").exists() and time.monotonic() < until:
                time.sleep(0.05)
            yield row

    return one

def by_batches(one):
    def batches(given):
        import pyarrow as pa
        yield from one(part for batch in given for part in (batch.slice(n, 1) for n in range(batch.num_rows)))
    return batches

rows = spark.sparkContext.parallelize([(n,) for n in range(4000)], 4)
frame = spark.range(0, 4000, 1, 4).withColumnRenamed("id", "a")
for kind in ("rdd", "frame"):
    one = slowly(kind)
    fed = rows.mapPartitions(one) if kind == "rdd" else frame.mapInArrow(by_batches(one), "a long")
    program = launch(f"once-{kind}", sums, {"worker": 2})
    program.feed(fed)
    program.wait()
    rows_of = values(program)
    found[kind] = {"copies": [int(path.name) for path in (copies / kind).iterdir()],
                   "rows": sum(task["rows"] for task in rows_of), "total": sum(task["total"] for task in rows_of)}
program = launch("once-infer", doubles, {"worker": 2})
found["answers"] = program.infer(rows.mapPartitions(slowly("infer"))).collect()
program.stop()
"""
