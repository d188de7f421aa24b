"""A user id without a name and without a home, as containers have it."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hopyard as hy
from hopyard import folders
from hopyard.checks import expanded
from hopyard.compat.tensorflowonspark import TFNode

UID = 1_900_000_000 + os.getpid()
root = pytest.mark.skipif(
    os.geteuid() != 0 or not sys.platform.startswith("linux"), reason="starts processes of other users: root may"
)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A temporary directory that all users may search, as pytest's own (0700) is not."""
    with pytest.raises(KeyError):
        pwd.getpwuid(UID)
    path = Path(tempfile.mkdtemp(prefix="unnamed-"))
    path.chmod(0o1777)
    yield path
    shutil.rmtree(path)


def run(code: str, temporary: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code as the user. This Python may lie in a folder that only root may search, so it goes by descriptors."""
    places = [place for place in (sys.base_prefix, *sys.path) if Path(place or ".").is_dir()]
    opened = [os.open(place or ".", os.O_PATH | os.O_DIRECTORY) for place in places]
    python, *path = (f"/proc/self/fd/{descriptor}" for descriptor in opened)
    try:
        return subprocess.run(
            [f"{python}/bin/python{sysconfig.get_python_version()}", "-P", "-c", code],
            cwd=temporary,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": os.pathsep.join(path),
                "LD_LIBRARY_PATH": f"{python}/lib",
                "TMPDIR": str(temporary),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            user=UID,
            group=UID,
            extra_groups=[],
            pass_fds=opened,
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)


PREPARE = """
import numpy as np, hopyard as hy
manifest = hy.Dataset.numpy(np.zeros((8, 2)), np.arange(8), partitions=2).prepare()
again = hy.Dataset.numpy(np.zeros((8, 2)), np.arange(8), partitions=2).prepare()
assert manifest.rows == 8 and again.path == manifest.path
print(manifest.path)
"""


@root
@pytest.mark.slow
@pytest.mark.parametrize("taken", [False, True])
def test_rows_are_prepared_in_a_folder_of_the_user_alone(temporary: Path, taken: bool) -> None:
    """`taken`: another user has made a folder of the name that this user's would have."""
    if taken:
        (temporary / f"hopyard-{UID}").mkdir(mode=0o777)
    child = run(PREPARE, temporary)
    assert child.returncode == 0, child.stderr
    folder = Path(child.stdout.strip()).parents[1]
    assert folder.parent == temporary
    assert (folder.name == f"hopyard-{UID}") == (not taken)
    assert folder.stat().st_uid == UID
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@root
@pytest.mark.slow
def test_a_home_that_is_closed_to_the_user(temporary: Path) -> None:
    (temporary / "closed").mkdir(mode=0o755)
    code = "import hopyard as hy\ntry:\n    " + PREPARE.strip().replace("\n", "\n    ")
    child = run(f"{code}\nexcept hy.ResourceError as error:\n    print(error)", temporary, HOME=f"{temporary}/closed")
    assert "set XDG_CACHE_HOME" in child.stdout, child.stderr


@root
@pytest.mark.slow
def test_doctor_names_the_folder(temporary: Path) -> None:
    code = (
        "from hopyard.doctor import examine\nprint(*(f'{f.name}: {f.text}' for f in examine(spark=False)), sep='\\n')"
    )
    child = run(code, temporary)
    assert f"{temporary}/hopyard-{UID} (XDG_CACHE_HOME names another folder)" in child.stdout, child.stderr


@root
@pytest.mark.slow
def test_a_path_in_a_home_and_a_path_of_hdfs_need_one(temporary: Path) -> None:
    code = (
        "import hopyard as hy\nfrom types import SimpleNamespace\n"
        "from hopyard.compat.tensorflowonspark.TFNode import hdfs_path\n"
        "for call in (lambda: hy.Dataset.parquet('~/x', features=['a']), lambda: hy.Dataset.open('~/x'),"
        " lambda: hdfs_path(SimpleNamespace(defaultFS='hdfs://n:1'), 'x')):\n"
        "    try:\n        call()\n    except hy.SpecError as error:\n        print(error)"
    )
    child = run(code, temporary)
    assert child.returncode == 0, child.stderr
    lines = child.stdout.splitlines()
    assert len(lines) == 3
    assert all("HOME" in line for line in lines[:2])
    assert "USER" in lines[2]


def test_no_home_and_no_temporary_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nowhere(*arguments: object) -> str:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("platformdirs.user_cache_dir", nowhere)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(hy.ResourceError, match="XDG_CACHE_HOME"):
        folders.cache_folder()


def test_a_home_of_nobody_is_refused() -> None:
    with pytest.raises(hy.SpecError, match="~nobody-of-this-name/x"):
        expanded("~nobody-of-this-name/x")


def test_a_relative_path_of_hdfs_is_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")

    class Context:
        defaultFS = "hdfs://n:1"

    assert TFNode.hdfs_path(Context(), "x") == "hdfs://n:1/user/ada/x"
