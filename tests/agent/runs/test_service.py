"""What an agent's service does with messages, beside what its worker does."""

from __future__ import annotations

from pathlib import Path

import cloudpickle
import msgspec
import pytest

from hopyard.agent.runs.service import assemble
from hopyard.core.messages import Setup, Work
from hopyard.core.runs.events import Done
from hopyard.data.partitions.cache import evict
from hopyard.data.partitions.mapped import rows_here
from hopyard.data.partitions.supply import serve, supply
from hopyard.spec import PartitionRange, RunSpec, Unit
from jobs import dataset, linear


def test_partitions_that_pass_through_a_host_can_be_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the agent lives. Those that are at home there cannot."""
    cache, table = tmp_path / "cache", dataset().prepare()
    cache.mkdir()
    monkeypatch.setattr("hopyard.data.partitions.mapped.default_root", lambda: cache)
    elsewhere = msgspec.json.encode(msgspec.structs.replace(table, path="/nowhere/" + table.key))
    spec = RunSpec(epochs=1, partitions=4, validation=4, metric="loss")
    recipe = cloudpickle.dumps(linear)
    setup = Setup(spec, recipe, elsewhere, str(tmp_path / "states"), str(tmp_path / "memory"), "run", 1)
    service = assemble(0, setup, lambda message: None)
    try:
        supply(service.manifest, lambda name: serve(table, name))
        for lease, partition, passing in ((1, 0, True), (2, 1, False)):
            unit = Unit(lease, lease, "train", 0, (partition,), None)
            (answer,) = service.do(Work(unit, {"lr": 0.1}, passing=passing))
            assert isinstance(answer, Done)
        assert rows_here(service.manifest) == (PartitionRange("train", 0, 2),)
        evict(cache, 0)
        assert rows_here(service.manifest) == (PartitionRange("train", 1, 2),)
    finally:
        service.close()
