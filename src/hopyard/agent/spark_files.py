"""`SparkFiles.get` where agents run recipes and programs: as in any other task of Spark.

pyspark tells its own Python workers alone where the files of `--files` and `SparkContext.addFile` lie. The supervisor,
which is one of them, passes that on to its agent in a variable, and so to all that the agent starts.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from hopyard.agent.import_hooks import when_imported
from hopyard.sparkapi import SPARK_FILES


def find_spark_files() -> None:
    """Tell pyspark, once it is imported, where the files lie. Nothing where no task of Spark started this process."""
    folder = os.environ.get(SPARK_FILES)
    if not folder:
        return

    def tell(module: ModuleType) -> None:
        files: Any = module
        files.SparkFiles._root_directory = folder
        files.SparkFiles._is_running_on_worker = True

    when_imported("pyspark.core.files", tell)
