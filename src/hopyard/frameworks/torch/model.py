"""`Model`: a torch module with its optimizer and loss, as a Trainable.

The loop never waits for the device, unless a loss over tokens leaves their number there: losses stay there as tensors
until the partition ends. Everything that training changes is in the State (see `state`), what is frozen is not (see
`frozen`). Everything random in training follows the seed that the agent sets before each partition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch

from hopyard.checks import names, real, scalar, whole
from hopyard.errors import SpecError
from hopyard.frameworks.torch import state as torch_state
from hopyard.frameworks.torch.arguments import HALVES, faults, wrong_types
from hopyard.frameworks.torch.checks import label_fault, loss_fault
from hopyard.frameworks.torch.frozen import Base, matches
from hopyard.frameworks.torch.gang import Member, cut
from hopyard.frameworks.torch.losses import outputs_and_loss, outputs_of
from hopyard.frameworks.torch.metrics import AUC, F1, Tally, accuracy
from hopyard.frameworks.torch.tensors import outputs_to_numpy, tensors
from hopyard.ports.states import Tree
from hopyard.ports.training import Exchange, PartitionBatches
from hopyard.spec import Batch, Sums, Values

__all__ = ["AUC", "F1", "Model", "accuracy"]


class Model:
    """The Trainable that a recipe returns for torch.

    Args:
        module: called as `module(inputs)`, or `module(**inputs)` when inputs are a dict. One from `torch.compile` has
            the State of the module that was compiled, under the same names.
        optimizer: an optimizer of the module's parameters.
        loss: `loss(outputs, targets)`, the mean of a batch; one value per row (`reduction="none"`) when rows have
            weights, then the batch's loss is Σ w·l / Σ w. Over tokens: a tuple (sum, how many), and batches count by
            how many. "model": the module is called with `labels=` too, one a row, and returns an object with `loss`
            and `logits`, which are its outputs, as models of transformers do.
        metrics: name → `f(outputs, targets) -> one value per row`, or an object with `update` and `result` (`AUC`).
        scheduler: a scheduler of `optimizer`'s learning rate.
        scheduler_every: "epoch" or "batch": when it steps.
        batch_size: rows of a batch; None: the config's `batch_size`, else 32.
        accumulate: pieces into which a batch is cut, which take turns in memory; their gradients are added up. Batch
            norm, dropout and `augment` see pieces; else the step is that of the whole batch, up to rounding. Pieces of
            `hy.AllReduce(accumulate=)` are cut further.
        clip_norm: the largest norm of all gradients together.
        autocast: "bfloat16" or "float16" (or torch's dtype): runs forward and loss in mixed precision. float16 on CUDA
            scales the loss.
        augment: `augment(inputs, generator) -> inputs` on the device, before each training step; it must draw from
            `generator`, which is seeded for each partition.
        base: patterns of names (`fnmatch`) of parameters and buffers that are constant, `["*.qweight"]` for example.
            Like parameters that need no gradients when the recipe returns they are not in the State: each worker has
            those that the recipe builds.
        state: patterns of names of parameters that training changes without gradients, `["teacher.*"]` for example:
            they are in the State, also where `base` matches them.

    Raises:
        SpecError: names the argument, its value, what is allowed.
    """

    load_copies = True
    """`load` copies, so it may receive views of shared memory."""
    framework = "torch"

    def __init__(
        self,
        module: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Callable[..., Any] | Literal["model"],
        metrics: Mapping[str, Any] | None = None,
        *,
        scheduler: Any = None,
        scheduler_every: Literal["epoch", "batch"] = "epoch",
        batch_size: int | None = None,
        accumulate: int = 1,
        clip_norm: float | None = None,
        autocast: Literal["bfloat16", "float16"] | torch.dtype | None = None,
        augment: Callable[[Any, torch.Generator], Any] | None = None,
        base: Sequence[str] = (),
        state: Sequence[str] = (),
    ) -> None:
        for fault in wrong_types(module, optimizer, metrics, {"base": base, "state": state}):
            raise SpecError(f"hopyard.torch.Model: {fault}")
        self.module: torch.nn.Module = getattr(module, "_orig_mod", module)
        self._called = module
        """The module, or what `torch.compile` has made of it: a module of its own, with other names."""
        self.optimizer = optimizer
        self.loss = loss
        self.metrics = {scalar(name): metric for name, metric in (metrics or {}).items()}
        self.scheduler = scheduler
        self.scheduler_every = scalar(scheduler_every)
        self.batch_size: int | None = scalar(batch_size)
        self.accumulate = whole("hopyard.torch.Model: accumulate", accumulate, 1)
        self.clip_norm: float | None = None if clip_norm is None else real(clip_norm)
        self.autocast = HALVES.get(autocast) if isinstance(autocast, str) else autocast
        self.augment = augment
        self._patterns = names(base) or [], names(state) or []
        for fault in faults(self, autocast, clip_norm):
            raise SpecError(f"hopyard.torch.Model: {fault}")
        first = next(self.module.parameters(), None)
        self.device = torch.device("cpu") if first is None else first.device
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._gang = Member(self._parameters)
        self._scaler: torch.amp.GradScaler | None = None
        self._generator: tuple[int | None, torch.Generator | None] = (None, None)
        self._decided: Base | None = None
        self._set_scaler()

    @property
    def _base(self) -> Base:
        """What is frozen. It is decided at the first use of the model, as a recipe may freeze what it has given to the
        model already."""
        if self._decided is None:
            self._decided = Base(self._modules, *self._patterns)
            self._gang.parameters = [each for each in self._parameters if id(each) not in self._decided.ids]
        return self._decided

    def _renew_base(self) -> None:
        """Decide anew what is frozen, as its tensors were moved or written to on purpose."""
        self._decided = None

    @property
    def _modules(self) -> dict[str, torch.nn.Module]:
        """The modules of which the State has a part, by its name: "module", and "loss" where the loss is one."""
        return {"module": self.module} | ({"loss": self.loss} if isinstance(self.loss, torch.nn.Module) else {})

    def to_device(self, device: str | torch.device) -> None:
        """Moves module, loss and optimizer state to `device`; parameters keep their identity."""
        self.device = torch.device(device)
        self.module.to(self.device)
        if isinstance(self.loss, torch.nn.Module):
            self.loss.to(self.device)
        torch_state.move_optimizer(self.optimizer, self.device)
        self._renew_base()
        self._set_scaler()

    def state(self) -> dict[str, Any]:
        """Return everything that training changes, and the digest of what is frozen. The tensors are the live ones:
        copy them before training on.

        Raises:
            SpecError: a frozen tensor has changed.
        """
        self._base.require_unchanged()
        tree: dict[str, Any] = {
            part: torch_state.take_module(module, self._base.names[part]) for part, module in self._modules.items()
        }
        tree |= {"optimizer": torch_state.take_optimizer(self.optimizer), **self._base.frozen.entry}
        if self.scheduler is not None:
            tree["scheduler"] = torch_state.take_scheduler(self.scheduler)
        if self._scaler is not None:
            tree["scaler"] = self._scaler.state_dict()
        if (gang := self._gang.rounds.state()) is not None:
            tree["gang"] = gang
        return tree

    def set_exchange(self, exchange: Exchange | None) -> None:
        """Train as a member of a gang from now on; None: alone."""
        self._gang.rounds.exchange = exchange

    def member_state(self) -> Tree:
        """Return what a member of a gang that averages parameters has of its own: all of the State but the module."""
        own = {name: value for name, value in self.state().items() if name in ("optimizer", "scheduler", "scaler")}
        return own | {"error": self._gang.rounds.error}

    def set_members(self, trees: list[Tree]) -> None:
        """Take what the other members have of their own, by rank, into the State of rank 0."""
        self._gang.rounds.others = trees

    def load(self, tree: Any) -> None:
        """Copies a State (tensors, Leaves or NumPy arrays) into the model.

        Raises:
            SpecError: it is of a model that was built differently, or with another base; this one is then unchanged or
                partly changed.
        """
        self._base.require_same(tree)
        for part, module in self._modules.items():
            torch_state.put_module(module, tree[part], self._base.names[part])
        own = self._gang.load(tree.get("gang")) or tree
        torch_state.put_optimizer(self.optimizer, own["optimizer"])
        if self.scheduler is not None:
            torch_state.put_scheduler(self.scheduler, own["scheduler"])
        self._set_scaler()
        if self._scaler is not None and "scaler" in own:
            self._scaler.load_state_dict(own["scaler"])
        self._generator = (None, None)

    def train_partition(self, batches: PartitionBatches) -> Sums:
        """Trains over a partition; returns sums of loss and metrics as computed while training."""
        self._generator = (None, None)
        return self._train(batches)

    def evaluate_partition(self, batches: Iterable[Batch]) -> Sums:
        """Return loss and metrics over a partition; changes nothing."""
        self.module.eval()
        if isinstance(self.loss, torch.nn.Module):
            self.loss.eval()
        tally = Tally(self.metrics)
        with torch.inference_mode():
            for batch in batches:
                inputs, targets, weights, rows = self._on_device(batch)
                if not rows:
                    continue
                with self._precision():
                    outputs, loss, weight = outputs_and_loss(self._called, inputs, targets, self.loss, weights, rows)
                tally.add(loss, weight, rows, outputs, targets, weights)
            return tally.sums()

    def train(self, batch: Batch) -> Sums:
        """Trains for one step. Consecutive batches of one seed draw from one generator, which continues."""
        return self._train([batch])

    def evaluate(self, batch: Batch) -> Sums:
        """Return loss and metrics of one batch; changes nothing."""
        return self.evaluate_partition([batch])

    def predict(self, batch: Batch) -> Any:
        """Return outputs as NumPy arrays, rows first; see `outputs_to_numpy`."""
        self.module.eval()
        with torch.inference_mode(), self._precision():
            return outputs_to_numpy(self._forward(tensors(batch.inputs, self.device)))

    def frozen_bytes(self) -> int:
        """Return the bytes of what is frozen."""
        return self._base.frozen.nbytes

    def changed_frozen(self) -> list[str]:
        """Return the names of frozen tensors that have other bits than when the model was first used."""
        return self._base.changed()

    def declared_state(self) -> list[Any]:
        """Return what `state=` names."""
        return list(matches(self._modules, "state", self._patterns[1]).values())

    def outside_state(self) -> dict[str, Any]:
        """Return name → value of numbers and tensors (by identity) that modules keep outside of the State."""
        parts = [(name, part) for module in self._modules.values() for name, part in module.named_modules()]
        return {
            f"{name}.{key}" if name else key: id(value) if isinstance(value, torch.Tensor) else value
            for name, part in parts
            if type(part).get_extra_state is torch.nn.Module.get_extra_state
            for key, value in vars(part).items()
            if isinstance(value, (bool, int, float, torch.Tensor)) and key != "training"
        }

    def end_epoch(self) -> None:
        """Steps a scheduler that steps by epochs."""
        if self.scheduler is not None and self.scheduler_every == "epoch":
            self.scheduler.step()

    def result(self, name: str, total: Values, rows: float) -> float:
        """Return the value of metric `name` from its sum over `rows` rows."""
        metric = self.metrics.get(name)
        if metric is not None and hasattr(metric, "result"):
            return float(metric.result(np.asarray(total, dtype=np.float64)))
        if isinstance(total, (list, np.ndarray)):
            raise SpecError(f"metric {name!r} has an array for its sum, but no result(total) -> float")
        return total / rows if rows else float("nan")

    def label_fault(self, batch: Batch, low: float, high: float) -> str:
        """Return what is wrong with a label column of [low, high], tried with one batch; "" when nothing is."""
        are_whole = isinstance(batch.targets, np.ndarray) and batch.targets.dtype.kind in "iu"
        self.module.eval()
        with torch.inference_mode():
            outputs = self._forward(tensors(batch.inputs, self.device))
        return label_fault(outputs, low, high, None if isinstance(self.loss, str) else self.loss, are_whole)

    def loss_fault(self, batch: Batch, label: str) -> str:
        """Return why the loss does not take outputs and labels as they are, tried with one batch; "" when it does."""
        if isinstance(self.loss, str):
            return ""
        self.module.eval()
        with torch.no_grad(), self._precision():
            outputs = self._forward(tensors(batch.inputs, self.device))
            return loss_fault(outputs, tensors(batch.targets, self.device), self.loss, label)

    def _train(self, batches: Iterable[Batch]) -> Sums:
        self.module.train()
        if isinstance(self.loss, torch.nn.Module):
            self.loss.train()
        tally, gang = Tally(self.metrics), self._gang
        gang.begin(self._buffers())  # and what is frozen is read, before anything can change it
        for batch in batches:
            self.optimizer.zero_grad(set_to_none=True)
            weight = 0.0
            for piece in cut(batch, self.accumulate * gang.pieces):
                weight += self._backward(piece, weight, tally)
            if gang.gradients(weight):
                self._step()
            gang.stepped(self.optimizer)
        gang.end(self.optimizer)
        return tally.sums()

    def _backward(self, batch: Batch, before: float, tally: Tally) -> float:
        """Take a batch, or a piece of one, into the mean gradients of the pieces so far. Returns its weight.

        The weight of a whole batch is not known before its last piece: only the loss counts tokens.

        Args:
            batch: the batch or piece.
            before: the weight of the pieces so far.
            tally: takes loss and outputs.
        """
        inputs, targets, weights, rows = self._on_device(batch)
        if not rows:
            return 0.0  # all weights are 0: nothing to learn, and no mean
        if self.augment is not None and batch.seed is not None:
            inputs = self.augment(inputs, self._generator_of(batch.seed))
        with self._precision():
            outputs, loss, weight = outputs_and_loss(self._called, inputs, targets, self.loss, weights, rows)
        if weight:  # else it has no tokens
            part = loss
            if before:
                share = weight / (before + weight)
                part = loss * share
                for parameter in self._parameters:
                    if parameter.grad is not None:
                        parameter.grad.mul_(1 - share)
            if self._scaler is not None:
                part = self._scaler.scale(part)
            part.backward()  # type: ignore[no-untyped-call]
        tally.add(loss, weight, rows, outputs, targets, weights)
        return weight

    def _on_device(self, batch: Batch) -> tuple[Any, Any, torch.Tensor | None, float]:
        """Return (inputs, targets, weights, rows) on the device; rows is the sum of the weights if there are some."""
        rows, device = _rows_of(batch), self.device
        return tensors(batch.inputs, device), tensors(batch.targets, device), tensors(batch.weights, device), rows

    def _forward(self, inputs: Any) -> Any:
        return outputs_of(self._called, inputs, self.loss)

    def _step(self) -> None:
        """Take a step along the gradients. Those of a gang were averaged before they are unscaled: so that what is not
        finite on one member is found by all."""
        if self.clip_norm is not None:
            if self._scaler is not None:
                self._scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self._parameters, self.clip_norm)
        if self._scaler is None:
            self.optimizer.step()
        else:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        if self.scheduler is not None and self.scheduler_every == "batch":
            self.scheduler.step()

    def _buffers(self) -> list[torch.Tensor]:
        """Return the buffers of module and loss, which statistics of batches may change."""
        buffers = [torch_state.buffers_of(module, self._base.names[part]) for part, module in self._modules.items()]
        return [buffer for own in buffers for buffer in own.values() if buffer is not None]

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.autocast)

    def _generator_of(self, seed: int) -> torch.Generator:
        current, generator = self._generator
        if current != seed or generator is None:
            generator = torch.Generator(self.device).manual_seed(seed)
            self._generator = (seed, generator)
        return generator

    def _set_scaler(self) -> None:
        """Creates a new scaler for each trial, because its scale is part of the State."""
        needed = self.autocast is torch.float16 and self.device.type == "cuda"
        self._scaler = torch.amp.GradScaler("cuda") if needed else None


def _rows_of(batch: Batch) -> float:
    """Return the rows of a batch, or the sum of their weights."""
    return float(batch.rows) if batch.weights is None else float(np.sum(batch.weights, dtype=np.float64))
