"""The servers of tests are what they say: conditional writes, restarts."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from hopyard.filesystems import open_url
from stores.servers import client, hdfs, s3

pytestmark = pytest.mark.slow


def round_trip(url: str) -> None:
    system, path = open_url(f"{url}/{uuid.uuid4().hex}/file")
    system.makedirs(path.rpartition("/")[0], exist_ok=True)
    system.pipe_file(path, b"rows")
    assert system.cat_file(path) == b"rows"


def test_hdfs_in_both_ways(hdfs: Any) -> None:
    for url in (hdfs.url, hdfs.web):
        round_trip(url)


def test_s3(s3: Any) -> None:
    round_trip(s3.url)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["seaweedfs", "moto", "rclone"])
def test_each_server_of_s3_starts_again(kind: str, tmp_path: Path) -> None:
    with s3(tmp_path, kind) as server, client(server):
        round_trip(server.url)
        server.daemon.freeze()
        server.daemon.start()
        if kind != "moto":
            server.daemon.kill()
            server.daemon.start()
        round_trip(server.url)


@pytest.mark.long
def test_hdfs_starts_again(tmp_path: Path) -> None:
    with hdfs(tmp_path) as server, client(server):
        round_trip(server.url)
        for daemon in (server.datanode, server.namenode):
            daemon.kill()
            daemon.start()
        server.datanode.wait()
        round_trip(server.url)
