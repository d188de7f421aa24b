"""`jax.distributed.initialize()` without arguments, in a task of a program.

JAX asks the kinds of cluster that it knows (Slurm, Open MPI, Kubernetes, …) who it is; a program is one more. It is
asked first: a task on a Slurm node is a process of its program, not one of the Slurm job.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hopyard.agent.programs.patches.import_hooks import when_imported


def known_to_jax() -> None:
    """From now on, JAX finds coordinator, number and rank of processes in the task's environment
    (`core.programs.placement.environment`). Costs nothing in a process that does not import JAX."""
    when_imported("jax._src.clusters", _register)


def _register(clusters: ModuleType) -> None:
    base: Any = getattr(clusters, "ClusterEnv", None)
    known: Any = getattr(base, "_cluster_types", None)
    if not isinstance(known, list):  # a version that is built in another way: its users say the three arguments
        return

    class HopyardCluster(base):  # type: ignore[misc]
        """Making the class registers it."""

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

    known.remove(HopyardCluster)
    known.insert(0, HopyardCluster)
