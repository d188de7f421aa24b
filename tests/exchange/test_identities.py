"""What a gang computes is what one worker computes with the whole batch: identities, in float64, up to rounding."""

from __future__ import annotations

import pytest
import torch

import hopyard as hy
from gang_threads import difference, equal, partitions, trained
from hopyard.spec import Gang, Outer

UNEVEN = [23, 17]
"""Rows of partitions, in batches of 8: the last ones have 7 rows and 1, which joins the batch before it."""


def net(norm: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    middle = [torch.nn.BatchNorm1d(6)] if norm else []
    return torch.nn.Sequential(torch.nn.Linear(5, 6), *middle, torch.nn.Tanh(), torch.nn.Linear(6, 3)).double()


def model(optimizer: str = "SGD", loss: str = "mean", norm: bool = False, **more) -> hy.torch.Model:
    module = net(norm)
    settings = {"SGD": {"lr": 0.3}, "momentum": {"lr": 0.1, "momentum": 0.9}, "Adam": {"lr": 0.01}}[optimizer]
    kind = torch.optim.Adam if optimizer == "Adam" else torch.optim.SGD
    criterion = torch.nn.CrossEntropyLoss(reduction=loss)
    metrics = {"a": hy.torch.accuracy}
    return hy.torch.Model(module, kind(module.parameters(), **settings), criterion, metrics, **more)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "momentum", "Adam"])
def test_all_reduce_is_one_worker_with_the_whole_batch(size, optimizer):
    data = partitions(UNEVEN)
    ((alone, sums),) = trained(lambda: model(optimizer), data, 8)
    members = trained(lambda: model(optimizer), data, 8, Gang(size))
    for member, _ in members:
        assert difference(alone, member) < 1e-9
        assert equal(member, members[0][0])
    for number, each in enumerate(sums):
        for name, (total, rows) in each.items():
            shares = [of_member[number].get(name, (0.0, 0.0)) for _, of_member in members]
            assert sum(share[1] for share in shares) == rows
            assert sum(share[0] for share in shares) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("size", [2, 3])
def test_weights_count_as_they_do_alone(size):
    data = partitions(UNEVEN, weights=True)
    data[0].weights[:9] = 0.0
    ((alone, _),) = trained(lambda: model(loss="none"), data, 8)
    for member, _ in trained(lambda: model(loss="none"), data, 8, Gang(size)):
        assert difference(alone, member) < 1e-6  # weights are float32
        assert difference(alone, trained(lambda: model(loss="none"), data[:1], 8)[0][0]) > 1e-3


def test_a_member_without_rows_takes_part():
    data = partitions([2, 3])
    ((alone, _),) = trained(model, data, 8)
    for member, _ in trained(model, data, 8, Gang(3)):
        assert difference(alone, member) < 1e-9


def test_gradients_are_clipped_by_the_norm_of_all():
    data = partitions(UNEVEN)
    ((alone, _),) = trained(lambda: model(clip_norm=0.05), data, 8)
    for member, _ in trained(lambda: model(clip_norm=0.05), data, 8, Gang(2)):
        assert difference(alone, member) < 1e-9


@pytest.mark.parametrize("size", [1, 2])
def test_pieces_of_a_batch_add_up_to_it(size):
    data = partitions(UNEVEN)
    ((alone, _),) = trained(model, data, 8)
    for member, _ in trained(model, data, 8, Gang(size, accumulate=3)):
        assert difference(alone, member) < 1e-9


def test_half_precision_loses_what_it_must():
    data = partitions(UNEVEN)
    single = trained(lambda: as_float(model()), as_floats(data), 8, Gang(2))[0][0]
    half = trained(lambda: as_float(model()), as_floats(data), 8, Gang(2, compress="fp16"))
    assert 0 < difference(single, half[0][0]) < 1e-2
    assert equal(half[0][0], half[1][0])


def as_float(made):
    made.module.float()
    return made


def as_floats(data):
    for columns in data:
        columns.inputs = columns.inputs.astype("float32")
    return data


@pytest.mark.parametrize("size", [2, 3])
def test_an_average_after_each_step_of_plain_sgd_is_an_all_reduce(size):
    data = partitions(UNEVEN)
    ((alone, _),) = trained(model, data, 3 * size)
    members = trained(model, data, 3, Gang(size, "parameters", every=1))
    for member, _ in members:
        assert difference(alone, member) < 1e-9
        assert equal(member, members[0][0])


def test_an_average_after_more_steps_is_something_else():
    data = partitions(UNEVEN)
    ((alone, _),) = trained(model, data, 6)
    assert difference(alone, trained(model, data, 3, Gang(2, "parameters", every=3))[0][0]) > 1e-4


@pytest.mark.parametrize("inner", ["keep", "average", "reset"])
def test_an_outer_step_of_one_is_the_average(inner):
    data = partitions(UNEVEN)
    plain = trained(lambda: model("Adam"), data, 3, Gang(2, "parameters", every=2, inner=inner))
    outer = trained(lambda: model("Adam"), data, 3, Gang(2, "parameters", every=2, inner=inner, outer=Outer(1.0, 0.0)))
    assert difference(plain[0][0], outer[0][0]) < 1e-12
    assert equal(outer[0][0], outer[1][0])


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
            from hopyard.data.partitions.loader import PartitionLoader

            member.train_partition(PartitionLoader(data[number], 6, 7 + number, 3, (rank, 2)))
            changes.append([p.detach() - value for p, value in zip(member.module.parameters(), start, strict=True)])
        for n, (one, other) in enumerate(zip(*changes, strict=True)):
            mean = (one + other) / 2
            velocity[n] = 0.9 * velocity[n] + mean
            start[n] = start[n] + 0.7 * (mean + 0.9 * velocity[n])
    made = trained(model, data, 3, Gang(2, "parameters", every=9, outer=Outer(0.7, 0.9)))[0][0]
    for p, value in zip(made.module.parameters(), start, strict=True):
        assert torch.allclose(p.detach(), value, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("compress", "most"), [("bf16", 5e-3), ("int8", 1e-2)])
def test_compressed_parameters_differ_little_and_are_the_same_everywhere(compress, most):
    data = partitions(UNEVEN)
    plain = trained(model, data, 3, Gang(2, "parameters", every=2))
    small = trained(model, data, 3, Gang(2, "parameters", every=2, compress=compress))
    assert 0 < difference(plain[0][0], small[0][0]) < most
    assert equal(small[0][0], small[1][0])
    assert all(float(each.abs().max()) > 0 for each in small[1][0].member_state()["error"])


@pytest.mark.parametrize("every", [1, 3])
def test_one_worker_trains_as_it_does_alone(every):
    data = partitions(UNEVEN)
    ((alone, _),) = trained(lambda: model("Adam"), data, 8)
    ((member, _),) = trained(lambda: model("Adam"), data, 8, Gang(1, "parameters", every=every))
    assert equal(alone, member)


@pytest.mark.parametrize("gang", [Gang(2), Gang(2, "parameters", every=2)], ids=["gradients", "parameters"])
def test_statistics_of_batch_norm_are_averaged_and_counts_are_those_of_rank_0(gang):
    data = partitions([16, 14])
    members = trained(lambda: model(norm=True), data, 8 if gang.exchange == "gradients" else 4, gang)
    assert equal(members[0][0], members[1][0])
    assert int(members[0][0].module[1].num_batches_tracked) == 4


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
