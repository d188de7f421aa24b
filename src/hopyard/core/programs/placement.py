"""Roles and tasks of a program, their addresses, and the environment variables that tell each process about them.

Three sets of variables say the same thing: TensorFlow's TF_CONFIG (and the JOB_NAME, TASK_INDEX, PS_HOSTS,
WORKER_HOSTS of its old tutorial), torchrun's RANK and friends, JAX's coordinator. All are always set; a program reads
the set that it knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hopyard.checks import scalar, sequence, whole
from hopyard.errors import SpecError
from hopyard.text import shown

CHIEFS = ("chief", "master")
"""Roles with one task at most, which leads the program."""
SERVING = ("ps", "evaluator")
"""Roles that have no rank: they take no part in collectives."""
HOST_GPUS = "HOPYARD_HOST_GPUS"
"""In a task's environment: the GPUs of all ranks of its host, in their order, where each has one and there are more."""
MOST = 10_000
"""Most tasks of one role; a greater number is taken for a typing error."""
_ORDER = {"chief": 0, "master": 0, "worker": 1, "ps": 3, "evaluator": 4}
"""Role → position among the tasks; others come between workers and parameter servers, by name."""


@dataclass(frozen=True, slots=True)
class Role:
    """How many tasks a role has.

    Args:
        count: how many.
        min: with how many the program may go on, where it can (elastic torch programs, as torchrun's
            `--nnodes min:max`); None: all of them.
        gpus: GPUs of each task. Where any role asks for GPUs, tasks of the others see none. A slot must have as many:
            with `hy.Local` each has one, on Spark as many as `spark.task.resource.gpu.amount` says.

    Raises:
        SpecError: a value is not allowed.
    """

    count: int
    min: int | None = None
    gpus: int = 0

    def __post_init__(self) -> None:
        for name, minimum in (("count", 1), ("gpus", 0)):
            object.__setattr__(self, name, whole(f"Role({name}=)", getattr(self, name), minimum))
        if self.count > MOST:
            raise SpecError(f"Role(count={self.count!r}): at most {MOST:,} are allowed")
        if self.min is not None:
            object.__setattr__(self, "min", whole("Role(min=)", self.min, 1, self.count))


def roles_of(roles: Any) -> dict[str, Role]:
    """Return name → Role, in the order of tasks, from {"worker": 2}, {"worker": (2, 4)} or
    {"worker": hy.Role(2, gpus=1)}.

    Raises:
        SpecError: a role is wrong; names the role, the value, and what is allowed.
    """
    if not isinstance(roles, Mapping) or not roles:
        raise SpecError(f'roles must be a dict such as {{"chief": 1, "worker": 2, "ps": 1}}, got {shown(roles)}')
    parsed: dict[str, Role] = {}
    for name, value in [(scalar(name), sequence(value)) for name, value in roles.items()]:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,31}", name):
            raise SpecError(f"roles: {name!r} is no name of a role; lower-case letters, digits and _ are allowed")
        if isinstance(value, Role):
            parsed[name] = value
        elif isinstance(value, list) and len(value) == 2:
            parsed[name] = _role(name, roles[name], value[1], value[0])
        elif isinstance(value, int) and not isinstance(value, bool):
            if value != 0:
                parsed[name] = _role(name, value, value)
        else:
            raise SpecError(
                f"roles[{name!r}] must be a number, a range (min, count) or hy.Role(…), got {shown(roles[name])}"
            )
    chiefs = [name for name in CHIEFS if name in parsed]
    if not parsed:
        raise SpecError(f"roles must have at least one process, got {shown(dict(roles))}")
    if len(chiefs) == 2:
        raise SpecError('roles: "chief" and "master" are two names of one role; give one of them')
    for name in chiefs:
        if parsed[name].count != 1:
            raise SpecError(f"roles[{name!r}]: there is one {name}, not {parsed[name].count}")
    return dict(sorted(parsed.items(), key=lambda item: (_ORDER.get(item[0], 2), item[0])))


def _role(name: str, value: Any, count: Any, least: Any = None) -> Role:
    try:
        return Role(count, least)
    except SpecError as error:
        raise SpecError(f"roles[{name!r}] = {value!r}: {error}") from None


class Place(msgspec.Struct, frozen=True):
    """What an agent has reserved for the task it will host."""

    slot: int
    host: str
    """Name of the agent's host."""
    pid: int
    address: str
    """Address by which its peers reach it."""
    ports: tuple[int, int, int]
    """Ports of its task (reserved), of torch's store (the agent listens on it) and of JAX's coordinator (reserved)."""
    gpus: tuple[str, ...] = ()


class Task(msgspec.Struct, frozen=True):
    """One process of a program, in one attempt."""

    role: str
    index: int
    slot: int
    rank: int
    """Rank among the tasks that are not parameter servers or evaluators; −1: it has none."""
    local_rank: int
    local_world_size: int
    group_rank: int
    """Number of its host; hosts of tasks that have a rank come first, in the order of ranks."""
    gpus: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """ "worker 1" """
        return f"{self.role} {self.index}"


def assign(roles: Mapping[str, Role], places: Sequence[Place]) -> tuple[Task, ...]:
    """Return the tasks with their slots. Ranks of one host follow each other; roles that ask for GPUs get slots that
    have them; parameter servers get the last slots.

    Args:
        roles: in the order of tasks. Elastic roles get as many tasks as there are places for.
        places: at least as many as the roles need at least.

    Raises:
        SpecError: no slots have the GPUs that are asked for, or there are too few.
    """
    counts = shares(roles, len(places))
    hosts: dict[str, int] = {}
    for place in sorted(places, key=lambda place: place.slot):
        hosts.setdefault(place.address + place.host, len(hosts))
    host_number = {place.slot: hosts[place.address + place.host] for place in places}
    free = sorted(places, key=lambda place: (host_number[place.slot], place.slot))
    sharing = any(role.gpus for role in roles.values())
    place_of: dict[tuple[str, int], Place] = {}
    task_keys = [(name, index) for name, role in roles.items() for index in range(counts[name])]
    for name, index in sorted(task_keys, key=lambda item: _priority(roles, item)):
        gpus = roles[name].gpus
        candidates = [place for place in free if len(place.gpus) >= gpus]
        if not candidates:
            have = ", ".join(f"slot {place.slot} on {place.host}: {len(place.gpus)}" for place in free) or "none left"
            raise SpecError(f"roles[{name!r}] asks for {gpus} GPU(s) each; slots that are left have {have}")
        if name in SERVING:
            candidates.sort(key=lambda place: -place.slot)
        place = candidates[0] if gpus or not sharing else min(candidates, key=lambda each: len(each.gpus))
        free.remove(place)
        place_of[name, index] = place
    ranked = [key for key in task_keys if key[0] not in SERVING]
    unranked = [key for key in task_keys if key[0] in SERVING]
    groups: dict[int, int] = {}
    for key in [*ranked, *unranked]:
        groups.setdefault(host_number[place_of[key].slot], len(groups))
    sizes: dict[int, int] = {}
    ranks: dict[tuple[str, int], tuple[int, int]] = {}
    for rank, key in enumerate(ranked):
        host = groups[host_number[place_of[key].slot]]
        ranks[key] = rank, sizes.get(host, 0)
        sizes[host] = sizes.get(host, 0) + 1
    tasks = []
    for key in task_keys:
        place = place_of[key]
        host = groups[host_number[place.slot]]
        rank, local_rank = ranks.get(key, (-1, -1))
        visible = place.gpus[: roles[key[0]].gpus] if sharing else place.gpus
        tasks.append(Task(*key, place.slot, rank, local_rank, sizes.get(host, 0) if rank >= 0 else 0, host, visible))
    return tuple(tasks)


def _priority(roles: Mapping[str, Role], task: tuple[str, int]) -> tuple[int, int, int]:
    """Sort key: tasks that ask for GPUs choose first, then parameter servers, whose slots are the last ones."""
    name, index = task
    serving = SERVING.index(name) if name in SERVING else len(SERVING)
    return -roles[name].gpus, serving, -index if name in SERVING else 0


def shares(roles: Mapping[str, Role], places: int) -> dict[str, int]:
    """Return role → how many tasks it has on so many places: elastic roles are cut, the largest first."""
    counts = {name: role.count for name, role in roles.items()}
    while sum(counts.values()) > places:
        shrinkable = [name for name, role in roles.items() if counts[name] > (role.min or role.count)]
        if not shrinkable:
            raise SpecError(f"the program has at least {sum(counts.values())} processes, there are {places} slots")
        counts[max(shrinkable, key=lambda name: counts[name])] -= 1
    return counts


def peers(tasks: Sequence[Task], places: Mapping[int, Place]) -> dict[str, list[str]]:
    """Return role → "address:port" of each of its tasks: what TensorFlow calls the cluster."""
    addresses: dict[str, list[str]] = {}
    for task in tasks:
        place = places[task.slot]
        addresses.setdefault(task.role, []).append(f"{place.address}:{place.ports[0]}")
    return addresses


def environment(
    task: Task, tasks: Sequence[Task], places: Mapping[int, Place], restarts: int, max_restarts: int, run_id: str
) -> dict[str, str]:
    """Return the environment variables for a task's process, whatever framework it uses.

    Args:
        task: the task of the process.
        tasks: all tasks of the program.
        places: slot → what its agent reserved.
        restarts: those after failures; as in torchrun, one that only makes use of more slots does not count.
        max_restarts: how many of them are allowed.
        run_id: id of the program, equal for all its tasks and restarts.

    Sources: TensorFlow, `tf.distribute.cluster_resolver.TFConfigClusterResolver` (an evaluator is in no cluster);
    torchrun, "Environment Variables"; JAX, `jax.distributed.initialize`.
    """
    cluster = peers(tasks, places)
    tf_cluster = {role: hosts for role, hosts in cluster.items() if role != "evaluator"}
    config = {"cluster": tf_cluster, "task": {"type": task.role, "index": task.index}}
    ranked = [peer for peer in tasks if peer.rank >= 0]
    first = places[ranked[0].slot] if ranked else places[task.slot]
    variables = {
        "TF_CONFIG": msgspec.json.encode(config).decode(),
        "TF_GRPC_REUSE_PORT": "1",
        "JOB_NAME": task.role,
        "TASK_INDEX": str(task.index),
        "MASTER_ADDR": first.address,
        "MASTER_PORT": str(first.ports[1]),
        "WORLD_SIZE": str(len(ranked)),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        "TORCHELASTIC_RUN_ID": run_id,
        "GROUP_RANK": str(task.group_rank),
        "GROUP_WORLD_SIZE": str(len({peer.group_rank for peer in ranked})),
        "ROLE_NAME": task.role,
        "ROLE_RANK": str(task.index),
        "ROLE_WORLD_SIZE": str(len(cluster[task.role])),
        "JAX_COORDINATOR_ADDRESS": f"{first.address}:{first.ports[2]}",
        "JAX_COORDINATOR_PORT": str(first.ports[2]),
        "JAX_NUM_PROCESSES": str(len(ranked)),
    }
    if any(peer.gpus for peer in tasks):  # else it stays as the agent has it
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(task.gpus)
    host_gpus = [peer.gpus for peer in ranked if peer.group_rank == task.group_rank]
    if task.rank >= 0 and len(host_gpus) > 1 and all(len(gpus) == 1 for gpus in host_gpus):
        variables[HOST_GPUS] = ",".join(gpus[0] for gpus in host_gpus)
    variables |= {f"{role.upper()}_HOSTS": ",".join(hosts) for role, hosts in cluster.items()}
    if task.rank >= 0:
        variables |= {
            "RANK": str(task.rank),
            "LOCAL_RANK": str(task.local_rank),
            "LOCAL_WORLD_SIZE": str(task.local_world_size),
            "JAX_PROCESS_ID": str(task.rank),
        }
    return variables
