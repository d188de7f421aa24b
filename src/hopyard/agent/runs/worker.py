"""Runs one unit: takes the State, goes over the partitions, lays the new State down, answers.

It is the same in a process of its own and inline. It knows no sockets, no other workers and not what comes next.
"""

from __future__ import annotations

import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hopyard import meter
from hopyard.agent.runs.checkpoints import CheckpointWriter
from hopyard.agent.runs.faults import Blame, HostFault, Missing, Reading, blame
from hopyard.agent.runs.gang import Member
from hopyard.agent.runs.members import alone, cannot_train, gathered, short_rounds
from hopyard.agent.runs.reported import check_names, check_sizes, unfit_for
from hopyard.agent.runs.tracebacks import summary, trace
from hopyard.agent.runs.warned import WarningWatch
from hopyard.core.messages import Broken, Membership, NoRoom
from hopyard.core.runs.events import Checked, Done, Durable, Failed
from hopyard.core.runs.order import member_seed, partition_seed, shuffle_seed, validation_seed
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.data.partitions.mapped import open_partition
from hopyard.errors import HopyardError, ResourceError, SpecError
from hopyard.exchange.board import GangBroken
from hopyard.frameworks import seed_all
from hopyard.frameworks.tree import capture, restore
from hopyard.ports import (
    ReportsNondeterminism,
    Store,
    SupportsLabelCheck,
    SupportsLossCheck,
    SupportsOutsideState,
    SupportsResult,
)
from hopyard.spec import SECONDS, Batch, Config, ModelInfo, Part, Ref, Unit, packed
from hopyard.store.arena import Arena, Taken, take
from hopyard.store.guard import StateConflict
from hopyard.store.tree import decode, digest, encode, plan
from hopyard.training.build import Built, Plan, build, install
from hopyard.training.earlier import EarlierModels
from hopyard.training.recipes import recipe_of
from hopyard.training.steps import finite, gather, over

if TYPE_CHECKING:
    from hopyard.exchange.exchange import GangExchange

BUILT = 32
"""Built models that a worker keeps; the least recently used one is dropped first."""
BUILT_BYTES = 2 << 30
"""Bytes of States of the models that it keeps; a model in memory is about as large again."""

Fetch = Callable[[str, str, Ref], memoryview | None]
Answer = Done | Failed | Durable | NoRoom | Broken


class Worker:
    """Runs the units of one slot. Owner of the built models.

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
        checkpoints: CheckpointWriter,
        fetch: Fetch | None = None,
        interruptible: bool = True,
        member: Member | None = None,
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
        self._built: OrderedDict[str, Built] = OrderedDict()
        """Built models by their sharing key, or by their trial where there is none; least recently used first."""
        self._earlier = EarlierModels()
        self._models: dict[int, ModelInfo] = {}
        """Trial → what its recipe returned."""
        self._loaded: dict[str, tuple[Ref, int]] = {}
        """Key → the State that the built model holds now, and whose part of it (`_part`)."""
        self._state_bytes: dict[str, int] = {}
        self._checked = (0, 0)
        """The training and the validation partition that the check reads."""
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
        with self._warnings.during(unit.trial, recipe_of(self._plan.recipe, unit.trial)) as warnings:
            answers = self._answers(unit, config, begin)
        if self._member is not None and membership is not None:
            well = not any(isinstance(answer, (Failed, Broken, NoRoom)) for answer in answers)
            self._member.leave(unit.lease, well, reported=any(isinstance(a, (Failed, Broken)) for a in answers))
        if warnings and answers and isinstance(answers[0], (Done, Failed)):
            return [msgspec.structs.replace(answers[0], warnings=tuple(warnings)), *answers[1:]]
        return answers

    def _answers(self, unit: Unit, config: Config, begin: float) -> Sequence[Answer]:
        try:
            answers = _RUN[unit.kind](self, unit, config, begin)
            for answer in answers:
                if isinstance(answer, Done):
                    check_sizes([part.sums for part in answer.parts])
            return answers
        except GangBroken as error:  # whoever is to blame says so
            self._forget(unit.trial)
            return [Broken(self.slot, unit.lease, str(error))]
        except HostFault as error:  # no fault of the trial, and another host may do better
            self._forget(unit.trial)
            return [NoRoom(self.slot, str(error), "rows")]
        except (ResourceError, StateConflict) as error:  # no fault of the trial, and no other slot can store more
            self._forget(unit.trial)
            return [NoRoom(self.slot, str(error), "store" if isinstance(error, ResourceError) else "error")]
        except BaseException as error:  # noqa: BLE001 - what a recipe raises ends its trial, never the worker
            self._forget(unit.trial)
            self._let_through(error)
            return [self._failure(unit, error)]

    def _train(self, unit: Unit, config: Config, begin: float) -> list[Done | Failed | Durable]:
        spec = self._plan.spec
        exchange = self._exchange(unit)
        built, hop, moved = self._prepare_model(unit, config, exchange)
        self._forget(unit.trial)
        rank, size, batch_size = 0, 1, built.batch_size
        if exchange is not None:
            meter.enter("fetch")
            exchange.connect()
            rank, size = exchange.rank, exchange.size
            batch_size *= size if spec.own_batches > 1 else 1
        parts = []
        for partition in unit.partitions:
            start = time.perf_counter()
            seed = member_seed(partition_seed(spec.seed, unit.trial, unit.epoch, partition), rank)
            shuffle = shuffle_seed(spec.seed, unit.trial, unit.epoch, partition)
            seed_all(seed)
            loader = PartitionLoader(self._open("train", partition), batch_size, shuffle, seed, (rank, size))
            sums = over(built, loader, train=True)
            if spec.exact is True and (notes := _nondeterminism(built.trainable)):
                raise SpecError(f"exact=True: {notes[0]}")
            finite(sums, f"trial {unit.trial}, epoch {unit.epoch + 1}, partition {partition}")
            parts.append(Part(partition, packed(sums), _seconds(start)))
        step = unit.step + len(unit.partitions)
        is_epoch_end = step % spec.partitions == 0
        if is_epoch_end:
            built.end_epoch()
        ref = Ref(unit.trial, step, unit.lease)
        if exchange is not None and size > 1:
            parts = gathered(exchange, built.trainable, parts)
            if rank:
                self._loaded[self._key(unit.trial)] = ref, self._part
                return []
        before = time.perf_counter()
        meter.enter("lay")
        memory_key, stored, size = self._lay(ref, built)
        if memory_key:
            self._checkpoints.keep(ref, memory_key, is_epoch_end)
        key = self._key(unit.trial)
        self._loaded[key] = ref, self._part
        self._state_bytes[key] = size
        self._evict()
        hop += time.perf_counter() - before
        done = Done(
            slot=self.slot,
            lease=unit.lease,
            parts=tuple(parts),
            seconds=_seconds(begin),
            memory_key=memory_key,
            hop_seconds=round(hop, 6),
            hop_bytes=moved,
            model=self._new_model(unit, built),
        )
        return [done, *stored]

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
        built = self._find_built(unit) or self._build(unit.trial, config, first=False)
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
        self.error, self._checked = None, partitions
        with self._warnings.during(trial, recipe_of(self._plan.recipe, trial)) as warnings:
            answer = self._check(trial, config)
        return answer if isinstance(answer, NoRoom) else msgspec.structs.replace(answer, warnings=tuple(warnings))

    def _check(self, trial: int, config: Config) -> Checked | NoRoom:
        spec = self._plan.spec
        names: list[str] = []
        faults: list[str] = []
        notes: tuple[str, ...] = ()
        advice = ""
        blamed = Blame("user")
        model: ModelInfo | None = None
        raised = ""
        try:
            meter.enter("build")
            built = self._call_recipe(trial, config)
            if fault := cannot_train(built.trainable, spec.gang):
                return Checked(slot=self.slot, trial=trial, faults=(fault,), names=())
            advice = short_rounds(spec.gang, built.batch_size, [part.rows for part in self._plan.manifest.train])
            batch = self._first_batch("train", built.batch_size)
            if fault := self._label_fault(built, batch):
                return Checked(slot=self.slot, trial=trial, faults=(fault,), names=())
            initial = encode(capture(built.trainable))
            seed_all(0)
            meter.enter("compile")
            sums = gather([built.trainable.train(batch)])
            check_names(sums)
            meter.advance()
            trained = encode(capture(built.trainable))
            if spec.validation:
                batch = self._first_batch("validate", built.batch_size)
                meter.enter("compile")
                report = gather([built.trainable.evaluate(batch)])
                check_names(report)
                sums |= {f"val_{name}": total for name, total in report.items()}
                if encode(capture(built.trainable)) != trained:
                    faults.append("evaluate changes the State: validation must leave state() as it was")
            names += sums
            partitions = spec.group or (max(spec.partitions, spec.validation) if spec.group_seconds else 1)
            check_sizes([sums] * partitions)
            restore(built.trainable, decode(initial))
            if encode(capture(built.trainable)) != initial:
                faults.append(
                    "load does not bring back what state() gave, so the model cannot hop: state() must give everything "
                    "that training changes, and load(tree) must copy it back"
                )
            notes = _nondeterminism(built.trainable)
            if not faults and not notes and (note := self._check_repeats(built, trained)):
                notes = (note,)
            if spec.exact is True:
                faults += [f"exact=True: {note}" for note in notes]
            if built.sharing_key is not None and not notes:  # its compiled steps are worth keeping
                self._built.setdefault(built.sharing_key or f"trial {trial}", built)
            model = _model(built)
            del built
            if self._earlier.alive:  # it was built outside of the recipe, or is kept: a second call tells
                meter.enter("build")
                self._call_recipe(trial, config)
        except HostFault as error:
            return NoRoom(self.slot, str(error), "rows")
        except BaseException as error:  # noqa: BLE001 - a fault of the recipe is an answer, not an end
            self._let_through(error)
            self._keep(error)
            blamed = blame(error, self._plan.device != "cpu")
            users = blamed[0] in ("user", "memory")
            faults.append(summary(error, recipe_of(self._plan.recipe, trial) if users else None))
            raised = trace(error)
        else:
            faults += unfit_for(spec.stop, spec.metric, sums)
            beside = {SECONDS} if len(spec.objectives) > 1 else set()
            for metric in [each.metric for each in spec.objectives if each.metric not in {*names, *beside}]:
                if metric == SECONDS:
                    faults.append(
                        'metric = "seconds" stands beside another, which comes first: metric=["val_loss", "seconds"]'
                    )
                    continue
                faults.append(
                    f"metric = {metric!r}: the recipe reports {', '.join(map(repr, names))}; give one of these"
                    + ("" if spec.validation else "; there is no validation data, so no val_… metrics")
                )
        reported_notes = notes if spec.exact == "warn" else ()
        return Checked(
            slot=self.slot,
            trial=trial,
            faults=tuple(faults),
            names=tuple(names),
            notes=reported_notes,
            advice=(advice,) if advice else (),
            fault=blamed.fault,
            device=blamed.device,
            model=model,
            trace=raised,
        )

    def _label_fault(self, built: Built, batch: Batch) -> str:
        """Return what is wrong with the labels for the model and its loss; "" when nothing is, or nobody can tell."""
        trainable, limits, fault = built.trainable, self._plan.manifest.label_range, ""
        if limits is not None and isinstance(trainable, SupportsLabelCheck):
            fault = trainable.label_fault(batch, *limits)
        if not fault and isinstance(trainable, SupportsLossCheck):
            fields = [field for field in self._plan.manifest.fields if field.role == "targets"]
            fault = trainable.loss_fault(batch, ", ".join(column.name for field in fields for column in field.columns))
        return fault

    def _check_repeats(self, built: Built, trained: bytes | bytearray) -> str:
        """Repeat the step that gave `trained` from the same State, batch and seed; return a fault if it differs."""
        batch = self._first_batch("train", built.batch_size)
        before = _attributes(built.trainable)
        seed_all(0)
        meter.enter("compile")
        built.trainable.train(batch)
        if encode(capture(built.trainable)) == trained:
            return ""
        after = _attributes(built.trainable)
        changed = [name for name, value in after.items() if name not in before or before[name] != value]
        return "the same step, done again from the same State with the same batch and seed, gives other bits: " + (
            f"the step changes the module's attribute {changed[0]!r}, which is not in the State: make it a buffer "
            "(register_buffer)"
            if changed
            else "it draws from a generator that nobody can seed from outside (draw from batch.seed), depends on "
            "something that state() leaves out, or on an operation that is not deterministic"
        )

    def _first_batch(self, kind: Literal["train", "validate"], batch_size: int) -> Batch:
        partition = self._checked[kind == "validate"]
        batch = next(iter(PartitionLoader(self._open(kind, partition), batch_size, None, 0)))
        if batch.weights is not None and not batch.weights.any():
            batch.weights[...] = 1  # rows that weigh nothing need not report anything; the batch is a copy
        return batch

    # ---------------------------------------------------------------- States

    def _exchange(self, unit: Unit) -> GangExchange | None:
        """Return the exchange with the other members of a gang that works on the unit; None: there is none, and the
        worker trains as the recipe says."""
        gang = self._plan.spec.gang
        if self._membership is not None and self._member is not None:
            return self._member.enter(self._membership, unit.lease)
        return None if gang is msgspec.UNSET or gang.serial else alone(gang)

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
        built = self._find_built(unit)
        if unit.start is None or built is None:
            built = self._build(unit.trial, config, first=unit.start is None)
        if exchange is not None:
            built.trainable.set_exchange(exchange)
        if unit.start is None:
            return built, 0.0, 0
        key = self._key(unit.trial)
        if self._loaded.get(key) == (unit.start, self._part):
            return built, 0.0, 0
        self._loaded.pop(key, None)
        begin = time.perf_counter()
        meter.enter("fetch")
        moved = self._state_bytes[key] = self._load(unit, built)
        self._evict()
        self._loaded[key] = unit.start, self._part
        return built, time.perf_counter() - begin, moved

    def _load(self, unit: Unit, built: Built) -> int:
        """Copy the unit's State into the built model: from shared memory, else from the store."""
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

    def _call_recipe(self, trial: int, config: Config) -> Built:
        """Return a model that is new. Raises SpecError when the recipe returns one that it returned before."""
        built = build(self._plan, trial, config)
        self._earlier.add(built.trainable)
        return built

    def _build(self, trial: int, config: Config, first: bool) -> Built:
        """Return the trial's model: newly built, or one with the same sharing key that is built (and compiled) already.
        `first`: with the State of a fresh build; else with any State."""
        meter.enter("build")
        fresh = self._call_recipe(trial, config)
        self._models[trial] = _model(fresh)
        key = self._key(trial)
        existing = None if fresh.sharing_key is None else self._built.get(key)
        if existing is None:
            self._built[key] = fresh
            self._loaded.pop(key, None)
        elif first:
            self._loaded.pop(key, None)
            restore(existing.trainable, capture(fresh.trainable))
        self._built.move_to_end(key)
        self._evict()
        built = existing or fresh
        return Built(built.trainable, fresh.batch_size, built.steps, fresh.context)

    def _find_built(self, unit: Unit) -> Built | None:
        """Return a built model for the unit's trial, if there is one; it holds any State. The recipe need not be called
        for that where the driver knows what it returns."""
        model = self._models.get(unit.trial, unit.model)
        if model is None:
            return None
        self._models[unit.trial] = model
        key = self._key(unit.trial)
        if key not in self._built:
            return None
        self._built.move_to_end(key)
        built = self._built[key]
        context = None if model.sharing_key else built.context  # a shared one may be that of another trial
        return Built(built.trainable, model.batch_size, built.steps, context)

    def _key(self, trial: int) -> str:
        """Return the key of the trial's built model."""
        return self._models[trial].sharing_key or f"trial {trial}"

    def _new_model(self, unit: Unit, built: Built) -> ModelInfo | None:
        """Return what the recipe returned, if the driver did not know it when it dispatched the unit. A model may ask
        for the number of epochs only while it trains."""
        if unit.model is not None and (unit.model.reads_epochs or not built.reads_epochs):
            return None
        return msgspec.structs.replace(self._models[unit.trial], reads_epochs=built.reads_epochs)

    def _forget(self, trial: int) -> None:
        """Record that the trial's model holds no State any more."""
        if trial in self._models:
            self._loaded.pop(self._key(trial), None)

    def _evict(self) -> None:
        """Drop the least recently used models beyond the limits."""
        while len(self._built) > 1 and (
            len(self._built) > BUILT or sum(self._state_bytes.get(key, 0) for key in self._built) > BUILT_BYTES
        ):
            oldest, _ = self._built.popitem(last=False)
            self._loaded.pop(oldest, None)
            self._state_bytes.pop(oldest, None)

    def _open(self, kind: Literal["train", "validate"], partition: int) -> Columns:
        meter.enter("fetch")
        with Reading(f"{kind} partition {partition}", socket.gethostname()):
            return open_partition(self._plan.manifest, kind, partition)

    def _let_through(self, error: BaseException) -> None:
        """Raise `error` again if it is Ctrl-C, which is no fault of a recipe."""
        if self._interruptible and isinstance(error, KeyboardInterrupt):
            raise error

    def _keep(self, error: BaseException) -> None:
        if self._interruptible:
            self.error = error

    def _failure(self, unit: Unit, error: BaseException) -> Failed:
        fault, device = blame(error, self._plan.device != "cpu")
        self._keep(error)
        return Failed(
            slot=self.slot,
            lease=unit.lease,
            fault=fault,
            error=summary(error, recipe_of(self._plan.recipe, unit.trial) if fault in ("user", "memory") else None),
            trace=trace(error),
            missing=error.ref if isinstance(error, Missing) else None,
            device=device,
        )


def _nondeterminism(trainable: Any) -> tuple[str, ...]:
    return tuple(trainable.nondeterminism) if isinstance(trainable, ReportsNondeterminism) else ()


def _attributes(trainable: Any) -> dict[str, Any]:
    return trainable.outside_state() if isinstance(trainable, SupportsOutsideState) else {}


def _model(built: Built) -> ModelInfo:
    """Return what is sent to the driver, and by it to other workers, about a model that the recipe returned."""
    return ModelInfo(built.sharing_key or "", built.batch_size, built.reads_epochs)


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
