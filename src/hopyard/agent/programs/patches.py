"""Corrections for frameworks in a task's process, each applied when the framework itself is imported.

Nothing is imported here, so a patch costs nothing in a process that does not use its framework. Versions of a framework
that have other names inside are left as they are.

*Waits of TensorFlow's sessions* are long for no reason. A worker that starts before the chief has its model ready looks
again after 30 seconds, by which time the others have done its steps too; a synchronous chief waits for 120 seconds in
closing, as one of its threads waits on a queue that nobody serves any more. Measured with TensorFlow 2.21, two workers,
300 synchronous steps: 259 seconds, of which 140 were these two; 36 with the waits below. Values other than TensorFlow's
own are the user's, and stay.

*`jax.distributed.initialize()` without arguments.* JAX asks each kind of cluster that it knows (Slurm, Open MPI,
Kubernetes, …) for the process's rank; a program is one more kind. It is asked first: a task on a Slurm node is a
process of its program, not one of the Slurm job.

*GPUs that torch sees.* A task has a GPU of its own, and TensorFlow and JAX, which take the memory of all that they see,
see no other. A script for torchrun picks its own by number, `torch.cuda.set_device(LOCAL_RANK)`: torch is shown the
GPUs of all tasks of this host, in the order of their local ranks.

*Process groups of torch* outlive the models that use them. A DistributedDataParallel model that lives on after
`destroy_process_group()`, as a local variable of `main` does, is the last owner of its group. Freed with the model,
under the interpreter's lock, the group waits for its thread of gloo, which may at that moment need the lock to free its
last operation (https://github.com/pytorch/pytorch/issues/56297). Of programs of two workers on two busy cores, with
torch 2.13, one in about 40 never ended; under torchrun they hang, too. Python gives up the lock where it frees a group
itself.
"""

from __future__ import annotations

import functools
import inspect
import os
from types import ModuleType
from typing import Any

from hopyard.agent.import_hooks import when_imported
from hopyard.core.programs.placement import HOST_GPUS

WAITS: dict[str, tuple[str, str, float, float]] = {
    "tensorflow.python.training.session_manager": ("SessionManager", "recovery_wait_secs", 30, 1),
    "tensorflow.python.training.monitored_session": ("_CoordinatedSession", "stop_grace_period_secs", 120, 5),
    "tensorflow.python.training.supervisor": ("Supervisor", "stop_grace_secs", 120, 5),
}
"""Module → class, argument of its constructor, TensorFlow's value, ours; in seconds."""
_kept_groups: list[Any] = []
"""Groups of torch that the program has destroyed last: until it makes others, or its process ends."""


def patch_frameworks() -> None:
    """Apply all patches to frameworks that this process has imported, or will import."""
    for module in WAITS:
        when_imported(module, _shorten_wait)
    when_imported("jax._src.clusters", _register_cluster)
    if host_gpus := os.environ.get(HOST_GPUS):  # torch reads CUDA_VISIBLE_DEVICES when it first uses a GPU
        when_imported("torch", lambda _: os.environ.update(CUDA_VISIBLE_DEVICES=host_gpus))
    when_imported("torch.distributed.distributed_c10d", _keep_groups)


def _shorten_wait(module: ModuleType) -> None:
    name, argument, stock, wait = WAITS[module.__name__]
    target: Any = getattr(module, name, None)
    if target is None:
        return
    original = target.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def shorter(*args: Any, **named: Any) -> None:
        bound = signature.bind(*args, **named)
        bound.apply_defaults()
        if bound.arguments.get(argument) == stock:
            bound.arguments[argument] = wait
        original(*bound.args, **bound.kwargs)

    target.__init__ = shorter


def _register_cluster(clusters: ModuleType) -> None:
    """Let JAX find coordinator, number and rank of processes in the task's environment
    (`core.programs.placement.environment`)."""
    base: Any = getattr(clusters, "ClusterEnv", None)
    cluster_types: Any = getattr(base, "_cluster_types", None)
    if not isinstance(cluster_types, list):  # the users of this version must pass the three arguments
        return

    class HopyardCluster(base):  # type: ignore[misc]
        """Defining the class registers it."""

        name = "hopyard"

        @classmethod
        def is_env_present(cls) -> bool:
            return "JAX_PROCESS_ID" in os.environ and "JAX_NUM_PROCESSES" in os.environ

        @classmethod
        def get_coordinator_address(cls, *_: Any, **__: Any) -> str:
            return os.environ["JAX_COORDINATOR_ADDRESS"]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["JAX_NUM_PROCESSES"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["JAX_PROCESS_ID"])

    cluster_types.remove(HopyardCluster)
    cluster_types.insert(0, HopyardCluster)


def _keep_groups(module: ModuleType) -> None:
    names = ("_world", "init_process_group", "destroy_process_group")
    world, init, destroy = (getattr(module, name, None) for name in names)
    if world is None or init is None or destroy is None:
        return

    @functools.wraps(init)
    def init_process_group(*args: Any, **named: Any) -> None:
        _kept_groups.clear()
        init(*args, **named)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        groups = list(getattr(world, "pg_map", ()))
        destroy(group)
        if not getattr(world, "pg_map", True):  # a part of them that comes and goes is freed as ever
            _kept_groups.extend(groups)

    for function in (init_process_group, destroy_process_group):
        setattr(module, function.__name__, function)
