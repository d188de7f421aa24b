"""Tries a trial before any unit runs: builds it, puts one batch of training and one of validation through it, and
reports all faults together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopyard import meter
from hopyard.agent.runs.faults import Blame, HostFault, blame
from hopyard.agent.runs.members import cannot_train, short_rounds
from hopyard.agent.runs.models import BuiltModels, frozen_bytes, info_of
from hopyard.agent.runs.reported import check_names, check_sizes, unfit_for
from hopyard.agent.runs.tracebacks import summary, trace
from hopyard.core.messages import NoRoom
from hopyard.core.runs.events import Checked
from hopyard.data.columns import Columns
from hopyard.data.partitions.loader import PartitionLoader
from hopyard.frameworks import seed_all
from hopyard.frameworks.tree import capture, restore
from hopyard.logged import Collected
from hopyard.ports.training import (
    ReportsNondeterminism,
    SupportsFrozen,
    SupportsLabelCheck,
    SupportsLossCheck,
    SupportsOutsideState,
)
from hopyard.spec import SECONDS, Batch, Config, ModelInfo, RowKind
from hopyard.store.tree import decode, encode
from hopyard.training.build import Built, Plan
from hopyard.training.recipes import recipe_of
from hopyard.training.steps import gather


class TrialCheck:
    """The check of one worker.

    Args:
        slot: its number.
        plan: recipe, data and run.
        models: that it has built.
        rows: returns those of the partition of a kind whose first batch is tried.
        caught: called with each error that becomes a fault; raises it again where it is none.
    """

    def __init__(
        self,
        slot: int,
        plan: Plan,
        models: BuiltModels,
        rows: Callable[[RowKind], Columns],
        caught: Callable[[BaseException], None],
    ) -> None:
        self._slot, self._plan, self._models = slot, plan, models
        self._rows, self._caught = rows, caught

    def check(self, trial: int, config: Config) -> Checked | NoRoom:
        """Build the trial, run one batch of training and one of validation; report all faults together."""
        spec = self._plan.spec
        names: list[str] = []
        faults: list[str] = []
        notes: tuple[str, ...] = ()
        advice = ""
        blamed = Blame("user")
        model: ModelInfo | None = None
        raised = ""
        hop_bytes = frozen = 0
        try:
            meter.enter("build")
            built = self._models.call_recipe(trial, config)
            if fault := cannot_train(built.trainable, spec.gang):
                return Checked(slot=self._slot, trial=trial, faults=(fault,), names=())
            advice = short_rounds(spec.gang, built.batch_size, [part.rows for part in self._plan.manifest.train])
            batch = self._first_batch("train", built.batch_size)
            if fault := self._label_fault(built, batch):
                return Checked(slot=self._slot, trial=trial, faults=(fault,), names=())
            initial = encode(capture(built.trainable))
            seed_all(0)
            meter.enter("compile")
            with self._plan.collector.collecting(Collected()):  # what it may not log is a fault here
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
            if isinstance(built.trainable, SupportsFrozen) and (changed := built.trainable.changed_frozen()):
                others = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
                faults.append(
                    f"a step changes frozen parameter {changed[0]!r}{others}, so that workers would have different "
                    "ones: what is frozen is not in the State. The recipe must not freeze what training changes; "
                    "hy.torch.Model(state=[…]) names what changes without gradients"
                )
            if frozen := frozen_bytes(built.trainable):
                hop_bytes = len(trained)
            names += sums
            partitions = spec.group or (max(spec.partitions, spec.validation) if spec.group_seconds else 1)
            check_sizes([sums] * partitions)
            restore(built.trainable, decode(initial))
            if encode(capture(built.trainable)) != initial:
                faults.append(
                    "load does not bring back what state() gave, so the model cannot hop: state() must give everything "
                    "that training changes, and load(tree) must copy it back"
                )
            notes = nondeterminism(built.trainable)
            if not faults and not notes and (note := self._check_repeats(built, trained)):
                notes = (note,)
            if spec.exact is True:
                faults += [f"exact=True: {note}" for note in notes]
            if not notes:
                self._models.keep(trial, built)
            model = info_of(built)
            del built
            if self._models.has_earlier:  # it was built outside of the recipe, or is kept: a second call tells
                meter.enter("build")
                self._models.call_recipe(trial, config)
        except HostFault as error:
            return NoRoom(self._slot, str(error), "rows")
        except BaseException as error:  # noqa: BLE001 - a fault of the recipe is an answer, not an end
            self._caught(error)
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
            slot=self._slot,
            trial=trial,
            faults=tuple(faults),
            names=tuple(names),
            notes=reported_notes,
            advice=(advice,) if advice else (),
            fault=blamed.fault,
            device=blamed.device,
            model=model,
            trace=raised,
            hop_bytes=hop_bytes,
            frozen_bytes=frozen,
        )

    def _label_fault(self, built: Built, batch: Batch) -> str:
        """Return what is wrong with the labels for the model and its loss; "" when nothing is, or nobody can tell."""
        trainable, limits, fault = built.trainable, self._plan.manifest.label_range, ""
        if limits is not None and isinstance(trainable, SupportsLabelCheck):
            fault = trainable.label_fault(batch, *limits)
        if not fault and isinstance(trainable, SupportsLossCheck):
            fault = trainable.loss_fault(batch, ", ".join(self._plan.manifest.column_names("targets")))
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

    def _first_batch(self, kind: RowKind, batch_size: int) -> Batch:
        batch = next(iter(PartitionLoader(self._rows(kind), batch_size, None, 0)))
        if batch.weights is not None and not batch.weights.any():
            batch.weights[...] = 1  # rows that weigh nothing need not report anything; the batch is a copy
        return batch


def nondeterminism(trainable: Any) -> tuple[str, ...]:
    """Return what a Trainable knows to be nondeterministic in it."""
    return tuple(trainable.nondeterminism) if isinstance(trainable, ReportsNondeterminism) else ()


def _attributes(trainable: Any) -> dict[str, Any]:
    return trainable.outside_state() if isinstance(trainable, SupportsOutsideState) else {}
