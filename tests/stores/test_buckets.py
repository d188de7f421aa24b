"""Buckets are their owner's: none is made for a mistyped URL, and none is removed with the last file in it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.filesystems import Directory
from hopyard.frameworks.linear import Linear
from hopyard.store.states import open_store

KINDS = [pytest.param("s3", marks=pytest.mark.slow), pytest.param("moto", marks=pytest.mark.long)]


@pytest.fixture(params=KINDS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    request.getfixturevalue(request.param)
    name = f"b{uuid.uuid4().hex}"
    fsspec.filesystem("s3").mkdir(name)
    yield name


def buckets() -> set[str]:
    system = fsspec.filesystem("s3")
    system.invalidate_cache()
    return {entry.rstrip("/") for entry in system.ls("", detail=False)}


def test_an_empty_one_stays(bucket: str) -> None:
    directory = Directory(f"s3://{bucket}")
    directory.make()
    directory.put("name", b"1")
    directory.remove("name")
    directory.drop()
    assert bucket in buckets()


def test_a_mistyped_one_is_an_error_and_is_not_made(bucket: str, tmp_path: Path) -> None:
    before = buckets()
    url = f"s3://{bucket}-typo"
    words = f"store: host .* {url}.*: its bucket does not exist .*; check the name of the bucket"
    data = hy.Dataset.numpy(np.zeros((4, 2), "float32"), np.zeros(4, "int64"), partitions=1)

    def run(store: str) -> Any:
        recipe = lambda config: Linear(2, 2, lr=0.1, batch_size=4)  # noqa: E731
        return hy.fit(recipe, {}, data, epochs=1, engine=hy.Inline(), store=store, directory=tmp_path / "run")

    def launched(store: str) -> Any:
        return hy.launch(lambda args, ctx: None, roles={"worker": 1}, store=store, directory=tmp_path / "program")

    for use in (open_store, run, launched):
        for store in (url, f"{url}/folder"):
            with pytest.raises(SpecError, match=words):
                use(store)
    assert buckets() == before
