"""The daemon of which executors of the fixture `spark` fork their Python workers: pyspark's, with imports done.

Each worker of `pyspark.daemon` imports pyspark, pandas, Arrow and Hopyard, for a second; one whose task has failed is
not used again, and tests make hundreds of tasks fail. Spark puts archives of pyspark's sources before the installed
package, which are compiled at each import; here the installed package is taken.
"""

import sys

sys.path = [path for path in sys.path if not path.endswith((".zip", ".jar"))]

import gc  # noqa: E402

import pandas  # noqa: E402, F401
import pyarrow.compute  # noqa: E402, F401
import pyspark.worker  # noqa: E402, F401
from pyspark.daemon import manager  # noqa: E402

import hopyard.data.from_spark.task  # noqa: E402
import hopyard.engines.spark.task  # noqa: E402
import hopyard.feeds.spark_tasks  # noqa: E402
import hopyard.spark.inference.map_batches  # noqa: E402, F401

if __name__ == "__main__":
    gc.freeze()
    manager()
