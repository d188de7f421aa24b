"""Sessions of other kinds, each in a driver of its own: Spark Connect, spark-submit, one that is stopped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.runs.events import Interrupted, Joined
from jobs import CONFIGS, agents, digests, driver, gone, journal, script

pytestmark = pytest.mark.spark
pyspark = pytest.importorskip("pyspark")


@pytest.mark.long
def test_spark_connect(tmp_path: Path, undisturbed: list[str]) -> None:
    """A run and a program by a Connect client, then such whose client is killed."""
    pytest.importorskip("grpc_status")
    once = tmp_path / "once"
    hang = [
        {**config, "at": 15, "do": "hang", "once": str(once)} if n == 1 else config for n, config in enumerate(CONFIGS)
    ]
    body = f"""
import hopyard
sys.path.append({str(Path(__file__).parents[1] / "spark_daemon")!r})
settings = {{"spark.api.mode": "connect", "spark.python.daemon.module": "warm_daemon"}}
spark = hopyard.spark.session(cores=2, config=settings)
assert type(spark).__module__.startswith("pyspark.sql.connect")
select(Path("run"), engine=hy.Spark(spark, workers=2))
assert hy.spark.predict(hy.load("run"), spark.createDataFrame([([0.5] * 6,)], ["inputs"])).count() == 1
import programs
import time
how = {{"roles": {{"worker": 2}}, "engine": hy.Spark(spark, workers=2)}}
program = hy.launch(programs.collects, directory="program", **how)
assert program.feed(spark.range(0, 1000, 1, 4).withColumnRenamed("id", "a")) == 1000
assert program.wait(60).status == "completed"
assert sum(task["values"]["total"] for task in program.summary()["tasks"]) == sum(range(1000))
how["engine"] = hy.Spark(spark, workers=2, release_cores=True)
idle = hy.launch(programs.idle, directory="idle", **how)
while sum(1 for path in Path("idle/notes").glob("*-pid") if path.read_text()) < 2:
    time.sleep(0.05)
select(Path("killed"), troubled, {hang!r}, engine=hy.Spark(spark, workers=2))
"""
    process = driver([str(script(tmp_path / "job.py", body))], tmp_path)
    end = time.monotonic() + 150
    while not once.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert once.exists(), process.communicate(timeout=5) if process.poll() is not None else "too slow"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert agents(tmp_path / "killed")
    idle = [int(path.read_text()) for path in (tmp_path / "idle" / "notes").iterdir()]
    assert len(idle) == 2
    assert gone([*agents(tmp_path / "killed"), *idle])
    assert digests(hy.load(tmp_path / "run")) == undisturbed
    assert digests(hy.resume(tmp_path / "killed", engine=hy.Local(2, devices=None))) == undisturbed


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """`env.tar.gz`: an environment as venv-pack packs one, with this process's packages by path."""
    env = tmp_path / "packed"
    packages = env / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (env / "bin").mkdir()
    base = Path(sys.executable).resolve()
    (env / "bin" / "python").symlink_to(base)
    (env / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    source = Path(hy.__file__).parent.parent
    (packages / "here.pth").write_text(f"{source}\n{sysconfig.get_path('purelib')}\n")
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(env, ".")
    shutil.rmtree(env)
    return tmp_path / "env.tar.gz"


@pytest.mark.long
@pytest.mark.parametrize("cluster", [False, True], ids=["client", "cluster"])
def test_the_lines_with_a_packed_environment(tmp_path: Path, packed: Path, cluster: bool) -> None:
    """As they stand in the documentation. Nothing here takes --deploy-mode cluster with Python: that line is run where
    the archive is unpacked, which is what a container of YARN or Kubernetes is."""
    root = Path(__file__).parents[2]
    text = "\n".join(path.read_text() for path in [root / "README.md", *sorted((root / "docs").glob("*.md"))])
    lines = set(re.findall(r"^PYSPARK.* spark-submit (?!--master).*--archives env\.tar\.gz#env.*$", text, re.M))
    assert len(lines) == 2
    (line,) = [line for line in lines if (" --deploy-mode cluster " in line) == cluster]
    (tmp_path / "train.py").write_text("""
import sys
from pathlib import Path
import hopyard as hy
from hopyard.frameworks.linear import Linear
from pyspark.sql import SparkSession

def recipe(config):
    import sys
    print("trained by", sys.executable, hy.__file__)
    return Linear(1, 1, lr=0.1, batch_size=8)

spark = SparkSession.builder.getOrCreate()
df = spark.range(0, 100).selectExpr("cast(id as double) x", "cast(id as double) y")
data = hy.Dataset.spark(df, features=["x"], label="y", partitions=1, path="rows")
hy.fit(recipe, {}, data, epochs=1, engine=hy.Spark(spark, workers=1), directory="run")
Path("driver").write_text(sys.executable)
spark.stop()
""")
    (tmp_path / "conf").mkdir()
    settings = "spark.master local-cluster[1,1,1024]\nspark.ui.enabled false\nspark.driver.bindAddress 127.0.0.1\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(settings + "spark.driver.host 127.0.0.1\n")
    if cluster:
        (tmp_path / "env").mkdir()
        with tarfile.open(packed) as archive:
            archive.extractall(tmp_path / "env", filter="fully_trusted")
    places = [str(Path(sys.executable).parent), str(Path(pyspark.__file__).parent / "bin"), os.environ["PATH"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment |= {"PATH": os.pathsep.join(places), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    environment.pop("PYTHONPATH", None)  # driver and executors have what their environments have
    command = line.replace(" --deploy-mode cluster", "")
    if not cluster:  # the active environment of the driver has hopyard; here by path
        command = f"PYTHONPATH={Path(hy.__file__).parent.parent} {command}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    (log,) = (tmp_path / "run" / "logs").glob("slot-*.log")
    assert re.search(r"trained by \S*/env/bin/python ", log.read_text())
    driver = (tmp_path / "driver").read_text()
    assert driver.endswith("/env/bin/python") if cluster else Path(driver) == Path(sys.executable)


@pytest.mark.long
def test_spark_submit_with_gpus_and_a_session_that_is_stopped(tmp_path: Path, undisturbed: list[str]) -> None:
    """With a module of the user's beside the script. The addresses that Spark gives to a task are its agent's; stopping
    the session ends the run."""
    found = tmp_path / "gpus.sh"
    found.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["7"]}'\n""")
    found.chmod(found.stat().st_mode | stat.S_IEXEC)
    (seen := tmp_path / "seen").mkdir()
    (tmp_path / "recipes.py").write_text(f"""
import os
from pathlib import Path
from jobs import linear

def recipe(config, ctx):
    Path({str(seen)!r}, ctx.device + " " + os.environ["CUDA_VISIBLE_DEVICES"]).touch()
    return linear(config)
""")
    body = f"""
import time
from pyspark.sql import SparkSession
from recipes import recipe

spark = SparkSession.builder.getOrCreate()
select(Path("gpus"), recipe, engine=hy.Spark(spark, workers=1))
configs = [{{"lr": 0.1, "at": 15, "do": "hang", "once": {str(tmp_path / "once")!r}}}]
run = select(Path("run"), troubled, configs, engine=hy.Spark(spark, workers=1), wait=False)
while not Path({str(tmp_path / "once")!r}).exists():
    time.sleep(0.05)
spark.stop()
try:
    run.wait()
except hy.ResourceError as error:
    Path("said").write_text(str(error))
try:
    hy.Spark(spark, workers=1)
except hy.SpecError as error:
    Path("again").write_text(str(error))
"""
    settings = {
        **{"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"},
        **{"spark.worker.resource.gpu.amount": "1", "spark.worker.resource.gpu.discoveryScript": str(found)},
        **{"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"},
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*command, "--py-files", "recipes.py", str(script(tmp_path / "job.py", body))],
        cwd=tmp_path, env={**os.environ, "PYSPARK_PYTHON": sys.executable}, capture_output=True, text=True,
        timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert digests(hy.load(tmp_path / "gpus")) == undisturbed
    assert gone(agents(tmp_path / "gpus"))
    assert [path.name for path in seen.iterdir()] == ["cuda 7"]
    assert "session was stopped while" in (tmp_path / "said").read_text()
    assert "session was stopped; make" in (tmp_path / "again").read_text()
    assert gone(agents(tmp_path / "run"))
    lines = journal(tmp_path / "run")
    assert [line for line in lines if isinstance(line, Joined)]
    assert isinstance(lines[-1], Interrupted) and lines[-1].reason.startswith("ResourceError: ")
    assert hy.resume(tmp_path / "run", engine=hy.Inline()).status == "completed"
