"""Gangs that fit on the cores of a Spark session alone, and not together with what else wants them."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from contention import SECONDS, alone, fit, yielded
from jobs import digests, driver, free_port, script, until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]


@pytest.mark.long
def test_a_gang_that_does_not_fit_leaves_its_core_to_others(spark: Any, tmp_path: Path) -> None:
    """Of two cores, a job of the user has one until the other is free for a second job."""
    begun, over = str(tmp_path / "begun"), str(tmp_path / "over")

    def wait(_: int) -> None:
        Path(begun).touch()
        while not Path(over).exists():
            time.sleep(0.05)

    context = spark.sparkContext
    job = threading.Thread(target=lambda: context.parallelize([0], 1).foreach(wait))
    job.start()
    try:
        until(Path(begun).exists)
        run = fit(tmp_path / "run", hy.Spark(spark, workers=2), members=2)
        until(lambda: (tmp_path / "run" / "journal.jsonl").exists() and yielded(tmp_path / "run"))
        assert context.parallelize([0], 1).count() == 1
    finally:
        Path(over).touch()
        job.join()
    run.wait(timeout=SECONDS)
    assert digests(run) == alone(tmp_path / "alone", 2)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_two_gangs_of_three_on_four_cores_both_end_each_time(tmp_path: Path) -> None:
    """Twenty times, started together by two clients of one server: one process lets its runs ask in turn."""
    pytest.importorskip("grpc_status")
    port, names = free_port(), ("one", "other")
    server = driver([str(script(tmp_path / "server.py", SERVER)), str(port)], tmp_path)
    clients = []
    try:
        until((tmp_path / "up").exists, 120)
        body = str(script(tmp_path / "client.py", CLIENT))
        clients = [driver([body, name, other, str(port)], tmp_path) for name, other in (names, names[::-1])]
        errors = [client.communicate(timeout=2500)[1] for client in clients]
        assert not any(client.returncode for client in clients), errors
    finally:
        for process in (server, *clients):
            process.kill()
            process.communicate()
    runs = [hy.load(tmp_path / name / str(time)) for name in names for time in range(20)]
    assert [digests(run) for run in runs] == [alone(tmp_path / "alone", 3)] * 40
    assert any(yielded(Path(run.directory)) for run in runs)


SERVER = f"""
import os, time
from pyspark.sql import SparkSession
os.environ["PYSPARK_PYTHON"] = sys.executable
os.environ["PYTHONPATH"] = path = {str(Path(__file__).parents[1] / "spark_daemon")!r}
settings = {{
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.python.daemon.module": "warm_daemon",
    "spark.executorEnv.PYTHONPATH": path,
}}
spark = SparkSession.builder.master("local[4,4]").config(map=settings).getOrCreate()
Path("up").touch()
time.sleep(3000)
"""
CLIENT = """
from pyspark.sql import SparkSession
from contention import fit
name, other, port = sys.argv[1:]
spark = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
for time in range(20):
    Path(f"{name}-{time}").touch()
    until(Path(f"{other}-{time}").exists, 300)
    fit(Path(name) / str(time), hy.Spark(spark, workers=3), 3, wait=True)
"""
