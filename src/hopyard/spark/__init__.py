"""Hopyard for users of Spark: a session on this machine, a pyspark.ml Estimator, predictions for DataFrames.

    hopyard.spark.session(cores=2)         a Spark session here, also on a machine without Java
    hopyard.spark.HopyardEstimator(…)      fit(df) → HopyardModel, transform(df)
    hopyard.spark.predict(run, df)         predictions beside the columns; map_batches(fn, df): any function of rows
    hopyard.spark.save_tfrecords(df, path), load_tfrecords(spark, path)

    local/      the session, what Spark is launched with, and a Java where there is none
    inference/  predictions and functions over the rows of a DataFrame
    ml/         the Estimator and its Model
    tfrecords   files of records

Names are looked up when they are first used: importing this package imports neither pyspark nor a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULES = {
    "HopyardEstimator": "hopyard.spark.ml.estimator",
    "HopyardModel": "hopyard.spark.ml.estimator",
    "load_tfrecords": "hopyard.spark.tfrecords",
    "map_batches": "hopyard.spark.inference.map_batches",
    "predict": "hopyard.spark.inference.predict",
    "save_tfrecords": "hopyard.spark.tfrecords",
    "session": "hopyard.spark.local.session",
}
"""Public name → the module that defines it. No module here has a public name: importing it would hide that name."""

__all__ = sorted(_MODULES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'hopyard.spark' has no attribute {name!r}; it has {', '.join(sorted(_MODULES))}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from hopyard.spark.inference.map_batches import map_batches as map_batches
    from hopyard.spark.inference.predict import predict as predict
    from hopyard.spark.local.session import session as session
    from hopyard.spark.ml.estimator import HopyardEstimator as HopyardEstimator
    from hopyard.spark.ml.estimator import HopyardModel as HopyardModel
    from hopyard.spark.tfrecords import load_tfrecords as load_tfrecords
    from hopyard.spark.tfrecords import save_tfrecords as save_tfrecords
