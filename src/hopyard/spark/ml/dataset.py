"""Makes Datasets as an Estimator's Params say: which columns are features and label, and how they are encoded.

It knows nothing of training. Labels of pyspark.ml are doubles; those that number classes become whole numbers here.
"""

from __future__ import annotations

import logging
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hopyard.checks import closest, no_such
from hopyard.data.dataset import Dataset
from hopyard.data.partitions.cache import remove_rows
from hopyard.data.shared.needed import needed
from hopyard.errors import DataError, SpecError
from hopyard.spark.ml.params import value
from hopyard.sparkapi.dataframe import alive, name_key, quoted
from hopyard.text import shell_command

_HOLDS = re.compile(r"labelCol '(.+?)' holds ([-+.\w]+)")
"""What Spark's error says of a label that is no whole number."""

log = logging.getLogger(__name__)

NAMES = (
    "featuresCol", "featuresCols", "labelCol", "weightCol", "outputs", "validation", "validationCol", "keyCol",
    "partitions", "encode", "impute", "standardize", "seed", "store",
)  # fmt: skip
"""The Params that define a Dataset."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The values of the Params in NAMES, None where they are not set."""

    params: dict[str, Any]

    @classmethod
    def of(cls, estimator: Any) -> Rows:
        """Return the values of an Estimator."""
        return cls({name: value(estimator, name) for name in NAMES})

    @property
    def validates(self) -> bool:
        """Whether some rows validate."""
        return bool(self.params["validation"] or self.params["validationCol"])

    def check(self, df: Any) -> None:
        """Raise SpecError or DataError for what is wrong whatever the rows hold."""
        if not hasattr(df, "mapInArrow"):
            raise SpecError(f"fit(…) must be given a Spark DataFrame, got {type(df).__name__}")
        alive(df)
        params = self.params
        if params["validation"] and params["validationCol"]:
            raise SpecError("validation and validationCol are both set; set one of them")
        features = params["featuresCols"] or []
        columns = {} if features else {"featuresCol": params["featuresCol"]}
        columns |= {f"featuresCols[{n}]": name for n, name in enumerate(features)}
        columns |= {name: params[name] for name in ("labelCol", "weightCol", "validationCol", "keyCol")}
        _check_columns({param: name for param, name in columns.items() if name is not None}, df.columns)
        self.features(df.schema)

    def check_new_columns(self, df: Any, new_columns: dict[str, str]) -> None:
        """Raise SpecError unless the columns that the model will add (Param → name, the prediction last; the others for
        classes only) differ from those that it reads, and from each other, to Spark too."""
        key = name_key(df)
        features = self.params["featuresCols"] or [self.params["featuresCol"]]
        taken = {key(name): f"the feature column {name!r}" for name in features}
        names = [(param, name) for param, name in new_columns.items() if name]
        for param, name in names if self._are_classes(df.schema[self.params["labelCol"]]) else names[-1:]:
            if key(name) in taken:
                raise SpecError(
                    f"{param} = {name!r} is {taken[key(name)]} to Spark; a new column needs a name of its own: set "
                    f'{param} to another, for example "{name}_of_model"'
                )
            taken[key(name)] = f"{param} = {name!r}"

    def _are_classes(self, label: Any) -> bool:
        """Whether the model is taken to give classes, as far as can be known before it is trained."""
        return self.params["outputs"] != "values" and (not self._is_floating(label) or self.numbers_classes(label))

    def dataset(self, df: Any) -> Dataset:
        """Return the rows of `df` as a Dataset, which cuts them into partitions when it is prepared."""
        params, label = self.params, self.params["labelCol"]
        return Dataset.spark(
            df.withColumn(label, _class_numbers(label)) if self.numbers_classes(df.schema[label]) else df,
            features=self.features(df.schema),
            label=label,
            weight=params["weightCol"],
            validation=params["validationCol"] or params["validation"],
            key=params["keyCol"],
            partitions=params["partitions"],
            encode=params["encode"],
            impute=params["impute"],
            standardize=params["standardize"],
            seed=params["seed"],
            path=params["store"],
        )

    def features(self, schema: Any) -> Any:
        """Return a list of columns, which form one matrix, or one name, whose column keeps its type and shape."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import ArrayType, DoubleType, FloatType, NumericType

        if self.params["featuresCols"] is not None:
            return self.params["featuresCols"]
        name = self.params["featuresCol"]
        kind = schema[name].dataType
        if isinstance(kind, (VectorUDT, NumericType)):
            return [name]
        if isinstance(kind, ArrayType):
            return [name] if isinstance(kind.elementType, (FloatType, DoubleType)) else name
        raise DataError(
            f"featuresCol names {name!r}, which has type {kind.simpleString()}; a vector or an array of numbers is "
            "needed. Several columns: featuresCols=[…]"
        )

    def numbers_classes(self, label: Any) -> bool:
        """Whether a label column numbers classes by doubles or decimals, as Params or StringIndexer's metadata say."""
        if not self._is_floating(label):
            return False
        if self.params["outputs"] != "auto":
            return bool(self.params["outputs"] != "values")
        return bool(label.metadata.get("ml_attr", {}).get("type") == "nominal")

    def hint(self, df: Any) -> str:
        """Return what to set if the labels are classes after all; "" where they cannot be. One short Spark job."""
        name = self.params["labelCol"]
        if not self._is_floating(df.schema[name]) or self.numbers_classes(df.schema[name]):
            return ""
        try:
            if df.where(_no_class_number(name)).limit(1).count():
                return ""
        except Exception:  # noqa: BLE001 - a hint must not hide the error that it goes with
            return ""
        return (
            f'labelCol {name!r} is of type {df.schema[name].dataType.simpleString()}, so outputs="auto" takes it for '
            "values, and it holds whole numbers only: if these number classes, as a loss such as cross entropy wants "
            'them, set outputs="logits" (or "probabilities"), or cast the column to int'
        )

    def _is_floating(self, label: Any) -> bool:
        from pyspark.sql.types import DecimalType, DoubleType, FloatType

        kinds = (FloatType, DoubleType, DecimalType)
        return isinstance(label.dataType, kinds) and label.name not in (self.params["encode"] or {})


@dataclass(slots=True, eq=False, weakref_slot=True)
class Prepared:
    """The Datasets of one DataFrame, each made and prepared once, also for fits that run side by side. It owns the
    rows that are written for them: `close`, or the end of this object, removes all but those that a run still needs."""

    df: Any
    _datasets: dict[str, tuple[Dataset, Any]] = field(default_factory=dict)
    """Params → the Dataset, and its manifest, which keeps partitions from eviction."""
    _urls: list[str] = field(default_factory=list)
    """URLs of the folders that were written."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, _remove, self._urls)

    def get(self, rows: Rows) -> Dataset:
        """Return the Dataset for these Params. Raises as `Dataset.spark` and its `prepare`."""
        key = repr(sorted(rows.params.items()))
        with self._lock:
            if key not in self._datasets:
                dataset = rows.dataset(self.df)
                assert dataset.url is not None
                self._urls.append(dataset.url)
                with _whole_labels():
                    self._datasets[key] = dataset, dataset.prepare()
            return self._datasets[key][0]

    def close(self) -> None:
        """Remove the rows; a later `get` writes them again."""
        with self._lock:
            self._datasets.clear()
            _remove(self._urls)


def _check_columns(wanted: dict[str, str], columns: list[str]) -> None:
    """Raise DataError unless each column (Param → name) is in the DataFrame once. It names all that are not."""
    missing = {param: name for param, name in wanted.items() if name not in columns}
    if len(missing) == 1:
        ((param, name),) = missing.items()
        raise DataError(f"{param} = {name!r} is not a column of the DataFrame{closest(name, columns)}")
    if missing:
        each = "".join(f"\n  {param} = {name!r}" for param, name in missing.items())
        raise DataError(f"the DataFrame has {no_such('column', list(missing.values()), columns)}. They are{each}")
    for param, name in wanted.items():
        if (times := columns.count(name)) > 1:
            raise DataError(f"{param} = {name!r}: {times} columns of the DataFrame have this name; rename all but one")


@contextmanager
def _whole_labels() -> Iterator[None]:
    """Turn what Spark raises for a label that `_class_numbers` refuses into a DataError."""
    try:
        yield
    except Exception as error:
        if (holds := _HOLDS.search(str(error))) is None:
            raise
        raise DataError(
            f"labelCol {holds[1]!r} holds {holds[2]}, and labels of classes are whole numbers, 0 for the first: if "
            'these are values, set outputs="values"; else number the classes, as StringIndexer does'
        ) from error


def _remove(urls: list[str]) -> None:
    """Remove these folders of rows, but for those of a run that was interrupted and may go on. Never raises: it must
    not hide how the fit ended."""
    while urls:
        url = urls.pop()
        try:
            if runs := needed(url):
                log.warning(
                    "the rows in %s stay there: `%s` goes on with them. `%s` removes them when that run has ended or "
                    "is removed",
                    url,
                    shell_command("resume", runs[0]),
                    shell_command("clean", url, " --yes"),
                )
            else:
                remove_rows(url)
        except Exception as error:  # noqa: BLE001 - any file system
            log.warning("the rows in %s stay there: %s", url, error)


def _no_class_number(label: str) -> Any:
    """Return whether a row's label is no whole number >= 0, as a column."""
    from pyspark.sql import functions as f

    column = f.col(quoted(label))
    return (column != f.floor(column)) | (column < 0) | f.isnan(column)


def _class_numbers(label: str) -> Any:
    """Return a column of doubles as whole numbers; a task fails, and says why (`_whole_labels`), where one is none."""
    from pyspark.sql import functions as f

    column = f.col(quoted(label))
    message = f.concat(f.lit(f"labelCol '{label}' holds "), column.cast("string"))
    return (
        f.when(column.isNull() | (column == f.floor(column)), column.cast("long"))
        .otherwise(f.raise_error(message).cast("long"))
        .alias(label)
    )
