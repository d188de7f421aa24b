"""What the system tells of the processor."""

from __future__ import annotations

from pathlib import Path


def processor() -> str:
    """The model of the processor, on which TensorFlow and XLA choose their kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
