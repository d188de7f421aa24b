"""A file system that cannot be opened is one sentence: the URL, the cause, the next step. Wherever a URL is opened."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import hopyard as hy
from hopyard.checks import path
from hopyard.data.partitions.cache import rows_in
from hopyard.data.shared.storage import reaching as in_store
from hopyard.data.shared.storage import shared_directory
from hopyard.errors import DataError, HopyardError, ResourceError, SpecError
from hopyard.filesystems import Directory, absolute, is_there, matching, open_to_read, open_url, reaching, why
from hopyard.formats.tfrecord import records
from hopyard.frameworks.linear import Linear
from hopyard.spark.tfrecords import Target
from hopyard.store.states import open_store

JAVA = OSError("Unable to load libjvm\ndlopen(/a) failed\ndlopen(/b) failed")


def wrapped(cause: BaseException) -> Exception:
    """As `requests` and `botocore` do: an error of their own around that of the socket."""
    own, outer = type("MaxRetryError", (Exception,), {})("retries"), type("ConnectionError", (OSError,), {})("HTTP …")
    own.__context__, outer.__context__ = cause, own
    return outer


FAULTS = {
    "package": (ImportError("Install s3fs to access S3"), "is missing (Install s3fs to access S3); install it here"),
    "java": (JAVA, "client is not found (OSError: Unable to load libjvm); pip install 'hopyard[hdfs]'"),
    "hdfs again": (OSError("Prior attempt to load libhdfs failed"), "or give webhdfs://namenode:9870/"),
    "refused": (ConnectionRefusedError(111, "Connection refused"), "nobody listens there (ConnectionRefusedError"),
    "refused within": (wrapped(ConnectionRefusedError(111, "Connection refused")), "check host and port of the URL"),
    "name": (wrapped(socket.gaierror(-2, "Name or service not known")), "its host name is not known (gaierror"),
    "silence": (wrapped(TimeoutError("timed out")), "nobody answered in time (TimeoutError: timed out); check host"),
    "broken": (ConnectionResetError(104, "reset by peer"), "the connection broke (ConnectionResetError"),
    "rights": (PermissionError(13, "denied"), "it was refused (PermissionError: [Errno 13] denied); check credentials"),
    "hdfs native": (OSError("Connection refused (os error 111)"), "nobody listens there (ConnectionRefusedError"),
    "hdfs rights": (
        RuntimeError('RPCError("org.….AccessControlException", "Permission denied\\n\\tat")'),
        "was refused",
    ),
    "hdfs safe mode": (
        RuntimeError('RPCError("org.….SafeModeException", "…")'),
        "the NameNode is in safe mode (Runtime",
    ),
    "webhdfs safe mode": (
        RuntimeError("Cannot create file/x. Name node is in safe mode."),
        "the NameNode is in safe mode",
    ),
    "hdfs data": (RuntimeError('DataTransferError("All DataNodes failed: []")'), "no DataNode answers (RuntimeError"),
    "s3": (type("EndpointConnectionError", (Exception,), {})("Could not connect"), "nobody listens there (Endpoint"),
    "s3 keys": (type("NoCredentialsError", (Exception,), {})("Unable to locate"), "it was refused (NoCredentialsError"),
    "s3 load": (
        OSError(16, "Service Unavailable"),
        "the service is overloaded, or has failed (OSError: [",
    ),
    "other": (RuntimeError("the moon\nin the wrong house"), "RuntimeError: the moon; "),
}


class Broken(MemoryFileSystem):
    """A file system of which nothing works. As all do, `exists`, `isdir` and `glob` tell nothing of that."""

    protocol = "broken"
    cachable = False
    fault: Exception
    opens = False
    """Whether it is only asking that fails, not opening."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        if not self.opens:
            raise self.fault
        super().__init__(*arguments, **more)

    def _fail(self, *arguments: Any, **more: Any) -> Any:
        raise self.fault

    info = ls = _open = makedirs = pipe_file = cat_file = _fail


@pytest.fixture(params=[False, True], ids=["opening", "asking"])
def broken(request: pytest.FixtureRequest) -> Any:
    kind = type("Broken", (Broken,), {"opens": request.param, "fault": OSError(errno.EIO, "input/output error")})
    fsspec.register_implementation("broken", kind, clobber=True)
    return kind


X = np.zeros((4, 2), "float32")


def trained(store: str, directory: Path) -> Any:
    data = hy.Dataset.numpy(X, np.array([0, 1, 0, 1]), partitions=1)
    recipe = lambda config: Linear(2, 2, lr=0.1, batch_size=4)  # noqa: E731
    return hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), store=store, directory=directory / "run")


def looked(url: str, directory: Path) -> Any:
    with in_store(url, "read"):
        return shared_directory(url).has("name")


PLACES: dict[str, tuple[str, Callable[[str, Path], Any]]] = {
    "parquet": ("source", lambda url, at: hy.Dataset.parquet(f"{url}/a.parquet", features=["a"], label="b")),
    "parquet glob": ("source", lambda url, at: hy.Dataset.parquet(f"{url}/*.parquet", features=["a"], label="b")),
    "parquet folder": ("source", lambda url, at: hy.Dataset.parquet(url, features=["a"], label="b")),
    "tfrecord": ("source", lambda url, at: hy.Dataset.tfrecord(f"{url}/a.tfrecord", features=["a"], label="b")),
    "tfrecord glob": ("source", lambda url, at: hy.Dataset.tfrecord(f"{url}/*.tfrecord", features=["a"], label="b")),
    "records": ("source", lambda url, at: list(records(f"{url}/a.tfrecord"))),
    "data set": ("path", lambda url, at: hy.Dataset.open(url)),
    "folder": ("path", looked),
    "rows to be removed": ("path", lambda url, at: rows_in(url)),
    "store of a run": ("store", trained),
    "store": ("store", lambda url, at: open_store(url)),
    "directory of a DataFrame": ("path", lambda url, at: Target(url, overwrite=False)),
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_a_url_is_opened(broken: Any, place: str, tmp_path: Path) -> None:
    argument, use = PLACES[place]
    for fault, words in FAULTS.values():
        broken.fault = fault
        with pytest.raises((SpecError, DataError)) as caught:
            use("broken://nn:1/x", tmp_path / words[:9])
        text = str(caught.value)
        assert words in text and "broken://nn:1/x" in text and "\n" not in text, (place, text)
        assert text.startswith(f"{argument}: host {socket.gethostname()} cannot "), text


@pytest.mark.parametrize("place", PLACES)
def test_a_protocol_that_there_is_not(place: str, tmp_path: Path) -> None:
    with pytest.raises((SpecError, DataError), match=r"nosuch://x.*: .*'nosuch'"):
        PLACES[place][1]("nosuch://x", tmp_path)


def test_a_connection_that_breaks_while_a_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is told of the connection, not of the file."""
    system, path = open_url("memory://filesystems/c.parquet")
    system.pipe_file(path, b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(DataError, match=r"c\.parquet .*Parquet"):
        hy.Dataset.parquet("memory://filesystems/c.parquet", features=["a"], label="b").prepare()

    def broken(*arguments: Any, **more: Any) -> Any:
        raise wrapped(ConnectionResetError(104, "reset by peer"))

    monkeypatch.setattr(MemoryFileSystem, "_open", broken)
    sentence = r"source: host .* cannot (read|open) memory:///?filesystems/c\.parquet: the connection broke"
    with pytest.raises(DataError, match=sentence):
        hy.Dataset.parquet("memory://filesystems/c.parquet", features=["a"], label="b").prepare()
    with pytest.raises(DataError, match=sentence):
        next(records("memory://filesystems/c.parquet"))


def test_a_missing_file_is_not_a_file_system_fault() -> None:
    for source in ("memory://nothing/x", "memory://nothing/*.parquet"):
        with pytest.raises(DataError, match="no Parquet file matches"):
            hy.Dataset.parquet(source, features=["a"], label="b")
        with pytest.raises(DataError, match="no TFRecord file matches"):
            hy.Dataset.tfrecord(source, features=["a"], label="b")


def test_there_or_not() -> None:
    system, path = open_url("memory://filesystems/a/b.txt")
    assert not is_there(system, path)
    system.pipe_file(path, b"")
    assert is_there(system, path) and is_there(system, path.rpartition("/")[0])
    assert matching(system, path[:-5] + "*") == [path]
    assert matching(system, path[:-5] + "?.[a-c]*") == []


def test_room_and_errors_of_our_own() -> None:
    with pytest.raises(ResourceError, match=r"store: no room .* x "), reaching("x", "open", SpecError, "store"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(ResourceError, match="DSQuota"), reaching("x", "open", SpecError, "store"):
        raise RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "…")')
    with pytest.raises(HopyardError, match="as it is"), reaching("x", "open", SpecError, "store"):
        raise HopyardError("as it is")
    with pytest.raises(KeyboardInterrupt), reaching("x", "open", SpecError, "store"):
        raise KeyboardInterrupt
    sentence = "cannot open x: ZeroDivisionError: 1; do this"
    with pytest.raises(SpecError, match=sentence), reaching("x", "open", SpecError, "store", "do this"):
        raise ZeroDivisionError(1)


def test_urls_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("x") == absolute("x/") == str(tmp_path / "x")
    assert absolute("s3://bucket/x/") == "s3://bucket/x"
    assert absolute("memory://") == absolute("memory:///") == "memory://"
    assert absolute("file:///x/") == "/x" and absolute("file:///") == "/"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///a/day#1", "/a/day#1"),
        ("file:///a/day?x=1#2", "/a/day?x=1#2"),
        ("file:///a%20b/50%25", "/a b/50%"),
        ("file://localhost/a", "/a"),
        ("file:/a b/50%25", "/a b/50%25"),
    ],
)
def test_a_file_url_is_a_path_wherever_it_is_opened(url: str, expected: str) -> None:
    """`file:/…` is what Hadoop prints: it has no escapes."""
    assert path("p", url, "a path or URL") == absolute(url) == open_url(url)[1] == expected
    assert str(open_store(url, make=False).directory) == expected  # type: ignore[union-attr]


def test_a_file_url_with_a_host_is_refused() -> None:
    for take in (absolute, open_url, lambda url: path("p", url), lambda url: open_store(url, make=False)):
        with pytest.raises(SpecError, match=r"file://tmp/x.*file:///tmp/x"):
            take("file://tmp/x")


def test_a_chained_url_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "a#b").write_text("rows")
    system, inside = open_url(f"simplecache::file://{tmp_path}/a#b")
    assert (
        system.cat_file(inside) == b"rows"
        and absolute("simplecache::s3://bucket/a#b") == "simplecache::s3://bucket/a#b"
    )


def test_the_urls_of_files_that_spark_and_hadoop_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `file:/x` was a folder named `file:` in the current one."""
    monkeypatch.chdir(tmp_path)
    assert absolute("file:/x/") == "/x" and open_url("file:/x")[1] == "/x"
    assert path("p", "file:/x", "a path or URL") == path("p", "file:/x") == path("p", "file:///x") == "/x"
    assert path("p", Path("file:///x")) == "/x", "pathlib leaves one slash"
    assert path("p", "file:x") == "file:x"
    for number, form in enumerate(("file:{}", "file://{}")):
        folder = tmp_path / f"run-{number}"
        url = form.format(folder)
        data = hy.Dataset.numpy(np.ones((8, 2), np.float32), np.zeros(8, np.int64))
        run = hy.fit(
            lambda config: Linear(2, 2, 0.1, 8), {}, data, epochs=1, engine=hy.Inline(), directory=url, store=url
        )
        assert run.directory == folder and hy.load(url).status == "completed"
        assert hy.load_model(run.best.save(f"{url}/model")).directory == folder / "model"
    assert {entry.name for entry in tmp_path.iterdir()} == {"run-0", "run-1"}


def test_a_missing_package_is_named_with_its_extra() -> None:
    cause = why("s3://bucket/a", ImportError("Install s3fs to access S3"))
    assert cause is not None and "pip install 'hopyard[s3]' here and on every host" in cause[1]


class Native:
    """A reader as hdfs-native's: each call of `read` is a request."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at, self.requests = data, 0, 0

    def read(self, size: int = -1) -> bytes:
        self.requests += 1
        start, self.at = self.at, len(self.data) if size < 0 else min(len(self.data), self.at + size)
        return self.data[start : self.at]

    def read_range_stream(self, offset: int, size: int) -> Any:
        raise NotImplementedError


def test_a_whole_file_of_hdfs_is_one_request() -> None:
    file = Native(bytes(range(256)) * 4096)
    system = type("System", (), {"protocol": "hdfs", "open": lambda self, path, mode, block_size: file})()
    assert open_to_read(system, "/a").read() == file.data
    assert file.requests <= 2


def test_a_local_file_is_on_disk_when_it_was_put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.partition("-")[0])

    (tmp_path / "copied").write_bytes(b"1")
    monkeypatch.setattr(os, "fsync", noted)
    for data in (b"1", tmp_path / "copied"):
        synced.clear()
        Directory(str(tmp_path)).put("name", data)
        assert synced == [".part", tmp_path.name]
