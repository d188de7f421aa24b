"""A store that lags, fails, loses answers and lies: what was answered is there, and what was refused is not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hopyard as hy
from hopyard.errors import SpecError
from hopyard.filesystems import Directory
from hopyard.spec import Ref
from hopyard.store.states import FsspecStore
from jobs import CONFIGS, dataset, digests, linear, states
from shaky import faults

LOST = (ConnectionError, TimeoutError)
KINDS = ["shaky", "bucket"]


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    (tmp_path / "store").mkdir()
    return f"{request.param}://{tmp_path}/store"


def create(directory: Directory, name: str, data: bytes) -> bool:
    """Create a file, by as many attempts as it takes."""
    while True:
        with suppress(*LOST):
            return directory.create(name, data)


def get(directory: Directory, name: str) -> bytes:
    while True:
        with suppress(*LOST):
            return directory.get(name)


def test_one_of_eight_writers_creates_each_file(url: str, tmp_path: Path) -> None:
    directory = Directory(url)
    faults(tmp_path, fail=0.2, lose=0.3, delay=0.0005)
    with ThreadPoolExecutor(8) as pool:
        for name in map(str, range(20)):
            created = list(pool.map(lambda number, name=name: create(directory, name, b"%d" % number), range(8)))
            assert created.count(True) == 1, created
            assert get(directory, name) == b"%d" % created.index(True)


def test_lost_answers_are_no_proof_that_a_store_lies(url: str, tmp_path: Path) -> None:
    faults(tmp_path, fail=0.01, lose=0.02)
    checked = 0
    for _ in range(20):
        with suppress(*LOST):
            Directory(url).check_create()
            checked += 1
    assert checked


def test_a_store_that_lies_keeps_states_and_no_runs(url: str, tmp_path: Path) -> None:
    faults(tmp_path, lie=True)
    with pytest.raises(SpecError, match="the second of two writers won"):
        Directory(url).check_create()
    store = FsspecStore(url)
    store.put(Ref(0, 1, 1), memoryview(b"a State"))
    assert store.get(Ref(0, 1, 1)) == b"a State"


def test_a_run_whose_states_are_there(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopyard.agent.runs.state_writer.FIRST_WAIT", 0.01)

    def recipe(config: dict[str, Any]) -> Any:
        faults(tmp_path, fail=0.2, lose=0.2)  # the run has begun
        return linear(config)

    runs = [
        hy.select(
            recipe,
            None,
            dataset(),
            search=hy.Configs(CONFIGS),
            epochs=2,
            metric="val_loss",
            mode="min",
            engine=hy.Inline(),
            store=store,
            directory=tmp_path / name,
        )
        for name, store in (("there", f"{url}/states"), ("here", None))
    ]
    faults(tmp_path)
    assert runs[0].status == "completed" and digests(runs[0]) == digests(runs[1])
    assert len(states(runs[0].directory).refs()) >= len(CONFIGS)
