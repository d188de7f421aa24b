"""What a gang of torch models computes: the identities of all frameworks, and what only torch has."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import hopyard as hy
from gang_identities import UNEVEN, Identities
from gang_threads import exchanges, partitions, together, trained
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.exchange.exchange import GangExchange
from hopyard.spec import Gang, Outer


def net(norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    middle = [torch.nn.BatchNorm1d(6)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(5, 6), *middle, torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()


def model(optimizer: str = "SGD", weighted: bool = False, norm: bool = False, **more: Any) -> hy.torch.Model:
    module = net(norm)
    settings: dict[str, Any] = {"lr": {"SGD": 0.3, "momentum": 0.1, "Adam": 0.01}[optimizer]}
    if optimizer == "momentum":
        settings["momentum"] = 0.9
    kind = torch.optim.Adam if optimizer == "Adam" else torch.optim.SGD
    criterion = torch.nn.CrossEntropyLoss(reduction="none" if weighted else "mean")
    metrics = {"a": hy.torch.accuracy}
    return hy.torch.Model(module, kind(module.parameters(), **settings), criterion, metrics, **more)


class TestTorch(Identities):
    def model(self, optimizer: str = "SGD", **more: Any) -> Any:
        return model(optimizer, **more)

    def parameters(self, model: Any) -> list[Any]:
        return [parameter.detach().numpy() for parameter in model.module.parameters()]

    def everything(self, model: Any) -> list[Any]:
        return [value.numpy() for value in model.module.state_dict().values()]

    def test_an_average_after_more_steps_is_something_else(self) -> None:
        data = partitions(UNEVEN)
        ((alone, _),) = trained(self.model, data, 6)
        assert self.difference(alone, trained(self.model, data, 3, Gang(2, "parameters", every=3))[0][0]) > 1e-4


IDENTITIES = TestTorch()


@pytest.mark.parametrize("gang", [Gang(2), Gang(2, "parameters", every=2, inner="average")], ids=["reduce", "local"])
def test_what_is_frozen_is_not_exchanged(gang: Gang, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimizer is given all parameters, or those that are trained."""
    exchanged: set[int] = set()

    def noted(method: Any) -> Any:
        def call(self: GangExchange, arrays: Any, *more: Any) -> Any:
            exchanged.update(array.data_ptr() for array in arrays)
            return method(self, arrays, *more)

        return call

    for name in ("mean", "average", "broadcast"):
        monkeypatch.setattr(GangExchange, name, noted(getattr(GangExchange, name)))

    def frozen(every: bool) -> hy.torch.Model:
        module = net()
        module.register_buffer("scale", torch.ones(1, dtype=torch.float64))
        module[0].requires_grad_(False)  # type: ignore[index]
        optimizer = torch.optim.Adam([each for each in module.parameters() if every or each.requires_grad], lr=0.01)
        return hy.torch.Model(module, optimizer, torch.nn.functional.cross_entropy, clip_norm=1.0, base=["scale"])

    data = partitions(UNEVEN)
    results = [trained(partial(frozen, every), data, 6, gang)[0][0] for every in (True, False)]
    assert IDENTITIES.equal(*results)
    state = results[0].state()["module"]
    assert list(state["parameters"]) == ["2.weight", "2.bias"] and not state["buffers"]
    for module in [model.module for model in results]:
        assert exchanged.isdisjoint(each.data_ptr() for each in (module[0].weight, module[0].bias, module.scale))
        assert torch.equal(module[0].weight, net()[0].weight)  # type: ignore[index]
        assert not torch.equal(module[2].weight, net()[2].weight)  # type: ignore[index]


def test_half_precision_loses_what_it_must():
    data = partitions(UNEVEN)
    single = trained(lambda: as_float(model()), as_floats(data), 8, Gang(2))[0][0]
    half = trained(lambda: as_float(model()), as_floats(data), 8, Gang(2, compress="fp16"))
    assert 0 < IDENTITIES.difference(single, half[0][0]) < 1e-2
    assert IDENTITIES.equal(half[0][0], half[1][0])


def as_float(made):
    made.module.float()
    return made


def as_floats(data):
    for columns in data:
        columns.inputs = columns.inputs.astype("float32")
    return data


def test_outer_momentum_goes_on_from_round_to_round():
    """Against the algorithm written out: two members, one round a partition, plain SGD."""
    data = partitions([6, 6])
    start = [p.detach().clone() for p in net().parameters()]
    velocity = [torch.zeros_like(p) for p in start]
    for number in range(2):
        changes = []
        for rank in range(2):
            member = model()
            for p, value in zip(member.module.parameters(), start, strict=True):
                p.data.copy_(value)
            member.train_partition(PartitionLoader(data[number], 6, 7 + number, 3, (rank, 2)))
            changes.append([p.detach() - value for p, value in zip(member.module.parameters(), start, strict=True)])
        for n, (one, other) in enumerate(zip(*changes, strict=True)):
            mean = (one + other) / 2
            velocity[n] = 0.9 * velocity[n] + mean
            start[n] = start[n] + 0.7 * (mean + 0.9 * velocity[n])
    made = trained(model, data, 3, Gang(2, "parameters", every=9, outer=Outer(0.7, 0.9)))[0][0]
    for p, value in zip(made.module.parameters(), start, strict=True):
        assert torch.allclose(p.detach(), value, rtol=1e-12, atol=0)


def test_counts_of_batch_norm_are_those_of_rank_0():
    for member, _ in trained(lambda: model(norm=True), partitions([16, 14]), 8, Gang(2)):
        assert int(member.module[1].num_batches_tracked) == 4


def test_constant_buffers_keep_their_bits():
    def built():
        made = model()
        made.module.register_buffer("table", torch.linspace(0.1, 0.7, 7, dtype=torch.float64))
        return made

    for member, _ in trained(built, partitions([7]), 3, Gang(3)):
        assert torch.equal(member.module.table, torch.linspace(0.1, 0.7, 7, dtype=torch.float64))


def test_a_parameter_that_no_loss_reaches_is_left_alone():
    def built():
        made = model("Adam")
        made.module.register_parameter("unused", torch.nn.Parameter(torch.ones(2, dtype=torch.float64)))
        made.optimizer.add_param_group({"params": [made.module.unused], "weight_decay": 0.5})
        return hy.torch.Model(made.module, made.optimizer, made.loss)

    for member, _ in trained(built, partitions([8]), 4, Gang(2)):
        assert torch.equal(member.module.unused.detach(), torch.ones(2, dtype=torch.float64))


def test_a_state_of_two_members_is_taken_by_three():
    """With `inner="average"` all have what the first one has; what rounding took is the first one's alone."""
    two = [member for member, _ in trained(model, partitions([12]), 3, Gang(2, "parameters", compress="bf16"))]
    two[0].set_members([two[1].member_state()])
    for exchange in exchanges(Gang(3, "parameters", inner="average", compress="bf16")):
        member = model()
        member.set_exchange(exchange)
        member.load(two[0].state())
        assert IDENTITIES.equal(member, two[0])
        assert (member.member_state()["error"] is None) == (exchange.rank > 0)


def test_of_a_state_of_three_members_two_take_their_own_part():
    """Where a gang has become smaller, what the last ones had is dropped."""
    gang = Gang(3, "parameters", every=2)
    three = [member for member, _ in trained(lambda: model("Adam"), partitions([12]), 2, gang)]
    three[0].set_members([member.member_state() for member in three[1:]])
    for exchange, before in zip(exchanges(Gang(2, "parameters")), three, strict=False):
        member = model("Adam")
        member.set_exchange(exchange)
        member.load(three[0].state())
        moments = [made.optimizer.state_dict()["state"][0]["exp_avg"] for made in (member, before)]
        assert torch.equal(*moments)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("group", "blocks"):
        monkeypatch.setattr(f"hopyard.exchange.{module}.PIECE_BYTES", 1024)


def held(kind: str, rank: int) -> list[Any]:
    """What a member has: an array in pieces, one that is not contiguous, and a number. About half of it all have alike,
    some of that infinite, or −0.0."""
    rng = np.random.default_rng(0)
    alike = [rng.standard_normal(300), rng.standard_normal((5, 7)), np.array(0.25)]
    alike[0][:9], alike[0][100:250:7] = -np.inf, -0.0
    own = np.random.default_rng(1 + rank)
    flips = [rng.integers(0, 2, each.shape).astype(bool) for each in alike]
    arrays = [np.where(flip, own.standard_normal(each.shape), each) for each, flip in zip(alike, flips, strict=True)]
    tensors = [torch.from_numpy(np.asarray(each)).to(getattr(torch, kind)) for each in arrays]
    tensors[1] = tensors[1].T
    return tensors if kind == "bfloat16" else [each.numpy() for each in tensors]


def bits(numbers: torch.Tensor) -> torch.Tensor:
    """As whole numbers: −0.0 is not 0.0."""
    return numbers.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[numbers.itemsize])


@pytest.mark.parametrize("kind", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("rows", [(3.0, 1.0, 0.0), (0.0, 2.0, 7.0), (5.0, 5.0, 5.0), (0.0, 0.0, 0.0)])
def test_numbers_that_all_have_alike_keep_their_bits_in_an_average(
    kind: str, rows: tuple[float, ...], small_pieces: None
) -> None:
    """What is in the arrays of a member without rows does not count. Bug: an infinity, as in a mask of a causal
    attention, became NaN."""

    def work(exchange: Any) -> list[torch.Tensor]:
        arrays = held(kind, exchange.rank)
        if not rows[exchange.rank] and any(rows):
            for array in arrays:
                array[...] = np.nan
        exchange.average(arrays, rows[exchange.rank])
        return [torch.as_tensor(each) for each in arrays]

    members = together(work, exchanges(Gang(3)))
    weights = rows if any(rows) else (1.0, 0.0, 0.0)
    for number, arrays in enumerate(zip(*[map(torch.as_tensor, held(kind, rank)) for rank in range(3)], strict=True)):
        counted = [array for array, weight in zip(arrays, weights, strict=True) if weight]
        still = torch.stack([array == counted[0] for array in counted]).all(0)
        finite = [torch.nan_to_num(array.double(), neginf=0.0) for array in arrays]
        average = np.average(torch.stack(finite), 0, weights)
        other = ~still & torch.stack([array.isfinite() for array in counted]).all(0)
        assert still.any() or not still.shape
        for member in members:
            assert torch.equal(bits(member[number]), bits(members[0][number]))
            assert torch.equal(bits(member[number][still]), bits(counted[0][still]))
            close = {"float64": 1e-14, "float32": 1e-5}.get(kind, 3e-2)
            np.testing.assert_allclose(member[number][other].double(), average[other], rtol=close, atol=close)


def test_arrays_that_share_memory_are_averaged_once(small_pieces: None) -> None:
    """Bug: the mean change was added to each of two parameters with the same storage."""

    def work(exchange: Any) -> torch.Tensor:
        array = torch.full((3000,), float(exchange.rank + 1), dtype=torch.float64)
        exchange.average([array, array.view(30, 100), array[:7]], 1.0)
        return array

    for array in together(work, exchanges(Gang(3))):
        assert torch.equal(array, torch.full_like(array, 2.0))


@pytest.mark.parametrize("size", [2, 5, 8])
def test_averages_of_any_sizes_and_dtypes(size: int, small_pieces: None) -> None:
    """Blocks of some members, and whole arrays, have no numbers."""

    def work(exchange: Any) -> list[torch.Tensor]:
        dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        arrays = [
            torch.full((count,), float(exchange.rank), dtype=dtype) for count in (0, 1, 7, 333) for dtype in dtypes
        ]
        exchange.average(arrays, 1.0)
        exchange.average(arrays[:4], 1.0)
        return arrays

    for arrays in together(work, exchanges(Gang(size))):
        for array in arrays:
            assert torch.equal(array, torch.full_like(array, (size - 1) / 2))


@pytest.mark.parametrize("operation", ["mean", "average"])
def test_a_members_own_error_is_not_that_of_another(operation: str, small_pieces: None) -> None:
    """Bug: a tensor that cannot be changed was told as a gang that broke, without a cause."""

    def work(exchange: Any) -> str:
        array = torch.ones(1).expand(3000)
        with pytest.raises(RuntimeError, match="refers to a single memory location") as raised:
            getattr(exchange, operation)([array], 1.0)
        return raised.type.__name__

    assert together(work, exchanges(Gang(2))) == ["RuntimeError"] * 2
