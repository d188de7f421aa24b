"""GPUs of this host, by nvidia-smi.

The engine assigns a program's own GPUs to it: `ctx.devices`, CUDA_VISIBLE_DEVICES. This is for those who choose.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
import time
from typing import Literal, overload

from hopyard.errors import ResourceError

logger = logging.getLogger(__name__)

MAX_RETRIES = 3
"""Attempts, 30 seconds, then a minute and a half apart, until enough GPUs are free."""
AS_STRING: Literal["string"] = "string"
AS_LIST: Literal["list"] = "list"
SECONDS = 30


def is_gpu_available() -> bool:
    """Whether nvidia-smi is here and lists a GPU."""
    try:
        return bool(_lines("--list-gpus"))
    except (OSError, subprocess.SubprocessError):
        return False


@overload
def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: Literal["string"] = "string") -> str: ...
@overload
def get_gpus(num_gpu: int = 1, worker_index: int = -1, *, format: Literal["list"]) -> list[str]: ...
def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: Literal["string", "list"] = "string") -> str | list[str]:
    """Return GPUs on which no process computes.

    Args:
        num_gpu: how many.
        worker_index: the worker's number on this host: workers with other numbers get other GPUs. -1: any.
        format: AS_STRING ("0,1", as CUDA_VISIBLE_DEVICES has it) or AS_LIST.

    Raises:
        ResourceError: there are not that many, or they stay in use.
    """
    for attempt in range(MAX_RETRIES):
        try:
            free = _free()
        except (OSError, subprocess.SubprocessError) as error:
            raise ResourceError(f"{num_gpu} GPU(s) are wanted, but nvidia-smi cannot be asked: {error}") from error
        if len(free) >= num_gpu:
            start = secrets.randbelow(len(free)) if worker_index < 0 else worker_index * num_gpu
            gpus = [free[(start + n) % len(free)] for n in range(num_gpu)]
            return gpus if format == AS_LIST else ",".join(gpus)
        if attempt + 1 < MAX_RETRIES:
            logger.warning("%d GPU(s) are wanted, %d are free: looking again", num_gpu, len(free))
            time.sleep(SECONDS * 3**attempt)
    raise ResourceError(f"{num_gpu} GPU(s) are wanted, {len(free)} are free: others compute on them (nvidia-smi)")


def _free() -> list[str]:
    """Return the numbers of the GPUs without a process."""
    numbers = dict(line.split(", ") for line in _lines("--query-gpu=uuid,index", "--format=csv,noheader"))
    used = set(_lines("--query-compute-apps=gpu_uuid", "--format=csv,noheader"))
    return [number for uuid, number in numbers.items() if uuid not in used]


def _lines(*arguments: str) -> list[str]:
    result = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=True)
    return [line.strip() for line in result.stdout.splitlines() if line.strip()]
