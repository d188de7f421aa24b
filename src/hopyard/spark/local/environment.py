"""Finds what a Spark on this machine is launched with, and checks that all that it needs is there.

Only this module of the package looks for the installed pyspark, and it does so without importing it.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.engines.local import python_path
from hopyard.errors import UsageError
from hopyard.spark.local import java
from hopyard.spark.local.homes import java_home, spark_home

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Installed:
    """The pyspark of this Python.

    Attributes:
        version: such as "4.3.0".
        home: folder of its scripts and jars.
    """

    version: str
    home: Path

    @property
    def number(self) -> tuple[int, int]:
        """Major and minor version."""
        return _number(self.version)


def pyspark(environ: Mapping[str, str]) -> Installed:
    """Return the installed pyspark, or the Spark of SPARK_HOME.

    Raises:
        UsageError: there is none, it is older than 4.0, it has no jars, or SPARK_HOME is another version's.
    """
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UsageError(
            f"pyspark is not installed: {java.EXTRA}, which brings a Java too, or pip install 'hopyard[spark]'"
        )
    folder = Path(spec.origin).parent
    source = folder / "version.py"
    match = re.search(r"""__version__.*=\s*["'](.+?)["']""", source.read_text() if source.is_file() else "")
    version = match[1] if match else "0.0"
    if _number(version) < (4, 0):
        raise UsageError(f"pyspark must be 4.0 or newer, {version} is installed in {folder}: {java.EXTRA}")
    configured = environ.get("SPARK_HOME")
    homes = [Path(configured)] if configured else [folder / "spark-distribution", folder, folder.parent.parent]
    home = next((home for home in homes if (home / "bin" / "spark-submit").is_file()), None)
    core_jar = next(iter(sorted((home / "jars").glob("spark-core_*.jar"))), None) if home is not None else None
    if home is None or core_jar is None:
        label = f"SPARK_HOME={configured}" if configured else f"pyspark {version} in {folder}"
        advice = "unset SPARK_HOME, or set it to a Spark" if configured else "that of the package pyspark has it"
        raise UsageError(f"{label} has no Spark to launch (bin/spark-submit and jars/spark-core_*.jar): {advice}")
    spark_version = core_jar.stem.partition("_")[2].partition("-")[2]
    if configured and _number(spark_version) != _number(version):
        raise UsageError(
            f"SPARK_HOME={configured} is Spark {spark_version}, and the pyspark of this Python is {version}: unset "
            f"SPARK_HOME, or pip install 'pyspark=={spark_version}'"
        )
    return Installed(version, home)


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return name → value of the variables that any Spark needs that is launched from `environ`: JAVA_HOME,
    PYSPARK_PYTHON, and where the machine's name cannot be looked up SPARK_LOCAL_IP. One that is set there and right
    keeps its value.

    Raises:
        UsageError: there is no pyspark, no Java that it runs on, or no bash; says what was found where.
        ResourceError: no folder can be written for the launcher.
    """
    spark = pyspark(environ)
    if shutil.which("bash", path=environ.get("PATH", "")) is None:
        raise UsageError(
            "Spark's scripts need bash, which is not on the PATH: install it (apk add bash, apt install bash)"
        )
    home = java_home(java.choose(java.look(environ, spark.number), spark.number))
    result = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": environ.get("PYSPARK_PYTHON") or sys.executable}
    if environ.get("SPARK_LOCAL_IP"):
        result["SPARK_LOCAL_IP"] = environ["SPARK_LOCAL_IP"]
    elif not _has_address(socket.gethostname()):
        result["SPARK_LOCAL_IP"] = LOOPBACK
    return result


def isolated_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `variables` for a Spark of this machine alone: bound to loopback, its executors' logs in the cache, its
    Python workers looking for modules where this process does.

    Raises:
        As `variables`.
    """
    result = variables(environ)
    result.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    # Spark starts its Python workers by `python -m`, on this machine in the driver's current folder
    result |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": python_path()}
    if not environ.get("SPARK_HOME"):
        result["SPARK_HOME"] = str(spark_home(pyspark(environ).home))
    return result


def _number(version: str) -> tuple[int, int]:
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def _has_address(host: str) -> bool:
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return False
    return True
