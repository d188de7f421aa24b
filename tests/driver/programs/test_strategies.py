"""Programs of TensorFlow whose workers train together by a distribution strategy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hopyard as hy
import programs

pytestmark = [pytest.mark.slow, pytest.mark.programs, pytest.mark.tensorflow]


@pytest.mark.long
def test_a_strategy_does_not_split_a_data_set_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")

    def main(args: Any, ctx: Any) -> None:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        rows, total = 0, 0.0
        for batch in strategy.experimental_distribute_dataset(ctx.feed().dataset(20, "tensorflow")):
            for part in strategy.experimental_local_results(batch["x"]):
                rows, total = rows + len(part), total + float(tf.reduce_sum(part))
        ctx.report({"rows": rows, "total": total})

    program = hy.launch(main, roles={"worker": 2}, max_time=240, directory=tmp_path / "program")
    program.feed({"x": np.arange(400.0)}, uneven="min")
    assert program.wait(300).status == "completed"
    assert sum(programs.values(program, "rows")) == 400
    assert sum(programs.values(program, "total")) == sum(range(400))


@pytest.mark.long
def test_peers_are_reached_without_the_proxy(tmp_path: Path) -> None:
    """gRPC takes the proxy for its peers, too, and tries forever to reach them."""
    pytest.importorskip("tensorflow")

    def main(args: Any, ctx: Any) -> None:
        import os

        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        ranks = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("sum", tf.constant(ctx.rank + 1)))
        names = ("no_grpc_proxy", "no_proxy", "NO_PROXY")
        (ctx.directory / f"{ctx.rank}.json").write_text(json.dumps([int(ranks), *map(os.environ.get, names)]))

    dead = "http://127.0.0.1:9"
    env = {"http_proxy": dead, "https_proxy": dead, "no_proxy": "intern.example, .local"}
    program = hy.launch(main, roles={"worker": 2}, env=env, max_time=120, directory=tmp_path / "program")
    assert program.wait(300).status == "completed"
    for rank in range(2):
        total, *variables = json.loads((tmp_path / "program" / f"{rank}.json").read_text())
        assert total == 3
        assert variables == ["intern.example, .local,localhost,127.0.0.1"] * 3
