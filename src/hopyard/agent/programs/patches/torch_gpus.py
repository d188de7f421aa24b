"""Sets which GPUs torch sees in a task of a program.

A task has a GPU of its own, and TensorFlow and JAX, which take the memory of all that they see, see no other. A script
for torchrun picks its own by number, `torch.cuda.set_device(LOCAL_RANK)`: torch is shown the GPUs of all tasks of this
host, in the order of their local ranks.
"""

from __future__ import annotations

import os

from hopyard.agent.import_hooks import when_imported
from hopyard.core.programs.placement import HOST_GPUS


def show_host_gpus() -> None:
    """Show torch the host's GPUs from its import on. It reads CUDA_VISIBLE_DEVICES when it first uses a GPU."""
    if host_gpus := os.environ.get(HOST_GPUS):
        when_imported("torch", lambda _: os.environ.update(CUDA_VISIBLE_DEVICES=host_gpus))
