"""Arrays that travel in fewer bytes: what is rounded once is not rounded again."""

import pytest
import torch

from hopyard.exchange.compression import pack, rounded, unpack

ARRAYS = [torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor(0.3), torch.tensor([1.0, -128.0])]
ARRAYS += [torch.zeros(4), torch.tensor([3e-30, -1e-30]), torch.full((2,), 127.0 * 2**-9), torch.tensor([1e30])]
ARRAYS += [torch.tensor([126.9, 63.2, 1.0, 33.0])]  # the first one is rounded up to 127 steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("compress", "error"), [("bf16", 2**-8), ("int8", 1 / 127)])
def test_rounded_values_arrive_unchanged(compress, error, dtype):
    arrays = [array.to(dtype) for array in ARRAYS]
    sent = [rounded(array, compress) for array in arrays]
    for array, value in zip(arrays, sent, strict=True):
        assert float((array - value).abs().max()) <= error * float(array.abs().max())
        assert torch.equal(rounded(value, compress), value)
    arrived = unpack(pack(sent, compress), arrays, compress)
    for value, other in zip(sent, arrived, strict=True):
        assert torch.equal(value, other) and value.dtype == other.dtype


def test_compression_takes_a_half_or_a_quarter_of_the_bytes():
    arrays = [torch.randn(1000)]
    assert len(pack(arrays, "bf16")) == 2000
    assert len(pack(arrays, "int8")) == 1004


@pytest.mark.parametrize("compress", ["bf16", "int8"])
def test_values_that_are_not_finite_stay_so(compress):
    (value,) = unpack(pack([torch.tensor([1.0, float("nan")])], compress), [torch.zeros(2)], compress)
    assert not torch.isfinite(value).all()
