"""File systems without rename and link, as mounted buckets are: the kernel answers ENOSYS."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.data.manifest import FILE
from hopyard.errors import DataError, ResourceError
from hopyard.spec import Ref
from hopyard.store.guard import StateConflict
from hopyard.store.states import LocalStore

CALLS = "rename,renameat,renameat2,link,linkat"
REF = Ref(3, 12, 1)

SCRIPT = """
import sys
from pathlib import Path
from hopyard.filesystems import Directory
from hopyard.spec import Ref
from hopyard.store.guard import StateConflict
from hopyard.store.states import LocalStore, claim, sign, signed

folder = Path(sys.argv[1])
ref, store = Ref(3, 12, 1), LocalStore(folder)
try:
    (folder / "a").touch()
    (folder / "a").rename(folder / "b")
except OSError as error:
    print(error.errno)
(folder / f"{ref}.safetensors").write_bytes(b"half")
for _ in range(2):
    store.put(ref, memoryview(b"a whole State"))
try:
    store.put(ref, memoryview(b"another State"))
except StateConflict:
    print("conflict")
sign(str(folder), "run")
print(bytes(store.get(ref)).decode(), signed(str(folder), "run"), claim(store, [], "mark"))
Directory(str(folder)).put("manifest", b"rows")
"""


@pytest.mark.slow
def test_states_are_written_under_their_own_names(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("not installed: strace")
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", f"inject={CALLS}:error=ENOSYS"]
    done = subprocess.run([*strace, "true"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    command = [*strace, sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines() == ["38", "conflict", "a whole State True True"], done.stderr
    assert (tmp_path / "manifest").read_bytes() == b"rows"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".part-")]


def test_half_a_state_is_kept_where_it_cannot_be_one(tmp_path: Path) -> None:
    """Where files are renamed, a State with another size is another run's."""
    store = LocalStore(tmp_path)
    store.put(REF, memoryview(b"half"))
    with pytest.raises(StateConflict, match="4 of them, not 13"):
        store.put(REF, memoryview(b"a whole State"))


def test_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(self: Path, target: Path) -> None:
        raise OSError(38, "Function not implemented")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", lacking)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ResourceError):
        LocalStore(tmp_path).put(REF, memoryview(b"a whole State"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_partitions_count_once_the_manifest_names_them(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors write segments under their own names. The driver renames index and manifest."""
    df = spark.range(200).selectExpr("id AS n", "id * 0.5D AS x")

    def prepared(folder: str) -> tuple[str, str]:
        data = hy.Dataset.spark(df, features=["n"], label="x", partitions=4, path=tmp_path / folder, name="rows")
        return data.prepare().digest, str(data.url)

    expected, _ = prepared("here")
    rename = os.rename

    def lacking(source: Any, target: Any, **more: Any) -> None:
        if str(target).startswith(str(tmp_path / "there")):
            raise OSError(38, "Function not implemented")
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", lacking)
    digest, url = prepared("there")
    assert digest == expected
    manifest = Path(url, FILE)
    manifest.write_bytes(manifest.read_bytes()[:400])  # as a driver that is killed leaves it
    with pytest.raises(DataError, match="cannot be read as a manifest"):
        hy.Dataset.open(url).prepare()
    assert prepared("there") == (expected, url)
    assert hy.Dataset.open(url).prepare().digest == expected
