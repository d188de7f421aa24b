"""Queries of Spark; knows no data set and no model."""

from __future__ import annotations

from typing import Any

SPARK_FILES = "HOPYARD_SPARK_FILES"
"""Variable in which agents get the folder of Spark's files."""


def is_connect(session: Any) -> bool:
    """Whether it is a client of Spark Connect; else it is classic, with a JVM of its own."""
    return type(session).__module__.startswith("pyspark.sql.connect")


def is_stopped(session: Any) -> bool:
    """Whether the session has ended, so that it answers no more queries."""
    try:
        if is_connect(session):
            return bool(session.is_stopped)
        return session.sparkContext._jsc is None or bool(session.sparkContext._jsc.sc().isStopped())
    except Exception:  # noqa: BLE001 - the gateway to the JVM may be gone altogether
        return True
