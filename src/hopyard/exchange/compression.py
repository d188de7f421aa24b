"""Smaller numbers for arrays that travel: bfloat16, or integers of 8 bits with a scale for each array.

Rounding is idempotent: what was rounded once travels without loss, so a member that keeps what rounding took from its
arrays, and adds it the next time, knows exactly what the others got (error feedback).

Source: Seide et al., "1-Bit Stochastic Gradient Descent", Interspeech 2014, §3 (error feedback).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def _scale(tensor: torch.Tensor) -> float:
    """Return the step of 8-bit integers for an array: a power of two, so that products with it are exact."""
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    if not math.isfinite(largest):
        return math.nan
    mantissa, exponent = math.frexp(largest / 127)
    return math.ldexp(1.0, max(exponent - (mantissa == 0.5), -126)) if largest else 1.0


def _steps(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return (tensor / scale).round_().nan_to_num_(0.0).clamp_(-127, 127).to(torch.int8)


def rounded(tensor: torch.Tensor, compress: str) -> torch.Tensor:
    """Return the numbers of an array as the other members get them."""
    if compress == "bf16":
        return tensor.to(torch.bfloat16).to(tensor.dtype)
    scale = _scale(tensor)
    return _steps(tensor, scale).to(tensor.dtype) * scale


def pack(tensors: Sequence[torch.Tensor], compress: str) -> bytes:
    """Return arrays as bytes."""
    if compress == "bf16":
        flat = torch.cat([tensor.reshape(-1).to("cpu", torch.bfloat16) for tensor in tensors])
        return flat.view(torch.uint8).numpy().tobytes()
    scales = torch.tensor([_scale(tensor) for tensor in tensors], dtype=torch.float32)
    steps = [_steps(tensor.cpu(), float(scale)).reshape(-1) for tensor, scale in zip(tensors, scales, strict=True)]
    return scales.numpy().tobytes() + torch.cat(steps).numpy().tobytes()


def unpack(data: bytes, like: Sequence[torch.Tensor], compress: str) -> list[torch.Tensor]:
    """Return the arrays of `pack`, with the shapes and dtypes of `like`, on the host."""
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    counts = [tensor.numel() for tensor in like]
    if compress == "bf16":
        parts = torch.split(flat.view(torch.bfloat16), counts)
        return [part.to(tensor.dtype).view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]
    scales = flat[: 4 * len(counts)].view(torch.float32).tolist()
    parts = torch.split(flat[4 * len(counts) :].view(torch.int8), counts)
    return [
        part.to(tensor.dtype).view(tensor.shape) * scale
        for part, tensor, scale in zip(parts, like, scales, strict=True)
    ]
