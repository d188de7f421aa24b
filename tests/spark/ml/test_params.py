"""The Params of Estimator and Model: their keywords, checks and mixins. No Spark session."""

from __future__ import annotations

import inspect
import json
import pydoc
import typing
from typing import Any

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("pyspark")
from pyspark.ml.classification import _ProbabilisticClassifierParams
from pyspark.ml.param import Params

from hopyard.errors import SpecError
from hopyard.spark.ml.estimator import HopyardEstimator, HopyardModel
from hopyard.spark.ml.params import TABLE, EstimatorParams, ModelParams


@pytest.mark.parametrize(("kind", "keywords"), [(HopyardEstimator, EstimatorParams), (HopyardModel, ModelParams)])
def test_every_param_is_a_keyword_with_its_default_type_and_text(kind: Any, keywords: Any) -> None:
    params = {param.name: param for param in kind().params}
    signature = inspect.signature(kind)
    assert signature == inspect.signature(kind.__init__).replace(parameters=list(signature.parameters.values()))
    assert {name: one.default for name, one in signature.parameters.items()} == {
        name: TABLE[name].default for name in TABLE if name in params
    }
    assert {one.kind for one in signature.parameters.values()} == {inspect.Parameter.KEYWORD_ONLY}
    # what type checkers read says the same names, and its types exist
    assert typing.get_type_hints(keywords).keys() == params.keys()
    assert inspect.get_annotations(kind.__init__)["params"] == f"Unpack[{keywords.__name__}]"
    text = pydoc.render_doc(kind.__init__, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    assert "rawPredictionCol: 'str' = 'rawPrediction'" in text
    assert all(f"{name}: {row.doc.split()[0]}" in text for name, row in TABLE.items() if name in params)


def test_the_table_is_of_the_estimator() -> None:
    assert EstimatorParams.__annotations__.keys() == TABLE.keys()


@pytest.mark.parametrize("kind", [HopyardEstimator, HopyardModel])
def test_both_have_the_mixins_of_a_probabilistic_classifier(kind: type) -> None:
    mixins = [one for one in _ProbabilisticClassifierParams.__mro__ if one.__name__.startswith("Has")]
    assert len(mixins) == 6
    assert all(issubclass(kind, one) for one in [*mixins, Params])


def test_the_names_of_columns_are_as_in_pyspark() -> None:
    estimator = HopyardEstimator()
    names = ("features", "label", "prediction", "probability", "rawPrediction")
    assert [getattr(estimator, f"get{name[0].upper()}{name[1:]}Col")() for name in names] == list(names)
    assert estimator.getSeed() == 0
    assert HopyardModel(handleInvalid="skip").copy().getHandleInvalid() == "skip"


@pytest.mark.parametrize("value", [0.5, [1.0], [0.5, -1], [0, 0.0], [True, False], ["a", "b"], [1, float("nan")]])
def test_thresholds_that_are_refused(value: Any) -> None:
    with pytest.raises(SpecError, match=r"thresholds must be .*, got "):
        HopyardEstimator(thresholds=value)


def test_values_of_handle_invalid() -> None:
    with pytest.raises(SpecError, match=r"handleInvalid must be .*, got 'drop'"):
        HopyardEstimator().setHandleInvalid("drop")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [
        ("featuresCol", "4", [4, np.int64(4), np.str_("4")]),
        ("featuresCols", ["0", "1"], [np.array(["0", "1"]), pd.Index([0, 1]), range(2), ("0", np.str_("1"))]),
        ("labelCol", "4", [4, np.str_("4")]),
        ("weightCol", "4", [4, np.str_("4")]),
        ("predictionCol", "p", [np.str_("p")]),
        ("probabilityCol", "", [np.str_("")]),
        ("rawPredictionCol", "4", [4, np.str_("4")]),
        ("thresholds", [0.5, 1.0], [np.array([0.5, 1.0]), pd.Index([0.5, 1.0]), (np.float32(0.5), 1)]),
        ("handleInvalid", "skip", [np.str_("skip")]),
        ("outputs", "logits", [np.str_("logits")]),
        ("metric", "loss", [np.str_("loss")]),
        ("mode", "min", [np.str_("min")]),
        ("validation", 0.25, [np.float32(0.25)]),
        ("validationCol", "4", [4, np.str_("4")]),
        ("keyCol", "4", [4, np.str_("4")]),
        ("seed", 3, [np.int64(3)]),
        ("partitions", 3, [np.uint8(3)]),
        ("epochs", 3, [np.int64(3), np.array(3)]),
        ("workers", 3, [np.int64(3)]),
        ("store", "/store", [np.str_("/store")]),
        ("runDirectory", "fits", [np.str_("fits")]),
        ("standardize", True, [np.True_]),
        ("standardize", ["0", "1"], [np.array(["0", "1"]), pd.Index([0, 1]), ("0", np.int64(1))]),
    ],
)
def test_values_of_other_libraries_are_python_s(name: str, value: Any, others: list[Any]) -> None:
    """A Param is written as JSON, which has no values of NumPy."""
    for other in [value, *others]:
        estimator = HopyardEstimator(**{name: other})
        setter = getattr(HopyardEstimator(), f"set{name[0].upper()}{name[1:]}")(other)
        by_map = estimator.copy({estimator.getParam(name): other})
        for each in (estimator, setter, by_map):
            stored = each.getOrDefault(name)
            assert stored == value and type(stored) is type(value)
            assert all(type(item) in (str, float) for item in (stored if isinstance(stored, list) else []))
            assert json.loads(json.dumps(stored)) == value


def test_each_param_is_tried_with_values_of_other_libraries() -> None:
    (mark,) = test_values_of_other_libraries_are_python_s.pytestmark
    tried = {name for name, *_ in mark.args[1]}
    objects = {"recipe", "space", "config", "search", "stop", "parallel", "engine", "encode", "impute", "timeouts"}
    assert tried | objects == TABLE.keys()


@pytest.mark.parametrize("name", ["seed", "partitions", "epochs", "workers", "validation"])
@pytest.mark.parametrize("value", [True, np.True_])
def test_a_boolean_is_no_number(name: str, value: Any) -> None:
    with pytest.raises(SpecError, match=f"^{name} must be"):
        HopyardEstimator(**{name: value})
