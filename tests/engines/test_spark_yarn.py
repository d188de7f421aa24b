"""What spark-submit makes of the lines for YARN, as far as it goes without a ResourceManager. There is none here."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pyspark = pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROOT = Path(__file__).parents[2]
NOBODY = {
    "yarn-site.xml": {
        "yarn.resourcemanager.address": "127.0.0.1:9",
        "yarn.resourcemanager.connect.max-wait.ms": "1",
        "yarn.resourcemanager.connect.retry-interval.ms": "1",
    },
    "core-site.xml": {"ipc.client.connect.max.retries": "0", "fs.defaultFS": "hdfs://namenode:8020"},
}
"""A cluster whose ResourceManager does not answer, which is found out at once."""
TRAIN = """
import json, os, sys
from pyspark import SparkConf, SparkContext
SparkContext._ensure_initialized()  # the Java of spark-submit
seen = {"python": sys.executable, "environment": dict(os.environ), "settings": dict(SparkConf().getAll())}
print("SEEN " + json.dumps(seen), flush=True)
"""


def submitted(cluster: bool, folder: Path) -> tuple[int, str]:
    """Run the line of docs/spark.md; return (exit code, what it printed)."""
    lines = re.findall(r"^PYSPARK.* spark-submit --master yarn .*$", (ROOT / "docs" / "spark.md").read_text(), re.M)
    (line,) = [line for line in lines if ("--deploy-mode cluster" in line) == cluster]
    (folder / "conf").mkdir()
    for name, properties in NOBODY.items():
        rows = (f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items())
        (folder / "conf" / name).write_text(f"<configuration>{''.join(rows)}</configuration>")
    (folder / "env.tar.gz").touch()
    (folder / "train.py").write_text(TRAIN)
    places = [str(Path(sys.executable).parent), str(Path(pyspark.__file__).parent / "bin"), os.environ["PATH"]]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
    environment |= {"PATH": os.pathsep.join(places), "HADOOP_CONF_DIR": str(folder / "conf")}
    done = subprocess.run(
        ["bash", "-c", line.replace("spark-submit", "spark-submit --verbose")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_client_mode(tmp_path: Path) -> None:
    """The driver is this host's Python; executors get the archive, and the Python in it."""
    code, output = submitted(False, tmp_path)
    assert code == 0, output[-3000:]
    seen = json.loads(re.findall(r"^SEEN (.*)$", output, re.M)[0])
    assert seen["python"] == shutil.which("python", path=str(Path(sys.executable).parent))
    assert seen["environment"]["PYSPARK_PYTHON"] == "./env/bin/python"
    assert seen["environment"]["HADOOP_CONF_DIR"] == str(tmp_path / "conf")
    settings = seen["settings"]
    assert settings["spark.master"] == "yarn" and settings["spark.submit.deployMode"] == "client"
    assert settings["spark.yarn.dist.archives"] == f"file://{tmp_path}/env.tar.gz#env"
    assert "spark.driver.host" not in settings, "the session sets it, and hy.Spark takes it from there"


def test_cluster_mode(tmp_path: Path) -> None:
    """The script goes to the ApplicationMaster, with the archive and two attempts; then the cluster is asked for."""
    code, output = submitted(True, tmp_path)
    assert code != 0 and "Connecting to ResourceManager at /127.0.0.1:9" in output, output[-3000:]
    assert "org.apache.spark.deploy.yarn.YarnClusterApplication" in output
    assert f"--primary-py-file\nfile:{tmp_path}/train.py\n" in output
    assert f"(spark.yarn.dist.archives,file://{tmp_path}/env.tar.gz#env)" in output
    assert "(spark.yarn.maxAppAttempts,2)" in output and "(spark.yarn.isPython,true)" in output
