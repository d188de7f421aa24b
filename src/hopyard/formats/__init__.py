"""Codecs that know neither data sets nor Spark."""
