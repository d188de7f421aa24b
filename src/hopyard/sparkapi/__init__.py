"""Queries of Spark; knows no data set and no model."""
