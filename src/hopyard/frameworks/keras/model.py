"""`Model`: a compiled Keras 3 model as a Trainable, on TensorFlow, JAX or PyTorch.

The steps are Keras' own: `train_step` and `test_step` of the model, also where the user wrote them. The loop over steps
depends on the backend (`loops/`). Losses and metrics stay in the variables where Keras adds them up, and are read once
for each partition.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np

from hopyard.checks import scalar
from hopyard.errors import SpecError
from hopyard.frameworks.frozen import KEY, Frozen, read
from hopyard.frameworks.keras import internals
from hopyard.frameworks.keras.callbacks import Hooks
from hopyard.frameworks.keras.checks import SINGLE, Info, arrange, label_fault, misfit, zeros
from hopyard.frameworks.keras.gang import Member, gang_fault
from hopyard.frameworks.keras.metrics import (
    check_additive,
    is_additive,
    metric_result,
    metrics_by_name,
    read_sums,
    variables_of,
)
from hopyard.frameworks.keras.rows import RowBatches, SingleBatch
from hopyard.frameworks.keras.sharing import sharing_key
from hopyard.frameworks.keras.state import frozen_in, load_state, reseed_variables, seed_variables, state_of
from hopyard.frameworks.tree import lower_array
from hopyard.logged import muted
from hopyard.ports.states import Tree
from hopyard.ports.training import Exchange, PartitionBatches
from hopyard.spec import Batch, Gang, Sums, Values
from hopyard.text import shown

__all__ = ["Model"]


class Model:
    """The Trainable that a recipe returns for Keras when it needs more than the compiled model itself.

    Args:
        model: a compiled keras.Model: Sequential, functional, or a subclass, with its own `train_step` if it has one.
        batch_size: rows of a batch; None: the config's `batch_size`, else 32.
        class_weight: class → weight of its rows while training, as in `fit`; times the rows' own weights where the
            data has some.
        callbacks: called at the begin and end of epochs and training batches, for example
            keras.callbacks.LearningRateScheduler. They may change model and optimizer, whose variables hop; their own
            attributes do not. Those with hooks of batches cost a call for each batch.

    Raises:
        SpecError: names the argument, its value, what is allowed.
    """

    load_copies = True
    """`load` copies, so it may receive views of shared memory."""
    framework = "keras"

    def __init__(
        self,
        model: keras.Model,
        *,
        batch_size: int | None = None,
        class_weight: Mapping[int, float] | None = None,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        for fault in _faults(model, class_weight):
            raise SpecError(f"hopyard.keras.Model: {fault}")
        self._settings = internals.global_settings()
        self.model = model
        self.batch_size: int | None = scalar(batch_size)
        self.class_weight = None
        if class_weight is not None:
            self.class_weight = {scalar(label): scalar(weight) for label, weight in class_weight.items()}
        self._hooks = Hooks(model, callbacks)
        backend: Any = importlib.import_module(f"hopyard.frameworks.keras.loops.{keras.backend.backend()}")
        self._host: Callable[[Any], Any] = backend.host
        # on TensorFlow and JAX everything in a model is variables of Keras
        self._buffers: Callable[[keras.Model], Sequence[Any]] = getattr(backend, "buffers", lambda model: [])
        self._new_loop: Callable[[keras.Model], Any] = backend.Loop
        self._gang = Member(model, self._host, self._buffers)
        self._loop: Any = None
        self._metrics: dict[str, keras.Metric] = {}
        self._seeds: list[Any] = []
        self._checked = False
        self._sharing_key: str | None = None
        self._schema: tuple[Info, Info] | None = None

    def set_schema(self, inputs: Info, targets: Info) -> None:
        """Sets the schema of the data, before anything else, and creates the variables that depend on it.

        Args:
            inputs: input name → (shape of one row, NumPy dtype); a single one is "inputs".
            targets: the same for the labels; a single one is "targets".

        Raises:
            SpecError: the model takes other inputs.
        """
        self._schema = inputs, targets
        if fault := misfit(self.model, inputs, targets):
            raise SpecError(fault)
        if not self._built():
            self._build(self._zeros())
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        # computed now: after a batch some metrics have more attributes, and what is frozen may have changed
        assert self.sharing_key is not None and self._base

    @property
    def sharing_key(self) -> str:
        """Equal for models that differ only in their State; "" is equal to no other. Only models of equal keys are
        shared between configurations, see docs/architecture.md."""
        if self._sharing_key is None:
            key = "" if self._hooks else sharing_key(self.model)
            self._sharing_key = f"{key} {self.class_weight} {self._base[1].digest}".rstrip() if key else ""
        return self._sharing_key

    @property
    def traces(self) -> int:
        """How often a step was traced (compiled) so far."""
        return 0 if self._loop is None else int(self._loop.traces)

    @property
    def nondeterminism(self) -> tuple[str, ...]:
        """What cannot be exact, as far as the traced steps show it."""
        return () if self._loop is None else tuple(self._loop.nondeterminism)

    def state(self) -> dict[str, Any]:
        """Return every variable of model and optimizer that is not frozen, and the digest of those that are; with
        callbacks, the epoch too.

        Raises:
            SpecError: the model has no variables yet.
        """
        if not self.model.built or not self.model.optimizer.built:
            raise SpecError(
                "the model has no variables yet, because it has seen no data: give it a keras.Input, or train on a "
                "batch first"
            )
        frozen, record = self._base
        tree = state_of(self.model, self._host, self._buffers(self.model), frozen) | record.entry
        if self._hooks:
            tree["epoch"] = self._hooks.state()
        if (gang := self._gang.rounds.state()) is not None:
            tree["gang"] = gang
        return tree

    @cached_property
    def _base(self) -> tuple[dict[int, Any], Frozen]:
        """(position → frozen variable, their record), as they were when this was first asked for."""
        frozen = frozen_in(self.model)
        return frozen, self._read_frozen(frozen)

    def whole(self) -> dict[str, Any]:
        """Return every variable of model and optimizer, also those that are frozen."""
        return state_of(self.model, self._host, self._buffers(self.model))

    def load_whole(self, tree: dict[str, Any]) -> None:
        """Copy in what `whole` has returned."""
        load_state(self.model, tree, self._buffers(self.model))
        vars(self).pop("_base", None)

    def _read_frozen(self, frozen: Mapping[int, Any]) -> Frozen:
        return read((str(number), lower_array(self._host(each))) for number, each in frozen.items())

    def frozen_bytes(self) -> int:
        """Return the bytes of what is frozen."""
        return self._base[1].nbytes

    def changed_frozen(self) -> list[str]:
        """Return the paths of frozen variables that have other values than when the model was first used."""
        frozen, record = self._base
        return [frozen[int(number)].path for number in record.changed(self._read_frozen(frozen))]

    def declared_state(self) -> list[Any]:
        """Return nothing: of Keras' variables, a recipe declares none."""
        return []

    def gang_fault(self, gang: Gang) -> str:
        """Return why this model cannot be a member of such a gang; "": it can."""
        return gang_fault(self.model, gang, self._hooks.batch_hook is not None)

    def set_exchange(self, exchange: Exchange | None) -> None:
        """Train as a member of a gang from now on; None: alone."""
        self._gang.set_exchange(exchange)

    def member_state(self) -> Tree:
        """Return what a member of a gang that averages parameters has of its own: the optimizer's variables."""
        return {"optimizer": self.state()["optimizer"], "error": self._gang.rounds.error}

    def set_members(self, trees: list[Tree]) -> None:
        """Take what the other members have of their own, by rank, into the State of rank 0."""
        self._gang.rounds.others = trees

    def load(self, tree: Any) -> None:
        """Copies a State into the compiled model.

        Raises:
            SpecError: it is of a model that was built differently, or with other frozen weights; this one is then
                unchanged.
        """
        frozen, record = self._base
        if frozen and KEY not in tree and len(tree["model"]) == len(self.model.variables):  # from before they stayed
            saved = tree["model"]
            entry = read((str(number), saved[number]) for number in frozen).entry
            tree = tree | {"model": [each for number, each in enumerate(saved) if number not in frozen]} | entry
        record.require(tree.get(KEY, ""))
        if self._hooks and "epoch" not in tree:
            raise SpecError(
                "the State is of a model without callbacks: the recipe must build the same for the same config"
            )
        own = self._gang.load(tree.get("gang")) or {}
        load_state(self.model, tree | own, self._buffers(self.model), frozen)
        if self._hooks:
            self._hooks.load(tree["epoch"])

    def train_partition(self, batches: PartitionBatches) -> Sums:
        """Trains over a partition; returns sums of loss and metrics as computed while training."""
        rows = RowBatches(batches, self._arrange, self.class_weight)
        self._ready(rows)
        if batches.seed is not None:
            reseed_variables(self._seeds, batches.seed)
        self._hooks.begin()
        self.model.reset_metrics()
        self._gang.train(rows, self._loop, self._hooks.batch_hook)
        return self._read(rows.rows)

    def evaluate_partition(self, batches: PartitionBatches) -> Sums:
        """Return loss and metrics over a partition; changes nothing."""
        rows = RowBatches(batches, self._arrange, None)
        self._ready(rows)
        before = [np.array(self._host(variable)) for variable in self._seeds]
        if batches.seed is not None:
            reseed_variables(self._seeds, batches.seed)
        self.model.reset_metrics()
        self._loop.evaluate(rows)
        for variable, values in zip(self._seeds, before, strict=True):
            variable.assign(values)
        return self._read(rows.rows)

    def train(self, batch: Batch) -> Sums:
        """Trains for one step. The first one also checks that the metrics can be added up over partitions."""
        sums = self.train_partition(SingleBatch(batch))
        if not self._checked and batch.rows > 1:
            self._checked = True
            if not any(rows for _, rows in sums.values()):
                raise SpecError(
                    "a train_step of your own keeps its loss in no metric, so nobody can know it: update a "
                    'keras.metrics.Mean(name="loss") of the model in it, as Keras\' guide to custom steps does'
                )
            self._check_metrics(RowBatches(SingleBatch(batch), self._arrange, None))
        return sums

    def evaluate(self, batch: Batch) -> Sums:
        """Return loss and metrics of one batch; changes nothing."""
        return self.evaluate_partition(SingleBatch(batch))

    def predict(self, batch: Batch) -> Any:
        """Return outputs as NumPy arrays, rows first; several as a dict by the names of the outputs."""
        outputs = self.model.predict_on_batch(self._arrange(batch.inputs, None)[0])
        if isinstance(outputs, (list, tuple)):
            names = getattr(self.model, "output_names", None) or [str(n) for n in range(len(outputs))]
            return dict(zip(names, map(np.asarray, outputs), strict=True))
        return np.asarray(outputs) if not isinstance(outputs, dict) else outputs

    def end_epoch(self) -> None:
        """Tells the callbacks that an epoch ended."""
        self._hooks.end()

    def result(self, name: str, total: Values, rows: float) -> float:
        """Return the value of metric `name` from its sum over `rows` rows."""
        if not self._metrics and self._schema is not None:
            self._begin(self._zeros())
        if name not in self._metrics:
            raise SpecError(f"no metric {name!r}; the model has {', '.join(map(repr, self._metrics)) or 'none yet'}")
        return metric_result(self._metrics[name], total, rows)

    def label_fault(self, batch: Batch, low: float, high: float) -> str:
        """Return what is wrong with a label column of [low, high] for this model; "" when nothing is."""
        return label_fault(self.model, low, high)

    def _arrange(self, x: Any, y: Any) -> tuple[Any, Any]:
        return arrange(self.model, x, y)

    def _zeros(self) -> Any:
        assert self._schema is not None
        x, y = self._arrange(*(zeros(info, single) for info, single in zip(self._schema, SINGLE, strict=True)))
        return (x,) if y is None else (x, y)

    def _built(self) -> bool:
        return bool(self.model.built) and all(layer.built for layer in internals.layers(self.model))

    def _ready(self, rows: RowBatches) -> None:
        internals.apply_settings(self._settings)  # a step is traced under the settings of its recipe
        if self._loop is None:
            self._begin(rows.example())

    @muted()  # tensors have no values there, and each worker does it once
    def _begin(self, example: Any) -> None:
        """Creates what needs a batch: variables of metrics, of losses by output, and of a model without an Input."""
        self._build(example)
        self._metrics = metrics_by_name(self.model)
        self._seeds = seed_variables(self.model)
        self._loop = self._new_loop(self.model)

    def _build(self, example: Any) -> None:
        internals.build(self.model, example)
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def _check_metrics(self, rows: RowBatches) -> None:
        """Raise SpecError when a metric cannot be added up over partitions."""
        if not (metrics := {name: metric for name, metric in self._metrics.items() if not is_additive(metric)}):
            return
        before = [np.array(self._host(variable)) for variable in self._seeds]
        results = []
        for parts in ([0], [1], [0, 1]):
            self.model.reset_metrics()
            for part in parts:
                self._loop.evaluate(rows.half(part))
            results.append(variables_of(metrics, self._host))
        after = [np.array(self._host(variable)) for variable in self._seeds]
        for variable, values in zip(self._seeds, before, strict=True):
            variable.assign(values)
        if not all(map(np.array_equal, before, after)):
            return  # it draws random numbers in inference too: halves cannot be compared
        check_additive(metrics, *results)

    def _read(self, rows: float) -> Sums:
        sums = read_sums(self._metrics, self._host, rows)
        tracker = internals.loss_tracker(self.model)
        if (
            tracker is not None and sums.get("loss", (0.0, 0.0))[1] == 0
        ):  # one step keeps its loss itself, the other does not
            sums |= read_sums({"loss": tracker}, self._host, rows)
        return sums


def _averages_late(optimizer: Any) -> bool:
    """Whether the optimizer's averages of the weights would never be used."""
    return bool(getattr(optimizer, "use_ema", False) and not optimizer.ema_overwrite_frequency)


def _faults(model: Any, class_weight: Any) -> Iterator[str]:
    """Yield what is wrong with the arguments."""
    if not isinstance(model, keras.Model):
        yield f"model must be a compiled keras.Model, got {type(model).__module__}.{type(model).__qualname__}"
        return
    if not model.compiled:
        yield (
            f"model {model.name!r} is not compiled: call model.compile(optimizer=…, loss=…, metrics=[…]) before the "
            "recipe returns it"
        )
    elif model.optimizer is None:
        yield f"model {model.name!r} is compiled without an optimizer: give compile(optimizer=…) one"
    elif any(map(_averages_late, (model.optimizer, getattr(model.optimizer, "inner_optimizer", None)))):
        yield (
            "the optimizer has use_ema=True without ema_overwrite_frequency: Keras puts the averages in at the end of "
            "`fit`, but here each epoch is validated, and may be the best, with the weights that train. Give the "
            "optimizer ema_overwrite_frequency=…, in steps"
        )
    if class_weight is not None and not (
        isinstance(class_weight, Mapping)
        and all(isinstance(label, (int, np.integer)) for label in class_weight)
        and all(
            isinstance(weight, (int, float, np.integer, np.floating)) and 0 <= weight < math.inf
            for weight in class_weight.values()
        )
    ):
        yield f"class_weight must be a dict of class number → weight, a number >= 0, got {shown(class_weight)}"
