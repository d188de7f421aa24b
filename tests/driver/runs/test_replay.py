"""A replay finds no difference where there is none, and finds one where there is one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.runs.codec import CODEC
from hopyard.core.runs.events import Began, Durable, Line, Proposed, Retried
from hopyard.driver.runs.replay import _digests, replay
from hopyard.spec import Ref, RunSpec
from hopyard.store.journal import Journal
from hopyard.store.layout import Layout
from jobs import CONFIGS, dataset, select, troubled


@pytest.fixture
def run(tmp_path: Path) -> hy.Run:
    return select(tmp_path / "run")


def test_a_run_is_repeated_to_the_last_bit(run: hy.Run) -> None:
    found = replay(run.directory)
    assert found.different == []
    assert found.states >= 8  # 4 trials, 2 epochs


@pytest.mark.slow
def test_by_another_engine_too(run: hy.Run) -> None:
    found = replay(run.directory, engine=hy.Local(workers=2, devices=None))
    assert found.different == []
    assert found.states >= 8


def test_an_altered_digest_is_found(run: hy.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.directory, copy)
    digest = run.trials[2].digest
    journal = copy / "journal.jsonl"
    journal.write_text(journal.read_text().replace(digest, "0" * 64))
    (line,) = replay(copy).different
    assert line == f"trial 2, step 8 (epoch 2): digest {digest[:16]}, the journal has {'0' * 16}"


def test_a_run_with_failed_trials(tmp_path: Path) -> None:
    configs = [*CONFIGS[:2], {**CONFIGS[2], "at": 3, "do": "raise"}]
    run = select(tmp_path / "run", troubled, configs)
    found = replay(run.directory)
    assert (run.status, found.different) == ("partial", [])
    assert found.states >= 4


def test_states_of_a_recipe_that_was_replaced_are_not_compared(tmp_path: Path) -> None:
    layout = Layout(tmp_path)

    def stored(trial: int, step: int, attempt: int, digest: str) -> Durable:
        return Durable(at=1.0, slot=0, ref=Ref(trial, step, attempt), digest=digest, bytes=1)

    lines: list[Line] = [
        Began(at=0.0, spec=RunSpec(epochs=1, partitions=4, validation=0)),
        *(Proposed(at=0.0, trial=trial, config={}) for trial in (0, 1)),
        stored(0, 2, 1, "old"),
        stored(1, 2, 2, "kept"),
        Retried(at=2.0, trial=0, recipe="another"),
        Retried(at=2.0, trial=1),
        stored(0, 4, 9, "new"),
    ]
    Journal(layout.journal, CODEC).append(lines)
    assert _digests(tmp_path) == {(0, 4): "new", (1, 2): "kept"}


def test_a_trial_that_completed_and_now_fails_is_a_difference(tmp_path: Path) -> None:
    once = tmp_path / "once"
    once.touch()
    configs = [CONFIGS[0], {**CONFIGS[1], "at": 3, "do": "raise", "once": str(once)}]
    run = select(tmp_path / "run", troubled, configs)
    once.unlink()
    (line,) = replay(run.directory).different
    assert line.startswith("trial 1 completed then, and now it failed: RuntimeError: the moon")


def test_changed_data_is_refused(tmp_path: Path) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(seed: int) -> None:
        rng = np.random.default_rng(seed)
        columns = {name: rng.standard_normal(200).astype("f4") for name in "abcdef"}
        pq.write_table(pa.table({**columns, "y": rng.integers(0, 2, 200)}), tmp_path / "rows.parquet")

    write(0)
    path = tmp_path / "rows.parquet"
    data = hy.Dataset.parquet(path, features=list("abcdef"), label="y", validation=0.2, partitions=2)
    run = select(tmp_path / "run", data=data)
    write(1)
    with pytest.raises(hy.RunDirectoryError, match="data has changed"):
        replay(run.directory)
    assert len(dataset().prepare().train) == 4
