"""Queries of Spark; knows no data set and no model."""

SPARK_FILES = "HOPYARD_SPARK_FILES"
"""Variable in which agents get the folder of Spark's files."""
