"""A real program whose models are the last owners of their process groups, which torch frees under the lock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hopyard as hy

pytestmark = [pytest.mark.slow, pytest.mark.programs]

CYCLES = 60
"""Without the correction none of twelve tries got beyond fourteen."""


def averages(args: int, ctx: Any) -> None:
    """Frees a DistributedDataParallel model after its group, again and again, while other threads get no turn."""
    import os
    import sys

    import torch
    import torch.distributed as dist

    sys.setswitchinterval(5)  # a thread that wants the lock waits until this one gives it up
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)  # type: ignore[attr-defined]

    def cycle(number: int) -> None:
        before = dist.PrefixStore(str(number), store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=before, rank=ctx.rank, world_size=ctx.world_size)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(6, 2))
        net(torch.ones(4, 6)).sum().backward()
        dist.destroy_process_group()

    for number in range(args):
        cycle(number)
    ctx.report({"cycles": args, "threads": len(os.listdir("/proc/self/task"))})


@pytest.mark.long
def test_a_model_may_be_freed_after_its_group_was_destroyed(tmp_path: Path) -> None:
    program = hy.launch(averages, CYCLES, directory=tmp_path / "program", roles={"worker": 2}, engine=hy.Local(2))
    try:
        program.wait(timeout=500)
        for values in (task["values"] for task in program.summary()["tasks"]):
            assert values["cycles"] == CYCLES
            assert values["threads"] < CYCLES  # each group has two
    finally:
        program.stop()
