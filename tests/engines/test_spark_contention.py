"""Programs that fit alone on the cores of a Spark session, and not together."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from jobs import driver, script
from programs_together import one_leaves_its_places_to_another, two_complete

pytestmark = [pytest.mark.spark, pytest.mark.programs]


@pytest.mark.long
def test_a_program_with_too_few_cores_leaves_them_to_another(executors: Any, tmp_path: Path) -> None:
    one_leaves_its_places_to_another(lambda workers: hy.Spark(executors, workers=workers), tmp_path, 2)


@pytest.mark.long
def test_of_two_programs_that_do_not_fit_together_both_complete(sessions: Callable[[str], Any], tmp_path: Path) -> None:
    spark = sessions("local-cluster[4,1,1024]")
    for number in range(20):
        seconds, turns = two_complete(lambda workers: hy.Spark(spark, workers=workers), tmp_path / str(number))
        print(f"{seconds:.1f} s, places given back {turns} times")


CLIENTS = """
import os, subprocess, time
import hopyard
import programs
from programs_together import lines
from hopyard.core.programs.events import Yielded
from pyspark.sql import SparkSession

if len(sys.argv) == 1:
    spark = hopyard.spark.session(cores=4, config={"spark.api.mode": "connect"})
    clients = [subprocess.Popen([sys.executable, __file__, name, other]) for name, other in ("ab", "ba")]
    sys.exit(max(abs(client.wait()) for client in clients))
name, other = sys.argv[1:]
spark = SparkSession.builder.remote("sc://localhost:15002/").getOrCreate()
for number in range(20):
    Path(f"{number}-{name}").touch()
    while not Path(f"{number}-{other}").exists():
        time.sleep(0.001)
    began, directory = time.monotonic(), Path("programs", f"{number}-{name}")
    engine = hy.Spark(spark, workers=3)
    program = hy.launch(programs.works, 2.0, roles={"worker": 3}, engine=engine, directory=directory)
    assert program.wait(120).status == "completed"
    print(f"{time.monotonic() - began:.1f} s, places given back {len(lines(directory, Yielded))} times", flush=True)
"""


@pytest.mark.long
def test_two_clients_of_one_server(tmp_path: Path) -> None:
    """Neither knows of the other's program."""
    pytest.importorskip("grpc_status")
    process = driver([str(script(tmp_path / "job.py", CLIENTS))], tmp_path)
    out, err = process.communicate(timeout=590)
    print(out)
    assert process.returncode == 0, err
    times = [int(found) for found in re.findall(r"given back (\d+) times", out)]
    assert len(times) == 40 and sum(times) > 0
