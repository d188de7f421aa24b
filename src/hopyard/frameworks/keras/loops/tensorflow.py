"""Loops over rows with Keras on TensorFlow: many batches in one compiled call, for about ten seconds.

The loop over the batches of a partition is inside the graph, and gathers their rows there: a step of a small model then
costs 0.1 to 0.4 ms, where `fit` takes 1.1 to 1.9, with the same bits as result. Shapes are traced with an open number
of rows, and the size of a batch is an argument, so that there is one trace for training and one for evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hopyard.errors import HopyardError, SpecError
from hopyard.frameworks.keras import internals
from hopyard.frameworks.keras.gang import Gradients, averaging
from hopyard.frameworks.keras.loops.tensorflow_gang import Means
from hopyard.frameworks.keras.rows import BatchRange, Pace, RowBatches, leaves, map_arrays
from hopyard.meter import StepMeter

_DRAWS = (
    "RandomUniform",
    "RandomStandardNormal",
    "TruncatedNormal",
    "RandomUniformInt",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "Multinomial",
)
"""Operations whose generator is in the process, and so cannot be moved to another worker."""


def host(variable: Any) -> Any:
    """Return a variable's values, as a copy."""
    return np.asarray(variable.value.numpy())  # a scalar is an array too


class StepError(HopyardError):
    """An operation of the model failed."""


class Loop:
    """The compiled steps of one model. It owns their traces.

    Args:
        model: compiled, and built as far as a batch builds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._steps: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._meter = StepMeter()
        self._paces = {True: Pace(), False: Pace()}
        """The paces of training (True) and of evaluation (False)."""
        self._rows = 0
        """Rows of the batch of a step that is not compiled."""
        self.traces = 0
        self.nondeterminism: list[str] = []

    def _call(self, train: bool, part: BatchRange, gradients: Gradients | None = None) -> None:
        """Goes over a part, in calls of about CALL_SECONDS."""
        phase, pace = "train" if train else "validate", self._paces[train]
        data, ends = _tensors(part.data), np.asarray(part.ends, np.int64)
        order = (_index(part.order),) if train else ()
        done = 0
        while done < len(ends):
            chunk = ends[done : done + pace.batches]
            start = time.perf_counter()
            with self._meter.step(phase, count=len(chunk)):
                step = self._compiled(train, part.data, gradients)
                try:
                    step(data, *order, _index(chunk), _index(ends[done - 1] if done else 0))
                except (tf.errors.ResourceExhaustedError, tf.errors.InternalError) as error:
                    raise StepError(_message(error)) from error  # its class and text show whether memory ran out
                except tf.errors.OpError as error:
                    raise StepError(_message(error)) from None
            pace.record(len(chunk), time.perf_counter() - start)
            done += len(chunk)

    def train(
        self, rows: RowBatches, each: Callable[[Any], Any] | None = None, gradients: Gradients | None = None
    ) -> None:
        """Trains over the rows; metrics and State stay in the model's variables. If set, `each(step)` runs around every
        batch, and then each batch is one call; and the optimizer steps along the means that `gradients` returns."""
        if self._model.run_eagerly:
            step = self._with_means(self._model.train_step, gradients, lambda: self._rows)
            for batch in rows.batches():
                self._rows = leaves(batch)[0].shape[0]
                with self._meter.step("train"):
                    self._around(each, partial(step, _tensors(batch)))
            return
        for part in rows.batch_by_batch() if each is not None else rows.parts():
            self._around(each, partial(self._call, True, part, gradients))

    def evaluate(self, rows: RowBatches) -> None:
        """Computes loss and metrics over the rows, in the variables of the metrics."""
        if self._model.run_eagerly:
            for batch in rows.batches():
                with self._meter.step("validate"):
                    self._model.test_step(_tensors(batch))
            return
        for part in rows.parts():
            self._call(False, part)

    @staticmethod
    def _around(each: Callable[[Any], Any] | None, call: Callable[[], Any]) -> None:
        call() if each is None else each(call)

    def _compiled(self, train: bool, data: Any, gradients: Gradients | None) -> Callable[..., Any]:
        form = map_arrays(lambda array: (array.shape[1:], array.dtype.str), data)
        key = train, repr(form), None if gradients is None else gradients.pieces > 1
        step = self._steps.get(key)
        if step is None:
            spec = map_arrays(lambda a: tf.TensorSpec((None, *a.shape[1:]), tf.as_dtype(a.dtype)), data)
            index = tf.TensorSpec((None,), tf.int64)
            unit = partial(self._train_unit, gradients) if train else self._test_unit
            function = tf.function(unit, autograph=False)
            start = tf.TensorSpec((), tf.int64)
            concrete = function.get_concrete_function(*((spec, index, index, start) if train else (spec, index, start)))
            self.traces += 1
            self._examine(concrete.graph)
            step = self._steps[key] = concrete
        return step

    def _train_unit(self, gradients: Gradients | None, data: Any, order: Any, ends: Any, first: Any) -> Any:
        """Trains in the graph. `data`: x, y and weights, each (n, …) or a dict of arrays; `order` (rows,): indices of
        their rows; `ends` (batches,): the end of each batch in `order`; `first` (): the start of the first one."""
        train_step = self._model.train_step
        step = self._step(train_step) if gradients is None else None  # XLA cannot call what averages gradients

        def body(batch: Any, start: Any) -> Any:
            end = ends[batch]
            index = order[start:end]
            call = step or self._with_means(train_step, gradients, end - start)
            call(map_arrays(lambda column: tf.gather(column, index), data))
            return batch + 1, end

        return self._loop(body, ends, first)

    def _with_means(self, step: Callable[..., Any], gradients: Gradients | None, rows: Any) -> Callable[..., Any]:
        """Return a step whose optimizer uses the means of a gang's gradients, if there is a gang."""
        if gradients is None:
            return step

        def with_means(batch: Any) -> None:
            means = Means(gradients, rows)
            with averaging(self._model.optimizer, means):
                step(batch)
            if not (means.used or tf.executing_eagerly()):
                raise SpecError(
                    "a train_step of your own must call self.optimizer.apply(gradients, variables), or "
                    "apply_gradients, where a gang trains the model: only then can gradients be averaged before it"
                )

        return with_means

    def _test_unit(self, data: Any, ends: Any, first: Any) -> Any:
        step = self._step(self._model.test_step)

        def body(batch: Any, start: Any) -> Any:
            end = ends[batch]
            step(map_arrays(lambda column: column[start:end], data))
            return batch + 1, end

        return self._loop(body, ends, first)

    def _step(self, step: Callable[..., Any]) -> Callable[..., Any]:
        return tf.function(step, autograph=False, jit_compile=True) if self._model.jit_compile else step

    @staticmethod
    def _loop(body: Callable[..., Any], ends: Any, first: Any) -> Any:
        zero = tf.constant(0, tf.int64)
        count = tf.shape(ends, out_type=tf.int64)[0]
        return tf.while_loop(lambda batch, _: batch < count, body, (zero, first), parallel_iterations=1)[0]

    def _examine(self, graph: Any) -> None:
        """Notes what a State cannot hold."""
        model = self._model
        keras_ids = {id(variable.value) for variable in (*model.variables, *model.optimizer.variables)}
        keras_ids |= {id(variable.value) for variable in model.metrics_variables}
        keras_ids |= {id(internals.global_generator().state.value)}
        for variable in graph.variables:
            if id(variable) not in keras_ids:
                self._note(
                    f"the step uses tf.Variable {variable.name!r}, of which Keras knows nothing, so it is no part of "
                    "the State: make it with self.add_weight(…), and random numbers with keras.random.SeedGenerator"
                )
        kinds = {node.op for node in graph.as_graph_def().node}
        kinds |= {node.op for function in graph.as_graph_def().library.function for node in function.node_def}
        for kind in sorted(kinds.intersection(_DRAWS)):
            self._note(
                f"the step draws from TensorFlow's own generator ({kind}), whose state stays in the process: use "
                "keras.random with a keras.random.SeedGenerator(), which is part of the State"
            )

    def _note(self, text: str) -> None:
        if text not in self.nondeterminism:
            self.nondeterminism.append(text)


def _message(error: Any) -> str:
    """Return the message of a failed operation, without TensorFlow's list of where each of its nodes was created."""
    lines = [line.strip() for line in str(error.message).splitlines()]
    messages = [
        line
        for line in lines
        if line
        and not line.startswith(("File ", "Detected at", "Graph execution error", "Stack trace", "[[{{", "<stdin>"))
        and not line.startswith(("Errors may have originated", "Hint:", "[Op:"))
    ]
    return f"{type(error).__name__}: {messages[-1] if messages else lines[0]}"


def _tensors(data: Any) -> Any:
    try:
        return map_arrays(tf.convert_to_tensor, data)
    except (TypeError, ValueError) as error:
        kinds = map_arrays(lambda array: str(array.dtype), data)
        raise SpecError(f"TensorFlow cannot take columns of dtypes {kinds}: {error}") from error


def _index(values: Any) -> Any:
    return tf.constant(np.asarray(values, np.int64))
