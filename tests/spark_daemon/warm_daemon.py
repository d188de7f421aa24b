"""The daemon of which executors of the fixture `spark` fork their Python workers: pyspark's, with imports done.

Each worker of `pyspark.daemon` imports pyspark (from an archive of sources, so it compiles them), pandas, Arrow and
Hopyard, for a second; one whose task has failed is not used again, and tests make hundreds of tasks fail.
"""

import gc

import pandas  # noqa: F401
import pyarrow.compute  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import hopyard.data.from_spark.task
import hopyard.engines.spark_task
import hopyard.feeds.inference
import hopyard.feeds.spark_tasks
import hopyard.spark.inference.map_batches  # noqa: F401

if __name__ == "__main__":
    gc.freeze()
    manager()
