"""`jax.distributed.initialize()` without arguments, in a task of a program.

JAX asks each kind of cluster that it knows (Slurm, Open MPI, Kubernetes, …) for the process's rank; a program is one
more kind. It is asked first: a task on a Slurm node is a process of its program, not one of the Slurm job.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hopyard.agent.import_hooks import when_imported


def register_with_jax() -> None:
    """Let JAX find coordinator, number and rank of processes in the task's environment
    (`core.programs.placement.environment`). This costs nothing in a process that does not import JAX."""
    when_imported("jax._src.clusters", _register)


def _register(clusters: ModuleType) -> None:
    base: Any = getattr(clusters, "ClusterEnv", None)
    cluster_types: Any = getattr(base, "_cluster_types", None)
    if not isinstance(cluster_types, list):  # another version of JAX, whose users must pass the three arguments
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
