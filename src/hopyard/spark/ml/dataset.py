"""What an Estimator's Params say of rows: which columns are features and label, and how these become a Dataset.

Knows nothing of training. Labels of pyspark.ml are doubles; where they count classes they become whole numbers here.
"""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any

from hopyard.checks import closest
from hopyard.data.dataset import Dataset
from hopyard.data.partitions.cache import remove_rows
from hopyard.data.shared.needed import needed
from hopyard.errors import DataError, SpecError
from hopyard.spark.ml.params import value
from hopyard.sparkapi.dataframe import quoted

log = logging.getLogger(__name__)

NAMES = (
    "featuresCol", "featuresCols", "labelCol", "weightCol", "outputs", "validation", "validationCol", "partitions",
    "encode", "standardize", "seed", "store",
)  # fmt: skip
"""The Params that decide it."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The values of these Params, None where they are not set."""

    given: dict[str, Any]

    @classmethod
    def of(cls, estimator: Any) -> Rows:
        """Of an Estimator."""
        return cls({name: value(estimator, name) for name in NAMES})

    @property
    def validates(self) -> bool:
        """Whether some rows validate."""
        return bool(self.given["validation"] or self.given["validationCol"])

    def check(self, df: Any) -> None:
        """Raises SpecError or DataError for what can be told without the rows."""
        if not hasattr(df, "mapInArrow"):
            raise SpecError(f"fit(…) must be given a Spark DataFrame, got {type(df).__name__}")
        given = self.given
        if given["validation"] and given["validationCol"]:
            raise SpecError("validation and validationCol are both set; set one of them")
        several = given["featuresCols"] or []
        wanted = {} if several else {"featuresCol": given["featuresCol"]}
        wanted |= {f"featuresCols[{n}]": name for n, name in enumerate(several)}
        wanted |= {name: given[name] for name in ("labelCol", "weightCol", "validationCol")}
        for param, name in wanted.items():
            if name is not None and (times := df.columns.count(name)) != 1:
                raise DataError(
                    f"{param} names {name!r}, which is {times} times in the DataFrame{closest(name, df.columns)}"
                )
        self.features(df.schema)

    def dataset(self, df: Any) -> Dataset:
        """The rows of `df`, cut into partitions when it is prepared."""
        given, label = self.given, self.given["labelCol"]
        return Dataset.spark(
            df.withColumn(label, _counted(label)) if self.counts(df.schema[label]) else df,
            features=self.features(df.schema),
            label=label,
            weight=given["weightCol"],
            validation=given["validationCol"] or given["validation"],
            partitions=given["partitions"],
            encode=given["encode"],
            standardize=given["standardize"],
            seed=given["seed"],
            path=given["store"],
        )

    def features(self, schema: Any) -> Any:
        """A list of columns, which are one matrix, or one name: the column keeps its type and shape."""
        from pyspark.ml.linalg import VectorUDT
        from pyspark.sql.types import ArrayType, DoubleType, FloatType, NumericType

        if self.given["featuresCols"] is not None:
            return self.given["featuresCols"]
        name = self.given["featuresCol"]
        kind = schema[name].dataType
        if isinstance(kind, (VectorUDT, NumericType)):
            return [name]
        if isinstance(kind, ArrayType):
            return [name] if isinstance(kind.elementType, (FloatType, DoubleType)) else name
        raise DataError(
            f"featuresCol names {name!r}, which has type {kind.simpleString()}; a vector or an array of numbers is "
            "needed. Several columns: featuresCols=[…]"
        )

    def counts(self, label: Any) -> bool:
        """Whether a label column holds the numbers of classes as doubles: Params say so, or StringIndexer made it."""
        from pyspark.sql.types import DoubleType, FloatType

        if not isinstance(label.dataType, (FloatType, DoubleType)) or label.name in (self.given["encode"] or {}):
            return False
        if self.given["outputs"] != "auto":
            return bool(self.given["outputs"] != "values")
        return bool(label.metadata.get("ml_attr", {}).get("type") == "nominal")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Prepared:
    """The Datasets of one DataFrame, each made and prepared once, also for fits that run side by side. Owner of the
    rows that are written for them: they go with `close`, or with this object, but for those that a run still needs."""

    df: Any
    _made: dict[str, tuple[Dataset, Any]] = field(default_factory=dict)
    """By the Params; with the manifest, which keeps partitions from eviction."""
    _urls: list[str] = field(default_factory=list)
    """Of the folders that were written."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        weakref.finalize(self, _remove, self._urls)

    def get(self, rows: Rows) -> Dataset:
        """The Dataset for these Params. Raises as `Dataset.spark` and its `prepare`."""
        key = repr(sorted(rows.given.items()))
        with self._lock:
            if key not in self._made:
                made = rows.dataset(self.df)
                assert made.url is not None
                self._urls.append(made.url)
                self._made[key] = made, made.prepare()
            return self._made[key][0]

    def close(self) -> None:
        """Remove the rows; who asks for a Dataset again has it written again."""
        with self._lock:
            self._made.clear()
            _remove(self._urls)


def _remove(urls: list[str]) -> None:
    """Remove these folders of rows, but for those of a run that was interrupted and may go on. Never raises: it must
    not hide how the fit ended."""
    while urls:
        url = urls.pop()
        try:
            if runs := needed(url):
                log.warning(
                    "the rows in %s stay there: `hopyard resume %s` goes on with them. `hopyard clean %s --yes` "
                    "removes them when that run has ended or is removed",
                    url,
                    runs[0],
                    url,
                )
            else:
                remove_rows(url)
        except Exception as error:  # noqa: BLE001 - any file system
            log.warning("the rows in %s stay there: %s", url, error)


def _counted(label: str) -> Any:
    """Doubles as the whole numbers that they are; a task fails, and says why, where one is not."""
    from pyspark.sql import functions as f

    column = f.col(quoted(label))
    text = f.concat(f.lit(f"column '{label}' is the label of classes, but holds "), column.cast("string"))
    return (
        f.when(column.isNull() | (column == f.floor(column)), column.cast("long"))
        .otherwise(f.raise_error(text).cast("long"))
        .alias(label)
    )
