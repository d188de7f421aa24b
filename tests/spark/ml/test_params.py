"""The Params of Estimator and Model: their keywords, checks and mixins. No Spark session."""

from __future__ import annotations

import inspect
import pydoc
import typing
from typing import Any

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


def test_what_handle_invalid_takes() -> None:
    with pytest.raises(SpecError, match=r"handleInvalid must be .*, got 'drop'"):
        HopyardEstimator().setHandleInvalid("drop")  # type: ignore[attr-defined]
