"""What the host lacks (open files, memory, rights) is not damage of the prepared rows."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hopyard as hy
from hopyard.agent.runs.faults import HostFault, blame, reading
from hopyard.data.manifest import Manifest
from hopyard.data.partitions import cache as caches
from hopyard.data.partitions import mapped
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import HopyardError
from hopyard.formats.tfrecord import records

INPUTS, PARTITIONS = 29, 12
FILES = 128
CHILD = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
import numpy as np, hopyard as hy
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import HopyardError
from hopyard.formats.tfrecord import records
x = {{f"x{{at}}": np.full((240, 2), at, np.float32) for at in range({INPUTS})}}
data = hy.Dataset.numpy(x, np.arange(240), partitions={PARTITIONS})
manifest = data.prepare(sys.argv[1])
kept = [open_partition(manifest, "train", number) for number in range({PARTITIONS})]
assert sum(int(part.targets.sum()) for part in kept) == 240 * 239 // 2
assert all((part.inputs[f"x{{at}}"] == at).all() for part in kept for at in range({INPUTS}))
"""
"""Opens more arrays than the process may have open files."""


def test_open_partitions_hold_no_files(cache: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, cache], capture_output=True, text=True, timeout=300, check=False
    )
    assert child.returncode == 0, child.stderr


@pytest.fixture
def prepared(cache: Path) -> Manifest:
    return hy.Dataset.numpy(np.zeros((8, 2)), np.arange(8), partitions=2).prepare(cache)


LACKS = ["EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EDQUOT", "EACCES", "EPERM", "EIO"]


def fails(number: int) -> Any:
    def fail(path: Any, *arguments: Any, **options: Any) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    return fail


@pytest.mark.parametrize("name", LACKS)
@pytest.mark.parametrize(("module", "function"), [(caches, "compare"), (mapped, "map_npy")], ids=["compare", "map_npy"])
def test_a_partition_that_cannot_be_opened_now_is_not_damaged(
    prepared: Manifest, monkeypatch: pytest.MonkeyPatch, name: str, module: Any, function: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, function, fails(getattr(errno, name)))
        with pytest.raises(hy.ResourceError, match=os.strerror(getattr(errno, name))) as caught:
            open_partition(prepared, "train", 1)
    assert "damaged" not in str(caught.value)
    assert "ulimit -n" in str(caught.value) or name != "EMFILE"
    assert open_partition(prepared, "train", 1).rows == 4


@pytest.mark.parametrize("name", LACKS)
def test_an_entry_that_cannot_be_read_now_is_not_made_again(
    prepared: Manifest, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    data, times = hy.Dataset.numpy(np.zeros((8, 2)), np.arange(8), partitions=2), _times(cache)
    for function in ("compare", "read_bytes"):
        with monkeypatch.context() as patched:
            patched.setattr(Path if function == "read_bytes" else caches, function, fails(getattr(errno, name)))
            with pytest.raises(hy.ResourceError, match=os.strerror(getattr(errno, name))) as caught:
                data.prepare(cache)
        assert "damaged" not in str(caught.value)
        assert _times(cache) == times


def _times(cache: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in cache.rglob("*.npy")}


def test_a_missing_file_is_damage(prepared: Manifest) -> None:
    (Path(prepared.path) / "train-00001" / "inputs-0.npy").unlink()
    with pytest.raises(hy.DataError, match="damaged"):
        open_partition(prepared, "train", 1)


@pytest.mark.parametrize("name", ["EMFILE", "ENFILE", "ENOMEM", "EACCES", "EIO"])
def test_a_source_that_cannot_be_opened_now_need_not_be_written_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [0, 1]}), tmp_path / "rows.parquet")
    data = hy.Dataset.parquet(tmp_path / "rows.parquet", features=["x"], label="y", partitions=1)
    with monkeypatch.context() as patched:
        patched.setattr(pq, "ParquetFile", fails(getattr(errno, name)))
        with pytest.raises(hy.ResourceError, match=os.strerror(getattr(errno, name))) as caught:
            data.prepare(cache)
        assert "write the file again" not in str(caught.value)
        patched.setattr("hopyard.formats.tfrecord._open", fails(getattr(errno, name)))
        with pytest.raises(hy.ResourceError, match=os.strerror(getattr(errno, name))):
            next(records(str(tmp_path / "rows.parquet")))
    assert data.prepare(cache).rows == 2


def test_a_mapping_ends_with_its_array(prepared: Manifest) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(prepared.path)

    if not Path("/proc/self/maps").exists():
        pytest.skip("this system does not list mappings")
    columns = open_partition(prepared, "train", 0)
    inputs = columns.inputs[2:]
    assert mappings() >= 2
    assert inputs.flags.writeable
    inputs[:] = 1.0  # of this process alone
    assert not np.load(Path(prepared.path) / "train-00000" / "inputs-0.npy").any()
    del columns, inputs
    mapped.MAPPED.clear()
    assert mappings() == 0


@pytest.mark.parametrize(("name", "fault"), [("ENOMEM", "memory"), ("EMFILE", None), ("EIO", None)])
def test_a_worker_tries_again_what_lacks_memory_and_gives_up_its_place_for_the_rest(
    prepared: Manifest, monkeypatch: pytest.MonkeyPatch, name: str, fault: str | None
) -> None:
    monkeypatch.setattr(mapped, "map_npy", fails(getattr(errno, name)))
    with pytest.raises(HopyardError) as caught, reading("train partition 0", "here"):
        open_partition(prepared, "train", 0)
    assert isinstance(caught.value, HostFault) == (fault is None)
    if fault is not None:
        assert blame(caught.value, accelerated=False).fault == fault
