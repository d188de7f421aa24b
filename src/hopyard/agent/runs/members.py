"""What the members of a gang hand to rank 0 at a unit's end, and which Trainables can be members at all."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopyard.agent.runs.reported import Costs
from hopyard.data.partitions.loader import sizes
from hopyard.errors import SpecError
from hopyard.frameworks.tree import lower
from hopyard.logged import Collected, joined
from hopyard.ports.training import SupportsAveraging, SupportsExchange, SupportsGangCheck
from hopyard.spec import Array, Gang, PackedSums, Part
from hopyard.store.tree import decode, encode

if TYPE_CHECKING:
    from hopyard.exchange.exchange import GangExchange


class Share(msgspec.Struct, frozen=True):
    """A member's share of the answer to a unit."""

    parts: list[Part]
    state: bytes = b""
    """The member's own values (`ports.training.SupportsAveraging`), encoded as in a State."""
    costs: Costs = (0, 0)
    logged: list[Collected] = []
    """The values logged by the recipe, by partition."""


def alone(gang: Gang) -> GangExchange:
    """Return the exchange of a gang of one worker, for what else a gang decides."""
    from hopyard.exchange.board import Board
    from hopyard.exchange.exchange import GangExchange
    from hopyard.exchange.group import Group

    return GangExchange(gang, Group(0, 1, Board(lambda group, key, value: None), 0, ""))


def gathered(
    exchange: GangExchange, trainable: Any, share: Share
) -> tuple[list[Part], list[Collected], tuple[Costs, ...]]:
    """Hand this member's share to rank 0. Returns there the sums and logged values of all members, and the costs of the
    others, by rank; elsewhere its own.

    Raises:
        SpecError: the Trainable has exchanged nothing: each member has trained for itself.
    """
    averages = exchange.gang.exchange == "parameters"
    if not averages and not exchange.means:
        raise SpecError(
            f"{type(trainable).__module__}.{type(trainable).__qualname__} has set_exchange(exchange), but never called "
            "exchange.mean(gradients, rows): each member would train for itself; call it before each step"
        )
    state = bytes(encode(lower(trainable.member_state()))) if averages and exchange.rank else b""
    shares = exchange.gather(msgspec.msgpack.encode(msgspec.structs.replace(share, state=state)))
    if exchange.rank:
        return share.parts, share.logged, ()
    decoded = [msgspec.msgpack.decode(each, type=Share) for each in shares]
    if averages:
        trainable.set_members([decode(each.state) for each in decoded[1:]])
    sums = [
        Part(part.partition, added([each.parts[number].sums for each in decoded]), part.seconds)
        for number, part in enumerate(share.parts)
    ]
    logged = [joined(members) for members in zip(*[each.logged for each in decoded], strict=True)]
    return sums, logged, tuple([each.costs for each in decoded[1:]])


def added(members: list[PackedSums]) -> PackedSums:
    """Return the sums of all members, added in the order of their ranks. A member without rows may lack a metric."""
    totals: PackedSums = {}
    for sums in members:
        for name, (total, rows) in sums.items():
            before = totals.get(name)
            if before is None:
                totals[name] = total, rows
            elif isinstance(total, Array) and isinstance(before[0], Array):
                numbers = zip(before[0].numbers(), total.numbers(), strict=True)
                totals[name] = Array.of([one + other for one, other in numbers]), before[1] + rows
            else:
                totals[name] = before[0] + total, before[1] + rows  # type: ignore[operator]
    return totals


def short_rounds(gang: Gang | None, batch_size: int, rows: Sequence[int]) -> str:
    """Return what to say where rounds of local SGD are longer than partitions; "": nothing. `rows`: of partitions."""
    if gang is None or gang.size == 1 or gang.exchange == "gradients":
        return ""
    most = len(sizes(max(rows), gang.size * batch_size))
    if gang.every <= most:
        return ""
    return (
        f"hy.LocalSGD(every={gang.every}): a round ends with its partition, and the largest has {most} batches of "
        f"{gang.size} × {batch_size} rows, so parameters are averaged after {most} steps at most; fewer partitions= "
        "make longer rounds"
    )


def cannot_train(trainable: Any, gang: Gang | None) -> str:
    """Return why this Trainable cannot be a member of such a gang, in one sentence; "": it can."""
    if gang is None or gang.serial:
        return ""
    kind = f"{type(trainable).__module__}.{type(trainable).__qualname__}"
    if importlib.util.find_spec("torch") is None:
        return "a gang exchanges gradients and parameters by torch.distributed, and torch is not installed there"
    if not isinstance(trainable, SupportsExchange):
        return (
            f"{kind} cannot train in a gang: models of torch and Keras can, and so can a Trainable with "
            "set_exchange(exchange) that calls exchange.mean(gradients, rows) before its step; others train with "
            "parallel=hy.Hopper()"
        )
    if gang.exchange == "parameters" and not isinstance(trainable, SupportsAveraging):
        return (
            f"{kind} cannot average parameters, as models of torch and Keras can; it may train with "
            "parallel=hy.AllReduce()"
        )
    return trainable.gang_fault(gang) if isinstance(trainable, SupportsGangCheck) else ""
