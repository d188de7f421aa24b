"""A gang of real processes with a Keras model: it trains as one worker does, and a member that is killed costs
nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import hopyard as hy
from hopyard.core.runs.events import Failed, Formed
from jobs import journal, memory
from keras_jobs import dataset, exact_net

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow, pytest.mark.filterwarnings("ignore:. workers on")]


@pytest.mark.long
def test_a_gang_takes_the_steps_of_one_worker_though_a_member_is_killed(tmp_path: Path) -> None:
    config = {"rank": 1, "at": 3, "do": "kill", "once": str(tmp_path / "once")}
    alone = hy.fit(exact_net, {}, dataset(), epochs=2, engine=hy.Inline(), directory=tmp_path / "alone")
    engine = hy.Local(2, devices=None)
    run = hy.fit(
        exact_net, config, dataset(), epochs=2, engine=engine, parallel=hy.AllReduce(), directory=tmp_path / "gang"
    )
    for epoch, metrics in run.best.history.items():
        assert metrics == pytest.approx(alone.best.history[epoch], rel=1e-6)
    lines = journal(run.directory)
    assert len([line for line in lines if isinstance(line, Formed)]) == 2
    assert not [line for line in lines if isinstance(line, Failed)]
    assert not memory(tmp_path)
