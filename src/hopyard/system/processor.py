"""The model of this machine's processor."""

from __future__ import annotations

from pathlib import Path


def processor() -> str:
    """Return the model of the processor, by which TensorFlow and XLA choose their kernels; "" where it is unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
