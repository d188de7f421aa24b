"""One conformance suite over every framework's models in a gang: what a gang computes is what one worker computes with
the whole batch. Identities, in float64, up to rounding."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import pytest

from gang_threads import partitions, trained
from hopyard.spec import Gang, Outer

UNEVEN = [15, 9]
"""Rows of partitions, in batches of 8: the last ones have 7 rows and 1, which joins the batch before it."""


class Identities:
    """The identities of one framework's models."""

    @abstractmethod
    def model(self, optimizer: str = "SGD", **more: Any) -> Any:
        """A model in float64 with equal first weights, 5 numbers in, 3 classes out, and "SGD", "momentum" or "Adam".
        `weighted`: for rows with weights; `norm`: with a batch norm; `clip_norm`: of gradients."""

    @abstractmethod
    def parameters(self, model: Any) -> list[Any]:
        """All that trains, as arrays."""

    @abstractmethod
    def everything(self, model: Any) -> list[Any]:
        """All that the model's State has but for the optimizer, as arrays."""

    def difference(self, one: Any, other: Any) -> float:
        """The largest relative difference of two models' parameters."""
        pairs = zip(self.parameters(one), self.parameters(other), strict=True)
        return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)

    def equal(self, one: Any, other: Any) -> bool:
        """Whether two models are equal to the bit."""
        pairs = zip(self.everything(one), self.everything(other), strict=True)
        return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)

    @pytest.mark.parametrize(("size", "optimizer"), [(2, "SGD"), (3, "SGD"), (3, "momentum"), (3, "Adam")])
    def test_all_reduce_is_one_worker_with_the_whole_batch(self, size: int, optimizer: str) -> None:
        data = partitions(UNEVEN)
        ((alone, sums),) = trained(lambda: self.model(optimizer), data, 8)
        members = trained(lambda: self.model(optimizer), data, 8, Gang(size))
        for member, _ in members:
            assert self.difference(alone, member) < 1e-9
            assert self.equal(member, members[0][0])
        for number, each in enumerate(sums):
            for name, (total, rows) in each.items():
                shares = [of_member[number].get(name, (0.0, 0.0)) for _, of_member in members]
                assert sum(share[1] for share in shares) == rows
                assert sum(share[0] for share in shares) == pytest.approx(total, rel=1e-9)

    def test_weights_count_as_they_do_alone(self) -> None:
        data = partitions(UNEVEN, weights=True)
        data[0].weights[:9] = 0.0
        ((alone, _),) = trained(lambda: self.model(weighted=True), data, 8)
        for member, _ in trained(lambda: self.model(weighted=True), data, 8, Gang(3)):
            assert self.difference(alone, member) < 1e-6  # weights are float32

    def test_a_member_without_rows_takes_part(self) -> None:
        data = partitions([2, 3])
        ((alone, sums),) = trained(self.model, data, 8)
        members = trained(self.model, data, 8, Gang(3))
        for member, _ in members:
            assert self.difference(alone, member) < 1e-9
        shares = [of_member[0].get("loss", (0.0, 0.0)) for _, of_member in members]
        assert sum(rows for _, rows in shares) == 2
        assert sum(total for total, _ in shares) == pytest.approx(sums[0]["loss"][0], rel=1e-9)

    def test_gradients_are_clipped_by_the_norm_of_all(self) -> None:
        data = partitions(UNEVEN)
        ((alone, _),) = trained(lambda: self.model(clip_norm=0.05), data, 8)
        for member, _ in trained(lambda: self.model(clip_norm=0.05), data, 8, Gang(2)):
            assert self.difference(alone, member) < 1e-9

    @pytest.mark.parametrize("size", [1, 2])
    def test_pieces_of_a_batch_add_up_to_it(self, size: int) -> None:
        data = partitions(UNEVEN)
        ((alone, _),) = trained(self.model, data, 8)
        for member, _ in trained(self.model, data, 8, Gang(size, accumulate=3)):
            assert self.difference(alone, member) < 1e-9

    def test_an_average_after_each_step_of_plain_sgd_is_an_all_reduce(self) -> None:
        data = partitions(UNEVEN)
        ((alone, _),) = trained(self.model, data, 6)
        members = trained(self.model, data, 2, Gang(3, "parameters", every=1))
        for member, _ in members:
            assert self.difference(alone, member) < 1e-9
            assert self.equal(member, members[0][0])

    def test_first_steps_are_averaged_one_by_one_and_without_an_outer_step(self) -> None:
        data = partitions(UNEVEN)
        first = Gang(2, "parameters", every=9, warmup=5, outer=Outer(0.7, 0.9))
        after = Gang(2, "parameters", every=9, warmup=4)  # the partitions have three steps and two
        single, warm, four = [
            trained(self.model, data, 3, gang)[0][0] for gang in (Gang(2, "parameters", every=1), first, after)
        ]
        assert self.equal(single, warm)
        assert self.equal(single, four), "the last round has one step"
        assert not self.equal(single, trained(self.model, data, 3, Gang(2, "parameters", every=9, warmup=3))[0][0])

    @pytest.mark.parametrize("inner", ["keep", "average", "reset"])
    def test_an_outer_step_of_one_is_the_average(self, inner: Any) -> None:
        data = partitions(UNEVEN)
        gang = Gang(2, "parameters", every=2, inner=inner)
        plain = trained(lambda: self.model("Adam"), data, 3, gang)
        outer = trained(
            lambda: self.model("Adam"),
            data,
            3,
            Gang(2, "parameters", every=2, inner=inner, outer=Outer(1.0, 0.0)),
        )
        assert self.difference(plain[0][0], outer[0][0]) < 1e-12
        assert self.equal(outer[0][0], outer[1][0])

    @pytest.mark.parametrize(("compress", "most"), [("bf16", 5e-3), ("int8", 1e-2)])
    def test_compressed_parameters_differ_little_and_are_the_same_everywhere(self, compress: Any, most: float) -> None:
        data = partitions(UNEVEN)
        plain = trained(self.model, data, 3, Gang(2, "parameters", every=2))
        small = trained(self.model, data, 3, Gang(2, "parameters", every=2, compress=compress))
        assert 0 < self.difference(plain[0][0], small[0][0]) < most
        assert self.equal(small[0][0], small[1][0])
        assert all(float(abs(each).max()) > 0 for each in small[1][0].member_state()["error"])

    def test_one_worker_trains_as_it_does_alone(self) -> None:
        data = partitions(UNEVEN)
        ((alone, _),) = trained(lambda: self.model("Adam"), data, 8)
        ((member, _),) = trained(lambda: self.model("Adam"), data, 8, Gang(1, "parameters", every=3))
        assert self.equal(alone, member)

    @pytest.mark.parametrize("gang", [Gang(2), Gang(2, "parameters", every=2)], ids=["gradients", "parameters"])
    def test_statistics_of_batch_norm_are_averaged(self, gang: Gang) -> None:
        data = partitions([16, 14])
        members = trained(lambda: self.model(norm=True), data, 8 if gang.exchange == "gradients" else 4, gang)
        assert self.equal(members[0][0], members[1][0])
        ((alone, _),) = trained(lambda: self.model(norm=True), data, 8)
        assert not self.equal(alone, members[0][0])
