"""What lies on GPUs is exchanged there, as what lies on hosts is: with the same numbers.

Without GPUs, gloo on the host takes NCCL's place under the same arithmetic. The tests of NCCL itself need two GPUs, or
one that NCCL lets two members have (`NCCL_MULTI_RANK_GPU_ENABLE=1`).
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, Store  # type: ignore[attr-defined]

import hopyard as hy
from gang_jobs import network
from gang_threads import exchanges, together
from hopyard.core.facts import Lost
from hopyard.core.runs.events import Joined
from hopyard.exchange import gpus
from hopyard.exchange.board import GangBroken
from hopyard.exchange.gpus import Gpus
from hopyard.spec import Gang
from jobs import dataset, digests, journal

COUNT = torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0
MANY = COUNT > 1 or (COUNT == 1 and os.environ.get(gpus.SHARED) == "1")
nccl = pytest.mark.skipif(not MANY, reason="two members need two GPUs")


def by_gloo(store: Store, rank: int, size: int, interface: str, guard: Callable[..., Any]) -> Gpus:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = timedelta(seconds=60)
    group = ProcessGroupGloo(PrefixStore("gpus", store), rank, size, options)
    return Gpus(group, size, torch.device("cpu"), lambda work: work.wait(), guard)


@pytest.fixture
def members_have_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "identity", lambda: f"NCCL 2, GPU {threading.get_ident()}".encode())
    monkeypatch.setattr(gpus, "prepare", by_gloo)


def arrays(rank: int, shift: float = 0.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    shapes = ((3, 5), (1,), (0,), (1000,), ())
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).add(shift).to(dtype)
        for shape in shapes
        for dtype in dtypes
    ]


def both(work: Callable[[Any], Any], gang: Gang) -> tuple[list[Any], list[Any]]:
    """What the members' work returns: through the hosts' memory, and between GPUs."""

    def checked(exchange: Any) -> Any:
        exchange.connect()
        assert exchange._group.gpus is not None
        return work(exchange)

    return together(work, exchanges(gang)), together(checked, exchanges(gang, gpu_interface=""))


@pytest.mark.parametrize("rows", [(1.0, 2.0, 5.0), (3.0, 0.0, 1.0), (0.0, 0.0, 0.0)])
def test_means_are_those_of_hosts(members_have_gpus: None, rows: tuple[float, ...]) -> None:
    def work(exchange: Any) -> Any:
        values = arrays(exchange.rank)
        if not rows[exchange.rank]:
            values[0].fill_(torch.nan)
        return exchange.mean(values, rows[exchange.rank]), values

    hosts, devices = both(work, Gang(3))
    for (total, values), (expected, others) in zip(devices, hosts, strict=True):
        assert total == expected == sum(rows)
        torch.testing.assert_close(values, others, rtol=1e-6, atol=1e-6, equal_nan=True)
    if sum(rows):
        for _, values in devices:
            assert all(torch.equal(one, other) for one, other in zip(values, devices[0][1], strict=True))


@pytest.mark.parametrize("rows", [(1.0, 2.0, 5.0), (3.0, 0.0, 1.0), (0.0, 0.0, 0.0)])
@pytest.mark.parametrize("most", [3 * 64, 64 << 20])
def test_averages_have_the_bits_of_hosts(
    members_have_gpus: None, monkeypatch: pytest.MonkeyPatch, rows: tuple[float, ...], most: int
) -> None:
    monkeypatch.setattr(gpus, "AVERAGED_BYTES", most)

    def work(exchange: Any) -> list[torch.Tensor]:
        values = arrays(exchange.rank, shift=100.0)
        values[0][0] = torch.tensor([torch.inf, -torch.inf, -0.0, 1 / 3, 1e-45])  # alike on all members
        exchange.average(values, rows[exchange.rank])
        return values

    hosts, devices = both(work, Gang(3, "parameters", every=1))
    for values, others in zip(devices, hosts, strict=True):
        for one, other in zip(values, others, strict=True):
            assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)) if one.dim() else torch.equal(one, other)


def test_half_precision_travels_between_gpus(members_have_gpus: None) -> None:
    def work(exchange: Any) -> Any:
        values = arrays(exchange.rank)
        return exchange.mean(values, 1.0 + exchange.rank), values

    hosts, devices = both(work, Gang(2, compress="fp16"))
    for (total, values), (expected, others) in zip(devices, hosts, strict=True):
        assert total == expected
        torch.testing.assert_close(values, others, rtol=2e-3, atol=2e-3)


def test_only_what_lies_on_the_gpu_is_exchanged_there(members_have_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the steps of Adam, which torch keeps on the host."""
    seen: list[int] = []
    add = Gpus.add

    def counted(self: Gpus, flat: torch.Tensor) -> None:
        seen.append(len(flat))
        add(self, flat)

    monkeypatch.setattr(Gpus, "add", counted)
    monkeypatch.setattr(Gpus, "takes", lambda self, tensor: tensor.numel() > 1)

    def work(exchange: Any) -> list[float]:
        values = [torch.full((count,), float(exchange.rank)) for count in (1, 4, 1, 4)]
        exchange.mean(values, 1.0)
        return [float(value.mean()) for value in values]

    assert together(work, exchanges(Gang(2), gpu_interface="")) == [[0.5] * 4] * 2
    assert seen == [1 + 2 * 4] * 2


@pytest.mark.parametrize(
    ("identities", "expected"),
    [
        ([b"NCCL 2, GPU a", b"NCCL 2, GPU b"], True),
        ([b"NCCL 2, GPU a", b"NCCL 2, GPU a"], False),
        ([b"NCCL 2, shared GPU a", b"NCCL 2, shared GPU a"], True),
        ([b"NCCL 2, shared GPU a", b"NCCL 2, GPU b", b"NCCL 2, GPU b"], False),
        ([b"NCCL 2, GPU a", b"NCCL 3, GPU b"], False),
        ([b"NCCL 2, GPU a", b""], False),
        ([b"", b""], False),
    ],
)
def test_each_member_needs_a_gpu_of_its_own(identities: list[bytes], expected: bool) -> None:
    assert gpus.reachable(identities) is expected


@pytest.mark.parametrize("prepared", [True, False])
def test_all_members_use_the_host_if_one_cannot_connect(
    members_have_gpus: None, monkeypatch: pytest.MonkeyPatch, prepared: bool
) -> None:
    """Before anybody waits for it, or when they meet."""

    def prepare(store: Store, rank: int, *arguments: Any) -> Gpus:
        if rank == 1 and not prepared:
            raise RuntimeError("unhandled system error")
        return Gpus(None, 2, torch.device("cpu"), lambda work: None, lambda operation: None)

    def meet(self: Gpus) -> str:
        assert prepared
        return "unhandled system error" if next(calls) else ""

    calls = itertools.count()
    monkeypatch.setattr(gpus, "prepare", prepare)
    monkeypatch.setattr(Gpus, "meet", meet)
    monkeypatch.setattr(Gpus, "_abort", lambda self: None)

    def work(exchange: Any) -> Any:
        value = torch.full((4,), float(exchange.rank))
        exchange.mean([value], 1.0)
        return exchange._group.gpus, value.tolist()

    with pytest.warns(UserWarning, match="unhandled system error"):
        assert together(work, exchanges(Gang(2), gpu_interface="")) == [(None, [0.5] * 4)] * 2


def test_a_member_that_misses_the_rendezvous_gives_up(members_have_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "MEET_SECONDS", 0.1)
    broken = threading.Event()
    monkeypatch.setattr(Gpus, "_abort", lambda self: broken.set())

    def settle(work: Any) -> None:
        assert broken.wait(60)

    waits = Gpus(Waits(), 2, torch.device("cpu"), settle, lambda operation: None)
    assert waits.meet() == "they did not meet"


class Waits:
    """A group whose operations are under way for ever."""

    def allreduce(self, tensors: Any, options: Any) -> None:
        """Begin nothing."""


@pytest.mark.parametrize("before", [True, False])
def test_a_member_that_gave_up_exchanges_nothing(members_have_gpus: None, before: bool) -> None:
    """Also where the driver says so before all are connected."""
    first, other = exchanges(Gang(2), gpu_interface="")

    def work(exchange: Any) -> str:
        if not before:
            exchange.mean([torch.ones(3)], 1.0)
        if exchange is first:
            exchange.abort()
        try:
            exchange.mean([torch.ones(3)], 1.0)
        except GangBroken:
            exchange.close()  # as a member does that is out of its unit
            return "out"
        return "done"

    assert together(work, [first, other])[0] == "out"


def fit(directory: Path, gpu: bool = True, **more: Any) -> hy.Run:
    devices = None if not gpu else [0, 1] if COUNT > 1 else [0, 0]
    return hy.fit(network, data=dataset(), engine=hy.Local(2, devices=devices), directory=directory, **more)


@nccl
@pytest.mark.parametrize(
    "parallel", [hy.AllReduce(), hy.AllReduce(compress="fp16"), hy.LocalSGD(every=2)], ids=["sum", "half", "average"]
)
def test_a_gang_learns_by_nccl_what_it_learns_through_memory(
    parallel: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "VERSION")
    runs = [
        fit(tmp_path / name, name != "memory", config={"lr": 0.05}, epochs=2, parallel=parallel)
        for name in ("nccl", "again", "memory")
    ]
    logs = "".join(path.read_text() for path in (tmp_path / "nccl").rglob("*.log"))
    assert "NCCL version" in logs and "cannot connect" not in logs
    assert digests(runs[0]) == digests(runs[1])
    assert runs[0].best.history[2] == pytest.approx(runs[2].best.history[2], rel=1e-6)


@nccl
@pytest.mark.parametrize("rank", [0, 1])
def test_a_member_that_is_killed_keeps_nobody_waiting(rank: int, tmp_path: Path) -> None:
    """NCCL itself would wait for it without end. Who is left keeps its process."""
    quiet = fit(tmp_path / "quiet", config={"lr": 0.05}, epochs=2, parallel=hy.AllReduce())
    trouble = {"lr": 0.05, "rank": rank, "at": 11, "do": "kill", "once": str(tmp_path / "once")}
    begin = time.monotonic()
    run = fit(tmp_path / "run", config=trouble, epochs=2, parallel=hy.AllReduce())
    print(f"with one kill: {time.monotonic() - begin:.1f} s")
    assert digests(run) == digests(quiet)
    lines = journal(run.directory)
    assert len([line for line in lines if isinstance(line, Joined)]) == 3
    (lost,) = [line for line in lines if isinstance(line, Lost)]
    assert "SIGKILL" in lost.reason


@nccl
def test_an_error_of_one_member_is_shown(tmp_path: Path) -> None:
    with pytest.raises(hy.RunFailed, match="the moon"):
        fit(tmp_path / "run", config={"lr": 0.05, "rank": 1, "at": 7, "do": "raise"}, epochs=1, parallel=hy.AllReduce())
