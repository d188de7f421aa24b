"""Namespaces, Params and both merged; no session."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

pytest.importorskip("pyspark")

from hopyard.compat.tensorflowonspark.pipeline import (
    HasBatchSize,
    HasInputMapping,
    HasSteps,
    Namespace,
    TFEstimator,
    TFModel,
    TFParams,
    yield_batch,
)
from hopyard.errors import SpecError


def test_a_namespace_is_made_of_a_dict_another_or_argparse() -> None:
    for given in ({"a": 1, "b": [2]}, Namespace({"a": 1, "b": [2]}), argparse.Namespace(a=1, b=[2])):
        made: Any = Namespace(given)
        assert (made.a, made.b) == (1, [2])
        assert "a" in made
        assert "c" not in made
        assert sorted(made) == ["a", "b"]
        assert made == Namespace({"a": 1, "b": [2]})
        assert made != Namespace({"a": 1})
        assert made.argv is None
    assert repr(Namespace({"b": "x", "a": 1})) == "Namespace(a=1, b='x')"


def test_a_list_is_a_command_line() -> None:
    assert Namespace(["--steps", "3"]).argv == ["--steps", "3"]


def test_another_thing_is_refused() -> None:
    with pytest.raises(SpecError, match=r"Namespace\(…\) must .* 3"):
        Namespace(3)


class Trainer(TFParams, HasBatchSize, HasSteps, HasInputMapping):
    def __init__(self, args: Any) -> None:
        super().__init__()
        self.args = args


def test_params_that_are_set_join_the_arguments() -> None:
    args = Namespace({"a": 1, "steps": 2})
    made: Any = Trainer(args)
    assert made.setBatchSize(10).setSteps(100).getSteps() == 100
    assert made.merge_args_params() == Namespace({"a": 1, "batch_size": 10, "steps": 100})
    assert args == Namespace({"a": 1, "steps": 2})


def test_params_are_checked_and_documented() -> None:
    made: Any = Trainer(Namespace({}))
    with pytest.raises(TypeError, match="must be a dict"):
        made.setInputMapping(["a"])
    with pytest.raises(TypeError):
        made.setSteps("many")
    assert "rows of a batch" in made.explainParam("batch_size")


def test_defaults_are_those_of_the_library() -> None:
    estimator: Any = TFEstimator(lambda args, ctx: None, {})
    found = estimator.merge_args_params()
    assert (found.batch_size, found.epochs, found.steps, found.grace_secs, found.readers) == (100, 1, 1000, 30, 1)
    assert (found.cluster_size, found.num_ps, found.master_node, found.input_mode) == (1, 0, "chief", 1)
    assert (found.input_mapping, found.model_dir, found.export_dir, found.tensorboard) == ({}, None, None, False)
    model: Any = TFModel({})
    assert vars(model.merge_args_params()).keys() == {
        *("batch_size", "export_dir", "input_mapping", "model_dir", "output_mapping", "signature_def_key", "tag_set")
    }


def test_a_copy_has_its_own_params() -> None:
    first: Any = TFEstimator(lambda args, ctx: None, {"x": 1}).setBatchSize(3)  # type: ignore[attr-defined]
    second = first.copy({first.epochs: 7})
    assert (second.getEpochs(), second.getBatchSize(), second.args.x) == (7, 3, 1)
    assert first.getEpochs() == 1


def test_missing_params_are_reported_before_anything_starts() -> None:
    with pytest.raises(SpecError, match="input_mapping is empty"):
        TFEstimator(lambda args, ctx: None, {})._fit(None)
    with pytest.raises(SpecError, match="export_fn is of TensorFlow 1"):
        TFEstimator(lambda args, ctx: None, {}, export_fn=print)._fit(None)
    with pytest.raises(SpecError, match="input_mapping is not set"):
        TFModel({})._transform(None)


def test_rows_become_columns_in_batches() -> None:
    rows = [(1, "a"), (2, "b"), (3, "c")]
    assert list(yield_batch(rows, 2, 2)) == [[[1, 2], ["a", "b"]], [[3], ["c"]]]
    assert list(yield_batch([], 2, 2)) == []
