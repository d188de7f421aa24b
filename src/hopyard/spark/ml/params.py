"""The Params of the Estimator and its Model: one table, from which Params, setters and getters are made.

A Param of pyspark.ml takes any value and checks little. Here each has a check that says what is allowed; it runs when
the value is set, also by a param map, so that nothing is trained with a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from math import isfinite
from textwrap import fill
from typing import Any, Literal, TypedDict, TypeVar, get_args

from pyspark.ml.param import Param, Params
from pyspark.ml.param.shared import (
    HasFeaturesCol,
    HasHandleInvalid,
    HasLabelCol,
    HasPredictionCol,
    HasProbabilityCol,
    HasRawPredictionCol,
    HasThresholds,
)

from hopyard.checks import (
    closest,
    column_name,
    column_names,
    fraction,
    instance_of,
    one_of,
    real,
    scalar,
    sequence,
    whole,
)
from hopyard.driver.runs.keywords import KEYWORDS, REQUIRED, Check
from hopyard.errors import SpecError
from hopyard.parallel import Parallel
from hopyard.ports.engines import Engine
from hopyard.search.kinds import Search
from hopyard.space import Space
from hopyard.spark.inference.loaded import Invalid
from hopyard.spec import Timeouts
from hopyard.stopping import ASHA, Hyperband, Median, Patience
from hopyard.text import shown

Class = TypeVar("Class", bound=type)


class ModelParams(TypedDict, total=False):
    """Keywords of HopyardModel. TABLE has their defaults, and says what they mean."""

    featuresCol: str
    featuresCols: list[str]
    labelCol: str
    predictionCol: str
    probabilityCol: str
    rawPredictionCol: str
    thresholds: list[float]
    handleInvalid: Invalid
    outputs: Literal["auto", "logits", "probabilities", "values"]


class EstimatorParams(ModelParams, total=False):
    """Keywords of HopyardEstimator."""

    weightCol: str
    recipe: Callable[..., Any]
    space: Space
    config: dict[str, Any]
    search: Search
    stop: ASHA | Hyperband | Median | Patience | Callable[..., bool]
    metric: str
    mode: Literal["min", "max"]
    validation: float
    validationCol: str
    keyCol: str
    seed: int
    partitions: int
    parallel: Parallel
    epochs: int
    workers: int
    engine: Engine
    store: str
    timeouts: Timeouts
    runDirectory: str
    encode: Mapping[str, Any]
    impute: Mapping[str, Any]
    standardize: bool | list[str]


class ClassifierParams(
    HasFeaturesCol, HasLabelCol, HasPredictionCol, HasProbabilityCol, HasRawPredictionCol, HasThresholds,
    HasHandleInvalid,
):  # fmt: skip
    """The mixins of a probabilistic classifier of pyspark.ml, by which evaluators and other stages know one."""


@dataclass(frozen=True, slots=True)
class Row:
    """One Param: what it means, its check, its default (None: it is not set)."""

    doc: str
    check: Check
    default: Any = None


def _text(name: str, value: Any) -> Any:
    text = scalar(value)
    if isinstance(text, str) and text:
        return text
    raise SpecError(f"{name} must be text that is not empty, got {shown(value)}")


def _column(name: str, value: Any) -> Any:
    return _text(name, column_name(value))


def _column_or_none(name: str, value: Any) -> Any:
    text = column_name(value)
    if isinstance(text, str):
        return text
    raise SpecError(f'{name} must be text, "" for no such column, got {shown(value)}')


def _columns(name: str, value: Any) -> Any:
    if (names := column_names(value)) and all(names):
        return names
    raise SpecError(f"{name} must be a list of column names, got {shown(value)}")


def _thresholds(name: str, value: Any) -> Any:
    items = sequence(value)
    numbers = [real(one) for one in items] if isinstance(items, list) else []
    if len(numbers) > 1 and all(isfinite(one) and one >= 0 for one in numbers) and numbers.count(0) <= 1:
        return numbers
    raise SpecError(
        f"{name} must be a list of numbers > 0, one for each class, of which one may be 0, got {shown(value)}"
    )


def _standardize(name: str, value: Any) -> Any:
    items = sequence(value)
    if isinstance(items, (bool, list)):
        return [column_name(item) for item in items] if isinstance(items, list) else items
    raise SpecError(f"{name} must be a boolean or a list, got {shown(value)}")


def _of_select(default: Any, check: Check, text: str) -> Row:
    return Row(text, check, None if default is REQUIRED else default)


OUTPUTS = ("auto", "logits", "probabilities", "values")

OWN: dict[str, Row] = {
    "featuresCol": Row("column of features: a vector, or an array of numbers", _column, "features"),
    "featuresCols": Row("columns of features, in the place of featuresCol", _columns),
    "labelCol": Row("column of the label", _column, "label"),
    "weightCol": Row("column of row weights", _column),
    "predictionCol": Row("new column: of classes the number as a double; else the output", _column, "prediction"),
    "probabilityCol": Row('new column of class probabilities, a vector; "" for none', _column_or_none, "probability"),
    "rawPredictionCol": Row(
        'new column of raw predictions of classes, a vector; "" for none', _column_or_none, "rawPrediction"
    ),
    "thresholds": Row(
        "a number for each class: the class with the largest probability ÷ threshold is predicted", _thresholds
    ),
    "handleInvalid": Row(
        'what transform does with rows that hold null, NaN or a category that training never saw: "error", "skip" (no '
        'such row comes out) or "keep" (their prediction is NaN)',
        partial(one_of, allowed=get_args(Invalid)),
        "error",
    ),
    "outputs": Row(
        'what the model gives: "logits" or "probabilities" of classes, "values", or "auto": by the label and some rows',
        partial(one_of, allowed=OUTPUTS),
        "auto",
    ),
    "space": Row("hyperparameters to search", partial(instance_of, Space, "a hy.Space")),
    "metric": Row("what decides, with mode; by default the least val_loss, without validation rows loss", _text),
    "mode": Row('"min" or "max": which value of the metric is the best', partial(one_of, allowed=("min", "max"))),
    "validation": Row(
        "fraction of the rows that validate", partial(fraction, also="validationCol, a column of true and false"), 0.0
    ),
    "validationCol": Row("column of true and false: the rows that validate", _column),
    "keyCol": Row(
        "column of a key, such as a user's number: rows of equal keys validate or train together, in one partition; by "
        "default rows of equal features do",
        _column,
    ),
    "partitions": Row("partitions into which the training rows are cut", partial(whole, least=1), 8),
    "epochs": Row(KEYWORDS["epochs"].text, KEYWORDS["epochs"].check, 1),
    "workers": Row(
        "processes on executors; by default one for each core of a classic session", partial(whole, least=1)
    ),
    "runDirectory": Row("folder in which each fit makes a run directory of its own", _text, "runs"),
    "encode": Row(
        'column → how categories become numbers: "one-hot", "index", a list of values or hy.Categories(…)',
        partial(instance_of, Mapping, "a dict from column to encoding"),
    ),
    "impute": Row(
        'feature → what stands for missing values: "mean" or a number; of categories "most_frequent" or '
        '("constant", value)',
        partial(instance_of, Mapping, "a dict from feature to what stands for missing values"),
    ),
    "standardize": Row("True, or a list of feature columns", _standardize, False),
}
TABLE = {name: OWN.get(name) or _of_select(**KEYWORDS[name]._asdict()) for name in EstimatorParams.__annotations__}
"""All Params; those that are not here are keywords of `hy.select` or `hy.fit`."""


def has(keywords: type) -> Callable[[Class], Class]:
    """Gives a class the Params of a TypedDict's names, with `setName` and `getName` for each; the signature and the
    docstring of its constructor show them."""
    names = [name for name in TABLE if name in keywords.__annotations__]

    def decorate(kind: Class) -> Class:
        _show(kind.__init__, {name: keywords.__annotations__[name].__forward_arg__ for name in names})  # type: ignore[misc]
        for name in names:
            row = TABLE[name]
            setattr(kind, name, Param(Params._dummy(), name, row.doc, partial(row.check, name)))
            setattr(kind, f"set{name[0].upper()}{name[1:]}", _setter(name, row))
            setattr(kind, f"get{name[0].upper()}{name[1:]}", _getter(name, row))
        return kind

    return decorate


def begin(instance: Any, arguments: Mapping[str, Any]) -> None:
    """Sets the defaults of a new instance, and the arguments of its constructor.

    Raises:
        SpecError: an unknown name, or a value that is not allowed.
    """
    names = [param.name for param in instance.params]
    instance._setDefault(**{name: TABLE[name].default for name in names if TABLE[name].default is not None})
    for name, value in arguments.items():
        if name not in names:
            raise SpecError(f"{type(instance).__name__}({name}=…): there is no such Param{closest(name, names)}")
        instance._set(**{name: value})


def value(instance: Any, name: str) -> Any:
    """Return the value that is set, or the default, or None."""
    param = instance.getParam(name)
    return instance.getOrDefault(param) if instance.isDefined(param) else None


def _show(constructor: Any, types: Mapping[str, str]) -> None:
    """Put keywords (name → type) into a constructor's signature and docstring."""
    keywords = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=TABLE[name].default, annotation=kind)
        for name, kind in types.items()
    ]
    constructor.__signature__ = Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *keywords])
    texts = [
        fill(f"{name}: {TABLE[name].doc}.", 108, initial_indent=" " * 4, subsequent_indent=" " * 8) for name in types
    ]
    constructor.__doc__ = "\n".join(
        ["Params by keyword; each has a setter, too. None: it is not set.\n", "Args:", *texts]
    )


def _setter(name: str, row: Row) -> Any:
    def put(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    put.__name__, put.__doc__ = f"set{name[0].upper()}{name[1:]}", f"Set {name}: {row.doc}."
    return put


def _getter(name: str, row: Row) -> Any:
    def get(self: Any) -> Any:
        return value(self, name)

    get.__name__, get.__doc__ = f"get{name[0].upper()}{name[1:]}", f"{name}: {row.doc}; None when it is not set."
    return get
