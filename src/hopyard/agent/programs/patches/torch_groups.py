"""Lets torch's process groups outlive the models that use them, as freeing one with its model may never return.

A DistributedDataParallel model that lives on after `destroy_process_group()`, as a local variable of `main` does, is
the last owner of its group. Freed with the model, under the interpreter's lock, the group waits for its thread of gloo,
which may at that moment need the lock to free its last operation (https://github.com/pytorch/pytorch/issues/56297). Of
programs of two workers on two busy cores, with torch 2.13, one in about 40 never ended; under torchrun they hang, too.
Python gives up the lock where it frees a group itself.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from hopyard.agent.import_hooks import when_imported

_kept: list[Any] = []
"""Groups that the program has destroyed last: until it makes others, or its process ends."""


def keep() -> None:
    """Keep the groups of this process, also where torch is imported later."""
    when_imported("torch.distributed.distributed_c10d", _keep)


def _keep(module: ModuleType) -> None:
    names = ("_world", "init_process_group", "destroy_process_group")
    world, init, destroy = (getattr(module, name, None) for name in names)
    if world is None or init is None or destroy is None:  # another version may have other names
        return

    @functools.wraps(init)
    def init_process_group(*args: Any, **named: Any) -> None:
        _kept.clear()
        init(*args, **named)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        groups = list(getattr(world, "pg_map", ()))
        destroy(group)
        if not getattr(world, "pg_map", True):  # a part of them that comes and goes is freed as ever
            _kept.extend(groups)

    for function in (init_process_group, destroy_process_group):
        setattr(module, function.__name__, function)
