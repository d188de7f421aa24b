"""`HopyardEstimator`: model selection as a pyspark.ml Estimator."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Unpack

from pyspark.ml import Estimator
from pyspark.ml.param.shared import HasSeed, HasWeightCol
from pyspark.ml.util import MLReadable, MLReader, MLWritable, MLWriter

from hopyard.code.pickling import loads
from hopyard.data.dataset import Dataset
from hopyard.driver.pickling import PYTHON, dump
from hopyard.driver.runs.api import fit, select
from hopyard.driver.runs.keywords import KEYWORDS
from hopyard.driver.runs.run import Run
from hopyard.engines.spark.engine import Spark
from hopyard.errors import PreflightError, RunDirectoryError, SpecError
from hopyard.search.listed import Configs
from hopyard.spark.ml.dataset import Prepared, Rows
from hopyard.spark.ml.files import FileReader, FileWriter
from hopyard.spark.ml.model import NEW_COLUMNS, HopyardModel
from hopyard.spark.ml.params import TABLE, ClassifierParams, EstimatorParams, begin, has, value
from hopyard.sparkapi import is_connect
from hopyard.store.layout import fresh
from hopyard.text import shown

__all__ = ["HopyardEstimator", "HopyardModel"]


@has(EstimatorParams)
class HopyardEstimator(
    Estimator[HopyardModel], ClassifierParams, HasWeightCol, HasSeed, MLWritable, MLReadable["HopyardEstimator"]
):
    """Trains many configurations of a recipe on a DataFrame and gives the best model.

    Every Param may be given to the constructor, or by its setter, and read by its getter. Either `config`, or
    `search` with `space`, says what to train. The features are one vector or array column, `featuresCol`, or several
    columns, `featuresCols`. Vectors and arrays of floating point are one float32 matrix; an array of whole
    numbers or of arrays keeps its type and shape.

    A label numbers classes when it is a column of whole numbers, booleans, or categories that `encode` names; or when
    StringIndexer made it; or when `outputs` says so ("logits", "probabilities"): then a double or decimal such as 1.0
    counts as the whole number, as pyspark.ml has them. Any other label is a value.

    Example:
        >>> import torch, hopyard as hy
        >>> def recipe(config):
        ...     net = torch.nn.Linear(2, 2)
        ...     optimizer = torch.optim.Adam(net.parameters(), lr=config["lr"])
        ...     return hy.torch.Model(net, optimizer, torch.nn.functional.cross_entropy)
        >>> df = spark.createDataFrame([(n / 100, 1.0, int(n > 50)) for n in range(100)], ["a", "b", "label"])
        >>> estimator = hy.spark.HopyardEstimator(recipe=recipe, config={"lr": 0.1}, featuresCols=["a", "b"], epochs=3)
        >>> model = estimator.fit(df)
        >>> model.transform(df).select("probability", "prediction").dtypes
        [('probability', 'vector'), ('prediction', 'double')]
    """

    def __init__(self, **params: Unpack[EstimatorParams]) -> None:
        super().__init__()
        begin(self, params)

    def fitMultiple(self, dataset: Any, paramMaps: Sequence[Any]) -> Iterator[tuple[int, HopyardModel]]:
        """Return (index, model) of each param map. The rows are read once for all maps that say the same of them: a
        CrossValidator then materialises each fold once."""
        prepared = Prepared(dataset)
        return _FitIterator([partial(self.copy(params)._fit_rows, prepared) for params in paramMaps], prepared.close)

    def _fit(self, dataset: Any) -> HopyardModel:
        """Raise SpecError or DataError before anything is trained, and what `hy.select` raises."""
        prepared = Prepared(dataset)
        try:
            return self._fit_rows(prepared)
        finally:
            prepared.close()

    def _fit_rows(self, prepared: Prepared) -> HopyardModel:
        rows = Rows.of(self)
        rows.check(prepared.df)
        rows.check_new_columns(prepared.df, {name: value(self, name) for name in NEW_COLUMNS})
        self._check()
        session = prepared.df.sparkSession
        engine = value(self, "engine") or Spark(session, workers=value(self, "workers") or _slots(session))
        try:
            run = self._run(prepared.get(rows), engine, rows.validates)
        except PreflightError as error:
            if not (hint := rows.hint(prepared.df)):
                raise
            *others, last = error.faults
            raise PreflightError([*others, f"{last}\n     {hint}"]) from error.__cause__
        model = HopyardModel.of(run, prepared.df)
        model._resetUid(self.uid)
        return self._copyValues(model)

    def _run(self, data: Dataset, engine: Any, validates: bool) -> Run:
        root = fresh(Path(value(self, "runDirectory")))
        metric = value(self, "metric") or ("val_loss" if validates else None)
        own = {"recipe", "config", "search", "metric"}
        options: dict[str, Any] = {name: value(self, name) for name in (KEYWORDS.keys() & TABLE.keys()) - own}
        options |= {"engine": engine, "mode": value(self, "mode") or "min"}
        options["directory"] = root.with_name(f"{root.name}-{secrets.token_hex(3)}")  # fits may run side by side
        recipe, config = value(self, "recipe"), value(self, "config")
        if config is not None:
            return fit(recipe, config, data, metric=metric, **options)
        search, space = value(self, "search"), value(self, "space")
        return select(recipe, space, data, search=search, metric=metric or "loss", **options)

    def _check(self) -> None:
        """Raise SpecError unless the Params say what to train."""
        if value(self, "recipe") is None:
            raise SpecError("recipe must be set to a function, recipe(config) or recipe(config, ctx)")
        if (metric := value(self, "metric")) is not None and value(self, "mode") is None:
            raise SpecError(
                f'mode is not set: metric = {metric!r} needs "min" or "max", which of its values is the best'
            )
        config, search, space = (value(self, name) for name in ("config", "search", "space"))
        if (config is None) == (search is None) or (config is not None and space is not None):
            raise SpecError(
                "what to train is not said once: set config alone, or search and space alone, for example "
                "search=hy.Random(8), space=hy.Space(lr=hy.loguniform(1e-4, 1e-1))"
            )
        if search is not None and space is None and not isinstance(search, Configs):
            raise SpecError(f"search = {shown(search)} needs a space: set space=hy.Space(…)")

    def write(self) -> MLWriter:
        """`estimator.write().overwrite().save(path)`. Params that are Python values (recipe, space, search, …) are
        pickled: only load what comes from people you trust. An engine is not written."""
        params = {param.name: self._paramMap[param] for param in self._paramMap if param.name != "engine"}
        pickled = {name: dump(setting, name) for name, setting in params.items() if not _plain(setting)}
        excluded = frozenset({*pickled, "engine"})
        return FileWriter(self, {"params": {"python": PYTHON.encode(), **pickled}}, {}, excluded)

    @classmethod
    def read(cls) -> MLReader[HopyardEstimator]:
        """`HopyardEstimator.load(path)`."""

        def restore(files: dict[str, dict[str, bytes]], extra: dict[str, Any]) -> HopyardEstimator:
            pickled = dict(files["params"])
            python = pickled.pop("python").decode()
            if python != PYTHON:
                raise RunDirectoryError(
                    f"the estimator was written by Python {python}, this is {PYTHON}: pickled functions do not survive "
                    "that; make it anew"
                )
            return cls(**{name: loads(data) for name, data in pickled.items()})

        return FileReader(cls, restore)


class _FitIterator:
    """Iterates over the results of functions, each called once, in any number of threads. When all have ended, or one
    has failed and none runs, it calls `on_end`."""

    def __init__(self, functions: Sequence[Callable[[], HopyardModel]], on_end: Callable[[], None]) -> None:
        self._functions = functions
        self._numbers = count()
        self._on_end = on_end
        self._lock = threading.Lock()
        self._remaining = len(functions)
        self._running = 0
        self._failed = False

    def __iter__(self) -> _FitIterator:
        return self

    def __next__(self) -> tuple[int, HopyardModel]:
        number = next(self._numbers)  # no two threads get the same one
        if number >= len(self._functions):
            raise StopIteration
        with self._lock:
            self._running += 1
        try:
            return number, self._functions[number]()
        except BaseException:
            self._failed = True
            raise
        finally:
            with self._lock:
                self._running -= 1
                self._remaining -= 1
                if not self._running and (self._failed or not self._remaining):
                    self._on_end()


def _slots(session: Any) -> int:
    """Return how many tasks a classic session runs at once."""
    if is_connect(session):
        raise SpecError("workers is not set: in a Connect session it must be said how many")
    return int(session.sparkContext.defaultParallelism)


def _plain(value: Any) -> bool:
    """Whether JSON returns the value as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError):
        return False
