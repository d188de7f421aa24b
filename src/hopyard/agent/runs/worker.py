"""Runs one unit: takes the State, goes over the partitions, lays the new State down, answers.

It is the same in a process of its own and inline. It knows no sockets, no other workers and not what comes next.
"""

from __future__ import annotations

import socket
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from hopyard import meter
from hopyard.agent.runs.check import TrialCheck, nondeterminism
from hopyard.agent.runs.faults import HostFault, Missing, blame, reading
from hopyard.agent.runs.gang import GangMember
from hopyard.agent.runs.members import Share, alone, gathered
from hopyard.agent.runs.models import BuiltModels
from hopyard.agent.runs.reported import CostCounter, Costs, check_sizes
from hopyard.agent.runs.state_writer import StateWriter
from hopyard.agent.runs.tracebacks import summary, trace
from hopyard.agent.runs.warned import WarningWatch
from hopyard.core.messages import Broken, Membership, NoRoom
from hopyard.core.runs.events import Checked, Done, Durable, Failed, LoggedValue
from hopyard.core.runs.order import member_seed, partition_seed, shuffle_seed, validation_seed
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import HopyardError, ResourceError, SpecError
from hopyard.exchange.board import GangBroken
from hopyard.frameworks import seed_all
from hopyard.frameworks.tree import capture, restore
from hopyard.logged import Collected, left_out_text, points_of, room
from hopyard.ports.states import Store
from hopyard.ports.training import SupportsResult
from hopyard.spec import Config, Part, Ref, RowKind, Unit, packed
from hopyard.store.arena import Arena, Taken, take
from hopyard.store.guard import StateConflict
from hopyard.store.tree import decode, digest, plan
from hopyard.training.build import Built, Plan, install
from hopyard.training.recipes import recipe_of
from hopyard.training.steps import finite, over

if TYPE_CHECKING:
    from hopyard.exchange.exchange import GangExchange

Fetch = Callable[[str, str, Ref], memoryview | None]
Answer = Done | Failed | Durable | NoRoom | Broken


class Worker:
    """Runs the units of one slot.

    Args:
        slot: its number.
        plan: recipe, data and run.
        store: holds States that are not in shared memory.
        arena: the shared memory into which this worker lays its States.
        checkpoints: stores them in the background.
        fetch: (peer, memory_key, ref) → a State out of memory that this worker does not share, or None.
        interruptible: whether KeyboardInterrupt comes from the user, as inline. In a process of its own, which ignores
            SIGINT, it can only come from the recipe.
        member: this worker as a member of gangs; None: the run has none.
    """

    def __init__(
        self,
        slot: int,
        plan: Plan,
        store: Store,
        arena: Arena,
        checkpoints: StateWriter,
        fetch: Fetch | None = None,
        interruptible: bool = True,
        member: GangMember | None = None,
    ) -> None:
        self.slot = slot
        self._interruptible = interruptible
        self._plan = plan
        self._store = store
        self._arena = arena
        self._checkpoints = checkpoints
        self._fetch = fetch
        self._member = member
        self._membership: Membership | None = None
        """The worker's place in the gang that works on the current unit."""
        self._peer: str | None = None
        """The peer that has the State of the current unit."""
        self._models = BuiltModels(plan)
        self._costs = CostCounter(plan.manifest, own_process=not interruptible)
        self._warnings = WarningWatch(__name__)
        self.error: BaseException | None = None
        """What the last unit or check raised, inline; None: nothing. (In an agent it would hold a device's memory.)"""

    def prepare(self) -> None:
        """Set the process up, before anything runs in it: TensorFlow takes its number of threads only once."""
        install(self._plan)

    # ---------------------------------------------------------------- units

    def run(
        self, unit: Unit, config: Config, peer: str | None = None, membership: Membership | None = None
    ) -> Sequence[Answer]:
        """Run a unit; return its answer and messages that go with it.

        Args:
            unit: the unit.
            config: its trial's.
            peer: the agent that has the unit's State, when it is in memory that this worker does not share.
            membership: this worker's place in the gang that works on the unit; only rank 0 answers that it is done.
        """
        begin = time.perf_counter()
        self._peer, self._membership = peer, membership
        install(self._plan)  # inline, the user's own code runs in between
        self.error = None
        with self._warnings.during(unit.trial, recipe_of(self._plan.recipe, unit.trial)) as warned:
            answers = self._answers(unit, config, begin)
        if self._member is not None and membership is not None:
            well = not any(isinstance(answer, (Failed, Broken, NoRoom)) for answer in answers)
            self._member.leave(unit.lease, well, reported=any(isinstance(a, (Failed, Broken)) for a in answers))
        if not answers or not isinstance(first := answers[0], (Done, Failed)):
            return answers
        costs = self._new_costs() if isinstance(first, Done) else {}
        return [msgspec.structs.replace(first, warnings=tuple(warned), **costs), *answers[1:]]

    def _new_costs(self) -> dict[str, int]:
        """Return the fields of an answer that say what the driver does not know yet of the worker's costs."""
        fetched, peak = costs = self._costs.unreported()
        self._costs.mark_reported(costs)
        return {"fetched_bytes": fetched, "peak_bytes": peak}

    def _answers(self, unit: Unit, config: Config, begin: float) -> Sequence[Answer]:
        try:
            answers = _RUN[unit.kind](self, unit, config, begin)
            for answer in answers:
                if isinstance(answer, Done):
                    check_sizes([part.sums for part in answer.parts])
            return answers
        except GangBroken as error:  # whoever is to blame says so
            self._models.forget(unit.trial)
            return [Broken(self.slot, unit.lease, str(error))]
        except HostFault as error:  # no fault of the trial, and another host may do better
            self._models.forget(unit.trial)
            return [NoRoom(self.slot, str(error), "rows")]
        except (ResourceError, StateConflict) as error:  # no fault of the trial, and no other slot can store more
            self._models.forget(unit.trial)
            return [NoRoom(self.slot, str(error), "store" if isinstance(error, ResourceError) else "error")]
        except BaseException as error:  # noqa: BLE001 - what a recipe raises ends its trial, never the worker
            self._models.forget(unit.trial)
            self._caught(error)
            return [self._failure(unit, error)]

    def _train(self, unit: Unit, config: Config, begin: float) -> list[Done | Failed | Durable]:
        spec = self._plan.spec
        exchange = self._exchange(unit)
        built, hop, moved = self._prepare_model(unit, config, exchange)
        self._models.forget(unit.trial)
        rank, size, batch_size = 0, 1, built.batch_size
        sent_before = 0 if exchange is None else exchange.sent
        others: tuple[Costs, ...] = ()
        collector, logged = self._plan.collector, [Collected() for _ in unit.partitions]
        if exchange is not None:
            meter.enter("fetch")
            exchange.connect()
            rank, size = exchange.rank, exchange.size
            batch_size *= size if spec.own_batches > 1 else 1
        parts = []
        for partition, collected in zip(unit.partitions, logged, strict=True):
            start = time.perf_counter()
            seed = member_seed(partition_seed(spec.seed, unit.trial, unit.epoch, partition), rank)
            shuffle = shuffle_seed(spec.seed, unit.trial, unit.epoch, partition)
            seed_all(seed)
            loader = PartitionLoader(self._open("train", partition), batch_size, shuffle, seed, (rank, size))
            with collector.collecting(collected):
                sums = over(built, loader, train=True)
            if spec.exact is True and (notes := nondeterminism(built.trainable)):
                raise SpecError(f"exact=True: {notes[0]}")
            finite(sums, f"trial {unit.trial}, epoch {unit.epoch + 1}, partition {partition}")
            parts.append(Part(partition, packed(sums), _seconds(start)))
        step = unit.step + len(unit.partitions)
        is_epoch_end = step % spec.partitions == 0
        if is_epoch_end:
            with collector.collecting(logged[-1]):
                built.end_epoch()
        ref = Ref(unit.trial, step, unit.lease)
        if exchange is not None and size > 1:
            costs = self._costs.unreported()
            share = Share(parts, costs=costs if rank else (0, 0), logged=logged)
            parts, logged, others = gathered(exchange, built.trainable, share)
            if rank:
                self._costs.mark_reported(costs)
                self._models.hold(unit.trial, ref, self._part)
                return []
        points = self._points(unit, logged)
        before = time.perf_counter()
        meter.enter("lay")
        memory_key, stored, size = self._lay(ref, built)
        if memory_key:
            self._checkpoints.keep(ref, memory_key, is_epoch_end)
        self._models.hold(unit.trial, ref, self._part, size)
        hop += time.perf_counter() - before
        done = Done(
            slot=self.slot,
            lease=unit.lease,
            parts=tuple(parts),
            seconds=_seconds(begin),
            memory_key=memory_key,
            hop_seconds=round(hop, 6),
            hop_bytes=moved,
            model=self._models.news(unit, built),
            exchanged_bytes=0 if exchange is None else exchange.sent - sent_before,
            others=others if any(map(any, others)) else (),
            logged=points,
        )
        return [done, *stored]

    def _points(self, unit: Unit, logged: list[Collected]) -> dict[int, dict[str, LoggedValue]]:
        """Return the points of each partition, and warn about those that have no room."""
        limit = room(self._plan.spec)
        points: dict[int, dict[str, LoggedValue]] = {}
        for partition, collected in zip(unit.partitions, logged, strict=True):
            some, left_out = points_of(collected, limit)
            if some:
                points[partition] = some
            if left_out:
                warnings.warn(left_out_text(left_out, limit), UserWarning, stacklevel=1)
        return points

    def _validate(self, unit: Unit, config: Config, begin: float) -> list[Done | Failed | Durable]:
        built, hop, moved = self._prepare_model(unit, config)
        parts = []
        for partition in unit.partitions:
            start = time.perf_counter()
            seed = validation_seed(self._plan.spec.seed, unit.trial, unit.epoch, partition)
            seed_all(seed)
            loader = PartitionLoader(self._open("validate", partition), built.batch_size, None, seed)
            sums = over(built, loader, train=False)
            parts.append(Part(partition, packed(sums), _seconds(start)))
        return [
            Done(
                slot=self.slot,
                lease=unit.lease,
                parts=tuple(parts),
                seconds=_seconds(begin),
                hop_seconds=round(hop, 6),
                hop_bytes=moved,
            )
        ]

    def _fold(self, unit: Unit, config: Config, begin: float) -> list[Done | Failed | Durable]:
        built = self._models.find(unit) or self._models.build(unit.trial, config, first=False)
        meter.enter("validate")
        values = {}
        for name, (total, rows) in (unit.totals or {}).items():
            if not isinstance(built.trainable, SupportsResult):
                raise HopyardError(
                    f"metric {name!r} is an array of {total.size} numbers; a Trainable that reports such has a method "
                    "result(name, total, rows) that turns the total into a value"
                )
            values[name] = float(built.trainable.result(name.removeprefix("val_"), total.numbers(), rows))
        return [Done(slot=self.slot, lease=unit.lease, parts=(), seconds=_seconds(begin), values=values)]

    # ---------------------------------------------------------------- preflight

    def check(self, trial: int, config: Config, partitions: tuple[int, int] = (0, 0)) -> Checked | NoRoom:
        """Build the trial, run one batch of training and one of validation, the first of these partitions; report all
        faults together."""
        self.error = None

        def rows(kind: RowKind) -> Columns:
            return self._open(kind, partitions[kind == "validate"])

        with self._warnings.during(trial, recipe_of(self._plan.recipe, trial)) as warned:
            answer = TrialCheck(self.slot, self._plan, self._models, rows, self._caught).check(trial, config)
        if isinstance(answer, NoRoom):
            return answer
        return msgspec.structs.replace(answer, warnings=tuple(warned), **self._new_costs())

    # ---------------------------------------------------------------- States

    def _exchange(self, unit: Unit) -> GangExchange | None:
        """Return the exchange with the other members of a gang that works on the unit; None: there is none, and the
        worker trains as the recipe says."""
        gang = self._plan.spec.gang
        if self._membership is not None and self._member is not None:
            return self._member.enter(self._membership, unit.lease)
        return None if gang is None or gang.serial else alone(gang)

    @property
    def _part(self) -> int:
        """The rank whose part of a State this worker takes. Only where parameters are averaged do members have parts:
        else, and alone, it is that of rank 0."""
        has_parts = self._plan.spec.own_batches > 1
        return self._membership.rank if has_parts and self._membership is not None else 0

    def _prepare_model(
        self, unit: Unit, config: Config, exchange: GangExchange | None = None
    ) -> tuple[Built, float, int]:
        """Return (the trial's model with the unit's State, seconds of moving the State there, bytes that moved)."""
        built = self._models.find(unit)
        if unit.start is None or built is None:
            built = self._models.build(unit.trial, config, first=unit.start is None)
        if exchange is not None:
            built.trainable.set_exchange(exchange)
        if unit.start is None:
            return built, 0.0, 0
        if self._models.holds(unit.trial, unit.start, self._part):
            return built, 0.0, 0
        self._models.forget(unit.trial)
        begin = time.perf_counter()
        meter.enter("fetch")
        moved = self._load(unit, built)
        self._models.hold(unit.trial, unit.start, self._part, moved)
        return built, time.perf_counter() - begin, moved

    def _load(self, unit: Unit, built: Built) -> int:
        """Copy the unit's State into the built model: from shared memory, else from the worker that made it, else
        from the store."""
        ref = unit.start
        assert ref is not None
        own = self._arena.own(unit.memory_key, ref) if unit.memory_key else None
        if own is not None:  # also when others cannot see it
            restore(built.trainable, decode(own))
            return len(own)
        if unit.memory_key and self._peer is None:
            state = take(self._arena.directory, unit.memory_key, ref)
            if state is not None and _copied(built, state):
                return len(state.data)
        if unit.memory_key and self._peer is not None and self._fetch is not None:
            received = self._fetch(self._peer, unit.memory_key, ref)
            if received is not None and (not unit.digest or digest(received) == unit.digest):
                restore(built.trainable, decode(received))
                return len(received)
        data = self._read_stored(ref)
        if unit.digest and (actual := digest(data)) != unit.digest:
            raise Missing(
                ref,
                f"the stored State {ref} is damaged: its digest is {actual[:16]}, the journal has {unit.digest[:16]}",
            )
        restore(built.trainable, decode(data))
        return len(data)

    def _read_stored(self, ref: Ref) -> bytearray | memoryview:
        """Return a State from the store. This does not wait for one that is not stored: the driver knows which worker
        has it, and when it is stored."""
        try:
            with self._checkpoints.watched(ref):
                return self._store.get(ref)
        except FileNotFoundError:
            raise Missing(ref, f"State {ref} of trial {ref.trial} is neither in shared memory nor stored") from None

    def _lay(self, ref: Ref, built: Built) -> tuple[str, list[Durable], int]:
        """Lay the model's State into shared memory; where there is no room, store it at once."""
        layout = plan(capture(built.trainable))
        while True:
            memory_key = self._arena.lay(ref, layout)
            if memory_key:
                return memory_key, [], layout.total
            if not self._checkpoints.make_room():
                break
        buffer = bytearray(layout.total)
        layout.write(buffer)
        meter.enter("store")
        return "", [self._checkpoints.flush(ref, memoryview(buffer))], layout.total

    def _open(self, kind: RowKind, partition: int) -> Columns:
        meter.enter("fetch")
        with reading(f"{kind} partition {partition}", socket.gethostname()):
            return open_partition(self._plan.manifest, kind, partition)

    def _caught(self, error: BaseException) -> None:
        """Keep an error, inline. Raise it again if it is Ctrl-C, which is no fault of a recipe."""
        if self._interruptible:
            if isinstance(error, KeyboardInterrupt):
                raise error
            self.error = error

    def _failure(self, unit: Unit, error: BaseException) -> Failed:
        fault, device = blame(error, self._plan.device != "cpu")
        return Failed(
            slot=self.slot,
            lease=unit.lease,
            fault=fault,
            error=summary(error, recipe_of(self._plan.recipe, unit.trial) if fault in ("user", "memory") else None),
            trace=trace(error),
            missing=error.ref if isinstance(error, Missing) else None,
            device=device,
        )


def _seconds(since: float) -> float:
    """Seconds since `since`, rounded to microseconds: more digits are noise, and would be half of a journal line."""
    return round(time.perf_counter() - since, 6)


def _copied(built: Built, state: Taken) -> bool:
    """Copy a State into the model. False: it was overwritten meanwhile."""
    try:
        restore(built.trainable, decode(state.data))
    except Exception:
        if state.intact():
            raise
        return False
    return state.intact()


_RUN = {"train": Worker._train, "validate": Worker._validate, "fold": Worker._fold}
